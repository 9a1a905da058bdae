# SPDX-License-Identifier: Apache-2.0
"""The NUMA data of all nodes in the cache: reports of zones, policy labels, and pods with amounts that a node may
align.

A report shows the amounts of the pods that were on the node when the report last changed. So for each pod the book
records whether it was there at that time or was placed later, and which pods have left since (docs/rules/numa.md 4).
Until the first snapshot, all pods count as there, because objects arrive in any order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from koordpy.api import keys
from koordpy.api.custom_objects import NodeResourceTopology
from koordpy.api.objects import Node, Wire
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.gpu.zone_limits import ZoneLimits
from koordpy.devices.numa.admission import Policy
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.topology_report import NO_REPORT, TopologyReport, label_policy, read_report
from koordpy.devices.numa.zone_records import StatedZones, stated_zones
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.family_books import FamilyBook, FamilyView, PlannedAllocation
from koordpy.pods.pod_info import PodInfo


class ZonePod(NamedTuple):
    """A pod on a node, with its amounts that may be aligned and its zones."""

    pod: PodInfo
    ask: NumaAsk
    stated: StatedZones
    """Zones of the pod: as its annotations state, or for an assumed pod as planned."""


@dataclass(frozen=True, eq=False)
class NodeNuma:
    """NUMA data of one node and the pods on it. Immutable: a change creates another object."""

    report: TopologyReport = NO_REPORT
    label: Policy = Policy.NONE
    """Policy by the label of the node."""
    pods: Mapping[str, ZonePod] = field(default_factory=dict)
    """Pod key -> pod that was on the node when the report last changed, and still is."""
    left: tuple[ZonePod, ...] = ()
    """Pods that were on the node when the report last changed, and have left."""
    since: Mapping[str, ZonePod] = field(default_factory=dict)
    """Pod key -> pod that was placed after the report last changed."""
    extra_free: tuple[int, tuple[tuple[str, int], ...]] = (0, ())
    """(number of a zone, ((resource, amount), ...)): amounts that count as free there in addition, for a what-if. Empty
    amounts for none."""

    @property
    def policy(self) -> Policy:
        """Policy of the node: of the report, else of the label."""
        return self.label if self.report.policy is None else self.report.policy

    def without(self, keys_gone: Collection[str]) -> "NodeNuma":
        """Returns the node as if the given pods (keys) had left it."""
        left = tuple(pod for key, pod in self.pods.items() if key in keys_gone)
        return replace(
            self,
            pods={key: pod for key, pod in self.pods.items() if key not in keys_gone},
            left=(*self.left, *left),
            since={key: pod for key, pod in self.since.items() if key not in keys_gone},
        )


NO_DATA = NodeNuma()
"""Of a node without NUMA data."""


@dataclass(frozen=True, eq=False)
class NumaView(FamilyView):
    """The NUMA data of all nodes with a report or a label, at one moment. Immutable. Methods without a docstring
    implement those of `FamilyView`."""

    nodes: Mapping[str, NodeNuma] = field(default_factory=dict)
    """Node name -> its data."""
    warnings: tuple[tuple[str, str], ...] = ()
    limits: Callable[[FilterInputs], ZoneLimits] | None = None
    """Builds the interface by which zones limit the choice of GPUs (`ZoneLimits`); None in a cluster without NUMA
    data."""
    sets: Callable[[Draft, KoordpyConfiguration], Any] | None = None
    """Builds the zones of pods on a draft, as the choice of devices for claims reads them (`ZoneSets`); None in a
    cluster without NUMA data."""
    planned: Callable[[FilterInputs], Any] | None = None
    """Returns the zones of the plan that is being allocated (`ZoneSetSource.planned_zones`); None as for `sets`."""
    totals: object = None
    """Another object after each change of a policy or of the amounts of an empty node."""
    memo: dict[object, Any] = field(default_factory=dict, repr=False)
    """Shared by all views of a book: other modules keep here what they derived from the latest view, to use it again
    for unchanged nodes."""

    def zone_limits(self, inputs: FilterInputs) -> ZoneLimits | None:
        """Implements `ZoneSource.zone_limits`."""
        return self.limits(inputs) if self.limits is not None and inputs.config.numa.enabled else None

    def zone_sets(self, draft: Draft, config: KoordpyConfiguration) -> Any:
        """Implements `ZoneSetSource.zone_sets`."""
        return self.sets(draft, config) if self.sets is not None else None

    def planned_zones(self, inputs: FilterInputs) -> Any:
        """Implements `ZoneSetSource.planned_zones`."""
        return self.planned(inputs) if self.planned is not None and inputs.config.numa.enabled else None

    def without_pods(self, gone: Collection[PodInfo]) -> "NumaView":
        by_node: dict[str, set[str]] = {}
        for pod in gone:
            if pod.node in self.nodes:
                by_node.setdefault(pod.node, set()).add(pod.key)
        changed = {name: self.nodes[name].without(found) for name, found in by_node.items()}
        return replace(self, nodes={**self.nodes, **changed}) if changed else self

    def with_nodes(self, like: Mapping[str, str]) -> "NumaView":
        added = {
            new: NodeNuma(self.nodes[old].report, self.nodes[old].label)
            for new, old in like.items()
            if old in self.nodes
        }
        return replace(self, nodes={**self.nodes, **added}) if added else self

    def ground(self) -> object:
        return self.totals

    def state_of(self, node: str) -> object:
        known = self.nodes.get(node)
        return (known.report, known.label) if known is not None else None

    def moved_pods(self, before: "NumaView") -> Iterator[str]:
        for name, here in self.nodes.items():
            if before.nodes.get(name) is not here:
                yield from (*here.pods, *here.since)


NO_NUMA = NumaView()
"""View of a cluster without NUMA data."""


def numa_view(snapshot: Snapshot) -> NumaView:
    """Returns the NUMA data of a snapshot."""
    return cast(NumaView, snapshot.families.get(NUMA, NO_NUMA))


class NumaBook(FamilyBook):
    """The NUMA reports and labels of all nodes, and the pods with amounts of zones, kept current by events.

    Methods without a docstring implement those of `FamilyBook`.
    """

    kinds: tuple[type[Wire], ...] = (NodeResourceTopology,)

    def __init__(
        self,
        limits: Callable[[FilterInputs], ZoneLimits],
        sets: Callable[[Draft, KoordpyConfiguration], Any],
        planned: Callable[[FilterInputs], Any],
        report_state: Callable[[NodeNuma], str],
        fits: Callable[[NodeNuma, Sequence[Any]], bool],
    ) -> None:
        """limits, sets, planned: as in `NumaView`. report_state: returns the state of a node's report for metrics;
        empty for a node without NUMA data. fits: called with (node without the pods of a plan, zones that the plan
        takes), returns True if the node has them."""
        self._limits, self._sets, self._planned = limits, sets, planned
        self._report_state, self._fits = report_state, fits
        self._objects: dict[str, NodeResourceTopology] = {}
        self._reports: dict[str, TopologyReport] = {}
        self._labels: dict[str, tuple[Policy, str]] = {}
        """Name of a node with the policy label -> (policy, warning about the label or empty)."""
        self._pods: dict[str, dict[str, ZonePod]] = {}
        """Node name -> key -> pod on it; of all nodes."""
        self._since: dict[str, set[str]] = {}
        """Node name -> keys of the pods that were placed there after its report last changed."""
        self._left: dict[str, dict[str, ZonePod]] = {}
        """Node name -> uid -> pod that the node's report shows and that has left since."""
        self._is_settled = False
        """True after the first snapshot."""
        self._views: dict[str, NodeNuma] = {}
        self._view: NumaView | None = None
        """The last view; None before the first one."""
        self._dirty: set[str] = set()
        self._totals = object()
        """`NumaView.totals`."""
        self._memo: dict[object, Any] = {}
        """`NumaView.memo`."""

    def put(self, obj: Any) -> None:
        name, old = obj.metadata.name, self._objects.get(obj.metadata.name)
        report = read_report(obj)
        self._objects[name] = obj
        if old is not None and _content(old) == _content(obj):
            return
        if old is None or self._reports[name].totals != report.totals:
            self._totals = object()
        self._reports[name] = report
        self._mark_all_reported(name)

    def drop(self, kind: type[Wire], key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._reports[key]
            self._totals = object()
            self._mark_all_reported(key)

    def _mark_all_reported(self, node: str) -> None:
        """Records that the pods on a node are those that its report shows."""
        self._since.pop(node, None)
        self._left.pop(node, None)
        self._dirty.add(node)

    def get(self, kind: type[Wire], key: str) -> Any:
        return self._objects.get(key)

    def objects_of(self, kind: type[Wire]) -> Mapping[str, Any]:
        return self._objects

    def put_node(self, node: Node) -> None:
        name = node.metadata.name
        if (keys.NUMA_POLICY in node.metadata.labels) or name in self._labels:
            old = self._labels.pop(name, None)
            if keys.NUMA_POLICY in node.metadata.labels:
                self._labels[name] = label_policy(node)
            if self._labels.get(name) != old:
                self._totals = object()
            self._dirty.add(name)

    def drop_node(self, name: str) -> None:
        if self._labels.pop(name, None) is not None:
            self._totals = object()
            self._dirty.add(name)

    def hold(self, pod: PodInfo, given: Any) -> None:
        ask = pod.ask(NUMA)
        if ask is None:
            return
        stated = stated_zones(pod.pod)
        if given is not None:
            stated = replace(stated, planned=given.by_zone)
        self._pods.setdefault(pod.node, {})[pod.key] = ZonePod(pod, ask, stated)
        returned = self._left.get(pod.node, {}).pop(pod.uid, None)
        if self._is_settled and returned is None:
            self._since.setdefault(pod.node, set()).add(pod.key)
        self._dirty.add(pod.node)

    def release(self, pod: PodInfo) -> None:
        known = self._pods.get(pod.node, {}).pop(pod.key, None)
        if known is None:
            return
        since = self._since.get(pod.node, set())
        if pod.key in since:
            since.discard(pod.key)
        elif self._is_settled:
            self._left.setdefault(pod.node, {})[known.pod.uid] = known
        self._dirty.add(pod.node)

    def view(self) -> NumaView:
        self._is_settled = True
        if self._dirty or self._view is None:
            for name in self._dirty:
                if name in self._reports or name in self._labels:
                    self._views[name] = self._node(name)
                else:
                    self._views.pop(name, None)
            self._dirty.clear()
            warnings = tuple(self._warnings())
            self._view = NumaView(
                self._views.copy(), warnings, self._limits, self._sets, self._planned, self._totals, self._memo
            )
        return self._view

    def _node(self, name: str) -> NodeNuma:
        """Returns the current data of a node."""
        pods, since = self._pods.get(name, {}), self._since.get(name, set())
        return NodeNuma(
            self._reports.get(name, NO_REPORT),
            self._labels.get(name, (Policy.NONE, ""))[0],
            {key: pod for key, pod in pods.items() if key not in since},
            tuple(self._left.get(name, {}).values()),
            {key: pod for key, pod in pods.items() if key in since},
        )

    def _warnings(self) -> Iterator[tuple[str, str]]:
        """Yields (object, text) of parts of reports, labels and pods that are ignored."""
        for report in self._reports.values():
            yield from report.warnings
        for name, (_, text) in self._labels.items():
            if text:
                yield f"Node/{name}", text
        for here in self._views.values():
            for pod in (*here.pods.values(), *here.since.values()):
                for key in pod.stated.unreadable:
                    yield f"Pod/{pod.pod.key}", f"annotation {key} cannot be read: its zones are unknown"

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Implements `FamilyBook.counts`: nodes with NUMA data by policy and by the state of their report."""
        states = [(one.policy.value, self._report_state(one)) for one in self._views.values()]
        policies = Counter(policy for policy, state in states if state)
        return {"numa_nodes": policies, "numa_reports": Counter(state for _, state in states if state)}

    def predicts_admission(self, node: str) -> bool:
        """Implements `FamilyBook.predicts_admission`: for nodes with NUMA data in the last view."""
        return node in self._views and bool(self._report_state(self._views[node]))

    def is_lost(
        self, planned: Sequence[PlannedAllocation], ending: Collection[str], *, new_pods: Sequence[PodInfo]
    ) -> bool:
        """Implements `FamilyBook.is_lost`: a plan is lost if one of its nodes has (a) or (b).

        (a) Another policy than planned, or a zone that the plan does not know. (b) Another report object, or a pod that
        another scheduler bound, and too little free in the planned zones.
        """
        by_node: dict[str, list[PlannedAllocation]] = {}
        for one in planned:
            if one.devices is not None:
                by_node.setdefault(one.node, []).append(one)
        joined = {pod.node for pod in new_pods}
        return any(self._is_lost_on(node, own, ending, node in joined) for node, own in by_node.items())

    def _is_lost_on(
        self, node: str, planned: Sequence[PlannedAllocation], ending: Collection[str], joined: bool
    ) -> bool:
        """Returns whether a plan is lost on one node. joined: True if another scheduler has bound a pod there."""
        numa, takes = self._node(node), [one.devices for one in planned]
        if not all(take.is_valid(numa) for take in takes):
            return True
        if not joined and all(take.report is numa.report for take in takes):
            return False
        return not self._fits(numa.without({*ending, *(one.pod.key for one in planned)}), takes)

    def ground(self, nodes: Collection[str]) -> list[object]:
        return [found for name in nodes for found in (self._reports.get(name), self._labels.get(name))]


def _content(topology: NodeResourceTopology) -> tuple[object, ...]:
    """Returns the parts of a report that are read."""
    annotations = topology.metadata.annotations
    texts = [annotations.get(key) for key in keys.NUMA_REPORT]
    return topology.zones, topology.attributes, topology.topology_policies, texts
