# SPDX-License-Identifier: Apache-2.0
"""Proposes changes for a unit that waits because of other units in the queue, or because of fair shares.

Examples: other pending units are removed, the unit waits for a promised start, or its user's weight is raised.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from msgspec.structs import replace as restruct

from koordpy.api import keys
from koordpy.api.counted_nouns import join_words, name_first
from koordpy.api.natural_order import natural_key
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, of_config, of_snapshot
from koordpy.explain.advice.ended_changes import without
from koordpy.explain.advice.gang_changes import noted
from koordpy.explain.advice.reductions import shortest_start, without_unneeded
from koordpy.fairness.order_keys import Job
from koordpy.fairness.tenant_entitlements import entitlements_of
from koordpy.plan.limits import ADVICE_NAMED, ADVICE_QUEUED, ADVICE_WEIGHTS
from koordpy.planner.queue.backfill import moment
from koordpy.planner.queue.known_ends import Runtimes
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import QuotaUse


def queue_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of the units that are planned before this unit, and of settings for fair shares."""
    config = case.config
    # if the unit starts when it is planned alone, only earlier units prevent its start
    if any(one.unit == case.unit.id for one in case.alone.placements):
        yield from _not_ahead(case)
    yield from _promised(case)
    if config.fairness.starvation_after > 0:
        free = restruct(config.fairness, starvation_after=0.0)
        text = "no nodes were reserved for a starving job (fairness.starvationAfter: 0s in the configuration)"
        yield ClusterChange(text, Effort.LIMIT, of_config(lambda one: restruct(one, fairness=free)), 1)
    yield from _reclaimed(case)
    yield from _weights(case)


def _not_ahead(case: Case) -> Iterator[ClusterChange]:
    """Yields the removal of the fewest units that the round places before this unit, then of all other pending units.

    The largest units are removed first, so that the shortest list is found.
    """
    placed = {one.pod_key: one.unit for one in case.plan.nominations}
    placed |= {one.pod_key: one.unit for one in case.plan.placements}
    units: dict[str, list[PodInfo]] = {}
    for key, unit in placed.items():
        pod = case.snapshot.pods[key]
        if unit != case.unit.id and pod.pending:
            group = case.snapshot.members.get(pod.gang, ()) if pod.gang is not None else (pod,)
            known = units.setdefault(unit, [])
            known += [one for one in group if one.pending and one not in known]
    order = sorted(units.values(), key=lambda pods: -len(pods))
    if order:
        yield replace(_without_units(case, order, order), reduce=partial(_fewest_ahead, case, order))
    own = {pod.key for pod in case.unit.members}
    others = [pod for pod in case.snapshot.pending if pod.key not in own]
    text = "no other pod were pending (capacity is reserved for jobs ahead of it)"
    yield ClusterChange(text, Effort.NOTHING, of_snapshot(without(others)), 3, "ahead", supersedes="waiting")


def _fewest_ahead(case: Case, order: Sequence[list[PodInfo]], helps: Callable[[ClusterChange], bool]) -> ClusterChange:
    """Returns the change that removes the fewest units so that it helps; that removes all units if too many would have
    to be named."""

    def enough(units: Sequence[list[PodInfo]]) -> bool:
        return helps(_without_units(case, units, order))

    few = shortest_start(order, enough)
    few = without_unneeded(few, enough) if len(few) <= ADVICE_QUEUED else few
    return _without_units(case, few if len(few) <= ADVICE_NAMED else order, order)


def _without_units(case: Case, units: Sequence[list[PodInfo]], order: Sequence[list[PodInfo]]) -> ClusterChange:
    """Returns the change that removes the given pending units. units, order: lists of pods, one per unit; order: all
    units that the round places before this unit."""
    titles = dict.fromkeys(_title(pods) for pods in units)
    names = join_words(list(titles)) if len(units) <= ADVICE_NAMED else name_first(list(titles), ADVICE_NAMED)
    if len(units) > ADVICE_NAMED:
        names = f"the {len(units)} jobs of this round ({names})"
    gone = [pod for pods in units for pod in pods]
    size = 1 if len(units) < len(order) or len(units) <= ADVICE_NAMED else 2
    text = f"{names} were not placed before it"
    return ClusterChange(text, Effort.NOTHING, of_snapshot(without(gone)), size, "ahead", supersedes="waiting")


def _title(pods: Sequence[PodInfo]) -> str:
    """Returns the name of a unit: `gang default/train` or `pod default/a`; for a unit with several gangs all their
    names. pods: of the unit."""
    gangs = dict.fromkeys(pod.gang.key for pod in pods if pod.gang is not None)
    return " and ".join(f"gang {key}" for key in sorted(gangs, key=natural_key)) or f"pod {pods[0].key}"


def _promised(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that concern a promised start: capacity that backfill reserves for a unit at a later time.

    If the promise is for this unit, the unit only has to wait for that time. If it is for another unit, this unit may
    start before it, provided that it declares to end in time.
    """
    promise = case.plan.reservation
    if promise is not None and promise.unit != case.unit.id:
        yield from _declared_end(case, promise.start)
    if promise is None or promise.unit != case.unit.id:
        return
    runtimes = Runtimes(case.snapshot)
    ended = [pod for pod in case.snapshot.pods.values() if pod.bound and runtimes.end_of(pod) <= promise.start]
    start = moment(promise.start)
    text = f"it waited until {start}: by then enough running pods will have completed"
    yield ClusterChange(text, Effort.NOTHING, of_snapshot(without(ended)), 1)


def _declared_end(case: Case, start: float) -> Iterator[ClusterChange]:
    """Yields the annotation with which the unit declares to end before `start`.

    start: time that is promised to another unit, in seconds since 1970.
    """
    seconds = int(start - case.snapshot.now)
    if seconds <= 0:
        return
    text = f"annotation {keys.MAX_RUNTIME} were {seconds}s, so that it ends by {moment(start)}"
    yield ClusterChange(text, Effort.OWN_WISH, of_snapshot(noted(case, keys.MAX_RUNTIME, f"{seconds}s")))


def _reclaimed(case: Case) -> Iterator[ClusterChange]:
    """Yields the setting with which units reclaim their fair share from other users; nothing if it is set already."""
    fairness = case.config.fairness
    if fairness.mode == "off" or fairness.reclaim == "all" or case.config.preemption.across_users == "any":
        return
    taken = restruct(fairness, reclaim="all")
    yield ClusterChange(
        "fairness.reclaim were all", Effort.LIMIT, of_config(lambda one: restruct(one, fairness=taken)), 2
    )


def _weights(case: Case) -> Iterator[ClusterChange]:
    """Yields larger weights of the unit's user, each twice the previous one, if the user's fair share is too small.

    Yields nothing if fair shares are not reclaimed, or if the unit is in a quota.
    """
    fairness = case.config.fairness
    entitlements = entitlements_of(case.snapshot, fairness) if fairness.reclaim == "all" else None
    path = entitlements.path(case.unit.members[0]) if entitlements is not None else ()
    if entitlements is None or not path or path[-1].quota:  # the weight of a quota is in its ElasticQuota
        return
    tenant, use, asked = path[-1], QuotaUse(case.snapshot.quotas), Job(case.unit).requests()
    short = any(
        entitlements.counted(tenant, resource)
        and entitlements.use(use, tenant, resource) + request > entitlements.share(tenant, resource)
        for resource, request in entitlements.amounts(asked).items()
        if request
    )
    name = tenant.user
    before = fairness.weights.get(name, 1)
    for step in range(1, ADVICE_WEIGHTS + 1) if short and before else ():
        weight = before * 2**step
        heavier = restruct(fairness, weights={**fairness.weights, name: weight})
        text = f"fairness.weights of user {name} were {weight:g} (it is {before:g})"
        change = of_config(lambda one, heavier=heavier: restruct(one, fairness=heavier))  # type: ignore[misc]
        yield ClusterChange(text, Effort.LIMIT, change, 2 + step, "weight")
