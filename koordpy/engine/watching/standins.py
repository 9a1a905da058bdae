"""Substitutes for objects that cannot be read. A substitute never offers more capacity, or fewer rules, than the
object.

Only the parts with faults are replaced: by their last readable state, else by what can be read of them. Then each kind
is restricted in its own way: by something that decisions know (a cordoned node, a gated pod), or by a mark in its
annotations. The mark is never written to the API server.
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
"""Function from a marked object to its substitute; None if the object is to be ignored."""


@dataclass(frozen=True, slots=True)
class Closure:
    """How the objects of a kind are restricted, and the consequence for their owner as a sentence."""

    close: Close
    meaning: str


def stand_in(kind: type[Any], error: Undecodable[Any], known: Any | None) -> Any | None:
    """Returns the substitute for an object that cannot be read; None for none. known: its last readable state."""
    base = error.rest
    if base is None or not base.metadata.name:
        return known
    if known is not None:
        # identity, and the status and node of a pod, are never those of the earlier state
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
        # it may select any pod of its namespace
        any_pod = (Requirement(key=keys.UNREADABLE, operator="DoesNotExist"),)
        spec = replace(spec, selector=LabelSelector(match_expressions=any_pod))
    return replace(budget, spec=spec, status=replace(budget.status, disruptions_allowed=0))


def _driver(driver: CSIDriver) -> CSIDriver:
    return replace(driver, spec=replace(driver.spec, storage_capacity=True))


def _kept(obj: Any) -> Any:
    return obj


def _absent(obj: Any) -> None:
    return None


_KEPT = Closure(_kept, "its last readable state stays in effect")
_ABSENT = Closure(_absent, "it is ignored as if it did not exist")
CLOSURES: dict[type[Any], Closure] = {
    Node: Closure(_node, "it accepts no new pods"),
    Pod: Closure(_pod, "it is not scheduled; on a node it uses what it used"),
    PodGroup: Closure(_kept, "its pending pods wait"),
    UpstreamPodGroup: Closure(_kept, "its pending pods wait"),
    ElasticQuota: Closure(_kept, "no more pods start in it and below it"),
    ClusterNetworkTopology: Closure(_kept, "the last valid layers apply"),
    HyperNode: _ABSENT,
    Device: Closure(_device, "its devices are assigned to no more pods"),
    PodDisruptionBudget: Closure(_budget, "it allows no disruption"),
    PersistentVolumeClaim: Closure(_kept, "pods that use it wait"),
    ResourceClaim: Closure(_kept, "pods that use it wait"),
    CSINode: Closure(_kept, "its node accepts no more volumes"),
    CSIDriver: Closure(_driver, "its volumes are created only where it reports capacity"),
    PersistentVolume: _ABSENT,
    StorageClass: _ABSENT,
    CSIStorageCapacity: _ABSENT,
    ResourceSlice: _ABSENT,
    DeviceClass: _ABSENT,
}
"""Kinds that are missing here only rank, count or name: namespaces, priority classes, attachments, owners, reports."""
