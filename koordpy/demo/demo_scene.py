"""What the demo sees of the cluster: who sits where and how each gang stands, from the API server's objects alone.

The scheduler's word is what it wrote: node names, annotations of its Bindings, PodScheduled conditions.
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
class DemoSeat:
    """One pod on a node."""

    letter: str
    rank: str
    """Empty for a pod without gang."""
    gpus: int
    running: bool


@dataclass(slots=True)
class Row:
    """One gang (or pod without gang) and how it stands."""

    letter: str
    forecast: GangForecast
    nodes: dict[str, str] = field(default_factory=dict)
    """Pod key -> node, of the pods that are bound."""
    place: str = ""
    """Layer and path of the lowest domain that holds them."""
    running: int = 0
    arrived: int = 0
    message: str = ""
    evicted: list[str] = field(default_factory=list)
    """For each member that was evicted: the gang it went for."""

    @property
    def name(self) -> str:
        return self.forecast.name.removeprefix("default/")

    @property
    def bound(self) -> int:
        return len(self.nodes)

    @property
    def why(self) -> str:
        """Why it is where it is; the planner's words, as long as it is where the planner puts it."""
        planned = self.forecast.nodes
        if any(planned.get(key) != node for key, node in self.nodes.items()):
            return "not where the same planner puts it offline"
        later = "".join(f"; {n} evicted for {name}" for name, n in Counter(self.evicted).items())
        return self.forecast.why + later

    @property
    def members(self) -> int:
        """Those that exist, or have yet to arrive: nobody makes an evicted one again. All where none is left."""
        asked = len(self.forecast.members)
        return max(self.arrived, asked - len(self.evicted)) or asked


@dataclass(slots=True)
class DemoScene:
    """The state that is drawn. `arrive` when an act begins, `look` for every picture."""

    tree: Tree
    gpus: Mapping[str, int]
    """GPUs or NPUs of each node."""
    devices: str = "GPUs"
    """What they are called."""
    rows: list[Row] = field(default_factory=list)
    seats: dict[str, list[DemoSeat]] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    """Node -> number of the look that last saw another set of pods there."""
    headline: str = ""
    """What has come last."""
    _looks: int = 0
    _last: int = 1

    def arrive(self, forecast: Forecast) -> None:
        """Rows for what comes now."""
        act = forecast.act
        self.headline = f"examples/{act.name}.yaml: {act.title}"
        self._last = len(forecast.gangs)
        for row in self.rows:
            row.evicted += [act.stem for key in row.forecast.members if key in forecast.evicted]
        self.rows += [Row(LETTERS[len(self.rows) + i], gang) for i, gang in enumerate(forecast.gangs)]

    @property
    def newest(self) -> Row:
        """The first row of what has come last."""
        return self.rows[-self._last]

    def look(self, pods: Iterable[Manifest]) -> None:
        """Takes in the pods as they are."""
        self._looks += 1
        row_of = {key: row for row in self.rows for key in row.forecast.members}
        for row in self.rows:
            row.running = row.arrived = 0
            row.message = ""
            row.nodes = {}
        seats: dict[str, list[DemoSeat]] = {}
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
                seats.setdefault(node, []).append(DemoSeat(row_found.letter, rank, gpus_of(pod), running))
            else:
                row_found.message = row_found.message or refusal(pod)
        for row in self.rows:
            row.place = domain_of(self.tree, row.nodes.values())
        for node in seats.keys() | self.seats.keys():
            if len(seats.get(node, ())) != len(self.seats.get(node, ())):
                self.changed[node] = self._looks
        self.seats = seats

    def used(self, nodes: Iterable[str]) -> int:
        return sum(seat.gpus for node in nodes for seat in self.seats.get(node, ()))

    def total(self, nodes: Iterable[str]) -> int:
        return sum(self.gpus[node] for node in nodes)


def scene_of(tree: Tree, nodes: Iterable[Manifest], devices: str = "GPUs") -> DemoScene:
    """An empty scene of these nodes."""
    gpus = {node["metadata"]["name"]: devices_of(node["status"]["allocatable"]) for node in nodes}
    return DemoScene(tree, gpus, devices)


def _rank_order(pod: Manifest) -> tuple[Any, ...]:
    return natural_key(rank_of(pod)), natural_key(pod["metadata"]["name"])
