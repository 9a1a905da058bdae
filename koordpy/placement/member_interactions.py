# SPDX-License-Identifier: Apache-2.0
"""Rules between the pods of one plan, as plain numbers: required affinity, anti-affinity, spread, one common domain.

kube-scheduler checks such rules pod by pod against the pods placed before. A plan places all pods of a gang at once, so
only its final state is checked (docs/rules/kube-parity.md 2.7): each pod against all other placed members and the
running pods. `faults` checks a finished placement; search methods build their constraints from the same descriptions.
Members of one shape are equal, so numbers of pods per shape and node suffice.

Words used here: a *shape* is an index into `Problem.shapes`. `meant` are the shapes that a label selector matches. A
*domain* is all nodes with one value of the rule's topology key. `groups` is [nodes] the number of the node's domain, -1
for a node without the label. An *owner* is a shape that has required affinity.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints

PlacedCounts = Mapping[tuple[int, int], int]
"""A placement: (shape, node) -> number of new pods of the shape on the node."""


@dataclass(frozen=True, eq=False)
class AntiAffinity:
    """One term of required anti-affinity: no other pod of the shapes `meant` in the domain of a pod of `shape`."""

    shape: int
    meant: tuple[int, ...]
    """Shapes that the term matches."""
    groups: Ints
    """[nodes] number of the node's domain; -1 for a node without the label, where the term cannot be violated."""

    @property
    def signs(self) -> tuple[Ints, ...]:
        """For each topology key [nodes]: equal numbers for nodes that are interchangeable for this rule.

        The number is that of the domain, or a code below -1 if the domain is a single node.
        """
        return (_signs(self.groups),)

    def holds(self, placed_counts: PlacedCounts) -> bool:
        """Returns True if a placement satisfies the rule.

        If a pod matches its own term, 1 matching pod (itself) is allowed in its domain, otherwise 0.
        """
        itself = self.shape in self.meant
        meant = _sums(placed_counts, self.meant, self.groups)
        return all(
            meant.get(domain, 0) <= itself for domain in _sums(placed_counts, (self.shape,), self.groups) if domain >= 0
        )


@dataclass(frozen=True, eq=False)
class RequiredAffinity:
    """Required pod affinity of one shape, with all its terms. It is a part of a `LinkedAffinity`."""

    shape: int
    meant: tuple[int, ...]
    """Shapes of new pods that match all terms."""
    groups: tuple[Ints, ...]
    """For each term [nodes]: number of the domain, -1 without the label. A pod needs a node with the labels of all
    terms."""
    existing_matches: tuple[Ints, ...]
    """For each term [domains]: number of pods that run before the plan and match all terms."""

    @property
    def matches_itself(self) -> bool:
        """True if a pod of the shape matches its own terms."""
        return self.shape in self.meant

    @property
    def has_existing(self) -> bool:
        """True if a pod that runs before the plan, on any node, matches all terms."""
        return any(bool(counts.any()) for counts in self.existing_matches)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """[nodes] True if the node has the label of at least one term. A matching pod on another node is in no
        domain."""
        return np.asarray(np.logical_or.reduce([groups >= 0 for groups in self.groups]))

    @property
    def keys(self) -> dict[bytes, Ints]:
        """Distinct topology keys of the terms: content of `groups` as bytes -> `groups`."""
        return {groups.tobytes(): groups for groups in self.groups}


@dataclass(frozen=True, eq=False)
class LinkedAffinity:
    """Required affinity of shapes that match each other's terms, directly or over other shapes (kube-parity.md 2.7).

    Two placed pods of these shapes are linked if one matches the terms of the other, or if a chain of such pairs joins
    them. F(p) of a pod p is the set of pods that satisfy its terms without help of a linked pod. These are the pods
    that match all terms of p and either run before the plan, or are new and have no required terms.

    - If F(p) is not empty, p must be in domains with a pod of F(p), for each of its terms.
    - If F(p) is empty, p starts a new place. All linked pods that start a new place must be in one domain of each
      topology key, and these domains must have a node in common. So only one place is opened for the whole set.
    """

    plugin: ClassVar[str] = "InterPodAffinity"

    owners: tuple[RequiredAffinity, ...]
    """The required affinity of each shape that has some."""

    @property
    def shape(self) -> int:
        """The first of `shapes`, for messages."""
        return self.owners[0].shape

    @property
    def shapes(self) -> frozenset[int]:
        """The shapes with required affinity."""
        return frozenset(one.shape for one in self.owners)

    @property
    def meant(self) -> tuple[int, ...]:
        """Shapes that the terms of the owners match: the shapes of the first owner, then of the next, and so on."""
        return tuple(shape for one in self.owners for shape in one.meant)

    @property
    def signs(self) -> tuple[Ints, ...]:
        """As `AntiAffinity.signs`. In addition, single nodes with different numbers of matching running pods differ."""
        pairs = [pair for one in self.owners for pair in zip(one.groups, one.existing_matches, strict=True)]
        return tuple(
            {(groups.tobytes(), existing.tobytes()): _signs(groups, existing) for groups, existing in pairs}.values()
        )

    def unlinked(self, one: RequiredAffinity) -> tuple[int, ...]:
        """Returns the shapes without required terms that match all terms of an owner. Their pods are never linked."""
        own = self.shapes
        return tuple(shape for shape in one.meant if shape not in own)

    def sets(self, shapes: Collection[int]) -> list[list[RequiredAffinity]]:
        """Returns the owners of the given shapes, divided into sets.

        A set is linked if the links use these shapes only.
        """
        return linked_sets([one for one in self.owners if one.shape in shapes])

    def holds(self, placed_counts: PlacedCounts) -> bool:
        """Returns True if a placement satisfies the rule for every set of linked pods."""
        placed = {shape for (shape, _), n in placed_counts.items() if n}
        return all(self._set_holds(owners, placed_counts) for owners in self.sets(placed))

    def _set_holds(self, owners: Sequence[RequiredAffinity], placed_counts: PlacedCounts) -> bool:
        """Returns True if a placement satisfies the rule for one set of linked shapes."""
        # topology key -> (`groups`, domains of it with pods that have an empty F(p))
        opened: dict[bytes, tuple[Ints, set[int]]] = {}
        for one in owners:
            nodes = [node for (shape, node), n in placed_counts.items() if shape == one.shape and n]
            if any(groups[node] < 0 for groups in one.groups for node in nodes):
                return False
            apart, counted = self.unlinked(one), one.labelled
            there = any(n and shape in apart and counted[node] for (shape, node), n in placed_counts.items())
            first = not there and not one.has_existing  # F(p) is empty for the pods of this shape
            for groups, existing in zip(one.groups, one.existing_matches, strict=True):
                new = _sums(placed_counts, one.meant if first else apart, groups)
                if any(existing[groups[node]] + new.get(int(groups[node]), 0) == 0 for node in nodes):
                    return False
            for key, groups in one.keys.items() if first else ():
                opened.setdefault(key, (groups, set()))[1].update(int(groups[node]) for node in nodes)
        if any(len(domains) > 1 for _, domains in opened.values()):
            return False
        # a new place: the domains of all keys must have a node in common
        common = [groups == next(iter(domains)) for groups, domains in opened.values()]
        return not common or bool(np.logical_and.reduce(common).any())


@dataclass(frozen=True, eq=False)
class Spread:
    """A topology spread constraint with DoNotSchedule, of the pods of one shape.

    In each domain with such a pod, the number of matching pods may exceed the global minimum (the least number of
    matching pods in any eligible domain) by at most `max_skew`.
    """

    plugin: ClassVar[str] = "PodTopologySpread"

    shape: int
    meant: tuple[int, ...]
    """Shapes that the label selector of the constraint matches."""
    groups: Ints
    """[nodes] number of the node's domain; -1 for a node where pods are not counted and the shape cannot be placed."""
    base: Ints
    """[domains] number of matching pods that run before the plan."""
    eligible: NDArray[np.bool_]
    """[domains] True for the domains over which the global minimum is taken."""
    max_skew: int
    """The number by which matching pods in a domain with a pod of the shape may exceed the global minimum."""
    min_domains: int = 1
    """minDomains: the global minimum is 0 if there are fewer eligible domains than this number."""

    @property
    def signs(self) -> tuple[Ints, ...]:
        """As `AntiAffinity.signs`.

        Single nodes with different eligibility or numbers of matching running pods also differ.
        """
        return (_signs(self.groups, self.base, self.eligible),)

    @property
    def from_zero(self) -> bool:
        """True if there are fewer eligible domains than `min_domains`, so that the global minimum is 0."""
        return int(self.eligible.sum()) < self.min_domains

    def holds(self, placed_counts: PlacedCounts) -> bool:
        """Returns True if a placement satisfies the constraint in every domain with a new pod of the shape."""
        own = _sums(placed_counts, (self.shape,), self.groups)
        if not own:
            return True
        if -1 in own:
            return False
        counts = self.base.copy()
        for domain, n in _sums(placed_counts, self.meant, self.groups).items():
            if domain >= 0:
                counts[domain] += n
        least = 0 if self.from_zero else int(counts[self.eligible].min())
        return all(counts[domain] - least <= self.max_skew for domain in own)


@dataclass(frozen=True, eq=False)
class InOneDomain:
    """The rule for a part of a unit, such as one replica: all its new pods must be in one domain of a layer."""

    meant: tuple[int, ...]
    """The shapes of the part's pending pods; a shape may be in several parts."""
    groups: Ints
    """[nodes] number of the node's domain of the layer."""

    @property
    def shape(self) -> int:
        """The first shape of the part, for messages."""
        return self.meant[0]

    @property
    def signs(self) -> tuple[Ints, ...]:
        """As `AntiAffinity.signs`."""
        return (_signs(self.groups),)

    def holds(self, placed_counts: PlacedCounts) -> bool:
        """Returns True if the new pods of the part are in one domain."""
        return len(_sums(placed_counts, self.meant, self.groups)) < 2


Tie = AntiAffinity | LinkedAffinity | Spread
"""A rule from the pod spec of a member of the unit."""
_Own = TypeVar("_Own", AntiAffinity, RequiredAffinity, Spread)
Interaction = Tie | InOneDomain
"""Any rule among the new pods of a plan."""


def _sums(placed_counts: PlacedCounts, shapes: Iterable[int], groups: Ints) -> dict[int, int]:
    """Returns domain -> number of new pods of the shapes in it, only above 0. Domain -1 is the nodes in no domain."""
    out: dict[int, int] = {}
    wanted = set(shapes)
    for (shape, node), n in placed_counts.items():
        if n and shape in wanted:
            domain = int(groups[node])
            out[domain] = out.get(domain, 0) + n
    return out


def _signs(groups: Ints, *columns: NDArray[np.generic]) -> Ints:
    """Returns [nodes]: equal numbers for nodes that a rule does not distinguish.

    The number is that of the domain, because all nodes of a domain are equal for the rule. For a domain of a single
    node it is a code below -1, equal for single nodes with equal `columns` ([domains] each).
    """
    inside = np.maximum(groups, 0)
    single = (groups >= 0) & (np.bincount(groups[groups >= 0], minlength=len(groups))[inside] == 1)
    if not single.any():
        return groups
    rows = np.stack([np.zeros_like(groups), *(column[inside].astype(np.int64) for column in columns)], axis=1)
    return np.where(single, -2 - np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), groups)


def linked_sets(owners: Sequence[RequiredAffinity]) -> list[list[RequiredAffinity]]:
    """Divides shapes with required terms into sets of linked shapes.

    Two shapes are linked if one matches all terms of the other, or if a chain of such pairs joins them.
    """
    left, out = list(owners), list[list[RequiredAffinity]]()
    while left:
        found = [left.pop(0)]
        for one in found:
            near = [other for other in left if one.shape in other.meant or other.shape in one.meant]
            found += near
            left = [other for other in left if other not in near]
        out.append(found)
    return out


def renumbered(one: Tie, shapes: Mapping[int, Sequence[int]]) -> Iterator[Tie]:
    """Yields an interaction with other shape numbers.

    shapes: old number -> new numbers. A shape with several new numbers gets one rule for each of them.
    """
    if isinstance(one, LinkedAffinity):
        owners = tuple(new for own in one.owners for new in _renumbered(own, shapes))
        if owners:
            yield LinkedAffinity(owners)
    elif isinstance(one, AntiAffinity):
        yield from _renumbered(one, shapes)
    else:
        yield from _renumbered(one, shapes)


def _renumbered(one: _Own, shapes: Mapping[int, Sequence[int]]) -> Iterator[_Own]:
    meant = tuple(sorted(new for shape in one.meant for new in shapes[shape]))
    return (replace(one, shape=shape, meant=meant) for shape in shapes[one.shape])


def faults(interactions: Iterable[Interaction], placed_counts: PlacedCounts) -> list[str]:
    """Returns one sentence per interaction that a placement breaks; empty for a valid placement."""
    return [
        f"shape {one.shape} breaks {type(one).__name__} towards shapes {one.meant}"
        for one in interactions
        if not one.holds(placed_counts)
    ]
