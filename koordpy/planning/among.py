"""What the members of one gang are to each other: ports, anti-affinity, affinity and spread among them.

A plan takes members as counts on nodes, so what holds between two members must become a capacity of the node, or be
refused (gang-network.md 5: all members of the plan stand in place). Exact as a capacity are a host port, which is a
resource of which each node has one, and a required anti-affinity within single nodes: pods with the term take all of a
resource of which the pods that it speaks of take one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from koordpy.api.objects import PodAffinityTerm
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Ints, Snapshot
from koordpy.cluster.ties import ANY_ADDRESS, NO_TERMS, Terms, read_terms
from koordpy.planning.filters.base import Code, Refusal
from koordpy.planning.filters.interpod import term_matches
from koordpy.planning.filters.rules import DomainTable
from koordpy.planning.selectors import selector_matches

Ask = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Among:
    """room: [nodes, k] of resources that only this gang's members know; asks: shape -> (column of room, amount);
    refusals: shape -> why a plan cannot hold it together with the other members."""

    room: Ints
    asks: Mapping[bytes, tuple[Ask, ...]] = field(default_factory=dict)
    refusals: Mapping[bytes, Refusal] = field(default_factory=dict)


def concerned(pod: PodInfo) -> bool:
    """Whether a pod may be something to other members."""
    return pod.ties is not None or bool(pod.pod.spec.topology_spread_constraints)


def among(pending: Sequence[PodInfo], snapshot: Snapshot, table: DomainTable) -> Among:
    """What the pending members of a unit are to each other."""
    return _Reader(pending, snapshot, table).read()


class _Reader:
    def __init__(self, pending: Sequence[PodInfo], snapshot: Snapshot, table: DomainTable) -> None:
        self.snapshot = snapshot
        self.table = table
        self.number = Counter(pod.shape for pod in pending)
        self.kinds = {pod.shape: pod for pod in reversed(pending)}
        self.columns: list[Ints] = []
        self.asks: dict[bytes, list[Ask]] = {}
        self.refusals: dict[bytes, Refusal] = {}

    def read(self) -> Among:
        if self.number.total() > 1:
            self._ports()
            for shape, pod in self.kinds.items():
                terms = read_terms(pod.ties.affinity) if pod.ties is not None else NO_TERMS
                self._terms(shape, pod, terms)
                self._spread(shape, pod)
        nodes = len(self.snapshot.nodes)
        room = np.stack(self.columns, axis=1) if self.columns else np.zeros((nodes, 0), dtype=np.int64)
        return Among(room, {shape: tuple(asks) for shape, asks in self.asks.items()}, self.refusals)

    def _refuse(self, shape: bytes, plugin: str, feature: str) -> None:
        reason = f"unsupported: {feature} among the members of a gang"
        self.refusals.setdefault(shape, Refusal(plugin, Code.UNRESOLVABLE, (reason,)))

    def _column(self, room: Ints, asks: Mapping[bytes, int]) -> None:
        for shape, amount in asks.items():
            self.asks.setdefault(shape, []).append((len(self.columns), amount))
        self.columns.append(room)

    def _ports(self) -> None:
        """A column for each address of a port; the wildcard takes those of all addresses."""
        wanted: dict[tuple[str, int], dict[str, set[bytes]]] = {}
        for shape, pod in self.kinds.items():
            for port in pod.ties.ports if pod.ties is not None else ():
                wanted.setdefault((port.protocol, port.port), {}).setdefault(port.address, set()).add(shape)
        for addresses in wanted.values():
            everywhere = addresses.get(ANY_ADDRESS, set())
            for shapes in addresses.values():
                holders = {shape for shape in self.kinds if shape in shapes or shape in everywhere}
                if sum(self.number[shape] for shape in holders) > 1:
                    one = np.ones(len(self.snapshot.nodes), dtype=np.int64)
                    self._column(one, {shape: 1 for shape in self.kinds if shape in holders})

    def _meant(self, term: PodAffinityTerm, owner: PodInfo) -> list[bytes]:
        """Kinds that a term of `owner` speaks of."""
        namespaces = self.snapshot.namespaces
        return [
            shape
            for shape, pod in self.kinds.items()
            if term_matches(term, owner.namespace, pod.namespace, pod.pod.metadata.labels, namespaces)
        ]

    def _others(self, shape: bytes, meant: Sequence[bytes]) -> int:
        """Members among those meant, other than one pod of the kind itself."""
        return sum(self.number[one] for one in meant) - (shape in meant)

    def _terms(self, shape: bytes, pod: PodInfo, terms: Terms) -> None:
        for term in terms.affinity.required:
            if self._others(shape, self._meant(term, pod)):
                self._refuse(shape, "InterPodAffinity", "required pod affinity")
        for term in terms.anti_affinity.required:
            meant = self._meant(term, pod)
            if not self._others(shape, meant):
                continue
            domains = self.table.of(term.topology_key)
            if shape not in meant or not domains.one_node_each:
                self._refuse(shape, "InterPodAffinity", "required pod anti-affinity")
                continue
            whole = self.number.total()
            room = np.where(domains.labelled, whole, whole * whole).astype(np.int64)
            self._column(room, {one: whole if one == shape else 1 for one in meant})

    def _spread(self, shape: bytes, pod: PodInfo) -> None:
        for constraint in pod.pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable == "ScheduleAnyway":
                continue
            meant = [
                one
                for one, other in self.kinds.items()
                if other.namespace == pod.namespace
                and selector_matches(constraint.label_selector, other.pod.metadata.labels)
            ]
            if self._others(shape, meant):
                self._refuse(shape, "PodTopologySpread", "topology spread constraints")
