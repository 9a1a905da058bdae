# SPDX-License-Identifier: Apache-2.0
"""The capacity of nodes as constraints of the CP-SAT model of victims (docs/rules/preemption.md 6 (2)).

For each node and resource: requests of new pods and of returning pods <= free amount + amount that victims free. A
returning pod is a pod that consolidation moves and places again. To keep the model small, the constraint of a resource
is left out if requests cannot exceed it, or if the constraint of another resource always implies it. For consolidation,
the module also adds the constraints on the nodes to which pods may return.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations

from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.filling_capacity import FillingCapacity, implied_by
from koordpy.placement.solver.staged_model import Term, linear
from koordpy.preemption.selection.victim_choice import Choices, MovedKind, Rejoin


class FreedCapacity:
    """Adds the capacity of nodes to a model of victims; with consolidation also the pods that return."""

    def __init__(
        self,
        model: cp_model.CpModel,
        choices: Choices,
        capacity: FillingCapacity,
        at: Mapping[tuple[int, int], cp_model.IntVar],
        of_unit: Mapping[int, Sequence[int]],
        unit: Callable[[int, int], list[Term]],
    ) -> None:
        """at: (shape, node) -> variable: number of new pods. of_unit: unit that represents its kind -> the unit's
        options. unit: called with (unit, amount), returns the terms that the chosen units of this kind add to a sum."""
        self.model, self._choices, self._room, self._at = model, choices, capacity, at
        self._of_unit, self._unit = of_unit, unit
        self.back: dict[MovedKind, dict[int, cp_model.IntVar]] = {}
        """Kind of moved pods -> node -> variable: number of its pods that return there."""
        self._limit()

    def _limit(self) -> None:
        """Adds, for each node and column: requests are at most the sum of free and freed amounts.

        A column is left out if requests cannot exceed it, or if the constraint of another column implies it.
        """
        problem = self._choices.problem
        # `_relief`: node -> (unit, amounts that it frees there)
        # `loads`: node -> (variable, request, maximum number) of each shape of new pods and each kind of returning pods
        self._relief: dict[int, list[tuple[int, dict[int, int]]]] = {}
        for u in self._of_unit:
            for node, amounts in self._choices.units[u].frees:
                self._relief.setdefault(node, []).append((u, dict(amounts)))
        slots = dict(zip(self._room.shapes, self._room.slots, strict=True))
        loads: dict[int, list[tuple[cp_model.IntVar, tuple[tuple[int, int], ...], int]]] = {}
        for (shape, node), var in self._at.items():
            loads.setdefault(node, []).append((var, problem.shapes[shape].request, int(slots[shape][node])))
        self._returns(loads)
        times = _implied([request for load in loads.values() for _, request, _ in load])
        for node, load in loads.items():
            implied: set[int] = set()
            columns = sorted({column for _, request, _ in load for column, _ in request})
            for column in columns:
                asked = [(var, amount) for var, request, _ in load for c, amount in request if c == column]
                most = sum(amount * number for _, request, number in load for c, amount in request if c == column)
                free = int(problem.free[node, column])
                if most <= free:  # requests cannot exceed it
                    continue
                if any(  # the constraint of another column implies it
                    other not in implied
                    and (column, other) in times
                    and self._looser(node, column, other, *times[column, other])
                    for other in columns
                ):
                    implied.add(column)
                    continue
                relief = self._relief.get(node, ())
                freed = [t for u, frees in relief for t in self._unit(u, -frees.get(column, 0)) if t[1]]
                if free >= 0:
                    self.model.add(linear([*asked, *freed]) <= free)
                    continue
                # an overcommitted node: only if it gets a pod, victims must free the deficit, too
                some = self.model.new_bool_var("")
                for var, _ in asked:
                    self.model.add(var <= 0).only_enforce_if(~some)
                self.model.add(linear([*asked, *freed]) <= free).only_enforce_if(some)

    def _looser(self, node: int, column: int, other: int, weight: int, each: int) -> bool:
        """Returns True if the constraint of column `other` on a node implies that of `column`, for every set of
        victims.

        No pod requests more of `column` than weight / each times its request of `other` (`_implied`). So it is implied
        if the free and freed amounts of `column` are at least weight / each times those of `other`.
        """
        free = self._choices.problem.free[node]
        rooms = [dict(enumerate(free.tolist())), *(frees for _, frees in self._relief.get(node, ()))]
        return bool(free[column] >= 0) and all(
            capacity.get(column, 0) * each >= capacity.get(other, 0) * weight for capacity in rooms
        )

    def _returns(self, loads: dict[int, list[tuple[cp_model.IntVar, tuple[tuple[int, int], ...], int]]]) -> None:
        """Adds the pods that are placed again, as variables by kind and node, to `loads`.

        Pods of a kind have equal requests, so it does not matter to which unit a returning pod belongs.
        """
        moved: dict[MovedKind, list[Term]] = {}
        for u, parts in enumerate(self._choices.returns):
            for part in parts if u in self._of_unit else ():
                moved.setdefault(part.kind, []).extend(self._unit(u, part.pods))
        for kind, terms in moved.items():
            most = sum(pods for _, pods in terms)
            here = self.back[kind] = {node: self.model.new_int_var(0, most, "") for node in kind.nodes}
            self.model.add(linear([*((var, 1) for var in here.values()), *((var, -pods) for var, pods in terms)]) == 0)
            for node, var in here.items():
                loads.setdefault(node, []).append((var, kind.request, most))
        for one in self._choices.rejoins:
            self._rejoin(one)

    def _rejoin(self, one: Rejoin) -> None:
        """Adds the constraints on the nodes of a GangGroup's members. They apply if any member moves (`moved`)."""
        coming = [
            (node, var) for kind, here in self.back.items() if kind.group == one.group for node, var in here.items()
        ]
        if not coming:
            return
        moved = self.model.new_bool_var("")
        for unit in dict.fromkeys(u for _, units in one.members for u in units):
            for var, _ in self._unit(unit, 1):
                self.model.add_implication(var, moved)
        # a bound member stays on its node unless one of its units is chosen
        leaves = [(node, [term for u in units for term in self._unit(u, 1)]) for node, units in one.members]
        # all members are in one domain (`chosen`): a member that stays must be in it, and pods return only to it
        for domains in one.common:
            found = dict.fromkeys(d for node, _ in (*coming, *leaves) if (d := int(domains[node])) >= 0)
            chosen = {d: self.model.new_bool_var("") for d in found}
            self.model.add_exactly_one(chosen.values())
            for node, gone in leaves:
                here = [(chosen[d], 1)] if (d := int(domains[node])) >= 0 else []
                self.model.add(linear([*gone, *here]) >= 1).only_enforce_if(moved)
            for node, var in coming:
                if (d := int(domains[node])) >= 0:
                    self.model.add(var == 0).only_enforce_if(~chosen[d])
                else:
                    self.model.add(var == 0)
        # members per domain: before the moves, less the members that leave, plus the members that return
        for domains, k in one.multiples:
            inside: dict[int, list[Term]] = {}
            for node, var in coming:
                inside.setdefault(int(domains[node]), []).append((var, 1))
            for node, gone in leaves:
                inside.setdefault(int(domains[node]), []).extend((var, -c) for var, c in gone)
            for d, terms in inside.items():
                stood = sum(int(domains[node]) == d for node, _ in leaves)
                times = self.model.new_int_var(0, (stood + len(one.members)) // k + 1, "")
                self.model.add(linear([*terms, (times, -k)]) == -stood).only_enforce_if(moved)


def _implied(requests: Iterable[tuple[tuple[int, int], ...]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns (column, other) -> (a, b): the maximum of request in `column` / request in `other` over all shapes is a /
    b.

    There is no entry if a shape requests `column` but not `other`.
    """
    every = [dict(request) for request in dict.fromkeys(requests)]
    columns = sorted({column for request in every for column in request})
    out = {}
    for column, other in permutations(columns, 2):
        times = implied_by([r.get(column, 0) for r in every], [r.get(other, 0) for r in every])
        if times is not None:
            out[column, other] = times
    return out
