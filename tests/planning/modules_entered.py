# SPDX-License-Identifier: Apache-2.0
"""Which modules a pod runs through: `python -m tests.planning.modules_entered [--functions]`.

A module is entered when one of its functions is called (its body, run by the import, does not count). Three ways are
counted: the plan of a pod without gang, quota or devices on two nodes, by modules of the planner; the same pod
live, from its watch event until its Binding is confirmed, by modules of `koordpy` without the embedded API server; and
a gang of GPUs that finds no room and evicts pods, from its objects to its plan, by modules of `koordpy`.
"""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from koordpy.planner.planning_round import plan_round
from tests.engine.live import live, small
from tests.engine.scripted import until
from tests.engine.virtual import VirtualLoop, run
from tests.scenarios.cluster import TWO_LAYERS, World, gang_pods, group, node, pod, wish
from tests.structure.rooms import PLANNER, dotted

Entered = dict[str, set[str]]
"""Module -> names of its functions that were called."""


@contextmanager
def entered(below: str | tuple[str, ...], without: str = "-") -> Iterator[Entered]:
    """Collects the modules below packages that are entered, in this thread and in those that start meanwhile."""
    found: Entered = {}

    def hear(frame: FrameType, what: str, _: object) -> None:
        if what != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name != "<module>" and module.startswith(below) and not module.startswith(without):
            found.setdefault(module, set()).add(frame.f_code.co_qualname)

    threading.setprofile(hear)
    sys.setprofile(hear)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def of_a_plan() -> Entered:
    """Modules of the planner that the plan of a plain CPU pod on two empty nodes enters."""
    snapshot = World().add(node("n1:4"), node("n2:4"), pod("plain")).snapshot()
    with entered(tuple(map(dotted, PLANNER))) as found:
        plan = plan_round(snapshot)
    assert [placement.pod_key for placement in plan.placements] == ["default/plain"]
    return found


def of_a_gpu_gang() -> Entered:
    """Modules that a gang of GPU pods enters which gathers and evicts another gang, from its objects to its plan."""
    gather, gpus = wish({"blockLayer": "Prefer"}), {"nvidia.com/gpu": "8"}
    nodes = [node(f"n{i}:8", {"block": f"b{i // 2}", "spine": "s"}, **gpus) for i in range(4)]
    world = World()
    with entered("koordpy", without="koordpy.apiserver") as found:
        world.add(TWO_LAYERS, nodes, group("low", 4, gather), group("high", 4, gather))
        world.add(gang_pods("low", 4, prefix="low", priority=1, requests=gpus))
        assert len(world.run().placements) == 4
        world.add(gang_pods("high", 4, prefix="high", priority=1000, requests=gpus))
        assert len(world.plan().evictions) == 4
    return found


def of_a_binding() -> Entered:
    """Modules that the same pod enters live, from its watch event until its Binding is confirmed."""
    found: Entered = {}

    async def bind(loop: VirtualLoop) -> None:
        async with live([small("n1", gpus=0), small("n2", gpus=0)]) as cluster, cluster.running() as scheduler:
            await cluster.at_rest(scheduler, "nodes")
            cluster.pod("plain")
            with entered("koordpy", without="koordpy.apiserver") as seen:
                await until(lambda: cluster.bound("plain"))
                await cluster.at_rest(scheduler, "pods")
            found.update(seen)

    run(bind, seed=1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", action="store_true", help="name the functions of each module, too")
    functions = parser.parse_args().functions
    ways = {"plan": of_a_plan(), "gang of GPUs": of_a_gpu_gang(), "event to Binding": of_a_binding()}
    for title, found in ways.items():
        print(f"{title}: {len(found)} modules, {sum(map(len, found.values()))} functions")
        for module in sorted(found):
            print(f"  {module}" + (f": {', '.join(sorted(found[module]))}" if functions else ""))


if __name__ == "__main__":
    main()
