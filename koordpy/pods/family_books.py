# SPDX-License-Identifier: Apache-2.0
"""Base classes through which the cache, the Snapshot and the Draft know a family of devices: book, view and ledger.

A book is updated by events and records the devices and the pods that use them. A view is the book at one moment; the
Snapshot stores it. A ledger records the devices that a Draft allocates. The cache passes allocations on (`Any`) and
never reads them. The cache receives the families when it is created (`devices.family_registry`), so neither this module
nor the cache imports a family.

A ledger stores no state of nodes. A family recomputes its node state for the nodes of `Draft.touched_since`: every
change of a Draft, and every undo, marks its node as touched.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from koordpy.api.objects import Node, Pod, Wire
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.pods.device_asks import AskReaders
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, ClaimedAmounts

AllocatedDevices = Mapping[str, Any]
"""Allocation of a pod: family -> devices, in the form of the family. Families that allocate no named device to the pod
are left out."""
NO_DEVICES: AllocatedDevices = {}
"""Allocation of a pod without named devices. Must not be changed."""


class DeviceLedger:
    """Allocations of one family on a Draft.

    The Draft undoes `assign` with `release` and `evict` with `restore`, the latest change first. A family that reads
    evicted pods from `Draft.evicted` needs no other methods.
    """

    def __init__(self) -> None:
        self.allocations: dict[str, Any] = {}
        """Pod key -> allocation, of the pods that the Draft has placed."""

    def assign(self, pod: PodInfo, node: int, allocated: Any) -> None:
        """Records the allocation of a placed pod on a node (position)."""
        self.allocations[pod.key] = allocated

    def release(self, pod: PodInfo) -> None:
        """Undoes `assign`."""
        del self.allocations[pod.key]

    def evict(self, pod: PodInfo) -> None:
        """Records that the Draft evicts a bound pod with devices of the family."""

    def restore(self, pod: PodInfo) -> None:
        """Undoes `evict`."""


class FamilyView:
    """The devices of one family at one moment. Immutable."""

    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of settings of objects that have no effect."""

    def ledger(self) -> DeviceLedger:
        """Returns the ledger of a new Draft."""
        return DeviceLedger()

    def without_pods(self, gone: Collection[PodInfo]) -> Self:
        """Returns the view without some bound pods, as if they were deleted."""
        return self

    def with_nodes(self, like: Mapping[str, str]) -> Self:
        """Returns the view with added nodes, for what-if questions.

        like: name of a new node -> name of a node with the same devices; empty for a node without devices.
        """
        return self

    def ground(self) -> object:
        """Returns the object on which all answers about the empty cluster depend; after a change it is another
        object."""
        return None

    def state_of(self, node: str) -> object:
        """Returns the object that describes the devices of a node (name); None for a node without devices.

        After a change of the devices it is another object.
        """
        return None

    def moved_pods(self, before: Self) -> Iterable[str]:
        """Yields the keys of pods with devices on nodes on which allocations changed since an earlier view
        (`before`)."""
        return ()

    def cells_of(self, node: str, pod: str) -> Sequence[int]:
        """Returns the devices of a node that one of its pods (key) uses, as positions among all devices of the node.
        Empty if they are not known."""
        return ()

    def is_room_of(self, before: Self) -> bool:
        """Returns whether the web UI shows as many free devices as in an earlier view (`before`), so that nothing is
        redrawn."""
        return True

    def shown(self, node: str) -> "ShownDevices | None":
        """Returns the devices of a node as the web UI draws them; None for none."""
        return None

    def links_of(self, node: str) -> "KnownLinks | None":
        """Returns the links of the devices of a node (name); None if the family knows none of them by identity."""
        return None

    @property
    def sick_holders(self) -> frozenset[str]:
        """Keys of the pods that use a device that is reported as unhealthy."""
        return frozenset()

    def amends(self, node: str) -> bool:
        """True if the amounts of a node depend on the devices that its pods use (`FamilyBook.amendment`)."""
        return False


class ShownDevices(NamedTuple):
    """Devices of one node, as the web UI draws them."""

    size: int
    """Number of devices."""
    sick: tuple[int, ...]
    """Positions of the unhealthy devices."""
    links: "ShownLinks | None" = None
    """Links between the devices, one object for all nodes with equal links; None if they are not known."""
    product: str = ""
    """Product name; empty if the node's labels state it."""


class ShownLinks(NamedTuple):
    """Links between the devices of a node."""

    key: object
    """One object for all nodes with equal links."""
    source: str
    """Where the links are from, such as `bandwidth` or `links`."""
    lowest: Sequence[Sequence[int]]
    """[devices][devices] kB/s of each pair, the lower of both directions."""


class KnownLinks(NamedTuple):
    """Links of the devices of a node, as a family knows them, for families that know the same devices by identity."""

    ids: Mapping[str, int]
    """UUID of a device -> its position."""
    bus_ids: Mapping[str, int]
    """PCI bus of a device -> its position."""
    classes: Sequence[Sequence[int]] | None
    """[devices][devices] kB/s of the class of each pair; None if no links are known."""
    compared: Sequence[Sequence[int]] | None
    """Like `classes`, by classes over all nodes."""
    lowest: Sequence[Sequence[int]] | None
    """[devices][devices] kB/s of each pair, the lower of both directions; None if no links are known."""
    numa: Sequence[int | None]
    """NUMA node of each device; None for an unknown one."""
    roots: Sequence[str]
    """PCIe root of each device; empty for an unknown one."""


class Amendment:
    """A correction of a node's resource amounts by a family, such as for GPUs that the node subtracts twice.

    Equal objects must correct equally.
    """

    def amended(self, stated: Amounts) -> Amounts:
        """Returns the corrected amounts of a node. stated: amounts that the node states."""
        raise NotImplementedError


class PlannedAllocation(NamedTuple):
    """Allocation of one family to a pod of a plan."""

    pod: PodInfo
    node: str
    """Name of the node."""
    devices: Any
    """Allocated devices; None if the family allocates none by name."""
    annotations: Mapping[str, str]
    """Annotations of the pod's Binding."""


class FamilyBook:
    """The devices of one family in the cluster, and the pods that use them, kept current by events.

    Methods of section `in` are called for each event, `out` for snapshots, and the last section before each Binding.
    """

    live = False
    """True for the pods of a real cluster, to which the scheduler writes; False offline. The cache sets it."""
    is_idle = False
    """True while the book is empty: snapshots then have no view of it, and drafts no ledger. A book that may be idle
    sets it on creation, and clears it permanently on the first update."""
    kinds: tuple[type[Wire], ...] = ()
    """Kinds of objects, besides nodes, that update the book."""
    told_resources: Collection[str] = ()
    """Resources of which the allocation of an assumed pod is passed to `hold`. For other resources the annotations that
    the assumed pod already has state it."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, obj: Any) -> None:
        """Adds or updates an object of `kinds`. Raises `UnreadableError` if it cannot be read, and then changes
        nothing."""

    def drop(self, kind: type[Wire], key: str) -> None:
        """Removes an object (`namespace/name`, or a cluster-scoped name). An unknown object is ignored."""

    def get(self, kind: type[Wire], key: str) -> Any:
        """Returns an object of `kinds`; None for an unknown one."""
        return None

    def objects_of(self, kind: type[Wire]) -> Mapping[str, Any]:
        """Returns the objects of one of `kinds` by key. Must not be changed."""
        return {}

    def put_node(self, node: Node) -> None:
        """Adds or updates a node."""

    def drop_node(self, name: str) -> None:
        """Removes a node; pods on it stay known."""

    def put_group(self, group: UpstreamPodGroup) -> None:
        """Adds or updates an upstream PodGroup."""

    def drop_group(self, key: str) -> None:
        """Removes an upstream PodGroup (`namespace/name`)."""

    def hold(self, pod: PodInfo, allocated: Any) -> None:
        """Adds a pod that is bound or assumed to a node.

        allocated: allocation of an assumed pod; None if the annotations of the pod state it.
        """

    def release(self, pod: PodInfo) -> None:
        """Removes a pod that was added by `hold`."""

    def bind(self, pod: Pod, node: str, allocated: Any) -> None:
        """Applies a confirmed Binding to the family's objects, in offline runs. allocated: None for none."""

    # -- out ----------------------------------------------------------------------------------------------------------

    def view(self) -> FamilyView:
        """Returns the view of the current state."""
        return FamilyView()

    @property
    def amended(self) -> Collection[str]:
        """Names of nodes for which `amendment` may have changed since the last view."""
        return ()

    def amendment(self, node: str) -> Amendment | None:
        """Returns the family's correction of a node's amounts; None for none."""
        return None

    def charges(self, pods: Iterable[PodInfo]) -> Mapping[str, ClaimedAmounts]:
        """Returns pod key -> amounts that quotas count for devices of the pod, besides its requests.

        pods: all pods with resource claims.
        """
        return {}

    def added_total(self) -> Mapping[str, int]:
        """Returns resource -> amount to add to the total that quotas share, besides the amounts of nodes; may be below
        0 where the sum of all nodes counts a device twice."""
        return {}

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Returns name of a gauge of `observe/metrics.py` -> label -> number of nodes; empty for none."""
        return {}

    def predicts_admission(self, node: str) -> bool:
        """Returns whether the family predicts which pods the kubelet of a node (name) rejects with
        TopologyAffinityError."""
        return False

    # -- a plan on its way to the API server --------------------------------------------------------------------------

    def is_lost(
        self, planned: Sequence[PlannedAllocation], ending: Collection[str], *, new_pods: Sequence[PodInfo]
    ) -> bool:
        """True if devices that a plan allocates are in use by another pod by now, or may no longer be allocated.

        ending: keys of pods on the plan's nodes that are about to end, because the plan evicts them or they are
        terminating. Their devices count as free. new_pods: pods that were bound to the plan's nodes after the plan was
        made.
        """
        return False

    def is_delivered(self, nodes: Iterable[str]) -> bool:
        """False while the devices of one of the nodes cannot be delivered to containers."""
        return True

    def ground(self, nodes: Collection[str]) -> list[object]:
        """Returns the objects that describe the devices of nodes (names); after a change they are other objects."""
        return []


@dataclass(frozen=True)
class DeviceFamilies:
    """Readers and books of all families, by name and in the order of the registry; a cache is created with them."""

    readers: AskReaders = field(default_factory=AskReaders)
    """Readers of device requests."""
    books: Mapping[str, FamilyBook] = field(default_factory=dict)
    """Family -> empty book."""
