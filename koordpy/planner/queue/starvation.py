"""Nodes held for a job that has waited too long: the starvation guard.

Source: quota-fairness.md 2. A job that fits an empty cluster and nothing of the present one would lose its
nodes to small jobs for ever. So the first such job keeps, for one round, the nodes of the placement that needs the
fewest accelerators still to come free, then the fewest pods to end, then natural order. No job behind it that asks for
what is short there gets anything on them; the others do, whatever they ask for.
"""

import heapq
from collections.abc import Collection, Iterable

import numpy as np

from koordpy.api.counted import counted
from koordpy.api.natural import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import card_hundredths
from koordpy.cluster.reservations import Purpose
from koordpy.cluster.resources import Amounts, add_amounts
from koordpy.cluster.snapshot import PODS, Snapshot
from koordpy.planning.attempt import Tried, try_unit
from koordpy.planning.build import build
from koordpy.planning.emptied import emptied, stays
from koordpy.planning.figures import Figures
from koordpy.planning.limits import STARVING_BESIDE
from koordpy.planning.placement.problem import Problem
from koordpy.planning.placement.reach import able_domains
from koordpy.planning.units import Groups, Unit


def starving_beside(groups: Groups, only: Collection[str], after: float) -> list[Unit]:
    """Units that are not due in this round and may be starving, the longest wait first: their nodes are held, too."""
    latest = groups.snapshot.now - after
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
    """The cluster once every pod that can end has ended, and what has room there."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._known: Figures | None = None

    def figures(self, unit: Unit) -> Figures:
        """Of that cluster, in which the unit's own bound members stay."""
        own = {pod.key for pod in unit.members if pod.bound}
        if own:
            return emptied(self._figures, but=own)
        self._known = self._known or emptied(self._figures)
        return self._known

    def attempt(self, unit: Unit) -> Tried:
        """Where the unit would be placed; nothing of it stays."""
        ended = self.figures(unit)
        with ended.draft.trial():
            return try_unit(unit, ended)


class StarvationGuard:
    """The guard of one round: at most one hold."""

    def __init__(self, figures: Figures) -> None:
        self._figures, self._ended = figures, AllEnded(figures)
        self._holder = ""
        """Whom nodes are held for."""

    def keep(self, unit: Unit) -> str:
        """Holds the nodes of a starving unit that has no room: nothing of what is short is left there; where nothing is
        short, what the unit needs there counts as used.

        What its pods are told; empty where nodes are held already, or where it would not fit an empty cluster either.
        """
        needs = self._find(unit) if not self._holder else {}
        if not needs:
            return ""
        self._holder = unit.title
        draft, columns = self._figures.draft, self._figures.snapshot.columns
        free, held = np.maximum(draft.free(), 0), np.zeros_like(draft.used)
        lacking: Amounts = {}
        for node, amounts in needs.items():
            short = {name: amount - int(free[node, columns[name]]) for name, amount in amounts.items()}
            add_amounts(lacking, {name: amount for name, amount in short.items() if amount > 0})
        for node, amounts in needs.items():
            for name in lacking or amounts:
                held[node, columns[name]] += free[node, columns[name]] if lacking else amounts[name]
        draft.set_aside(Purpose.STARVING, held)
        names = sorted((self._figures.snapshot.nodes[node].name for node in needs), key=natural_key)
        waiting = ", ".join(f"{quantity_text(name, amount)} {name}" for name, amount in sorted(lacking.items()))
        return f"holding nodes [{' '.join(names)}]" + (f": waiting for {waiting}" if waiting else "")

    def keep_waiting(self, unit: Unit) -> None:
        """The same for a starving unit that is not due in this round: it is looked at, and not placed."""
        if self._holder:
            return
        with self._figures.draft.trial():
            outcome = try_unit(unit, self._figures)
        if outcome.lacks_room:
            self.keep(unit)

    def kept_from(self, unit: Unit) -> str:
        """On how many nodes a unit that found no room would have had some but for the hold; empty where on none."""
        draft = self._figures.draft
        held = draft.aside.get(Purpose.STARVING)
        if held is None:
            return ""
        free = draft.free()
        requests = [self._figures.of(pod).request for pod in {pod.shape: pod for pod in unit.pending}.values()]
        nodes = [
            node
            for node in np.nonzero(held.any(axis=1))[0].tolist()
            if any(
                any(amount > free[node, column] for column, amount in request)
                and all(amount <= free[node, column] + held[node, column] for column, amount in request)
                for request in requests
            )
        ]
        return f"room on {counted(len(nodes), 'node')} is held for {self._holder}, which starves" if nodes else ""

    def _find(self, unit: Unit) -> dict[int, Amounts]:
        """Node -> what the unit's pods would ask there, their number under PODS, once all have ended."""
        found = self._ended.attempt(unit)
        if not found.nodes:
            return {}
        pods = [pod for pod in unit.pending if pod.key in found.nodes]
        nodes = [found.nodes[pod.key] for pod in pods]
        problem = build(unit, self._ended.figures(unit))
        if _simple(unit, problem):
            nodes = _cheapest(pods[0], len(pods), problem, self._figures)
        needs: dict[int, Amounts] = {}
        for pod, node in zip(pods, nodes, strict=True):
            add_amounts(needs.setdefault(node, {}), {PODS: 1, **pod.requests})
        return needs


def _simple(unit: Unit, problem: Problem) -> bool:
    """Whether pods go anywhere that has a slot, under a hard layer at most: equal ones without further ties."""
    equal = len({problem.members[rank].shape for rank in problem.pending}) == 1
    keyed = any(gang.hard_keys for gang in unit.gangs)
    free = equal and npu_resource(unit.pending[0].requests) is None
    return free and not problem.interactions and not problem.multiples and not keyed


def _cheapest(pod: PodInfo, number: int, problem: Problem, figures: Figures) -> list[int]:
    """Nodes of `number` equal pods, in natural order: pod by pod where the next one waits for least."""
    shape = problem.members[problem.pending[0]].shape
    slots = problem.slots_of[shape]
    level = problem.tree.levels[problem.hard]
    waits = _Waits(pod, figures)
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


def _fill(nodes: Iterable[int], number: int, slots: np.ndarray, waits: "_Waits") -> tuple[tuple[int, int], list[int]]:
    """((accelerators, pods) to come free, nodes) of so many pods on the given nodes.

    Accelerators to come free grow ever faster with the pods on a node, so taking the cheapest next pod is best.
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


class _Waits:
    """What has to end on a node before so many pods of one kind fit."""

    def __init__(self, pod: PodInfo, figures: Figures) -> None:
        self.snapshot: Snapshot = figures.snapshot
        self.draft = figures.draft
        self.request = {PODS: 1, **{r: n for r, n in pod.requests.items() if not figures.ignored(r)}}
        self.free = figures.draft.free()
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def total(self, node: int, pods: int) -> tuple[int, int]:
        """(accelerators in hundredths, running pods) that have to go for `pods` pods."""
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
        """How many pods have to end, those first that free the largest part of what is short."""
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
