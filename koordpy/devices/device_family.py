# SPDX-License-Identifier: Apache-2.0
"""The interface of a device family: GPUs, Ascend NPUs, devices of resource claims, NUMA zones.

To Kubernetes, the devices of a node are an extended resource: a name and a number. A family adds three things: which
devices are free, which sets of devices a pod can use, and the annotations of a Binding that name the devices of a pod.
From the cluster to the Binding:

| event | code that handles it |
|---|---|
| a pod is read | `AskReader` of the family; its device request is stored as `PodInfo.asks[name]` |
| objects, nodes or pods change | the `FamilyBook` of the family in the `ClusterState` |
| a snapshot is taken | `FamilyBook.view()`, stored as `Snapshot.families[name]` |
| a round plans on a Draft | its `DeviceLedger`, stored as `Draft.ledgers[name]`: assign, release, evict, restore |
| filters, problems, scores, victims, plan check, messages | the methods of `Family` below |
| a plan is carried out | `FamilyBook.is_lost`, `is_delivered` |

The reader, the book, the view and the ledger are the lower half of a family; the cache calls them. `Family` is the
upper half; filters and problems call it. The cache must not import a family: it knows only the base classes of the
lower half (`pods/device_asks.py`, `pods/family_books.py`), and receives readers and books from
`family_registry.device_families` when it is created. So one line in `FAMILIES` registers both halves without an import
cycle. Device requests and allocations have the type `Any` outside the family, because only the family reads them.

The default of each method means that the number of devices is the only condition. A method is called only for pods with
a request to the family, unless its docstring says otherwise. All results apply to the current draft. A family that
caches values of nodes computes them again for the nodes of `Draft.touched_since`.
of nodes recomputes them for the nodes of `Draft.touched_since`.

Names of arguments: inputs is the draft, snapshot and configuration of the round (`FilterInputs`); now is the part of
the round that a family may use (`FamilyRound`); allocated is an allocation: the devices that a pod gets, in the form of
the family, such as bit masks of GPUs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import ConfigMap, Node, Pod, Wire
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_costs import FamilyCosts
from koordpy.devices.family_moves import FamilyMoves
from koordpy.devices.family_round import FamilyRound, NodeFacts, Obstruction, Placed
from koordpy.framework.device_limits import MemberLimits
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.soft_scores import SoftScore
from koordpy.pods.device_asks import AskReader
from koordpy.pods.family_books import FamilyBook
from koordpy.pods.pod_info import PodInfo


class Family(FamilyCosts, FamilyMoves, ABC):
    """One device family: answers all questions of the planner, the checks and the messages about its devices."""

    name: str = ""
    """Key of the family in requests, views, ledgers, allocations and plan faults."""
    title: str = ""
    """Name of the devices in messages, such as `GPUs`."""
    plugin: str = ""
    """Name of the family's filter, if evictions may resolve its refusals; else empty. Of the refusals of this filter,
    the victim search then uses only those that no eviction resolves (`Rule.permanent_verdict`)."""

    variables: frozenset[str] = frozenset()
    """Environment variables of containers that the family reads. Other variables of a pod are not stored."""

    # -- the lower half: called when a cache is created, and when pods are read ----------------------------------------

    @abstractmethod
    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Returns the reader of device requests."""

    def book(self, config: KoordpyConfiguration) -> FamilyBook | None:
        """Returns an empty book; None for a family that allocates no devices by name, without view and ledger."""
        return None

    def apply_webhook(self, pod: Pod, config: KoordpyConfiguration) -> Pod:
        """Returns a new pod as the admission webhook would change it. Offline commands call it, because they run
        without the webhook."""
        return pod

    resources: frozenset[str] = frozenset()
    """Extended resources of the family. `node_report` is called for nodes that have at least one of them. Empty for
    none."""

    # -- what wakes waiting units --------------------------------------------------------------------------------------

    def node_report(self, node: Node) -> object:
        """Returns everything that affects devices of a node besides its labels and amounts. A change of the result
        wakes waiting units."""
        return None

    def is_report(self, config_map: ConfigMap) -> bool:
        """Returns whether a ConfigMap describes devices of the family. ConfigMaps of no family are not stored."""
        return False

    def object_report(self, config_map: ConfigMap) -> object:
        """Returns the part of a ConfigMap that affects devices; a change of this part wakes waiting units.

        Called only if `is_report` is True for the ConfigMap.
        """
        return None

    def may_fit_after_load(self, pod: PodInfo) -> bool:
        """Returns whether the family may admit a pod to a node only after other pods are placed there."""
        return False

    # -- the Binding ---------------------------------------------------------------------------------------------------

    moment_annotation: str = ""
    """Annotation of a Binding that states the time of the request in Unix nanoseconds; empty for none. It is added
    last, when the Binding is sent."""

    spans_nodes: bool = False
    """True if the family's rules place jobs over several nodes, so that a later placement on any node may invalidate a
    plan."""

    # -- filters -----------------------------------------------------------------------------------------------------

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Returns why the pod's device request is invalid, before any node is tried; None if it is valid."""
        return None

    @abstractmethod
    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterable[Rule]:
        """Yields the family's filter for a pod; nothing if the number of devices decides alone."""

    def scores(self, pod: PodInfo, inputs: FilterInputs) -> Iterable[SoftScore]:
        """Yields the family's scores of nodes for a pod; nothing for none."""
        return ()

    def signature(self, pod: PodInfo, inputs: FilterInputs) -> str:
        """Returns what distinguishes pending pods of one shape, such as their job; empty for nothing.

        Pods of one shape with equal signatures share their rules.
        """
        return ""

    def left_out_of_fit(self, pod: PodInfo, inputs: FilterInputs) -> Mapping[str, NDArray[np.bool_]]:
        """Returns resource -> [nodes] True for nodes on which the family's filter, not NodeResourcesFit, checks the
        resource."""
        return {}

    # -- the problem of a unit ---------------------------------------------------------------------------------------

    def equivalence_key(self, pod: PodInfo) -> Hashable:
        """Returns a key that distinguishes pods with equal requests and equal feasible nodes; None if there is no
        difference.

        Pods with equal keys are interchangeable in the problem of a unit.
        """
        return None

    def free_devices(self, pods: Sequence[PodInfo], inputs: FilterInputs) -> Ints | None:
        """Returns [nodes] the free devices of the family, a limit for all pods of a unit together; None for no such
        limit.

        A family returns a limit if a node may have fewer usable devices than its resource states, for example unhealthy
        GPUs. Also called for units without a request to the family.
        """
        return None

    def requested_devices(self, pod: PodInfo) -> int:
        """Returns the number of devices that a pending pod uses, as `free_devices` and `freeable` count them; 0 for
        none.

        Also called for pods without a request to the family.
        """
        return 0

    def nominated_devices(self, held: Mapping[str, int], inputs: FilterInputs) -> int:
        """Returns the number of devices of `free_devices` that nominated pods will use on a node.

        held: resource -> amount that the pods with a nomination on the node request.
        """
        return 0

    def limits_members(self, pod: PodInfo, inputs: FilterInputs) -> bool:
        """Returns whether `member_limits` may limit pods like this one."""
        return False

    def member_limits(
        self,
        kinds: Mapping[bytes, PodInfo],
        numbers: Mapping[bytes, int],
        draft: Draft,
        config: KoordpyConfiguration,
        spare: int,
    ) -> MemberLimits | None:
        """Returns limits of pending members on each other; None if only filters and resources limit them.

        kinds: shape -> a pending member with a request to the family. numbers: shape -> number of pending members.
        spare: number of members that a plan may leave out.
        """
        return None

    def untie(self, pods: Sequence[PodInfo], draft: Draft) -> bool:
        """Frees devices that tie pending pods of a unit to nodes although no pod uses them, until the draft is undone.

        An example is a claim that is allocated to a node. Returns False if nothing ties the pods. Called if the unit
        fits nowhere.
        """
        return False

    def nominated_allocation(self, pod: PodInfo, node: int, draft: Draft, config: KoordpyConfiguration) -> Any | None:
        """Returns the named devices that are kept for a nominated pod on a node (position); None if none are."""
        return None

    def fit_together(self, node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
        """Returns whether the devices of a node are enough for pods of different shapes together.

        The caller has checked that they are enough for each pod alone. node: position.
        """
        return True

    # -- the plan ----------------------------------------------------------------------------------------------------

    decides_first: bool = False
    """True if the family allocates before other families, which follow its decision."""

    @abstractmethod
    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Allocates devices to the pods of a plan, on the draft before the plan; returns them with annotations and
        faults.

        nodes: pod key -> node position, in rank order. The draft is unchanged afterwards.
        """

    def check(
        self, placed: Placed, allocated: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], now: FamilyRound
    ) -> Iterable[str]:
        """Yields faults of the devices that a plan allocates, on the draft before the plan.

        Verifies the result of `allocate` and must not share code with it. placed: every pod of the plan. allocated:
        pod key -> allocation of this family. notes: pod key -> annotations of the Binding. Called if a pod of the plan
        has a request to the family or an allocation of it.
        """
        return ()

    def uses_reserved_devices(
        self, placed: Placed, reserved: Mapping[int, Mapping[str, int]], inputs: FilterInputs
    ) -> bool:
        """Returns whether the pods of a plan use devices that are reserved for nominated pods, on the draft before the
        plan.

        reserved: node position -> resource -> amount that nominated pods will still use there.
        """
        return False

    # -- proofs by numbers of devices --------------------------------------------------------------------------------

    counts_decide: bool = True
    """True if the number of free devices proves whether a pod fits.

    False if it also matters which devices are free, or which jobs use the others. A sum of free devices then proves
    nothing, so the planner derives no proof from it.
    """

    # -- victims -----------------------------------------------------------------------------------------------------

    def is_counted(self, pods: Iterable[PodInfo], inputs: FilterInputs) -> bool:
        """Returns True if sums of devices decide whether these pods fit; then a dry run need not allocate devices.

        `counts_decide` is the answer for all pods of the family in every cluster. This method answers for one preemptor
        set in the current cluster, in which devices may be known by number only.
        """
        return True

    distinguishes_victims: bool = False
    """True if the family must distinguish victims with equal resources.

    Two such victims may use different devices, and no column of the victim problem expresses that. So the victim search
    keeps them as separate options.
    """

    def freeable(
        self, kinds: Sequence[PodInfo], inputs: FilterInputs, *, reserved: Mapping[int, Mapping[str, int]]
    ) -> Ints | None:
        """Returns [nodes] free devices as a column of the victim problem, in the unit of `requested_devices`; None for
        no column.

        The column is an upper bound: whatever is evicted, it must not be below the number of free devices.
        kinds: one pending pod of each shape of a unit. reserved: node position -> resource -> amount reserved for other
        pods.
        """
        return None

    def freed_devices(self, pod: PodInfo, inputs: FilterInputs) -> int:
        """Returns the number of devices of the `freeable` column that evicting a bound pod frees."""
        return 0

    def usable(self, inputs: FilterInputs) -> Ints | None:
        """Returns [nodes] the devices of a node without pods, in the unit of `requested_devices`.

        None if the node's resource states that number. Used to decide whether a unit would fit the empty cluster.
        """
        return None

    def counted_resources(self, pod: PodInfo) -> Iterable[str]:
        """Returns resources of a pod that may denote a part of a device, and that are scheduled by number only.

        The user gets the message that the device plugin chooses the device.
        """
        return ()

    # -- messages ----------------------------------------------------------------------------------------------------

    def shown_value(self, pod: PodInfo, inputs: FilterInputs) -> tuple[str, Callable[[int], float | None]] | None:
        """Returns (name, function) of a value that `koordpy explain` shows beside the scores of nodes; None for no
        value.

        The function returns the value of a node (position), or None for a node without it. It is not part of the total
        score.
        """
        return None

    def node_facts(self, pod: PodInfo, inputs: FilterInputs) -> NodeFacts | None:
        """Returns facts about nodes that `koordpy explain` shows for a pod; None for no facts.

        Also called for pods without a request to the family, if the snapshot has objects of the family.
        """
        return None

    def missing_amounts(
        self, pod: PodInfo, inputs: FilterInputs
    ) -> Iterable[tuple[int, str, Callable[[Snapshot], Snapshot]]]:
        """Yields (position, text, change of a snapshot) for amounts that single nodes lack for a pending pod; text
        as in `remedies`."""
        return ()

    def obstruction(self, pod: PodInfo, now: FamilyRound) -> "Obstruction | None":
        """Returns a pod that uses devices without which a waiting pod would fit; None if there is no such pod."""
        return None

    def bottlenecks(self, nodes: Mapping[str, int], now: FamilyRound) -> Iterable[float]:
        """Yields GB/s of the slowest link between the devices of each pod of a plan, with the plan on the draft.

        nodes: pod key -> node position. Pods without known links are left out.
        """
        return ()

    def remedies(self, snapshot: Snapshot) -> Iterable[tuple[str, Callable[[Snapshot], Snapshot]]]:
        """Yields (text, change of a snapshot) for device faults that may keep pods pending.

        The text completes the sentence `Would fit if ...`; the change is tried before the text is shown. The most
        useful remedies come first, because only a few are tried.
        """
        return ()

    def setting_notes(self, objects: Iterable[Wire], config: KoordpyConfiguration) -> Iterable[str]:
        """Yields sentences about the effect of the family's settings on objects of the cluster.

        For the log at the start and for `config check`. objects: objects of the cluster, of any kind.
        """
        return ()

    def node_warnings(self, snapshot: Snapshot) -> Iterable[tuple[str, str]]:
        """Yields (object such as Node/n1, text) of device settings of nodes that have no effect.

        Called if a pending pod has a request to the family.
        """
        return ()

    def warnings(self, pod: PodInfo) -> Iterable[str]:
        """Yields warnings about parts of a pod's device request that are unreadable or have no effect."""
        return ()

    def cells(self, node: str, allocated: Any, families: Mapping[str, Any]) -> Collection[int]:
        """Returns the devices that a plan allocates to a pod, as positions among all devices of the node, for the web
        UI.

        allocated: allocation of the pod. families: family name -> view of the snapshot.
        """
        return ()
