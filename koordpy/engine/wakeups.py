# SPDX-License-Identifier: Apache-2.0
"""Wake-ups: kube-scheduler's queueing hints. They decide which pending units a change of the cluster may help.

A unit that was refused waits with the kinds of change (`Wake`) that may reverse its refusal. They follow from the
filters that refused (`BY_FILTER`, `helpful`). A watch event has a kind of change as well: the functions `of_node`,
`of_pod` and so on compare an object before and after the event. If the kinds intersect, the queue wakes the unit.

A heartbeat or a status-only change of a node is no change. A newly bound pod only adds load, so it helps only pods with
affinity or spread terms, and quotas with guaranteed usage. Sources: kube-parity.md 4.3; for gangs gang-network.md 2.9.
"""

import enum
from collections.abc import Callable, Collection, Mapping
from typing import Any

from koordpy.api import keys
from koordpy.api.claim_objects import DeviceClass, ResourceClaim
from koordpy.api.custom_objects import Device, is_delivery_unavailable
from koordpy.api.objects import ConfigMap, Node, Pod, PodDisruptionBudget
from koordpy.api.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordpy.cache.snapshot import NodeInfo
from koordpy.decoding.wire_json import unreadable
from koordpy.devices.family_registry import node_reports, object_reports
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo


class Wake(enum.Flag):
    """Kinds of change in the cluster."""

    NOTHING = 0
    CAPACITY_FREED = enum.auto()
    """Capacity was freed: a pod left its node, ended or shrank, or a reservation ended."""
    NODE_ADDED = enum.auto()
    NODE_GONE = enum.auto()
    NODE_ALLOCATABLE = enum.auto()
    """A node's allocatable amount of some resource increased."""
    NODE_LABELS = enum.auto()
    NODE_TAINTS = enum.auto()
    """A node's taints changed, or whether it is unschedulable."""
    POD_BOUND = enum.auto()
    """A pod was bound, which only adds load."""
    POD_LABELS = enum.auto()
    """Labels of a pod on a node changed."""
    NAMESPACE = enum.auto()
    """The labels of a namespace changed, which affinity terms may select."""
    TOPOLOGY = enum.auto()
    """The layers of the network topology changed."""
    QUOTA = enum.auto()
    """An ElasticQuota changed, or which quotas apply."""
    DEMAND_FELL = enum.auto()
    """Demand decreased, so that the runtimes of quotas may rise: a pending unit was deleted, requests less, or can
    never start."""
    DEVICE = enum.auto()
    """A Device changed, what a node's annotations say about its GPU links, or the NUMA zones of a node."""
    NUMA_REPORT = enum.auto()
    """A new report of the free amounts of a node's NUMA zones."""
    CLAIM = enum.auto()
    """A volume claim or resource claim changed that the pod itself names."""
    VOLUME = enum.auto()
    """A volume was created, changed or released."""
    DEVICE_REPORT = enum.auto()
    """A node's device report changed in more than amounts, such as its NPUs, SuperPoD or switch."""
    STORAGE_CLASS = enum.auto()
    STORAGE_CAPACITY = enum.auto()
    NODE_FEATURES = enum.auto()
    """A node declares other features of Kubernetes."""
    NODE_CONDITIONS = enum.auto()
    """The status of some condition of a node changed."""
    NODE_OPENED = enum.auto()
    """A node takes pods again of a request shape that it rejected."""
    ATTACHABLE = enum.auto()
    """A node may accept more volumes."""
    DYNAMIC_DEVICE = enum.auto()
    """A resource claim released devices, or other devices are offered."""
    DEVICE_OFFER = enum.auto()
    """Resource slices, device classes or device taint rules changed, so that other devices are offered."""
    EXTENDED_RESOURCE = enum.auto()
    """A device class maps another extended resource to devices."""


ANY = ~Wake.NOTHING
"""All kinds of change."""
CAPACITY_GAINED = Wake.CAPACITY_FREED | Wake.NODE_ADDED | Wake.NODE_ALLOCATABLE | Wake.NODE_TAINTS | Wake.QUOTA
"""Changes after which a unit may fit without victims."""
# changes that only matter to pods with volumes or resource claims
_STORED = Wake.CLAIM | Wake.VOLUME | Wake.STORAGE_CLASS | Wake.STORAGE_CAPACITY | Wake.ATTACHABLE
_CLAIMED = _STORED | Wake.DYNAMIC_DEVICE | Wake.DEVICE_OFFER | Wake.EXTENDED_RESOURCE
GANG = ANY & ~(Wake.POD_BOUND | Wake.POD_LABELS | Wake.NAMESPACE | Wake.DEMAND_FELL | _STORED)
"""Changes that may help a gang that was refused as a whole, not by a filter of one member: capacity, nodes, the tree.
Changes that only matter to pod affinity, quota demand or volumes are left out."""
EMPTY_CLUSTER = (
    Wake.NODE_ADDED
    | Wake.NODE_GONE
    | Wake.NODE_ALLOCATABLE
    | Wake.NODE_LABELS
    | Wake.NODE_TAINTS
    | Wake.TOPOLOGY
    | Wake.QUOTA
    | Wake.DEVICE
    | Wake.DEVICE_REPORT
    | Wake.DEVICE_OFFER
    | Wake.EXTENDED_RESOURCE
)
"""Changes that decide whether a unit could ever fit (gang-network.md 6): nodes with their devices, the tree, quotas.
Pods that are created or deleted do not matter."""
# changes that cannot affect spread constraints and pod affinity, which depend on other pods, nodes and namespaces
_REPORTS = Wake.DEVICE | Wake.NUMA_REPORT | Wake.DEVICE_REPORT
_NO_NEIGHBOURS = Wake.QUOTA | Wake.DEMAND_FELL | _REPORTS | Wake.TOPOLOGY | Wake.NODE_OPENED | _CLAIMED
_GPUS = Wake.NODE_ADDED | Wake.NODE_ALLOCATABLE | Wake.NODE_LABELS | Wake.CAPACITY_FREED | Wake.DEVICE
BY_FILTER: dict[str, Wake] = {
    "NodeUnschedulable": Wake.NODE_ADDED | Wake.NODE_TAINTS,
    "NodeName": Wake.NODE_ADDED,
    "NodeRepair": Wake.NODE_ADDED | Wake.NODE_CONDITIONS | Wake.NODE_OPENED,
    "TaintToleration": Wake.NODE_ADDED | Wake.NODE_TAINTS,
    "NodeAffinity": Wake.NODE_ADDED | Wake.NODE_LABELS,
    "NodePorts": Wake.NODE_ADDED | Wake.CAPACITY_FREED,
    "AscendChips": (_GPUS ^ Wake.DEVICE) | Wake.DEVICE_REPORT,
    "AscendJob": Wake.NODE_ADDED | Wake.NODE_GONE | Wake.NODE_LABELS | Wake.DEVICE_REPORT,
    # an unhealthy GPU that a pod uses counts as a GPU of the node
    "NodeResourcesFit": (
        Wake.NODE_ADDED | Wake.NODE_ALLOCATABLE | Wake.CAPACITY_FREED | Wake.DEVICE | Wake.EXTENDED_RESOURCE
    ),
    "PodTopologySpread": ANY & ~_NO_NEIGHBOURS,
    "InterPodAffinity": ANY & ~_NO_NEIGHBOURS,
    "VolumeRestrictions": Wake.NODE_ADDED | Wake.CAPACITY_FREED | Wake.CLAIM,
    "NodeVolumeLimits": Wake.NODE_ADDED | Wake.CAPACITY_FREED | Wake.CLAIM | Wake.ATTACHABLE,
    "VolumeBinding": (
        Wake.NODE_ADDED
        | Wake.NODE_LABELS
        | Wake.CAPACITY_FREED
        | Wake.CLAIM
        | Wake.VOLUME
        | Wake.STORAGE_CLASS
        | Wake.STORAGE_CAPACITY
    ),
    # a node with allocatable units of an extended resource needs no devices for it
    "DynamicResources": (
        Wake.NODE_ADDED
        | Wake.NODE_ALLOCATABLE
        | Wake.NODE_LABELS
        | Wake.CAPACITY_FREED
        | Wake.CLAIM
        | Wake.DYNAMIC_DEVICE
    ),
    "NodeResourceTopologyMatch": _GPUS | Wake.NUMA_REPORT,
    "GPUDevices": _GPUS,
    # a unit refused by a quota may find victims in that quota, and any filter may have refused these placements
    "ElasticQuota": ANY & ~Wake.POD_BOUND,
    "NodeDeclaredFeatures": Wake.NODE_ADDED | Wake.NODE_FEATURES,
    "VolumeZone": Wake.NODE_ADDED | Wake.NODE_LABELS | Wake.CLAIM | Wake.VOLUME | Wake.STORAGE_CLASS,
}
"""Filter -> kinds of change that may reverse its refusal."""


def helpful(plugins: Collection[str], *, gang: bool, guarantees: bool = False) -> Wake:
    """Returns the changes that may reverse the refusal of a unit by these filters.

    plugins: filters that refused; empty if the gang was refused as a whole. Any change may help if a filter has no rule
    in `BY_FILTER`. guarantees: True if a quota's usage is guaranteed to it (`quota.guaranteeUsage`), so that a pod that
    starts may raise its quota's runtime.
    """
    # QUOTA is in every mask (GANG includes it): with lower guarantees of other quotas a unit may find victims
    mask = GANG if gang else Wake.QUOTA
    for plugin in plugins:
        mask |= BY_FILTER.get(plugin, ANY)
        if guarantees and plugin == "ElasticQuota":
            mask |= Wake.POD_BOUND
    if not plugins:
        mask |= GANG
    return mask


def of_kept(wake: Wake) -> Callable[[Any, Any], Wake]:
    """Returns a rule for a kind of which only labels and spec are read.

    The rule is a function of the object before and after a change (None if it did not exist, or does not any more). It
    returns `wake` if labels or spec changed, else NOTHING. All functions `of_...` below have these arguments.
    """

    def helps(before: Any, after: Any) -> Wake:
        if before is None or after is None or before.metadata.labels != after.metadata.labels:
            return wake
        return wake if getattr(before, "spec", 0) != getattr(after, "spec", 0) else Wake.NOTHING

    return helps


def of_budget(before: PodDisruptionBudget | None, after: PodDisruptionBudget | None) -> Wake:
    """Returns what a changed budget may help: a budget that allows more disruptions may allow more victims."""
    if before is None or after is None:
        # victims count as capacity: a deleted budget protects no pod any more
        return Wake.CAPACITY_FREED if after is None else Wake.NOTHING
    more = (after.status.disruptions_allowed or 0) > (before.status.disruptions_allowed or 0)
    return Wake.CAPACITY_FREED if more or before.spec != after.spec else Wake.NOTHING


def of_config_map(before: ConfigMap | None, after: ConfigMap | None) -> Wake:
    """Returns what a changed ConfigMap may help: NOTHING for an unchanged device report."""
    if before is None and after is None:
        return Wake.NOTHING
    if before is None or after is None:
        return Wake.DEVICE_REPORT
    return Wake.NOTHING if object_reports(before) == object_reports(after) else Wake.DEVICE_REPORT


def of_device(before: Device | None, after: Device | None) -> Wake:
    """Returns what a changed Device may help. Of its status only the condition matters that says whether the node can
    deliver GPUs to containers."""
    if before is None or after is None or is_delivery_unavailable(before) != is_delivery_unavailable(after):
        return Wake.DEVICE
    same = before.spec == after.spec and before.metadata.labels == after.metadata.labels
    return Wake.NOTHING if same and before.metadata.annotations == after.metadata.annotations else Wake.DEVICE


def of_node(before: NodeInfo | None, after: NodeInfo | None) -> Wake:
    """Returns what a changed node may help; NOTHING for heartbeats and status."""
    if after is None:
        return Wake.NODE_GONE if before is not None else Wake.NOTHING
    if before is None:
        return Wake.NODE_ADDED
    wake = Wake.NOTHING
    if _more(before.allocatable, after.allocatable):
        wake |= Wake.NODE_ALLOCATABLE
    if _more(after.allocatable, before.allocatable):
        wake |= Wake.DEMAND_FELL  # a pending pod may be too large for every node now
    if before.labels != after.labels:
        wake |= Wake.NODE_LABELS
    if before.taints != after.taints:
        wake |= Wake.NODE_TAINTS
    if before.node.status.declared_features != after.node.status.declared_features:
        wake |= Wake.NODE_FEATURES
    if _states(before.node) != _states(after.node):
        wake |= Wake.NODE_CONDITIONS
    if _links_said(before.node) != _links_said(after.node):
        wake |= Wake.DEVICE
    if node_reports(before.node) != node_reports(after.node):
        wake |= Wake.DEVICE_REPORT
    return wake


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Returns True if `after` has more of some resource than `before`."""
    return any(amount > before.get(name, 0) for name, amount in after.items())


def _states(node: Node) -> dict[str, str]:
    """Returns type -> status of the conditions of a node."""
    return {one.type: one.status for one in node.status.conditions}


def _links_said(node: Node) -> dict[str, str]:
    """Returns the annotations of a node that state its GPU links."""
    annotations = node.metadata.annotations
    return {key: text for key, text in annotations.items() if key.startswith(keys.GSOC_PREFIX)}


def of_pod(before: PodInfo | None, after: PodInfo | None) -> Wake:
    """Returns the kinds of change that other pods may gain from: freed capacity, more load, other labels, less demand.

    before, after: the pod in the cache, so that an assumed pod counts as bound.
    """
    # `was` and `is_bound`: whether the pod was on a node, and whether it is on one now
    was, is_bound = before is not None and before.bound, after is not None and after.bound
    wake = Wake.NOTHING
    if before is not None and before.pending and not is_bound and _less_is_asked(before, after):
        wake |= Wake.DEMAND_FELL
    if before is not None and before.nominated_node and _less_is_kept(before, after):
        wake |= Wake.CAPACITY_FREED
    if before is not None and was and (after is None or not is_bound or after.node != before.node):
        wake |= Wake.CAPACITY_FREED
    if after is not None and is_bound and (before is None or not was or after.node != before.node):
        wake |= Wake.POD_BOUND
    if before is not None and after is not None and was and is_bound and before.node == after.node:
        if _more(after.requests, before.requests):
            wake |= Wake.CAPACITY_FREED
        if before.pod.metadata.labels != after.pod.metadata.labels:
            wake |= Wake.POD_LABELS
        if bool(before.pod.metadata.deletion_timestamp) != bool(after.pod.metadata.deletion_timestamp):
            # spread constraints do not count terminating pods
            wake |= Wake.POD_LABELS
    return wake


def _less_is_asked(before: PodInfo, after: PodInfo | None) -> bool:
    """Returns True if a pod that was pending is not any more, or requests less of its quota."""
    if after is None or not after.pending or before.owner != after.owner:
        return True
    return _more(after.requests, before.requests)


def _less_is_kept(before: PodInfo, after: PodInfo | None) -> bool:
    """Returns True if a nomination ended without a Binding on its node, or reserves less there."""
    if after is None:
        return True
    if after.nominated_node == before.nominated_node:
        return _more(after.requests, before.requests)
    return not (after.bound and after.node == before.nominated_node)


def of_devices(before: Any, after: Any) -> tuple[Wake, str]:
    """Returns what a changed resource claim, slice or device class may help, and the key of the claim ("" for none).

    The pods that name the claim are woken. Other pods are woken only if the claim released devices.
    """
    if before is not None and after is not None and _read_of(before) == _read_of(after):
        return Wake.NOTHING, ""
    there = after if after is not None else before
    if isinstance(there, ResourceClaim):
        allocation = before.status.allocation if before is not None else None
        freed = allocation is not None and (after is None or after.status.allocation != allocation)
        return (Wake.DYNAMIC_DEVICE if freed else Wake.NOTHING), object_key(there)
    offered = Wake.DYNAMIC_DEVICE | Wake.DEVICE_OFFER
    if not isinstance(there, DeviceClass):
        return offered, ""
    then, now = (one.spec.extended_resource_name if one is not None else "" for one in (before, after))
    wake = Wake.NOTHING if after is None else offered
    # without a class, an older one may map the resource
    return wake if then == now else offered | Wake.EXTENDED_RESOURCE, ""


def of_storage(before: Any, after: Any) -> tuple[Wake, str]:
    """Returns what a changed storage object may help, and the key of the claim that it concerns ("" for none)."""
    there = after if after is not None else before
    if before is not None and after is not None and _read_of(before) == _read_of(after):
        return Wake.NOTHING, ""
    match there:
        # a claim concerns only the pods that name it; of the other kinds only changes that allow more can help
        case PersistentVolumeClaim():
            return Wake.NOTHING, object_key(there) if after is not None else ""
        case PersistentVolume():
            return _of_volume(before, after)
        case StorageClass():
            return Wake.STORAGE_CLASS, ""
        case CSINode():
            return (Wake.ATTACHABLE if before is not None and _takes_more(before, after) else Wake.NOTHING), ""
        case VolumeAttachment():
            return (Wake.ATTACHABLE if after is None else Wake.NOTHING), ""
        case CSIDriver():
            asked = before is not None and before.spec.storage_capacity
            free = asked and (after is None or not after.spec.storage_capacity)
            return (Wake.STORAGE_CAPACITY if free else Wake.NOTHING), ""
        case CSIStorageCapacity():
            return (Wake.STORAGE_CAPACITY if after is not None else Wake.NOTHING), ""
    return ANY, ""


def _of_volume(before: PersistentVolume | None, after: PersistentVolume | None) -> tuple[Wake, str]:
    """As `of_storage`, for volumes. A volume that is reserved for a claim may help only pods that name this claim."""
    if after is None:
        return Wake.NOTHING, ""
    reference = after.spec.claim_ref
    if reference is None:
        return Wake.VOLUME, ""
    key = f"{reference.namespace}/{reference.name}"
    return (Wake.NOTHING, key) if before is None or reference.uid else (Wake.VOLUME, key)


def _takes_more(before: CSINode, after: CSINode | None) -> bool:
    """Returns True if a node accepts more volumes than before, or was deleted. A driver without a number has no limit;
    a CSINode that cannot be read accepts no volume."""
    if after is None or unreadable(before.metadata):
        return True
    limits = _limits(after)
    for driver, count in _limits(before).items():
        now = limits.get(driver)
        if count is not None and (now is None or now > count):
            return True
    return False


def _limits(node: CSINode) -> dict[str, int | None]:
    """Returns CSI driver -> maximum number of volumes on the node; None for no limit."""
    return {driver.name: driver.allocatable.count if driver.allocatable else None for driver in node.spec.drivers}


def _read_of(obj: Any) -> tuple[Any, ...]:
    """Returns the parts of an object that decisions depend on: all except resourceVersion and similar metadata."""
    meta = obj.metadata
    rest = (getattr(obj, name) for name in obj.__struct_fields__ if name != "metadata")
    return (meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, meta.owner_references, *rest)


def changes_itself(before: Pod, after: Pod) -> bool:
    """Returns True if a pending pod changed in a part that decisions depend on: labels, annotations, spec, and of its
    status the names of generated resource claims."""
    return (
        before.metadata.labels != after.metadata.labels
        or before.metadata.annotations != after.metadata.annotations
        or before.spec != after.spec
        or before.status.resource_claim_statuses != after.status.resource_claim_statuses
    )
