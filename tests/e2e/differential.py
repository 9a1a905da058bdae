"""koordpy's filters against the real kube-scheduler: random clusters, one pod at a time, the same verdict and words.

`python -m tests.e2e.differential --pods 5000 --seed 1` tries many by hand; test_differential.py tries some in CI. The
pods of a cluster come one after the other. Before each one the cluster is read back from the API server, so both look
at the same objects. What is compared: whether the pod fits anywhere; kube-scheduler's node is one of the nodes koordpy
finds feasible; where it fits nowhere, the sentence of the filters, word for word.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from koordpy.api.objects import Node, Pod
from koordpy.cluster.state import ClusterState
from koordpy.planning.explain import explain
from koordpy.planning.round import plan_round
from tests.e2e.assets import find_assets
from tests.e2e.client import Client, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually

SCHEDULER = "default-scheduler"
PODS_A_CLUSTER = 25
Json = dict[str, Any]

ZONES = ("a", "b", "c")
APPS = ("web", "db", "job")
TIERS = ("1", "5", "10", "x")
TAINTS = [
    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "cpu", "effect": "NoExecute"},
    {"key": "soft", "value": "yes", "effect": "PreferNoSchedule"},
]


@dataclass
class Outcome:
    """What was tried, and where the two differ."""

    tried: int = 0
    fitted: int = 0
    differences: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """Sentences that both said, with how many pods they were said of."""


class Maker:
    """Random nodes and pods, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def node_labels(self) -> dict[str, str]:
        labels = {"tier": self.rng.choice(TIERS)}
        if self.chance(0.85):
            labels["zone"] = self.rng.choice(ZONES)
        if self.chance(0.3):
            labels["disk"] = "ssd"
        return labels

    def allocatable(self) -> dict[str, str]:
        room = {"cpu": self.rng.choice(["1", "2", "4"]), "memory": self.rng.choice(["1Gi", "4Gi"])}
        room["pods"] = self.rng.choice(["2", "6", "110"])
        if self.chance(0.4):
            room["nvidia.com/gpu"] = self.rng.choice(["1", "4"])
        return room

    def node_spec(self) -> Json:
        taints = [taint for taint in TAINTS if self.chance(0.15)]
        return {"taints": taints or None, "unschedulable": self.chance(0.08)}

    def pod(self, name: str) -> Json:
        labels = {"app": self.rng.choice(APPS)}
        spec: Json = {
            "schedulerName": SCHEDULER,
            "terminationGracePeriodSeconds": 0,
            "containers": [self._container("main")],
        }
        if self.chance(0.2):
            spec["initContainers"] = [
                self._container(f"init-{i}", sidecar=self.chance(0.4)) for i in range(self.rng.randint(1, 3))
            ]
        if self.chance(0.25):
            spec["tolerations"] = [self._toleration()]
        if self.chance(0.15):
            spec["nodeSelector"] = {"zone": self.rng.choice(ZONES)}
        affinity: Json = {}
        if self.chance(0.25):
            affinity["nodeAffinity"] = self._node_affinity()
        if self.chance(0.2):
            affinity["podAffinity"] = self._pod_affinity()
        if self.chance(0.2):
            affinity["podAntiAffinity"] = self._pod_affinity()
        if affinity:
            spec["affinity"] = affinity
        if self.chance(0.25):
            spec["topologySpreadConstraints"] = [self._spread()]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}

    def _container(self, name: str, *, sidecar: bool = False) -> Json:
        requests = {"cpu": self.rng.choice(["100m", "500m", "1", "3"])}
        if self.chance(0.5):
            requests["memory"] = self.rng.choice(["64Mi", "1Gi", "3Gi"])
        limits = {"nvidia.com/gpu": self.rng.choice(["1", "2"])} if self.chance(0.15) else {}
        made: Json = {
            "name": name,
            "image": "example/x:1",
            "resources": {"requests": {**requests, **limits}, "limits": limits},
        }
        if sidecar:
            made["restartPolicy"] = "Always"
        elif name == "main" and self.chance(0.2):
            port: Json = {"containerPort": 80, "hostPort": self.rng.choice([8080, 9090])}
            if self.chance(0.4):
                port["hostIP"] = self.rng.choice(["127.0.0.1", "10.0.0.1"])
            if self.chance(0.3):
                port["protocol"] = "UDP"
            made["ports"] = [port]
        return made

    def _toleration(self) -> Json:
        taint = self.rng.choice(TAINTS)
        kind = self.rng.random()
        if kind < 0.3:
            return {"operator": "Exists"}
        if kind < 0.6:
            return {
                "key": taint["key"],
                "operator": "Exists",
                "effect": self.rng.choice([taint["effect"], "NoExecute"]),
            }
        return {"key": taint["key"], "value": self.rng.choice([taint["value"], "other"])}

    def _expression(self) -> Json:
        operator = self.rng.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        key = "tier" if operator in ("Gt", "Lt") else self.rng.choice(["zone", "disk", "tier"])
        values = {
            "In": self.rng.sample(["a", "b", "ssd", "5"], 2),
            "NotIn": self.rng.sample(["a", "b", "ssd", "5"], 2),
            "Gt": [self.rng.choice(["3", "7"])],
            "Lt": [self.rng.choice(["3", "7"])],
        }.get(operator, [])
        return {"key": key, "operator": operator, **({"values": values} if values else {})}

    def _node_affinity(self) -> Json:
        terms: list[Json] = []
        for _ in range(self.rng.randint(1, 2)):
            term: Json = {}
            if self.chance(0.8):
                term["matchExpressions"] = [self._expression() for _ in range(self.rng.randint(1, 2))]
            if self.chance(0.25):
                operator = self.rng.choice(["In", "In", "NotIn"])
                term["matchFields"] = [
                    {"key": "metadata.name", "operator": operator, "values": [f"n{self.rng.randint(0, 5)}"]}
                ]
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    def _pod_affinity(self) -> Json:
        terms: list[Json] = []
        for _ in range(self.rng.choice([1, 1, 2])):
            term: Json = {"topologyKey": self.rng.choice(["zone", "kubernetes.io/hostname"])}
            if self.chance(0.9):
                term["labelSelector"] = (
                    {"matchLabels": {"app": self.rng.choice(APPS)}}
                    if self.chance(0.7)
                    else {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [self.rng.choice(APPS)]}]}
                )
            if self.chance(0.2):
                term["namespaceSelector"] = {}
            elif self.chance(0.1):
                term["namespaces"] = ["kube-system"]
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": terms}

    def _spread(self) -> Json:
        made: Json = {
            "maxSkew": self.rng.choice([1, 1, 2]),
            "topologyKey": self.rng.choice(["zone", "kubernetes.io/hostname"]),
            "whenUnsatisfiable": self.rng.choice(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
        }
        if self.chance(0.9):
            made["labelSelector"] = {"matchLabels": {"app": self.rng.choice(APPS)}}
        if self.chance(0.3):
            made["nodeTaintsPolicy"] = self.rng.choice(["Honor", "Ignore"])
        if self.chance(0.3):
            made["nodeAffinityPolicy"] = self.rng.choice(["Honor", "Ignore"])
        if made["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.3):
            made["minDomains"] = self.rng.choice([1, 3, 4])
        if "labelSelector" in made and self.chance(0.2):
            made["matchLabelKeys"] = ["app"] if "app" not in made["labelSelector"]["matchLabels"] else ["version"]
        return made


async def compare(api: Client, seed: int, *, pods: int, outcome: Outcome) -> None:
    """One random cluster and its pods. kube-scheduler must be running."""
    maker = Maker(seed)
    count = maker.rng.randint(3, 6)
    specs = [(maker.node_labels(), maker.allocatable(), maker.node_spec()) for _ in range(count)]
    for i, (labels, room, spec) in enumerate(specs):
        await api.make_nodes(1, labels=lambda _, own=labels: own, allocatable=room, name=lambda _, at=i: f"n{at}")
        await api.patch(f"/api/v1/nodes/n{i}", {"spec": spec})
    nodes = [msgspec.convert(n, Node) for n in await api.items("/api/v1/nodes")]
    await asyncio.sleep(0.5)  # kube-scheduler's view of the nodes comes by watches of its own
    for number in range(pods):
        before = await api.items(pods_path())
        made = await api.create(pods_path(), maker.pod(f"s{seed}-p{number}"))
        await _one(api, made, nodes, before, outcome)
    await api.clear()


def _filters_words(message: str) -> str:
    """The sentence of the filters; what claims and preemption have to say comes after it."""
    return message.partition(". ")[0].removesuffix(".")


async def _one(api: Client, made: Json, nodes: list[Node], before: list[Json], outcome: Outcome) -> None:
    path = f"{pods_path()}/{made['metadata']['name']}"

    async def decided() -> Json | None:
        pod = await api.get(path)
        return pod if pod["spec"].get("nodeName") or condition(pod, "PodScheduled") else None

    theirs = await eventually(decided, what=f"kube-scheduler's verdict on {path}", within_s=30, every_s=0.005)
    state = ClusterState(scheduler_names=(SCHEDULER,))
    for node in nodes:
        state.upsert(node)
    for pod in before:
        state.upsert(msgspec.convert(pod, Pod))
    state.upsert(msgspec.convert(made, Pod))
    key = f"default/{made['metadata']['name']}"
    ours = explain(state.snapshot(0.0), None, key)
    feasible = {node.node for node in ours.nodes if node.feasible}
    outcome.tried += 1
    chosen = theirs["spec"].get("nodeName")
    if chosen:
        outcome.fitted += 1
        if chosen not in feasible:
            why = next((node.reasons for node in ours.nodes if node.node == chosen), ())
            outcome.differences.append(f"{key}: kube-scheduler took {chosen}, koordpy refuses it: {why}")
        return
    told = _filters_words((condition(theirs, "PodScheduled") or {}).get("message", ""))
    await api.delete(path)
    if feasible:
        outcome.differences.append(f"{key}: fits {sorted(feasible)} for koordpy; kube-scheduler: {told}")
        return
    plan = plan_round(state.snapshot(0.0), only=frozenset([key]))
    said = _filters_words(plan.pending[0].message)
    if said != told:
        outcome.differences.append(f"{key}: words differ\n    kube-scheduler: {told}\n    koordpy:        {said}")
        return
    outcome.reasons.update(part.lstrip("0123456789 ") for part in said.partition(": ")[2].rstrip(".").split(", "))


async def run(plane: ControlPlane, *, pods: int, seed: int) -> Outcome:
    """Clusters of PODS_A_CLUSTER pods each from consecutive seeds until `pods` were tried."""
    outcome = Outcome()
    async with plane.client() as api:
        await api.clear()
        while outcome.tried < pods:
            await compare(api, seed, pods=min(PODS_A_CLUSTER, pods - outcome.tried), outcome=outcome)
            seed += 1
    return outcome


def main() -> int:
    """Starts a control plane of its own, compares, prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    began = time.monotonic()
    with ControlPlane(find_assets(), scheduler=True, folder=args.folder) as plane:
        outcome = asyncio.run(run(plane, pods=args.pods, seed=args.seed))
    for difference in outcome.differences:
        print(difference)
    for reason, number in sorted(outcome.reasons.items(), key=lambda item: -item[1]):
        print(f"{number:6}  {reason}")
    seconds = time.monotonic() - began
    agreed = outcome.tried - len(outcome.differences)
    print(f"{agreed} of {outcome.tried} pods agreed ({outcome.fitted} fitted) in {seconds:.0f} s")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
