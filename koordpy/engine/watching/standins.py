# SPDX-License-Identifier: Apache-2.0
"""Creates substitutes for objects that cannot be read, because a field has a wrong type or value.

A substitute is stored in the cache instead of the object. It never offers more capacity than the object, and never has
fewer rules. Parts with faults are replaced by their last readable state, else by what can be read of them. Then the
substitute is restricted, in a way that depends on its kind: a node is cordoned, a pod gets a scheduling gate. Other
kinds only have a mark in their annotations, which decisions read. The mark is never written to the API server.
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

Close = Callable[[Any], Any]
"""Function from a marked object to its substitute; None if the object is to be ignored."""


@dataclass(frozen=True, slots=True)
class Closure:
    """How the objects of a kind are restricted if they cannot be read."""

    close: Close
    meaning: str
    """The consequence for users, as a clause: `it accepts no new pods`."""


def stand_in(kind: type[Any], error: Undecodable[Any], known: Any | None) -> Any | None:
    """Returns the substitute for an object that cannot be read; None if the object is to be ignored.

    error: the fault, with the readable rest of the object and the names of the parts that have faults. known: the last
    readable state; None if there is none.
    """
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
    """Returns how objects of a kind are restricted; a kind without a rule stays as it was last readable."""
    return CLOSURES.get(kind, _KEPT)


def _node(node: Node) -> Node:
    """Cordons a node."""
    return replace(node, spec=replace(node.spec, unschedulable=True))


def _pod(pod: Pod) -> Pod:
    """Adds a scheduling gate to a pod without a node. On a node it stays as it was, so that it uses capacity."""
    gates = [gate for gate in pod.spec.scheduling_gates if gate.name != keys.UNREADABLE]
    if not pod.spec.node_name:
        gates.append(SchedulingGate(name=keys.UNREADABLE))
    return replace(pod, spec=replace(pod.spec, scheduling_gates=gates))


def _device(device: Device) -> Device:
    """Marks all GPUs of a Device as unhealthy, or adds an unhealthy one, so that no pod gets them."""
    entries = {entry.minor: replace(entry, health=False) for entry in device.spec.devices if entry.minor is not None}
    sick = list(entries.values()) or [DeviceEntry(type="gpu", minor=0, health=False)]
    return replace(device, spec=replace(device.spec, devices=sick))


def _budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """Lets a PodDisruptionBudget allow no disruption; with an unreadable selector it covers its whole namespace."""
    spec = budget.spec
    if spec.selector is None or "spec.selector" in unreadable(budget.metadata):
        # it may select any pod of its namespace
        any_pod = (Requirement(key=keys.UNREADABLE, operator="DoesNotExist"),)
        spec = replace(spec, selector=LabelSelector(match_expressions=any_pod))
    return replace(budget, spec=spec, status=replace(budget.status, disruptions_allowed=0))


def _driver(driver: CSIDriver) -> CSIDriver:
    """Lets a CSIDriver create volumes only where it reports capacity."""
    return replace(driver, spec=replace(driver.spec, storage_capacity=True))


def _kept(obj: Any) -> Any:
    """Leaves an object as it is: decisions read its mark, or need no restriction."""
    return obj


def _absent(obj: Any) -> None:
    # the object is ignored: without it fewer volumes or devices exist
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
    NodeResourceTopology: Closure(_kept, "its last readable zones stay in effect, less what pods use since then"),
    ProvisioningRequest: _KEPT,
    DeviceTaintRule: Closure(_kept, "its last readable state stays in effect, else it is ignored"),
}
"""Kind -> restriction. Kinds without an entry (namespaces, priority classes, attachments, owners, device reports) keep
their last readable state, because they only influence ranking, counting or naming."""
