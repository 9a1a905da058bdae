# SPDX-License-Identifier: Apache-2.0
"""The time of day that plans are made at, on clocks that the test sets."""

import random
from dataclasses import dataclass

import pytest

from koordpy.api.times import SteadyTime

MINUTES = 60.0
BEGAN = 1_767_225_600.0


@dataclass
class Machine:
    """Its two clocks."""

    clock: float = 50.0
    wall: float = BEGAN

    def steady(self) -> SteadyTime:
        return SteadyTime(lambda: self.wall, lambda: self.clock)

    def passes(self, seconds: float) -> None:
        self.clock += seconds
        self.wall += seconds


def test_on_a_clock_that_nobody_sets_it_is_the_time_of_day() -> None:
    machine = Machine()
    steady = machine.steady()
    for _ in range(100):
        machine.passes(37.5)
        assert steady() == pytest.approx(machine.wall, abs=1e-3)


@pytest.mark.parametrize("minutes", [-60, -5, -0.02, 0.02, 5, 60])
def test_a_jump_of_the_clock_moves_nothing_at_once_and_hardly_the_next_minute(minutes: float) -> None:
    machine = Machine()
    steady = machine.steady()
    machine.wall += minutes * MINUTES
    assert steady() == BEGAN
    machine.passes(60.0)
    assert abs(steady() - BEGAN - 60.0) <= 6.0 + 1e-6


@pytest.mark.parametrize("minutes", [-5, 5])
def test_it_is_the_time_of_day_again_within_the_hour(minutes: int) -> None:
    machine = Machine()
    steady = machine.steady()
    machine.wall += minutes * MINUTES
    for _ in range(60):
        machine.passes(60.0)
        steady()
    assert steady() == pytest.approx(machine.wall, abs=1e-3)


def test_what_a_machine_sleeps_has_passed() -> None:
    machine = Machine()
    steady = machine.steady()
    machine.passes(3 * 3600.0)
    assert steady() == machine.wall


@pytest.mark.parametrize("seed", range(20))
def test_it_never_goes_back_and_never_runs_off(seed: int) -> None:
    dice, machine = random.Random(seed), Machine()
    steady, before = machine.steady(), 0.0
    for _ in range(500):
        last = machine.clock
        machine.passes(dice.choice([0.0, 0.001, 1.0, 30.0]))
        if dice.random() < 0.1:
            machine.wall += dice.uniform(-600.0, 600.0)
        now = steady()
        if before:
            assert 0.9 * (machine.clock - last) - 1e-3 <= now - before <= 1.1 * (machine.clock - last) + 1e-3
        before = now
