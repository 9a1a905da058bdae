# SPDX-License-Identifier: Apache-2.0
"""The device costs (`DeviceCosts`) in a CP-SAT model, which can have only linear costs.

The cost of a node depends on the combination of pods on it, for example on the sets of GPUs that they leave free. It is
modelled in one of two forms:

- `CountedTable`: one 0/1 variable for each way to fill a node, with the cost of that way. A way is the number of pods
  of each `active` shape, and whether any pod of the other shapes is on the node.
- `Numbered`: two 0/1 variables per node, if the cost depends only on numbers of devices.

Source: docs/rules/gpu-topology.md 5.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from koordpy.placement.problem import DeviceCosts, Devices, Vector
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.staged_model import Term, linear
from koordpy.plan.limits import MODEL_VARIABLES


class CountedTable:
    """Adds device costs to a model, node by node, with a 0/1 variable for each way to fill the node.

    components: for each component of the device cost vector its terms: the cost of all nodes, less their cost without
    new pods. complete: False if ways were left out because there are too many; then `components` must not be used.
    """

    def __init__(self, model: cp_model.CpModel, table: DeviceCosts, *, shapes: int) -> None:
        self.model, self.table, self.shapes = model, table, shapes
        self.components: list[list[Term]] = [[] for _ in range(table.width)]
        self.complete = True
        self._ways = 0

    def add(self, node: int, pods: Mapping[int, cp_model.IntVar], most: Mapping[int, int], fits: "Fits") -> None:
        """Adds one node, which is filled in exactly one of its ways.

        pods: shape -> variable: its new pods on the node. most: shape -> upper bound of that variable. fits: returns
        True if given numbers of pods fit the resources of the node.
        """
        kind = int(self.table.kinds[node])
        active = [shape for shape in self.table.active if shape in pods]
        inert = [shape for shape in pods if shape not in self.table.active]
        number = 2 if inert else 1
        for shape in active:
            number *= most[shape] + 1
        if not self.complete or number > MODEL_VARIABLES:
            self.complete = False
            return
        # one 0/1 variable per way that the devices can serve: (variable, pods per active shape, other pods are there)
        chosen: list[tuple[cp_model.IntVar, tuple[int, ...], bool]] = []
        for counts, has_inert in self._fillings(active, inert, most, fits):
            vector = self.table.cost(kind, self._whole(counts, inert[0] if has_inert else None))
            if vector is None:
                continue
            way = self.model.new_bool_var("")
            chosen.append((way, tuple(counts[shape] for shape in active), has_inert))
            self._charge(kind, way, vector)
        # the way that is chosen determines the pods of active shapes
        self._ways += len(chosen)
        if self._ways > MODEL_VARIABLES:
            self.complete = False
        self.model.add_exactly_one([way for way, _, _ in chosen])
        for i, shape in enumerate(active):
            self.model.add(linear((way, counts[i]) for way, counts, _ in chosen if counts[i]) == pods[shape])
        if inert:
            # pods of other shapes are on the node exactly if a way that includes them is chosen
            inert_ways = [way for way, _, has_inert in chosen if has_inert]
            total = sum(most[shape] for shape in inert)
            left = cp_model.LinearExpr.sum([pods[shape] for shape in inert])
            self.model.add(left <= total * cp_model.LinearExpr.sum(inert_ways))
            self.model.add(left >= cp_model.LinearExpr.sum(inert_ways))

    def add_filled(self, node: int, fillings: Sequence[tuple[cp_model.IntVar, Mapping[int, int]]]) -> None:
        """Adds the equal nodes of one cell. A filling that the devices of a node cannot serve is forbidden.

        node: any node of the cell. fillings: (variable: number of nodes with the filling, filling: shape -> number of
        pods).
        """
        kind = int(self.table.kinds[node])
        for number, pods in fillings:
            vector = self.table.cost(kind, self._whole(pods, None))
            if vector is None:
                self.model.add(number == 0)
            else:
                self._charge(kind, number, vector)

    def _charge(self, kind: int, number: cp_model.IntVar, vector: Vector) -> None:
        """Adds the cost of `number` nodes of a kind with this cost vector, less their cost without new pods."""
        idle = self.table.cost(kind, (0,) * self.shapes)
        assert idle is not None
        for at, (one, none) in enumerate(zip(vector, idle, strict=True)):
            if one != none:
                self.components[at].append((number, one - none))

    def _whole(self, counts: Mapping[int, int], has_inert: int | None) -> tuple[int, ...]:
        """Returns the number of pods for each shape of the problem. has_inert: a shape that counts with one pod;
        None for none."""
        out = [counts.get(shape, 0) for shape in range(self.shapes)]
        if has_inert is not None:
            out[has_inert] = 1
        return tuple(out)

    def _fillings(
        self, active: Sequence[int], inert: Sequence[int], most: Mapping[int, int], fits: "Fits"
    ) -> Iterator[tuple[dict[int, int], bool]]:
        """Yields each way to fill a node: (active shape -> number of pods, True if pods of other shapes are there)."""
        for numbers in product(*(range(most[shape] + 1) for shape in active)):
            counts = dict(zip(active, numbers, strict=True))
            if fits(counts):
                yield counts, False
                if inert:
                    yield counts, True


class Numbered:
    """Adds device costs that depend only on numbers of devices (`problem.Devices`).

    The vector is linear in the number of pods and in two 0/1 variables per node. The first is 1 if the node has new
    pods. The second is 1 if the new pods on the node use two or more devices together.
    """

    def __init__(self, model: cp_model.CpModel, devices: Devices) -> None:
        self.model, self.devices = model, devices
        self.components: list[list[Term]] = [[], []]
        """Terms of the first two components: nodes on which new pods use two or more devices, devices left free on used
        nodes.

        The third component, the number of pods that request two or more devices, is the same for every placement.
        """
        self._several: list[tuple[cp_model.IntVar, list[Term]]] = []
        """For each node (0/1 variable that its new pods use two or more devices, number of devices that they use as
        terms)."""

    def add(self, node: int, pods: Mapping[int, cp_model.IntVar], used: Sequence[Term], *, most: int) -> None:
        """Adds one node.

        pods: shape -> variable: its new pods on the node. used: 1 if the node has new pods, else 0, as terms. most:
        upper bound of the number of devices that these pods use.
        """
        asks = [(var, self.devices.asks[shape]) for shape, var in pods.items() if self.devices.asks[shape]]
        self.components[1] += [(var, int(self.devices.free[node]) * weight) for var, weight in used]
        self.components[1] += [(var, -ask) for var, ask in asks]
        if asks and most > 1:
            several = self.model.new_bool_var("")
            self._several.append((several, asks))
            self.model.add(linear([*asks, (several, 1 - most)]) <= 1)
            self.components[0].append((several, 1))

    def settle(self, values: list[int]) -> None:
        """Sets the 0/1 variable "two or more devices are used" of each node to 0, if the given pods allow it.

        values: value of each variable of the model by index; changed in place. In a solution the variable may be 1
        without need, because the constraints force a 1, but never a 0.
        """
        for several, asks in self._several:
            values[several.index] = int(sum(values[var.index] * ask for var, ask in asks) > 1)


class Fits:
    """A function that returns True if given pods (shape -> number) fit the resources of one node.

    caps: [columns] capacity of the node. request: shape -> [columns] amount of one pod.
    """

    def __init__(self, caps: Sequence[int], request: Mapping[int, Sequence[int]]) -> None:
        self.caps, self.request = caps, request

    def __call__(self, counts: Mapping[int, int]) -> bool:
        return all(
            sum(number * self.request[shape][column] for shape, number in counts.items()) <= cap
            for column, cap in enumerate(self.caps)
        )
