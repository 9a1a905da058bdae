# SPDX-License-Identifier: Apache-2.0
"""The proof that a plan with victims is minimal: without any one of its units the members could not be placed.

The planner's own check asks only whether a plan is lawful; `VictimCheck.needless` counts what it sees in passing. This
one tries every unit of a plan: with it back, by itself, the members stand where they are, or those in its place go
elsewhere, and pods that are moved return where they do. `proven()` puts it in the place of that count, so that
`RoundPlan.not_minimal` names every plan that is not minimal.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from unittest import mock

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.family_registry import allocate, uses_reserved_devices
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search import preemption_search
from koordpy.reservations.available_capacity import AvailableCapacity
from koordpy.verify.eviction_check import QUOTA, EvictedUnit
from koordpy.verify.plan_check import check_filters, check_plan, check_returns
from koordpy.verify.preemption_check import VictimCheck, check_moves

REFITTED_UNITS = 20
"""Units of one plan that are tried with all filters."""


@contextmanager
def proven() -> Iterator[None]:
    """Rounds meanwhile prove the minimality of each plan with victims."""
    with mock.patch.object(preemption_search, "VictimCheck", MinimalityProof):
        yield


class MinimalityProof(VictimCheck):
    """Tries to give back each unit of one plan."""

    def needless(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the first pod of each unit that could stay.

        Where members have volumes or resource claims, units that have some, too, are not tried, nor are such members
        sent elsewhere: where claims could be otherwise is not looked at here.
        """
        index = self.snapshot.index
        claiming = {pod.key for pod in self.placed if _claims(pod)}
        room, out, tries = _RoomAfter(self, taken), list[str](), 0
        for one in taken:
            if not room.may_stay(one) or not all(pod.node in index for pod in one.pods):
                continue
            if claiming and any(_claims(pod) for pod in one.pods):
                continue
            seats = room.without(one)
            if seats is None or not claiming.isdisjoint(seats):
                continue
            rest = [other for other in taken if other is not one]
            tries += 1
            if tries > REFITTED_UNITS:
                break
            if self.whole(rest) or self.lawful(rest):
                continue
            if not self._refused(rest, {**self.nodes, **seats}):
                out.append(one.pods[0].key)
        return out

    @cached_property
    def promised(self) -> AvailableCapacity | None:
        """What nominated pods have reserved from the unit, the least important of those that wait."""
        return (
            self.round_state.available_to(min(self.unit.pending, key=lambda pod: pod.priority)) if self.placed else None
        )

    def _refused(self, taken: Sequence[EvictedUnit], nodes: Mapping[str, int]) -> bool:
        """Whether a filter, a quota or its devices refuse places with some units gone, or moved."""
        draft, names = self.draft, self.snapshot.nodes
        mark = draft.mark()
        moved = [pod for one in taken for pod in one.pods]
        for pod in moved:
            draft.evict(pod)
        given = allocate(nodes, self.round_state)
        at = {key: names[node].name for key, node in nodes.items()}
        refused = bool(
            given.faults or check_plan(self.unit, at, self.round_state, given.devices, given.notes, whole=True)
        )
        if self.promised is not None and not refused:
            columns = self.snapshot.columns
            kept = {int(node): self.promised.requests(i, columns) for i, node in enumerate(self.promised.positions)}
            seated = [(pod, nodes[pod.key]) for pod in self.placed]
            refused = bool(uses_reserved_devices(seated, kept, self.round_state.inputs))
            for node, pods in self.promised.pods.items() if not refused else ():
                there = [(pod, names[node].name) for pod, seat in seated if seat == node]
                with draft.trial():
                    for pod in pods if there else ():
                        draft.assign(pod, node)
                    refused |= bool(there and check_filters(there, self.round_state, whole=True))
        if self.back and not refused:
            for pod in self.placed:
                draft.assign(pod, nodes[pod.key], devices=given.devices.get(pod.key, {}))
            back = {pod.key: names[self.back[pod.key]].name for pod in moved}
            refused = bool(check_returns([(pod, back[pod.key]) for pod in moved], self.round_state)) or any(
                check_moves(self.round_state.groups.unit(gang), back, self.round_state)
                for gang in dict.fromkeys(pod.gang for pod in moved if pod.gang is not None)
            )
        draft.undo(mark)
        return refused


def _claims(pod: PodInfo) -> bool:
    """Whether a pod has volumes or resource claims."""
    return bool(pod.pod.spec.resource_claims or pod.ties.volumes)


def _of(sums: Mapping[str, Mapping[str, int]], name: str, resource: str) -> int:
    return sums[name][resource] if name in sums else 0


class _RoomAfter:
    """What is free once a plan is carried out, by sums."""

    def __init__(self, plan: MinimalityProof, taken: Sequence[EvictedUnit]) -> None:
        self.plan, self.taken = plan, taken
        draft, snapshot = plan.draft, plan.snapshot
        free = snapshot.allocatable - draft.used
        if plan.promised is not None:
            free[plan.promised.positions] -= plan.promised.reserved
        self.columns = snapshot.columns
        for pod in (pod for one in taken for pod in one.pods):
            if pod.node in snapshot.index:
                self._count(free[snapshot.index[pod.node]], pod, 1)
        self.on: dict[int, list[PodInfo]] = {}
        for pod in plan.placed:
            self._count(free[plan.nodes[pod.key]], pod, -1)
            self.on.setdefault(plan.nodes[pod.key], []).append(pod)
        for key, node in plan.back.items():
            self._count(free[node], snapshot.pods[key], -1)
        self.free = free
        self._candidates: dict[bytes, list[int]] = {}
        self._tight = self._slack()

    def _slack(self) -> list[tuple[str, str, int]]:
        """(quota, resource, what it could still take) where the plan's own quotas end, by their limits; by their min
        where a reclaim from outside them has to keep them within it."""
        plan = self.plan
        gone = [pod for one in self.taken for pod in one.pods]
        lost, limits = plan.sum_by_quota(gone), plan.limits_after(() if plan.back else gone)
        reclaimed = [pod for one in self.taken if one.rule == QUOTA for pod in one.pods]
        gaining = {name for pod in reclaimed for name in plan.preemptor_quotas(pod)}
        out = []
        for name, asked in plan.added.items():
            for resource, most in limits[name].items():
                line = min(most, plan.tree.quotas[name].least(resource)) if name in gaining else most
                less = _of(lost, name, resource)
                if asked[resource] and less:
                    after = plan.use.used(name, resource) + asked[resource] - less
                    out.append((name, resource, line - after))
        return out

    def may_stay(self, one: EvictedUnit) -> bool:
        """Whether the beneficiary's quotas could do without a unit: a quick look."""
        if not self._tight:
            return True
        held = self.plan.sum_by_quota(one.pods)
        return all(_of(held, name, resource) <= slack for name, resource, slack in self._tight)

    def without(self, one: EvictedUnit) -> dict[str, int] | None:
        """Pod key -> node of members that go elsewhere so that a unit may stay; None where sums find no way."""
        plan = self.plan
        rows = {node: self.free[node].copy() for node in {plan.snapshot.index[pod.node] for pod in one.pods}}
        for pod in one.pods:
            self._count(rows[plan.snapshot.index[pod.node]], pod, -1)
            if (returns := plan.back.get(pod.key)) is not None:
                self._count(rows.setdefault(returns, self.free[returns].copy()), pod, 1)
        seats: dict[str, int] = {}
        for node, row in list(rows.items()):
            leaving = list(self.on.get(node, ()))
            homeless = []
            while leaving and self._lacks(row):
                pod = leaving.pop()
                self._count(row, pod, 1)
                homeless.append(pod)
            for pod in homeless:
                seat = self._elsewhere(pod, rows)
                if seat is None:
                    return None
                seats[pod.key] = seat
        return seats

    def _lacks(self, row: Ints) -> bool:
        return bool((row[self._columns] < 0).any())

    @cached_property
    def _columns(self) -> list[int]:
        """Columns that the members ask of."""
        names = {name for name in self.plan.requested if not self.plan.round_state.ignored(name)}
        return [0, *sorted(self.columns[name] for name in names)]

    def _count(self, row: Ints, pod: PodInfo, sign: int) -> None:
        row[0] += sign
        for name, amount in pod.requests.items():
            row[self.columns[name]] += sign * amount

    def _elsewhere(self, pod: PodInfo, rows: dict[int, Ints]) -> int | None:
        """A node with room for a pod, which it takes."""
        asked = np.zeros(self.free.shape[1], dtype=np.int64)
        self._count(asked, pod, 1)
        columns = self._columns
        known = self._candidates.get(pod.shape)
        if known is None:
            enough = ((self.free[:, columns] >= asked[columns]) | (asked[columns] <= 0)).all(axis=1)
            nodes = np.nonzero(enough)[0].tolist()
            names = self.plan.snapshot.nodes
            round_state = self.plan.round_state
            known = [n for n in nodes[:200] if not check_filters([(pod, names[n].name)], round_state)]
            self._candidates[pod.shape] = known
        for node in (*rows, *known):
            row = rows[node] if node in rows else self.free[node].copy()
            if bool(((row[columns] >= asked[columns]) | (asked[columns] <= 0)).all()):
                self._count(row, pod, -1)
                rows[node] = row
                return node
        return None
