# SPDX-License-Identifier: Apache-2.0
"""Medians, goals and ratios of the yardstick, and the table that is made of them."""

from __future__ import annotations

import pytest

from bench.live.usage import Usage
from bench.yardstick.figures import Goal, Line, Results, Run, advantage, median
from bench.yardstick.rows import TABLE_NODES, rows
from bench.yardstick.table import amount, entitlements_of, goal_text, markdown, usage_text

USED = Usage(cpu_s=1.5, resident_bytes=80_000_000, peak_bytes=90_000_000)
RATE, LAST = (
    Line("rate", "pods", "/s", Goal(times_other=1.2), bounded=True),
    Line("last_s", "gang", "s", Goal(at_most=2.0)),
)


@pytest.mark.parametrize(
    ("values", "more_is_better", "expected"),
    [
        ([], False, None),
        ([3.0], False, 3.0),
        ([3.0, 1.0, 2.0], False, 2.0),
        ([4.0, 1.0, 2.0, 3.0], True, 2.5),
        ([1.0, None, 2.0], False, 2.0),
        ([1.0, None, 2.0], True, 1.0),
        ([1.0, None], False, None),
        ([None, None, 1.0], True, None),
        ([0.0, 0.0], False, 0.0),
    ],
)
def test_a_run_that_did_not_get_there_counts_as_the_worst(
    values: list[float | None], more_is_better: bool, expected: float | None
) -> None:
    assert median(values, more_is_better=more_is_better) == expected


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "met"),
    [
        (Goal(at_most=2.0), 2.0, None, True),
        (Goal(at_most=2.0), 2.01, None, False),
        (Goal(at_most=2.0), None, 5.0, False),
        (Goal(exactly=512), 512.0, 8000.0, True),
        (Goal(exactly=512), 511.0, 512.0, False),
        (Goal(times_other=1.2), 600.0, 500.0, True),
        (Goal(times_other=1.2), 599.0, 500.0, False),
        (Goal(times_other=1.2), 10.0, None, True),
        (Goal(times_other=1.2), None, None, False),
    ],
)
def test_goals(goal: Goal, ours: float | None, theirs: float | None, met: bool) -> None:
    assert goal.met(ours, theirs) is met


def test_twice_the_rate_and_half_the_time_are_both_twice_as_good() -> None:
    assert advantage(RATE, 800.0, 400.0) == 2.0
    assert advantage(LAST, 2.0, 4.0) == 2.0
    assert advantage(LAST, None, 4.0) is None
    assert advantage(LAST, 2.0, 0.0) is None


def test_usage_is_the_median_and_the_peak_of_all_runs() -> None:
    runs = [Run({}, Usage(cpu, held, peak)) for cpu, held, peak in ((1.0, 10, 90), (3.0, 30, 40), (2.0, 20, 50))]
    assert Results({"a": runs}).usage("a") == Usage(2.0, 20, 90)
    assert Results().usage("a") is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234.4, "/s", "1,234/s"),
        (0.456, "s", "0.46 s"),
        (512.0, "", "512"),
        (1499.6, "MB", "1,500 MB"),
        (None, "s", "-"),
    ],
)
def test_amounts(value: float | None, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_goals_in_words() -> None:
    words = [goal_text(goal, "s", other="x") for goal in (None, Goal(at_most=1.5), Goal(times_other=1.2))]
    assert words == ["", "<= 1.5 s", ">= 1.2 x x"]
    assert goal_text(Goal(exactly=512), "", other="x") == "512"


def test_the_table_of_one_row() -> None:
    runs = {"a": [Run({"rate": 900.0, "last_s": 3.0}, USED)], "b": [Run({"rate": 300.0}, USED)]}
    cells = entitlements_of(
        [RATE, LAST], Results(runs, bounds=[1300.0, 1200.0, 1250.0]), ours="a", other="b", judged=True
    )
    used = usage_text(USED)
    assert used == "1.5 s, 80 MB, at most 90 MB"
    assert cells == [
        ["pods", "1,250/s", "300/s", "900/s", "3.0", ">= 1.2 x b", "yes", used, used],
        ["gang", "", "-", "3.00 s", "", "<= 2 s", "NO", "", ""],
    ]
    head, rule, first, second = markdown(cells, ours="a", other="b").splitlines()
    assert head.startswith("| workload | machine's bound | b | a | ratio |")
    assert {line.count("|") for line in (head, rule, first, second)} == {10}


def test_a_process_that_ended_by_itself_has_missed_its_goals() -> None:
    results = Results({"a": [Run({}, None, ["a ended by itself"])]})
    assert results.met(LAST, "a", "b") is False
    assert entitlements_of([LAST], results, ours="a", other="b", judged=True)[0][6:] == ["NO", "-", "-"]


def test_a_cluster_of_another_size_is_not_judged_and_nothing_measured_is_nothing_missed() -> None:
    runs = {"a": [Run({"last_s": 3.0}, USED)]}
    assert entitlements_of([LAST], Results(runs), ours="a", other="b", judged=False)[0][6] == ""
    assert entitlements_of([LAST], Results(), ours="a", other="b", judged=True)[0][6] == ""
    assert Results().met(LAST, "a", "b") is None


def test_the_rows_at_a_thousand_nodes_are_those_of_the_table_and_smaller_ones_fit_on_their_nodes() -> None:
    titles = {row.key: row.lines[0].what for row in rows(TABLE_NODES)}
    assert titles["plain"].startswith("3,000 plain pods:")
    assert titles["gang512"].startswith("one gang of 512 x 8 GPUs")
    assert titles["gangs100"].startswith("20 gangs of 100 x 1 GPU:") and titles["gangs10"].startswith(
        "200 gangs of 10 "
    )
    assert titles["hopeless511"].startswith("hopeless gang of 512 x 8 GPUs, 511 would fit")
    assert titles["hopeless0"].startswith("hopeless gang of 512 x 8 GPUs, none would fit")
    assert titles["preempt"].startswith("gang of 64 x 8 GPUs above 8,000 running pods on 1,000 full nodes")
    assert titles["start"].startswith("5,000 nodes, 20,000 bound pods")
    keys = [row.key for row in rows(TABLE_NODES)]
    assert len(set(keys)) == len(keys)
    small = {row.key: row.lines[0].what for row in rows(30)}
    assert small["gang512"].startswith("one gang of 15 x 8 GPUs") and small["gangs100"].startswith("2 gangs of 100 x 1")
