# SPDX-License-Identifier: Apache-2.0
"""Solver for units without a gather goal, for which distance in the network does not matter.

Goals in order: fewest pods on scarce nodes, fewest nodes, least device costs (`DeviceCosts`), largest total score,
fewest free slots on the nodes used, natural names (docs/rules/gang-network.md 4, "No gather goal"). Pipeline groups and
the nodes of running members are ignored, except that nodes in `Problem.already_used` do not count as further nodes.

`Plain.solve` builds up to three models, each with more detail, because a model of every single node would be too large.
Models 2 and 3 have only the nodes that can still be best:

1. Fewest nodes. Nodes that are equal in capacity are counted together. It decides the number of pods on scarce nodes
   and the number of nodes.
2. Best nodes. Only nodes that are also equal in scores and slots are counted together. The results of model 1 are
   constraints. It decides the device costs, the score and the slots.
3. Names. Every node is a separate cell, so that names decide. It is built only if it is small and all earlier results
   are proven. Otherwise names are assigned greedily.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from koordpy.placement.problem import Ints, Problem
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.rank_dealing import LeastNames, deal
from koordpy.placement.solver.region_cells import CellOptions, TooLarge
from koordpy.placement.solver.staged_model import Term
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.round_plan import Proof


class Plain:
    """Searches the best nodes for the pods of given ranks without a gather goal.

    ranks: members that must all be placed. capacity: capacity of the nodes for exactly these members. budget: solver
    time; `budget.proven` becomes False if a result is not proven to be the best.
    """

    def __init__(
        self, problem: Problem, ranks: Sequence[int], *, capacity: FillingCapacity, budget: TimeBudget
    ) -> None:
        self.problem, self.ranks, self.capacity, self.budget = problem, tuple(ranks), capacity, budget
        self.shape_at = {s: i for i, s in enumerate(capacity.shapes)}
        """Shape -> its position in `capacity.shapes`, by which all models count pods."""

    def can_place(self) -> Proof:
        """Returns FEASIBLE if all pods fit in some way, INFEASIBLE if it is proven that they do not, else UNKNOWN."""
        model = self._first_model()
        proof = Proof.INFEASIBLE if model is None else model.find("feasible")
        return Proof.FEASIBLE if proof is Proof.OPTIMAL else proof

    def _first_model(self) -> CountModel | None:
        """Returns model 1, for the fewest nodes; None if the total free capacity is already too small.

        Device costs are left out if they admit every number of pods that fits a node: then they do not change how many
        nodes are needed. Raises TooLarge if even the smallest possible model would have too many variables.
        """
        problem, capacity = self.problem, self.capacity
        if not capacity.may_fit(0).any():
            return None
        if len(capacity.shapes) * min(len(self.ranks), int((capacity.most > 0).sum())) > problem.sizes.model_pods:
            raise TooLarge  # checked first, because `_candidates` takes long for so many nodes
        if problem.device_costs is not None and problem.device_costs.always:
            wanted = dict(zip(capacity.shapes, capacity.wanted, strict=True))
            capacity = FillingCapacity(replace(problem, device_costs=None), wanted)
        keep = self._candidates(capacity, np.zeros(len(problem.free), dtype=np.int64), limit=len(self.ranks))
        return self._model(CellOptions(keep=keep, alike=capacity.type_of), capacity=capacity)

    def solve(self) -> dict[int, int] | None:
        """Returns rank -> node of the best placement found; None if no placement was found.

        None is a proof that there is no placement only if `budget.proven` is still True.
        """
        problem, depth = self.problem, self.problem.tree.depth
        # model 1: any placement, then the fewest pods on scarce nodes, then the fewest nodes
        model = self._first_model()
        if model is not None:
            model.find("feasible")
        if model is None or not model.values:
            return None
        reference = problem.copies_of[problem.reference(self.ranks)]  # [nodes] slots of the reference shape
        standing = int(problem.already_used.sum()) if problem.already_used is not None else 0
        scarce = model.minimise("scarce", model.on_scarce(), bound=self._fewest_scarce())  # pods on scarce nodes
        nodes = model.minimise("nodes", model.opened(depth), bound=self._fewest())  # nodes opened
        # model 2: the results so far become constraints, so no placement uses more than `most` nodes
        most = max(1, nodes + standing)
        keep = self._candidates(self.capacity, reference, limit=most)
        single = self._model(CellOptions(keep=keep, most_nodes=most))
        single.hold(single.on_scarce(), scarce)
        single.hold(single.opened(depth), nodes)
        single.hint(model.pods())
        single.find("score")
        if not single.values and model.capacity is not self.capacity:
            self.budget.proven = False  # model 1 is used, which leaves the device costs out
        model = single if single.values else model
        counted = model.least_counted()
        score = model.minimise("score", model.lost_score())
        slots = model.minimise("slots", self._slots(model, reference))
        names = self._deal(model.pods())
        # model 3: each pod in rank order on the naturally first node that keeps all results above
        variables = sum(len(cell.nodes) * (len(cell.pods) + len(cell.used)) for cell in model.cells)
        if model is single and self.budget.proven and variables <= problem.sizes.named_variables:
            # no two nodes are equal
            each = self._model(CellOptions(keep=keep, most_nodes=most, alike=np.arange(len(reference))))
            each.hold(each.on_scarce(), scarce)
            each.hold(each.opened(depth), nodes)
            each.hold_counted(counted)
            each.hold(each.lost_score(), score)
            each.hold(self._slots(each, reference), slots)
            start = [names[rank] for rank in self.ranks]
            names = dict(
                zip(self.ranks, LeastNames(each, problem.name_rank).deal(self._shape_positions(), start), strict=True)
            )
        return names

    def _fewest_scarce(self) -> int:
        """Returns a lower bound of the pods on scarce nodes: for each shape, the pods that all other nodes cannot
        take."""
        scarce, capacity = self.problem.scarce, self.capacity
        if scarce is None:
            return 0
        others = scarce == 0
        return sum(max(0, n - int(own[others].sum())) for n, own in zip(capacity.wanted, capacity.slots, strict=True))

    def _fewest(self) -> int:
        """Returns a lower bound of the nodes with new pods, without nodes that count as used already
        (`Problem.already_used`).

        For each measure of capacity alone (pods, pods of one shape, a resource), first all nodes that count as used are
        filled, then the largest nodes. The bound is the largest number of nodes over the measures.
        """
        capacity, there = self.capacity, self.problem.already_used
        stands = there > 0 if there is not None else np.zeros(len(self.problem.free), dtype=bool)
        asked = [(capacity.most, len(self.ranks)), *zip(capacity.slots, capacity.wanted, strict=True)]
        asked += zip(capacity.caps.T, (capacity.counts @ capacity.request).tolist(), strict=True)
        fewest = 0
        for have, wanted in asked:
            rest = wanted - int(have[stands].sum())
            if rest > 0:
                fewest = max(fewest, int(np.searchsorted(np.cumsum(np.sort(have[~stands])[::-1]), rest)) + 1)
        return fewest

    def _model(self, options: CellOptions, *, capacity: FillingCapacity | None = None) -> CountModel:
        """Returns a model of the whole cluster with a variable for the number of used nodes.

        capacity: None for the capacity of this search.
        """
        options = replace(options, split=bool(self.problem.interactions))
        model = CountModel(capacity or self.capacity, (0, 0), budget=self.budget, options=options)
        model.add_used(siblings=False)
        for cell in model.cells:
            model.use(cell)  # the slots goal also counts nodes that are used by bound pods
        return model

    def _candidates(self, capacity: FillingCapacity, sort: Ints, *, limit: int) -> list[int]:
        """Returns the nodes with capacity that an optimal placement may need, sorted.

        Nodes with equal capacity and an equal value in `sort` ([nodes]) are compared, in the order of total score, then
        name. A node is dropped if at least `limit` nodes before it score at least as high for every shape. limit: upper
        bound of the number of nodes that the placement uses.
        """
        problem, keep = self.problem, list[int]()
        able = np.nonzero(capacity.most > 0)[0]
        groups = np.unique(np.stack([capacity.type_of[able], sort[able]], axis=1), axis=0, return_inverse=True)[1]
        scores = np.stack([problem.shapes[s].score for s in capacity.shapes], axis=1)
        for number in range(int(groups.max()) + 1 if len(able) else 0):
            nodes = able[groups.reshape(-1) == number]
            order = np.lexsort((problem.name_rank[nodes], -scores[nodes].sum(axis=1)))
            chosen: list[int] = []
            for node in nodes[order].tolist():
                # only nodes before this one can score at least as high for every shape, because their total score is
                # not smaller
                if len(chosen) < limit or int((scores[chosen] >= scores[node]).all(axis=1).sum()) < limit:
                    chosen.append(node)
            keep += chosen
        return sorted(keep)

    def _slots(self, model: CountModel, reference: np.ndarray) -> list[Term]:
        """Returns the sum of the slots of all used nodes, as terms. reference: [nodes] slots of the reference shape."""
        terms = [(v, c * int(reference[cell.nodes[0]])) for cell in model.cells for v, c in cell.used]
        return [term for term in terms if term[1]]

    def _deal(self, pods: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Returns rank -> node, with names assigned greedily (`rank_dealing.deal`).

        pods: node -> [shape positions] number of pods, as the model chose them. Equal nodes may exchange their pods, so
        that the naturally first nodes are used.
        """
        kinds: dict[int, tuple[list[int], list[Sequence[int]]]] = {}
        for node, sign in enumerate(self.capacity.signatures[self.problem.tree.depth].tolist()):
            nodes, plans = kinds.setdefault(sign, ([], []))
            nodes.append(node)
            if node in pods:
                plans.append(pods[node])
        return dict(
            zip(self.ranks, deal(list(kinds.values()), self._shape_positions(), self.problem.name_rank), strict=True)
        )

    def _shape_positions(self) -> list[int]:
        """Returns the position in `capacity.shapes` of the shape of each pod, in rank order."""
        return [self.shape_at[self.problem.members[rank].shape] for rank in self.ranks]
