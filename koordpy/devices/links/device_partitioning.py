# SPDX-License-Identifier: Apache-2.0
"""Optimal division of a set of devices into parts of given sizes: dynamic programming over subsets (bit masks).

Parts have kinds; all parts of a kind have the same size, for example the pods with equal requests. Each step assigns
the part that contains the lowest remaining GPU, so that each division is found only once. A state is the number of
parts of each kind that are not assigned yet; results are cached by state and remaining subset.

Costs are lexicographic. Pass k keeps, for every subset, the parts that reach the minimum of costs 1 to k. The cost of a
division is a sum over its parts, so the minimum of a subset follows from the minimums of smaller subsets. Arrays hold
all subsets at once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.links.device_masks import Masks, parts, reversed_bits
from koordpy.plan.limits import MASKS_AT_ONCE

Numbers = NDArray[np.int64]
"""[sets] whole numbers."""
State = tuple[int, ...]
"""Number of parts of each kind that are not yet assigned."""
Charge = Callable[[int, Masks], Numbers]
"""(kind, masks of parts) -> charge of each part, lower is better."""

FORBIDDEN = 1 << 60
"""Cost of a division that is not allowed; exceeds every allowed total."""
_MAX_TOTAL = 1 << 58
"""Upper bound of the charges of one pass, so that sums fit into 64 bits."""


@dataclass(slots=True)
class _Ways:
    """Parts of one kind that may be assigned next in a state."""

    kind: int
    """Kind of the part."""
    rest: State
    """State after the part is assigned."""
    rows: Numbers | None = None
    """Positions of the sets in the masks of the state, ascending. None before the first narrowing: then every part with
    the lowest GPU of its set is possible."""
    own: Masks | None = None
    """Mask of a part of the set in the same position of `rows`; None with `rows`."""


class Partitioner:
    """All ways to divide each of the given sets of one size completely into parts.

    Applying costs narrows the ways and the sets.
    """

    def __init__(
        self,
        count: int,
        us: Masks,
        sizes: Sequence[int],
        numbers: Sequence[int],
        allowed: Sequence[Masks] | None = None,
    ) -> None:
        """count: devices of the machine. us: masks of the sets, ascending. sizes: devices of a part of each kind.
        numbers: number of parts of each kind. allowed: for each kind the only parts to use, if these are few; None for
        all parts of its size."""
        self._count, self._sizes, self._top = count, tuple(sizes), tuple(numbers)
        self._masks: dict[State, Masks] = {self._top: us}
        """State -> masks of the subsets that remain to be divided, ascending."""
        self._states = _states(self._top)
        self._ways: dict[State, list[_Ways]] = {}
        """State -> ways to continue."""
        self._values: dict[State, Numbers] = {}
        """State -> [all masks] least charge of dividing the subset."""
        self._parts: list[Masks] = []
        """Kind -> masks of its parts in the remaining ways."""
        self._expand_states(allowed)
        if allowed is not None:
            self._drop_dead_ends()

    @property
    def us(self) -> Masks:
        """Masks of the remaining sets."""
        return self._masks[self._top]

    @property
    def number(self) -> int:
        """Number of parts of every division."""
        return sum(self._top)

    @property
    def is_single(self) -> bool:
        """True if one division is left."""
        return all(len(own) == number for own, number in zip(self._parts, self._top, strict=True))

    def parts(self, kind: int) -> Masks:
        """Returns the parts of a kind in the remaining ways."""
        return self._parts[kind]

    # -- narrowing ----------------------------------------------------------------------------------------------------

    def charge(self, charges: Sequence[Charge]) -> list[Numbers]:
        """Keeps, for each set, the ways with the lexicographically lowest charges.

        Returns, for each charge, [sets] its total. Sets that cannot be divided are removed first.
        """
        out: list[Numbers] = []
        for i, digits in self._digit_passes(charges):
            keep = self._lowest_charges(digits.costs)
            self._narrow(keep, digits.costs)
            out = [one[keep] for one in out[:i]] + digits.totals(self._values[self._top][self.us])
        return out

    def charge_best(self, charges: Sequence[Charge]) -> None:
        """Keeps the ways with the lowest charges, and only the sets with the lowest totals of all sets."""
        if self.is_single and all(one.rows is not None for ways in self._ways.values() for one in ways):
            return
        for _, digits in self._digit_passes(charges):
            keep = self._lowest_charges(digits.costs)
            values = self._values[self._top][self.us]
            self._narrow(keep & (values == values.min()), digits.costs)
            if not len(self.us):
                return

    def forbid(self, able: Callable[[int, Masks], NDArray[np.bool_]]) -> None:
        """Keeps the ways with allowed parts only. able: (kind, parts) -> whether each part is allowed."""
        costs = []
        for kind in range(len(self._sizes)):
            cost, own = np.zeros(1 << self._count, dtype=np.int64), self._parts[kind]
            cost[own] = np.where(able(kind, own), 0, FORBIDDEN)
            costs.append(cost)
        self._narrow(self._lowest_charges(costs), costs)

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Keeps some of the sets. which: [sets] True for a set that stays."""
        self._narrow(which, None)

    def deal(self, order: Sequence[int], first: Callable[[int, Masks], int] | None = None) -> list[int]:
        """Returns one part for each entry of `order` (kinds): those with the lowest devices, compared list by list.

        first: function from (kind, parts) to the part that comes first; None for the part with the lowest devices.
        """
        turned = reversed_bits(self._count)
        out: list[int] = []
        taken = 0
        if any(one.rows is None for ways in self._ways.values() for one in ways):
            self.keep(np.ones(len(self.us), dtype=bool))
        for i, kind in enumerate(order):
            own = self._parts[kind]
            own = own[(own & taken) == 0]
            best = int(own[turned[own].argmax()]) if first is None else first(kind, own)
            out.append(best)
            taken |= best
            if i + 1 < len(order) and not self.is_single:
                self._keep_part(kind, best)
        return out

    def any_way(self) -> list[int]:
        """Returns the parts of one of the remaining ways, of the first set."""
        state, mask, out = self._top, int(self.us[0]), list[int]()
        while any(state):
            row = int(np.searchsorted(self._masks[state], mask))
            for one in self._ways[state]:
                assert one.rows is not None and one.own is not None
                at = int(np.searchsorted(one.rows, row))
                if at < len(one.rows) and one.rows[at] == row:
                    out.append(int(one.own[at]))
                    state, mask = one.rest, mask ^ out[-1]
                    break
            else:
                raise AssertionError("a remaining set cannot be divided")
        return out

    def _keep_part(self, kind: int, own: int) -> None:
        """Keeps the ways that contain a part of a kind."""
        for ways in self._ways.values():
            for one in ways:
                assert one.rows is not None and one.own is not None
                stays = (one.own & own) == 0
                if one.kind == kind:
                    stays |= one.own == own
                one.rows, one.own = one.rows[stays], one.own[stays]
        self._drop_dead_ends(own)

    def _drop_dead_ends(self, own: int = 0) -> None:
        """Keeps the ways after which the rest can be divided, and the sets that can be divided and contain `own`."""
        free = [np.zeros(1 << self._count, dtype=np.int64)] * len(self._sizes)
        self._narrow(self._lowest_charges(free) & ((self.us & own) == own), free)

    # -- the passes ---------------------------------------------------------------------------------------------------

    def _digit_passes(self, charges: Sequence[Charge]) -> "Iterator[tuple[int, _Digits]]":
        """Yields (position of the first charge, some charges combined into one number).

        As many charges are combined as fit into 64 bits, so that few passes are needed.
        """
        at = 0
        while at < len(charges):
            digits = _Digits(self)
            first = at
            while at < len(charges) and digits.add(charges[at]):
                at += 1
            yield first, digits

    def _options(self, state: State, one: _Ways) -> Iterator[tuple[Numbers | None, Masks, Masks]]:
        """Yields (rows, parts, remainders) of the ways to continue from a state.

        Before the first narrowing rows is None: parts and remainders are then [ways, sets]. Afterwards all three are
        [options].
        """
        masks = self._masks[state]
        if one.rows is not None and one.own is not None:
            yield one.rows, one.own, masks[one.rows] ^ one.own
            return
        for own in parts(self._count, masks, self._sizes[one.kind]):
            yield None, own, own ^ masks

    def _expand_states(self, allowed: Sequence[Masks] | None) -> None:
        """Finds the states, their sets and the ways to continue from each, starting from the whole sets."""
        reached = self._no_sets()
        owned = [np.zeros(1 << self._count, dtype=bool) for _ in self._sizes]
        for state in self._states:
            if state != self._top:
                self._masks[state] = np.flatnonzero(reached[state])
            ways = self._ways[state] = []
            for kind, number in enumerate(state):
                if not number or not len(self._masks[state]):
                    continue
                rest = (*state[:kind], number - 1, *state[kind + 1 :])
                flags = reached[rest]
                one = _Ways(kind, rest)
                if allowed is not None:
                    one.rows, one.own = _ways_among(self._masks[state], allowed[kind])
                for _, own, left in self._options(state, one):
                    flags[left] = True
                    owned[kind][own] = True
                ways.append(one)
        self._parts = [np.flatnonzero(flags) for flags in owned]

    def _no_sets(self) -> defaultdict[State, NDArray[np.bool_]]:
        """Returns state -> [all masks] False, to mark the sets that remain in each state."""
        return defaultdict(lambda: np.zeros(1 << self._count, dtype=bool))

    def _lowest_charges(self, costs: Sequence[Numbers]) -> NDArray[np.bool_]:
        """Computes the least cost of every subset, from small to large; returns [sets] True if a set can be divided at
        all.

        costs: for each kind [all masks] cost of the part.
        """
        done = tuple(0 for _ in self._top)
        self._values = {done: np.zeros(1, dtype=np.int64)}
        for state in reversed(self._states):
            masks = self._masks[state]
            least = np.full(len(masks), FORBIDDEN, dtype=np.int64)
            for one in self._ways[state]:
                cost, below = costs[one.kind], self._values[one.rest]
                for rows, own, left in self._options(state, one):
                    total = cost[own] + below[left]
                    if rows is None:
                        np.minimum(least, total.min(axis=0), out=least)
                    elif len(rows):
                        starts = np.concatenate([[0], (rows[1:] != rows[:-1]).nonzero()[0] + 1])
                        at = rows[starts]
                        least[at] = np.minimum(least[at], np.minimum.reduceat(total, starts))
            values = np.empty(1 << self._count, dtype=np.int64)  # only the masks of the state are read
            values[masks] = least
            self._values[state] = values
        return np.asarray(self._values[self._top][self.us] < FORBIDDEN)

    def _narrow(self, keep: NDArray[np.bool_], costs: Sequence[Numbers] | None) -> None:
        """Keeps some of the sets, and the ways of their least cost; all ways if `costs` is None."""
        reached = self._no_sets()
        owned = [np.zeros(1 << self._count, dtype=bool) for _ in self._sizes]
        for state in self._states:
            masks = self._masks[state]
            stays = keep if state == self._top else reached[state][masks]
            number = np.cumsum(stays) - 1
            for one in self._ways[state]:
                flags = reached[one.rest]
                rows_left, own_left = [], []
                for rows, own, left in self._options(state, one):
                    good = np.broadcast_to(stays, own.shape) if rows is None else stays[rows]
                    if costs is not None:
                        total = costs[one.kind][own] + self._values[one.rest][left]
                        least = self._values[state][masks if rows is None else masks[rows]]
                        good = good & (total == least)
                    found = np.flatnonzero(good)
                    own = own.ravel()[found]
                    rows_left.append(number[found % len(masks)] if rows is None else number[rows[found]])
                    own_left.append(own)
                    flags[left.ravel()[found]] = True
                    owned[one.kind][own] = True
                one.rows, one.own = _sorted_rows(rows_left, own_left)
            self._masks[state] = masks[stays]
        self._parts = [np.flatnonzero(flags) for flags in owned]


def _states(top: State) -> list[State]:
    """Returns every state except the final one (no parts left), states with more parts first."""
    out, row = [], [top]
    while any(row[0]):
        out += row
        below = [(*s[:k], n - 1, *s[k + 1 :]) for s in row for k, n in enumerate(s) if n]
        row = list(dict.fromkeys(below))
    return out


def _ways_among(masks: Masks, own: Masks) -> tuple[Numbers, Masks]:
    """Returns the ways to take one of the parts `own` with the lowest device out of each set: (positions of the sets,
    ascending, parts)."""
    lowest, lowest_of_parts = masks & -masks, own & -own
    rows, taken = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    step = max(1, MASKS_AT_ONCE // max(1, len(own)))
    for at in range(0, len(masks), step):
        which = (masks[at : at + step, None] & own) == own
        which &= lowest[at : at + step, None] == lowest_of_parts
        row, part = np.nonzero(which)
        rows.append(row + at)
        taken.append(own[part])
    return np.concatenate(rows), np.concatenate(taken)


def _sorted_rows(rows: list[Numbers], own: list[Masks]) -> tuple[Numbers, Masks]:
    """Returns rows and parts together, sorted by row."""
    if len(rows) == 1 and (len(rows[0]) < 2 or bool((rows[0][1:] >= rows[0][:-1]).all())):
        return rows[0], own[0]
    all_rows, all_own = np.concatenate(rows), np.concatenate(own)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], all_own[order]


class _Digits:
    """Charges of a pass as digits of one number, so that comparing these numbers compares charges lexicographically."""

    def __init__(self, shares: Partitioner) -> None:
        self._shares = shares
        self.costs = [np.zeros(1 << shares._count, dtype=np.int64) for _ in shares._sizes]
        """For each kind [all masks] the combined cost of the part."""
        self._radixes: list[int] = []
        """Number of values of each digit."""
        self._floors: list[int] = []
        """Sum over all parts of the least charge of their kind, which is subtracted to keep digits small."""
        self._whole = 1

    def add(self, charge: Charge) -> bool:
        """Adds a charge as the next digit; returns False if it does not fit."""
        shares = self._shares
        values = [charge(kind, shares.parts(kind)) for kind in range(len(self.costs))]
        floors = [int(one.min(initial=FORBIDDEN)) for one in values]
        spans = [int(one.max(initial=low)) - low for one, low in zip(values, floors, strict=True)]
        radix = max(spans) * shares.number + 1
        if self._radixes and self._whole * radix >= _MAX_TOTAL:
            return False
        if radix >= _MAX_TOTAL:
            raise OverflowError("a charge exceeds 64 bits")
        for kind, (one, low) in enumerate(zip(values, floors, strict=True)):
            own = shares.parts(kind)
            self.costs[kind][own] = self.costs[kind][own] * radix + (one - low)
        self._radixes.append(radix)
        self._floors.append(sum(low * n for low, n in zip(floors, shares._top, strict=True)))
        self._whole *= radix
        return True

    def totals(self, values: Numbers) -> list[Numbers]:
        """Returns the totals of each charge, from the totals of the combined numbers."""
        out = []
        for radix, floor in zip(reversed(self._radixes), reversed(self._floors), strict=True):
            out.append(values % radix + floor)
            values = values // radix
        return out[::-1]
