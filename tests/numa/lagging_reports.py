# SPDX-License-Identifier: Apache-2.0
"""Nodes whose reports lag behind their kubelets, in virtual time (numa.md 4 and 9).

The scheduler, its client and the API server are the real ones. A kubelet is played for each node: it admits pods by
`kubelet_law`, in the order in which they are bound. Its exporter measures the zones at one moment and writes the report
up to 30 s later. Pods are created and end meanwhile. Each pod that a kubelet rejects, or places in other zones than its
Binding recorded, is counted by its cause:

- `matching`: the last report adds up to the pods of the node, but shows other zones than these pods have. The rules
  call such a report exact, and no counter tells it from one that shows these pods (numa.md 4 and 9).
- `misplaced`: a pod on the node, or one that has left since the last report, has other zones than its Binding recorded.
  The rules count it by that record.
- `freed`: a pod ended while another was planned, bound and admitted. So the kubelet had more zones to choose from.
- `unplaced`: a pod without a zone record was created or ended a moment ago.
- `fault`: none of these. No pod may have this cause.

`python -m tests.numa.lagging_reports --seeds 0-200 [--racing] [--foreign]` plays many lives.
"""

import argparse
import asyncio
import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from koordpy.api import keys
from koordpy.apiserver.served_resources import ServedResource
from koordpy.apiserver.status_errors import StatusError
from koordpy.config.node_failures import Rejections, Repair
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from tests.clusters import node
from tests.engine.live import QUICK, Live, live, until
from tests.engine.virtual import VirtualLoop, one_after_the_other, run
from tests.numa.kubelet_law import Containers, kubelet_answer
from tests.numa.test_zone_placements import container, pod, report

Json = dict[str, Any]
Held = dict[str, dict[int, int]]
"""Resource -> zone -> amount of one pod."""
REPORTS = "noderesourcetopologies.topology.node.k8s.io"
GPU, NIC = "nvidia.com/gpu", "example.com/nic"
POLICIES = ("single-numa-node", "restricted", "best-effort")
SIZES = {"cpu": 16, GPU: 8, NIC: 4}
"""Amounts of a node."""
LONGEST_LAG = 30.0
SECONDS = 240.0
"""Of a life."""
CROSSING_SECONDS = 3.0
"""A pod without a record that came or went so lately may be unknown to the plan."""


@dataclass
class Machine:
    """A node, its kubelet and its exporter."""

    name: str
    policy: str
    scope: str
    zones: int
    held: dict[str, Held] = field(default_factory=dict)
    """Pod -> what it holds; aligned resources only."""
    matching: bool = False
    """True if the last report adds up, but shows other zones than the pods on the node have."""
    shown: dict[int, dict[str, int]] = field(default_factory=dict)
    """Zone -> resource -> free amount by the last report."""
    lost: bool = False
    """True if a pod with other zones than recorded has left since the last report."""
    freed_at: float = -CROSSING_SECONDS
    """When a pod last ended."""
    crossed_at: float = -CROSSING_SECONDS
    """When a pod without a record last was created or ended."""

    def free(self) -> dict[int, dict[str, int]]:
        free = {zone: {name: size // self.zones for name, size in SIZES.items()} for zone in range(self.zones)}
        for own in self.held.values():
            for name, row in own.items():
                for zone, amount in row.items():
                    free[zone][name] -= amount
        return free

    def admit(self, key: str, containers: Containers) -> bool:
        free = self.free()
        size = {name: amount // self.zones for name, amount in SIZES.items()}
        zones = {zone: {name: (size[name], size[name], own[name]) for name in SIZES} for zone, own in free.items()}
        admitted, held = kubelet_answer(zones, containers, self.policy, self.scope)
        if admitted:
            self.held[key] = {name: {zone: one for zone, one in row.items() if one} for name, row in held.items()}
        return admitted

    def report(self, free: dict[int, dict[str, int]]) -> Json:
        rows = [
            {
                name: (f"{size // self.zones}", f"{size // self.zones}", str(free[zone][name]))
                for name, size in SIZES.items()
            }
            for zone in range(self.zones)
        ]
        return report(self.name, self.policy, self.scope, rows)


def containers_of(obj: Json) -> Containers:
    """The containers of a Guaranteed pod, as the law reads them."""
    spec, found = obj["spec"], list[tuple[str, dict[str, int]]]()
    for one in spec.get("initContainers", ()):
        found.append(("sidecar" if one.get("restartPolicy") == "Always" else "init", _amounts(one)))
    return [*found, *(("container", _amounts(one)) for one in spec["containers"])]


def _amounts(box: Json) -> dict[str, int]:
    return {name: int(text) for name, text in box["resources"]["requests"].items() if name in SIZES}


def recorded(obj: Json) -> Held | None:
    """The zones that the Binding of a pod recorded; None without a record."""
    text = obj["metadata"].get("annotations", {}).get(keys.RESOURCE_STATUS)
    if not text:
        return None
    found: Held = {}
    for one in json.loads(text)["numaNodeResources"]:
        for name, amount in one["resources"].items():
            found.setdefault(name, {})[one["node"]] = int(amount)
    return found


@dataclass
class Life:
    """One history."""

    cluster: Live
    loop: VirtualLoop
    dice: random.Random
    foreign: bool
    """True if another scheduler binds pods, too: they have no zone record."""
    racing: bool
    """True if pods also end while others are planned, bound and admitted."""
    tally: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    machines: dict[str, Machine] = field(default_factory=dict)
    made: int = 0
    _waits: set[str] = field(default_factory=set)
    """Bound pods that their kubelets have not seen yet."""
    _seen: set[str] = field(default_factory=set)
    _arrivals: dict[str, asyncio.Queue[str]] = field(default_factory=dict)

    def populate(self) -> None:
        kind = ServedResource(
            keys.GROUP_NODE_TOPOLOGY, "v1alpha2", "NodeResourceTopology", "noderesourcetopologies", False
        )
        self.cluster.server.store.registry.add(kind)
        for i in range(self.dice.randint(1, 3)):
            name = f"n{i}"
            machine = Machine(
                name, self.dice.choice(POLICIES), self.dice.choice(("pod", "container")), self.dice.choice((2, 2, 4))
            )
            self.machines[name], self._arrivals[name] = machine, asyncio.Queue()
            made = node(name, gpus=SIZES[GPU], cpu=SIZES["cpu"], memory_gib=256)
            for amounts in (made["status"]["allocatable"], made["status"]["capacity"]):
                amounts[NIC] = str(SIZES[NIC])
            self.cluster.nodes(made)
            machine.shown = machine.free()
            self.cluster.server.store.create(REPORTS, machine.report(machine.shown))
        self.cluster.server.store.listeners.append(self._changed)

    def _changed(self, shelf: str, change: Any) -> None:
        """Hands a pod that was just bound to the kubelet of its node."""
        if shelf != "pods" or change.kind == "DELETED":
            return
        obj = change.entry.obj
        name, at = obj["metadata"]["name"], obj["spec"].get("nodeName")
        if at and name not in self._seen:
            self._seen.add(name)
            self._waits.add(name)
            self._arrivals[at].put_nowait(name)

    async def kubelet(self, machine: Machine) -> None:
        while True:
            name = await self._arrivals[machine.name].get()
            await asyncio.sleep(self.dice.choice((0.01, 0.1, 1.0)) * self.dice.random())
            self._waits.discard(name)
            obj = self.cluster.pods().get(name)
            if obj is None:
                continue
            if not machine.admit(name, containers_of(obj)):
                self._reject(machine, obj)
                continue
            self.tally["admitted"] += 1
            record = recorded(obj)
            if record is None:
                machine.crossed_at = self.loop.time()
            elif record != machine.held[name]:
                cause = self._cause(machine, obj)
                if cause == "fault" and self.loop.time() - machine.freed_at < CROSSING_SECONDS:
                    cause = "freed"
                self._count("misplaced", cause, machine, obj)
            self._write_status(name, {"phase": "Running"})

    def _reject(self, machine: Machine, obj: Json) -> None:
        self._count("rejected", self._cause(machine, obj), machine, obj)
        self._write_status(obj["metadata"]["name"], {"phase": "Failed", "reason": "TopologyAffinityError"})

    def _count(self, what: str, cause: str, machine: Machine, obj: Json) -> None:
        self.tally[f"{what}: {cause}"] += 1
        if cause == "fault":
            node = f"{machine.name} ({machine.policy}, {machine.scope}) with {machine.free()} free"
            name = obj["metadata"]["name"]
            pod = f"{name} of {containers_of(obj)}, recorded {recorded(obj)}, held {machine.held.get(name)}"
            self.faults.append(f"{self.loop.time():.1f} s: {what}: {pod}, on {node}")

    def _cause(self, machine: Machine, obj: Json) -> str:
        """Returns why the zones of a pod were predicted wrongly, as the docstring of the module names it."""
        if recorded(obj) is None:
            return "unplaced"
        if machine.matching:
            return "matching"
        if machine.lost or self.misplaced(machine, but=obj["metadata"]["name"]):
            return "misplaced"
        return "unplaced" if self.loop.time() - machine.crossed_at < CROSSING_SECONDS else "fault"

    def misplaced(self, machine: Machine, but: str = "") -> bool:
        """Returns True if a pod on the node has other zones than recorded."""
        pods = self.cluster.pods()
        own = ((recorded(pods[name]), held) for name, held in machine.held.items() if name in pods and name != but)
        return any(record is not None and record != held for record, held in own)

    def _write_status(self, name: str, status: Json) -> None:
        def change(obj: Json) -> Json:
            return {**obj, "status": {**obj.get("status", {}), **status}}

        self.cluster.server.store.update("pods", name, change, namespace="default", status=True)

    async def exporter(self, machine: Machine) -> None:
        """Measures the zones, and writes each report later; reports do not overtake one another."""
        lag = self.dice.choice((0.0, 1.0, LONGEST_LAG, LONGEST_LAG))
        due = 0.0
        while True:
            await asyncio.sleep(self.dice.choice((1.0, 5.0, 15.0)) * self.dice.random())
            due = max(due, self.loop.time() + lag * self.dice.random())
            self.loop.call_at(due, self._publish, machine, machine.free())

    def _publish(self, machine: Machine, free: dict[int, dict[str, int]]) -> None:
        if free == machine.shown:  # a report that does not change says nothing about pods that came since
            return
        machine.shown, machine.lost = free, False
        there = [obj for obj in self.cluster.pods().values() if obj["spec"].get("nodeName") == machine.name]
        there = [obj for obj in there if obj.get("status", {}).get("phase") not in ("Failed", "Succeeded")]
        shown = {name: {z: SIZES[name] // machine.zones - own[name] for z, own in free.items()} for name in SIZES}
        held = {name: sum(_total(obj, name) for obj in there) for name in SIZES}
        adds_up = all(sum(row.values()) == held[name] for name, row in shown.items())
        machine.matching = adds_up and free != machine.free()
        self.tally["reports that add up" if adds_up else "reports that lag"] += 1
        self.tally["matching reports"] += machine.matching
        self.cluster.server.store.update(REPORTS, machine.name, lambda _: machine.report(free))

    async def tenants(self, scheduler: Scheduler) -> None:
        """Pods are created and end."""
        dice = self.dice
        over = self.loop.time() + SECONDS
        while self.loop.time() < over:
            await asyncio.sleep(dice.choice((0.2, 2.0, 8.0)) * dice.random())
            pods = self.cluster.pods()
            running = [name for name, obj in pods.items() if obj.get("status", {}).get("phase") == "Running"]
            if len(pods) - len(running) < 4 and dice.random() < 0.7:
                for _ in range(dice.choice((1, 1, 2, 4))):
                    self._create()
            elif running:
                if not self.racing:
                    await self.cluster.at_rest(scheduler, "pods")
                    await until(lambda: not self._waits)
                self._end(dice.choice(running))
                await asyncio.sleep(0.0 if self.racing else 1.0)
            for name, obj in pods.items():
                if obj.get("status", {}).get("phase") == "Failed" and dice.random() < 0.5:
                    self.cluster.delete(name)

    def _create(self) -> None:
        dice = self.dice
        self.made += 1

        def box(name: str) -> Json:
            amounts = {"cpu": str(dice.choice((1, 2, 3, 4, 6)))}
            if dice.random() < 0.7:
                amounts["nvidiacom_gpu"] = str(dice.choice((1, 1, 2, 3, 4)))
            if dice.random() < 0.3:
                amounts["example.com_nic"] = str(dice.choice((1, 2)))
            made = container(name, **amounts)
            for own in made["resources"].values():
                own["memory"] = "1Gi"
            return made

        inits = [{**box("init"), **({"restartPolicy": "Always"} if dice.random() < 0.5 else {})}]
        made = pod(
            f"p{self.made}",
            *(box(f"c{i}") for i in range(dice.choice((1, 1, 1, 2)))),
            inits=inits if dice.random() < 0.15 else None,
        )
        made["metadata"]["namespace"] = "default"
        at = dice.choice(list(self.machines.values()))
        if self.foreign and dice.random() < 0.3 and self._has_room(at, made):
            made["spec"] |= {"schedulerName": "other", "nodeName": at.name}
            at.crossed_at = self.loop.time()
        self.cluster.create(made)

    def _has_room(self, machine: Machine, made: Json) -> bool:
        """Returns True if a node has free totals for a pod in addition to all pods that are bound to it."""
        bound = [one for one in self.cluster.pods().values() if one["spec"].get("nodeName") == machine.name]
        live = [one for one in bound if one.get("status", {}).get("phase") not in ("Failed", "Succeeded")]
        return all(_peak(made, name) + sum(_peak(one, name) for one in live) <= size for name, size in SIZES.items())

    def _end(self, name: str) -> None:
        obj = self.cluster.pods()[name]
        machine = self.machines[obj["spec"]["nodeName"]]
        held, record = machine.held.pop(name, None), recorded(obj)
        machine.lost |= record is not None and held != record
        machine.freed_at = self.loop.time()
        if recorded(obj) is None:
            machine.crossed_at = self.loop.time()
        if self.dice.random() < 0.5:
            self._write_status(name, {"phase": "Succeeded"})
            self.loop.call_later(10 * self.dice.random(), self._delete, name)
        else:
            self.cluster.delete(name)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(StatusError):
            self.cluster.delete(name)


def _total(obj: Json, name: str) -> int:
    """What a pod holds of a resource: its containers and sidecars."""
    return sum(own.get(name, 0) for kind, own in containers_of(obj) if kind != "init")


def _peak(obj: Json, name: str) -> int:
    """Returns at least what a pod takes of a resource at any time."""
    return sum(own.get(name, 0) for _, own in containers_of(obj))


def settings() -> EngineSettings:
    """Rejections close nothing, so that nodes are tried again and again."""
    config = structs.replace(QUICK.config, repair=Repair(rejections=Rejections(backoff=0.0, max_backoff=0.0)))
    return replace(QUICK, config=config)


def play(seed: int, *, racing: bool = False, foreign: bool = False) -> Life:
    """Plays one life."""

    async def whole(loop: VirtualLoop) -> Life:
        own = settings()
        async with live() as cluster:
            cluster.planner.config = own.config
            life = Life(cluster, loop, random.Random(seed), foreign, racing)
            life.populate()
            tasks = [asyncio.create_task(life.kubelet(one)) for one in life.machines.values()]
            async with cluster.running(own) as scheduler:
                tasks += [asyncio.create_task(life.exporter(one)) for one in life.machines.values()]
                await life.tenants(scheduler)
                for task in tasks:
                    task.cancel()
            return life

    return run(whole, seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-50")
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--racing", action="store_true")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    total = Counter[str]()
    with one_after_the_other():
        for seed in range(int(first), int(last or first) + 1):
            life = play(seed, racing=given.racing, foreign=given.foreign)
            total += life.tally
            for text in life.faults:
                print(f"seed {seed}: {text}", flush=True)
    print(dict(sorted(total.items())))


if __name__ == "__main__":
    main()
