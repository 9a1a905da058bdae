"""Units that are alike in all but their importance: of those on one node only so many are worth looking at.

Source: preemption.md 5 and 6. The least important of twins go first (level 9), and no more of them than make up for all
that the beneficiary asks there: whoever goes beyond that frees nothing that is wanted. So the others need not be looked
at, unless a quota wants back what pods of it hold.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Ints, Snapshot
from koordpy.planning.limits import TWIN_MEMBERS, TWIN_UNITS
from koordpy.planning.placement.problem import Problem
from koordpy.planning.victim_selection.budgets import Budget, coverage
from koordpy.planning.victim_selection.units import UnitKind, VictimUnit
from koordpy.planning.victims.pool import Mask, Pool


@dataclass
class EquivalentUnits:
    """The twins of a pool. of: [units] number of the set, -1 without; node and frees: of each set."""

    pool: Pool
    of: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    node: list[int] = field(default_factory=list)
    frees: list[dict[int, int]] = field(default_factory=list)

    def kept(self, eligible: Mask, problem: Problem, budgets: Sequence[Budget], looked_at: Collection[str]) -> Mask:
        """The eligible units without those that need not be looked at. looked_at: pods that filters look at."""
        if len(problem.pending) > TWIN_MEMBERS or int(eligible.sum()) < TWIN_UNITS:
            return eligible
        if len(self.of) < len(self.pool.units):
            self._read(budgets)
        wanted = self._wanted(problem)
        ranks = np.array(self.pool.ranks, dtype=np.int64)
        units = np.nonzero(eligible & (self.of >= 0))[0]
        if looked_at:
            units = units[[self.pool.units[i].pods[0].key not in looked_at for i in units.tolist()]]
        units = units[np.lexsort((ranks[units], self.of[units]))]
        sets = self.of[units]
        starts = np.r_[0, np.nonzero(np.diff(sets))[0] + 1] if len(sets) else np.zeros(0, dtype=np.int64)
        sizes = np.diff(np.r_[starts, len(sets)])
        place = np.arange(len(sets)) - np.repeat(starts, sizes)
        out = eligible.copy()
        out[units[place >= wanted[sets]]] = False
        return out

    def _wanted(self, problem: Problem) -> Ints:
        """[sets] units of each that make up for all that is asked, if all of it comes to their node."""
        asked: dict[int, int] = {}
        for rank in problem.pending:
            for column, amount in problem.shapes[problem.members[rank].shape].request:
                asked[column] = asked.get(column, 0) + amount
        nodes = np.array(self.node, dtype=np.int64)
        out = np.zeros(len(nodes), dtype=np.int64)
        for column, amount in asked.items():
            each = np.array([frees.get(column, 0) for frees in self.frees], dtype=np.int64)
            lacking = np.maximum(amount - problem.free[nodes, column], 0)
            out = np.maximum(out, np.where(each > 0, -(-lacking // np.maximum(each, 1)), 0))
        return out

    def _read(self, budgets: Sequence[Budget]) -> None:
        snapshot = self.pool.draft.snapshot
        numbers: dict[Hashable, int] = {}
        covers = coverage(budgets)
        self.node, self.frees = [], []
        self.of = np.full(len(self.pool.units), -1, dtype=np.int64)
        for i, unit in enumerate(self.pool.units):
            key = self._key(i, unit, snapshot, covers)
            if key is None:
                continue
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(self.node)
                [(node, amounts)] = self.pool.free_of(i)
                self.node.append(node)
                self.frees.append(dict(amounts))
            self.of[i] = number

    def _key(
        self, i: int, unit: VictimUnit, snapshot: Snapshot, covers: Callable[[PodInfo], tuple[int, ...]]
    ) -> Hashable | None:
        """Equal for twins; None of a unit that has none: of a gang, or with devices that are told apart."""
        if unit.kind is not UnitKind.PLAIN:
            return None
        pod, held = unit.pods[0], self.pool.free_of(i)
        named = pod.gpus is not None and pod.node in snapshot.gpus.nodes
        if named or len(held) != 1 or npu_resource(pod.requests) is not None:
            return None
        quotas = snapshot.quotas
        owner = quotas.quota_of(pod), quotas.user_of(pod), quotas.queue_of(pod), pod.pod.spec.scheduler_name
        return held, pod.priority, owner, pod.selector, covers(pod)
