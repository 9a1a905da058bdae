"""What a family of devices is to koordpy: GPUs, Ascend NPUs, devices of resource claims, each in a folder of its own.

How many devices a node has is a resource like any other. A family says what the number does not: which devices are
free, which sets serve a pod, and what a Binding must say. Its life, from the cluster to the Binding:

| what happens | who is asked |
|---|---|
| a pod is read | `AskReader` of the family: what the pod asks, kept as `PodInfo.asks[name]` |
| objects and nodes change, pods come and go | its `FamilyBook`, in the `ClusterState` |
| a snapshot is taken | `FamilyBook.view()`, kept as `Snapshot.families[name]` |
| a round plans on a Draft | its `DeviceLedger`, kept as `Draft.ledgers[name]`: assign, release, evict, restore |
| a node is judged, counted, chosen; victims; checks; words | the methods of `Family` below |
| a plan is carried out | `FamilyBook.is_lost`, `is_delivered` |

The lower half (reader, book, view, ledger) rests on the cache, the upper half (`Family`) on filters and problems. The
cache stands below both and may import neither: it knows the base classes of the lower half (`pods/device_asks.py`,
`pods/family_books.py`), and is given the readers and books when it is made, by `family_registry.device_families`.
So one line in `FAMILIES` registers both halves, and there is no circle. What a pod asks, holds or is given is `Any`
outside the family.

A method that a family does not define says that the number of devices decides. Nothing here is asked about a pod that
asks nothing of the family, except where a method says so. All of it follows a plan's draft; a family that keeps figures
of nodes makes them anew for the nodes of `Draft.touched_since`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from koordpy.api.objects import ConfigMap, Node, Pod
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.placement.problem import ByCount
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import AskReader
from koordpy.pods.family_books import FamilyBook
from koordpy.pods.pod_info import PodInfo


class FamilyRound(Protocol):
    """What a family sees of a round."""

    scene: FilterInputs

    @property
    def notes(self) -> Mapping[str, Mapping[str, str]]:
        """Pod key -> annotations of the Binding of a pod that this round has placed."""

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """The filters of a pending pod that look at more than the pod and a node, current."""

    def takes(self, pod: PodInfo, node: int) -> bool:
        """True if every filter lets a pending pod on a node (position), on the draft as it is."""


class NodeWorth(NamedTuple):
    """What nodes are worth to a unit by how many of its pods each takes. standing: [nodes] 1 where one counts as used
    already, for a unit without a gather goal; None for none."""

    table: ByCount
    standing: Ints | None = None


Placed = Sequence[tuple[PodInfo, int]]
"""(pod, node position) of a plan's pods that ask of a family."""


class Obstruction(NamedTuple):
    """A pod that stands in the way of a waiting pod. sentence: what is wrong; miss: an end of `Would fit if`."""

    pod: str
    sentence: str
    miss: str


class Family(ABC):
    """One family of devices."""

    name: str = ""
    """Its key in asks, views, ledgers and allocations; the word of its check and of plans that it calls lost."""
    title: str = ""
    """Its devices in messages: `GPUs`."""
    plugin: str = ""
    """Of its filter, where evictions may open nodes that it refuses: victims are looked for on what it says of devices
    that nobody can give back (`Rule.standing`)."""

    variables: frozenset[str] = frozenset()
    """Names of the environment variables of containers that the family reads; others are not kept of pods."""

    # -- the lower half ----------------------------------------------------------------------------------------------

    @abstractmethod
    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Returns what reads the asks of pods."""

    def book(self, config: KoordpyConfiguration) -> FamilyBook | None:
        """Returns an empty book; None for a family that gives nothing by name: it has no view and no ledger either."""
        return None

    def admitted(self, pod: Pod, config: KoordpyConfiguration) -> Pod:
        """Returns a new pod as the admission webhook leaves it; offline commands have none."""
        return pod

    resources: frozenset[str] = frozenset()
    """Resources of nodes whose reports `node_report` reads; empty for none."""

    # -- what wakes waiting units --------------------------------------------------------------------------------------

    def node_report(self, node: Node) -> object:
        """Returns what decides over devices of a node beside its labels and amounts; compared with the last one."""
        return None

    def is_report(self, config_map: ConfigMap) -> bool:
        """True if a ConfigMap says something of devices of the family; others are not kept."""
        return False

    def object_report(self, config_map: ConfigMap) -> object:
        """Returns what of such a ConfigMap decides over devices; compared with the last one."""
        return None

    # -- the Binding ---------------------------------------------------------------------------------------------------

    moment_annotation: str = ""
    """Annotation of a Binding that is the time of its sending, in nanoseconds; empty for none."""

    spans_nodes: bool = False
    """True if rules of the family place jobs over several nodes, so that a placement elsewhere may matter to them."""

    # -- filters -----------------------------------------------------------------------------------------------------

    def refusal(self, pod: PodInfo, scene: FilterInputs) -> Refusal | None:
        """What is wrong with what a pod says of its devices: then no node is tried."""
        return None

    @abstractmethod
    def rules(self, pod: PodInfo, scene: FilterInputs) -> Iterable[Rule]:
        """The filter of a pod; none where the number of devices decides alone."""

    def signature(self, pod: PodInfo, scene: FilterInputs) -> str:
        """Returns what tells pending pods of one shape apart, as a job that others of them are not in; empty for
        nothing.

        Pods of one shape with equal signatures share their rules.
        """
        return ""

    # -- the problem of a unit ---------------------------------------------------------------------------------------

    def apart(self, pod: PodInfo) -> Hashable:
        """What tells pods apart that are equal in requests and nodes; None for nothing."""
        return None

    def room(self, pods: Sequence[PodInfo], scene: FilterInputs) -> Ints | None:
        """[nodes] devices that all pods of a unit share, where those are fewer than the node's resource says. Also
        asked of units that ask nothing of the family."""
        return None

    def asked(self, pod: PodInfo) -> int:
        """Devices of that room that a pod takes. Also asked of pods that ask nothing of the family."""
        return 0

    def of_requests(self, held: Mapping[str, int], scene: FilterInputs) -> int:
        """Devices of that room in requests: resource -> amount, as of nominated pods."""
        return 0

    def worth(
        self, kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool
    ) -> NodeWorth | None:
        """What nodes are worth to a unit. kinds: a pod of each shape of its problem, in order; gather: whether it has a
        gather goal. Also asked of units that ask nothing of the family."""
        return None

    def serves(self, node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
        """Whether a node has devices for pods of different shapes together, each of which it serves alone."""
        return True

    # -- a plain pod -------------------------------------------------------------------------------------------------

    def costs(self, pod: PodInfo, nodes: Ints, scene: FilterInputs) -> Sequence[Ints]:
        """What nodes (positions) cost a plain pod before the scores count: arrays like `nodes`, least first, the first
        the most important. Asked only where several nodes take the pod."""
        return ()

    # -- the plan ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def give(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Devices for those pods of a plan that ask for some (pod key -> node position, in rank order), on the draft as
        it is before it."""

    def check(
        self, placed: Placed, given: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], now: FamilyRound
    ) -> Iterable[str]:
        """Faults of what a plan gives, on the draft as it is before it; shares nothing with `give`.

        placed: every pod of the plan; given, notes: by pod key, what pods are given of this family, and what their
        Bindings say. Asked if any pod of the plan asks of the family, or is given some of it.
        """
        return ()

    def takes_promised(self, placed: Placed, kept: Mapping[int, Mapping[str, int]], scene: FilterInputs) -> bool:
        """True if pods on nodes take devices that nominated pods count on, on the draft as it is before them.

        kept: node position -> resource -> what nominated pods are still to get there.
        """
        return False

    # -- numbers -----------------------------------------------------------------------------------------------------

    counts_decide: bool = True
    """False if which devices are free, and the jobs that hold them, decide where pods fit: sums of devices prove
    nothing."""

    # -- victims -----------------------------------------------------------------------------------------------------

    def is_counted(self, pods: Iterable[PodInfo], scene: FilterInputs) -> bool:
        """True if sums of devices tell whether pods find room, so that no trial needs to give devices."""
        return True

    tells_victims_apart: bool = False
    """True if it matters which victims go, however equal their figures, and no column says so."""

    def freeable(
        self, kinds: Sequence[PodInfo], scene: FilterInputs, *, reserved: Mapping[int, Mapping[str, int]]
    ) -> Ints | None:
        """[nodes] free devices as a column of the problem with victims, in units of `asked`; None for no column.

        Never below what is really free once some of the pods are gone. kinds: a pending pod of each shape of a unit;
        reserved: node position -> resource -> what is kept from them there.
        """
        return None

    def held(self, pod: PodInfo, scene: FilterInputs) -> int:
        """Devices of that column that a bound pod gives back when it goes."""
        return 0

    def usable(self, scene: FilterInputs) -> Ints | None:
        """[nodes] devices that could be given if no pod were there, in units of `asked`; None if the resource tells."""
        return None

    def by_number(self, pod: PodInfo) -> Iterable[str]:
        """Resources of a pod that may stand for a part of a device and are counted by number."""
        return ()

    # -- words -------------------------------------------------------------------------------------------------------

    def mark(self, pod: PodInfo, scene: FilterInputs) -> tuple[str, Callable[[int], float | None]] | None:
        """(name, [node] figure or None) that `koordpy explain` shows beside the scores; no part of the total."""
        return None

    def obstruction(self, pod: PodInfo, now: FamilyRound) -> "Obstruction | None":
        """A pod that holds devices in such a way that a waiting pod would have room once it is gone; None for none."""
        return None

    def bottlenecks(self, nodes: Mapping[str, int], now: FamilyRound) -> Iterable[float]:
        """GB/s of the weakest link within the devices of each pod of a plan (key -> node position) on the draft."""
        return ()

    def remedies(self, snapshot: Snapshot) -> Iterable[tuple[str, Callable[[Snapshot], Snapshot]]]:
        """(text, change of a snapshot) of faults of devices that hold pods back: ends of `Would fit if`, to be tried.
        The most useful first; few are tried."""
        return ()

    def node_warnings(self, snapshot: Snapshot) -> Iterable[tuple[str, str]]:
        """Yields (object such as Node/n1, text) of what nodes say in vain. Asked if a pending pod asks of the
        family."""
        return ()

    def warnings(self, pod: PodInfo) -> Iterable[str]:
        """What a pod asks of devices that cannot be read, or does nothing."""
        return ()

    def cells(self, node: str, given: Any, families: Mapping[str, Any]) -> Collection[int]:
        """Positions, among all devices of a node, of those that a plan gives a pod: what the page draws.

        families: the views of the snapshot.
        """
        return ()
