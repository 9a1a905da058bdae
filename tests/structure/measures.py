# SPDX-License-Identifier: Apache-2.0
"""Figures of the package's structure: `make measures`, or `python -m tests.structure.measures [--static]`.

Counted from the source: which modules import a family of devices from outside, equal module names, long modules, large
folders, lines. Counted from runs: the modules that a plain pod, a gang of 8 x 8 GPUs and the same gang with 256 victims
enter, in the planner alone and live, and between which modules calls go both ways. --static leaves the runs out.
"""

import ast
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import FrameType
from typing import get_args

from koordpy.attempts import unit_outcome
from koordpy.planner.planning_round import plan_round
from tests import clusters
from tests.engine.live import live, small
from tests.engine.scripted import until
from tests.engine.virtual import VirtualLoop, run
from tests.scenarios.cluster import TWO_LAYERS, World, group, node, pod, wish
from tests.structure.license_headers import IDENTIFIER
from tests.structure.rooms import FAMILIES, PACKAGE, PLANNER, REGISTRIES, dotted, is_below

LONGEST, LARGEST = 400, 25
"""Lines of a module, modules of a folder."""
RESERVATIONS = {
    "Reservation", "Reserved", "NominatedClaims", "NominatedCapacity", "NominatedUse", "KeptClaims", "Kept", "KeptRoom",
    "Awaited", "Nomination", "PromisedStart", "StarvationGuard", "Backfill", "RoundReservations", "ReservationLedger",
    "AvailableCapacity", "View", "ClaimVolume",
}  # fmt: skip
"""Class names of reserved capacity, past and present."""
SHARING = (
    "plan/planning_budget",
    "planner/bounded_round",
    "engine/round_budget",
    "engine/search_worker",
    "engine/planning_turns",
    "engine/staleness",
    "engine/round_reservations",
)
"""Modules that share planning time between rounds and searches, as far as they are there."""
GPU = "nvidia.com/gpu"


@cache
def modules() -> dict[str, tuple[str, int]]:
    """Dotted name -> (source, lines without the license header) of every module."""
    out = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = dotted(str(path.relative_to(PACKAGE))[:-3].removesuffix("/__init__"))
        out[name] = text, sum(IDENTIFIER not in line for line in text.splitlines())
    return out


def imported(source: str, known: dict[str, tuple[str, int]]) -> set[str]:
    """Modules of the package that a source imports, anywhere in it."""
    out = set()
    for one in ast.walk(ast.parse(source)):
        if isinstance(one, ast.Import):
            out |= {alias.name for alias in one.names if alias.name in known}
        elif isinstance(one, ast.ImportFrom) and one.module:
            inner = {f"{one.module}.{alias.name}" for alias in one.names}
            out |= inner & known.keys() or {one.module} & known.keys()
    return out


def importers(family: str) -> list[str]:
    """Modules outside of a family and of the registries that import it."""
    known, own = modules(), FAMILIES[family]
    return [
        name
        for name, (source, _) in known.items()
        if not is_below(name, (*own, *REGISTRIES)) and any(is_below(one, own) for one in imported(source, known))
    ]


def equal_names() -> dict[str, list[str]]:
    """Module name -> the modules of that name, where there are several."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.stem not in ("__init__", "__main__"):
            found.setdefault(path.stem, []).append(str(path.relative_to(PACKAGE)))
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def long_modules() -> dict[str, int]:
    """Module -> lines, of those above LONGEST."""
    return {name: lines for name, (_, lines) in modules().items() if lines > LONGEST}


def large_folders() -> dict[str, int]:
    """Folder -> modules, of those above LARGEST."""
    count = Counter(str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    return {folder: number for folder, number in count.items() if number > LARGEST}


def reservation_types() -> list[str]:
    """Classes of reserved capacity that are there."""
    return sorted(
        {
            one.name
            for source, _ in modules().values()
            for one in ast.walk(ast.parse(source))
            if isinstance(one, ast.ClassDef) and one.name in RESERVATIONS
        }
    )


def outcome_fields() -> dict[str, int]:
    """Variant of a unit's outcome -> its fields; of the one class where there are no variants."""
    union = getattr(unit_outcome, "UnitOutcome", None) or unit_outcome.Tried  # type: ignore[attr-defined]
    return {one.__name__: len(fields(one)) for one in get_args(union) or (union,) if is_dataclass(one)}


def sharing_lines() -> dict[str, int]:
    """Lines of the modules that share planning time."""
    known = modules()
    return {name: known[dotted(name)][1] for name in SHARING if dotted(name) in known}


@dataclass
class Walk:
    """What a run enters: modules, functions, and (module of the caller, module called)."""

    entered: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    edges: set[tuple[str, str]] = field(default_factory=set)

    @property
    def both_ways(self) -> list[tuple[str, str]]:
        """Pairs of modules that call each other."""
        return sorted((one, other) for one, other in self.edges if one < other and (other, one) in self.edges)

    def __str__(self) -> str:
        return (
            f"{len(self.entered):4} modules {len(self.functions):5} functions {len(self.edges):4} edges "
            f"{len(self.both_ways):3} both ways"
        )


@contextmanager
def walked(below: tuple[str, ...], without: tuple[str, ...] = ()) -> Iterator[Walk]:
    """Collects what this thread and those that start meanwhile enter."""
    found = Walk()

    def module_of(frame: FrameType | None) -> str:
        name = frame.f_globals.get("__name__", "") if frame is not None else ""
        return name if name.startswith(below) and not (without and name.startswith(without)) else ""

    def hear(frame: FrameType, what: str, _: object) -> None:
        if what != "call" or frame.f_code.co_name == "<module>" or not (module := module_of(frame)):
            return
        found.entered.add(module)
        found.functions.add((module, frame.f_code.co_qualname))
        caller = module_of(frame.f_back)
        if caller and caller != module:
            found.edges.add((caller, module))

    threading.setprofile(hear)
    sys.setprofile(hear)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _planned(world: World) -> Walk:
    snapshot = world.snapshot()
    with walked(tuple(dotted(room) for room in PLANNER)) as found:
        plan = plan_round(snapshot)
    assert plan.placements or plan.nominations
    return found


def _gang_world(*, full: bool) -> World:
    world = World().add(TWO_LAYERS)
    for i in range(64):
        world.add(node(f"n{i}:64", {"block": f"b{i // 8}", "spine": f"s{i // 32}"}, **{GPU: "8"}))
        if full:
            world.add(*(pod(f"r{i}-{k}", at=f"n{i}", requests={GPU: "2"}) for k in range(4)))
    world.add(group("g", 8, wish({"blockLayer": "Prefer"})))
    return world.add(*(pod(f"p-{i}", gang="g", requests={GPU: "8"}, priority=100, created=9) for i in range(8)))


def _live(what: Callable[[], list[dict[str, object]]], names: list[str], *, full: bool, nodes: int) -> Walk:
    found = Walk()

    async def bind(loop: VirtualLoop) -> None:
        machines = [small(f"n{i}", gpus=8 if nodes > 2 else 0) for i in range(nodes)]
        async with live(machines) as cluster:
            high = {"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": "high"}}
            cluster.server.store.create("priorityclasses.scheduling.k8s.io", {**high, "value": 100})
            if full:
                for i in range(nodes):
                    for k in range(4):
                        victim = clusters.pod(f"r{i}-{k}", gpus=2, cpu="1m")
                        victim["spec"]["terminationGracePeriodSeconds"] = 0
                        cluster.create(victim)
                        cluster.bind(f"r{i}-{k}", f"n{i}")
            async with cluster.running() as scheduler:
                await cluster.at_rest(scheduler, "nodes", "pods")
                with walked(("koordpy",), ("koordpy.apiserver",)) as seen:
                    cluster.create(*what())
                    await until(lambda: cluster.bound(*names))
                    await cluster.at_rest(scheduler, "pods")
                found.entered |= seen.entered
                found.functions |= seen.functions
                found.edges |= seen.edges

    run(bind, seed=1)
    return found


def live_walks() -> dict[str, Walk]:
    """The three walks live, from the watch event until all Bindings are confirmed."""
    from tests.engine.live import gang

    def members() -> list[dict[str, object]]:
        made = gang("g", 8, gpus=8, annotations=wish({"blockLayer": "Prefer"}))
        for one in made[1:]:
            one["spec"]["priorityClassName"] = "high"
        return made

    names = [one["metadata"]["name"] for one in members()[1:]]  # type: ignore[index]
    return {
        "plain pod": _live(lambda: [clusters.pod("plain", gpus=0, cpu="1m")], ["plain"], full=False, nodes=2),
        "gang 8 x 8": _live(members, names, full=False, nodes=64),
        "gang, 256 victims": _live(members, names, full=True, nodes=64),
    }


def planner_walks() -> dict[str, Walk]:
    """The three walks of the planner alone."""
    return {
        "plain pod": _planned(World().add(node("n1:4"), node("n2:4"), pod("plain"))),
        "gang 8 x 8": _planned(_gang_world(full=False)),
        "gang, 256 victims": _planned(_gang_world(full=True)),
    }


def main(arguments: list[str]) -> None:
    """Prints the table."""
    print(f"lines of koordpy{sum(lines for _, lines in modules().values()):>10}, modules {len(modules())}")
    for family in FAMILIES:
        found = importers(family)
        print(
            f"{family} imported from outside by {len(found)}: {' '.join(one.removeprefix('koordpy.') for one in found)}"
        )
    print(f"fields of the outcome of a unit: {outcome_fields()}")
    types = reservation_types()
    print(f"types of reservations: {len(types)}: {' '.join(types)}")
    print(f"lines of the sharing of planning time: {sum(sharing_lines().values())}: {sharing_lines()}")
    print(f"equal module names: {len(equal_names())}: {' '.join(equal_names())}")
    print(f"modules above {LONGEST} lines: {len(long_modules())}: {long_modules()}")
    print(f"folders above {LARGEST} modules: {large_folders()}")
    if "--static" not in arguments:
        for title, walks in (("planner", planner_walks), ("live", live_walks)):
            for name, walk in walks().items():
                print(f"{title:<8}{name:<20}{walk}")


if __name__ == "__main__":
    main(sys.argv[1:])
