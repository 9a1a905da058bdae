# SPDX-License-Identifier: Apache-2.0
"""Base classes with which the cache, the Snapshot and the Draft handle a family of devices: book, view and ledger.

A book records the devices of the family and the pods that use them, and is updated by events. A view is the state of
the book at one moment; the Snapshot stores it. A ledger records the devices that a Draft allocates. The cache only
stores and passes on allocations, typed as `Any`; only the family interprets them. The cache receives the families when
it is created (`devices/family_registry.py`), so neither this module nor the cache imports a family.

A ledger stores no state of nodes. A family recomputes its state of the nodes in `Draft.touched_since`: every change of
a Draft, and every undo, marks its node as touched.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from koordpy.api.objects import Node, Pod, Wire
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.pods.device_asks import AskReaders
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, ClaimedAmounts

AllocatedDevices = Mapping[str, Any]
"""Allocation of a pod: family -> devices, as a value that only the family interprets. Families that allocate no device
by name to the pod have no entry."""
NO_DEVICES: AllocatedDevices = {}
"""Allocation of a pod without devices by name. Must not be changed."""


class DeviceLedger:
    """Allocations of one family on a Draft.

    The Draft undoes `assign` with `release` and `evict` with `restore`, the latest change first. A family that reads
    evicted pods from `Draft.evicted` needs no other methods.
    """

    def __init__(self) -> None:
        self.allocations: dict[str, Any] = {}
        """Key of a pod that the Draft has placed -> its allocation."""

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

    def untie_deleted(self, pods: Mapping[str, PodInfo]) -> Callable[[], None] | None:
        """Frees devices that come free without evictions, because other objects still allocate them to deleted or
        finished pods.

        pods: all pods of the snapshot. Returns the function that undoes it; None if there are no such devices, and
        offline, where an unknown pod may exist. A consumer that the Draft has evicted counts as deleted.
        """
        return None

    def moved_together(self, pod: PodInfo, pods: Mapping[str, PodInfo]) -> frozenset[str] | None:
        """Returns the uids of all pods that must move if a bound pod moves, because they use the same devices.

        Empty if the pod shares no devices. None if the pod must not move, because its devices do not come free with the
        pods that use them, or because other pods need them. pods: all pods of the snapshot, by key.
        """
        return frozenset()


class FamilyView:
    """The devices of one family at one moment. Immutable."""

    warnings: tuple[tuple[str, str], ...] = ()
    """Warnings about settings of objects that have no effect: (object, text)."""

    def ledger(self) -> DeviceLedger:
        """Returns the ledger of a new Draft."""
        return DeviceLedger()

    def without_pods(self, gone: Collection[PodInfo]) -> Self:
        """Returns the view without the given bound pods, as if they were deleted."""
        return self

    def with_nodes(self, like: Mapping[str, str]) -> Self:
        """Returns the view with added nodes, for what-if questions.

        like: name of a new node -> name of a node with the same devices; empty for a node without devices.
        """
        return self

    def ground(self) -> object:
        """Returns an object with the devices of all nodes, without their users. While it is the same object, results
        about the empty cluster stay valid."""
        return None

    def state_of(self, node: str) -> object:
        """Returns an object with the devices of a node (name); None for a node without devices.

        While it is the same object, the devices have not changed.
        """
        return None

    def moved_pods(self, before: Self) -> Iterable[str]:
        """Yields the keys of pods on nodes with changed allocations since an earlier view (`before`), as far as the
        pods use devices."""
        return ()

    def served_resources(self, resources: Collection[str]) -> frozenset[str]:
        """Returns those extended resources that devices of claims serve on nodes without the resource."""
        return frozenset()

    def cells_of(self, node: str, pod: str) -> Sequence[int]:
        """Returns the positions, among the devices of a node, of those that one of its pods (key) uses. Empty if they
        are not known."""
        return ()

    def is_room_of(self, before: Self) -> bool:
        """Returns True if all nodes have as many free devices as in an earlier view (`before`), so that the web UI need
        not redraw them."""
        return True

    def shown(self, node: str) -> "ShownDevices | None":
        """Returns the devices of a node as the web UI draws them; None for none."""
        return None

    def links_of(self, node: str) -> "KnownLinks | None":
        """Returns the links between the devices of a node (name); None if the family does not know the identities of
        the devices (UUID or PCI bus)."""
        return None

    @property
    def sick_holders(self) -> frozenset[str]:
        """Returns the keys of the pods that use a device which is reported as unhealthy."""
        return frozenset()

    def amends(self, node: str) -> bool:
        """Returns True if the family corrects the amounts of a node, depending on the devices that its pods use
        (`FamilyBook.amendment`)."""
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
    """Product name of the devices; empty if the node's labels state it."""


class ShownLinks(NamedTuple):
    """Links between the devices of a node."""

    key: object
    """An object that all nodes with equal links share."""
    source: str
    """The source of the data about links, such as `bandwidth` or `links`."""
    lowest: Sequence[Sequence[int]]
    """[devices][devices] kB/s of each pair, the lower of both directions."""


class KnownLinks(NamedTuple):
    """Links between the devices of a node, for another family that has the same devices and finds them by identity."""

    ids: Mapping[str, int]
    """UUID of a device -> its position."""
    bus_ids: Mapping[str, int]
    """PCI bus id of a device -> its position."""
    classes: Sequence[Sequence[int]] | None
    """[devices][devices] the bandwidth of each pair, in kB/s, rounded to classes of similar links on this node. None if
    no links are known."""
    compared: Sequence[Sequence[int]] | None
    """The same as `classes`, with classes over all nodes, so that values of different nodes can be compared."""
    lowest: Sequence[Sequence[int]] | None
    """[devices][devices] the bandwidth of each pair, in kB/s, the lower of both directions; None if no links are
    known."""
    numa: Sequence[int | None]
    """NUMA node of each device; None if it is unknown."""
    roots: Sequence[str]
    """PCIe root of each device; empty if it is unknown."""


class Amendment:
    """A correction of a node's resource amounts by a family, for example if the node subtracts GPUs twice.

    Corrections that are equal by `==` must have the same effect.
    """

    def amended(self, stated: Amounts) -> Amounts:
        """Returns the corrected amounts of a node. stated: the amounts in the node's status."""
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

    The methods of the section `in` are called for events, those of `out` for snapshots, and those of the last section
    before evictions and Bindings.
    """

    live = False
    """True for the pods of a real cluster, to which the scheduler writes; False offline. The cache sets it."""
    is_idle = False
    """True while the book is empty: then snapshots have no view of it, and drafts no ledger. A book that may be idle
    sets it to True on creation, and permanently to False on the first update."""
    kinds: tuple[type[Wire], ...] = ()
    """Kinds of objects, besides nodes, that update the book."""
    told_resources: Collection[str] = ()
    """Resources for which the allocation of an assumed pod is passed to `hold`. For other resources, annotations that
    the assumed pod already has state the allocation."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, obj: Any) -> None:
        """Adds or updates an object of `kinds`. Raises `UnreadableError` if the object is invalid, and then changes
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
        """Removes a node, but not the pods on it."""

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
        """Applies a Binding to the family's objects in offline runs, as controllers would. allocated: None without
        devices."""

    # -- out ----------------------------------------------------------------------------------------------------------

    def view(self) -> FamilyView:
        """Returns the view of the current state."""
        return FamilyView()

    @property
    def amended(self) -> Collection[str]:
        """Returns the names of nodes for which `amendment` may have changed since the last view."""
        return ()

    def amendment(self, node: str) -> Amendment | None:
        """Returns the family's correction of a node's amounts; None if it corrects nothing."""
        return None

    def charges(self, pods: Iterable[PodInfo]) -> Mapping[str, ClaimedAmounts]:
        """Returns pod key -> amounts that quotas count for devices of the pod, besides its requests.

        pods: all pods with resource claims.
        """
        return {}

    def added_total(self) -> Mapping[str, int]:
        """Returns resource -> amount to add to the sum over all nodes, to get the total that quotas share. It is
        negative if that sum counts a device twice."""
        return {}

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Returns name of a gauge of `observe/metrics.py` -> label -> number of nodes; empty if the family has no
        gauge."""
        return {}

    def predicts_admission(self, node: str) -> bool:
        """Returns True if the family predicts which pods the kubelet of a node (name) would reject with
        TopologyAffinityError."""
        return False

    def device_users(self, *, pods: Collection[str] = (), node: str = "") -> Iterable[Collection[str]]:
        """Yields the users of devices that come free later than the pods end, because other objects allocate them: for
        each allocation to one of `pods`, or of devices of a node (name), the uids of the pods that use it."""
        return ()

    # -- a plan on its way to the API server --------------------------------------------------------------------------

    def is_lost(
        self, planned: Sequence[PlannedAllocation], ending: Collection[str], *, new_pods: Sequence[PodInfo]
    ) -> bool:
        """Returns True if a device that a plan allocates is now used by another pod, or may not be allocated any more.

        ending: keys of pods on the plan's nodes that are terminating, or that the plan evicts. Their devices count as
        free. new_pods: pods that were bound to the plan's nodes after the plan was made.
        """
        return False

    def is_delivered(self, nodes: Iterable[str]) -> bool:
        """Returns False while one of the nodes cannot deliver its devices to containers."""
        return True

    def ground(self, nodes: Collection[str]) -> list[object]:
        """Returns objects with the devices of nodes (names). While they are the same objects, nothing has changed."""
        return []


@dataclass(frozen=True)
class DeviceFamilies:
    """Readers and books of all families, in the order of the registry. A cache is created with them."""

    readers: AskReaders = field(default_factory=AskReaders)
    """Readers of device requests."""
    books: Mapping[str, FamilyBook] = field(default_factory=dict)
    """Family -> empty book."""
