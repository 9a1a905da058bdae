# SPDX-License-Identifier: Apache-2.0
"""The starvation guard: reserves nodes for a unit that has waited too long (`fairness.starvationAfter`).

A large unit may never start, because small units always use capacity before enough of it is free for the large unit
(docs/rules/quota-fairness.md 2). So the first such unit that would fit an empty cluster gets a reservation for one
round. It covers the nodes of one placement, chosen for the fewest accelerators that must still be freed, then the
fewest pods that must end, then natural order. On these nodes, resources that the unit lacks are closed to all later
units; other resources are not.
"""

import heapq
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from koordpy.api.counted_nouns import count_noun
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.attempts.unit_attempt import plan_unit
from koordpy.attempts.unit_outcome import PlacedUnit, UnitOutcome, WaitingUnit
from koordpy.cache.reservations import ClosedTo, Reservation, withheld
from koordpy.cache.snapshot import PODS, Snapshot
from koordpy.devices.family_registry import counts_decide
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.infeasibility.without_evictable import without_evictable_pods
from koordpy.placement.allowed_counts import able_domains
from koordpy.placement.problem import Problem
from koordpy.plan.limits import STARVING_BESIDE
from koordpy.planner.queue.queue_policy import QueuePolicy
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.problems.problem_building import build
from koordpy.quota.quota_book import card_hundredths


def starving_beside(groups: Groups, only: Collection[str], latest: float) -> list[Unit]:
    """Returns units that are not due in this round and may be starving, the longest wait first.

    Nodes are reserved for these units as well, although the round does not try them. At most `STARVING_BESIDE` units.
    only: ids of the due units. latest: latest creation time at which a pod counts as starving, in seconds since the
    epoch.
    """
    waiting = sorted((pod for pod in groups.snapshot.pending if pod.created <= latest), key=lambda pod: pod.created)
    out: dict[str, Unit] = {}
    for pod in waiting:
        if len(out) >= STARVING_BESIDE:
            break
        unit = Unit(id=pod.key, gangs=(), plain=pod) if pod.gang is None else groups.unit(pod.gang)
        if unit.id not in only:
            out.setdefault(unit.id, unit)
    return list(out.values())


class AllEnded:
    """The cluster as if every pod that can end had ended: shows if a unit could ever fit."""

    def __init__(self, round_state: RoundState) -> None:
        self._round_state = round_state
        self._known: RoundState | None = None

    def round_state(self, unit: Unit) -> RoundState:
        """Returns the round state of that cluster. Bound members of the unit stay on their nodes."""
        own = {pod.key for pod in unit.members if pod.bound}
        if own:
            return without_evictable_pods(self._round_state, but=own)
        self._known = self._known or without_evictable_pods(self._round_state)
        return self._known

    def attempt(self, unit: Unit) -> UnitOutcome:
        """Returns the outcome of a unit on that cluster. Nothing stays placed."""
        ended = self.round_state(unit)
        with ended.draft.trial():
            return plan_unit(unit, ended)


class StarvationGuard(QueuePolicy):
    """The starvation guard of one round: reserves nodes for at most one starving unit."""

    def __init__(self, round_state: RoundState, starving: Collection[str], backfill: QueuePolicy | None = None) -> None:
        """starving: ids of the units that have waited too long. backfill: the backfill policy; None if backfill is off.
        If it promises a start, this policy reserves nothing."""
        self._round_state, self._ended = round_state, AllEnded(round_state)
        self._starving, self._backfill = starving, backfill
        self._reservation: Reservation | None = None
        """The reservation of the first starving unit that lacks capacity; None until there is one."""

    def reserve(self, unit: Unit) -> str:
        """Reserves nodes for the first starving unit that does not fit.

        On each reserved node, all free capacity of the resources that the unit lacks is withheld from other units. If
        the unit lacks no resource, only its requests are withheld. Returns the message for the unit's pods. The message
        is empty, and nothing is reserved, if another unit has the reservation already, or if the unit would not fit an
        empty cluster.
        """
        needs = self._needs_of(unit) if self._reservation is None else {}
        if not needs:
            return ""
        draft, columns = self._round_state.draft, self._round_state.snapshot.columns
        free, reserved = np.maximum(draft.free(), 0), np.zeros_like(draft.used)
        # first what the unit lacks on all its nodes together, then what is withheld on each node
        lacking: Amounts = {}
        for node, amounts in needs.items():
            short = {name: amount - int(free[node, columns[name]]) for name, amount in amounts.items()}
            add_amounts(lacking, {name: amount for name, amount in short.items() if amount > 0})
        for node, amounts in needs.items():
            for name in lacking or amounts:
                reserved[node, columns[name]] += free[node, columns[name]] if lacking else amounts[name]
        self._reservation = withheld(unit.title, ClosedTo.ALL, reserved)
        draft.withhold(self._reservation)
        names = sorted((self._round_state.snapshot.nodes[node].name for node in needs), key=natural_key)
        waiting = ", ".join(f"{quantity_text(name, amount)} {name}" for name, amount in sorted(lacking.items()))
        return f"holding nodes [{' '.join(names)}]" + (f": waiting for {waiting}" if waiting else "")

    def settle(self, unit: Unit, outcome: UnitOutcome) -> UnitOutcome:
        """Reserves nodes if a starving unit lacks capacity.

        Adds to the message of any unit that lacks capacity the number of nodes on which it would fit without the
        reservation.
        """
        if not isinstance(outcome, WaitingUnit) or not outcome.lacks_capacity:
            return outcome
        if kept := self.blocked_message(unit):
            outcome = replace(outcome, reasons=(*outcome.reasons, f"{kept}."))
        if unit.id in self._starving and (self._backfill is None or self._backfill.promise is None):
            outcome = outcome.note_capacity(hold=self.reserve(unit))
        return outcome

    def considers(self, unit: Unit) -> bool:
        """Reserves nodes for a starving unit that is not due, if it does not fit now.

        Returns False, because the unit is not to be placed in this round.
        """
        if self._backfill is None and self._reservation is None and unit.id in self._starving:
            with self._round_state.draft.trial():
                outcome = plan_unit(unit, self._round_state)
            if isinstance(outcome, WaitingUnit) and outcome.lacks_capacity:
                self.reserve(unit)
        return False

    def blocked_message(self, unit: Unit) -> str:
        """Returns a message with the number of nodes on which a pod of the unit would fit without the reservation.

        Empty if there are no such nodes.
        """
        hold = self._reservation
        if hold is None or hold.amounts is None:
            return ""
        free, reserved = self._round_state.draft.free(), hold.amounts
        requests = [self._round_state.of(pod).request for pod in {pod.shape: pod for pod in unit.pending}.values()]
        nodes = [
            node
            for node in np.nonzero(reserved.any(axis=1))[0].tolist()
            if any(
                any(amount > free[node, column] for column, amount in request)
                and all(amount <= free[node, column] + reserved[node, column] for column, amount in request)
                for request in requests
            )
        ]
        return (
            f"capacity on {count_noun(len(nodes), 'node')} is reserved for {hold.holder}, which is starving"
            if nodes
            else ""
        )

    def _needs_of(self, unit: Unit) -> dict[int, Amounts]:
        """Returns node -> requests of the unit's pods on it, in a placement as if all other pods had ended.

        The number of the pods is under the key PODS. Empty if the unit does not fit even then. If the pods are
        interchangeable, the nodes are those on which the fewest accelerators must still be freed.
        """
        found = self._ended.attempt(unit)
        if not isinstance(found, PlacedUnit):
            return {}
        pods = [pod for pod in unit.pending if pod.key in found.nodes]
        nodes = [found.nodes[pod.key] for pod in pods]
        problem = build(unit, self._ended.round_state(unit))
        if _is_interchangeable(unit, problem, self._round_state.snapshot):
            nodes = _cheapest(pods[0], len(pods), problem, self._round_state)
        needs: dict[int, Amounts] = {}
        for pod, node in zip(pods, nodes, strict=True):
            add_amounts(needs.setdefault(node, {}), {PODS: 1, **pod.requests})
        return needs


def _is_interchangeable(unit: Unit, problem: Problem, snapshot: Snapshot) -> bool:
    """Returns True if each pod of the unit may use any slot: equal pods, at most one hard layer, no further
    constraints."""
    equal = len({problem.members[rank].shape for rank in problem.pending}) == 1
    keyed = any(gang.hard_keys for gang in unit.gangs)
    free = equal and counts_decide(unit.pending[0], snapshot)
    return free and not problem.interactions and not problem.multiples and not keyed


def _cheapest(pod: PodInfo, number: int, problem: Problem, round_state: RoundState) -> list[int]:
    """Returns the nodes of `number` equal pods, in natural order, chosen so that the least must still be freed.

    problem: on the cluster as if all pods had ended. If there is a hard layer, all pods are in one domain of it.
    """
    shape = problem.members[problem.pending[0]].shape
    slots = problem.slots_of[shape]
    level = problem.tree.levels[problem.hard]
    waits = _EndingCounts(pod, round_state)
    best: tuple[tuple[int, int], int, list[int]] | None = None
    for domain in able_domains(problem, shape, problem.hard, number).tolist():
        bound = problem.bound_counts
        inside = range(int(level.start[domain]), int(level.end[domain]))
        if problem.hard and bound.any() and not bound[inside.start : inside.stop].any():
            continue
        cost, nodes = _fill([node for node in inside if slots[node] > 0], number, slots, waits)
        if best is None or cost < best[0]:
            best = cost, domain, nodes
    assert best is not None, "the unit fits, so some domain holds it"
    return best[2]


def _fill(
    nodes: Iterable[int], number: int, slots: np.ndarray, waits: "_EndingCounts"
) -> tuple[tuple[int, int], list[int]]:
    """Returns ((accelerators, pods) to be freed, nodes) for `number` pods on the given nodes.

    On each node, every further pod needs at least as many freed accelerators as the pod before. So always choosing the
    cheapest next pod is optimal.
    """
    taken: dict[int, int] = {}
    heap = [(waits.total(node, 1), node) for node in nodes]
    heapq.heapify(heap)
    devices = ended = 0
    for _ in range(number):
        (more, pods), node = heapq.heappop(heap)
        devices, ended = devices + more, ended + pods
        count = taken[node] = taken.get(node, 0) + 1
        if count < slots[node]:
            before, after = waits.total(node, count), waits.total(node, count + 1)
            heapq.heappush(heap, ((after[0] - before[0], after[1] - before[1]), node))
    return (devices, ended), [node for node in sorted(taken) for _ in range(taken[node])]


class _EndingCounts:
    """Counts the pods that must end on a node before a number of pods of one kind fits there."""

    def __init__(self, pod: PodInfo, round_state: RoundState) -> None:
        self.snapshot: Snapshot = round_state.snapshot
        self.draft = round_state.draft
        self.request = {PODS: 1, **{r: n for r, n in pod.requests.items() if not round_state.ignored(r)}}
        self.free = round_state.draft.free()
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def total(self, node: int, pods: int) -> tuple[int, int]:
        """Returns (accelerators in hundredths, running pods) that must be freed and end so that `pods` pods fit the
        node."""
        found = self._known.get((node, pods))
        if found is None:
            short = {}
            for name, amount in self.request.items():
                lacking = amount * pods - int(self.free[node, self.snapshot.columns[name]])
                if lacking > 0:
                    short[name] = lacking
            found = self._known[node, pods] = card_hundredths(short), self._ending(node, short)
        return found

    def _ending(self, node: int, short: Amounts) -> int:
        """Returns the number of pods that must end; pods that free the largest part of the lacking amounts end
        first."""
        if not short:
            return 0
        there = [*self.snapshot.pods_on.get(self.snapshot.nodes[node].name, ())]
        there += self.draft.placed_on.get(node, {}).values()
        left = dict(short)
        running = [{PODS: 1, **pod.requests} for pod in there if pod.key not in self.draft.evicted and not stays(pod)]
        count = 0
        while running and any(amount > 0 for amount in left.values()):
            gain = [sum(min(n, pod.get(name, 0)) / n for name, n in left.items() if n > 0) for pod in running]
            pod = running.pop(max(range(len(gain)), key=lambda i: (gain[i], -i)))
            left = {name: amount - pod.get(name, 0) for name, amount in left.items()}
            count += 1
        return count
