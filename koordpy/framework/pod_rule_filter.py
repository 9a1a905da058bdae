# SPDX-License-Identifier: Apache-2.0
"""The base class of filters that depend on other pods, volumes or devices, such as pod affinity or host ports.

A `Rule` belongs to one shape of pending pods. It counts the relevant pods on the nodes of the snapshot once. Every
later placement or eviction of the draft is reported to it by `change`. `verdict` is then the verdict on all nodes for
the current counts. `Domains` and `DomainTable` are the domains of topology keys: the nodes with equal values of a
label.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints, NodeInfo
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.pods.pod_info import PodInfo

ANY_NUMBER = np.iinfo(np.int64).max
"""Number of copies of a pod where a rule has no limit."""


class Rule(ABC):
    """One filter plugin for one shape of pods on a draft."""

    plugin: str
    """Name of the filter plugin, as in kube-scheduler."""
    before_fit: bool = False
    """True if the filter is before NodeResourcesFit in the order of filters."""
    local: bool = False
    """True if a pod on a node can change the verdict and the copies only of that node, as for GPUs."""
    may_end_attempt: bool = False
    """True if the verdict may have an `AttemptError`."""
    is_in_problem: bool = False
    """True if the problem of a unit already represents how pods of different shapes limit each other on a node.

    The package `gangs` or a device family does that. If False, a placement found for the problem must be checked by the
    rules (`unit_placement`).
    """

    @abstractmethod
    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Adds a pod on a node (sign 1) or removes it (-1); returns True if the verdict may have changed.

        pod: any pod, also one that the filter does not concern. node: position in the snapshot.
        """

    @abstractmethod
    def verdict(self) -> Verdict:
        """Returns the verdict on every node for one pod of the shape, with the pods that are counted now."""

    def permanent_verdict(self) -> Verdict:
        """Returns the verdict with only those refusals that placing other members of the plan cannot remove.

        For example, a missing topology label remains, but a lack of pods that match required affinity does not.
        """
        return self.verdict()

    def copies(self) -> Ints | None:
        """Returns [nodes] how many copies of the pod the rule admits on a node one after the other.

        None if the rule does not limit the number.
        """
        return None

    outlasts_pods = False
    """True if `is_lasting` recognises refusals that do not depend on the pods on the nodes."""

    def is_lasting(self, refusal: Refusal) -> bool:
        """Returns True if a refusal also applies on the empty cluster. Called only if `outlasts_pods`."""
        return refusal.code is Code.UNRESOLVABLE

    @property
    def is_number(self) -> bool:
        """True if the rule only compares numbers of devices, so that sums decide."""
        return False

    def copies_with_nominated(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Returns (copies of the pod that a node takes in addition to the nominated pods there, refusal of one more).

        None if the nominated pods make no difference to the rule.

        held: resource -> amount that the nominated pods will use of what is free on the node.
        """
        return None

    def capacity(self) -> Ints | None:
        """Returns `copies`, to become a resource of a unit's placement problem of which each pod uses 1.

        None if the rule does not limit the number, or if the problem already represents the rule (`is_in_problem`).
        """
        return None if self.is_in_problem else self.copies()

    def capacity_key(self) -> Hashable:
        """Returns a key that is equal for shapes that share `capacity` and take 1 of it each; None for no sharing."""
        return None

    def fits_after(self, others: Sequence[PodInfo], node: int) -> bool:
        """Returns True if the pod fits on a node next to other pods of its plan; called if not `is_in_problem`."""
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
    """[nodes] number of the domain, -1 without the label."""
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
        """Returns [nodes] the entry of `per_domain` ([domains]) for each node's domain, 0 without the label."""
        if not self.count:
            return np.zeros(len(self.of), dtype=np.int64)
        return np.where(self.labelled, per_domain[self.of], 0)


@dataclass
class DomainTable:
    """The domains of node labels, computed on first use; valid while the nodes' labels do not change."""

    nodes: Sequence[NodeInfo]
    known: dict[str, Domains] = field(default_factory=dict)
    """Label key -> its domains, as far as they were looked up."""
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Label key -> value -> positions of the nodes with that value, as far as they were looked up."""

    def holders(self, key: str, values: Iterable[str]) -> list[int]:
        """Returns the positions, in order, of the nodes that have one of the values of a label."""
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
