# SPDX-License-Identifier: Apache-2.0
"""A nearly full cluster with a queue of gangs that need victims: what a pod that fits waits for the searches of others.

Units of several sizes and priorities run; units like them come and wait, some of two shapes, some gathered. Before and
after that single pods come, one after the other, each for a free node that nobody else may use.
"""

from __future__ import annotations

import asyncio
import json
import random
import time

from bench.live.cluster import PLAIN, PODS, PRIORITY_CLASSES, SIGS_GROUPS, WAVE, LiveCluster, node_name
from bench.live.schedulers import Koordpy, Scheduler, running
from bench.live.usage import usage_of
from bench.live.watching import PodWatch
from bench.yardstick.figures import Run
from bench.yardstick.hopeless import started
from koordpy.api.keys import GANG_TOPOLOGY, LABEL_POD_GROUP
from tests.e2e.client import Json, Refused

CALM, AFTER = 8, 20
"""Single pods before the queue comes, and after."""
EVERY_S = 1.5
WITHIN_S = 30.0
TOLD_WITHIN_S = 60.0
FULL = 0.95
GPU = "nvidia.com/gpu"
PRIORITIES = {f"bench-{value}": value for value in (1, 100, 1000)}
APART = "bench/apart"
NODES = "/api/v1/nodes"
_SIZES = ((1, 8), (4, 8), (8, 4), (8, 8), (16, 1), (16, 8))
"""(pods, GPUs each)."""
_CONFLICT = 409


async def prepare(cluster: LiveCluster) -> None:
    """PriorityClasses and the tree of the network."""
    layers = [("spineLayer", "topology.spine", "ClusterTopologyLayer"), ("blockLayer", "topology.block", "spineLayer")]
    hierarchy = [{"layerName": name, "labelKey": key, "parentTopologyLayer": up} for name, key, up in layers]
    group = "scheduling.koordinator.sh/v1alpha1"
    tree = {"apiVersion": group, "kind": "ClusterNetworkTopology", "metadata": {"name": "default"}}
    await _make(cluster, f"/apis/{group}/clusternetworktopologies", {**tree, "spec": {"hierarchy": hierarchy}})
    for name, value in PRIORITIES.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await _make(cluster, PRIORITY_CLASSES, {**body, "value": value})


async def _make(cluster: LiveCluster, path: str, body: Json) -> None:
    try:
        await cluster.api.create(path, body)
    except Refused as refused:
        if refused.status != _CONFLICT:
            raise


async def _part(cluster: LiveCluster, *, apart: bool) -> None:
    """Taints the last nodes, for the single pods, or makes them as they were."""
    taints = [{"key": APART, "effect": "NoSchedule"}] if apart else None
    last = range(cluster.nodes - CALM - AFTER, cluster.nodes)
    await cluster.api.each(last, lambda i: cluster.api.patch(f"{NODES}/{node_name(i)}", {"spec": {"taints": taints}}))


async def play(cluster: LiveCluster, scheduler: Scheduler, *, units: int) -> Run:
    """The latency of a single pod runs from its creation to its Binding."""
    chance = random.Random(units)
    await _part(cluster, apart=True)
    await _fill(cluster, chance)
    single, queue = cluster.name("single-"), cluster.name("queue-")
    async with (
        running(scheduler, cluster) as process,
        PodWatch(cluster.api, selector=f"{WAVE} in ({single},{queue})").running() as watch,
    ):
        await started(process.pid)
        calm = await _singles(cluster, scheduler, watch, single, range(CALM))
        began = time.monotonic()
        uids: set[str] = set()
        for number in range(units):
            uids |= await _unit(cluster, scheduler, chance, f"{queue}-{number}", queue)
        created = time.monotonic()
        after = await _singles(cluster, scheduler, watch, single, range(CALM, CALM + AFTER))
        answered = await watch.until(
            lambda: uids <= watch.bound_at.keys() | watch.told_at.keys(), within_s=TOLD_WITHIN_S
        )
        process.must_run()
        usage = usage_of(process.pid)
    known = {**watch.told_at, **watch.bound_at}
    await cluster.clean()
    await _part(cluster, apart=False)
    notes = [f"calm {max(calm):.3f} s, {units} units came in {created - began:.1f} s"]
    figures = {"worst_s": max(after), "ratio": max(after) / max(calm), "cpu_s": usage.cpu_s}
    if not answered:
        return Run(figures, usage, [*notes, f"{len(uids - known.keys())} of {len(uids)} not answered"])
    return Run({**figures, "answered_s": max(known[uid] for uid in uids) - created}, usage, notes)


async def _fill(cluster: LiveCluster, chance: random.Random) -> None:
    """Units of pods that run beside one another, until the shared nodes are as full as they are to be."""
    nodes = cluster.nodes - CALM - AFTER
    free = dict.fromkeys(range(nodes), 8)
    left, number = int(nodes * 8 * FULL), 0
    while left > 0:
        pods, gpus = chance.choice(_SIZES)
        start = chance.randrange(nodes)
        places: list[int] = []
        for k in range(nodes):
            at = (start + k) % nodes
            while free[at] >= gpus and len(places) < pods:
                free[at] -= gpus
                places.append(at)
        left -= max(1, gpus * len(places))
        if places:
            gang, number = f"running-{number}", number + 1
            if len(places) > 1:
                await _group(cluster, gang, len(places), {})
            await _run(cluster, gang, places, gpus, chance.choice(list(PRIORITIES)))


async def _run(cluster: LiveCluster, name: str, places: list[int], gpus: int, priority: str) -> None:
    await cluster.pods(
        len(places),
        name,
        scheduler=Koordpy().scheduler_name,
        requests={**PLAIN, GPU: str(gpus)},
        labels={LABEL_POD_GROUP: name} if len(places) > 1 else {},
        spec=lambda i: {"nodeName": node_name(places[i]), "priorityClassName": priority},
    )
    status = {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}
    await cluster.api.each(range(len(places)), lambda i: cluster.api.patch(f"{PODS}/{name}-{i}/status", status))


async def _unit(cluster: LiveCluster, scheduler: Scheduler, chance: random.Random, name: str, wave: str) -> set[str]:
    """One waiting unit; for a scheduler without gangs its pods alone."""
    shapes = [chance.choice(_SIZES)]
    if chance.random() < 1 / 3:
        shapes.append((max(1, shapes[0][0] // 2), chance.choice([g for g in (1, 2, 4, 8) if g != shapes[0][1]])))
    layer, how = chance.choice(("blockLayer", "spineLayer")), chance.choice(("PreferGather", "MustGather"))
    rules = [{"layer": layer, "strategy": how}] if chance.random() < 0.6 else []
    ours = isinstance(scheduler, Koordpy)
    if ours:
        wish = {GANG_TOPOLOGY: json.dumps({"gatherStrategy": rules})} if rules else {}
        await _group(cluster, name, sum(pods for pods, _ in shapes), wish)
    priority = chance.choice(list(PRIORITIES))
    uids: set[str] = set()
    for number, (pods, gpus) in enumerate(shapes):
        uids |= await cluster.pods(
            pods,
            f"{name}-{number}",
            wave=wave,
            scheduler=scheduler.scheduler_name,
            requests={**PLAIN, GPU: str(gpus)},
            labels={LABEL_POD_GROUP: name} if ours else {},
            spec={"priorityClassName": priority},
        )
    return uids


async def _group(cluster: LiveCluster, name: str, members: int, notes: dict[str, str]) -> None:
    meta = {"name": name, "annotations": notes}
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
    await cluster.api.create(SIGS_GROUPS, {**group, "spec": {"minMember": members}})


async def _singles(
    cluster: LiveCluster, scheduler: Scheduler, watch: PodWatch, wave: str, numbers: range
) -> list[float]:
    """Seconds from creation to Binding of single pods, each for a node apart; WITHIN_S for one that was not bound."""
    found = []
    for number in numbers:
        at = node_name(cluster.nodes - CALM - AFTER + number)
        began = time.monotonic()
        (uid,) = await cluster.pods(
            1,
            f"{wave}-{number}",
            wave=wave,
            scheduler=scheduler.scheduler_name,
            requests={**PLAIN, GPU: "1"},
            spec={
                "nodeSelector": {"kubernetes.io/hostname": at},
                "tolerations": [{"key": APART, "operator": "Exists"}],
                "priorityClassName": min(PRIORITIES, key=lambda name: PRIORITIES[name]),
            },
        )
        await watch.until(lambda uid=uid: uid in watch.bound_at, within_s=WITHIN_S)  # type: ignore[misc]
        found.append(watch.bound_at.get(uid, began + WITHIN_S) - began)
        await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))
    return found
