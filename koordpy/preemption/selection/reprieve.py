"""Victims by giving back: everybody who may go is gone, then the most important return while there is still room.

What preemption.md 6 (2) calls the greedy plan. It is the answer where a choice cannot be proven in time:
inclusion-minimal, the least important go, but not the least harmful of all sets.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from koordpy.preemption.selection.victim_choice import Choices, Crossing, Limit, keeps

T = TypeVar("T")

Enough = Callable[[tuple[int, ...]], bool]
"""Whether the beneficiary can be placed with the units of these options gone."""


def settled(every: Sequence[T], may_stay: Callable[[Sequence[T], Sequence[T]], bool]) -> list[T]:
    """What has to go of some in the order in which they are given back, by halves: a part goes back as a whole where
    `may_stay` says so, of the part and of all that would still go."""
    needed: list[T] = []

    def settle(part: Sequence[T], later: Sequence[T]) -> None:
        """later: those that are not settled yet."""
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
    """Options without any one of which there is no room, of some that are enough."""
    taken = start

    def may_stay(_: Sequence[int], rest: Sequence[int]) -> bool:
        return bool(rest) and keeps(choices, rest) and enough(tuple(sorted(rest)))

    def importance(o: int) -> tuple[int, ...]:
        unit = choices.units[choices.options[o].unit]
        covered = sum(pods for _, pods in unit.budgets)
        return -covered, -unit.priority, -unit.breaks, -unit.devices, -unit.pods, -unit.rank

    while True:
        needed = settled(sorted(taken, key=importance), may_stay)
        if len(needed) == len(taken):
            return tuple(sorted(needed))
        taken = tuple(needed)  # what limits kept one from going back may have changed with a later one


def cheapest(choices: Choices, enough: Enough) -> tuple[int, ...]:
    """As few as are enough of the options in the order of what they cost, within all that binds them; none where even
    all are not enough."""
    taken: list[int] = []
    units: set[int] = set()
    room = _SparedRoom(choices)
    for o in _cheap_first(choices):
        unit = choices.options[o].unit
        if unit not in units and room.take(o):
            taken.append(o)
            units.add(unit)

    def holds(number: int) -> bool:
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


def in_vain(choices: Choices, taken: Sequence[int], fits: Enough, *, most_trials: int) -> list[int]:
    """A no-good cut: a large set of options, the given ones among them, that does not make enough room.

    Options are added cheapest first, without regard to limits. The members find no place with all these units evicted,
    so at least one other option has to be taken. Only valid where more evictions never make a placement infeasible.
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
    """Options, those of the cheapest units first."""

    def cost(o: int) -> tuple[int, ...]:
        option = choices.options[o]
        unit = choices.units[option.unit]
        covered = sum(pods > choices.budgets[b] for b, pods in unit.budgets)
        return covered, unit.priority, unit.breaks, unit.rank, option.rule

    return sorted(range(len(choices.options)), key=cost)


class _SparedRoom:
    """What the upper limits, crossings and multiples leave, option by option. A limit that holds for some only is taken
    to hold for all; of alternatives the branches that are broken once are closed."""

    def __init__(self, choices: Choices) -> None:
        self._bounds = _Bounds(choices.limits, choices.crossings)
        self._uneven = {
            o for one in choices.multiples for o, amount in one.terms if o in one.when and (one.have - amount) % one.k
        }
        self._eithers = [
            (frozenset(one.when), [_Bounds(branch.limits, branch.crossings) for branch in one.branches])
            for one in choices.eithers
        ]

    def take(self, o: int) -> bool:
        """Takes an option where every limit has room for it."""
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
    """What some upper limits and crossings leave."""

    def __init__(self, limits: Iterable[Limit], crossings: Sequence[Crossing]) -> None:
        bounded = [limit for limit in limits if limit.most is not None]
        self._left = [limit.most or 0 for limit in bounded]
        self._asks: dict[int, list[tuple[int, int]]] = {}
        for number, limit in enumerate(bounded):
            for o, amount in limit.terms:
                self._asks.setdefault(o, []).append((number, amount))
        self._rooms = [[room for _, room in crossing.resources] for crossing in crossings]
        self._crossed = [[(0, 0)] * len(rooms) for rooms in self._rooms]
        """Per crossing and resource (taken, the largest unit taken)."""
        self._crosses: dict[int, dict[int, list[int]]] = {}
        for number, crossing in enumerate(crossings):
            for r, (terms, _) in enumerate(crossing.resources):
                for o, amount in terms:
                    here = self._crosses.setdefault(o, {})
                    here.setdefault(number, [0] * len(crossing.resources))[r] = amount

    def allows(self, o: int) -> bool:
        """Whether an option may be taken beside those that are."""
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
        return {
            number: [
                (taken + amount, max(largest, amount))
                for (taken, largest), amount in zip(self._crossed[number], amounts, strict=True)
            ]
            for number, amounts in self._crosses.get(o, {}).items()
        }
