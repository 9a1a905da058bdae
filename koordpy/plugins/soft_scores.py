# SPDX-License-Identifier: Apache-2.0
"""Score plugins that depend on other pods: InterPodAffinity and PodTopologySpread (kube-parity.md section 3).

As the filters of the same names, they count the relevant pods once on the snapshot, and then update the counts with the
placements and evictions of the draft. In the code, `points` are scores before they are normalised to 0..100 over the
feasible nodes, as in kube-scheduler.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import PodAffinityTerm
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import InterPodAffinityArgs
from koordpy.framework.pod_rule_filter import DomainTable
from koordpy.plugins.interpod_affinity import Places, pods_matching, term_matches
from koordpy.plugins.topology_spread import Constraint, Spreading
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import TermClass, Terms

Mask = NDArray[np.bool_]
"""[nodes] True or False."""


class SoftScore(ABC):
    """One score plugin for one shape of pods on a draft."""

    plugin: str
    """Name of the plugin, as in kube-scheduler and in the configuration of weights."""

    silent: bool = False
    """True if no pod in the snapshot affects the score, so that it is 0 on all nodes until the draft adds such a
    pod."""

    fixed: bool = False
    """True if placements and evictions change the score only because they change the set of feasible nodes."""

    local: bool = False
    """True if a pod on a node changes the score of that node only, except where it changes `scale`."""

    @abstractmethod
    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Adds a pod on a node (sign 1) or removes it (-1); returns True if scores may have changed."""

    @abstractmethod
    def values(self, feasible: Mask) -> Ints:
        """Returns [nodes] the score 0..100, normalised over the feasible nodes as in kube-scheduler."""

    def scale(self, feasible: Mask) -> int:
        """Returns the number by which a local score is normalised. Equal numbers give a node without change an equal
        score."""
        raise NotImplementedError

    def value_at(self, node: int, scale: int, *, feasible: bool) -> int:
        """Returns the entry of `values` of a node (position) of a local score. scale: result of `scale`. feasible:
        whether the node is."""
        raise NotImplementedError


class InterPodAffinity(SoftScore):
    """Prefers domains with pods that the pod's preferred terms match, and domains with pods that have terms which match
    this pod.

    A match adds the weight of the term to all nodes of the domain; a match of preferred anti-affinity subtracts it.
    """

    plugin = "InterPodAffinity"

    def __init__(
        self,
        pod: PodInfo,
        there: Iterable[tuple[TermClass, Places]],
        snapshot: Snapshot,
        table: DomainTable,
        args: InterPodAffinityArgs,
    ) -> None:
        """there: terms of bound pods that may match the pod."""
        self._pod = pod
        self._snapshot = snapshot
        self._table = table
        self._hard = args.hard_pod_affinity_weight
        own = pod.ties.terms
        self._audience = own.audience
        self._own = [(item.pod_affinity_term, item.weight) for item in own.affinity.preferred]
        self._own += [(item.pod_affinity_term, -item.weight) for item in own.anti_affinity.preferred]
        # as in kube-scheduler: with this setting, a pod without preferred terms has no score by this plugin
        self._ignores_existing = args.ignore_preferred_terms_of_existing_pods and not self._own
        self.silent = True
        self._weights: dict[str, Ints] = {}
        """Topology key -> [nodes] sum of the weights that the pods on the node add to the node's domain."""
        for term, weight in self._own:
            self._weights_of(term.topology_key)[:] += weight * pods_matching([term], pod.namespace, snapshot)
        if not self._ignores_existing:
            for kind, places in there:
                for key, weight in self._towards(kind.namespace, kind.terms):
                    for name, count in places.items():
                        if name in snapshot.index:
                            self._weights_of(key)[snapshot.index[name]] += weight * count

    def _weights_of(self, key: str) -> Ints:
        """Returns the array of a topology key in `_weights`, created with 0 on first use."""
        found = self._weights.get(key)
        if found is None:
            self.silent = False
            found = self._weights[key] = np.zeros(len(self._snapshot.nodes), dtype=np.int64)
        return found

    def _towards(self, owner: str, terms: Terms) -> list[tuple[str, int]]:
        """Returns (topology key, weight) for another pod's terms that match this pod.

        The weight of required affinity is the configured hardPodAffinityWeight. owner: namespace of the other pod.
        """
        namespace, labels = self._pod.namespace, self._pod.pod.metadata.labels
        if not terms.audience.may_have(owner, namespace, labels):
            return []
        weighted_terms: list[tuple[PodAffinityTerm, int]] = [
            (term, self._hard) for term in terms.affinity.required if self._hard
        ]
        weighted_terms += [(item.pod_affinity_term, item.weight) for item in terms.affinity.preferred]
        weighted_terms += [(item.pod_affinity_term, -item.weight) for item in terms.anti_affinity.preferred]
        namespaces = self._snapshot.namespaces
        return [(t.topology_key, w) for t, w in weighted_terms if term_matches(t, owner, namespace, labels, namespaces)]

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `SoftScore.change`, for this pod's terms that match the given pod, and for the given pod's
        terms."""
        changed = False
        owner, namespaces = self._pod.namespace, self._snapshot.namespaces
        may_match = self._own and self._audience.may_have(owner, pod.namespace, pod.pod.metadata.labels)
        for term, weight in self._own if may_match else ():
            if term_matches(term, owner, pod.namespace, pod.pod.metadata.labels, namespaces):
                self._weights_of(term.topology_key)[node] += sign * weight
                changed = True
        if pod.ties.terms and not self._ignores_existing:
            for key, weight in self._towards(pod.namespace, pod.ties.terms):
                self._weights_of(key)[node] += sign * weight
                changed = True
        return changed

    def values(self, feasible: Mask) -> Ints:
        """Implements `SoftScore.values`: 0 for the lowest feasible node, 100 for the highest; 0 if all are equal."""
        points = np.zeros(len(feasible), dtype=np.int64)
        for key, weights in self._weights.items():
            domains = self._table.of(key)
            points += domains.spread(domains.sums(weights))
        if not feasible.any():
            return np.zeros(len(feasible), dtype=np.int64)
        low, high = int(points[feasible].min()), int(points[feasible].max())
        if low == high:
            return np.zeros(len(feasible), dtype=np.int64)
        return np.where(feasible, 100 * (points - low) // (high - low), 0)


class PodTopologySpread(SoftScore):
    """Prefers domains with fewer matching pods, by the ScheduleAnyway constraints of the pod."""

    plugin = "PodTopologySpread"

    def __init__(self, spreading: Spreading) -> None:
        self._spreading = spreading

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `SoftScore.change`."""
        return self._spreading.change(pod, node, sign)

    def values(self, feasible: Mask) -> Ints:
        """Implements `SoftScore.values`; 0 for nodes without the required topology keys."""
        spreading = self._spreading
        able = feasible & spreading.keyed
        points = np.zeros(len(feasible), dtype=np.float64)
        for constraint in spreading.constraints:
            points += self._of(constraint, able)
        rounded = np.floor(points + 0.5).astype(np.int64)
        out = np.zeros(len(feasible), dtype=np.int64)
        if not able.any():
            return out
        low, high = int(rounded[able].min()), int(rounded[able].max())
        out[able] = 100 * (high + low - rounded[able]) // high if high else 100
        return out

    def _of(self, constraint: Constraint, able: Mask) -> NDArray[np.float64]:
        """Returns [nodes] the part of the score for one constraint, before rounding. Lower values are better.

        It is (number of matching pods in the domain) x (a weight that grows with the number of domains) + maxSkew - 1.
        """
        domains = constraint.domains
        if constraint.per_node:
            size = int(able.sum())
            counts = constraint.matching
        else:
            # nodes without the key, if they are included, count as one further domain
            size = len(np.unique(domains.of[able]))
            counts = domains.spread(domains.sums(np.where(constraint.included, constraint.matching, 0)))
        weighed: NDArray[np.float64] = counts * np.log(size + 2) + (constraint.max_skew - 1)
        return np.where(domains.labelled, weighed, 0.0)
