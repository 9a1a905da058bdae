# SPDX-License-Identifier: Apache-2.0
"""PodTopologySpread filter: spreads matching pods evenly over the domains of a topology key (kube-parity.md 2.6).

`Spreading` counts the pods that match a pod's constraints. The filter `TopologySpread` uses it for constraints with
DoNotSchedule, the score in `soft_scores.py` for constraints with ScheduleAnyway. `SpreadDefaults` has the configured
constraints for pods that have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from koordpy.api.keys import HOSTNAME
from koordpy.api.label_selectors import Labels, selector_matches
from koordpy.api.objects import LabelSelector, Requirement, TopologySpreadConstraint
from koordpy.cache.snapshot import Ints, NodeInfo, Snapshot
from koordpy.config.configuration import PodTopologySpreadArgs
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, chain, refused_where
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Domains, DomainTable, Rule
from koordpy.placement.member_interactions import Spread
from koordpy.plugins.node_filters import check_affinity, check_taints
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_owners import Owners

PLUGIN = "PodTopologySpread"
SKEWED = Refusal(PLUGIN, Code.UNSCHEDULABLE, ("node(s) didn't match pod topology spread constraints",))
NO_KEY = Refusal(
    PLUGIN,
    Code.UNRESOLVABLE,
    ("node(s) didn't match pod topology spread constraints (missing required label)",),
)
FILTERS = "DoNotSchedule"
"""whenUnsatisfiable of constraints that the filter checks."""
SCORES = "ScheduleAnyway"
"""whenUnsatisfiable of constraints that only affect the score."""

Mask = NDArray[np.bool_]


def own_selector(constraint: TopologySpreadConstraint, labels: Labels) -> LabelSelector | None:
    """Returns the label selector of a constraint, extended by the pod's values of its matchLabelKeys.

    None if the constraint has no selector; then it matches no pod. labels: of the pod that has the constraint.
    """
    selector = constraint.label_selector
    if selector is None:
        return None
    own = (key for key in constraint.match_label_keys if key in labels)
    extra = tuple(Requirement(key=key, operator="In", values=(labels[key],)) for key in own)
    if not extra:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=(*selector.match_expressions, *extra))


@dataclass(frozen=True, eq=False)
class Constraint:
    """One topology spread constraint of a pending pod, with the pods that it counts on each node."""

    max_skew: int
    """Maximum number of matching pods that a domain may have above the global minimum, including the pending pod."""
    min_domains: int
    """If there are fewer eligible domains than this, the global minimum counts as 0."""
    per_node: bool
    """True if the topology key is the hostname. Then scores count pods per node."""
    selector: LabelSelector | None
    """Selector of the pods to count; None matches no pod."""
    domains: Domains
    """Domains of the topology key."""
    included: Mask
    """[nodes] True if pods on the node count: the node has the topology keys of all constraints, and
    nodeAffinityPolicy and nodeTaintsPolicy include it."""
    matching: Ints
    """[nodes] number of pods that the selector matches; changed in place as the draft changes."""
    counts_itself: bool
    """True if the selector matches the pod itself."""

    @property
    def counts(self) -> Ints:
        """[domains] number of matching pods on included nodes."""
        return self.domains.sums(np.where(self.included, self.matching, 0))

    @property
    def eligible(self) -> Mask:
        """[domains] True for domains with an included node. The global minimum is the minimum over these domains."""
        there = np.zeros(self.domains.count, dtype=bool)
        there[self.domains.of[self.included]] = True
        return there

    def tie(self, shape: int, meant: tuple[int, ...]) -> Spread:
        """Returns the constraint as a rule between shapes of a placement problem, with the current counts.

        shape: index of the pending pod's shape in the problem. meant: indices of the shapes that the selector matches.
        """
        groups, base = np.where(self.included, self.domains.of, -1), self.counts
        return Spread(shape, meant, groups, base, self.eligible, self.max_skew, self.min_domains)


class Spreading:
    """The constraints of one pending pod with one whenUnsatisfiable (DoNotSchedule or ScheduleAnyway), and their
    counts."""

    def __init__(
        self,
        pod: PodInfo,
        given: Sequence[TopologySpreadConstraint],
        snapshot: Snapshot,
        table: DomainTable,
        *,
        loose: bool = False,
    ) -> None:
        """given: the constraints. loose: True if a node need not have the topology keys of all constraints."""
        self._pod = pod
        nodes = snapshot.nodes
        every = [table.of(constraint.topology_key) for constraint in given]
        self.keyed: Mask = np.logical_and.reduce([loose | domains.labelled for domains in every])
        """[nodes] True for nodes with the topology keys of all constraints; pods on other nodes do not count."""
        self.constraints: list[Constraint] = []
        for constraint, domains in zip(given, every, strict=True):
            selector = own_selector(constraint, pod.pod.metadata.labels)
            self.constraints.append(
                Constraint(
                    max_skew=constraint.max_skew,
                    min_domains=constraint.min_domains or 1,
                    per_node=constraint.topology_key == HOSTNAME,
                    selector=selector,
                    domains=domains,
                    included=self.keyed & _policies(constraint, pod, nodes),
                    matching=_matching(selector, pod.namespace, snapshot),
                    counts_itself=selector_matches(selector, pod.pod.metadata.labels),
                )
            )

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Adds a pod on a node (sign 1) or removes it (-1); returns True if a count changed."""
        meta = pod.pod.metadata
        if meta.namespace != self._pod.namespace or meta.deletion_timestamp:
            return False
        changed = False
        for constraint in self.constraints:
            if selector_matches(constraint.selector, meta.labels):
                constraint.matching[node] += sign
                changed = True
        return changed

    def counting(self, pod: PodInfo, node: int) -> list[bool]:
        """Returns one boolean per constraint: True if the constraint counts the pod if it is on this node."""
        meta = pod.pod.metadata
        there = meta.namespace == self._pod.namespace and not meta.deletion_timestamp
        return [
            there and bool(one.included[node]) and selector_matches(one.selector, meta.labels)
            for one in self.constraints
        ]


class TopologySpread(Rule):
    """Filter for the DoNotSchedule constraints of a pod: keeps the skew of its domain within maxSkew."""

    plugin = PLUGIN
    is_in_problem = True
    outlasts_pods = True

    def __init__(self, spreading: Spreading) -> None:
        self.spreading = spreading

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`."""
        return self.spreading.change(pod, node, sign)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`: refuses nodes without a topology key, then nodes with too large a skew."""
        parts = []
        for constraint in self.spreading.constraints:
            parts.append(refused_where(~constraint.domains.labelled, NO_KEY))
            counts, least, _ = _counted(constraint)
            skew = constraint.domains.spread(counts) + constraint.counts_itself - least
            parts.append(refused_where(constraint.domains.labelled & (skew > constraint.max_skew), SKEWED))
        return chain(parts)

    def permanent_verdict(self) -> Verdict:
        """Implements `Rule.permanent_verdict`: refuses only nodes without a topology key. The skew may change, because
        other members are placed in other domains."""
        return refused_where(~self.spreading.keyed, NO_KEY)

    def copies(self) -> Ints | None:
        """Implements `Rule.copies`: as many pods of this shape as keep the node's domain within maxSkew above the
        minimum of all other domains.

        Any number if there is no other domain, unless minDomains sets the minimum to 0.
        """
        out: Ints | None = None
        for constraint in self.spreading.constraints:
            if not constraint.counts_itself:
                continue
            counts, least, elsewhere = _counted(constraint)
            room = constraint.domains.spread(np.where(elsewhere == ANY_NUMBER, ANY_NUMBER, 0))
            rest = constraint.max_skew + elsewhere - counts
            room = np.where(room > 0, room, np.maximum(constraint.domains.spread(rest), 0))
            if least == 0 and len(np.unique(constraint.domains.of[constraint.included])) < constraint.min_domains:
                room = np.maximum(constraint.domains.spread(constraint.max_skew - counts), 0)
            out = room if out is None else np.minimum(out, room)
        return out


def _counted(constraint: Constraint) -> tuple[Ints, int, Ints]:
    """Returns ([domains] matching pods, global minimum, [domains] minimum over all other eligible domains).

    The minimum over other domains is `ANY_NUMBER` if there is no other eligible domain.
    """
    domains, counts, there = constraint.domains, constraint.counts, constraint.eligible
    registered = np.sort(counts[there])
    least = int(registered[0]) if len(registered) else int(np.iinfo(np.int32).max)
    second = int(registered[1]) if len(registered) > 1 else ANY_NUMBER
    elsewhere = np.where(there & (counts == least), second, least)
    if there.any() and int((counts[there] == least).sum()) > 1:
        elsewhere = np.full(domains.count, least, dtype=np.int64)
    if len(registered) < constraint.min_domains:
        least = 0
    return counts, least, elsewhere


def _policies(constraint: TopologySpreadConstraint, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Mask:
    """Returns [nodes] True if the constraint's nodeAffinityPolicy and nodeTaintsPolicy include the node."""
    out = np.ones(len(nodes), dtype=bool)
    if constraint.node_affinity_policy != "Ignore":
        affinity = check_affinity(nodes, pod.pod)
        out &= np.zeros(len(nodes), dtype=bool) if isinstance(affinity, Refusal) else affinity.fits
    if constraint.node_taints_policy == "Honor":
        out &= check_taints(nodes, pod.pod).fits
    return out


def _matching(selector: LabelSelector | None, namespace: str, snapshot: Snapshot) -> Ints:
    """Returns [nodes] the number of bound pods of a namespace that match a selector and are not being deleted."""
    out = np.zeros(len(snapshot.nodes), dtype=np.int64)
    for kind, places in snapshot.classes.items():
        if kind.namespace == namespace and selector_matches(selector, dict(kind.labels)):
            for (name, deleting), count in places.items():
                if not deleting and name in snapshot.index:
                    out[snapshot.index[name]] += count
    return out


class SpreadDefaults:
    """The configured topology spread constraints for pods that have none. As a boolean it is False if none are
    configured."""

    def __init__(self, config: PodTopologySpreadArgs, owners: Owners) -> None:
        self.loose = config.defaulting_type == "System"
        """True for kube-scheduler's built-in defaults, which have two keys: a node that lacks one of them is scored by
        the other."""
        self._constraints, self._owners = config.constraints, owners
        self._known: dict[bytes, list[TopologySpreadConstraint]] = {}

    def __bool__(self) -> bool:
        return bool(self._constraints)

    def of(self, pod: PodInfo) -> list[TopologySpreadConstraint]:
        """Returns the default constraints that apply to a pod, with their selectors.

        A constraint without a selector gets one from the pod's services and controller (`Owners.selector_of`); it does
        not apply to a pod without these. A constraint with a configured selector applies to pods that it matches.
        """
        found = self._known.get(pod.shape) if pod.shape else None
        if found is None:
            found = self._read(pod)
            if pod.shape:
                self._known[pod.shape] = found
        return found

    def _read(self, pod: PodInfo) -> list[TopologySpreadConstraint]:
        labels = pod.pod.metadata.labels
        selector = self._owners.selector_of(pod.pod)
        out = []
        for constraint in self._constraints:
            if constraint.label_selector is None:
                if selector is not None:
                    out.append(replace(constraint, label_selector=selector, match_label_keys=()))
            elif selector_matches(own_selector(constraint, labels), labels):
                out.append(constraint)
        return out


def constraints_of(pod: PodInfo, kind: str, defaults: SpreadDefaults | None) -> list[TopologySpreadConstraint]:
    """Returns the constraints of a pod. kind: `FILTERS` or `SCORES`.

    If the pod has no constraint of either kind, the configured defaults are returned.
    """
    own = pod.pod.spec.topology_spread_constraints
    if not own and defaults:
        own = defaults.of(pod)
    return [item for item in own if (item.when_unsatisfiable == SCORES) == (kind == SCORES)]
