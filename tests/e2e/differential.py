# SPDX-License-Identifier: Apache-2.0
"""koordpy's filters against the real kube-scheduler: random clusters, one pod at a time, the same verdict and words.

`python -m tests.e2e.differential --pods 5000 --seed 1` tries many by hand, with `--claims` resource claims
(claim_differential.py); test_differential.py tries some in CI. The pods of a cluster come one after the other. Before
each one the cluster is read back from the API server, so both look at the same objects. What is compared: whether the
pod fits anywhere; kube-scheduler's node is one of the nodes koordpy finds feasible, and one of those it scores highest
when it is given kube-scheduler's own weights; where the pod fits nowhere, the sentence of the filters, word for word.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from koordpy.api.claim_objects import DeviceClass, ResourceClaim, ResourceSlice
from koordpy.api.objects import Namespace, Node, NodeAffinity, Pod, PriorityClass, Wire
from koordpy.api.quantity import units
from koordpy.api.storage_objects import SELECTED_NODE
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import (
    Filters,
    KoordpyConfiguration,
    NodeAffinityArgs,
    NodeResourcesFitArgs,
    Scores,
    UtilizationPoint,
)
from koordpy.config.configuration import NodeResourcesFitScore as FitScore
from koordpy.config.configuration import ResourceWeight as Weight
from koordpy.devices.family_registry import make_state
from koordpy.engine.client.api_resources import NAMESPACES as NAMESPACE
from koordpy.engine.client.api_resources import NODES, PODS, PRIORITY_CLASSES, STORAGE
from koordpy.explain.explanation import explain
from koordpy.feasibility.round_state import RoundState
from koordpy.planner.planning_round import plan_round
from tests.e2e import random_pods, random_volumes
from tests.e2e.assets import find_assets
from tests.e2e.client import Client, Refused, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.gang_api import kubernetes_version, minor_of
from tests.e2e.process import eventually
from tests.e2e.random_pods import CONFIGURED, NAMESPACES, NOMINEE_ASKS, PLAIN, SHAPED, Maker
from tests.e2e.random_volumes import CLAIMS, PROVISIONED, RESOURCE, VolumeMaker

PODS_A_CLUSTER = 25
Json = dict[str, Any]

ADDED = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [random_pods.ADDED_AFFINITY]}]
    }
}
SHAPE = [{"utilization": 10, "score": 0}, {"utilization": 60, "score": 10}, {"utilization": 100, "score": 3}]
UNBALANCED = {"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}}
"""koordpy leaves this score out, and its formula is that of 1.35 (kube-parity.md section 3)."""
PROFILES: list[Json] = [
    {"schedulerName": PLAIN, "plugins": UNBALANCED},
    {
        "schedulerName": CONFIGURED,
        "plugins": UNBALANCED,
        "pluginConfig": [
            {"name": "NodeAffinity", "args": {"addedAffinity": ADDED}},
            {
                "name": "NodeResourcesFit",
                "args": {
                    "ignoredResources": [random_pods.IGNORED_RESOURCE],
                    "scoringStrategy": {
                        "type": "MostAllocated",
                        "resources": [
                            {"name": "cpu", "weight": 1},
                            {"name": "memory", "weight": 2},
                            {"name": "nvidia.com/gpu", "weight": 5},
                        ],
                    },
                },
            },
        ],
    },
    {
        "schedulerName": SHAPED,
        "plugins": UNBALANCED,
        "pluginConfig": [
            {
                "name": "NodeResourcesFit",
                "args": {
                    "scoringStrategy": {
                        "type": "RequestedToCapacityRatio",
                        "resources": [
                            {"name": "cpu", "weight": 3},
                            {"name": "memory", "weight": 1},
                            {"name": "nvidia.com/gpu", "weight": 5},
                        ],
                        "requestedToCapacityRatio": {"shape": SHAPE},
                    },
                },
            }
        ],
    },
]
"""Of kube-scheduler."""
UNKNOWN_TO_IT = {"ScarceResourceAvoidance": 0}
"""Weights of the scores that kube-scheduler does not have."""
ITS_SCORES = Scores(
    weights=UNKNOWN_TO_IT,
    node_resources_fit=FitScore(strategy="LeastAllocated", resources=(Weight(name="cpu"), Weight(name="memory"))),
)
PACKED = Scores(
    weights=UNKNOWN_TO_IT,
    node_resources_fit=FitScore(
        strategy="MostAllocated",
        resources=(Weight(name="cpu"), Weight(name="memory", weight=2), Weight(name="nvidia.com/gpu", weight=5)),
    ),
)
CURVED = Scores(
    weights=UNKNOWN_TO_IT,
    node_resources_fit=FitScore(
        strategy="RequestedToCapacityRatio",
        resources=(Weight(name="cpu", weight=3), Weight(name="memory"), Weight(name="nvidia.com/gpu", weight=5)),
        shape=tuple(msgspec.convert(point, UtilizationPoint) for point in SHAPE),
    ),
)
CONFIGURATIONS = {
    PLAIN: KoordpyConfiguration(scores=ITS_SCORES),
    SHAPED: KoordpyConfiguration(scores=CURVED),
    CONFIGURED: KoordpyConfiguration(
        scores=PACKED,
        filters=Filters(
            node_affinity=NodeAffinityArgs(added_affinity=msgspec.convert(ADDED, NodeAffinity)),
            node_resources_fit=NodeResourcesFitArgs(ignored_resources=(random_pods.IGNORED_RESOURCE,)),
        ),
    ),
}
READ: dict[str, type[Wire]] = {
    NODES.path(): Node,
    PODS.path(): Pod,
    NAMESPACE.path(): Namespace,
    PRIORITY_CLASSES.path(): PriorityClass,
    **{resource.path(): kind for resource, kind in STORAGE.items()},
    f"{RESOURCE}/resourceclaims": ResourceClaim,
    f"{RESOURCE}/resourceslices": ResourceSlice,
    f"{RESOURCE}/deviceclasses": DeviceClass,
}
"""What koordpy is shown of the cluster."""


COMPARES_TAINTS_SINCE, DECLARES_FEATURES_SINCE, SUMS_RESIZES_SINCE = (1, 35), (1, 36), (1, 37)
"""The first versions of Kubernetes with operators Lt and Gt of tolerations, with features that nodes declare, and with
sums over containers as what a pod needs during a resize (docs/compatibility.md)."""
ROUNDS_SINCE = (1, 37)
"""The first version that rounds capacities to fractions. The gate is on by default only if no older version has to be
compatible (`--min-compatibility-version`)."""


@dataclass
class Outcome:
    """What was tried, and where the two differ."""

    tried: int = 0
    fitted: int = 0
    scored: int = 0
    """Pods whose node was compared with the highest totals."""
    given_up: int = 0
    """Pods that kube-scheduler gave up with an error of an expression; to koordpy the device does not match."""
    differences: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """Sentences that both said, with how many pods they were said of."""


async def prepare(api: Client) -> None:
    """What every cluster needs beside its nodes and pods."""
    await api.clear()
    await random_volumes.clear(api)
    for name, labels in NAMESPACES.items():
        with contextlib.suppress(Refused):
            await api.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    high = {"kind": "PriorityClass", "metadata": {"name": random_pods.PRIORITY_CLASS}, "value": 1000}
    with contextlib.suppress(Refused):
        await api.create(PRIORITY_CLASSES.path(), {**high, "preemptionPolicy": "Never"})
    heavy = {"kind": "RuntimeClass", "metadata": {"name": random_pods.RUNTIME_CLASS}, "handler": "heavy"}
    with contextlib.suppress(Refused):
        overhead = {"podFixed": random_pods.OVERHEAD}
        await api.create("/apis/node.k8s.io/v1/runtimeclasses", {**heavy, "overhead": overhead})
    await random_volumes.make_fixed(api)


async def compare(api: Client, maker: Maker, seed: int, *, pods: int, outcome: Outcome) -> None:
    """One random cluster and its pods. kube-scheduler must be running. seed: that of the maker, for names."""
    count = maker.rng.randint(3, 6)
    for i in range(count):
        labels, room, spec, images = maker.node_labels(), maker.allocatable(), maker.node_spec(), maker.images()
        status: Json = {"images": images}
        if features := maker.features():
            status["declaredFeatures"] = features
        await api.make_nodes(1, labels=lambda _, own=labels: own, allocatable=room, name=lambda _, at=i: f"n{at}")
        await api.patch(f"/api/v1/nodes/n{i}", {"spec": spec})
        await api.patch(f"/api/v1/nodes/n{i}/status", {"status": status})
    volumes = VolumeMaker(maker.rng, count)
    with_volumes = maker.chance(0.5)
    if with_volumes:
        await volumes.make(api)
    await asyncio.sleep(0.5)  # kube-scheduler's view of all this comes by watches of its own
    for number in range(pods):
        if maker.chance(0.06):
            await _nominate(api, maker, f"s{seed}-nominee{number}")
        manifest = maker.pod(f"s{seed}-p{number}")
        if with_volumes:
            volumes.give(manifest)
        before = await read_objects(api)
        made = await api.create(pods_path(manifest["metadata"]["namespace"]), manifest)
        placed = await _one(api, made, before, outcome)
        if provisioned := _provisioned(manifest):
            await volumes.renew(api, provisioned)
            await asyncio.sleep(0.1)
        if placed is not None:
            await _age(api, maker, placed)
    await api.clear()
    if with_volumes:
        await random_volumes.clear(api)


async def _nominate(api: Client, maker: Maker, name: str) -> None:
    """A pod that waits, with a nomination from outside to a node that has room for it: pods of its priority and below
    must leave it that."""
    state = make_state(scheduler_names=(PLAIN,))
    for obj in await read_objects(api):
        state.upsert(obj)
    snapshot = state.snapshot(0.0)
    asks = snapshot.vector({resource: units(resource, text) for resource, text in NOMINEE_ASKS.items()})
    room = snapshot.allocatable - snapshot.used
    for pod in (snapshot.pods[key] for key in snapshot.reservations):
        for column, amount in snapshot.vector(pod.requests):
            room[snapshot.index[pod.nominated_node], column] -= amount
    free = [
        node.name
        for node, left in zip(snapshot.nodes, room, strict=True)
        if all(left[column] >= amount for column, amount in asks)
    ]
    if not free:
        return
    node = maker.rng.choice(free)
    path = f"{pods_path()}/{name}"
    await api.create(pods_path(), maker.nominee(name))

    async def refused() -> bool:
        return condition(await api.get(path), "PodScheduled") is not None

    await eventually(refused, what=f"verdict on {name}", every_s=0.01)
    await api.patch(f"{path}/status", {"status": {"nominatedNodeName": node}})
    await asyncio.sleep(0.2)


async def _age(api: Client, maker: Maker, pod: Json) -> None:
    """What happens to pods once they are bound: some end, some stay terminating, some are resized."""
    path = f"{pods_path(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
    fate = maker.rng.random()
    if fate < 0.1:
        await api.patch(path, {"metadata": {"finalizers": ["example.com/held"]}})
        await api.delete(path)
    elif fate < 0.18:
        await api.delete(path)
    elif fate < 0.3:
        await api.patch(f"{path}/status", maker.resized(pod))
    elif fate < 0.35:
        await api.patch(f"{path}/status", {"status": {"phase": maker.rng.choice(["Succeeded", "Failed"])}})
    elif fate < 0.4:
        labels = maker.pod("relabelled")["metadata"]["labels"]
        await api.patch(path, {"metadata": {"labels": labels}})
    else:
        return
    await asyncio.sleep(0.1)


async def read_objects(api: Client, kinds: Mapping[str, type[Wire]] | None = None) -> list[Wire]:
    """The cluster as koordpy is shown it. kinds: path -> kind; None for READ."""
    wanted = READ if kinds is None else kinds
    lists = await asyncio.gather(*map(api.items, wanted))
    return [msgspec.convert(o, kind) for kind, found in zip(wanted.values(), lists, strict=True) for o in found]


def filters_words(message: str) -> str:
    """The sentence of the filters; what claims and preemption have to say comes after it."""
    return message.partition(". ")[0].removesuffix(".")


async def verdict_on(api: Client, made: Json) -> tuple[str, Json]:
    """(node, the pod): the node is empty when kube-scheduler found none.

    Nobody provisions volumes here: a claim that waits for one on a node says where its pod would be.
    """
    path = f"{pods_path(made['metadata']['namespace'])}/{made['metadata']['name']}"
    provisioned = _provisioned(made)

    async def decided() -> tuple[str, Json] | None:
        pod = await api.get(path)
        if pod["spec"].get("nodeName") or condition(pod, "PodScheduled"):
            return pod["spec"].get("nodeName", ""), pod
        chosen = next(filter(None, [await _selected(api, name) for name in sorted(provisioned)]), "")
        return (chosen, pod) if chosen else None

    return await eventually(decided, what=f"kube-scheduler's verdict on {path}", every_s=0.005)


def _provisioned(pod: Json) -> set[str]:
    """Claims of a pod that wait for somebody to make their volumes."""
    volumes = pod["spec"].get("volumes", [])
    return {v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v} & {*PROVISIONED}


async def _selected(api: Client, claim: str) -> str:
    found = (await api.get(f"{CLAIMS}/{claim}"))["metadata"].get("annotations", {})
    selected: str = found.get(SELECTED_NODE, "")
    return selected


async def _one(api: Client, made: Json, before: list[Wire], outcome: Outcome) -> Json | None:
    """The pod, once it is bound."""
    namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
    chosen, theirs = await verdict_on(api, made)
    state = make_state(scheduler_names=(PLAIN, CONFIGURED, SHAPED))
    for obj in (*before, msgspec.convert(made, Pod)):
        state.upsert(obj)
    key = f"{namespace}/{name}"
    configuration = CONFIGURATIONS[made["spec"]["schedulerName"]]
    ours = explain(state.snapshot(0.0), configuration, key)
    feasible = {node.node: node for node in ours.nodes if node.feasible}
    outcome.tried += 1
    if not theirs["spec"].get("nodeName"):
        await api.delete(f"{pods_path(namespace)}/{name}")
    if chosen:
        outcome.fitted += 1
        if chosen not in feasible:
            why = next((node.reasons for node in ours.nodes if node.node == chosen), ())
            outcome.differences.append(f"{key}: kube-scheduler took {chosen}, koordpy refuses it: {why}")
        elif not {"volumes", "resourceClaims", "resources"} & made["spec"].keys():
            # scores of volumes and devices are kube-scheduler's alone, and it forgets what a pod asks for as a whole
            outcome.scored += 1
            highest = max(node.total for node in feasible.values())
            if feasible[chosen].total < highest:
                scores = {node.node: (node.total, node.scores) for node in feasible.values()}
                outcome.differences.append(f"{key}: kube-scheduler prefers {chosen}; koordpy's scores: {scores}")
        return theirs if theirs["spec"].get("nodeName") else None
    verdict = condition(theirs, "PodScheduled") or {}
    if verdict["reason"] == "SchedulerError" and "CEL runtime error" in verdict["message"]:
        outcome.given_up += 1
        return None
    told = filters_words(verdict["message"])
    if feasible:
        outcome.differences.append(f"{key}: fits {sorted(feasible)} for koordpy; kube-scheduler: {told}")
        return None
    plan = plan_round(state.snapshot(0.0), configuration, only=frozenset([key]))
    said = filters_words(plan.pending[0].message)
    if said != told and _has_void_nomination(state.snapshot(0.0), configuration):
        outcome.given_up += 1
        return None
    if said != told:
        outcome.differences.append(f"{key}: words differ\n    kube-scheduler: {told}\n    koordpy:        {said}")
        return None
    said = said.replace(f'"{name}-scratch"', '"POD-scratch"')
    outcome.reasons.update(part.lstrip("0123456789 ") for part in said.partition(": ")[2].rstrip(".").split(", "))
    return None


def _has_void_nomination(snapshot: Snapshot, configuration: KoordpyConfiguration) -> bool:
    """Whether a pod is nominated to a node that it does not fit any more: kube-scheduler counts it there, koordpy does
    not (preemption.md 4)."""
    feasible = RoundState(Draft(snapshot), configuration).reservations.feasible
    return feasible.keys() != snapshot.reservations.keys()


def plane_of(assets: Path, folder: Path | None) -> ControlPlane:
    """A control plane as `run` needs it: kube-scheduler with PROFILES, and the controllers that bind volumes."""
    minor = minor_of(kubernetes_version(assets))
    gates = {"TaintTolerationComparisonOperators": COMPARES_TAINTS_SINCE, "DRAFractionalCapacityRange": ROUNDS_SINCE}
    return ControlPlane(
        assets,
        controller_manager=True,
        scheduler=True,
        scheduler_profiles=PROFILES,
        gates=[gate for gate, since in gates.items() if minor >= since],
        unlimited=True,
        folder=folder,
    )


async def run(plane: ControlPlane, *, pods: int, seed: int) -> Outcome:
    """Clusters of PODS_A_CLUSTER pods each from consecutive seeds until `pods` were tried."""
    outcome = Outcome()
    minor = minor_of(kubernetes_version(plane.assets))
    async with plane.client() as api:
        await prepare(api)
        while outcome.tried < pods:
            maker = Maker(
                seed,
                compares_taints=minor >= COMPARES_TAINTS_SINCE,
                declares_features=minor >= DECLARES_FEATURES_SINCE,
                sums_resizes=minor >= SUMS_RESIZES_SINCE,
            )
            await compare(api, maker, seed, pods=min(PODS_A_CLUSTER, pods - outcome.tried), outcome=outcome)
            seed += 1
    return outcome


def main() -> int:
    """Starts a control plane of its own, compares, prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--claims", action="store_true", help="claims and devices instead of the other filters")
    args = parser.parse_args()
    from tests.e2e import claim_differential

    chosen = claim_differential.run if args.claims else run
    began = time.monotonic()
    with plane_of(find_assets(), args.folder) as plane:
        outcome = asyncio.run(chosen(plane, pods=args.pods, seed=args.seed))
    for difference in outcome.differences:
        print(difference)
    for reason, number in sorted(outcome.reasons.items(), key=lambda item: -item[1]):
        print(f"{number:6}  {reason}")
    seconds = time.monotonic() - began
    compared = outcome.tried - outcome.given_up
    agreed = compared - len(outcome.differences)
    told = f"{outcome.fitted} fitted, the totals of {outcome.scored} compared"
    print(f"{agreed} of {compared} pods agreed ({told}) in {seconds:.0f} s")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
