# SPDX-License-Identifier: Apache-2.0
"""No GPU is given twice by a scheduler that fails, restarts and is told late; KOORDPY_GPU_STORMS=300 tries that many.

Pods, groups and gangs come and go on measured machines, strangers hold GPUs without a word, GPUs fall sick and recover
and Devices vanish, while the API server answers badly.
"""

import asyncio
import json
import os
import random
from typing import Any

import pytest
from msgspec import convert

from koordpy.api import keys
from koordpy.api.custom_objects import Device
from koordpy.api.objects import Node, Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.devices.family_registry import make_state
from koordpy.engine.scheduler import Scheduler
from koordpy.planner.planning_round import plan_round
from tests.engine.live import Live, gang, live, small
from tests.engine.test_device_status import DEVICES, device, put

SEEDS = range(int(os.environ.get("KOORDPY_GPU_STORMS", "5")))
NODES = ("n1", "n2", "n3")
PAIRS = [[0, 96, 48, 10], [96, 0, 10, 48], [48, 10, 0, 96], [10, 48, 96, 0]]
KINDS: dict[str, Any] = {
    "nodes": Node,
    DEVICES: Device,
    "podgroups.scheduling.sigs.k8s.io": PodGroup,
    "pods": Pod,
}
ROUTES = (
    ("POST", "*/binding"),
    ("POST", "*/binding"),
    ("PATCH", "*/pods/*/status"),
    ("PATCH", "*/devices/*"),
    ("GET", "/api/v1/namespaces/*/pods/*"),
)


class GpuStorm:
    """One schedule."""

    def __init__(self, cluster: Live, dice: random.Random) -> None:
        self.cluster, self.dice, self.made = cluster, dice, 0
        self.given: dict[str, tuple[str, str]] = {}
        """uid -> (node, allocation), of every pod that was ever seen with one."""
        for name in NODES[:2]:
            cluster.server.store.create(DEVICES, device(PAIRS, name))

    def act(self) -> None:
        dice, cluster = self.dice, self.cluster
        self.made += 1
        name = f"p{self.made}"
        match dice.choices(
            ["pod", "group", "gang", "delete", "stranger", "health", "device", "watch"], (6, 3, 2, 5, 1, 3, 1, 1)
        )[0]:
            case "pod":
                cluster.pod(name, gpus=dice.choice([1, 1, 2, 3]), cpu="0")
            case "group":
                labels = {keys.GPU_GROUP_NAME: f"j{self.made % 3}", keys.GPU_GROUP_REPLICA: "2"}
                for i in range(2):
                    cluster.pod(f"{name}-{i}", gpus=dice.choice([1, 2]), cpu="0", labels=labels)
            case "gang":
                cluster.create(*gang(f"g{self.made}", dice.randrange(2, 4), gpus=dice.choice([1, 2])))
            case "delete":
                if pods := sorted(cluster.pods()):
                    cluster.delete(dice.choice(pods))
            case "stranger":
                cluster.pod(name, gpus=1, cpu="0", scheduler_name="another")
                cluster.bind(name, dice.choice(NODES))
            case "health":
                self._health(dice.choice(NODES[:2]))
            case "device":
                node = dice.choice(NODES)
                if any(obj["metadata"]["name"] == node for obj in cluster.server.store.list(DEVICES)):
                    cluster.server.store.remove(DEVICES, node)
                else:
                    cluster.server.store.create(DEVICES, device(PAIRS, node))
            case "watch":
                if dice.random() < 0.5:
                    cluster.server.faults.expire_versions()
                cluster.server.faults.drop_watches(abort=dice.random() < 0.5)
        self.look()

    def _health(self, node: str) -> None:
        for obj in self.cluster.server.store.list(DEVICES):
            if obj["metadata"]["name"] == node:
                manifest = device(PAIRS, node)
                manifest["spec"]["devices"][self.dice.randrange(4)]["health"] = self.dice.random() < 0.5
                put(self.cluster, manifest)

    def look(self) -> None:
        """Whoever has GPUs by name keeps them, and nobody else has them."""
        held: dict[tuple[str, str], str] = {}
        for name, obj in self.cluster.pods().items():
            meta = obj["metadata"]
            text = meta.get("annotations", {}).get(keys.GPU_ALLOCATION)
            if text is None:
                continue
            node = obj["spec"]["nodeName"]
            assert self.given.setdefault(meta["uid"], (node, text)) == (node, text)
            minors = [minor for one in json.loads(text)["allocatedGPUs"].values() for minor in one]
            asked = obj["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"]
            assert len(set(minors)) == len(minors) == int(asked)
            for minor in minors:
                assert held.setdefault((node, minor), name) == name, f"GPU {minor} of {node} is given twice"

    async def rage(self, steps: int) -> None:
        faults = self.cluster.server.faults
        faults.seed(self.dice.randrange(1 << 30))
        for _ in range(self.dice.randrange(1, 4)):
            method, path = self.dice.choice(ROUTES)
            effect: Any = self.dice.choice([429, 500, 500, 503, 504, "drop"])
            after = effect in (500, 504, "drop") and self.dice.random() < 0.5
            share = self.dice.choice([0.1, 0.3, 0.6])
            faults.fail(effect, method=method, path=path, share=share, after=after, retry_after=0)
        for _ in range(steps):
            self.act()
            await asyncio.sleep(self.dice.random() * 0.03)

    async def settled(self, scheduler: Scheduler) -> None:
        """Waits until the scheduler is at rest, and stays so."""
        for _ in range(4):
            await self.cluster.at_rest(scheduler, *KINDS)
            await asyncio.sleep(0.15)
        self.look()

    def check(self) -> None:
        """A scheduler that knows nothing but the objects sees the same holders and places nothing more."""
        self.look()
        afresh = make_state()
        for plural, kind in KINDS.items():
            for obj in self.cluster.server.store.list(plural):
                afresh.upsert(convert(obj, kind, strict=False))
        assert plan_round(afresh.snapshot(0.0)).placements == (), "something is pending that fits"


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_gpu_is_given_twice_whatever_the_weather(seed: int) -> None:
    async with live([small(name) for name in NODES]) as cluster:
        storm = GpuStorm(cluster, random.Random(seed))
        async with cluster.running(settle_seconds=0.05) as first:
            await storm.rage(12)
            # it dies: whatever it has begun stays as it is
            first.leading.clear()
        async with cluster.running(settle_seconds=0.05) as scheduler:
            await storm.rage(20)
            cluster.server.faults.clear()
            await storm.settled(scheduler)
            storm.check()
        assert storm.given, "GPUs were given by name"
