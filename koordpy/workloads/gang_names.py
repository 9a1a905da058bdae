# SPDX-License-Identifier: Apache-2.0
"""Gives derived gangs unique names (`namespace/name`): if another gang has a name already, a suffix is added.

The plain name of a gang is the name of its workload. A gang that is named earlier keeps the plain name. The order is:
gangs of Volcano's PodGroups; runs of workloads, the oldest workload first; gangs by labels, the newest first; gangs of
owners that are not known yet. Suffixes are `@RUN` for an older run of the same workload, and `-KIND` for a workload of
another kind with the same name.
"""

from collections.abc import Iterable, Mapping

from koordpy.workloads.pod_buckets import AWAITED, LABELS, PHASES, RUN, VOLCANO, PodBucket


def give_names(every: Iterable[PodBucket], taken: frozenset[str], others: dict[PodBucket, None]) -> list[PodBucket]:
    """Sets the suffix of each bucket; returns the buckets in the order in which they were named.

    every: all buckets. taken: `namespace/name` of the gangs that pods or objects name themselves. others: output; gets
    the buckets with a changed suffix.
    """
    # the order in which names are assigned
    by_phase: dict[str, list[PodBucket]] = {phase: [] for phase in PHASES}
    for bucket in every:
        by_phase[bucket.key[0]].append(bucket)
    for buckets in by_phase.values():
        buckets.sort(key=lambda one: one.key)
    by_phase[RUN].sort(key=lambda one: one.found.order)
    by_phase[LABELS].sort(key=lambda one: -one.found.order[1])
    # `current`: workload or group -> its newest run, the last in `newest`; this run needs no suffix
    newest = sorted(by_phase[RUN], key=lambda one: (one.found.is_present, one.found.order[1]))
    current = {bucket.key[:-1]: bucket for bucket in newest}
    named = {name for bucket in by_phase[VOLCANO] for name in bucket.names("")}  # all names that are assigned so far
    for bucket in by_phase[RUN]:
        suffix = "" if current[bucket.key[:-1]] is bucket else f"@{bucket.key[-1]}"
        while not (named.isdisjoint(names := bucket.names(suffix)) and taken.isdisjoint(names)):
            suffix += f"-{bucket.found.kind}"
        _set_suffix(bucket, suffix, named, others)
    # a gang by labels gets its kind as suffix if a run has its name; if the name still repeats, also a part of its uid
    by_runs = named | taken
    for bucket in (*by_phase[LABELS], *by_phase[AWAITED]):
        suffix = "" if by_runs.isdisjoint(bucket.names("")) else f"-{bucket.found.kind}"
        if not named.isdisjoint(bucket.names(suffix)):
            suffix += f"@{bucket.key[-1][:8]}"
        _set_suffix(bucket, suffix, named, others)
    return [one for buckets in by_phase.values() for one in buckets]


def _set_suffix(bucket: PodBucket, suffix: str, named: set[str], others: dict[PodBucket, None]) -> None:
    named.update(bucket.names(suffix))
    if suffix != bucket.suffix:
        bucket.suffix, others[bucket] = suffix, None


def gangs_by_workload(order: Iterable[PodBucket], finished: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Returns workload -> its gangs, so that a `groups` annotation may name a workload. All are `namespace/name`.

    Left out are workloads with exactly one gang that has the workload's name. An empty tuple means that the workload is
    finished or has no gang. order: buckets in naming order. finished: finished workloads with a name that no gang has.
    """
    meant: dict[str, list[str]] = {}
    for bucket in order:
        if bucket.derivation is not None and bucket.found.kind:
            own = bucket.derivation.run.workload.head.key
            meant.setdefault(own, []).extend(one.key for one in bucket.shown if one.is_planned_jointly)
    for own in finished:
        meant.setdefault(own, [])
    return {key: tuple(found) for key, found in meant.items() if found != [key]}
