"""The inputs of the filters and scores of a round: the draft, the configuration, and results shared by all of them.

A filter or score that reads more than the pod and a node gets it from here, so that it does not depend on the planner.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from koordpy.api import keys
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.framework.pod_rule_filter import DomainTable
from koordpy.plugins.topology_spread import SpreadDefaults
from koordpy.plugins.volume_binding import VolumeReach
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import PodClass, TermClass, pod_class, spread_keys

TermsTowards = tuple[Sequence[tuple[TermClass, Mapping[str, int]]], bool]
"""(Terms of bound pods with the number of such pods per node name, True if a plan may place a pod with such terms)."""


class FilterInputs:
    """One round's draft, and the data derived from it."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, domains: Callable[[Snapshot], DomainTable]) -> None:
        """domains: returns the domains of the node labels of a snapshot; they are cached between rounds."""
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._domains = domains
        coming = (*self.snapshot.pending, *(self.snapshot.pods[key] for key in self.snapshot.reservations))
        self._future_terms = {(pod.namespace, pod.ties.terms.audience) for pod in coming if pod.ties.terms}
        self._terms: dict[PodClass, TermsTowards] = {}
        self.memo: dict[type, object] = {}
        """Cached results of device families for this draft."""
        spread = config.filters.pod_topology_spread
        self.spread_defaults = SpreadDefaults(spread, self.snapshot.owners) if spread.constraints else None
        if not spread_keys(spread.constraints) <= self.snapshot.looked_for:
            raise ValueError("ClusterState.look_for lacks the labels of the configured constraints")

    def terms_towards(self, pod: PodInfo) -> TermsTowards:
        """Returns the pod affinity terms that may match a pod; cached for pods that no selector distinguishes."""
        alike = pod_class(pod.pod, self.snapshot.looked_for)
        found = self._terms.get(alike)
        if found is None:
            target = alike.namespace, dict(alike.labels)
            classes = self.snapshot.terms.items()
            there = [(one, at) for one, at in classes if one.terms.audience.may_have(one.namespace, *target)]
            coming = any(audience.may_have(namespace, *target) for namespace, audience in self._future_terms)
            found = self._terms[alike] = there, coming
        return found

    @cached_property
    def domains(self) -> DomainTable:
        """The domains of node labels."""
        return self._domains(self.snapshot)

    @cached_property
    def scarce_resources(self) -> frozenset[str]:
        """Scarce resources: pods that request none of them avoid the nodes that have them (kube-parity.md 3)."""
        listed = self.config.scores.scarce_resource_avoidance.resources
        return frozenset(listed or (*self.config.gpu.resources, *keys.NPU_RESOURCES))

    @cached_property
    def scarce_nodes(self) -> Ints | None:
        """[nodes] 1 if a node has some of the scarce resources; None if that is equal for all nodes."""
        columns = self.snapshot.columns
        own = [columns[name] for name in self.scarce_resources if name in columns]
        there = np.asarray((self.snapshot.allocatable[:, own] > 0).any(axis=1))
        return np.asarray(there, dtype=np.int64) if there.any() and not there.all() else None

    @cached_property
    def reach(self) -> VolumeReach:
        """The nodes on which each volume can be used."""
        return VolumeReach(self.snapshot.nodes, self.domains)
