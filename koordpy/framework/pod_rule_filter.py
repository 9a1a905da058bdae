"""What a filter that looks at other pods is like: it starts from the snapshot and follows a plan's draft.

A Rule belongs to one shape. It counts what it needs of the pods on the nodes once, takes every later placement or
eviction by `change`, and answers a Verdict for all nodes on the counts as they are.
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
    """Whether it stands before NodeResourcesFit in the order of filters."""
    local: bool = False
    """Whether a pod on a node changes the verdict and the copies of that node alone."""
    together: bool = False
    """Whether the problem of a unit knows by itself what pods of different shapes leave each other on a node
    (`gangs`, or a family of devices); else placements are tried on the rules (`unit_placement`)."""

    @abstractmethod
    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """A pod comes to a node (sign 1) or leaves it (-1); answers whether the verdict may have changed."""

    @abstractmethod
    def verdict(self) -> Verdict:
        """Every node, this pod alone."""

    def standing(self) -> Verdict:
        """The verdict without what other members of a plan may change by standing in place too."""
        return self.verdict()

    def copies(self) -> Ints | None:
        """[nodes] how many copies of the pod one after the other the rule lets on a node; None = any number."""
        return None

    outlasts_pods = False
    """True if `is_lasting` tells refusals that hold whatever pods are on the nodes."""

    def is_lasting(self, refusal: Refusal) -> bool:
        """True if a refusal would also hold on the empty cluster. Asked only of rules that say `outlasts_pods`."""
        return refusal.code is Code.UNRESOLVABLE

    @property
    def is_number(self) -> bool:
        """True if the rule compares numbers of devices alone."""
        return False

    def beside(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Copies that the rule lets on a node beside nominated pods, and why not more; None where they change nothing.

        held: resource -> what those pods will take of what is free on the node.
        """
        return None

    def capacity(self) -> Ints | None:
        """The same as room of a unit's problem; None = any number, or where the problem knows it by itself."""
        return None if self.together else self.copies()

    def takes_after(self, others: Sequence[PodInfo], node: int) -> bool:
        """Whether a node takes the pod when others of its plan have come to it; asked where not `together`."""
        for other in others:
            self.change(other, node, 1)
        fits = bool(self.verdict().fits[node])
        for other in others:
            self.change(other, node, -1)
        return fits


@dataclass(frozen=True, eq=False)
class Domains:
    """The domains that one node label makes. of: [nodes] number of the domain, -1 without the label."""

    of: Ints
    count: int

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        return np.asarray(self.of >= 0)

    @cached_property
    def one_node_each(self) -> bool:
        """Whether no two nodes share a domain."""
        return self.count == int(self.labelled.sum())

    def sums(self, per_node: Ints) -> Ints:
        """[domains] sums of a figure of each node."""
        weights = per_node[self.labelled].astype(np.float64)
        return np.bincount(self.of[self.labelled], weights=weights, minlength=self.count).astype(np.int64)

    def spread(self, per_domain: Ints) -> Ints:
        """[nodes] the figure of each node's domain, 0 without the label."""
        if not self.count:
            return np.zeros(len(self.of), dtype=np.int64)
        return np.where(self.labelled, per_domain[self.of], 0)


@dataclass
class DomainTable:
    """The domains of every label asked for, on nodes whose labels stand."""

    nodes: Sequence[NodeInfo]
    known: dict[str, Domains] = field(default_factory=dict)
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def holders(self, key: str, values: Iterable[str]) -> list[int]:
        """Positions of the nodes whose label has one of the values, in order."""
        places = self.places.get(key)
        if places is None:
            places = self.places[key] = {}
            for i, node in enumerate(self.nodes):
                if key in node.labels:
                    places.setdefault(node.labels[key], []).append(i)
        return sorted(i for value in set(values) for i in places.get(value, ()))

    def of(self, key: str) -> Domains:
        """The domains of a node label."""
        found = self.known.get(key)
        if found is None:
            numbers: dict[str, int] = {}
            of = np.empty(len(self.nodes), dtype=np.int64)
            for i, node in enumerate(self.nodes):
                value = node.labels.get(key)
                of[i] = -1 if value is None else numbers.setdefault(value, len(numbers))
            found = self.known[key] = Domains(of, len(numbers))
        return found
