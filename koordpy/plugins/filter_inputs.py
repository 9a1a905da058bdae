# SPDX-License-Identifier: Apache-2.0
"""Defines `FilterInputs`: the draft, the configuration, and cached results that all filters and scores of a round
share.

A plugin that needs more than the pod and a node reads it from a `FilterInputs`, so that it does not depend on the
planner. Parameters of this type are named `inputs`.
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
"""Affinity terms of other pods that may match a pod: (terms of bound pods, each with node name -> number of pods that
have these terms; True if the round may place a pod with terms that may match)."""


class FilterInputs:
    """The draft of one round, and data derived from it for filters and scores."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, domains: Callable[[Snapshot], DomainTable]) -> None:
        """domains: returns the table of a snapshot's domains by node label; it is cached between rounds."""
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._domains = domains
        self.repairs: Callable[[PodInfo], bool] = lambda pod: False
        """Returns True if a pod is a member of a broken gang, which may use spare nodes. The round state sets it."""
        self.opens_spares = False
        """True if all pods may use spare nodes; set only to answer whether that would help."""
        coming = (*self.snapshot.pending, *(self.snapshot.pods[key] for key in self.snapshot.reservations))
        self._future_terms = {(pod.namespace, pod.ties.terms.audience) for pod in coming if pod.ties.terms}
        """(namespace, audience of the terms) of each pod with affinity terms that the round may place."""
        self._terms: dict[PodClass, TermsTowards] = {}
        self.memo: dict[type, object] = {}
        """Cached results for this draft, by the type that caches them: of device families and of some filters."""
        spread = config.filters.pod_topology_spread
        self.spread_defaults = SpreadDefaults(spread, self.snapshot.owners) if spread.constraints else None
        """The configured topology spread constraints for pods that have none; None if none are configured."""
        if not spread_keys(spread.constraints) <= self.snapshot.looked_for:
            raise ValueError("ClusterState.look_for lacks the labels of the configured constraints")

    def terms_towards(self, pod: PodInfo) -> TermsTowards:
        """Returns the pod affinity terms of other pods that may match a pod.

        The result is cached for all pods with the same namespace and the same values of labels that selectors read
        (`Snapshot.looked_for`).
        """
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
        """The domains of each topology key."""
        return self._domains(self.snapshot)

    @cached_property
    def scarce_resources(self) -> frozenset[str]:
        """Names of scarce resources such as GPUs: pods that request none of them avoid nodes with them (kube-parity.md
        3).

        They are the configured names, or by default all GPU and NPU resources.
        """
        listed = self.config.scores.scarce_resource_avoidance.resources
        return frozenset(listed or (*self.config.gpu.resources, *keys.NPU_RESOURCES))

    @cached_property
    def scarce_nodes(self) -> Ints | None:
        """[nodes] 1 if a node has a scarce resource, else 0; None if all nodes or no nodes have one."""
        columns = self.snapshot.columns
        own = [columns[name] for name in self.scarce_resources if name in columns]
        there = np.asarray((self.snapshot.allocatable[:, own] > 0).any(axis=1))
        return np.asarray(there, dtype=np.int64) if there.any() and not there.all() else None

    @cached_property
    def reach(self) -> VolumeReach:
        """The nodes on which each volume can be used."""
        return VolumeReach(self.snapshot.nodes, self.domains)
