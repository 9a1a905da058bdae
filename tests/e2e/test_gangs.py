# SPDX-License-Identifier: Apache-2.0
"""Gangs on 500 nodes of a real API server: many at once, one large, a member made anew, a scheduler killed among its
Bindings, two that race for one domain, and a tree of HyperNodes. Figures are printed, never asserted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.clusters import BLOCK, training_cluster
from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually
from tests.e2e.test_scheduler import GROUPS, LEASE, TOPOLOGIES, create, start
from tests.said import warnings_of

Json = dict[str, Any]
NODES = 500
GPUS = 8
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HYPERNODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
CLUSTER = training_cluster(NODES, nodes_per_accelerator=2, accelerators_per_block=8, blocks_per_spine=4)
"""Blocks of 16 nodes and 128 GPUs."""
BLOCK_OF = {node["metadata"]["name"]: node["metadata"]["labels"][BLOCK] for node in CLUSTER.nodes}


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    """500 nodes in four layers; everything of it is gone afterwards."""
    await api.each(CLUSTER.nodes, lambda manifest: create(api, manifest))
    await create(api, CLUSTER.topology)
    yield api
    for path in (pods_path(), GROUPS, TOPOLOGIES, LEASE):
        await api.delete(path)


def must(layer: str) -> Json:
    return {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]})}


def member(name: str, i: int, gpus: int) -> Json:
    return pod_manifest(
        f"{name}-{i}",
        scheduler=keys.DEFAULT_SCHEDULER_NAME,
        requests={"cpu": "1", "nvidia.com/gpu": str(gpus)},
        labels={keys.LABEL_POD_GROUP: name},
    )


@dataclass
class Gang:
    name: str
    size: int
    gpus: int
    notes: Json = field(default_factory=dict)

    @property
    def pods(self) -> list[Json]:
        return [member(self.name, i, self.gpus) for i in range(self.size)]

    @property
    def group(self) -> Json:
        meta = {"name": self.name, "annotations": self.notes}
        kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
        return {**kind, "metadata": meta, "spec": {"minMember": self.size}}


MANY = [Gang(f"g{n}", 32, 4, must("blockLayer")) for n in range(20)]
LARGE = Gang("large", 512, 2)


class Watched:
    """What became of the pods since it was entered, as the server tells it: each pod's nodes, and when it was bound."""

    def __init__(self, api: Client) -> None:
        self.nodes: dict[str, set[str]] = {}
        """Uid -> nodes it was ever seen on."""
        self.last_bind = 0.0
        self._api = api
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watched:
        since = (await self._api.get(pods_path()))["metadata"]["resourceVersion"]
        self._task = asyncio.create_task(self._follow(since))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, since: str) -> None:
        while True:
            # the server ends a watch that falls behind; the next one goes on where it stopped
            async for kind, pod in self._api.watch(pods_path(), since=since, seconds=240):
                assert kind != "ERROR", pod
                since = pod["metadata"]["resourceVersion"]
                node = pod["spec"].get("nodeName")
                seen = self.nodes.setdefault(pod["metadata"]["uid"], set())
                if node and node not in seen:
                    seen.add(node)
                    self.last_bind = time.monotonic()

    def bound(self) -> int:
        """Pods seen on a node. Raises what ended the watch."""
        if self._task is not None and self._task.done():
            self._task.result()
        return sum(bool(nodes) for nodes in self.nodes.values())


async def submit(api: Client, *gangs: Gang) -> int:
    """Creates groups, then pods; how many pods."""
    await api.each(gangs, lambda gang: api.create(GROUPS, gang.group))
    pods = [pod for gang in gangs for pod in gang.pods]
    await api.each(pods, lambda pod: api.create(pods_path(), pod))
    return len(pods)


async def by_name(api: Client) -> dict[str, Json]:
    return {pod["metadata"]["name"]: pod for pod in await api.items(pods_path())}


def check_whole(pods: dict[str, Json], *gangs: Gang) -> None:
    """Every gang is bound as a whole, where it must be, in ranks, and no node holds more than it has."""
    used: Counter[str] = Counter()
    for gang in gangs:
        members = [pods[f"{gang.name}-{i}"] for i in range(gang.size)]
        nodes = [pod["spec"].get("nodeName") for pod in members]
        assert all(nodes), f"{gang.name} is not whole"
        if gang.notes:
            assert len({BLOCK_OF[node] for node in nodes}) == 1
        assert [p["metadata"]["annotations"][keys.BOUND_RANK] for p in members] == [str(i) for i in range(gang.size)]
        for node in nodes:
            used[node] += gang.gpus
    assert not [node for node, gpus in used.items() if gpus > GPUS]


async def test_twenty_gangs_at_once_then_a_large_one_and_a_member_that_comes_back(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client, record_property: Any
) -> None:
    with start(controlplane, tmp_path, "koordpy") as scheduler:
        async with Watched(cluster) as watched:
            total = 0
            for what, gangs in (("20 gangs of 32", MANY), ("one gang of 512", [LARGE])):
                began = time.monotonic()
                number = await submit(cluster, *gangs)
                created = time.monotonic() - began
                total += number
                all_of_them = total
                await eventually(
                    lambda: watched.bound() >= all_of_them,  # noqa: B023 - awaited before the loop goes on
                    what=f"{what} bound",
                    within_s=120,
                    processes=[scheduler],
                )
                seconds = watched.last_bind - began
                figures = (
                    f"{what}: {seconds:.2f} s from the first create to the last bind ({created:.2f} s of creating)"
                )
                record_property(what, figures)
                print(f"\n{figures}, {number / seconds:.0f} pods/s")
            pods = await by_name(cluster)
            check_whole(pods, *MANY, LARGE)
            assert all(len(nodes) == 1 for nodes in watched.nodes.values())
        # its block is full but for its own place; the blocks around it have room
        before = pods["g7-13"]
        await cluster.delete(f"{pods_path()}/g7-13")
        await cluster.create(pods_path(), member("g7", 13, 4))

        async def back() -> Json | None:
            found = (await by_name(cluster)).get("g7-13", {})
            return found if found.get("spec", {}).get("nodeName") else None

        after = await eventually(back, what="the member bound again", processes=[scheduler])
        assert after is not None and after["metadata"]["uid"] != before["metadata"]["uid"]
        assert BLOCK_OF[after["spec"]["nodeName"]] == BLOCK_OF[before["spec"]["nodeName"]]
        check_whole(await by_name(cluster), *MANY, LARGE)


async def test_a_scheduler_killed_among_the_bindings_of_many_gangs_leaves_them_whole_in_the_end(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    async with Watched(cluster) as watched:
        number = await submit(cluster, *MANY, LARGE)
        first = start(controlplane, tmp_path, "first", "--kube-api-qps", "150", "--kube-api-burst", "1").start()
        await eventually(
            lambda: watched.bound() >= number // 4, what="a quarter bound", every_s=0.01, processes=[first]
        )
        first.kill()
        torn = await by_name(cluster)
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in torn.values())
        assert 0 < bound < number, "the process was to die among its Bindings"
        with start(controlplane, tmp_path, "second") as second:
            await eventually(lambda: watched.bound() == number, what="all bound", within_s=120, processes=[second])
        pods = await by_name(cluster)
        check_whole(pods, *MANY, LARGE)
        # what was bound before stays where it was, and nothing was ever on two nodes
        assert all(
            pods[name]["spec"]["nodeName"] == pod["spec"]["nodeName"]
            for name, pod in torn.items()
            if pod["spec"].get("nodeName")
        )
        assert all(len(nodes) == 1 for nodes in watched.nodes.values())
        assert len(pods) == len(watched.nodes) == number


async def test_of_gangs_that_race_for_one_domain_exactly_one_is_bound_and_whole(
    controlplane: ControlPlane, tmp_path: Path, api: Client, crds: list[str]
) -> None:
    """Three gangs of 16 for one block of 16 free nodes; beside it a block that none of them fits into."""
    nodes = CLUSTER.nodes[:28]
    await api.each(nodes, lambda manifest: create(api, manifest))
    await create(api, CLUSTER.topology)
    gangs = [Gang(name, 16, 8, must("blockLayer")) for name in ("red", "green", "blue")]
    try:
        with start(controlplane, tmp_path, "koordpy") as scheduler:
            await api.each(gangs, lambda gang: api.create(GROUPS, gang.group))
            mixed = [pod for trio in zip(*(gang.pods for gang in gangs), strict=True) for pod in trio]
            await api.each(mixed, lambda pod: api.create(pods_path(), pod))

            async def settled() -> list[Gang]:
                pods = await by_name(api)
                told = sum(
                    "needed 16" in (condition(p, "PodScheduled") or {}).get("message", "") for p in pods.values()
                )
                won = [gang for gang in gangs if pods[f"{gang.name}-0"]["spec"].get("nodeName")]
                return won if won and told == 32 else []

            for winners in (1, 2):
                # a winner that leaves makes room for the next
                won = await eventually(settled, what="one bound, two told", processes=[scheduler])
                assert len(won) == 1
                pods = await by_name(api)
                check_whole(pods, *won)
                assert sum(bool(pod["spec"].get("nodeName")) for pod in pods.values()) == 16
                if winners == 1:
                    for i in range(16):
                        await api.delete(f"{pods_path()}/{won[0].name}-{i}")
                    await api.each(won[0].pods, lambda pod: api.create(pods_path(), pod))
    finally:
        for path in (pods_path(), GROUPS, TOPOLOGIES, LEASE):
            await api.delete(path)


def hypernode_definition() -> Json:
    """As much of the definition as is read; it belongs to another project and is installed by that."""
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "hypernodes.topology.volcano.sh"},
        "spec": {
            "group": "topology.volcano.sh",
            "names": {
                "plural": "hypernodes",
                "singular": "hypernode",
                "kind": "HyperNode",
                "listKind": "HyperNodeList",
            },
            "scope": "Cluster",
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def hypernode(name: str, tier: int, kind: str, pattern: str) -> Json:
    members = [{"type": kind, "selector": {"regexMatch": {"pattern": pattern}}}]
    head = {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": name}}
    return {**head, "spec": {"tier": tier, "members": members}}


async def test_hypernodes_make_the_tree_as_soon_as_they_are_served(
    controlplane: ControlPlane, tmp_path: Path, api: Client, crds: list[str]
) -> None:
    await api.each(CLUSTER.nodes[:12], lambda manifest: create(api, manifest))
    name = "hypernodes.topology.volcano.sh"
    gang = Gang("g", 4, 8, must("tier1"))
    try:
        with start(controlplane, tmp_path, "koordpy") as scheduler:
            await submit(api, gang)

            async def told(text: str) -> bool:
                pods = await by_name(api)
                return text in (condition(pods["g-3"], "PodScheduled") or {}).get("message", "")

            await eventually(lambda: told('unknown layer "tier1"'), what="told of the layer", processes=[scheduler])
            await api.apply(f"{CRDS}/{name}", hypernode_definition())

            async def established() -> bool:
                return (condition(await api.get(f"{CRDS}/{name}"), "Established") or {}).get("status") == "True"

            await eventually(established, what="HyperNodes served")
            # the top first: a tree is planned with as soon as it is seen, and the last leaf is what lets the gang in
            await api.create(HYPERNODES, hypernode("core", 2, "HyperNode", "^leaf-"))
            await api.create(HYPERNODES, hypernode("leaf-0", 1, "Node", "^node-[0-2]$"))
            await eventually(
                lambda: told("needed 4, available in tier1: core/leaf-0: 3"),
                what="told what the first leaf offers",
                processes=[scheduler],
            )
            await api.create(HYPERNODES, hypernode("leaf-1", 1, "Node", "^node-[4-8]$"))

            async def bound() -> bool:
                return all(pod["spec"].get("nodeName") for pod in (await by_name(api)).values())

            await eventually(bound, what="the gang bound", processes=[scheduler])
            pods = await by_name(api)
            assert [pods[f"g-{i}"]["spec"]["nodeName"] for i in range(4)] == [f"node-{i}" for i in range(4, 8)]
            assert pods["g-0"]["metadata"]["annotations"][keys.BOUND_DOMAIN] == "core/leaf-1"
        shown = topology_command(controlplane, "-o", "json", "--request", "nvidia.com/gpu=8")
        found = json.loads(shown.stdout)
        assert (shown.returncode, found["source"], found["layers"][:2]) == (0, "HyperNodes", ["tier2", "tier1"])
        slots = {one["name"]: (one["nodes"], one["slots"]) for one in found["domains"] if one["layer"] == "tier1"}
        assert slots["core/leaf-0"] == (3, 3) and slots["core/leaf-1"] == (5, 1)
    finally:
        for path in (pods_path(), GROUPS, LEASE, HYPERNODES, f"{CRDS}/{name}"):
            await api.delete(path)


def topology_command(controlplane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordpy", "topology", "--kubeconfig", str(controlplane.kubeconfig()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)


async def test_the_tree_of_a_cluster_is_read_once_and_shown(controlplane: ControlPlane, cluster: Client) -> None:
    pod = await cluster.create(pods_path(), member("alone", 0, 6))
    await cluster.bind(pod, "node-3")
    shown = await asyncio.to_thread(topology_command, controlplane, "--request", "nvidia.com/gpu=4")
    assert (shown.returncode, warnings_of(shown.stderr)) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["ClusterTopologyLayer", "-", "500", "3994", "4000", "998"]
    assert any(line.split()[:6] == ["blockLayer", "dc-0/spine-0/block-0", "16", "122", "128", "30"] for line in lines)
