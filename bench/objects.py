# SPDX-License-Identifier: Apache-2.0
"""Typed nodes, pods and groups for the planner's benchmarks; clusters with a network are those of `tests.clusters`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordpy.api import keys
from koordpy.api.objects import (
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    ResourceRequirements,
    Wire,
)
from koordpy.api.pod_groups import PodGroup, PodGroupSpec
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state

NAMESPACE = "default"


def node(name: str, amounts: Quantities, *, labels: Mapping[str, str] | None = None) -> Node:
    """A node with this room; for 110 pods where that is not said."""
    have: Quantities = {"pods": "110", **amounts}
    return Node(metadata=ObjectMeta(name=name, labels=dict(labels or {})), status=NodeStatus(allocatable=have))


def pod(
    name: str,
    requests: Quantities,
    *,
    at: str = "",
    gang: str = "",
    priority: int = 0,
    age: int = 0,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A pod of koordpy's; running where `at` names a node. age: second of the first hour of 2026 that made it."""
    meta = ObjectMeta(
        name=name,
        namespace=NAMESPACE,
        uid=name,
        creation_timestamp=f"2026-01-01T00:{age // 60:02}:{age % 60:02}Z",
        labels={**({keys.LABEL_POD_GROUP: gang} if gang else {}), **(labels or {})},
        annotations=dict(annotations or {}),
    )
    box = Container(name="main", resources=ResourceRequirements(requests=requests))
    spec = PodSpec(scheduler_name=keys.DEFAULT_SCHEDULER_NAME, node_name=at, priority=priority, containers=[box])
    return Pod(metadata=meta, spec=spec, status=PodStatus(phase="Running" if at else "Pending"))


def group(name: str, members: int, *, annotations: Mapping[str, str] | None = None) -> PodGroup:
    """The PodGroup of a gang."""
    meta = ObjectMeta(name=name, namespace=NAMESPACE, annotations=dict(annotations or {}))
    return PodGroup(metadata=meta, spec=PodGroupSpec(min_member=members))


def state_of(objects: Iterable[Wire]) -> ClusterState:
    """A cluster that has taken the objects in."""
    state = make_state()
    for obj in objects:
        state.upsert(obj)
    return state
