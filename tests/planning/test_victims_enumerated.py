"""Victims against brute force over all subsets of units: the set by all levels, whichever method finds it."""

import re
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from koordpy.planning.plan import Proof
from koordpy.planning.round import plan_round
from koordpy.planning.solver import staged
from koordpy.planning.solver import victims as solver_victims
from koordpy.planning.solver.victims import choose
from koordpy.planning.solver.victims_bounds import LeastPrice
from koordpy.planning.solver.victims_model import VictimsModel
from koordpy.planning.victim_selection.choice import Choice, Choices
from koordpy.planning.victim_selection.names import EVERY_WAY, Way
from koordpy.planning.victims import equivalent_units
from tests.planning.victim_oracle import least_harmful, tiny_world


def compared(seed: int, ways: Sequence[Way] = EVERY_WAY) -> bool:
    """Whether somebody has to be asked to go; the planner's answer is held against the oracle's."""
    snapshot = tiny_world(Random(seed)).snapshot()
    wanted = least_harmful(snapshot)
    if wanted is None:
        return False
    plan = plan_round(snapshot, ways=ways)
    assert sorted(one.pod_key.partition("/")[2] for one in plan.evictions) == wanted, seed
    assert not [one.message for one in plan.pending if "refused by its check" in one.message], seed
    return bool(wanted)


def test_the_planner_takes_the_least_harmful_set() -> None:
    assert sum(compared(seed) for seed in range(120)) > 20


def test_the_model_alone_takes_the_least_harmful_set() -> None:
    assert sum(compared(seed, (Way.MODEL,)) for seed in range(200, 280)) > 12


def test_an_answer_asked_for_twice_is_the_least_harmful_set_and_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "FIRST_TRY_SHARE", 1e-9)
    assert sum(compared(seed, (Way.MODEL,)) for seed in range(200, 280)) > 12
    plans = [plan_round(tiny_world(Random(seed)).snapshot(), ways=(Way.MODEL,)) for seed in range(200, 220)]
    assert {one.proof for plan in plans for one in plan.units} == {Proof.OPTIMAL, Proof.INFEASIBLE}


def test_no_choice_costs_less_than_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By pods, by accelerators, and by prices of no sense."""
    met: Counter[bool] = Counter()

    def choosing(choices: Choices, *rest: object, **more: int) -> Choice:
        found = choose(choices, *rest, **more)  # type: ignore[arg-type]
        model = VictimsModel(choices)
        units, random = [choices.options[o].unit for o in found.options], Random(len(choices.units))
        odd = [random.randrange(9) for _ in choices.units]
        for price in ([u.pods for u in choices.units], [u.devices for u in choices.units], odd):
            least = LeastPrice(choices, model.bounds, model.wanted, model.of_unit).of(price.__getitem__)
            if units and least is not None:
                assert least <= sum(price[u] for u in units)
                met[least == sum(price[u] for u in units)] += 1
        return found

    monkeypatch.setattr(solver_victims, "choose", choosing)
    assert sum(compared(seed, (Way.MODEL,)) for seed in range(700, 780)) > 12
    assert met[True] > met[False] > 0, met


def test_twins_that_are_not_looked_at_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalent_units, "TWIN_UNITS", 0)
    assert sum(compared(seed) for seed in range(400, 480)) > 12


def test_what_is_said_to_go_at_least_goes_at_least() -> None:
    """Of plans that are not proven, against the least harmful set: `best found: 4 pods, bound 3`."""
    bounds = []
    for seed in range(600, 680):
        snapshot = tiny_world(Random(seed)).snapshot()
        for one in plan_round(snapshot, ways=(Way.GREEDY,)).benefits:
            found = re.match(r"best found: (\d+) pods?, bound (\d+);", one.message)
            assert found is not None, one.message
            wanted = least_harmful(snapshot)
            assert wanted is not None
            assert 1 <= int(found[2]) <= min(int(found[1]), len(wanted)), seed
            bounds.append((int(found[2]), len(wanted)))
    assert len(bounds) > 12
    assert sum(bound == least > 1 for bound, least in bounds) > 3
