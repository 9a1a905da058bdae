# SPDX-License-Identifier: Apache-2.0
"""The greedy choice of victims: starts with a set that is large enough, then spares units, the most important first.

Used if CP-SAT does not prove a choice in time (docs/rules/preemption.md 6 (2)). The result is inclusion-minimal: if any
single unit of it is spared, the preemptor does not fit. It need not be the least harmful of all sets.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from koordpy.preemption.selection.victim_choice import Choices, Crossing, Limit, keeps

T = TypeVar("T")

Enough = Callable[[tuple[int, ...]], bool]
"""Returns True if the preemptor can be placed once the units of the given options are evicted."""


def still_needed(every: Sequence[T], may_stay: Callable[[Sequence[T], Sequence[T]], bool]) -> list[T]:
    """Returns the victims that are still needed after a reprieve in the given order.

    By bisection: half of the victims is spared at once if possible, so that few trials are needed if most victims are
    spared. may_stay(part, rest): True if `part` can be spared while the victims `rest` are evicted.
    """
    needed: list[T] = []

    def settle(part: Sequence[T], later: Sequence[T]) -> None:
        """Spares a part as a whole, or else decides each half of it. later: victims after it that are not decided
        yet."""
        if not part or may_stay(part, (*needed, *later)):
            return
        if len(part) == 1:
            needed.append(part[0])
            return
        half = len(part) // 2
        settle(part[:half], (*part[half:], *later))
        settle(part[half:], later)

    settle(every, ())
    return needed


def reprieved(choices: Choices, enough: Enough, start: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a subset of `start` from which no option can be left out. start: options that are enough together.

    The order in which units are spared: most pods under PodDisruptionBudgets, highest priority, most gangs broken, most
    accelerators, most pods, highest rank.
    """
    taken = start

    def may_stay(_: Sequence[int], rest: Sequence[int]) -> bool:
        """Returns True if the options `rest` satisfy all limits, and are enough for the preemptor."""
        return bool(rest) and keeps(choices, rest) and enough(tuple(sorted(rest)))

    def importance(o: int) -> tuple[int, ...]:
        """Returns the sort key of an option in the reprieve; the option that is spared first has the lowest key."""
        unit = choices.units[choices.options[o].unit]
        covered = sum(pods for _, pods in unit.budgets)
        return -covered, -unit.priority, -unit.breaks, -unit.devices, -unit.pods, -unit.rank

    while True:
        needed = still_needed(sorted(taken, key=importance), may_stay)
        if len(needed) == len(taken):
            return tuple(sorted(needed))
        # a limit that excluded sparing one unit may be satisfied after a later unit was spared, so the reprieve repeats
        taken = tuple(needed)


def cheapest(choices: Choices, enough: Enough) -> tuple[int, ...]:
    """Returns the cheapest options that are enough for the preemptor; empty if all options together are too few.

    The options are sorted by cost, the cheapest first, and the shortest prefix that is enough is found by bisection. An
    option is skipped if a limit forbids it together with cheaper options.
    """
    taken: list[int] = []
    units: set[int] = set()
    room = _RemainingSlack(choices)
    for o in _cheap_first(choices):
        unit = choices.options[o].unit
        if unit not in units and room.take(o):
            taken.append(o)
            units.add(unit)

    def holds(number: int) -> bool:
        """Returns True if the first `number` options satisfy all limits, and are enough for the preemptor."""
        part = tuple(sorted(taken[:number]))
        return keeps(choices, part) and enough(part)

    if not taken or not holds(len(taken)):
        return ()
    low, high = 0, len(taken)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return tuple(sorted(taken[:high]))


def no_good_set(choices: Choices, taken: Sequence[int], fits: Enough, *, most_trials: int) -> list[int]:
    """Returns a large set of options that contains `taken` and with which the members still do not fit.

    So at least one option outside the set must be chosen: the larger the set, the stronger the no-good cut. Options are
    added cheapest first, without regard to limits, in chunks that double after a success and shrink after a failure.
    Only valid if more evictions never make a placement infeasible. most_trials: maximum number of calls of `fits`.
    """
    whole, have = list(taken), {choices.options[o].unit for o in taken}
    coming: dict[int, int] = {}
    for o in _cheap_first(choices):
        if choices.options[o].unit not in have:
            coming.setdefault(choices.options[o].unit, o)
    rest = list(coming.values())
    at, chunk = 0, max(1, len(rest) // 2)
    for _ in range(most_trials):
        part = rest[at : at + chunk]
        if not part:
            break
        if not fits((*whole, *part)):
            whole += part
            at += len(part)
            chunk *= 2
        elif chunk > 1:
            chunk = max(1, chunk // 4)
        else:
            at += 1
    return whole


def _cheap_first(choices: Choices) -> list[int]:
    """Returns all options, sorted by the cost of their unit, the cheapest first."""

    def cost(o: int) -> tuple[int, ...]:
        """Returns the sort key: levels 1 to 3 for the unit alone, then its rank and its rule."""
        option = choices.options[o]
        unit = choices.units[option.unit]
        covered = sum(pods > choices.budgets[b] for b, pods in unit.budgets)
        return covered, unit.priority, unit.breaks, unit.rank, option.rule

    return sorted(range(len(choices.options)), key=cost)


class _RemainingSlack:
    """What the limits of a choice still allow, while options are added one after another.

    Conservative, because an added option is never removed again. A limit with a condition (`when`) counts as if the
    condition were always true. A branch of an `Either` that one option violates is not used any more.
    """

    def __init__(self, choices: Choices) -> None:
        self._bounds = _Bounds(choices.limits, choices.crossings)
        # options that alone leave a number of members that is not a multiple of podCountMultiple
        self._uneven = {
            o for one in choices.multiples for o, amount in one.terms if o in one.when and (one.have - amount) % one.k
        }
        self._eithers = [
            (frozenset(one.when), [_Bounds(branch.limits, branch.crossings) for branch in one.branches])
            for one in choices.eithers
        ]

    def take(self, o: int) -> bool:
        """Adds an option and returns True if every limit allows it; else returns False."""
        if o in self._uneven or not self._bounds.allows(o):
            return False
        open_ = [[branch for branch in branches if branch.allows(o)] for _, branches in self._eithers]
        if any(o in when and not left for (when, _), left in zip(self._eithers, open_, strict=True)):
            return False
        self._bounds.take(o)
        for i, left in enumerate(open_):
            for branch in left:
                branch.take(o)
            self._eithers[i] = self._eithers[i][0], left
        return True


class _Bounds:
    """What upper limits and crossings still allow."""

    def __init__(self, limits: Iterable[Limit], crossings: Sequence[Crossing]) -> None:
        bounded = [limit for limit in limits if limit.most is not None]
        self._left = [limit.most or 0 for limit in bounded]
        """[limits] amount that each limit still allows."""
        self._asks: dict[int, list[tuple[int, int]]] = {}
        """Option -> (number of a limit, amount of the option in it)."""
        for number, limit in enumerate(bounded):
            for o, amount in limit.terms:
                self._asks.setdefault(o, []).append((number, amount))
        self._rooms = [[room for _, room in crossing.resources] for crossing in crossings]
        """[crossings][resources] usage above the entitlement."""
        self._crossed = [[(0, 0)] * len(rooms) for rooms in self._rooms]
        """[crossings][resources] (sum of the chosen amounts, largest chosen amount)."""
        self._crosses: dict[int, dict[int, list[int]]] = {}
        """Option -> number of a crossing -> amount of the option in each resource."""
        for number, crossing in enumerate(crossings):
            for r, (terms, _) in enumerate(crossing.resources):
                for o, amount in terms:
                    here = self._crosses.setdefault(o, {})
                    here.setdefault(number, [0] * len(crossing.resources))[r] = amount

    def allows(self, o: int) -> bool:
        """Returns True if an option may be added."""
        if any(amount > self._left[number] for number, amount in self._asks.get(o, ())):
            return False
        return all(
            any(taken - largest < room for (taken, largest), room in zip(sums, self._rooms[number], strict=True))
            for number, sums in self._after(o).items()
        )

    def take(self, o: int) -> None:
        """Adds an option."""
        for number, sums in self._after(o).items():
            self._crossed[number] = sums
        for number, amount in self._asks.get(o, ()):
            self._left[number] -= amount

    def _after(self, o: int) -> dict[int, list[tuple[int, int]]]:
        """Returns number of a crossing -> its entry of `_crossed` if the option were added."""
        return {
            number: [
                (taken + amount, max(largest, amount))
                for (taken, largest), amount in zip(self._crossed[number], amounts, strict=True)
            ]
            for number, amounts in self._crosses.get(o, {}).items()
        }
