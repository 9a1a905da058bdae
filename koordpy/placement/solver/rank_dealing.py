# SPDX-License-Identifier: Apache-2.0
"""Decides which rank gets which node without a gather goal, once the pods per node are decided.

Without a gather goal, distance does not matter, so natural names decide. Each pod in rank order gets the naturally
first node that still allows a best placement of all pods (docs/rules/gang-network.md 4, "No gather goal"). This makes
plans reproducible; it is not part of any proof. `deal` assigns nodes greedily. `LeastNames` assigns them exactly, in a
model with one cell per node: it moves each pod to the naturally first node that does not make the earlier goals worse.
It calls the solver only for nodes that have capacity for the pod.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.placement.problem import Ints
from koordpy.placement.solver.count_model import CountModel
from koordpy.plan.limits import NAMES_SHARE
from koordpy.plan.round_plan import NAMES, Proof

Alike = tuple[Sequence[int], Sequence[Sequence[int]]]
"""(nodes that differ in names only; for each of these nodes that is used, its pods per shape position, in any
order)."""


def deal(kinds: Sequence[Alike], shapes: Sequence[int], name_rank: Ints) -> list[int]:
    """Returns the node of each pod in rank order, chosen greedily: the naturally first node that still takes the pod.

    kinds: groups of equal nodes with their pods. Of equal nodes the naturally first are used, so the pods of a used
    node may move to another node of its group. shapes: the shape position of each pod in rank order. name_rank: [nodes]
    position in the natural order of names.
    """
    # for each group: (unused nodes, the naturally first last; for each used node, its pods that are not assigned yet)
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
        """model: has every node as a separate cell; the best values of all earlier goals are constraints.

        name_rank: as for `deal`.
        """
        self.model, self.capacity = model, model.capacity
        cells = sorted(model.cells, key=lambda cell: int(name_rank[cell.nodes[0]]))
        self._takers = [
            [(cell.nodes[0], cell.pods[i]) for cell in cells if i in cell.pods]
            for i in range(len(self.capacity.shapes))
        ]
        """[shape positions] list of (node, variable: its pods on the node) in natural order of names."""
        self._done: dict[int, Ints] = {
            node: np.zeros(len(self.capacity.shapes), dtype=np.int64) for node in model.nodes
        }
        """Node -> [shape positions] number of pods with a final node."""
        self._open = False
        """True after the solver has found no answer in its time; then no further pod is moved."""

    def deal(self, shapes: Sequence[int], start: Sequence[int]) -> list[int]:
        """Returns the node of each pod in rank order.

        shapes: the shape position of each pod in rank order. start: the nodes of a best placement in the same order.
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
        """Returns the nodes naturally before `node` that have capacity for one more pod of shape position `i`.

        Only the pods in `_done` occupy capacity. Empty if no further pod is moved (`_open`).
        """
        out: list[int] = []
        for other, _ in self._takers[i] if not self._open else ():
            if other == node:
                break
            pods = self._done[other].copy()
            pods[i] += 1
            fits = pods[i] <= self.capacity.slots[i][other] and pods.sum() <= self.capacity.most[other]
            if fits and bool((pods @ self.capacity.request <= self.capacity.caps[other]).all()):
                out.append(other)
        return out

    def _moved(self, i: int, nodes: Sequence[int]) -> list[int]:
        """Returns the variable values of a best placement that has the pods of `_done` and one more pod on one of
        `nodes`.

        Empty if there is no such placement, or if the solver finds no answer in its time.
        """
        taken = dict(self._takers[i])
        least = 1 + sum(int(self._done[node][i]) for node in nodes)
        proof = self.model.ask(NAMES, [(taken[node], -1) for node in nodes], -least, share=NAMES_SHARE)
        self._open = proof is Proof.UNKNOWN
        return self.model.values if proof in (Proof.OPTIMAL, Proof.FEASIBLE) else []

    def _rest(self, values: Sequence[int], shapes: Sequence[int]) -> list[int]:
        """Returns the nodes of the pods that are not assigned yet, in rank order.

        values: variable values of a placement. shapes: shape positions of these pods. Each pod gets the naturally first
        node on which the placement has another pod of its shape.
        """
        left: list[list[int]] = [
            [node for node, var in takers for _ in range(values[var.index] - int(self._done[node][i]))]
            for i, takers in enumerate(self._takers)
        ]
        return [left[i].pop(0) for i in shapes]
