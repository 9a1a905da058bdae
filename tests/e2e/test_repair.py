# SPDX-License-Identifier: Apache-2.0
"""Gangs that lose a node, with each policy, and the pods that they run beside, on a real API server (repair.md 4). A
controller creates the missing members again, by their index and with another name. In the middle koordpy is left alone,
or its leader changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.acts import LEADER_CHANGED, LEFT_ALONE, ONE_GPU, Koordpy
from tests.e2e.client import Client, Json, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import kubelets, on_node, phase_of
from tests.e2e.process import always, eventually
from tests.e2e.test_job_lives import World
from tests.e2e.test_member_ends import OWNER
from tests.e2e.test_preemption import CLASSES, EVENTS
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES

BLOCK, POOL, SIZE = "tests/block", "tests/pool", 4
POOLS = {"replace": (5,), "wait": (5,), "seats": (5,), "regather": (4, 4)}
"""Pool of nodes of one gang -> number of nodes of each of its blocks."""
MUST = json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]})
TOPOLOGY = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "ClusterNetworkTopology",
    "metadata": {"name": keys.TOPOLOGY_OBJECT},
    "spec": {
        "hierarchy": [
            {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": keys.CLUSTER_LAYER},
            {"layerName": keys.NODE_LAYER, "parentTopologyLayer": "blockLayer"},
        ]
    },
}
NOTES = {"regather": {keys.GANG_STALE_GRACE: "1s"}}


class Repairs(World):
    """One gang of a pool, named like it, that needs one block, and its controller."""

    def __init__(self, world: World, koordpy: Koordpy, name: str) -> None:
        super().__init__(world.api, world.process, world.nodes)
        self.koordpy, self.name = koordpy, name
        self.is_halted = False
        """True while the controller creates no pods."""
        self._created = 0

    async def until(self, what: str, true: object) -> None:
        self.process = self.koordpy.leader
        await super().until(f"{self.name}: {what}", true)  # type: ignore[arg-type]

    async def start(self) -> None:
        """Creates the PodGroup and the members, and waits until they run in one block."""
        meta = {
            "name": self.name,
            "annotations": {
                keys.GANG_TOPOLOGY: MUST,
                keys.GANG_REPAIR: self.name if self.name in ("wait", "regather") else "replace",
                **NOTES.get(self.name, {}),
            },
        }
        kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
        await self.api.create(GROUPS, {**kind, "metadata": meta, "spec": {"minMember": SIZE}})
        self._controller = asyncio.create_task(self._control())
        await self.are_running()

    async def _control(self) -> None:
        """Creates a pod for each index without one, until cancelled."""
        while True:
            if not self.is_halted:
                there = {pod["metadata"]["labels"][keys.JOB_COMPLETION_INDEX] for pod in await self.members()}
                for index in {str(number) for number in range(SIZE)} - there:
                    self._created += 1
                    made = self._pod(f"{self.name}-x{self._created}", priority="high", gang=self.name)
                    made["metadata"]["labels"][keys.JOB_COMPLETION_INDEX] = index
                    made["metadata"]["ownerReferences"] = [OWNER]
                    await self.api.create(pods_path(), made)
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """Ends the controller."""
        self._controller.cancel()
        await asyncio.gather(self._controller, return_exceptions=True)

    async def create_filler(self, *, priority: str = "") -> None:
        await self.api.create(pods_path(), self._pod(f"filler-{self.name}", priority=priority))

    def _pod(self, name: str, *, priority: str, gang: str = "") -> Json:
        made = pod_manifest(
            name,
            scheduler=keys.DEFAULT_SCHEDULER_NAME,
            requests={"nvidia.com/gpu": "1"},
            labels={keys.LABEL_POD_GROUP: gang} if gang else {},
            spec={"nodeSelector": {POOL: self.name}},
        )
        if priority:
            made["spec"]["priorityClassName"] = priority
        return made

    async def members(self) -> list[Json]:
        """Members that are not being deleted."""
        return await self.pods(f"{keys.LABEL_POD_GROUP}={self.name}")

    async def ranks(self) -> dict[str, str]:
        """Rank -> node of the members that run."""
        running = [pod for pod in await self.members() if phase_of(pod) == "Running"]
        return {pod["metadata"]["annotations"][keys.BOUND_RANK]: pod["spec"]["nodeName"] for pod in running}

    async def are_running(self) -> dict[str, str]:
        """Waits until all members run; their nodes by rank. All are in one block, and ranks are the indexes."""

        async def whole() -> bool:
            pods = await self.members()
            return len(pods) == SIZE and all(phase_of(pod) == "Running" for pod in pods)

        await self.until("all members run", whole)
        found = await self.ranks()
        assert sorted(found) == [str(rank) for rank in range(SIZE)]
        assert len({node.rpartition("-")[0] for node in found.values()}) == 1, found
        for pod in await self.members():
            assert (
                pod["metadata"]["labels"][keys.JOB_COMPLETION_INDEX]
                == (pod["metadata"]["annotations"][keys.BOUND_RANK])
            )
        return found

    async def lose(self, rank: str) -> str:
        """Deletes the node of a member, as its machine's owner does; waits until the gang is Degraded."""
        lost = (await self.ranks())[rank]
        await self.api.delete(f"/api/v1/nodes/{lost}")
        text = f"{SIZE - 1} of {SIZE} members, missing ranks {rank}; lost on node {lost} (node is gone)"

        async def told() -> bool:
            found = condition(await self.api.get(f"{GROUPS}/{self.name}"), "Degraded") or {}
            return (found.get("status"), found.get("reason")) == ("True", "MembersMissing") and found[
                "message"
            ].startswith(text)

        await self.until(f"Degraded: {text}", told)
        return lost

    async def collect(self, node: str) -> None:
        """Deletes the pods of a node that is gone, as the garbage collector of pods does."""
        self._controller_must_run()
        for pod in await self.members():
            if pod["spec"].get("nodeName") == node:
                await self.api.delete(f"{pods_path()}/{pod['metadata']['name']}")

    def _controller_must_run(self) -> None:
        if self._controller.done():
            self._controller.result()

    async def is_repaired(self) -> None:
        async def repaired() -> bool:
            found = condition(await self.api.get(f"{GROUPS}/{self.name}"), "Degraded") or {}
            return (found.get("status"), found.get("reason")) == ("False", "Repaired")

        await self.until("the gang is repaired", repaired)
        degraded = await self.notes(self.name, "GangDegraded")
        assert any(note.startswith(f"gang default/{self.name} has {SIZE - 1} of {SIZE} members") for note in degraded)

        async def told() -> bool:
            return await self.notes(self.name, "GangRepaired") == [f"{SIZE} members are bound or have Succeeded"]

        await self.until("event GangRepaired", told)

    async def filler(self) -> Json | None:
        """The other pod of the pool; None if it is gone."""
        found = [pod for pod in await self.api.items(pods_path()) if pod["metadata"]["name"] == f"filler-{self.name}"]
        return found[0] if found and not found[0]["metadata"].get("deletionTimestamp") else None

    async def filler_runs(self) -> None:
        async def runs() -> bool:
            found = await self.filler()
            return found is not None and phase_of(found) == "Running"

        await self.until("the filler runs", runs)

    async def evictions(self, reason: str) -> list[str]:
        """Names of pods with an event of this reason that names the gang's pods or its pool."""
        return [
            event["regarding"]["name"]
            for event in await self.api.items(EVENTS)
            if event["reason"] == reason and event["regarding"]["name"].startswith((self.name, f"filler-{self.name}"))
        ]


@pytest.fixture
async def gangs(
    request: pytest.FixtureRequest, api: Client, plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[tuple[Koordpy, dict[str, Repairs]]]:
    """A gang for each pool. Parameter: what becomes of koordpy in the middle."""
    await api.apply_crds(CRDS)
    await api.create(TOPOLOGIES, TOPOLOGY)
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    await api.create(CLASSES, high)
    for pool, sizes in POOLS.items():
        for number, size in enumerate(sizes):
            block = f"{pool}-{number}"
            await api.make_nodes(
                size,
                name=lambda i, block=block: f"{block}-{i}",  # type: ignore[misc]
                labels=lambda _, block=block, pool=pool: {BLOCK: block, POOL: pool},  # type: ignore[misc]
                allocatable=ONE_GPU,
            )
    koordpy = Koordpy(plane, tmp_path, request.param)
    try:
        async with kubelets(api) as nodes:
            world = World(api, koordpy.leader, nodes)
            made = {pool: Repairs(world, koordpy, pool) for pool in POOLS}
            yield koordpy, made
            for one in made.values():
                await one.stop()
            await api.clear()
    finally:
        await koordpy.stop()
        for path in (GROUPS, TOPOLOGIES, EVENTS, f"{CLASSES}/high"):
            await api.delete(path)


@pytest.mark.parametrize("gangs", [LEFT_ALONE, LEADER_CHANGED], indirect=True)
async def test_a_gang_that_lost_a_node_is_repaired_by_its_policy(gangs: tuple[Koordpy, dict[str, Repairs]]) -> None:
    koordpy, of = gangs
    for one in of.values():
        await one.start()
    for name in ("replace", "wait"):
        await of[name].create_filler()
        await of[name].filler_runs()
    before = {name: await one.ranks() for name, one in of.items()}
    lost = {name: await one.lose("2") for name, one in of.items()}
    await koordpy.ready()
    await koordpy.strike()
    # the last node of the block is kept for the member, which does not exist yet
    of["seats"].is_halted = True
    await of["seats"].collect(lost["seats"])
    await of["seats"].create_filler(priority="high")

    async def held() -> bool:
        said = condition(await of["seats"].filler() or {}, "PodScheduled") or {}
        text = "room on 1 node is held for gang default/seats, which lacks 1 of 4 members, until "
        return said.get("reason") == "HeldBack" and text in said["message"]

    await of["seats"].until("the filler is told of the seat", held)
    of["seats"].is_halted = False
    for name in ("replace", "wait", "regather"):
        await of[name].collect(lost[name])
    # free room, and room that an eviction makes: the others keep their nodes, the rank is the same
    for name in ("seats", "replace"):
        after = await of[name].are_running()
        assert {**after, "2": ""} == {**before[name], "2": ""}, name
        assert after["2"] != lost[name]
        await of[name].is_repaired()
    assert await of["replace"].filler() is None
    assert not on_node(await of["seats"].filler() or {"spec": {"nodeName": "gone"}})
    # no room in the block: the whole gang moves to the other one
    after = await of["regather"].are_running()
    assert {node.rpartition("-")[0] for node in after.values()} != {lost["regather"].rpartition("-")[0]}
    assert len(await of["regather"].evictions("Moved")) == SIZE - 1
    await of["regather"].is_repaired()
    # no eviction for a gang that waits, and a place once there is room
    (pending,) = [pod for pod in await of["wait"].members() if not on_node(pod)]

    async def refused() -> bool:
        said = condition(await of["wait"].api.get(f"{pods_path()}/{pending['metadata']['name']}"), "PodScheduled")
        return said is not None and said["status"] == "False"

    await of["wait"].until("its member is told why it waits", refused)
    await always(of["wait"].filler, what="no eviction for a gang that waits", for_s=2)
    await of["wait"].api.delete(f"{pods_path()}/filler-wait")
    after = await of["wait"].are_running()
    assert {**after, "2": ""} == {**before["wait"], "2": ""}
    await of["wait"].is_repaired()
    await eventually(lambda: of["replace"].evictions("Preempted"), what="the eviction of the filler is an event")
