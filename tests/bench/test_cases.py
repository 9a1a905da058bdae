# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' cases are what their names say; how long they take is not looked at."""

from __future__ import annotations

from types import ModuleType

import pytest

from bench import ascend, planner, victims
from bench.timing import against, timed


@pytest.mark.parametrize(
    ("part", "text", "outcome"),
    [
        (planner, "gang of 8 on 500 nodes", "8 placed, 0 pending, optimal"),
        (planner, "64 pods of two sizes", "64 placed, 0 pending, optimal"),
        (victims, "79 GPUs to be had, 100 nodes", "0 evicted, infeasible"),
    ],
)
def test_what_comes_of_a_case(part: ModuleType, text: str, outcome: str) -> None:
    ((what, figure, note),) = part.run(1, text=text)
    assert text in what and figure.endswith(" ms") and outcome in note


def test_the_chips_of_modules_are_all_used(monkeypatch: pytest.MonkeyPatch) -> None:
    one = [case for case in ascend.cases() if case.name.startswith("256 pods of 1, 2 and 4 chips")]
    monkeypatch.setattr(ascend, "cases", lambda: one)
    ((_, _, note),) = ascend.run(1)
    assert note == "256 placed"


def test_a_bar_holds_or_is_missed_and_need_not_be() -> None:
    assert [against(0.5, seconds) for seconds in (0.4, 0.5)] == ["bar 500 ms holds; ", "bar 500 ms MISSED; "]
    assert against(0.0, 1.0) == ""


def test_a_job_is_run_as_often_as_asked() -> None:
    done: list[int] = []

    def job() -> int:
        done.append(1)
        return len(done)

    times, last = timed(job, 3)
    assert len(times) == last == 3 and min(times) >= 0
