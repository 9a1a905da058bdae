"""The base class of filters that depend on other pods: they start from the snapshot and follow a plan's draft.

A Rule belongs to one shape. It counts the relevant pods on the nodes once, applies every later placement or eviction by
`change`, and returns a Verdict on all nodes for the current counts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints, NodeInfo
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.pods.pod_info import PodInfo

ANY_NUMBER = np.iinfo(np.int64).max


class Rule(ABC):
    """One filter of one shape on a draft."""

    plugin: str
    before_fit: bool = False
    """True if it is before NodeResourcesFit in the order of filters."""
    local: bool = False
    """True if a pod on a node changes the verdict and the copies of that node alone."""
    together: bool = False
    """True if the problem of a unit represents how pods of different shapes limit each other on a node (`gangs`, or a
    device family). If False, placements are tried on the rules (`unit_placement`)."""

    @abstractmethod
    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Adds a pod on a node (sign 1) or removes it (-1); returns True if the verdict may have changed."""

    @abstractmethod
    def verdict(self) -> Verdict:
        """Returns the verdict on every node, for this pod alone."""

    def standing(self) -> Verdict:
        """Returns the verdict without refusals that placing other members of the plan may remove."""
        return self.verdict()

    def copies(self) -> Ints | None:
        """Returns [nodes] how many copies of the pod the rule admits one after the other on a node.

        None for any number.
        """
        return None

    outlasts_pods = False
    """True if `is_lasting` recognises refusals that do not depend on the pods on the nodes."""

    def is_lasting(self, refusal: Refusal) -> bool:
        """Returns True if a refusal also applies on the empty cluster. Called only if `outlasts_pods`."""
        return refusal.code is Code.UNRESOLVABLE

    @property
    def is_number(self) -> bool:
        """True if the rule only compares numbers of devices."""
        return False

    def beside(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Returns how many copies the rule admits on a node in addition to nominated pods, and the refusal of more.

        None if they make no difference.

        held: resource -> amount that those pods will use of what is free on the node.
        """
        return None

    def capacity(self) -> Ints | None:
        """Returns `copies` as a resource of a unit's problem.

        None for any number, or if the problem represents it itself.
        """
        return None if self.together else self.copies()

    def takes_after(self, others: Sequence[PodInfo], node: int) -> bool:
        """Returns True if a node takes the pod after other pods of its plan; called if not `together`."""
        for other in others:
            self.change(other, node, 1)
        fits = bool(self.verdict().fits[node])
        for other in others:
            self.change(other, node, -1)
        return fits


@dataclass(frozen=True, eq=False)
class Domains:
    """The domains of one node label."""

    of: Ints
    """[nodes] number of the domain, -1 without the label."""
    count: int

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        return np.asarray(self.of >= 0)

    @cached_property
    def one_node_each(self) -> bool:
        """True if no two nodes share a domain."""
        return self.count == int(self.labelled.sum())

    def sums(self, per_node: Ints) -> Ints:
        """Returns [domains] the sum of a value per node."""
        weights = per_node[self.labelled].astype(np.float64)
        return np.bincount(self.of[self.labelled], weights=weights, minlength=self.count).astype(np.int64)

    def spread(self, per_domain: Ints) -> Ints:
        """Returns [nodes] the value of each node's domain, 0 without the label."""
        if not self.count:
            return np.zeros(len(self.of), dtype=np.int64)
        return np.where(self.labelled, per_domain[self.of], 0)


@dataclass
class DomainTable:
    """The domains of every label that was looked up; valid while the nodes' labels do not change."""

    nodes: Sequence[NodeInfo]
    known: dict[str, Domains] = field(default_factory=dict)
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)

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
