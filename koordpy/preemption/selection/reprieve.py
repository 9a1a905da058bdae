# SPDX-License-Identifier: Apache-2.0
"""The greedy choice of victims: starts with a set that is large enough, then spares units, the most important first.

Used if CP-SAT does not prove a choice in time (preemption.md 6 (2)). The result is inclusion-minimal: no unit of it can
be spared alone. It evicts the least important units, but need not be the least harmful of all sets.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from koordpy.preemption.selection.victim_choice import Choices, Crossing, Limit, keeps

T = TypeVar("T")

Enough = Callable[[tuple[int, ...]], bool]
"""Returns True if the preemptor can be placed once the units of some options are evicted."""


def still_needed(every: Sequence[T], may_stay: Callable[[Sequence[T], Sequence[T]], bool]) -> list[T]:
    """Returns the victims that are still needed after a reprieve in the given order.

    By bisection: half of the victims is spared at once if possible, so that few trials are needed if most are spared.
    may_stay(part, rest): True if `part` can be spared while the victims `rest` are still evicted.
    """
    needed: list[T] = []

    def settle(part: Sequence[T], later: Sequence[T]) -> None:
        """Spares a part as a whole, or decides each half of it. later: victims after it, which are not decided yet."""
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

    The order of the reprieve: units with the most pods under PodDisruptionBudgets first, then by priority, gangs
    broken, accelerators, pods and rank, the largest first.
    """
    taken = start

    def may_stay(_: Sequence[int], rest: Sequence[int]) -> bool:
        """Returns True if the options `rest` are allowed and enough."""
        return bool(rest) and keeps(choices, rest) and enough(tuple(sorted(rest)))

    def importance(o: int) -> tuple[int, ...]:
        """Returns a sort key: the option that is spared first has the lowest key."""
        unit = choices.units[choices.options[o].unit]
        covered = sum(pods for _, pods in unit.budgets)
        return -covered, -unit.priority, -unit.breaks, -unit.devices, -unit.pods, -unit.rank

    while True:
        needed = still_needed(sorted(taken, key=importance), may_stay)
        if len(needed) == len(taken):
            return tuple(sorted(needed))
        # a limit that blocked the reprieve of one unit may be satisfied after the reprieve of a later unit
        taken = tuple(needed)


def cheapest(choices: Choices, enough: Enough) -> tuple[int, ...]:
    """Returns the options, cheapest first, up to the number that is enough for the preemptor; empty if all are too few.

    Options that a limit forbids together with cheaper ones are skipped. The number is found by bisection.
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
        """Returns True if the first `number` options are allowed and enough."""
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
    """Returns a large set of options with which the members still do not fit. It contains `taken`.

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
    """Returns all options, those of the cheapest units first."""

    def cost(o: int) -> tuple[int, ...]:
        """Returns levels 1 to 3 for the unit alone, then its rank and rule."""
        option = choices.options[o]
        unit = choices.units[option.unit]
        covered = sum(pods > choices.budgets[b] for b, pods in unit.budgets)
        return covered, unit.priority, unit.breaks, unit.rank, option.rule

    return sorted(range(len(choices.options)), key=cost)


class _RemainingSlack:
    """What the limits of a choice still allow while options are taken one by one.

    Conservative, because an option that is taken is never dropped: a limit with a condition (`when`) counts for all
    options, and a branch of alternatives that one option violates is not used any more.
    """

    def __init__(self, choices: Choices) -> None:
        self._bounds = _Bounds(choices.limits, choices.crossings)
        # options that alone leave a number of members that is no multiple of podCountMultiple
        self._uneven = {
            o for one in choices.multiples for o, amount in one.terms if o in one.when and (one.have - amount) % one.k
        }
        self._eithers = [
            (frozenset(one.when), [_Bounds(branch.limits, branch.crossings) for branch in one.branches])
            for one in choices.eithers
        ]

    def take(self, o: int) -> bool:
        """Returns True and counts the option if every limit allows it."""
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
    """The remaining slack of upper limits and crossings."""

    def __init__(self, limits: Iterable[Limit], crossings: Sequence[Crossing]) -> None:
        bounded = [limit for limit in limits if limit.most is not None]
        self._left = [limit.most or 0 for limit in bounded]
        """Amount that each limit still allows."""
        self._asks: dict[int, list[tuple[int, int]]] = {}
        """Option -> (number of a limit, amount of the option in it)."""
        for number, limit in enumerate(bounded):
            for o, amount in limit.terms:
                self._asks.setdefault(o, []).append((number, amount))
        self._rooms = [[room for _, room in crossing.resources] for crossing in crossings]
        """Per crossing and resource, the usage above the entitlement."""
        self._crossed = [[(0, 0)] * len(rooms) for rooms in self._rooms]
        """Per crossing and resource: (sum of the chosen amounts, largest chosen amount)."""
        self._crosses: dict[int, dict[int, list[int]]] = {}
        """Option -> number of a crossing -> amount of the option in each resource."""
        for number, crossing in enumerate(crossings):
            for r, (terms, _) in enumerate(crossing.resources):
                for o, amount in terms:
                    here = self._crosses.setdefault(o, {})
                    here.setdefault(number, [0] * len(crossing.resources))[r] = amount

    def allows(self, o: int) -> bool:
        """Returns True if an option may be chosen in addition."""
        if any(amount > self._left[number] for number, amount in self._asks.get(o, ())):
            return False
        return all(
            any(taken - largest < room for (taken, largest), room in zip(sums, self._rooms[number], strict=True))
            for number, sums in self._after(o).items()
        )

    def take(self, o: int) -> None:
        """Counts an option."""
        for number, sums in self._after(o).items():
            self._crossed[number] = sums
        for number, amount in self._asks.get(o, ()):
            self._left[number] -= amount

    def _after(self, o: int) -> dict[int, list[tuple[int, int]]]:
        """Returns number of a crossing -> the entry of `_crossed` if an option is chosen in addition."""
        return {
            number: [
                (taken + amount, max(largest, amount))
                for (taken, largest), amount in zip(self._crossed[number], amounts, strict=True)
            ]
            for number, amounts in self._crosses.get(o, {}).items()
        }
