# SPDX-License-Identifier: Apache-2.0
"""Wake-ups: kube-scheduler's queueing hints. They decide which pending units a change of the cluster may help.

A refused unit is queued with the kinds of change (`Wake`) that may reverse its refusal. `helpful` derives them from the
filters that refused it (`BY_FILTER`). The functions `of_node`, `of_pod` and so on return the kinds of change of a watch
event, from the object before and after it. If the two have a kind in common, the queue wakes the unit.

A heartbeat of a node is not a change. A newly bound pod only adds load, so it may help only pods with affinity or
spread terms, and quotas with guaranteed usage. Sources: kube-parity.md 4.3; for gangs gang-network.md 2.9.
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
from koordpy.devices.dra.ledger.claim_allocation import frees_devices
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
    """A node's taints or its field `unschedulable` changed."""
    POD_BOUND = enum.auto()
    """A pod was bound, which only adds load."""
    POD_LABELS = enum.auto()
    """Labels of a pod on a node changed."""
    NAMESPACE = enum.auto()
    """The labels of a namespace changed, which affinity terms may select."""
    TOPOLOGY = enum.auto()
    """The layers of the network topology changed."""
    QUOTA = enum.auto()
    """An ElasticQuota was created, changed or deleted."""
    DEMAND_FELL = enum.auto()
    """Demand decreased, so that the runtimes of quotas may rise: a pending unit was deleted, requests less, or can
    never start."""
    DEVICE = enum.auto()
    """A Device, a node's annotations about its GPU links, or the NUMA zones of a node changed."""
    NUMA_REPORT = enum.auto()
    """A new report of the free amounts of a node's NUMA zones."""
    CLAIM = enum.auto()
    """A volume claim or resource claim changed. Only pods that name the claim are woken."""
    VOLUME = enum.auto()
    """A volume was created, changed or released."""
    DEVICE_REPORT = enum.auto()
    """A node's device report changed in more than amounts, such as its NPUs, SuperPoD or switch."""
    STORAGE_CLASS = enum.auto()
    STORAGE_CAPACITY = enum.auto()
    NODE_FEATURES = enum.auto()
    """The Kubernetes features that a node declares changed."""
    NODE_CONDITIONS = enum.auto()
    """The status of some condition of a node changed."""
    NODE_OPENED = enum.auto()
    """A node takes pods of a request shape again that its kubelet had rejected."""
    ATTACHABLE = enum.auto()
    """A node may accept more volumes."""
    DYNAMIC_DEVICE = enum.auto()
    """A resource claim released devices, or the devices that nodes offer changed."""
    DEVICE_OFFER = enum.auto()
    """Resource slices, device classes or device taint rules changed, so that nodes offer other devices."""
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
"""Changes that may help a gang that was refused as a whole, not by a filter of one member: capacity, nodes, the
topology tree. Changes that only matter to pod affinity, quota demand or volumes are left out."""
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
"""Changes that decide whether a unit could ever fit (gang-network.md 6): of nodes and their devices, of the topology
tree, and of quotas, but not of pods."""
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
    # such a unit may find victims in its quota; then any change may help, because any filter may have refused a node
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
    # QUOTA is in every mask (GANG includes it): if other quotas have lower guarantees, the unit may find victims there
    mask = GANG if gang else Wake.QUOTA
    for plugin in plugins:
        mask |= BY_FILTER.get(plugin, ANY)
        if guarantees and plugin == "ElasticQuota":
            mask |= Wake.POD_BOUND
    if not plugins:
        mask |= GANG
    return mask


def of_kept(wake: Wake) -> Callable[[Any, Any], Wake]:
    """Returns a rule for a kind of object if only labels and spec matter.

    The rule is a function of the object before and after a change (None if it did not exist, or was deleted). It
    returns `wake` if labels or spec changed, else NOTHING. All functions `of_...` below have these two arguments.
    """

    def helps(before: Any, after: Any) -> Wake:
        if before is None or after is None or before.metadata.labels != after.metadata.labels:
            return wake
        return wake if getattr(before, "spec", 0) != getattr(after, "spec", 0) else Wake.NOTHING

    return helps


def of_budget(before: PodDisruptionBudget | None, after: PodDisruptionBudget | None) -> Wake:
    """Returns the wake-ups of a changed budget: a budget that allows more disruptions may allow more victims."""
    if before is None or after is None:
        # a deleted budget protects no pod any more, and more possible victims count as freed capacity
        return Wake.CAPACITY_FREED if after is None else Wake.NOTHING
    more = (after.status.disruptions_allowed or 0) > (before.status.disruptions_allowed or 0)
    return Wake.CAPACITY_FREED if more or before.spec != after.spec else Wake.NOTHING


def of_config_map(before: ConfigMap | None, after: ConfigMap | None) -> Wake:
    """Returns the wake-ups of a changed ConfigMap: NOTHING if its device report is unchanged."""
    if before is None and after is None:
        return Wake.NOTHING
    if before is None or after is None:
        return Wake.DEVICE_REPORT
    return Wake.NOTHING if object_reports(before) == object_reports(after) else Wake.DEVICE_REPORT


def of_device(before: Device | None, after: Device | None) -> Wake:
    """Returns the wake-ups of a changed Device. Of its status only one condition matters: whether the node can deliver
    GPUs to containers."""
    if before is None or after is None or is_delivery_unavailable(before) != is_delivery_unavailable(after):
        return Wake.DEVICE
    same = before.spec == after.spec and before.metadata.labels == after.metadata.labels
    return Wake.NOTHING if same and before.metadata.annotations == after.metadata.annotations else Wake.DEVICE


def of_node(before: NodeInfo | None, after: NodeInfo | None) -> Wake:
    """Returns the wake-ups of a changed node; NOTHING for a heartbeat."""
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
    """Returns the annotations of a node about its GPU links."""
    annotations = node.metadata.annotations
    return {key: text for key, text in annotations.items() if key.startswith(keys.GSOC_PREFIX)}


def of_pod(before: PodInfo | None, after: PodInfo | None) -> Wake:
    """Returns the wake-ups of a changed pod: freed capacity, a bound pod, changed labels, or less demand.

    before, after: the pod in the cache, where an assumed pod counts as bound.
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
    """Returns True if a pod is no longer pending, or requests less of its quota than before."""
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
    """Returns the wake-ups of a changed resource claim, slice or device class, and the key of the claim ("" for none).

    The caller wakes the pods that name the claim, and other pods if it released devices or one of several reservations.
    """
    if before is not None and after is not None and _read_of(before) == _read_of(after):
        return Wake.NOTHING, ""
    there = after if after is not None else before
    if isinstance(there, ResourceClaim):
        return (Wake.DYNAMIC_DEVICE if frees_devices(before, after) else Wake.NOTHING), object_key(there)
    offered = Wake.DYNAMIC_DEVICE | Wake.DEVICE_OFFER
    if not isinstance(there, DeviceClass):
        return offered, ""
    then, now = (one.spec.extended_resource_name if one is not None else "" for one in (before, after))
    wake = Wake.NOTHING if after is None else offered
    # if a class no longer maps a resource, an older class may map it
    return wake if then == now else offered | Wake.EXTENDED_RESOURCE, ""


def of_storage(before: Any, after: Any) -> tuple[Wake, str]:
    """Returns the wake-ups of a changed storage object, and the key of the claim that it concerns ("" for none)."""
    there = after if after is not None else before
    if before is not None and after is not None and _read_of(before) == _read_of(after):
        return Wake.NOTHING, ""
    match there:
        # a claim concerns only the pods that name it; of other kinds only changes that allow more volumes can help
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
    """The same as `of_storage`, for a volume. A volume with a claimRef may help only pods that name its claim."""
    if after is None:
        return Wake.NOTHING, ""
    reference = after.spec.claim_ref
    if reference is None:
        return Wake.VOLUME, ""
    key = f"{reference.namespace}/{reference.name}"
    return (Wake.NOTHING, key) if before is None or reference.uid else (Wake.VOLUME, key)


def _takes_more(before: CSINode, after: CSINode | None) -> bool:
    """Returns True if a node accepts more volumes than before, or its CSINode was deleted. A driver without a number
    has no limit; a CSINode that cannot be read accepts no volume."""
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
    """Returns True if a pending pod changed in a part that decisions depend on: its labels, annotations or spec, or the
    names of generated resource claims in its status."""
    return (
        before.metadata.labels != after.metadata.labels
        or before.metadata.annotations != after.metadata.annotations
        or before.spec != after.spec
        or before.status.resource_claim_statuses != after.status.resource_claim_statuses
    )
