# SPDX-License-Identifier: Apache-2.0
"""How long it takes to find victims, or to show that there are none (preemption.md 6, Required).

`python -m bench.victims [TEXT]`: the cases whose name holds the text, else all. One round, from a snapshot to a checked
plan; processor time, the best of several.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bench.objects import group, node, pod
from bench.timing import Row, against, milliseconds, rounds
from koordpy.api import keys
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
)
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state

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
        state, rng = make_state(), random.Random(1)
        if self.gather:
            layers = [HierarchyEntry(layer_name="blockLayer", label_key="block", parent_topology_layer="spineLayer")]
            layers.append(_top())
            spec = ClusterNetworkTopologySpec(hierarchy=layers)
            state.upsert(ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=spec))
        for i in range(self.nodes):
            labels = {"block": f"b{i // 16}", "spine": f"s{i // 128}"}
            state.upsert(node(f"n{i}", {GPU: 8, "cpu": "64"}, labels=labels))
            for k in range(self.running):
                priority = 1000 if i < self.busy or (self.busy and i == self.nodes - 1 and k == 0) else 0
                owner = {keys.QUOTA_NAME: f"q{i % (self.quotas - 1)}"} if self.quotas else {}
                age = rng.randrange(3000)
                state.upsert(pod(f"r-{i}-{k}", {GPU: 1}, at=f"n{i}", priority=priority, age=age, labels=owner))
        for i in range(self.quotas):
            meta = ObjectMeta(name=f"q{i}", namespace="default")
            state.upsert(ElasticQuota(metadata=meta, spec=ElasticQuotaSpec(min={GPU: 100}, max={GPU: 100_000})))
            selector = LabelSelector(match_labels={keys.QUOTA_NAME: f"q{i}"})
            allowed = PodDisruptionBudgetStatus(disruptions_allowed=100)
            budget = PodDisruptionBudgetSpec(selector=selector)
            state.upsert(PodDisruptionBudget(metadata=meta, spec=budget, status=allowed))
        if self.gang:
            rules = [{"layer": self.gather, "strategy": "PreferGather"}]
            notes = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": rules})} if self.gather else {}
            state.upsert(group("g", self.members, annotations=notes))
        for i in range(self.members):
            owner = {keys.QUOTA_NAME: f"q{self.quotas - 1}"} if self.quotas else {}
            gang = "g" if self.gang else ""
            state.upsert(pod(f"p-{i}", {GPU: self.gpus}, gang=gang, priority=self.priority, age=3500, labels=owner))
        return state


def _top() -> HierarchyEntry:
    return HierarchyEntry(layer_name="spineLayer", label_key="spine", parent_topology_layer=keys.CLUSTER_LAYER)


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
        times, plan = rounds(case.state(), repeats)
        best = min(times)
        proofs = ", ".join(sorted({str(report.proof) for report in plan.units}))
        note = f"{against(case.bar, best)}{len(plan.evictions)} evicted, {proofs}"
        yield f"victims: {case.name}", milliseconds(best), note


if __name__ == "__main__":
    for row in run(text=" ".join(sys.argv[1:])):
        print("{:<66}{:>12}  {}".format(*row), flush=True)
