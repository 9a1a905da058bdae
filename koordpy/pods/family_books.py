"""What the cache, the Snapshot and the Draft know of a family of devices: a book, a view and a ledger under its name.

A book takes in what the cluster says and who holds what; it gives a view of one moment, which the Snapshot keeps; a
view gives a ledger, in which a Draft writes what its plan gives. What they hold is the family's own affair: the cache
passes on what a pod is given (`Any`) and never looks into it. The families are given to the cache when it is made
(`devices.family_registry`), so nothing here, or in the cache, imports one.

A ledger keeps no figures of nodes. What a family works out for a node it works out anew for the nodes of
`Draft.touched_since`: every change of a Draft, its undo included, touches the node that it is on.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from koordpy.api.objects import Node, Pod, Wire
from koordpy.pods.device_asks import AskReaders
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts

Given = Mapping[str, Any]
"""Family -> what a pod is given of it; families that give it nothing by name are left out."""
NOTHING_GIVEN: Given = {}


class DeviceLedger:
    """What a Draft gives of one family. given: pod key -> what a pod that the Draft has placed is given.

    The Draft calls `release` for what `assign` did, and `restore` for what `evict` did, the latest first. A family that
    reads who is gone from `Draft.evicted` needs no more than this.
    """

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def assign(self, pod: PodInfo, node: int, given: Any) -> None:
        """Takes what a placed pod is given on a node (position)."""
        self.given[pod.key] = given

    def release(self, pod: PodInfo) -> None:
        """Takes back what `assign` did."""
        del self.given[pod.key]

    def evict(self, pod: PodInfo) -> None:
        """Takes that a bound pod that asks for devices of the family leaves its node."""

    def restore(self, pod: PodInfo) -> None:
        """Takes back what `evict` did."""


class FamilyView:
    """The devices of one family at one moment. Nothing in it changes."""

    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of what objects say in vain."""

    def ledger(self) -> DeviceLedger:
        """Returns the ledger of a new Draft."""
        return DeviceLedger()

    def without_pods(self, gone: Collection[PodInfo]) -> Self:
        """Returns the view after bound pods have left their nodes."""
        return self

    def with_nodes(self, like: Mapping[str, str]) -> Self:
        """Returns the view with new nodes (name -> the node whose devices each has; empty for none)."""
        return self

    def ground(self) -> object:
        """Returns what answers about the empty cluster depend on; another object once that changed."""
        return None

    def state_of(self, node: str) -> object:
        """Returns what is known of a node's devices; another object once that changed. None for nothing."""
        return None

    def moved_pods(self, before: Self) -> Iterable[str]:
        """Returns the pods that hold devices on nodes where holders changed since an earlier view, by key."""
        return ()

    def cells_of(self, node: str, pod: str) -> Sequence[int]:
        """Returns the positions, among all devices of a node, of those that a pod on it (key) holds; empty if they
        cannot be told."""
        return ()

    def is_room_of(self, before: Self) -> bool:
        """True if as many devices are free as in an earlier view, as far as the page's figures tell."""
        return True

    def shown(self, node: str) -> "ShownDevices | None":
        """Returns what the page draws of a node's devices; None for nothing."""
        return None

    def amends(self, node: str) -> bool:
        """True if the amounts of a node follow from what pods hold there (`FamilyBook.amendment`)."""
        return False


class ShownDevices(NamedTuple):
    """Devices of one node, as the page draws them. sick: positions; links: what tells them apart and how fast the pairs
    are, one object for all nodes of equal links, None where not known; product: empty where labels say it."""

    size: int
    sick: tuple[int, ...]
    links: "ShownLinks | None" = None
    product: str = ""


class ShownLinks(NamedTuple):
    """Links of the devices of a node. key: one object for all nodes of equal links; lowest: kB/s of each pair."""

    key: object
    source: str
    lowest: Sequence[Sequence[int]]


class Amendment:
    """What a family knows better of a node's amounts than the node. Equal ones amend alike."""

    def amended(self, stated: Amounts) -> Amounts:
        """Returns the amounts that count, of those that the node states."""
        raise NotImplementedError


class PlannedAllocation(NamedTuple):
    """What a plan gives a pod of one family. given: None where it is given nothing by name."""

    pod: PodInfo
    node: str
    given: Any
    annotations: Mapping[str, str]
    """Of its Binding."""


class FamilyBook:
    """What the cluster says of one family's devices, and which pods hold them."""

    is_idle = False
    """True for as long as the book has nothing to say: snapshots then have no view of it, and drafts no ledger. A book
    that may be idle sets it when it is made, and clears it for good with the first thing that it takes."""
    kinds: tuple[type[Wire], ...] = ()
    """Objects that the book takes beside nodes."""
    told_resources: Collection[str] = ()
    """Resources of which `hold` tells what an assumed pod has; of others its future annotations do."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, obj: Any) -> None:
        """Takes an object of `kinds`. Raises UnreadableError where it cannot be read; nothing changes then."""

    def drop(self, kind: type[Wire], key: str) -> None:
        """Forgets an object (`namespace/name`, or a cluster-scoped name); an unknown one is no fault."""

    def get(self, kind: type[Wire], key: str) -> Any:
        """Returns an object of `kinds`; None for an unknown one."""
        return None

    def put_node(self, node: Node) -> None:
        """Takes a node as it is now."""

    def drop_node(self, name: str) -> None:
        """Forgets a node; pods on it stay known."""

    def hold(self, pod: PodInfo, given: Any) -> None:
        """Takes a pod that is on a node, or assumed there. given: what an assumed pod is given; None where what is
        written on the pod tells."""

    def release(self, pod: PodInfo) -> None:
        """Takes back what `hold` took in."""

    def bind(self, pod: Pod, node: str, given: Any) -> None:
        """Takes what a confirmed Binding does to the family's objects (offline runs). given: None for nothing."""

    # -- out ----------------------------------------------------------------------------------------------------------

    def view(self) -> FamilyView:
        """Returns the devices of this moment."""
        return FamilyView()

    @property
    def amended(self) -> Collection[str]:
        """Nodes of which `amendment` may be another one since the last view."""
        return ()

    def amendment(self, node: str) -> Amendment | None:
        """Returns what the family knows better of a node's amounts; None for nothing."""
        return None

    # -- a plan on its way to the API server --------------------------------------------------------------------------

    def is_lost(
        self, planned: Sequence[PlannedAllocation], going: Callable[[str], bool], *, beside: Sequence[PodInfo]
    ) -> bool:
        """True if devices that a plan gives are another pod's by now, or may not be given any more.

        going: whether a holder (pod key) is about to leave, because the plan evicts it or it is ending; beside: pods
        that others bound to the plan's nodes since it was made.
        """
        return False

    def is_delivered(self, nodes: Iterable[str]) -> bool:
        """False while devices of one of the nodes cannot be handed to containers."""
        return True

    def ground(self, nodes: Collection[str]) -> list[object]:
        """Returns what decides over devices of nodes: other objects once one of them has changed."""
        return []


class LateBook(FamilyBook):
    """A family's book that is made when the first of its devices, pods or objects is seen.

    Until then it is idle: snapshots have no view of it, and nothing of the family's room runs. Afterwards the book
    takes everything.
    """

    def __init__(
        self,
        make: Callable[[], FamilyBook],
        *,
        resources: frozenset[str],
        kinds: tuple[type[Wire], ...] = (),
    ) -> None:
        """resources: of the nodes and pods that the family is about; kinds: as those of the book."""
        self._make, self._resources = make, resources
        self.is_idle = True
        self.kinds = kinds
        self._book: FamilyBook | None = None

    def _started(self) -> FamilyBook:
        if self._book is None:
            self._book = self._make()
            self.is_idle = False
        return self._book

    def put(self, obj: Any) -> None:
        self._started().put(obj)

    def drop(self, kind: type[Wire], key: str) -> None:
        if self._book is not None:
            self._book.drop(kind, key)

    def get(self, kind: type[Wire], key: str) -> Any:
        return self._book.get(kind, key) if self._book is not None else None

    def put_node(self, node: Node) -> None:
        status = node.status
        if self._book is not None or not self._resources.isdisjoint({*status.allocatable, *status.capacity}):
            self._started().put_node(node)

    def drop_node(self, name: str) -> None:
        if self._book is not None:
            self._book.drop_node(name)

    def hold(self, pod: PodInfo, given: Any) -> None:
        if self._book is not None or not self._resources.isdisjoint(pod.requests):
            self._started().hold(pod, given)

    def release(self, pod: PodInfo) -> None:
        if self._book is not None:
            self._book.release(pod)

    def view(self) -> FamilyView:
        return self._started().view()

    @property
    def amended(self) -> Collection[str]:
        return self._book.amended if self._book is not None else ()

    def amendment(self, node: str) -> Amendment | None:
        return self._book.amendment(node) if self._book is not None else None

    def is_lost(
        self, planned: Sequence[PlannedAllocation], going: Callable[[str], bool], *, beside: Sequence[PodInfo]
    ) -> bool:
        return self._started().is_lost(planned, going, beside=beside) if planned or beside else False

    def is_delivered(self, nodes: Iterable[str]) -> bool:
        return self._book is None or self._book.is_delivered(nodes)

    def ground(self, nodes: Collection[str]) -> list[object]:
        return self._book.ground(nodes) if self._book is not None else []


@dataclass(frozen=True)
class DeviceFamilies:
    """What a cache is made with: the readers and the books of all families, by name and in the registry's order."""

    readers: AskReaders = field(default_factory=AskReaders)
    books: Mapping[str, FamilyBook] = field(default_factory=dict)
