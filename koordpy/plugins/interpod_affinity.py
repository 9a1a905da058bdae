"""InterPodAffinity: a pod's own required terms, and the required anti-affinity of existing pods (kube-parity.md 2.7).

matchLabelKeys and mismatchLabelKeys are already part of the selectors, because the API server merges them.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.api.label_selectors import Labels, selector_matches
from koordpy.api.objects import PodAffinityTerm
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, all_fit, chain, refused_where
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Domains, DomainTable, Rule
from koordpy.placement.member_interactions import Near
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import TermClass, Terms

PLUGIN = "InterPodAffinity"
AFFINITY = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) didn't match pod affinity rules",))
ANTI_AFFINITY = Refusal(PLUGIN, Code.UNSCHEDULABLE, ("node(s) didn't match pod anti-affinity rules",))
EXISTING = Refusal(PLUGIN, Code.UNSCHEDULABLE, ("node(s) didn't satisfy existing pods anti-affinity rules",))

Namespaces = Mapping[str, Labels]
Places = Mapping[str, int]
"""Node name -> number of pods."""


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
    """Returns [nodes] bound pods of the snapshot that all terms match, including pods that are being deleted."""
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
    """Pods that exclude others from their domains by anti-affinity, by topology key; only keys with such pods."""

    def __init__(self, snapshot: Snapshot, table: DomainTable) -> None:
        self._snapshot, self._table = snapshot, table
        self._pods: dict[str, tuple[Domains, Ints]] = {}
        """Topology key -> (its domains, [nodes] number of such pods)."""

    def __bool__(self) -> bool:
        return bool(self._pods)

    def add(self, key: str, node: int, count: int) -> None:
        """Adds `count` such pods on a node; a negative count removes them."""
        if key not in self._pods:
            self._pods[key] = self._table.of(key), np.zeros(len(self._snapshot.nodes), dtype=np.int64)
        self._pods[key][1][node] += count

    def add_known(self, key: str, places: Iterable[tuple[str, int]]) -> None:
        """Adds such pods on nodes given by name; ignores nodes that are not in the snapshot."""
        for name, count in places:
            if name in self._snapshot.index:
                self.add(key, self._snapshot.index[name], count)

    def closed(self) -> NDArray[np.bool_]:
        """Returns [nodes] True in a domain with such a pod."""
        out = np.zeros(len(self._snapshot.nodes), dtype=bool)
        for domains, pods in self._pods.values():
            out |= domains.spread(domains.sums(pods)) > 0
        return out


class OwnTerms(Rule):
    """The pod's own required affinity and anti-affinity."""

    plugin = PLUGIN
    together = True

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
        own = [table.of(term.topology_key) for term in self._anti_terms if self._matches(term, pod.namespace, labels)]
        self._excludes_itself = np.logical_or.reduce([domains.labelled for domains in own]) if own else None
        """[nodes] True where one copy of the pod excludes the next one; None if copies do not exclude each other."""
        self._wanted_in = [table.of(term.topology_key) for term in self._wanted]
        self._wanted_pods = pods_matching(self._wanted, self._owner, snapshot) if self._wanted else None
        self._excluded = _ExcludedDomains(snapshot, table)
        for kind, places in snapshot.classes.items() if self._anti_terms else ():
            for key in self._excluding_keys(kind.namespace, dict(kind.labels)):
                self._excluded.add_known(key, ((name, count) for (name, _), count in places.items()))

    def _matches(self, term: PodAffinityTerm, namespace: str, labels: Labels) -> bool:
        return term_matches(term, self._owner, namespace, labels, self._namespaces)

    def _excluding_keys(self, namespace: str, labels: Labels) -> list[str]:
        """Returns the topology keys of the anti-affinity terms that match pods with these labels."""
        if not self._audience.may_have(self._owner, namespace, labels):
            return []
        return [term.topology_key for term in self._anti_terms if self._matches(term, namespace, labels)]

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
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
        """Returns [nodes] True if every affinity term has a match in the node's domain.

        Also True if the pod matches its own terms and may be the first of its group.
        """
        assert self._wanted_pods is not None
        keyed: NDArray[np.bool_] = np.logical_and.reduce([domains.labelled for domains in self._wanted_in])
        counted = [domains.sums(self._wanted_pods) for domains in self._wanted_in]
        if self._matches_itself and not any(count.any() for count in counted):
            return keyed
        near = [domains.spread(count) > 0 for domains, count in zip(self._wanted_in, counted, strict=True)]
        return np.asarray(keyed & np.logical_and.reduce(near))

    def tie(self, shape: int, meant: tuple[int, ...]) -> Near | None:
        """Returns the required affinity between shapes of a problem, with the current pods; None without such terms."""
        if self._wanted_pods is None:
            return None
        existing = tuple(domains.sums(self._wanted_pods) for domains in self._wanted_in)
        return Near(shape, meant, tuple(domains.of for domains in self._wanted_in), existing)

    def wants(self, pod: PodInfo) -> bool:
        """Returns True if the pod has terms of required affinity and all of them match the given pod."""
        labels = pod.pod.metadata.labels
        return bool(self._wanted) and all(self._matches(term, pod.namespace, labels) for term in self._wanted)

    def verdict(self) -> Verdict:
        return self._combined(self._affinity_met() if self._wanted_pods is not None else None)

    def standing(self) -> Verdict:
        keyed = np.logical_and.reduce([domains.labelled for domains in self._wanted_in]) if self._wanted_in else None
        return self._combined(keyed)

    def _combined(self, near: NDArray[np.bool_] | None) -> Verdict:
        parts = []
        if near is not None:
            parts.append(refused_where(~near, AFFINITY))
        if self._anti_terms:
            parts.append(refused_where(self._excluded.closed(), ANTI_AFFINITY))
        return chain(parts) if parts else all_fit(len(self._nodes))

    def copies(self) -> Ints | None:
        return None if self._excludes_itself is None else np.where(self._excludes_itself, 1, ANY_NUMBER)


class ExistingTerms(Rule):
    """Required anti-affinity of existing pods: it closes its whole domain to the pods that it matches."""

    plugin = PLUGIN
    together = True

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
        """Returns the topology keys of the terms that match the pod."""
        namespace, labels = self._pod.namespace, self._pod.pod.metadata.labels
        if not terms.audience.may_have(owner, namespace, labels):
            return []
        required, namespaces = terms.anti_affinity.required, self._snapshot.namespaces
        return [t.topology_key for t in required if term_matches(t, owner, namespace, labels, namespaces)]

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
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
        return refused_where(self._excluded.closed(), EXISTING)
