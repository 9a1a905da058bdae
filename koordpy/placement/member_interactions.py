"""What members of one plan are to each other beyond single nodes: affinity, anti-affinity and spread, as plain numbers.

A plan is judged as it stands in the end, not in some order of placing (kube-parity.md 2.7): each pod is held against
all other members in place and the pods that run. `faults` says so for a finished placement; methods that search build
their constraints from the same descriptions. Members are alike by shape, so counts per shape and node suffice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from koordpy.cluster.snapshot import Ints

Held = Mapping[tuple[int, int], int]
"""(shape, node) -> new pods of the shape there."""


@dataclass(frozen=True, eq=False)
class Apart:
    """Required anti-affinity, one term: no other pod of the shapes meant in the domain of a pod of `shape`.

    groups: [nodes] number of the node's domain, -1 without the label, where nothing can conflict.
    """

    shape: int
    meant: tuple[int, ...]
    groups: Ints

    @property
    def signs(self) -> tuple[Ints, ...]:
        """Per label [nodes] equal for nodes that can stand for each other; below -1 where a domain is one node."""
        return (_signs(self.groups),)

    def holds(self, held: Held) -> bool:
        itself = self.shape in self.meant
        meant = _sums(held, self.meant, self.groups)
        return all(meant.get(domain, 0) <= itself for domain in _sums(held, (self.shape,), self.groups) if domain >= 0)


@dataclass(frozen=True, eq=False)
class Near:
    """Required affinity, all terms of a pod: in its domain of each term another pod that all terms speak of.

    meant: shapes that all terms speak of. groups: per term [nodes] domain or -1; the pod needs every label. existing:
    per term [domains] running pods that all terms speak of. Where no other such pod is on any node with one of the
    labels, a pod that its own terms speak of may be the first of its kind.
    """

    plugin: ClassVar[str] = "InterPodAffinity"

    shape: int
    meant: tuple[int, ...]
    groups: tuple[Ints, ...]
    existing: tuple[Ints, ...]

    @property
    def signs(self) -> tuple[Ints, ...]:
        pairs = zip(self.groups, self.existing, strict=True)
        return tuple(_signs(groups, existing) for groups, existing in pairs)

    @property
    def may_be_first(self) -> bool:
        """Whether a pod of the shape may be the first of its kind, as far as running pods go."""
        return self.shape in self.meant and not any(counts.any() for counts in self.existing)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """[nodes] that have one of the labels: pods elsewhere are nobody's neighbours."""
        return np.asarray(np.logical_or.reduce([groups >= 0 for groups in self.groups]))

    def holds(self, held: Held) -> bool:
        own = [node for (shape, node), n in held.items() if shape == self.shape and n]
        if any(groups[node] < 0 for groups in self.groups for node in own):
            return False
        itself = self.shape in self.meant
        counted = self.counted
        everywhere = sum(n for (shape, node), n in held.items() if shape in self.meant and counted[node])
        if self.may_be_first and everywhere == 1:
            return True
        for groups, existing in zip(self.groups, self.existing, strict=True):
            meant = _sums(held, self.meant, groups)
            if any(existing[groups[node]] + meant.get(int(groups[node]), 0) <= itself for node in own):
                return False
        return True


@dataclass(frozen=True, eq=False)
class Spread:
    """A DoNotSchedule topology spread constraint of the pods of a shape.

    meant: shapes that its selector speaks of. groups: [nodes] domain, -1 where pods are not counted and the shape
    cannot stand. base: [domains] running pods that count. eligible: [domains] that the least is taken over; fewer of
    them than min_domains: the least is 0. Where a pod stands, its domain's count is at most max_skew above the least.
    """

    plugin: ClassVar[str] = "PodTopologySpread"

    shape: int
    meant: tuple[int, ...]
    groups: Ints
    base: Ints
    eligible: NDArray[np.bool_]
    max_skew: int
    min_domains: int = 1

    @property
    def signs(self) -> tuple[Ints, ...]:
        return (_signs(self.groups, self.base, self.eligible),)

    @property
    def from_zero(self) -> bool:
        """Whether there are too few domains, so that the least counts as 0."""
        return int(self.eligible.sum()) < self.min_domains

    def holds(self, held: Held) -> bool:
        own = _sums(held, (self.shape,), self.groups)
        if not own:
            return True
        if -1 in own:
            return False
        counts = self.base.copy()
        for domain, n in _sums(held, self.meant, self.groups).items():
            if domain >= 0:
                counts[domain] += n
        least = 0 if self.from_zero else int(counts[self.eligible].min())
        return all(counts[domain] - least <= self.max_skew for domain in own)


@dataclass(frozen=True, eq=False)
class InOneDomain:
    """A part of a unit: all new pods of the shapes meant in one domain. groups: [nodes] number of the node's domain."""

    meant: tuple[int, ...]
    groups: Ints

    @property
    def shape(self) -> int:
        return self.meant[0]

    @property
    def signs(self) -> tuple[Ints, ...]:
        return (_signs(self.groups),)

    def holds(self, held: Held) -> bool:
        return len(_sums(held, self.meant, self.groups)) < 2


Tie = Apart | Near | Spread
Interaction = Tie | InOneDomain


def _sums(held: Held, shapes: Iterable[int], groups: Ints) -> dict[int, int]:
    """Domain -> pods of the shapes there, -1 for nodes in none; only domains with such pods."""
    out: dict[int, int] = {}
    wanted = set(shapes)
    for (shape, node), n in held.items():
        if n and shape in wanted:
            domain = int(groups[node])
            out[domain] = out.get(domain, 0) + n
    return out


def _signs(groups: Ints, *figures: NDArray[np.generic]) -> Ints:
    """The domain's number; where it has one node, a negative code that single nodes of equal figures share."""
    inside = np.maximum(groups, 0)
    single = (groups >= 0) & (np.bincount(groups[groups >= 0], minlength=len(groups))[inside] == 1)
    if not single.any():
        return groups
    rows = np.stack([np.zeros_like(groups), *(figure[inside].astype(np.int64) for figure in figures)], axis=1)
    return np.where(single, -2 - np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), groups)


def renumbered(one: Tie, shapes: Mapping[int, Sequence[int]]) -> Iterator[Tie]:
    """The same between shapes of other numbers, several for a shape that is told apart further."""
    meant = tuple(sorted(new for shape in one.meant for new in shapes[shape]))
    return (replace(one, shape=shape, meant=meant) for shape in shapes[one.shape])


def faults(interactions: Iterable[Interaction], held: Held) -> list[str]:
    """What a placement breaks among its members; none for a valid one."""
    return [
        f"shape {one.shape} breaks {type(one).__name__} towards shapes {one.meant}"
        for one in interactions
        if not one.holds(held)
    ]
