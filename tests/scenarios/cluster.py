# SPDX-License-Identifier: Apache-2.0
"""A cluster and its gangs in a few words, for scenario tables.

    s1{b1: node-1 node-8; b2: node-2 node-7} s2{b3: node-3:2}

is spines of blocks of nodes; `:2` gives a node two slots (one is the default). One slot is one cpu.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, ClusterNetworkTopologySpec, HierarchyEntry
from koordpy.api.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements
from koordpy.api.pod_groups import PodGroup, PodGroupSpec
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round

_SPINE = re.compile(r"(\S+?)\{(.*?)\}", re.DOTALL)


def nodes_of(text: str) -> list[Node]:
    """Node objects of the short notation, labelled `spine` and `block`."""
    out = []
    for spine, inner in _SPINE.findall(text):
        for block in inner.split(";"):
            name, _, members = block.partition(":")
            out += [node(m, {"spine": spine, "block": name.strip()}) for m in members.split()]
    return out


def node(text: str, labels: Mapping[str, str] | None = None, **amounts: str) -> Node:
    """One node `name` or `name:slots`."""
    name, _, slots = text.partition(":")
    allocatable = {"cpu": slots or "1", "memory": "64Gi", "pods": "110", **amounts}
    meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})})
    return Node(metadata=meta, status=NodeStatus(allocatable=allocatable))


def hierarchy(*layers: tuple[str, str]) -> ClusterNetworkTopology:
    """The topology `default`: (layer, label) from the nodes' parent upwards; the node layer is implied."""
    names = [name for name, _ in layers]
    entries = [
        HierarchyEntry(layer_name=name, label_key=key, parent_topology_layer=up)
        for (name, key), up in zip(layers, [*names[1:], keys.CLUSTER_LAYER], strict=True)
    ]
    return ClusterNetworkTopology(
        metadata=ObjectMeta(name="default"), spec=ClusterNetworkTopologySpec(hierarchy=entries)
    )


TWO_LAYERS = hierarchy(("blockLayer", "block"), ("spineLayer", "spine"))


def wish(
    gather: Mapping[str, str] | None = None, *, pp: int = 1, multiple: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Annotations of a gang that gathers: layer -> Prefer or Must."""
    rules: list[dict[str, Any]] = [
        {"layer": layer, "strategy": f"{strategy}Gather"} for layer, strategy in (gather or {}).items()
    ]
    for rule in rules:
        if multiple and rule["layer"] in multiple:
            rule["podCountMultiple"] = multiple[rule["layer"]]
    document: dict[str, Any] = {"gatherStrategy": rules}
    if pp > 1:
        document["parallelModel"] = [{"parallelStrategy": "pipeline-parallel", "parallelism": pp}]
    return {keys.GANG_TOPOLOGY: json.dumps(document)}


def group(name: str, minimum: int, annotations: Mapping[str, str] | None = None, **spec: Any) -> PodGroup:
    """A PodGroup of the default namespace."""
    meta = ObjectMeta(name=name, namespace="default", annotations=dict(annotations or {}))
    return PodGroup(metadata=meta, spec=PodGroupSpec(min_member=minimum, **spec))


def pod_meta(
    name: str,
    *,
    gang: str,
    created: int,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> ObjectMeta:
    """Of a pod of the default namespace; created: seconds after midnight."""
    own = {keys.LABEL_POD_GROUP: gang} if gang else {}
    return ObjectMeta(
        name=name,
        namespace="default",
        uid=f"uid-{name}",
        creation_timestamp=f"2026-01-01T00:{created // 60:02}:{created % 60:02}Z",
        labels={**own, **(labels or {})},
        annotations=dict(annotations or {}),
    )


def pod(
    name: str,
    *,
    gang: str = "",
    at: str = "",
    cpu: str = "1",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    scheduler: str = keys.DEFAULT_SCHEDULER_NAME,
    phase: str = "",
    created: int = 0,
    requests: Mapping[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """A pod of the default namespace; `at` binds it."""
    meta = pod_meta(name, gang=gang, created=created, labels=labels, annotations=annotations)
    container = Container(
        name="main", image="img", resources=ResourceRequirements(requests={"cpu": cpu, **(requests or {})})
    )
    wire = PodSpec(scheduler_name=scheduler, node_name=at, containers=[container], **spec)
    return Pod(metadata=meta, spec=wire, status=PodStatus(phase=phase or ("Running" if at else "Pending")))


def gang_pods(name: str, count: int, prefix: str = "p", **settings: Any) -> list[Pod]:
    """`count` members p-0, p-1, ..."""
    return [pod(f"{prefix}-{i}", gang=name, **settings) for i in range(count)]


@dataclass
class World:
    """A cluster state with what happened to it."""

    state: ClusterState = field(default_factory=make_state)

    def add(self, *objects: Any) -> "World":
        for one in objects:
            for obj in one if isinstance(one, Sequence) else [one]:
                self.state.upsert(obj)
        return self

    def snapshot(self) -> Snapshot:
        return self.state.snapshot(0.0)

    def plan(self, **settings: Any) -> RoundPlan:
        return plan_round(self.snapshot(), **settings)

    def run(self) -> RoundPlan:
        """Plans one round and binds it."""
        plan = self.plan()
        for placement in plan.placements:
            self.state.bind(placement.pod_key, placement.node, dict(placement.annotations))
        return plan


def bound(plan: RoundPlan) -> dict[str, str]:
    """Pod name -> node of a plan."""
    return {p.pod_key.partition("/")[2]: p.node for p in plan.placements}


_PREEMPTION = re.compile(r" preemption: (0/\d+ nodes are available: [^.]*|not eligible [^.]*)\.")


def messages(plan: RoundPlan) -> dict[str, str]:
    """Pod name -> message of the pods that wait, without kube-scheduler's sentence on preemption."""
    return {name: _PREEMPTION.sub("", text) for name, text in whole_messages(plan).items()}


def whole_messages(plan: RoundPlan) -> dict[str, str]:
    """Pod name -> message of the pods that wait."""
    return {p.pod_key.partition("/")[2]: p.message for p in plan.pending}
