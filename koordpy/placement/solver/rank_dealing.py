"""Assigns ranks to nodes without a gather goal, given the pods per node.

Names break ties, and are not part of any proof.

Source: gang-network.md section 4, "No gather goal". The pods of a placement are first assigned greedily. In a model
with one cell per node each pod is then moved to the naturally first node that does not change the earlier goals. The
solver is called if sums do not decide.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.placement.problem import Ints
from koordpy.placement.solver.count_model import CountModel
from koordpy.plan.limits import NAMES_SHARE
from koordpy.plan.round_plan import NAMES, Proof

Alike = tuple[Sequence[int], Sequence[Sequence[int]]]
"""(nodes that differ in names alone, pods per shape position of each of them that is used)."""


def deal(kinds: Sequence[Alike], shapes: Sequence[int], name_rank: Ints) -> list[int]:
    """Returns the node of each pod, given its shape position in rank order, chosen greedily.

    Each pod gets the naturally first node that takes it. name_rank: [nodes] place in the natural order of names. Of
    equal nodes the naturally first are used.
    """
    left = [
        (sorted(nodes, key=lambda node: -int(name_rank[node])), [list(plan) for plan in plans])
        for nodes, plans in kinds
    ]
    opened: dict[int, list[int]] = {}
    out: list[int] = []
    for i in shapes:
        here = [node for node, plan in opened.items() if plan[i]]
        there = [(nodes, plans) for nodes, plans in left if any(plan[i] for plan in plans)]
        node = min([*here, *(nodes[-1] for nodes, _ in there)], key=lambda one: int(name_rank[one]))
        if node not in opened:
            nodes, plans = next(one for one in there if one[0][-1] == node)
            nodes.pop()
            opened[node] = plans.pop(max(range(len(plans)), key=lambda at: (plans[at][i], plans[at])))
        opened[node][i] -= 1
        out.append(node)
    return out


class LeastNames:
    """Moves pods, in rank order, to the naturally first nodes that still allow a best placement of the other pods."""

    def __init__(self, model: CountModel, name_rank: Ints) -> None:
        """model: every node is a separate cell, and all goals before the names are constraints.

        name_rank: as for `deal`.
        """
        self.model, self.room = model, model.room
        cells = sorted(model.cells, key=lambda cell: int(name_rank[cell.nodes[0]]))
        self._takers = [
            [(cell.nodes[0], cell.pods[i]) for cell in cells if i in cell.pods] for i in range(len(self.room.shapes))
        ]
        self._done: dict[int, Ints] = {node: np.zeros(len(self.room.shapes), dtype=np.int64) for node in model.nodes}
        self._open = False

    def deal(self, shapes: Sequence[int], start: Sequence[int]) -> list[int]:
        """Returns the node of each pod, given its shape position in rank order.

        start: the same for a best placement.
        """
        out = list(start)
        for at, i in enumerate(shapes):
            while before := self._before(i, out[at]):
                values = self._moved(i, before)
                if not values:
                    break
                out[at:] = self._rest(values, shapes[at:])
            self._done[out[at]][i] += 1
            self.model.model.add(dict(self._takers[i])[out[at]] >= int(self._done[out[at]][i]))
        return out

    def _before(self, i: int, node: int) -> list[int]:
        """Returns the nodes naturally before `node` with capacity for one more pod than is assigned to them."""
        out: list[int] = []
        for other, _ in self._takers[i] if not self._open else ():
            if other == node:
                break
            pods = self._done[other].copy()
            pods[i] += 1
            fits = pods[i] <= self.room.slots[i][other] and pods.sum() <= self.room.most[other]
            if fits and bool((pods @ self.room.request <= self.room.caps[other]).all()):
                out.append(other)
        return out

    def _moved(self, i: int, nodes: Sequence[int]) -> list[int]:
        """Returns the values of a best placement with a further pod on one of these nodes; empty if there is none.

        Also empty from the first call on for which the solver found no answer in its time.
        """
        taken = dict(self._takers[i])
        least = 1 + sum(int(self._done[node][i]) for node in nodes)
        proof = self.model.ask(NAMES, [(taken[node], -1) for node in nodes], -least, share=NAMES_SHARE)
        self._open = proof is Proof.UNKNOWN
        return self.model.values if proof in (Proof.OPTIMAL, Proof.FEASIBLE) else []

    def _rest(self, values: Sequence[int], shapes: Sequence[int]) -> list[int]:
        """Returns the nodes of the pods not assigned yet.

        Each is on the naturally first node that takes one more in the placement.
        """
        left: list[list[int]] = [
            [node for node, var in takers for _ in range(values[var.index] - int(self._done[node][i]))]
            for i, takers in enumerate(self._takers)
        ]
        return [left[i].pop(0) for i in shapes]
