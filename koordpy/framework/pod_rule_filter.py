# SPDX-License-Identifier: Apache-2.0
"""The base class of filters that depend on other pods, volumes or devices, such as pod affinity or host ports.

A `Rule` belongs to one shape of pending pods. It counts the relevant pods on the nodes of the snapshot once. The draft
reports every later placement and eviction to `change`. `verdict` returns the verdict on all nodes for the current
counts. `Domains` are the domains of one topology key: one domain is all nodes with the same value of that node label.
`DomainTable` has the domains of all keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints, NodeInfo
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.pods.pod_info import PodInfo

ANY_NUMBER = np.iinfo(np.int64).max
"""Means "no limit" in an array of numbers of pods."""


class Rule(ABC):
    """One filter plugin for one shape of pods on a draft."""

    plugin: str
    """Name of the filter plugin, as in kube-scheduler."""
    before_fit: bool = False
    """True if the filter is before NodeResourcesFit in the order of filters."""
    local: bool = False
    """True if a pod on a node can change only that node's verdict and number of copies, as for GPUs."""
    may_end_attempt: bool = False
    """True if the verdict may contain an `AttemptError`."""
    is_in_problem: bool = False
    """True if the unit's placement problem already contains the limits that this filter sets between members on a node.

    The package `gangs` or a device family puts them there. If False, the rules must check a placement that was found
    for the problem (`unit_placement`).
    """

    @abstractmethod
    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Adds a pod on a node (sign 1) or removes it (-1); returns True if the verdict may have changed.

        pod: any pod, even if it does not matter for the filter. node: position in the snapshot.
        """

    @abstractmethod
    def verdict(self) -> Verdict:
        """Returns the verdict on every node for one more pod of the shape, given the pods counted so far."""

    def fits_at(self, rows: Ints) -> NDArray[np.bool_]:
        """Returns [rows] True if the pod fits on the node, of the given nodes (positions); as `verdict`."""
        return self.verdict().fits[rows]

    def permanent_verdict(self) -> Verdict:
        """Returns the verdict without the refusals that placing other members of the same plan could remove.

        For example, the refusal for a missing topology label remains. The refusal for required affinity without a
        matching pod is left out, because another member may match.
        """
        return self.verdict()

    def copies(self) -> Ints | None:
        """Returns [nodes] how many further pods of the shape the rule admits on a node, placed one after the other.

        None if the rule does not limit the number of pods.
        """
        return None

    def empty_copies(self, own: Collection[str]) -> Ints | None:
        """Returns [nodes] how many pods of the shape the rule admits on a node without other pods, one after the other.

        None if the rule does not limit this number, or does not know it. own: keys of the bound pods of the unit. They
        remain on their nodes, like pods of DaemonSets and mirror pods; the amounts that they use are not counted.
        """
        return None

    outlasts_pods = False
    """True if some refusals do not depend on the pods on the nodes; `is_lasting` recognises these."""

    def is_lasting(self, refusal: Refusal) -> bool:
        """Returns True if a refusal would remain on a cluster without pods. Called only if `outlasts_pods`."""
        return refusal.code is Code.UNRESOLVABLE

    @property
    def is_monotone(self) -> bool:
        """True if removing pods from a node never makes the rule refuse this node to one pod of the shape."""
        return True

    @property
    def is_number(self) -> bool:
        """True if the rule only compares numbers of devices, so that it can be decided from sums per node."""
        return False

    def copies_with_nominated(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Returns how many more pods of the shape fit a node if nominated pods use their part, and the next refusal.

        The result is (number of pods in addition to the nominated pods, refusal of one pod more), or None if the
        nominated pods do not affect the rule.

        held: resource -> amount of the node's free capacity that the nominated pods will use.
        """
        return None

    def capacity(self) -> Ints | None:
        """Returns the rule's limit as a resource of the placement problem: [nodes] capacity; each pod uses 1.

        None if the rule does not limit the number, or if the problem already contains the rule (`is_in_problem`).
        """
        return None if self.is_in_problem else self.copies()

    def capacity_key(self) -> Hashable:
        """Returns a key that is equal for shapes which share one `capacity`, 1 for each pod; None if none is shared."""
        return None

    def cost_key(self) -> Hashable:
        """Returns a key that is equal for pods to which every node gives equal devices; None if the request of the pod
        decides."""
        return None

    def fits_after(self, others: Sequence[PodInfo], node: int) -> bool:
        """Returns True if the pod fits a node on which `others`, pods of the same plan, are placed first.

        Called only if `is_in_problem` is False.
        """
        for other in others:
            self.change(other, node, 1)
        fits = bool(self.verdict().fits[node])
        for other in others:
            self.change(other, node, -1)
        return fits


@dataclass(frozen=True, eq=False)
class Domains:
    """The domains of one topology key: each domain is the nodes with one value of this label, numbered from 0."""

    of: Ints
    """[nodes] number of the node's domain; -1 for a node without the label."""
    count: int
    """Number of domains."""

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        """[nodes] True if the node has the label."""
        return np.asarray(self.of >= 0)

    @cached_property
    def one_node_each(self) -> bool:
        """True if no two nodes share a domain."""
        return self.count == int(self.labelled.sum())

    def sums(self, per_node: Ints) -> Ints:
        """Returns [domains] the sum of `per_node` ([nodes]) over the nodes of each domain."""
        weights = per_node[self.labelled].astype(np.float64)
        return np.bincount(self.of[self.labelled], weights=weights, minlength=self.count).astype(np.int64)

    def spread(self, per_domain: Ints) -> Ints:
        """Returns [nodes] the entry of `per_domain` ([domains]) for each node's domain; 0 for nodes without the
        label."""
        if not self.count:
            return np.zeros(len(self.of), dtype=np.int64)
        return np.where(self.labelled, per_domain[self.of], 0)


@dataclass
class DomainTable:
    """The domains of node labels, computed at the first request; valid while the nodes' labels do not change."""

    nodes: Sequence[NodeInfo]
    known: dict[str, Domains] = field(default_factory=dict)
    """Label key -> its domains; only keys that were requested."""
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Label key -> value -> positions of the nodes with that value; only keys that were requested."""

    def holders(self, key: str, values: Iterable[str]) -> list[int]:
        """Returns the positions, ascending, of the nodes that have one of the values of a label."""
        places = self.places.get(key)
        if places is None:
            places = self.places[key] = {}
            for i, node in enumerate(self.nodes):
                if key in node.labels:
                    places.setdefault(node.labels[key], []).append(i)
        return sorted(i for value in set(values) for i in places.get(value, ()))

    def of(self, key: str) -> Domains:
        """Returns the domains of a node label."""
        found = self.known.get(key)
        if found is None:
            numbers: dict[str, int] = {}
            of = np.empty(len(self.nodes), dtype=np.int64)
            for i, node in enumerate(self.nodes):
                value = node.labels.get(key)
                of[i] = -1 if value is None else numbers.setdefault(value, len(numbers))
            found = self.known[key] = Domains(of, len(numbers))
        return found
