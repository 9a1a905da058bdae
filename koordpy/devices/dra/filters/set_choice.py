# SPDX-License-Identifier: Apache-2.0
"""The best devices of one node by links for claims that take numbers of whole devices (dra.md 6, rules 2, 3 and 6).

A set is a bit mask over the free suitable devices, at most `EXACT_GPUS`. Candidates are all sets of the total size.
Each rule keeps the candidates with the best value: criteria of the whole set are arrays over all masks, criteria of
single pods are charges of a `Partitioner`. So the result equals that of comparing all solutions, in O(rules x
2^devices) for one pod. Results are cached by the numbers of a node: nodes with equal devices and links share them.

Must not know claims, pods or devices: `device_choice.py` translates.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.links.device_masks import Masks, bits_of, masks_of_size, reversed_bits
from koordpy.devices.links.device_partitioning import Charge, Numbers, Partitioner
from koordpy.devices.links.link_board import LEFT_SIZES, NO_LIMIT, LinkBoard, StatedLinks, pair_arrays, table_masks
from koordpy.plan.limits import EXACT_GPUS, JUDGEMENTS_KEPT, SET_KINDS, SET_REQUESTS


class SetPart(NamedTuple):
    """The claims of a pod, or of several pods that name the same claims."""

    requests: tuple[tuple[int, int], ...]
    """(number of devices, mask of the devices that it may take) of each request, in order."""
    pods: int
    """Number of pods."""
    fixed: int
    """Mask of devices that the pods have by other claims."""
    apart: tuple[int, ...]
    """[devices] mask of the devices with which the pods may not have this one; empty for no such rule."""

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(count for count, _ in self.requests)


class SetProblem(NamedTuple):
    """A choice of devices on one node; devices are positions of the board."""

    board: LinkBoard
    suitable: int
    """Mask of the free devices that suit one of the requests."""
    held: int
    """Mask of the devices of bound members of the pods' gang, and of pods of the plan without a part."""
    binding: int
    """Mask of the devices with binding conditions."""
    parts: tuple[SetPart, ...]
    """In the order of pods. A pod without a part has the same devices in every choice, so it changes no comparison."""


def can_choose(problem: SetProblem) -> bool:
    """Returns whether `best_sets` is exact for a problem."""
    if problem.suitable.bit_count() > EXACT_GPUS:
        return False
    drivers = problem.board.drivers
    several = len({drivers[i] for i in bits_of(problem.suitable)}) > 1
    for part in problem.parts:
        for _, able in part.requests:
            # numbers of devices of each driver must be the same in all sets
            if several and len({drivers[i] for i in bits_of(able)}) > 1:
                return False
        if len({able for _, able in part.requests}) > SET_REQUESTS:
            return False
    return len(set(problem.parts)) <= SET_KINDS


@lru_cache(JUDGEMENTS_KEPT)
def best_sets(problem: SetProblem) -> tuple[tuple[tuple[int, ...], ...], ...] | None:
    """Returns per part and request the devices, ascending; None if the requests cannot all be met."""
    return _SetChoice(problem).best()


class _SetChoice:
    """The candidates that remain while rule after rule is applied."""

    def __init__(self, problem: SetProblem) -> None:
        self._problem, self._board = problem, problem.board
        self._at = tuple(bits_of(problem.suitable))
        self._pairs = pair_arrays(self._board, self._at)
        self._index = {i: k for k, i in enumerate(self._at)}
        counts: dict[SetPart, int] = {}
        for part in problem.parts:
            counts[part] = counts.get(part, 0) + 1
        self._kinds, self._numbers = list(counts), list(counts.values())
        self._others = problem.held
        for part in problem.parts:
            self._others |= part.fixed
        self._shares: Partitioner | None = None
        self._is_ideal = False
        """True if each part is linked as well as any set of its size, so that slowest pairs need no comparison."""
        self._us: Masks = np.zeros(0, dtype=np.int64)

    def best(self) -> tuple[tuple[tuple[int, ...], ...], ...] | None:
        """Returns the result of `best_sets`."""
        size = sum(part.size for part in self._problem.parts)
        if size > len(self._at):
            return None
        self._us = masks_of_size(len(self._at), size)
        flat, plain = self._is_flat, self._is_plain
        if not plain and not self._divide():
            return None
        if self._problem.binding:
            binding = self._local(self._problem.binding)
            self._keep(lambda: -np.bitwise_count(self._us & binding).astype(np.int64))
        if not flat:
            self._keep_slowest(far=False)
            if plain:
                self._divide()
            self._apply_links()
        self._apply_places()
        return self._given(flat=flat)

    def _local(self, mask: int) -> int:
        """Returns the suitable devices of a mask of the board, as a mask of indexes."""
        return sum(1 << k for k, i in enumerate(self._at) if mask >> i & 1)

    @property
    def _is_plain(self) -> bool:
        """True if every request takes any device."""
        return not any(
            part.apart or any(able != self._problem.suitable for _, able in part.requests) for part in self._kinds
        )

    @property
    def _is_flat(self) -> bool:
        """True if all pairs are equal and every request takes any device, so that only places matter."""
        every = [*self._at, *bits_of(self._others & ~self._problem.suitable)]
        if self._pairs.several or len({self._board.drivers[i] for i in every}) > 1:
            return False
        if not self._is_plain or self._problem.binding & self._problem.suitable:
            return False
        places = {(self._board.roots[i], self._board.numas[i]) for i in self._at}
        if not self._board.stated and len(places) > 1:
            return False
        return len({self._board.value(i, j) for i, j in combinations(every, 2)}) <= 1

    # -- candidates ----------------------------------------------------------------------------------------------------

    def _divide(self) -> bool:
        """Keeps the candidates that meet all requests; returns whether one is left."""
        if len(self._problem.parts) == 1:
            self._us = self._us[self._able(self._kinds[0], self._us)]
            return bool(len(self._us))
        sizes = [part.size for part in self._kinds]
        if self._is_plain and self._divide_ideally(sizes):
            return True
        self._shares = Partitioner(len(self._at), self._us, sizes, self._numbers)
        if not self._is_plain:
            self._shares.forbid(lambda kind, own: self._able(self._kinds[kind], own))
            self._us = self._shares.us
        return bool(len(self._us))

    def _divide_ideally(self, sizes: Sequence[int]) -> bool:
        """Keeps the candidates of which each part has the fastest slowest pair of all sets of its size; returns False,
        and changes nothing, if there are none.

        These divisions are the best ones by slowest pairs, and there are few: no other division has as good a list,
        because each value is at most the one of the ideal part.
        """
        ideal: list[Masks] = []
        for part, size in zip(self._kinds, sizes, strict=True):
            masks = masks_of_size(len(self._at), size)
            slow = self._pairs.slow_with(part.fixed, far=False)[masks]
            ideal.append(masks[slow == slow.max()])
            if size > 1 and len(ideal[-1]) * 4 > len(masks):
                return False
        shares = Partitioner(len(self._at), self._us, sizes, self._numbers, ideal)
        if not len(shares.us):
            return False
        self._shares, self._us, self._is_ideal = shares, shares.us, True
        return True

    def _able(self, part: SetPart, masks: Masks) -> NDArray[np.bool_]:
        """Returns [sets] True for a set that meets the requests of a part, by Hall's condition."""
        out = np.ones(len(masks), dtype=bool)
        for union, need in _unions([(count, self._local(able)) for count, able in part.requests]):
            out &= np.bitwise_count(masks & union) >= need
        for k, i in enumerate(self._at) if part.apart else ():
            bad = self._local(part.apart[i])
            if bad:
                out &= (masks >> k & 1 == 0) | (masks & bad == 0)
        return out

    def _keep(self, values: Callable[[], Numbers]) -> None:
        """Keeps the candidates with the largest value. values: computes [candidates]; not called for a single one."""
        if len(self._us) > 1:
            found = values()
            self._keep_some(found == found.max())

    def _keep_some(self, which: NDArray[np.bool_]) -> None:
        if which.all():
            return
        self._us = self._us[which]
        if self._shares is not None:
            self._shares.keep(which)

    def _charge(self, charges: Sequence[Charge]) -> None:
        """Keeps the divisions with the lowest charges, and their candidates."""
        if self._shares is not None and charges:
            self._shares.charge_best(charges)
            self._us = self._shares.us

    def _keep_rows(self, rows: Sequence[Numbers]) -> None:
        """Keeps the candidates with the best sorted list of values, the smallest first. rows: [candidates] each."""
        if rows and len(self._us) > 1:
            table = np.sort(np.stack(rows, axis=1), axis=1)
            stays = np.ones(len(table), dtype=bool)
            for column in range(table.shape[1]):
                stays &= table[:, column] == table[stays, column].max()
            self._keep_some(stays)

    def _keep_lists(self, arrays: Sequence[Sequence[Numbers]]) -> None:
        """Keeps the divisions with the best sorted list of values, the smallest first.

        arrays: for each kind a list of arrays [all masks]; each pod of the kind has one value from each array.
        """
        if self._shares is None:
            self._keep_rows([one[self._us] for one in arrays[0]])
            return
        own = [self._shares.parts(kind) for kind in range(len(arrays))]
        values = [one[masks] for some, masks in zip(arrays, own, strict=True) for one in some]
        # not np.unique: its first call imports numpy.ma (30 ms)
        found = np.sort(np.concatenate(values)) if values else np.zeros(0, dtype=np.int64)
        classes = found[np.flatnonzero(np.diff(found, prepend=-2))].tolist()
        pods = [part.pods for part in self._kinds]

        def charge(value: int) -> Charge:
            def of(kind: int, masks: Masks) -> Numbers:
                out = np.zeros(len(masks), dtype=np.int64)
                for one in arrays[kind]:
                    out += (one[masks] == value) * pods[kind]
                return out

            return of

        self._charge([charge(value) for value in classes[:-1]])

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _apply_links(self) -> None:
        """Applies rules 1 to 5 of gpu-topology.md 4."""
        kinds = (False, True) if self._has_far else (False,)
        for far in kinds:
            self._keep_slowest(far=far)
            if not far and self._is_ideal:
                continue
            self._keep_lists([[self._pairs.slow_with(part.fixed, far=far)] for part in self._kinds])
        self._apply_rings()
        for values in self._packings():
            self._keep(values)
        for far in kinds:
            totals = [self._pairs.total_with(part.fixed, far=far) * part.pods for part in self._kinds]
            if self._shares is None:
                self._keep(lambda totals=totals: totals[0][self._us])  # type: ignore[misc]
            else:
                self._charge([lambda kind, own, totals=totals: -totals[kind][own]])  # type: ignore[misc]
            self._keep(lambda far=far: self._pairs.total_with(self._others, far=far)[self._us])  # type: ignore[misc]

    def _keep_slowest(self, *, far: bool) -> None:
        """Keeps the candidates with the fastest slowest pair, with the devices of other claims."""
        self._keep(lambda: self._pairs.slow_with(self._others, far=far)[self._us])

    @property
    def _has_far(self) -> bool:
        """True if pairs of different drivers may occur."""
        return len({self._board.drivers[i] for i in bits_of(self._problem.suitable | self._others)}) > 1

    def _apply_rings(self) -> None:
        """Applies rule 3, where the node's Device states links."""
        if not self._board.stated or (len(self._us) == 1 and self._shares is None):
            return
        arrays: list[list[Numbers]] = [[] for _ in self._kinds]
        inside = [(one, table_masks(one.positions, self._at)) for one in self._board.stated]
        for kind, part in enumerate(self._kinds):
            for one, masks in inside:
                own = self._us if self._shares is None else self._shares.parts(kind)
                here = masks[own] | one.in_table(part.fixed)
                if len(here) and int(here[0]):
                    found = np.empty(1 << len(self._at), dtype=np.int64)  # only the sets in `own` are read
                    found[own] = self._ring_values(one, here, only_best=self._shares is None and len(inside) == 1)
                    arrays[kind].append(found)
        self._keep_lists(arrays)
        if len(self._us) == 1:
            return
        rows = []
        for one, masks in inside:
            here = masks[self._us] | one.in_table(self._others)
            if int(here[0]):
                rows.append(self._ring_values(one, here, only_best=len(inside) == 1))
        self._keep_rows(rows)

    def _ring_values(self, one: StatedLinks, masks: Masks, *, only_best: bool) -> Numbers:
        """Returns [sets] kB/s of the slowest hop of the best ring. masks: sets of one size, of the driver's tables."""
        floors = np.array([*one.floors, *[NO_LIMIT] * (one.pattern.classes + 1 - len(one.floors))], dtype=np.int64)
        found = one.tables.rings(masks, only_best=only_best)
        return np.where(found < 0, -1, floors[found])

    def _packings(self) -> Iterator[Callable[[], Numbers]]:
        """Yields what rule 4 compares: how well sets of 8, 4 and 2 fit into the devices left."""
        every = (1 << len(self._at)) - 1
        done = 0
        for one in self._board.stated:
            masks = table_masks(one.positions, self._at)
            done |= sum(1 << i for i in one.positions)
            for size in LEFT_SIZES:
                if len(one.positions) >= size:
                    yield lambda masks=masks, one=one, size=size: np.asarray(  # type: ignore[misc]
                        one.tables.packed(size)[masks[every & ~self._us]]
                    )
        for driver in dict.fromkeys(self._board.drivers):
            here = self._local(sum(1 << i for i, own in enumerate(self._board.drivers) if own == driver) & ~done)
            found = self._pairs.packings(here)
            for size, level in product(LEFT_SIZES, range(4)) if here else ():
                yield lambda found=found, size=size, level=level: found.packed(every & ~self._us, size, level)  # type: ignore[misc]

    def _apply_places(self) -> None:
        """Applies rule 6 of gpu-topology.md 4: fewest NUMA nodes, then fewest PCIe roots, where all are known."""
        every = bits_of(self._problem.suitable | self._others)
        for places in (self._board.numas, self._board.roots):
            if any(places[i] is None for i in every):
                continue
            self._keep(lambda places=places: -self._distinct(places))  # type: ignore[misc]

    def _distinct(self, places: Sequence[int | None]) -> Numbers:
        """Returns [candidates] the number of places of each candidate, with the devices of other claims."""
        out = np.zeros(len(self._us), dtype=np.int64)
        taken = {places[i] for i in bits_of(self._others)}
        for place in dict.fromkeys(places[i] for i in self._at):
            here = sum(1 << k for k, i in enumerate(self._at) if places[i] == place)
            out += 1 if place in taken else (self._us & here) != 0
        return out

    # -- the result ----------------------------------------------------------------------------------------------------

    def _given(self, *, flat: bool) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Returns the candidate that comes first in the order of devices, by requests."""
        parts = self._problem.parts
        if flat:
            bits = iter(self._devices(int(self._us[int(reversed_bits(len(self._at))[self._us].argmax())])))
            return tuple(tuple(tuple(next(bits) for _ in range(n)) for n, _ in part.requests) for part in parts)
        if self._shares is None:
            masks = [self._first(0, self._us)]
        else:
            masks = self._shares.deal([self._kinds.index(part) for part in parts], self._first)
        return tuple(self._lists(part, mask) for part, mask in zip(parts, masks, strict=True))

    def _devices(self, mask: int) -> list[int]:
        return [self._at[k] for k in bits_of(mask)]

    def _first(self, kind: int, masks: Masks) -> int:
        """Returns the set of a kind with the first devices, by requests."""
        if len({able for _, able in self._kinds[kind].requests}) == 1:
            return int(masks[int(reversed_bits(len(self._at))[masks].argmax())])
        every: list[int] = masks.tolist()
        return min(every, key=lambda mask: self._lists(self._kinds[kind], mask))

    def _lists(self, part: SetPart, mask: int) -> tuple[tuple[int, ...], ...]:
        """Returns the devices of each request if a part gets a set: the lowest devices that leave a solution."""
        left = sum(1 << i for i in self._devices(mask))
        out: list[tuple[int, ...]] = []
        for number, (count, able) in enumerate(part.requests):
            own: list[int] = []
            for i in bits_of(left & able):
                rest = [(n, one) for n, one in part.requests[number + 1 :]]
                above = able & ~((2 << i) - 1)
                if count - len(own) > 1:
                    rest.append((count - len(own) - 1, above))
                if _is_met(rest, left & ~(1 << i)):
                    own.append(i)
                    left &= ~(1 << i)
                    if len(own) == count:
                        break
            out.append(tuple(own))
        return tuple(out)


def _is_met(requests: Sequence[tuple[int, int]], mask: int) -> bool:
    """Returns whether disjoint sets meet the requests out of a set, by Hall's condition."""
    return all((mask & union).bit_count() >= need for union, need in _unions(requests))


def _unions(requests: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields (devices, number of them that are asked) of each choice of requests."""
    asked: dict[int, int] = {}
    for count, able in requests:
        asked[able] = asked.get(able, 0) + count
    for some in (some for number in range(1, len(asked) + 1) for some in combinations(asked, number)):
        union = 0
        for one in some:
            union |= one
        yield union, sum(asked[one] for one in some)
