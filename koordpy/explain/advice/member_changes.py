# SPDX-License-Identifier: Apache-2.0
"""Proposes another number of members of a gang: a smaller minMember, or more members for a multiple.

minMember is changed in the object that states it: in a PodGroup, in the labels or annotations of the pods, or in an
annotation of the workload.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.objects import ObjectMeta
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import VariantError, read_again, with_pods
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World, of_snapshot
from koordpy.explain.advice.reductions import lowest
from koordpy.gangs.gang_settings import Gang, is_labelled
from koordpy.plan.limits import ADVICE_MEMBERS, ADVICE_NAMED
from koordpy.pods.gang_refs import GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import unit_multiples
from koordpy.workloads.deployment_rollouts import ROLLED
from koordpy.workloads.gang_minimum import MinimumSetting
from koordpy.workloads.volcano_gangs import SOURCE as VOLCANO
from koordpy.workloads.workload_gangs import WorkloadGang


def member_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields other numbers of members; nothing for a plain pod."""
    if case.unit.is_gang:
        yield from fewer_members(case)
        yield from _multiple(case)


def fewer_members(case: Case) -> Iterator[ClusterChange]:
    """Yields, for a few gangs, a smaller minMember: the largest number with which the unit starts.

    The smallest possible number is tried first, and then increased by bisection.
    """
    core = {pod.key for pod in case.core}
    gangs = [gang for gang in case.unit.gangs if any(pod.key in core for pod in gang.pods)]
    yield from _smaller_totals(case, gangs)
    for size, gang in enumerate(gangs[:ADVICE_NAMED]):
        stated = _stated(gang, alone=len(case.unit.gangs) == 1)
        numbers = _numbers(case, gang)
        if stated and numbers:
            change = partial(_with_minimum, gang, stated, size)
            yield replace(change(numbers[-1]), reduce=partial(_largest, change, numbers))


def _numbers(case: Case, gang: Gang) -> list[int]:
    """Returns the possible smaller minimums of a gang, the largest first.

    All are above the number of bound members, and satisfy the multiples if the unit has one gang.
    """
    divisor = math.lcm(*unit_multiples(case.unit, case.round_state).values()) if len(case.unit.gangs) == 1 else 1
    return [n for n in range(gang.min_member - 1, max(len(gang.bound), 0), -1) if n % divisor == 0]


def _stated(gang: Gang, *, alone: bool) -> str:
    """Returns the setting that states a gang's minimum, with its object, for `NAME were NUMBER`; empty if unknown.

    alone: True if the unit has no other gang.
    """
    of_group = f" of PodGroup {gang.key}"
    if gang.ref.source is GangSource.GROUP:
        return f"minMember{of_group}"
    if gang.ref.source is GangSource.UPSTREAM:
        return f"minCount{of_group}"
    if gang.workload_gang is None:
        place = f"{_place(gang.oldest.pod.metadata)} of the pods of gang {gang.key}"
        return place if gang.ref.source is GangSource.NAMED else ""
    own = gang.workload_gang
    setting = own.minimum_setting
    if own.source == VOLCANO:
        return f"{setting.name}{of_group}" if setting is not None else ""
    if own.source != "workload" or own.title is None or setting is None or (setting.name and setting.shares):
        return ""
    if not setting.name and len(setting.shares) == 1:
        return f"annotation {keys.GANG_MIN} of {own.title}" if alone else ""
    owner = own.title.owner if own.title.kind in ROLLED else None  # a Deployment has the template that users edit
    title = f"{owner.kind} {owner.name}" if owner is not None else str(own.title)
    return f"annotation {keys.GANG_MIN} on the pod template of {f'role {own.role} of ' if own.role else ''}{title}"


def _smaller_totals(case: Case, gangs: Sequence[Gang]) -> Iterator[ClusterChange]:
    """Yields, for a workload with one minimum over all roles, a smaller minimum: the largest that lets the unit start.

    The number is divided among the roles in their order (workloads.md 5.2).
    """
    by_setting: dict[tuple[object, MinimumSetting], list[WorkloadGang]] = {}
    for gang in gangs:
        own = gang.workload_gang
        if own is not None and own.source == "workload" and own.title is not None:
            setting = own.minimum_setting
            if setting is not None and setting.name and setting.shares:
                by_setting.setdefault((own.run, setting), []).append(own)
    for (run, setting), some in list(by_setting.items())[:ADVICE_NAMED]:
        bound = sum(len(gang.bound) for gang in gangs if gang.workload_gang in some)
        numbers = range(setting.number - 1, max(bound, 0), -1)
        if numbers:
            change = partial(_with_total, run, setting, f"{setting.name} of {some[0].title}")
            yield replace(change(numbers[-1]), reduce=partial(_largest, change, numbers))


def _with_total(run: object, setting: MinimumSetting, stated: str, number: int) -> ClusterChange:
    """Returns the change of the minimum over all roles of one run of a workload. stated: name of the setting, for the
    text."""

    def edit(snapshot: Snapshot) -> Snapshot:
        shares, gangs = setting.shared(number), dict(snapshot.workload_gangs)
        only = next(iter(shares.values()))  # for gangs without a role, as in a workload with a single role
        for ref, one in snapshot.workload_gangs.items():
            if one.run == run and one.minimum_setting == setting:
                gangs[ref] = replace(one, min_member=min(one.min_member, shares.get(one.role, only)))
        return replace(snapshot, workload_gangs=gangs, memo={})

    text = f"{stated} were {number} (it is {setting.number})"
    return ClusterChange(text, Effort.FEWER_MEMBERS, of_snapshot(edit), 0, "fewer members")


def _place(meta: ObjectMeta) -> str:
    """Returns the label or annotation on a pod that states the minimum of the pod's gang."""
    return f"label {keys.LABEL_GANG_MIN}" if is_labelled(meta) else f"annotation {keys.GANG_MIN}"


def _with_minimum(gang: Gang, stated: str, size: int, number: int) -> ClusterChange:
    """Returns the change to a minimum. stated: result of `_stated`. size: as in `ClusterChange`."""
    ref = gang.ref

    def edit(snapshot: Snapshot) -> Snapshot:
        if ref in snapshot.workload_gangs:
            gangs = {**snapshot.workload_gangs, ref: replace(snapshot.workload_gangs[ref], min_member=number)}
            return replace(snapshot, workload_gangs=gangs, memo={})
        if ref.source is GangSource.GROUP:
            group = snapshot.pod_groups[ref.key]
            changed = structs.replace(group, spec=structs.replace(group.spec, min_member=number))
            return replace(snapshot, pod_groups={**snapshot.pod_groups, ref.key: changed}, memo={})
        if ref.source is GangSource.UPSTREAM:
            upstream = snapshot.upstream_groups[ref.key]
            policy = upstream.spec.scheduling_policy
            if policy.gang is None:
                raise VariantError
            policy = structs.replace(policy, gang=structs.replace(policy.gang, min_count=number))
            spec = structs.replace(upstream.spec, scheduling_policy=policy)
            groups = {**snapshot.upstream_groups, ref.key: structs.replace(upstream, spec=spec)}
            return replace(snapshot, upstream_groups=groups, memo={})
        return with_pods(snapshot, [_pod_with_minimum(snapshot.pods[pod.key], number) for pod in gang.pods])

    text = f"{stated} were {number} (it is {gang.min_member})"
    if gang.workload_gang is not None and gang.workload_gang.source != VOLCANO:
        text = f"{stated} were {number} (now {count_noun(gang.min_member, 'member')} must start together)"
    return ClusterChange(text, Effort.FEWER_MEMBERS, of_snapshot(edit), size, "fewer members")


def _pod_with_minimum(pod: PodInfo, number: int) -> PodInfo:
    """Returns a pod with another minimum in its label or annotation."""
    meta = pod.pod.metadata
    if is_labelled(meta):
        meta = structs.replace(meta, labels={**meta.labels, keys.LABEL_GANG_MIN: str(number)})
    else:
        meta = structs.replace(meta, annotations={**meta.annotations, keys.GANG_MIN: str(number)})
    return structs.replace(pod, pod=structs.replace(pod.pod, metadata=meta))


def _largest(
    change: Callable[[int], ClusterChange], numbers: Sequence[int], helps: Callable[[ClusterChange], bool]
) -> ClusterChange:
    """Returns the change with the largest number that helps. numbers: descending; the last one is known to help."""
    return change(numbers[lowest(-1, len(numbers) - 1, lambda place: helps(change(numbers[place])))])


def _multiple(case: Case) -> Iterator[ClusterChange]:
    """Yields the creation of further members, up to the next number that satisfies all multiples.

    Yields nothing if a number between the gang's minimum and its current number of members satisfies them.
    """
    unit = case.unit
    divisor = math.lcm(*unit_multiples(unit, case.round_state).values())
    bound, every = len(unit.members) - len(unit.pending), len(unit.members)
    allowed = range(bound + case.needed, every + 1)
    if divisor < 2 or any(n % divisor == 0 for n in allowed) or not unit.pending:
        return
    more = -every % divisor
    if more <= ADVICE_MEMBERS:
        last = unit.pending[-1]

        def grow(world: World) -> World:
            new = [copied_member(last, n, world) for n in range(1, more + 1)]
            return replace(world, snapshot=with_pods(world.snapshot, new))

        text = f"it had {every + more} members (it has {every}, which is not a multiple of {divisor})"
        yield ClusterChange(text, Effort.OWN_WISH, grow, 1 + more, "members")


def copied_member(pod: PodInfo, number: int, world: World) -> PodInfo:
    """Returns a new pending member that is a copy of a pod. number: counts the copies, from 1."""
    name = f"{pod.name}-more-{number}"
    meta = structs.replace(pod.pod.metadata, name=name, uid=name)
    made = read_again(pod, structs.replace(pod.pod, metadata=meta), world.snapshot, world.config)
    return structs.replace(made, index=None if pod.index is None else pod.index + number)
