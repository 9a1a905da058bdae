"""What counts in place of an object that cannot be read: never more room, and never fewer rules, than it may mean.

What a reader of its version cannot know is in the parts with faults alone. These are as they were read last, else as
far as they can be read now; and on top of that each kind is closed in its own way, with what decisions know already
(a cordoned node, a gated pod) or by a mark in its annotations. The mark is never written to the API server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.claim_objects import DeviceClass, ResourceClaim, ResourceSlice
from koordpy.api.custom_objects import ClusterNetworkTopology, Device, DeviceEntry, ElasticQuota, HyperNode
from koordpy.api.objects import LabelSelector, Node, Pod, PodDisruptionBudget, Requirement, SchedulingGate
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.api.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from koordpy.decoding.wire_json import Undecodable, unreadable

Close = Callable[[Any], Any]
"""An object that is marked -> what counts; None where it is as if it were not there."""


@dataclass(frozen=True, slots=True)
class Closure:
    """How a kind is closed, and what that means for its owner."""

    close: Close
    meaning: str


def stand_in(kind: type[Any], error: Undecodable[Any], known: Any | None) -> Any | None:
    """What counts for an object that cannot be read; None for nothing. known: the same object as it counted last."""
    base = error.rest
    if base is None or not base.metadata.name:
        return known
    if known is not None:
        # who it is, what a pod has come to and where it is are never those of before
        fixed = {"metadata", "status"} if kind is Pod else {"metadata"}
        old = {part: getattr(known, part) for part in error.parts - fixed if hasattr(known, part)}
        if kind is Pod and "spec" in old:
            node = base.spec.node_name or known.spec.node_name
            old["spec"] = replace(known.spec, node_name=node)
        base = replace(base, **old)
    meta = base.metadata
    notes = {**meta.annotations, keys.UNREADABLE: str(error)}
    return closure_of(kind).close(replace(base, metadata=replace(meta, annotations=notes)))


def closure_of(kind: type[Any]) -> Closure:
    return CLOSURES.get(kind, _KEPT)


def _node(node: Node) -> Node:
    return replace(node, spec=replace(node.spec, unschedulable=True))


def _pod(pod: Pod) -> Pod:
    gates = [gate for gate in pod.spec.scheduling_gates if gate.name != keys.UNREADABLE]
    if not pod.spec.node_name:
        gates.append(SchedulingGate(name=keys.UNREADABLE))
    return replace(pod, spec=replace(pod.spec, scheduling_gates=gates))


def _device(device: Device) -> Device:
    entries = {entry.minor: replace(entry, health=False) for entry in device.spec.devices if entry.minor is not None}
    sick = list(entries.values()) or [DeviceEntry(type="gpu", minor=0, health=False)]
    return replace(device, spec=replace(device.spec, devices=sick))


def _budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    spec = budget.spec
    if spec.selector is None or "spec.selector" in unreadable(budget.metadata):
        # it may speak of any pod of its namespace
        any_pod = (Requirement(key=keys.UNREADABLE, operator="DoesNotExist"),)
        spec = replace(spec, selector=LabelSelector(match_expressions=any_pod))
    return replace(budget, spec=spec, status=replace(budget.status, disruptions_allowed=0))


def _driver(driver: CSIDriver) -> CSIDriver:
    return replace(driver, spec=replace(driver.spec, storage_capacity=True))


def _kept(obj: Any) -> Any:
    return obj


def _absent(obj: Any) -> None:
    return None


_KEPT = Closure(_kept, "it counts as it was read last")
_ABSENT = Closure(_absent, "it counts as if it were not there")
CLOSURES: dict[type[Any], Closure] = {
    Node: Closure(_node, "it takes no new pods"),
    Pod: Closure(_pod, "it is not planned for; on a node it takes what it took"),
    PodGroup: Closure(_kept, "its pending pods wait"),
    UpstreamPodGroup: Closure(_kept, "its pending pods wait"),
    ElasticQuota: Closure(_kept, "no more pods start in it and below it"),
    ClusterNetworkTopology: Closure(_kept, "the last good layers count"),
    HyperNode: _ABSENT,
    Device: Closure(_device, "its devices are given to no more pods"),
    PodDisruptionBudget: Closure(_budget, "it allows no disruption"),
    PersistentVolumeClaim: Closure(_kept, "pods that use it wait"),
    ResourceClaim: Closure(_kept, "pods that use it wait"),
    CSINode: Closure(_kept, "its node takes no more volumes"),
    CSIDriver: Closure(_driver, "its volumes are made only where it reports room"),
    PersistentVolume: _ABSENT,
    StorageClass: _ABSENT,
    CSIStorageCapacity: _ABSENT,
    ResourceSlice: _ABSENT,
    DeviceClass: _ABSENT,
}
"""Kinds that are not here only rank, count or name: namespaces, priority classes, attachments, owners, reports."""
