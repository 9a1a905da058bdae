"""Victims by giving back: everybody who may go is gone, then the most important return while there is still room.

What preemption.md section 6 (2) calls the greedy plan. It is the answer where a choice cannot be proven in time:
inclusion-minimal, the least important go, but not the least harmful of all sets.
"""

from collections.abc import Callable, Sequence

from koordpy.planning.victims.choice import Choices, keeps

Enough = Callable[[tuple[int, ...]], bool]
"""Whether the beneficiary can be placed with the units of these options gone."""


def spared(choices: Choices, enough: Enough, start: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Options without any one of which there is no room; none where even all of them are not enough.

    start: options that are enough, to give back from; by default all that may be taken together.
    """
    taken = start or _most(choices)
    if not taken or not enough(taken):
        return ()
    needed: list[int] = []

    def give_back(part: Sequence[int], later: Sequence[int]) -> None:
        """Settles the options of a part: those that can go back do. later: options that are not settled yet."""
        if not part:
            return
        rest = (*needed, *later)
        if rest and keeps(choices, rest) and enough(tuple(sorted(rest))):
            return
        if len(part) == 1:
            needed.append(part[0])
            return
        half = len(part) // 2
        give_back(part[:half], (*part[half:], *later))
        give_back(part[half:], later)

    def importance(o: int) -> tuple[int, ...]:
        unit = choices.units[choices.options[o].unit]
        covered = sum(pods for _, pods in unit.budgets)
        return -covered, -unit.priority, -unit.breaks, -unit.devices, -unit.pods, -unit.rank

    give_back(sorted(taken, key=importance), ())
    return tuple(sorted(needed))


def _most(choices: Choices) -> tuple[int, ...]:
    """As many options as the limits allow together, cores of gangs before their surplus."""
    order = sorted(range(len(choices.options)), key=lambda o: (-choices.units[choices.options[o].unit].pods, o))
    taken: list[int] = []
    units: set[int] = set()
    for o in order:
        unit = choices.options[o].unit
        if unit not in units and (not choices.limits or keeps(choices, (*taken, o))):
            taken.append(o)
            units.add(unit)
    return tuple(sorted(taken)) if keeps(choices, taken) else ()
