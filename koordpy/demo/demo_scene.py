# SPDX-License-Identifier: Apache-2.0
"""What the demo draws: the pods on each node, and the state of each gang.

The scene is read only from objects of the API server: node names, annotations of Bindings and PodScheduled conditions.
So the picture shows what the scheduler has done, not what the forecast expects.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.natural_order import natural_key
from koordpy.demo.acts import Forecast, GangForecast
from koordpy.demo.demo_objects import Manifest, devices_of, gpus_of, key_of, rank_of, refusal
from koordpy.demo.demo_reasons import domain_of
from koordpy.topology.topology_tree import Tree

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class DrawnPod:
    """One pod on a node, as it is drawn."""

    letter: str
    """Letter that marks the pod's gang in the picture."""
    rank: str
    """Rank in the gang; empty for a pod without a gang."""
    gpus: int
    running: bool


@dataclass(slots=True)
class Row:
    """One gang, or one pod without a gang, with its current state."""

    letter: str
    forecast: GangForecast
    nodes: dict[str, str] = field(default_factory=dict)
    """Pod key -> node, for bound pods."""
    place: str = ""
    """Layer and path of the lowest domain that contains the bound pods; empty if no pod is bound."""
    running: int = 0
    """Number of members that run."""
    arrived: int = 0
    """Number of members that exist."""
    message: str = ""
    """Message of a pending member; empty if there is none."""
    evicted: list[str] = field(default_factory=list)
    """For each evicted member: the act for which it was evicted."""

    @property
    def name(self) -> str:
        """Name of the gang, without the namespace `default`."""
        return self.forecast.name.removeprefix("default/")

    @property
    def bound(self) -> int:
        """Number of bound members."""
        return len(self.nodes)

    @property
    def why(self) -> str:
        """Reason for the placement according to the forecast, or a note that the placement differs from it."""
        planned = self.forecast.nodes
        if any(planned.get(key) != node for key, node in self.nodes.items()):
            return "the placement differs from the planner's offline result"
        later = "".join(f"; {n} evicted for {name}" for name, n in Counter(self.evicted).items())
        return self.forecast.why + later

    @property
    def members(self) -> int:
        """Number of members that exist or are still to be created.

        Evicted members do not count, because they are not recreated. If all members were evicted, the number of all
        members is returned.
        """
        asked = len(self.forecast.members)
        return max(self.arrived, asked - len(self.evicted)) or asked


@dataclass(slots=True)
class DemoScene:
    """The state that is drawn. `arrive` is called when an act begins, and `look` before each picture."""

    tree: Tree
    gpus: Mapping[str, int]
    """Number of GPUs or NPUs of each node."""
    devices: str = "GPUs"
    """Name of the devices in texts."""
    rows: list[Row] = field(default_factory=list)
    """Gangs in the order of their acts."""
    drawn_pods: dict[str, list[DrawnPod]] = field(default_factory=dict)
    """Node -> the pods on it."""
    changed: dict[str, int] = field(default_factory=dict)
    """Node -> number of the call of `look` at which its pods last changed."""
    headline: str = ""
    """File and title of the latest act."""
    _looks: int = 0  # number of calls of `look`
    _last: int = 1  # number of rows of the latest act

    def arrive(self, forecast: Forecast) -> None:
        """Adds rows for the gangs of an act."""
        act = forecast.act
        self.headline = f"examples/{act.name}.yaml: {act.title}"
        self._last = len(forecast.gangs)
        for row in self.rows:
            row.evicted += [act.stem for key in row.forecast.members if key in forecast.evicted]
        self.rows += [Row(LETTERS[len(self.rows) + i], gang) for i, gang in enumerate(forecast.gangs)]

    @property
    def newest(self) -> Row:
        """The first row of the latest act."""
        return self.rows[-self._last]

    def look(self, pods: Iterable[Manifest]) -> None:
        """Updates the state from the current pods."""
        self._looks += 1
        row_of = {key: row for row in self.rows for key in row.forecast.members}
        for row in self.rows:
            row.running = row.arrived = 0
            row.message = ""
            row.nodes = {}
        drawn: dict[str, list[DrawnPod]] = {}
        for pod in sorted(pods, key=_rank_order):
            row_found = row_of.get(key_of(pod))
            if row_found is None:
                continue
            running = pod.get("status", {}).get("phase") == "Running"
            row_found.arrived += 1
            row_found.running += running
            node = pod["spec"].get("nodeName")
            if node:
                row_found.nodes[key_of(pod)] = node
                rank = rank_of(pod)
                drawn.setdefault(node, []).append(DrawnPod(row_found.letter, rank, gpus_of(pod), running))
            else:
                row_found.message = row_found.message or refusal(pod)
        for row in self.rows:
            row.place = domain_of(self.tree, row.nodes.values())
        for node in drawn.keys() | self.drawn_pods.keys():
            if len(drawn.get(node, ())) != len(self.drawn_pods.get(node, ())):
                self.changed[node] = self._looks
        self.drawn_pods = drawn

    def used(self, nodes: Iterable[str]) -> int:
        """Returns the number of GPUs or NPUs on nodes that pods use."""
        return sum(pod.gpus for node in nodes for pod in self.drawn_pods.get(node, ()))

    def total(self, nodes: Iterable[str]) -> int:
        """Returns the number of GPUs or NPUs on nodes."""
        return sum(self.gpus[node] for node in nodes)


def scene_of(tree: Tree, nodes: Iterable[Manifest], devices: str = "GPUs") -> DemoScene:
    """Returns the state of these nodes without pods."""
    gpus = {node["metadata"]["name"]: devices_of(node["status"]["allocatable"]) for node in nodes}
    return DemoScene(tree, gpus, devices)


def _rank_order(pod: Manifest) -> tuple[Any, ...]:
    """Returns a sort key: rank, then name."""
    return natural_key(rank_of(pod)), natural_key(pod["metadata"]["name"])
