# SPDX-License-Identifier: Apache-2.0
"""Nodes under running gangs vanish at once, and the pods that were on them are made again, while plain pods wait for
the free nodes: how soon each gang is whole, or its missing members are told why not, and in which block they end."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.live.cluster import PODS, SIGS_GROUPS, WAVE, LiveCluster, node_name, topology_of
from bench.live.schedulers import Koordpy, Scheduler, accelerated, running
from bench.live.usage import usage_of
from bench.live.watching import PodWatch, WatchedPod
from bench.yardstick.figures import Run
from bench.yardstick.hopeless import started
from koordpy.api import keys
from tests.e2e.client import MERGE, Refused

TIMEOUT_S = 180.0
GPUS = 8
BLOCK = "topology.block"
TOPOLOGIES = "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies"
CONFLICT = 409
DICE = 7
"""Seed by which the nodes are chosen: the same ones for each scheduler."""


async def prepare(cluster: LiveCluster) -> None:
    """The topology of the blocks, which koordpy's gangs stay in."""
    layers = [
        {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": keys.CLUSTER_LAYER},
        {"layerName": keys.NODE_LAYER, "parentTopologyLayer": "blockLayer"},
    ]
    meta = {"name": keys.TOPOLOGY_OBJECT}
    body = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology", "metadata": meta}
    try:
        await cluster.api.create(TOPOLOGIES, {**body, "spec": {"hierarchy": layers}})
    except Refused as refused:
        if refused.status != CONFLICT:
            raise


async def play(cluster: LiveCluster, scheduler: Scheduler, *, gangs: int, size: int, lost: int) -> Run:
    """The clock runs from the first node that vanishes. Fillers are as many as there are free nodes."""
    wave, fillers = cluster.name("repair-"), cluster.name("filler-")
    async with (
        running(scheduler, cluster) as process,
        PodWatch(cluster.api, selector=f"{WAVE} in ({wave},{fillers})").running() as watch,
    ):
        await started(process.pid)
        names = [f"{wave}-{i}" for i in range(gangs)]
        uids: set[str] = set()
        for name in names:
            uids |= await scheduler.gang(cluster, name, size, gpus=GPUS, wave=wave)
            if isinstance(scheduler, Koordpy):
                await cluster.api.patch(f"{SIGS_GROUPS}/{name}", {"metadata": {"annotations": _must()}}, content=MERGE)
        await watch.until(lambda: uids <= watch.bound_at.keys() or not process.running, within_s=TIMEOUT_S)
        process.must_run()
        if not uids <= watch.bound_at.keys():
            await cluster.clean()
            return Run({}, usage_of(process.pid), ["not all gangs were bound before the nodes vanished"])
        before = _places(watch, uids)
        chosen = random.Random(DICE).sample(range(cluster.nodes), lost)
        gone = [pod for pod, node in before.items() if node in {node_name(i) for i in chosen}]
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await cluster.api.each(chosen, lambda i: cluster.api.delete(f"/api/v1/nodes/{node_name(i)}"))
        await cluster.pods(
            cluster.nodes - len(uids),
            fillers,
            scheduler=scheduler.scheduler_name,
            requests=accelerated(GPUS),
        )
        again = await _make_again(cluster, gone)
        await watch.until(
            lambda: again <= watch.bound_at.keys() | watch.told_at.keys() or not process.running, within_s=TIMEOUT_S
        )
        process.must_run()
        whole = time.monotonic() - began
        after = usage_of(process.pid)
        await started(process.pid)
        figures = _judged(watch, before, gone, again, wave=wave)
    await cluster.clean()
    await _restore(cluster, chosen)
    told = f"{len(gone)} members lost, {figures.pop('bound'):g} bound again"
    if not again <= watch.bound_at.keys() | watch.told_at.keys():
        return Run(figures, after, [told, f"not all were bound or told in {TIMEOUT_S:g} s"])
    return Run({**figures, "whole_s": whole}, after, [told])


def _must() -> dict[str, str]:
    gather = {"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]}
    return {keys.GANG_TOPOLOGY: json.dumps(gather)}


def _places(watch: PodWatch, uids: set[str]) -> dict[str, str]:
    """Name of a pod -> its node."""
    return {watch.pods[uid].metadata.name: watch.pods[uid].spec.node_name for uid in uids}


async def _make_again(cluster: LiveCluster, names: Sequence[str]) -> set[str]:
    """What a controller does: the pods of the lost nodes go, and the same pods are created."""
    uids: set[str] = set()

    async def make(name: str) -> None:
        old = await cluster.api.get(f"{PODS}/{name}")
        await cluster.api.delete(f"{PODS}/{name}")
        meta = {key: old["metadata"][key] for key in ("name", "labels") if key in old["metadata"]}
        spec: dict[str, Any] = {key: value for key, value in old["spec"].items() if key != "nodeName"}
        made = await cluster.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        uids.add(made["metadata"]["uid"])

    await cluster.api.each(names, make)
    return uids


def _judged(
    watch: PodWatch, before: dict[str, str], gone: Sequence[str], again: set[str], *, wave: str
) -> dict[str, float | None]:
    """Figures: gangs with a new member outside of their block although its block had a node for it, fillers that have
    such a node, and members bound again."""
    block = lambda node: topology_of(int(node.removeprefix("n")))[BLOCK]  # noqa: E731
    home = {name: block(node) for name, node in before.items()}
    gang = lambda name: name.rpartition("-")[0]  # noqa: E731
    homes: dict[str, set[str]] = {}
    for name, node in before.items():
        if name not in gone:
            homes.setdefault(gang(name), set()).add(block(node))
    living: list[WatchedPod] = [watch.pods[uid] for uid in watch.pods if watch.pods[uid].spec.node_name]
    fillers = Counter(block(pod.spec.node_name) for pod in living if not pod.metadata.name.startswith(f"{wave}-"))
    left, waiting = set[str](), Counter[str]()
    bound = 0
    for uid in again:
        pod = watch.pods[uid]
        own = homes.get(gang(pod.metadata.name), {home[pod.metadata.name]})
        if not pod.spec.node_name:
            waiting[next(iter(own))] += 1
            continue
        bound += 1
        if block(pod.spec.node_name) not in own and any(fillers[one] for one in own):
            left.add(gang(pod.metadata.name))
    on_seats = sum(min(number, fillers[where]) for where, number in waiting.items())
    return {"left": float(len(left)), "fillers": float(on_seats), "bound": float(bound)}


async def _restore(cluster: LiveCluster, lost: Sequence[int]) -> None:
    """Makes the lost nodes again."""
    await cluster.api.make_nodes(len(lost), labels=lambda i: topology_of(lost[i]), name=lambda i: node_name(lost[i]))
