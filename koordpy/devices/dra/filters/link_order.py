# SPDX-License-Identifier: Apache-2.0
"""Compares sets of devices of one node by their links: rules 1 to 6 of gpu-topology.md 4 (dra.md 6, rule 3).

Pairs of devices of one driver are compared first, then pairs of different drivers. Slowest pairs and sums are computed
once for each set. If the node's Device states links, rings and packings are read from the tables of
`koordpy.devices.links`. Otherwise links follow from attributes. If these form nested groups, the best ring is as slow
as the slowest pair, and packings follow from the sizes of groups; else tables are used, too. For more than
`EXACT_GPUS` devices of a driver, rings are left out, and packings are those by attributes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from koordpy.devices.dra.filters.node_links import NodeLinks, Place
from koordpy.devices.links.device_masks import bits_of, masks_of_size
from koordpy.devices.links.link_board import LEFT_SIZES, NO_LIMIT, LinkBoard, StatedLinks
from koordpy.devices.links.link_pattern import pattern_of
from koordpy.devices.links.link_tables import Tables
from koordpy.plan.limits import EXACT_GPUS


class PairValues(NamedTuple):
    """kB/s of the pairs of a set of devices."""

    slow: int
    """Slowest pair of one driver."""
    slow_far: int
    """Slowest pair of different drivers."""
    total: int
    """Sum over the pairs of one driver."""
    total_far: int
    """Sum over the pairs of different drivers."""


class _DriverTables(NamedTuple):
    """Tables over the devices of one driver."""

    links: StatedLinks
    ringed: set[int]
    """Sizes for which the rings of all sets have been computed in `tables`."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of the driver's devices."""
        return self.links.positions

    @property
    def tables(self) -> Tables:
        """Tables over all sets of these devices."""
        return self.links.tables

    def ring(self, local: int) -> int:
        """Returns the class of the slowest hop of the best ring through a set of `local`.

        The rings of all sets of its size are computed at once, which takes little longer than those of one set.
        """
        size = local.bit_count()
        if size not in self.ringed:
            self.ringed.add(size)
            self.tables.rings(masks_of_size(self.tables.size, size))
        return int(self.tables.rings(np.array([local], dtype=np.int64))[0])


@lru_cache(maxsize=1024)
def _stated(values: tuple[tuple[int, ...], ...], at: tuple[int, ...]) -> StatedLinks:
    """Returns the links of one driver's devices (positions). values: kB/s of all pairs, as in `NodeLinks.values`."""
    value = [[values[max(i, j)][min(i, j)] if i != j else 0 for j in at] for i in at]
    pattern, levels = pattern_of(value, {one: one for i, row in enumerate(value) for one in row[:i]})
    return StatedLinks(at, pattern, levels)


class LinkOrder:
    """The order of sets of devices on one node. A set is a mask of positions."""

    def __init__(self, links: NodeLinks) -> None:
        self.links = links
        self._known: dict[int, PairValues] = {0: PairValues(NO_LIMIT, NO_LIMIT, 0, 0)}
        self._rings: dict[int, list[int]] = {}
        self._left: dict[int, tuple[int, ...]] = {}

    @cached_property
    def board(self) -> LinkBoard:
        """The links as numbers, for the choice of sets."""
        links = self.links
        names = list(dict.fromkeys(links.drivers))
        roots, numas = (list(dict.fromkeys(place[k] for place in links.places)) for k in (0, 1))
        return LinkBoard(
            tuple(map(names.index, links.drivers)),
            links.values,
            tuple(None if place[0] is None else roots.index(place[0]) for place in links.places),
            tuple(None if place[1] is None else numas.index(place[1]) for place in links.places),
            tuple(one.links for one in self._tables),
        )

    def pairs(self, mask: int) -> PairValues:
        """Returns the slowest pairs and sums of a set."""
        found = self._known.get(mask)
        if found is None:
            top = mask.bit_length() - 1
            rest = mask ^ (1 << top)
            slow, slow_far, total, total_far = self.pairs(rest)
            for i in bits_of(rest):
                value = self.links.value(i, top)
                if self.links.drivers[i] == self.links.drivers[top]:
                    slow, total = min(slow, value), total + value
                else:
                    slow_far, total_far = min(slow_far, value), total_far + value
            found = self._known[mask] = PairValues(slow, slow_far, total, total_far)
        return found

    def compared(self, mask: int) -> tuple[int, int]:
        """Returns the slowest pair of one driver and of different drivers, by classes over all nodes."""
        near = far = NO_LIMIT
        for i, j in combinations(bits_of(mask), 2):
            if self.links.drivers[i] == self.links.drivers[j]:
                near = min(near, self.links.compared(i, j))
            else:
                far = min(far, self.links.compared(i, j))
        return near, far

    def rank(
        self, own: Sequence[int], held: int, suitable: int, rest: int, best: Sequence[Any] | None = None
    ) -> tuple[Any, ...] | None:
        """Returns the rank of a choice, smaller is better; None if it is larger than `best`.

        own: the devices of each pod with links. held: devices of bound members. suitable: devices that are suitable and
        free before the choice. rest: those after it. The rank is computed part by part, and ends at the first part that
        is larger than in `best`: most sets have a slow pair, and rings take long.
        """
        rank: list[Any] = []
        for part in self._rank_parts(own, held, suitable, rest):
            if best is not None and part != best[len(rank)]:
                if part > best[len(rank)]:
                    return None
                best = None
            rank.append(part)
        return tuple(rank)

    def _rank_parts(self, own: Sequence[int], held: int, suitable: int, rest: int) -> Iterator[Any]:
        """Yields the parts of a rank, the most important first."""
        every = held
        for one in own:
            every |= one
        whole, parts = self.pairs(every), [self.pairs(one) for one in own]
        yield -whole.slow
        yield [-value for value in sorted(one.slow for one in parts)]
        yield -whole.slow_far
        yield [-value for value in sorted(one.slow_far for one in parts)]
        rings = sorted(value for one in own for value in self._ring(one)), sorted(self._ring(every))
        yield [[-value for value in some] for some in rings]
        yield [-value for value in self._packed(rest)]
        yield -sum(one.total for one in parts)
        yield -whole.total
        yield -sum(one.total_far for one in parts)
        yield -whole.total_far
        places = self._places_of(every)
        lacks = {i for i in (0, 1) if any(place[i] is None for place in self._places_of(every | suitable))}
        yield 0 if 1 in lacks else len({place[1] for place in places})
        yield 0 if 0 in lacks else len({place[0] for place in places})

    def _places_of(self, mask: int) -> list[Place]:
        return [self.links.places[i] for i in bits_of(mask)]

    @cached_property
    def _tables(self) -> list[_DriverTables]:
        """Tables of the drivers with links in the Device, and of drivers without nested groups of places."""
        out = []
        for driver in dict.fromkeys(self.links.drivers):
            at = tuple(i for i, one in enumerate(self.links.drivers) if one == driver)
            is_stated = self.links.has_matrix and any(self.links.at[i] is not None for i in at)
            if len(at) <= EXACT_GPUS and (is_stated or not self.links.are_nested(at)):
                out.append(_DriverTables(_stated(self.links.values, at), set()))
        return out

    def _ring(self, mask: int) -> list[int]:
        """Returns kB/s of the slowest hop of the best ring through the devices of each driver with tables."""
        found = self._rings.get(mask)
        if found is None:
            found = self._rings[mask] = []
            for one in self._tables:
                local = one.links.in_table(mask)
                rank = one.ring(local) if local else NO_LIMIT
                found.append(one.links.floors[rank] if rank < len(one.links.floors) else NO_LIMIT)
        return found

    def _packed(self, rest: int) -> tuple[int, ...]:
        """Returns how many sets of 8, 4 and 2 devices of one driver fit the remaining devices, by link class; larger is
        better."""
        found = self._left.get(rest)
        if found is None:
            values: list[int] = []
            done = 0
            for one in self._tables:
                local = one.links.in_table(rest)
                done |= sum(1 << at for at in one.positions)
                values += [
                    int(one.tables.packed(size)[local]) if len(one.positions) >= size else 0 for size in LEFT_SIZES
                ]
            for driver in dict.fromkeys(self.links.drivers):
                some = [i for i in bits_of(rest & ~done) if self.links.drivers[i] == driver]
                if some:
                    values += packed([self.links.places[i] for i in some])
                elif any(one == driver and not done >> i & 1 for i, one in enumerate(self.links.drivers)):
                    values += packed([])
            found = self._left[rest] = tuple(values)
        return found


def packed(places: Sequence[Place]) -> list[int]:
    """Returns, for each size, the number of disjoint sets of devices by the class of their slowest pair, best class
    first."""
    roots = Counter(place[0] for place in places if place[0] is not None)
    numas = Counter(place[1] for place in places if place[1] is not None)
    known = sum(numas.values())
    out: list[int] = []
    for size in LEFT_SIZES:
        totals = [sum(n // size for n in roots.values()), sum(n // size for n in numas.values()), known // size]
        totals.append(len(places) // size)
        before = 0
        for total in totals:
            out.append(max(total - before, 0))
            before = max(before, total)
    return out
