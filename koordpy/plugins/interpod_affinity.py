# SPDX-License-Identifier: Apache-2.0
"""InterPodAffinity filter: refuses nodes that required pod affinity or anti-affinity excludes (kube-parity.md 2.7).

Two classes implement it: `OwnTerms` checks the required terms of the pending pod, `ExistingTerms` the required
anti-affinity of other pods against the pending pod. `soft_scores.py` scores preferred terms. matchLabelKeys and
mismatchLabelKeys need no code, because the API server adds them to the selectors.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.api.label_selectors import Labels, selector_matches
from koordpy.api.objects import PodAffinityTerm
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, all_fit, chain, refused_where
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Domains, DomainTable, Rule
from koordpy.placement.member_interactions import RequiredAffinity
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import TermClass, Terms

PLUGIN = "InterPodAffinity"
AFFINITY = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) didn't match pod affinity rules",))
ANTI_AFFINITY = Refusal(PLUGIN, Code.UNSCHEDULABLE, ("node(s) didn't match pod anti-affinity rules",))
EXISTING = Refusal(PLUGIN, Code.UNSCHEDULABLE, ("node(s) didn't satisfy existing pods anti-affinity rules",))

Namespaces = Mapping[str, Labels]
"""Namespace -> its labels."""
Places = Mapping[str, int]
"""Node name -> number of bound pods."""


def term_matches(term: PodAffinityTerm, owner: str, namespace: str, labels: Labels, namespaces: Namespaces) -> bool:
    """Returns True if a term of a pod in namespace `owner` matches pods with these labels in `namespace`."""
    if not term.namespaces and term.namespace_selector is None:
        if namespace != owner:
            return False
    elif namespace not in term.namespaces and not selector_matches(
        term.namespace_selector, namespaces.get(namespace, {})
    ):
        return False
    return selector_matches(term.label_selector, labels)


def pods_matching(terms: Sequence[PodAffinityTerm], owner: str, snapshot: Snapshot) -> Ints:
    """Returns [nodes] the number of bound pods that all terms match, including pods that are being deleted.

    owner: namespace of the pod that has the terms.
    """
    out = np.zeros(len(snapshot.nodes), dtype=np.int64)
    local = all(not term.namespaces and term.namespace_selector is None for term in terms)
    for kind, places in snapshot.classes.items():
        if local and kind.namespace != owner:
            continue
        labels = dict(kind.labels)
        if all(term_matches(term, owner, kind.namespace, labels, snapshot.namespaces) for term in terms):
            for (name, _), count in places.items():
                if name in snapshot.index:
                    out[snapshot.index[name]] += count
    return out


class _ExcludedDomains:
    """Counts, per topology key, the pods that exclude a pending pod from their domains by an anti-affinity term.

    As a boolean it is False if there is no such pod.
    """

    def __init__(self, snapshot: Snapshot, table: DomainTable) -> None:
        self._snapshot, self._table = snapshot, table
        self._pods: dict[str, tuple[Domains, Ints]] = {}
        """Topology key -> (its domains, [nodes] number of excluding pods)."""

    def __bool__(self) -> bool:
        return bool(self._pods)

    def add(self, key: str, node: int, count: int) -> None:
        """Adds `count` excluding pods on a node for a topology key; a negative count removes them."""
        if key not in self._pods:
            self._pods[key] = self._table.of(key), np.zeros(len(self._snapshot.nodes), dtype=np.int64)
        self._pods[key][1][node] += count

    def add_known(self, key: str, places: Iterable[tuple[str, int]]) -> None:
        """Adds excluding pods. places: (node name, number of pods); nodes that are not in the snapshot are ignored."""
        for name, count in places:
            if name in self._snapshot.index:
                self.add(key, self._snapshot.index[name], count)

    def closed(self) -> NDArray[np.bool_]:
        """Returns [nodes] True for nodes in a domain with an excluding pod, which must not take the pending pod."""
        out = np.zeros(len(self._snapshot.nodes), dtype=bool)
        for domains, pods in self._pods.values():
            out |= domains.spread(domains.sums(pods)) > 0
        return out


class OwnTerms(Rule):
    """Checks the pending pod's own required affinity and anti-affinity terms.

    Affinity: for each term, the node's domain must contain a pod that matches all terms. Anti-affinity: for each term,
    the node's domain must not contain a pod that the term matches.
    """

    plugin = PLUGIN
    is_in_problem = True

    def __init__(self, pod: PodInfo, snapshot: Snapshot, table: DomainTable) -> None:
        self._owner = pod.namespace
        self._nodes = snapshot.nodes
        self._namespaces = snapshot.namespaces
        terms = pod.ties.terms
        self._audience = terms.audience
        self._wanted = terms.affinity.required
        self._anti_terms = terms.anti_affinity.required
        labels = pod.pod.metadata.labels
        self._matches_itself = all(self._matches(term, pod.namespace, labels) for term in self._wanted)
        """True if the pod matches all its affinity terms, so that it may be the first of its group."""
        own = [table.of(term.topology_key) for term in self._anti_terms if self._matches(term, pod.namespace, labels)]
        self._excludes_itself = np.logical_or.reduce([domains.labelled for domains in own]) if own else None
        """[nodes] True if a pod of this shape on the node excludes a second one there; None if it never does."""
        self._wanted_in = [table.of(term.topology_key) for term in self._wanted]
        """Domains of the topology key of each affinity term."""
        self._wanted_pods = pods_matching(self._wanted, self._owner, snapshot) if self._wanted else None
        """[nodes] number of pods that match all affinity terms; None without such terms."""
        self._excluded = _ExcludedDomains(snapshot, table)
        for kind, places in snapshot.classes.items() if self._anti_terms else ():
            for key in self._excluding_keys(kind.namespace, dict(kind.labels)):
                self._excluded.add_known(key, ((name, count) for (name, _), count in places.items()))

    def _matches(self, term: PodAffinityTerm, namespace: str, labels: Labels) -> bool:
        """Returns True if a term of this pod matches pods with these labels in `namespace`."""
        return term_matches(term, self._owner, namespace, labels, self._namespaces)

    def _excluding_keys(self, namespace: str, labels: Labels) -> list[str]:
        """Returns the topology keys of this pod's anti-affinity terms that match pods with these labels."""
        if not self._audience.may_have(self._owner, namespace, labels):
            return []
        return [term.topology_key for term in self._anti_terms if self._matches(term, namespace, labels)]

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: counts the given pod if all affinity terms match it, or an anti-affinity term
        does."""
        namespace, labels = pod.namespace, pod.pod.metadata.labels
        if not self._audience.may_have(self._owner, namespace, labels):
            return False
        changed = False
        if self._wanted_pods is not None and all(self._matches(term, namespace, labels) for term in self._wanted):
            self._wanted_pods[node] += sign
            changed = True
        excluding = self._excluding_keys(namespace, labels)
        for key in excluding:
            self._excluded.add(key, node, sign)
        return changed or bool(excluding)

    def _affinity_met(self) -> NDArray[np.bool_]:
        """Returns [nodes] True if for every affinity term a matching pod is in the node's domain.

        If no pod in the cluster matches, but the pending pod matches its own terms, it may be the first of its group.
        Then the result is True for every node with all topology keys.
        """
        assert self._wanted_pods is not None
        keyed: NDArray[np.bool_] = np.logical_and.reduce([domains.labelled for domains in self._wanted_in])
        counted = [domains.sums(self._wanted_pods) for domains in self._wanted_in]
        if self._matches_itself and not any(count.any() for count in counted):
            return keyed
        near = [domains.spread(count) > 0 for domains, count in zip(self._wanted_in, counted, strict=True)]
        return np.asarray(keyed & np.logical_and.reduce(near))

    def tie(self, shape: int, meant: tuple[int, ...]) -> RequiredAffinity | None:
        """Returns the required affinity as a rule between shapes of a placement problem; None without such terms.

        The rule includes the current counts of matching pods. shape: index of this pod's shape in the problem. meant:
        indices of the shapes that all terms match.
        """
        if self._wanted_pods is None:
            return None
        existing = tuple(domains.sums(self._wanted_pods) for domains in self._wanted_in)
        return RequiredAffinity(shape, meant, tuple(domains.of for domains in self._wanted_in), existing)

    def wants(self, pod: PodInfo) -> bool:
        """Returns True if this rule's pod has required affinity terms, and all of them match the given pod."""
        labels = pod.pod.metadata.labels
        return bool(self._wanted) and all(self._matches(term, pod.namespace, labels) for term in self._wanted)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        return self._combined(self._affinity_met() if self._wanted_pods is not None else None)

    def permanent_verdict(self) -> Verdict:
        """Implements `Rule.permanent_verdict`: affinity is checked only for missing topology keys, because members that
        are placed later may match the terms."""
        keyed = np.logical_and.reduce([domains.labelled for domains in self._wanted_in]) if self._wanted_in else None
        return self._combined(keyed)

    def _combined(self, near: NDArray[np.bool_] | None) -> Verdict:
        """Returns the verdict of affinity and anti-affinity. near: [nodes] True if the affinity is met; None without
        affinity."""
        parts = []
        if near is not None:
            parts.append(refused_where(~near, AFFINITY))
        if self._anti_terms:
            parts.append(refused_where(self._excluded.closed(), ANTI_AFFINITY))
        return chain(parts) if parts else all_fit(len(self._nodes))

    def copies(self) -> Ints | None:
        """Implements `Rule.copies`: one pod of this shape if a second one is excluded by anti-affinity, else any
        number."""
        return None if self._excludes_itself is None else np.where(self._excludes_itself, 1, ANY_NUMBER)


class ExistingTerms(Rule):
    """Checks the required anti-affinity of other pods (bound, or placed in the round) against the pending pod.

    A pod with a matching term excludes the pending pod from its whole domain.
    """

    plugin = PLUGIN
    is_in_problem = True

    def __init__(
        self, pod: PodInfo, there: Iterable[tuple[TermClass, Places]], snapshot: Snapshot, table: DomainTable
    ) -> None:
        """there: terms of bound pods that may match the pod."""
        self._pod = pod
        self._snapshot = snapshot
        self._excluded = _ExcludedDomains(snapshot, table)
        for kind, places in there:
            for key in self._keys(kind.namespace, kind.terms):
                self._excluded.add_known(key, places.items())

    def _keys(self, owner: str, terms: Terms) -> list[str]:
        """Returns the topology keys of another pod's anti-affinity terms that match the pending pod.

        owner: namespace of the other pod.
        """
        namespace, labels = self._pod.namespace, self._pod.pod.metadata.labels
        if not terms.audience.may_have(owner, namespace, labels):
            return []
        required, namespaces = terms.anti_affinity.required, self._snapshot.namespaces
        return [t.topology_key for t in required if term_matches(t, owner, namespace, labels, namespaces)]

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: counts the pod if its anti-affinity matches the pending pod."""
        if not pod.ties.anti:
            return False
        keys = self._keys(pod.namespace, pod.ties.terms)
        for key in keys:
            self._excluded.add(key, node, sign)
        return bool(keys)

    @property
    def silent(self) -> bool:
        """True if no term of a pod in the snapshot matches this pod."""
        return not self._excluded

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        return refused_where(self._excluded.closed(), EXISTING)
