# SPDX-License-Identifier: Apache-2.0
"""GPUs by name on a real API server: groups, restarts and a crash, sick GPUs, and pods that hold nobody knows what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.dumped import Json, dump, offline, planned, said
from tests.e2e.process import Process, eventually
from tests.e2e.test_gangs import by_name
from tests.e2e.test_gpu_policies import DEVICES
from tests.e2e.test_scheduler import LEASE, start
from tests.planning.gpu.machines import M

GPU = "nvidia.com/gpu"
OURS = keys.DEFAULT_SCHEDULER_NAME
ALL = range(8)


def device(node: str, *, sick: Collection[int] = ()) -> Json:
    """A machine of eight GPUs with measured links: {0,1,2,3} and {4,5,6,7} are quads, {0,3} one of the best pairs."""
    entries = [{"type": "gpu", "minor": i, "id": f"GPU-{node}-{i}", "health": i not in sick} for i in ALL]
    measured = {"name": "bandwidth", "topology": json.dumps(M)}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node},
        "spec": {"devices": entries, "topologies": {"gpu": [measured]}},
    }


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    yield api
    for path in (pods_path(), DEVICES, LEASE):
        await api.delete(path)


async def make_machines(api: Client, *names: str, sick: Collection[int] = ()) -> None:
    room = {"cpu": "96", "memory": "1024Gi", "pods": "110", GPU: "8"}
    await api.make_nodes(len(names), allocatable=room, name=names.__getitem__)
    for name in names:
        await api.create(DEVICES, device(name, sick=sick))


def worker(name: str, gpus: int, *, group: str = "", replica: int = 2, scheduler: str = OURS) -> Json:
    labels = {keys.GPU_GROUP_NAME: group, keys.GPU_GROUP_REPLICA: str(replica)} if group else {}
    return pod_manifest(name, scheduler=scheduler, requests={"cpu": "1", GPU: str(gpus)}, labels=labels)


async def theirs(api: Client, name: str, node: str, gpus: int, annotations: Json | None = None) -> None:
    """A pod that another scheduler puts on a node."""
    pod = await api.create(pods_path(), worker(name, gpus, scheduler="default-scheduler"))
    await api.bind(pod, node, annotations=annotations)


def koordinators(node: str, *minors: int) -> Json:
    """What Koordinator writes of the GPUs of its pods."""
    full = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    cards = [{"minor": i, "id": f"GPU-{node}-{i}", "resources": full} for i in minors]
    return {keys.DEVICE_ALLOCATED: json.dumps({"gpu": cards})}


async def bound(api: Client, process: Process, *names: str) -> dict[str, Json]:
    async def there() -> dict[str, Json]:
        pods = await by_name(api)
        return pods if all(pods.get(name, {}).get("spec", {}).get("nodeName") for name in names) else {}

    return await eventually(there, what=f"{', '.join(names)} bound", within_s=120, processes=[process])


async def told(api: Client, process: Process, name: str, text: str) -> None:
    async def has_been() -> bool:
        found = condition((await by_name(api))[name], "PodScheduled") or {}
        return text in found.get("message", "")

    await eventually(has_been, what=f"{name} told: {text}", processes=[process])


def given(pod: Json) -> tuple[str, list[int], list[int]]:
    """(node, GPUs, GPUs that it sees), after all annotations that speak of them were found to say the same."""
    node, notes = pod["spec"]["nodeName"], pod["metadata"]["annotations"]
    allocation = json.loads(notes[keys.GPU_ALLOCATION])
    assert list(allocation["allocatedGPUs"]) == ["0"]
    own = [int(minor) for minor in allocation["allocatedGPUs"]["0"]]
    visible = [int(minor) for minor in allocation["visibleGPUs"]]
    assert notes[f"{keys.GPU_CUDA_VISIBLE_PREFIX}0"] == ",".join(f"GPU-{node}-{i}" for i in own)
    assert notes[keys.GPU_NVIDIA_VISIBLE] == ",".join(f"GPU-{node}-{i}" for i in visible)
    cards = json.loads(notes[keys.DEVICE_ALLOCATED])["gpu"]
    assert [(card["minor"], card["id"]) for card in cards] == [(i, f"GPU-{node}-{i}") for i in own]
    assert own == sorted(own) and visible == sorted(visible) and set(own) <= set(visible)
    return node, own, visible


def check_disjoint(pods: dict[str, Json]) -> dict[str, set[int]]:
    """Node -> GPUs given; no GPU is given twice, and every pod has as many as it asks for."""
    used: dict[str, set[int]] = {}
    for name, pod in pods.items():
        node, own, _ = given(pod)
        asked = int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
        assert len(own) == asked, name
        assert not used.setdefault(node, set()) & set(own), f"{name} shares GPUs of {node}"
        used[node] |= set(own)
    return used


async def test_a_group_gets_its_own_gpus_and_sees_its_siblings_as_planned_offline(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    """n1 has 0, 1, 2 and 5 free, n2 a whole quad."""
    await make_machines(cluster, "n1", "n2")
    await theirs(cluster, "on-n1", "n1", 4, koordinators("n1", 3, 4, 6, 7))
    await theirs(cluster, "on-n2", "n2", 4, koordinators("n2", 0, 1, 2, 3))
    for i in range(2):
        await cluster.create(pods_path(), worker(f"w-{i}", 2, group="w"))
    expected = offline("simulate", await dump(cluster), tmp_path)
    with start(controlplane, tmp_path, "koordpy") as process:
        pods = await bound(cluster, process, "w-0", "w-1")
        assert said(pods, expected) == planned(expected)
        assert given(pods["w-0"]) == ("n2", [4, 7], [4, 5, 6, 7])
        assert given(pods["w-1"]) == ("n2", [5, 6], [4, 5, 6, 7])
        # a sibling that comes later joins those that are there, where they leave it room
        await cluster.create(pods_path(), worker("v-0", 2, group="v"))
        pods = await bound(cluster, process, "v-0")
        node, first, visible = given(pods["v-0"])
        assert (node, visible) == ("n1", first)
        await cluster.create(pods_path(), worker("v-1", 2, group="v"))
        pods = await bound(cluster, process, "v-1")
        assert given(pods["v-1"])[::2] == ("n1", [0, 1, 2, 5])
        assert not set(given(pods["v-1"])[1]) & set(first)
        assert given(pods["v-0"])[2] == visible, "what is bound is not rewritten"


async def test_a_scheduler_that_dies_and_starts_anew_gives_no_gpu_twice(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    """Three machines, filled to the last GPU by groups of pairs; the first scheduler is killed among its Bindings."""
    await make_machines(cluster, "n1", "n2", "n3")
    names = [f"g{group}-{i}" for group in range(6) for i in range(2)]
    for name in names:
        await cluster.create(pods_path(), worker(name, 2, group=name.partition("-")[0]))

    async def some() -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in (await by_name(cluster)).values())

    first = start(controlplane, tmp_path, "first", "--kube-api-qps", "5", "--kube-api-burst", "1").start()
    await eventually(some, what="one bound", every_s=0.01, processes=[first])
    first.kill()
    torn = await by_name(cluster)
    assert 0 < await some() < len(names), "the process was to die among its Bindings"
    with start(controlplane, tmp_path, "second") as second:
        pods = await bound(cluster, second, *names)
        assert check_disjoint(pods) == {node: set(ALL) for node in ("n1", "n2", "n3")}
        before = {name: pod["metadata"]["annotations"] for name, pod in torn.items() if pod["spec"].get("nodeName")}
        assert {name: pods[name]["metadata"]["annotations"] for name in before} == before
        assert await asyncio.to_thread(second.stop) == 0
    node, freed, _ = given(pods["g3-1"])
    await cluster.create(pods_path(), worker("next", 2))
    with start(controlplane, tmp_path, "third") as third:
        await told(cluster, third, "next", "Insufficient nvidia.com/gpu")
        # a pod that is gone gives its GPUs to the next
        await cluster.delete(f"{pods_path()}/g3-1")
        pods = await bound(cluster, third, "next")
        assert given(pods["next"]) == (node, freed, freed)
        check_disjoint(pods)
        # and so does one that has ended
        await cluster.create(pods_path(), worker("last", 2))
        await told(cluster, third, "last", "Insufficient nvidia.com/gpu")
        await cluster.patch(f"{pods_path()}/g0-0/status", {"status": {"phase": "Succeeded"}})
        pods = await bound(cluster, third, "last")
        assert given(pods["last"])[:2] == given(pods["g0-0"])[:2]


async def test_a_sick_gpu_is_not_given_and_a_pod_keeps_the_one_it_has(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    await make_machines(cluster, "n1", sick=(5, 6))
    await cluster.create(pods_path(), worker("p", 7))
    with start(controlplane, tmp_path, "koordpy") as process:
        await told(cluster, process, "p", "Insufficient gpu devices")
        await cluster.patch(f"{DEVICES}/n1", {"spec": device("n1", sick=(0,))["spec"]})
        pods = await bound(cluster, process, "p")
        assert given(pods["p"])[1] == list(range(1, 8))
        await cluster.create(pods_path(), worker("q", 1))
        await told(cluster, process, "q", "Insufficient gpu devices")
        # held and sick: it counts once, and its pod keeps it
        await cluster.patch(f"{DEVICES}/n1", {"spec": device("n1", sick=(1,))["spec"]})
        pods = await bound(cluster, process, "q")
        assert given(pods["q"])[1] == [0]
        check_disjoint(pods)


async def test_a_holder_that_does_not_say_what_it_has_makes_the_node_count_only(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    await make_machines(cluster, "n1")
    with start(controlplane, tmp_path, "koordpy") as process:
        await theirs(cluster, "silent", "n1", 2)
        await cluster.create(pods_path(), worker("p", 4))
        pods = await bound(cluster, process, "p")
        written = {keys.GPU_ALLOCATION, keys.GPU_NVIDIA_VISIBLE, keys.DEVICE_ALLOCATED}
        assert not written & set(pods["p"]["metadata"]["annotations"])
        await cluster.create(pods_path(), worker("q", 3))
        await told(cluster, process, "q", "Insufficient nvidia.com/gpu")
        # a promise about links needs names
        linked = worker("linked", 2)
        linked["metadata"]["annotations"] = {keys.GPU_MIN_BANDWIDTH: "40"}
        await cluster.create(pods_path(), linked)
        await told(cluster, process, "linked", "lack free GPUs linked at 40 GB/s or more")
        # ours has no names either: only when both are gone are there names again
        await cluster.delete(f"{pods_path()}/silent")
        pods = await bound(cluster, process, "q")
        assert not written & set(pods["q"]["metadata"]["annotations"])
        await cluster.delete(f"{pods_path()}/q")
        await cluster.delete(f"{pods_path()}/p")
        pods = await bound(cluster, process, "linked")
        assert given(pods["linked"]) == ("n1", [0, 3], [0, 3])
