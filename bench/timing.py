# SPDX-License-Identifier: Apache-2.0
"""How the planner's benchmarks take time: processor time of this process, several times over, beside a bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import PlannerCache
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round

T = TypeVar("T")

Row = tuple[str, str, str]
"""What was done, the figure, a note."""


def timed(job: Callable[[], T], repeats: int) -> tuple[list[float], T]:
    """(seconds of every run, what the last one gave)."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        out = job()
        times.append(time.process_time() - start)
    return times, out


def rounds(
    state: ClusterState,
    repeats: int,
    *,
    config: KoordpyConfiguration | None = None,
    planner_cache: PlannerCache | None = None,
) -> tuple[list[float], RoundPlan]:
    """Seconds of several rounds of the planner, each on a new snapshot, whose making does not count; the last plan."""
    state.snapshot(0.0)
    times = []
    for _ in range(repeats):
        snapshot = state.snapshot(0.0)
        (seconds,), plan = timed(partial(plan_round, snapshot, config, planner_cache=planner_cache), 1)
        times.append(seconds)
    return times, plan


def milliseconds(seconds: float) -> str:
    """`12.3 ms`."""
    return f"{seconds * 1000:.1f} ms"


def against(bar: float, seconds: float) -> str:
    """`bar 500 ms holds; `, empty where there is no bar (0 seconds)."""
    return f"bar {bar * 1000:,.0f} ms {'holds' if seconds < bar else 'MISSED'}; " if bar else ""
