# SPDX-License-Identifier: Apache-2.0
"""Creates substitutes for objects that cannot be read, because a field has a wrong type or value.

A substitute is stored in the cache instead of the object. It must never offer more capacity than the object, and never
have fewer rules. A part of the object that cannot be read is replaced by its last readable state, or else by the fields
that can be read. Then the substitute is restricted, depending on its kind: a node is cordoned, a pod gets a scheduling
gate. Substitutes of other kinds have only an annotation that marks them as unreadable, which decisions check. The
annotation is never written to the API server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.claim_objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    Device,
    DeviceEntry,
    ElasticQuota,
    HyperNode,
    NodeResourceTopology,
    ProvisioningRequest,
)
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

Restrict = Callable[[Any], Any]
"""Function that restricts an object with the mark. Returns the substitute; None if the object is to be ignored."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The restriction for unreadable objects of a kind."""

    restrict: Restrict
    meaning: str
    """The consequence for users, as a clause: `it accepts no new pods`."""


def substitute_for(kind: type[Any], error: Undecodable[Any], known: Any | None) -> Any | None:
    """Returns the substitute for an object that cannot be read; None if the object is to be ignored.

    error: the fault, with the readable rest of the object and the names of the parts that have faults. known: the last
    readable state; None if there is none.
    """
    base = error.rest
    if base is None or not base.metadata.name:
        return known
    if known is not None:
        # these parts are never taken from the earlier state: the identity, and the status of a pod
        fixed = {"metadata", "status"} if kind is Pod else {"metadata"}
        old = {part: getattr(known, part) for part in error.parts - fixed if hasattr(known, part)}
        if kind is Pod and "spec" in old:
            node = base.spec.node_name or known.spec.node_name
            old["spec"] = replace(known.spec, node_name=node)
        base = replace(base, **old)
    meta = base.metadata
    notes = {**meta.annotations, keys.UNREADABLE: str(error)}
    return restriction_of(kind).restrict(replace(base, metadata=replace(meta, annotations=notes)))


def restriction_of(kind: type[Any]) -> Restriction:
    """Returns the restriction for objects of a kind. By default an object keeps its last readable state."""
    return RESTRICTIONS.get(kind, _KEPT)


def _node(node: Node) -> Node:
    """Cordons a node."""
    return replace(node, spec=replace(node.spec, unschedulable=True))


def _pod(pod: Pod) -> Pod:
    """Adds a scheduling gate to a pod without a node. A pod on a node keeps its last readable state, so that it uses
    capacity."""
    gates = [gate for gate in pod.spec.scheduling_gates if gate.name != keys.UNREADABLE]
    if not pod.spec.node_name:
        gates.append(SchedulingGate(name=keys.UNREADABLE))
    return replace(pod, spec=replace(pod.spec, scheduling_gates=gates))


def _device(device: Device) -> Device:
    """Marks all GPUs of a Device as unhealthy, or adds an unhealthy GPU if it has none, so that no pod gets them."""
    entries = {entry.minor: replace(entry, health=False) for entry in device.spec.devices if entry.minor is not None}
    sick = list(entries.values()) or [DeviceEntry(type="gpu", minor=0, health=False)]
    return replace(device, spec=replace(device.spec, devices=sick))


def _budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """Lets a PodDisruptionBudget allow no disruption. If its selector cannot be read, it covers its whole namespace."""
    spec = budget.spec
    if spec.selector is None or "spec.selector" in unreadable(budget.metadata):
        # it may select any pod of its namespace
        any_pod = (Requirement(key=keys.UNREADABLE, operator="DoesNotExist"),)
        spec = replace(spec, selector=LabelSelector(match_expressions=any_pod))
    return replace(budget, spec=spec, status=replace(budget.status, disruptions_allowed=0))


def _driver(driver: CSIDriver) -> CSIDriver:
    """Lets a CSIDriver provision volumes only on nodes for which it reports storage capacity."""
    return replace(driver, spec=replace(driver.spec, storage_capacity=True))


def _kept(obj: Any) -> Any:
    """Leaves an object as it is, because decisions check its mark, or need no restriction."""
    return obj


def _absent(obj: Any) -> None:
    # the object is ignored: without it fewer volumes or devices exist
    return None


_KEPT = Restriction(_kept, "its last readable state stays in effect")
_ABSENT = Restriction(_absent, "it is ignored as if it did not exist")
RESTRICTIONS: dict[type[Any], Restriction] = {
    Node: Restriction(_node, "it accepts no new pods"),
    Pod: Restriction(_pod, "it is not scheduled; on a node it uses what it used"),
    PodGroup: Restriction(_kept, "its pending pods wait"),
    UpstreamPodGroup: Restriction(_kept, "its pending pods wait"),
    ElasticQuota: Restriction(_kept, "no more pods start in it and below it"),
    ClusterNetworkTopology: Restriction(_kept, "the last valid layers apply"),
    HyperNode: _ABSENT,
    Device: Restriction(_device, "its devices are assigned to no more pods"),
    PodDisruptionBudget: Restriction(_budget, "it allows no disruption"),
    PersistentVolumeClaim: Restriction(_kept, "pods that use it wait"),
    ResourceClaim: Restriction(_kept, "pods that use it wait"),
    CSINode: Restriction(_kept, "its node accepts no more volumes"),
    CSIDriver: Restriction(_driver, "its volumes are created only where it reports capacity"),
    PersistentVolume: _ABSENT,
    StorageClass: _ABSENT,
    CSIStorageCapacity: _ABSENT,
    ResourceSlice: _ABSENT,
    DeviceClass: _ABSENT,
    NodeResourceTopology: Restriction(_kept, "its last readable zones stay in effect, less what pods use since then"),
    ProvisioningRequest: _KEPT,
    DeviceTaintRule: Restriction(_kept, "its last readable state stays in effect, else it is ignored"),
}
"""Kind -> restriction. Kinds without an entry (namespaces, priority classes, attachments, owners, device reports) keep
their last readable state, because they only influence ranking, counting or naming."""
