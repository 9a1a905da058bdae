# SPDX-License-Identifier: Apache-2.0
"""Rounds and turns of the yardstick, without a cluster: who plays when, and what is counted as missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.live.cluster import LiveCluster
from bench.live.schedulers import Koordpy, KubeScheduler
from bench.live.usage import Usage
from bench.yardstick.figures import Goal, Line, Run
from bench.yardstick.rows import Row
from bench.yardstick.session import Session
from tests.e2e.process import ProcessDied

OURS, OTHER = Koordpy(), KubeScheduler(Path("kube-scheduler"))
LINES = (Line("last_s", "a row", "s", Goal(at_most=2.0), bounded=True),)


class Cluster:
    """Notes when it was cleaned."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def clean(self) -> None:
        self.log.append("clean")


def session(log: list[str], *, rounds: int, judged: bool = True) -> Session:
    cluster: Any = Cluster(log)
    return Session(cluster, OURS, OTHER, "kube-scheduler 1.2.3", rounds, judged, lambda text: None)


def row(log: list[str], seconds: dict[str, float | None]) -> Row:
    """A row that takes so long; None = the process ends by itself."""

    async def play(cluster: LiveCluster, scheduler: Any) -> Run:
        log.append(scheduler.name)
        took = seconds[scheduler.name]
        if took is None:
            raise ProcessDied("gone")
        return Run({"last_s": took}, Usage(1.0, 10, 20))

    async def prepare(cluster: LiveCluster) -> None:
        log.append("prepare")

    async def bound(cluster: LiveCluster) -> float:
        log.append("bound")
        return 0.5

    return Row("row", LINES, play, prepare, bound)


async def test_they_take_turns_and_the_bound_comes_last_in_a_round() -> None:
    log: list[str] = []
    await session(log, rounds=2).measure(row(log, {"koordpy": 1.0, "kube-scheduler": 2.0}))
    assert log == ["prepare", "koordpy", "kube-scheduler", "bound", "kube-scheduler", "koordpy", "bound"]


async def test_a_cluster_is_cleaned_between_rows_and_not_after_the_last() -> None:
    log: list[str] = []
    measuring = session(log, rounds=1)
    for _ in range(2):
        await measuring.measure(row(log, {"koordpy": 1.0, "kube-scheduler": 2.0}))
    assert [word for word in log if word in ("clean", "prepare")] == ["prepare", "clean", "prepare"]


async def test_who_ends_by_itself_has_missed_the_goal_and_the_others_go_on() -> None:
    log: list[str] = []
    measuring = session(log, rounds=1)
    await measuring.measure(row(log, {"koordpy": None, "kube-scheduler": 2.0}))
    assert log == ["prepare", "koordpy", "clean", "prepare", "kube-scheduler", "bound"]
    assert measuring.missed == 1
    assert "koordpy ended by itself" in measuring.report()


async def test_missed_goals_are_counted_at_the_tables_size_only() -> None:
    for judged, missed in ((True, 1), (False, 0)):
        measuring = session([], rounds=1, judged=judged)
        await measuring.measure(row([], {"koordpy": 3.0, "kube-scheduler": 6.0}))
        assert measuring.missed == missed
        (line,) = [line for line in measuring.report().splitlines() if line.startswith("| a row")]
        assert line.split(" | ")[1:7] == ["0.50 s", "6.00 s", "3.00 s", "2.0", "<= 2 s", "NO" if judged else ""]
