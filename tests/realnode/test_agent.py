# SPDX-License-Identifier: Apache-2.0
"""The device plugin under real kubelets: who is given which GPU is asked of the containers themselves."""

from __future__ import annotations

import json

import pytest

from koordpy.api.keys import GPU_CUDA_VISIBLE_PREFIX as CUDA
from koordpy.api.keys import GPU_NVIDIA_VISIBLE as VISIBLE
from tests.loudly import skip_loudly
from tests.realnode.gpus import agree, gpu_nodes, gpu_pod, links, seen_inside
from tests.realnode.needs import containerd_major
from tests.realnode.work import Work

EIGHT = {"gpus": 8, "links": links((0, 1, "NV4"), (3, 5, "NV4"), (6, 7, "NV8"), gpus=8)}


async def test_a_pair_gets_the_fastest_link_and_the_kubelet_hands_out_what_was_chosen(work: Work) -> None:
    async with gpu_nodes(work, {"n1": EIGHT}) as nodes:
        work.apply(gpu_pod("pair", 2))
        await agree(work, nodes, ["pair"])
        assert seen_inside(work, "pair", "c0") == ["GPU-6", "GPU-7"]
        work.apply(gpu_pod("next", 2), gpu_pod("single", 1))
        await agree(work, nodes, ["pair", "next", "single"])


async def test_running_pods_keep_their_gpus_when_kubelet_and_agent_start_anew(work: Work) -> None:
    async with gpu_nodes(work, {"n1": EIGHT}) as nodes:
        (node,) = nodes
        work.apply(gpu_pod("before", 2, 1))
        await agree(work, nodes, ["before"])
        await node.restart_kubelet()
        await node.offers(8)
        work.apply(gpu_pod("kubelet", 2))
        await agree(work, nodes, ["before", "kubelet"])
        await node.restart_agent()
        await node.offers(8)
        work.apply(gpu_pod("agent", 1))
        await agree(work, nodes, ["before", "kubelet", "agent"])


async def test_a_sick_gpu_is_given_to_nobody(work: Work) -> None:
    machine = {**EIGHT, "faults": [{"poll": 8, "uuid": "GPU-7", "xid": 79}]}
    async with gpu_nodes(work, {"n1": machine}) as nodes:
        (node,) = nodes
        await node.offers(7)
        device = await node.device()
        assert [one["id"] for one in device["spec"]["devices"] if not one["health"]] == ["GPU-7"]
        work.apply(gpu_pod("rest", 7), gpu_pod("whole", 8))
        await agree(work, nodes, ["rest"])
        assert "GPU-7" not in seen_inside(work, "rest", "c0")
        await work.waits("whole", "Insufficient nvidia.com/gpu")


async def test_init_containers_and_sidecars_of_pods_at_once_have_what_is_written_on_them(work: Work) -> None:
    async with gpu_nodes(work, {"n1": EIGHT}) as nodes:
        (node,) = nodes
        shapes = {"a": (2, (2,), 1), "b": (1, (1,), 1), "c": (1, (2,), 0), "d": (1, (), 0)}
        work.apply(*(gpu_pod(name, count, inits=inits, sidecar=side) for name, (count, inits, side) in shapes.items()))
        pods = await work.run(list(shapes), within_s=120)
        booked = node.booked()
        for name, (_, inits, side) in shapes.items():
            wanted = {"c0": "0", **{f"i{n}": f"init-{n}" for n in range(len(inits))}}
            wanted |= {"side": f"init-{len(inits)}"} if side else {}
            notes = pods[name]["metadata"]["annotations"]
            written = {one: sorted(notes[f"{CUDA}{place}"].split(",")) for one, place in wanted.items()}
            assert {one: seen_inside(work, name, one) for one in wanted} == written
            listed = {gpu for (pod, _), gpus in booked.items() if pod == name for gpu in gpus}
            assert listed <= set(notes[VISIBLE].split(","))
        assert not node.held_twice()


async def test_a_container_has_the_device_nodes_of_its_gpus_by_cdi(work: Work, request: pytest.FixtureRequest) -> None:
    if containerd_major() < 2:
        skip_loudly(request, "CDI on real nodes", "it needs containerd 2: make e2e-realnode CONTAINERD=2")
    devices = [
        {"name": f"GPU-{n}", "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}", "hostPath": "/dev/null"}]}}
        for n in range(8)
    ]
    spec = work.cluster.nodes["n1"].root / "etc/cdi/gpus.json"
    spec.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
    async with gpu_nodes(work, {"n1": EIGHT}, "--cdi") as nodes:
        work.apply(gpu_pod("pair", 2))
        await agree(work, nodes, ["pair"])
        seen = work.inside("pair", "sh", "-c", "ls /dev | grep nvidia", container="c0")
        assert seen.split() == ["nvidia6", "nvidia7"]
