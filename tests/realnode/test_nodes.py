# SPDX-License-Identifier: Apache-2.0
"""Nodes as kubelets report them, through what happens to nodes: cordons, death and return, programs that start anew."""

from __future__ import annotations

import asyncio
import signal

from tests.e2e.client import condition
from tests.realnode.images import BUSYBOX
from tests.realnode.node import RealNode
from tests.realnode.work import Work, container, pod, pod_group, pod_spec

NODES = "/api/v1/nodes"


async def test_a_cordoned_node_with_an_image_without_a_name_takes_nothing(work: Work) -> None:
    node = work.cluster.nodes["n3"]
    ctr = ["ctr", "--namespace", "k8s.io", "images"]
    # another image than those that pods use, whose name then goes: its record by digest stays
    node.call(*ctr, "tag", BUSYBOX, "registry.local/unnamed:1")
    node.call(*ctr, "rm", BUSYBOX, "registry.local/unnamed:1")

    async def reported() -> bool:
        images = (await work.api.get(f"{NODES}/n3"))["status"]["images"]
        return any(not image.get("names") for image in images)

    try:
        await work.until("the kubelet reports an image without a name", reported)
        await work.api.patch(f"{NODES}/n3", {"spec": {"unschedulable": True}})
        work.apply(pod("pinned", pod_spec(container(), on="n3")))
        said = await work.waits("pinned", "0/3 nodes are available", "1 node(s) were unschedulable")
        assert "2 node(s) didn't match Pod's node affinity/selector" in said
        # and by one that starts now
        work.koordpy.stop()
        work.koordpy.start()
        work.apply(pod("later", pod_spec(container(), on="n3")))
        await work.waits("later", "0/3 nodes are available", "1 node(s) were unschedulable")
    finally:
        for archive in work.cluster.archives:
            node.import_image(archive)
        await work.api.patch(f"{NODES}/n3", {"spec": {"unschedulable": None}})
    await work.run(["pinned", "later"])


async def test_a_node_that_dies_takes_nothing_until_it_is_back(work: Work) -> None:
    node = work.cluster.nodes["n3"]
    node.kill()

    async def known() -> bool:
        ready = condition(await work.api.get(f"{NODES}/n3"), "Ready")
        return ready is not None and ready["status"] == "Unknown"

    try:
        await work.until("its death is noticed", known)
        work.apply(pod_group("gang", 3), *(pod(f"gang-{n}", pod_spec(container()), gang="gang") for n in range(3)))
        seen = await work.run([f"gang-{n}" for n in range(3)])
        assert not [one for one in seen.values() if one["spec"]["nodeName"] == "n3"]
        work.apply(pod("pinned", pod_spec(container(), on="n3")))
        await work.waits("pinned", "0/3 nodes are available", "1 node(s) had untolerated taint")
    finally:
        await asyncio.to_thread(work.cluster.boot, node)
    await work.run(["pinned"])


def restart_all(nodes: dict[str, RealNode]) -> None:
    """Containerd ends as by a crash, the kubelets as they are told."""
    for node in nodes.values():
        assert node.kubelet is not None and node.containerd is not None
        node.restart(node.containerd, with_=signal.SIGKILL)
        # a kubelet that starts without it ends, and here is no systemd to start it again
        node.containerd_ready()
        node.restart(node.kubelet)


async def test_pods_run_that_were_bound_while_kubelets_and_containerd_started_anew(work: Work) -> None:
    gangs = {f"gang-{n}": [f"gang-{n}-{m}" for m in range(6)] for n in range(5)}
    members = [name for names in gangs.values() for name in names]
    restarting = asyncio.create_task(asyncio.to_thread(restart_all, work.cluster.nodes))
    for gang, names in gangs.items():
        work.apply(pod_group(gang, 6), *(pod(name, pod_spec(container()), gang=gang) for name in names))
        await asyncio.sleep(0.5)
    await restarting
    await work.run(members, within_s=180)
