"""The interface of a device family: GPUs, Ascend NPUs, devices of resource claims, each in a separate folder.

The number of devices of a node is a resource like any other. A family adds what the number does not say: which devices
are free, which sets of them serve a pod, and the annotations of a Binding. From the cluster to the Binding:

| event | code that handles it |
|---|---|
| a pod is read | `AskReader` of the family; its device request is stored as `PodInfo.asks[name]` |
| objects, nodes or pods change | the `FamilyBook` of the family in the `ClusterState` |
| a snapshot is taken | `FamilyBook.view()`, stored as `Snapshot.families[name]` |
| a round plans on a Draft | its `DeviceLedger`, stored as `Draft.ledgers[name]`: assign, release, evict, restore |
| filters, problems, scores, victims, plan check, messages | the methods of `Family` below |
| a plan is carried out | `FamilyBook.is_lost`, `is_delivered` |

The lower half (reader, book, view, ledger) is called by the cache, the upper half (`Family`) by filters and problems.
The cache may import neither: it knows the base classes of the lower half (`pods/device_asks.py`,
`pods/family_books.py`), and receives readers and books from `family_registry.device_families` when it is created. So
one line in `FAMILIES` registers both halves without an import cycle. Requests, allocations and holdings of devices are
`Any` outside the family.

The default of a method means that the number of devices decides. Methods are called only for pods with a request to the
family, unless their docstring says otherwise. All results apply to the current draft; a family that caches values of
nodes recomputes them for the nodes of `Draft.touched_since`.
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
    """The part of a round that a family may use."""

    scene: FilterInputs

    @property
    def notes(self) -> Mapping[str, Mapping[str, str]]:
        """Pod key -> annotations of the Binding of a pod that this round has placed."""

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """Returns the filters of a pending pod that read more than the pod and a node, current with the draft."""

    def takes(self, pod: PodInfo, node: int) -> bool:
        """Returns whether every filter accepts a pending pod on a node (position) of the current draft."""


class NodeWorth(NamedTuple):
    """Cost of nodes for a unit, by the number of its pods on each."""

    table: ByCount
    standing: Ints | None = None
    """[nodes] 1 if a node counts as used already, for a unit without a gather goal; None for no such nodes."""


Placed = Sequence[tuple[PodInfo, int]]
"""(pod, node position) of the pods of a plan with a request to the family."""


class Obstruction(NamedTuple):
    """A pod with devices that prevent the placement of a waiting pod."""

    pod: str
    sentence: str
    """What is wrong, as a clause of a message."""
    miss: str
    """Condition that completes the sentence `Would fit if ...`."""


class Family(ABC):
    """One device family."""

    name: str = ""
    """Key of the family in requests, views, ledgers, allocations and plan faults."""
    title: str = ""
    """Name of the devices in messages, such as `GPUs`."""
    plugin: str = ""
    """Name of the family's filter, if evictions may resolve its refusals; empty otherwise. The victim search then
    relies only on the refusals that no eviction resolves (`Rule.standing`)."""

    variables: frozenset[str] = frozenset()
    """Environment variables of containers that the family reads. Other variables of a pod are not stored."""

    # -- the lower half ----------------------------------------------------------------------------------------------

    @abstractmethod
    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Returns the reader of device requests."""

    def book(self, config: KoordpyConfiguration) -> FamilyBook | None:
        """Returns an empty book; None for a family that allocates no named devices and so has neither view nor
        ledger."""
        return None

    def admitted(self, pod: Pod, config: KoordpyConfiguration) -> Pod:
        """Returns a new pod as the admission webhook would change it; offline commands run without the webhook."""
        return pod

    resources: frozenset[str] = frozenset()
    """Resources of nodes that are reported through `node_report`; empty for none."""

    # -- what wakes waiting units --------------------------------------------------------------------------------------

    def node_report(self, node: Node) -> object:
        """Returns what affects devices of a node besides its labels and amounts. A change of it wakes waiting units."""
        return None

    def is_report(self, config_map: ConfigMap) -> bool:
        """True if a ConfigMap describes devices of the family; other ConfigMaps are not stored."""
        return False

    def object_report(self, config_map: ConfigMap) -> object:
        """Returns the part of such a ConfigMap that affects devices. A change of it wakes waiting units."""
        return None

    # -- the Binding ---------------------------------------------------------------------------------------------------

    moment_annotation: str = ""
    """Annotation of a Binding that states the time of its request in nanoseconds; empty for none."""

    spans_nodes: bool = False
    """True if the family's rules place jobs over several nodes, so that a placement elsewhere may affect them."""

    # -- filters -----------------------------------------------------------------------------------------------------

    def refusal(self, pod: PodInfo, scene: FilterInputs) -> Refusal | None:
        """Returns why the pod's device request is invalid, before any node is tried; None if it is valid."""
        return None

    @abstractmethod
    def rules(self, pod: PodInfo, scene: FilterInputs) -> Iterable[Rule]:
        """Yields the family's filter for a pod; nothing if the number of devices decides alone."""

    def signature(self, pod: PodInfo, scene: FilterInputs) -> str:
        """Returns what distinguishes pending pods of one shape, such as their job; empty for nothing.

        Pods of one shape with equal signatures share their rules.
        """
        return ""

    # -- the problem of a unit ---------------------------------------------------------------------------------------

    def apart(self, pod: PodInfo) -> Hashable:
        """Returns what distinguishes pods with equal requests and equal feasible nodes; None for nothing."""
        return None

    def room(self, pods: Sequence[PodInfo], scene: FilterInputs) -> Ints | None:
        """Returns [nodes] devices that the pods of a unit share, if a node may have fewer than its resource states;
        else None.

        Also called for units without a request to the family.
        """
        return None

    def asked(self, pod: PodInfo) -> int:
        """Returns the number of devices of `room` that a pod uses. Also called for pods without a request to the
        family."""
        return 0

    def of_requests(self, held: Mapping[str, int], scene: FilterInputs) -> int:
        """Returns the number of devices of `room` that requests of nominated pods use. held: resource -> amount."""
        return 0

    def worth(
        self, kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool
    ) -> NodeWorth | None:
        """Returns the cost of nodes for a unit; None if they cost the same. Also called for units without a request to
        the family.

        kinds: one pod of each shape of the unit's problem, in order. gather: True if the unit has a gather goal.
        """
        return None

    def serves(self, node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
        """Returns whether the devices of a node serve pods of different shapes together, given that they serve each pod
        alone."""
        return True

    # -- a plain pod -------------------------------------------------------------------------------------------------

    def costs(self, pod: PodInfo, nodes: Ints, scene: FilterInputs) -> Sequence[Ints]:
        """Returns costs of nodes (positions) for a plain pod, compared before scores.

        Each array is shaped like `nodes`, lower is better, and the first array is the most important. Called only if
        several nodes accept the pod.
        """
        return ()

    # -- the plan ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def give(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Returns the devices of the pods of a plan (pod key -> node position, in rank order), allocated on the draft
        before the plan."""

    def check(
        self, placed: Placed, given: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], now: FamilyRound
    ) -> Iterable[str]:
        """Yields faults of the devices that a plan allocates, on the draft before the plan. Must not share code with
        `give`.

        placed: every pod of the plan. given, notes: allocation of the family, and annotations of the Binding, by pod
        key. Called if a pod of the plan has a request to the family or an allocation of it.
        """
        return ()

    def takes_promised(self, placed: Placed, reserved: Mapping[int, Mapping[str, int]], scene: FilterInputs) -> bool:
        """Returns whether pods on nodes use devices that are reserved for nominated pods, on the draft before them.

        reserved: node position -> resource -> amount that nominated pods will still use there.
        """
        return False

    # -- numbers -----------------------------------------------------------------------------------------------------

    counts_decide: bool = True
    """False if feasibility depends on which devices are free, and on the jobs that use them. Sums of devices then prove
    nothing."""

    # -- victims -----------------------------------------------------------------------------------------------------

    def is_counted(self, pods: Iterable[PodInfo], scene: FilterInputs) -> bool:
        """Returns whether sums of devices decide if pods fit, so that a dry run need not allocate devices."""
        return True

    tells_victims_apart: bool = False
    """True if the choice among victims with equal resources matters to the family, and no column expresses the
    difference."""

    def freeable(
        self, kinds: Sequence[PodInfo], scene: FilterInputs, *, reserved: Mapping[int, Mapping[str, int]]
    ) -> Ints | None:
        """Returns [nodes] free devices as a column of the victim problem, in units of `asked`; None for no column.

        The column must never be below the number that is really free after any evictions. kinds: one pending pod of
        each shape of a unit. reserved: node position -> resource -> amount reserved against these pods.
        """
        return None

    def held(self, pod: PodInfo, scene: FilterInputs) -> int:
        """Returns the devices of the `freeable` column that evicting a bound pod frees."""
        return 0

    def usable(self, scene: FilterInputs) -> Ints | None:
        """Returns [nodes] devices of the empty node, in units of `asked`; None if the node's resource states them."""
        return None

    def by_number(self, pod: PodInfo) -> Iterable[str]:
        """Returns the resources of a pod that may denote a part of a device and are scheduled by number."""
        return ()

    # -- messages ----------------------------------------------------------------------------------------------------

    def mark(self, pod: PodInfo, scene: FilterInputs) -> tuple[str, Callable[[int], float | None]] | None:
        """Returns (name, function from node to value) of a value that `koordpy explain` shows next to the scores; None
        for none.

        The value is None for nodes without one. It is not part of the total score.
        """
        return None

    def obstruction(self, pod: PodInfo, now: FamilyRound) -> "Obstruction | None":
        """Returns a pod with devices that would have to be freed for a waiting pod to fit; None for none."""
        return None

    def bottlenecks(self, nodes: Mapping[str, int], now: FamilyRound) -> Iterable[float]:
        """Yields GB/s of the slowest link between the devices of each pod of a plan (key -> node position), on the
        draft."""
        return ()

    def remedies(self, snapshot: Snapshot) -> Iterable[tuple[str, Callable[[Snapshot], Snapshot]]]:
        """Yields (text, change of a snapshot) of device faults that may keep pods pending.

        The text completes the sentence `Would fit if ...`; the change is tried before the text is shown. The most
        useful remedies come first, because few are tried.
        """
        return ()

    def node_warnings(self, snapshot: Snapshot) -> Iterable[tuple[str, str]]:
        """Yields (object such as Node/n1, text) of device settings of nodes that have no effect. Called if a pending
        pod has a request to the family."""
        return ()

    def warnings(self, pod: PodInfo) -> Iterable[str]:
        """Yields warnings about parts of a pod's device request that are unreadable or have no effect."""
        return ()

    def cells(self, node: str, given: Any, families: Mapping[str, Any]) -> Collection[int]:
        """Returns the devices that a plan allocates to a pod, as positions among all devices of the node, for the web
        UI.

        families: views of the snapshot by family.
        """
        return ()
