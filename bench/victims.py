"""How long it takes to find victims, or to show that there are none (preemption.md section 6, Required).

`python -m bench.victims [TEXT]`: the cases whose name holds the text, else all. One round, from a snapshot to a checked
plan; processor time, the best of several.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.custom import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
)
from koordpy.api.groups import PodGroup, PodGroupSpec
from koordpy.api.objects import (
    Container,
    LabelSelector,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from koordpy.cluster.state import ClusterState
from koordpy.planning.round import plan_round

Row = tuple[str, str, str]
GPU = keys.GPU_RESOURCES[0]
REPEATS = 3


@dataclass(frozen=True)
class Case:
    """running: pods of one GPU on each node of 8; a gang of `members` pods of `gpus` each, or plain pods."""

    name: str
    nodes: int
    running: int
    members: int
    gpus: int
    bar: float = 0.0
    priority: int = 100
    gang: bool = True
    gather: str = ""
    busy: int = 0
    """Nodes, the first ones, whose pods are of higher priority."""
    quotas: int = 0
    """Quotas with a PodDisruptionBudget each; the last is of those who wait, the others of those who run."""

    def state(self) -> ClusterState:
        """The cluster with everybody in place."""
        state, rng = ClusterState(), random.Random(1)
        if self.gather:
            layers = [HierarchyEntry(layer_name="blockLayer", label_key="block", parent_topology_layer="spineLayer")]
            layers.append(_top())
            spec = ClusterNetworkTopologySpec(hierarchy=layers)
            state.upsert(ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=spec))
        for i in range(self.nodes):
            labels = {"block": f"b{i // 16}", "spine": f"s{i // 128}"}
            amounts = {GPU: 8, "cpu": "64", "pods": "110"}
            meta = ObjectMeta(name=f"n{i}", labels=labels)
            state.upsert(Node(metadata=meta, status=NodeStatus(allocatable=amounts)))
            for k in range(self.running):
                priority = 1000 if i < self.busy or (self.busy and i == self.nodes - 1 and k == 0) else 0
                age, owner = rng.randrange(3000), f"q{i % (self.quotas - 1)}" if self.quotas else ""
                state.upsert(_pod(f"r-{i}-{k}", 1, priority, at=f"n{i}", age=age, quota=owner))
        for i in range(self.quotas):
            meta = ObjectMeta(name=f"q{i}", namespace="default")
            most = {GPU: 100_000}
            state.upsert(ElasticQuota(metadata=meta, spec=ElasticQuotaSpec(min={GPU: 100}, max=most)))
            selector = LabelSelector(match_labels={keys.QUOTA_NAME: f"q{i}"})
            spec = PodDisruptionBudgetSpec(selector=selector)
            status = PodDisruptionBudgetStatus(disruptions_allowed=100)
            state.upsert(PodDisruptionBudget(metadata=meta, spec=spec, status=status))
        if self.gang:
            rules = [{"layer": self.gather, "strategy": "PreferGather"}]
            notes = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": rules})} if self.gather else {}
            meta = ObjectMeta(name="g", namespace="default", annotations=notes)
            state.upsert(PodGroup(metadata=meta, spec=PodGroupSpec(min_member=self.members)))
        for i in range(self.members):
            owner = f"q{self.quotas - 1}" if self.quotas else ""
            gang = "g" if self.gang else ""
            state.upsert(_pod(f"p-{i}", self.gpus, self.priority, gang=gang, age=3500, quota=owner))
        return state


def _top() -> HierarchyEntry:
    return HierarchyEntry(layer_name="spineLayer", label_key="spine", parent_topology_layer=keys.CLUSTER_LAYER)


def _pod(name: str, gpus: int, priority: int, *, at: str = "", gang: str = "", age: int = 0, quota: str = "") -> Pod:
    labels = {keys.LABEL_POD_GROUP: gang} if gang else {}
    labels |= {keys.QUOTA_NAME: quota} if quota else {}
    created = f"2026-01-01T00:{age // 60:02}:{age % 60:02}Z"
    meta = ObjectMeta(name=name, namespace="default", uid=name, labels=labels, creation_timestamp=created)
    box = Container(name="c", resources=ResourceRequirements(requests={GPU: gpus}))
    spec = PodSpec(scheduler_name=keys.DEFAULT_SCHEDULER_NAME, node_name=at, priority=priority, containers=[box])
    return Pod(metadata=meta, spec=spec, status=PodStatus(phase="Running" if at else "Pending"))


def cases() -> list[Case]:
    """What the specification requires, and what a busy cluster asks."""
    return [
        Case("hopeless gang of 10 x 8, 79 GPUs to be had, 100 nodes", 100, 8, 10, 8, bar=0.1, busy=90),
        Case("hopeless gang of 10 x 8, 79 GPUs to be had, 1,000 nodes", 1000, 8, 10, 8, bar=0.1, busy=990),
        Case("gang of 512 x 1 over 8,000 pods on 1,000 nodes", 1000, 8, 512, 1, bar=2.0),
        Case("gang of 64 x 8 over 8,000 pods on 1,000 nodes", 1000, 8, 64, 8, bar=2.0),
        Case("gang of 512 x 1, gathered", 1000, 8, 512, 1, bar=2.0, gather="blockLayer"),
        Case("the same, gathered", 1000, 8, 64, 8, bar=2.0, gather="blockLayer"),
        Case("3,000 plain pods that may evict nobody", 1000, 8, 3000, 1, priority=0, gang=False),
        Case("50 plain pods that each evict one of 8,000", 1000, 8, 50, 1, gang=False),
        Case("the same with 10 quotas and budgets", 1000, 8, 50, 1, gang=False, quotas=10),
    ]


def run(repeats: int = REPEATS, *, text: str = "") -> Iterator[Row]:
    """Rows of (what, milliseconds, note)."""
    for case in cases():
        if text not in case.name:
            continue
        snapshot = case.state().snapshot(0.0)
        best = float("inf")
        for _ in range(repeats):
            start = time.process_time()
            plan = plan_round(snapshot)
            best = min(best, time.process_time() - start)
        proofs = ", ".join(sorted({str(report.proof) for report in plan.units}))
        bar = f"bar {case.bar * 1000:,.0f} ms {'holds' if best < case.bar else 'MISSED'}; " if case.bar else ""
        yield f"victims: {case.name}", f"{best * 1000:.1f} ms", f"{bar}{len(plan.evictions)} evicted, {proofs}"


if __name__ == "__main__":
    for row in run(text=" ".join(sys.argv[1:])):
        print("{:<66}{:>12}  {}".format(*row), flush=True)
