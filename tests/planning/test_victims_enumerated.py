# SPDX-License-Identifier: Apache-2.0
"""Victims against brute force over all subsets of units: the set by all levels, whichever method finds it."""

import re
from collections.abc import Sequence
from random import Random

from koordpy.config.configuration import KoordpyConfiguration, Preemption
from koordpy.config.node_failures import Repair
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from tests.planning.victim_oracle import least_harmful, tiny_world

SETTINGS = KoordpyConfiguration(preemption=Preemption(surplus_victims="any"), repair=Repair(seat_hold=0.0))
"""The oracle knows no gangs that surplus members spare; test_victims_lawful.py has them."""


def compared(seed: int, ways: Sequence[Way] = EVERY_WAY) -> bool:
    """Whether somebody has to be asked to go; the planner's answer is held against the oracle's."""
    snapshot = tiny_world(Random(seed)).snapshot()
    wanted = least_harmful(snapshot)
    if wanted is None:
        return False
    plan = plan_round(snapshot, SETTINGS, ways=ways)
    assert sorted(one.pod_key.partition("/")[2] for one in plan.evictions) == wanted, seed
    assert not [one.message for one in plan.pending if "failed koordpy's own check" in one.message], seed
    return bool(wanted)


def test_the_planner_takes_the_least_harmful_set() -> None:
    assert sum(compared(seed) for seed in range(120)) > 20


def test_the_model_alone_takes_the_least_harmful_set() -> None:
    assert sum(compared(seed, (Way.MODEL,)) for seed in range(200, 360)) > 24


def test_what_is_said_to_go_at_least_goes_at_least() -> None:
    """Of plans that are not proven, against the least harmful set: `best found: 4 pods, bound 3`."""
    bounds = []
    for seed in range(600, 680):
        snapshot = tiny_world(Random(seed)).snapshot()
        for one in plan_round(
            snapshot, KoordpyConfiguration(repair=Repair(seat_hold=0.0)), ways=(Way.GREEDY,)
        ).benefits:
            found = re.search(r"\(best found: (\d+) pods?, bound (\d+):", one.message)
            assert found is not None, one.message
            wanted = least_harmful(snapshot)
            assert wanted is not None
            assert 1 <= int(found[2]) <= min(int(found[1]), len(wanted)), seed
            bounds.append((int(found[2]), len(wanted)))
    assert len(bounds) > 12
    assert sum(bound == least > 1 for bound, least in bounds) > 3
