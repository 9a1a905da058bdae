# SPDX-License-Identifier: Apache-2.0
"""Proposes changes for a unit that waits because of other units in the queue: time, reservations and fair shares."""

from collections.abc import Iterator

from msgspec.structs import replace as restruct

from koordpy.api import keys
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, of_config, of_snapshot
from koordpy.explain.advice.ended_changes import without
from koordpy.explain.advice.gang_changes import noted
from koordpy.fairness.order_keys import Job
from koordpy.fairness.tenant_entitlements import entitlements_of
from koordpy.plan.limits import ADVICE_WEIGHTS
from koordpy.planner.queue.backfill import moment
from koordpy.planner.queue.known_ends import Runtimes
from koordpy.quota.quota_book import QuotaUse


def queue_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of the units that are planned before this one, and of settings on queue order and shares."""
    config = case.config
    # the unit starts if it is planned alone, so only earlier units prevent that
    if any(one.unit == case.unit.id for one in case.alone.placements):
        own = {pod.key for pod in case.unit.members}
        others = [pod for pod in case.snapshot.pending if pod.key not in own]
        text = "jobs ahead of it in the queue were not placed first"
        yield ClusterChange(text, Effort.NOTHING, of_snapshot(without(others)), 2, spares="waiting")
    yield from _promised(case)
    if config.fairness.starvation_after > 0:
        free = restruct(config.fairness, starvation_after=0.0)
        text = "no nodes were reserved for a starving job (fairness.starvationAfter)"
        yield ClusterChange(text, Effort.LIMIT, of_config(lambda one: restruct(one, fairness=free)), 1)
    yield from _reclaimed(case)
    yield from _weights(case)


def _promised(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that concern a promised start, which is a reservation of capacity at a later time.

    If the promise belongs to this unit, it only has to wait until then. If it belongs to another unit, this unit may
    start before if it declares that it ends in time.
    """
    promise = case.plan.reservation
    if promise is not None and promise.unit != case.unit.id:
        yield from _declared_end(case, promise.start)
    if promise is None or promise.unit != case.unit.id:
        return
    runtimes = Runtimes(case.snapshot)
    ended = [pod for pod in case.snapshot.pods.values() if pod.bound and runtimes.end_of(pod) <= promise.start]
    start = moment(promise.start)
    text = f"it waited until {start}: by then enough running pods will have ended"
    yield ClusterChange(text, Effort.NOTHING, of_snapshot(without(ended)), 1)


def _declared_end(case: Case, start: float) -> Iterator[ClusterChange]:
    """Yields the annotation by which the unit declares an end before `start`, which is promised to another unit.

    start: seconds since the epoch.
    """
    seconds = int(start - case.snapshot.now)
    if seconds <= 0:
        return
    text = f"it declared an end by {moment(start)}: annotation {keys.MAX_RUNTIME}: {seconds}s"
    yield ClusterChange(text, Effort.OWN_WISH, of_snapshot(noted(case, keys.MAX_RUNTIME, f"{seconds}s")))


def _reclaimed(case: Case) -> Iterator[ClusterChange]:
    """Yields the setting by which units reclaim their fair share from other users; nothing if it is set already."""
    fairness = case.config.fairness
    if fairness.mode == "off" or fairness.reclaim == "all" or case.config.preemption.across_users == "any":
        return
    taken = restruct(fairness, reclaim="all")
    yield ClusterChange(
        "fairness.reclaim were all", Effort.LIMIT, of_config(lambda one: restruct(one, fairness=taken)), 2
    )


def _weights(case: Case) -> Iterator[ClusterChange]:
    """Yields larger weights of the unit's user, each double the one before, if the user's fair share is too small.

    Only if fair shares are reclaimed. Not for a quota, because its weight is in its ElasticQuota.
    """
    fairness = case.config.fairness
    lines = entitlements_of(case.snapshot, fairness) if fairness.reclaim == "all" else None
    path = lines.path(case.unit.members[0]) if lines is not None else ()
    if lines is None or not path or path[-1].quota:  # the weight of a quota is in its ElasticQuota
        return
    party, use, asked = path[-1], QuotaUse(case.snapshot.quotas), Job(case.unit).requests()
    short = any(
        lines.counted(party, resource) and lines.use(use, party, resource) + request > lines.share(party, resource)
        for resource, request in lines.amounts(asked).items()
        if request
    )
    name = party.user
    before = fairness.weights.get(name, 1)
    for step in range(1, ADVICE_WEIGHTS + 1) if short and before else ():
        weight = before * 2**step
        heavier = restruct(fairness, weights={**fairness.weights, name: weight})
        text = f"fairness.weights of user {name} were {weight:g} (it is {before:g})"
        change = of_config(lambda one, heavier=heavier: restruct(one, fairness=heavier))  # type: ignore[misc]
        yield ClusterChange(text, Effort.LIMIT, change, 2 + step, "weight")
