# SPDX-License-Identifier: Apache-2.0
"""The yardstick on twenty nodes: both schedulers do what the rows say, and the table tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.live.cluster import PODS, live_cluster
from bench.live.schedulers import Koordpy, KubeScheduler
from bench.yardstick.figures import Results
from bench.yardstick.rows import rows
from bench.yardstick.session import Session
from tests.e2e.gang_api import GangApi
from tests.loudly import skip_loudly

NODES = 20


async def test_both_schedulers_are_measured_and_nothing_stays(
    request: pytest.FixtureRequest, assets: Path, gangs: GangApi
) -> None:
    ours, other = Koordpy(), KubeScheduler(assets / "kube-scheduler")
    if not other.program.exists():
        skip_loudly(request, "the yardstick", "no kube-scheduler beside the API server")
    said: list[str] = []
    chosen = {row.key: row for row in rows(NODES, window_s=2.0)}
    async with live_cluster(assets, NODES, upstream_gangs=True) as cluster:
        session = Session(cluster, ours, other, "kube-scheduler", 1, judged=False, say=said.append)
        for key in ("gang512", "hopeless511", "preempt"):
            await session.measure(chosen[key])
        await cluster.clean()
        assert await cluster.api.items(PODS) == [] and await cluster.api.items(gangs.groups) == []
        folder = cluster.folder
    assert not folder.exists()
    results = session.results
    for scheduler in (ours.name, other.name):
        figures = {key: _figures(results[key], scheduler) for key in results}
        assert figures["gang512"].keys() >= {"first_s", "last_s"}
        assert 0 < figures["gang512"]["first_s"] <= figures["gang512"]["last_s"]
        assert figures["hopeless511"]["told_s"] is not None
        assert figures["preempt"]["evicted"] == 16, "two pods of 8 GPUs, in place of 8 pods each"
        assert figures["preempt"]["last_s"] > 0
        used = results["gang512"].usage(scheduler)
        assert used is not None and used.cpu_s > 0 and 0 < used.resident_bytes <= used.peak_bytes
    assert len(said) >= 6
    table = [line for line in session.report().splitlines() if line.startswith("| ")]
    assert len(table) == 2 + 1 + 2 + 3
    assert all("-" not in line.split(" | ")[2:4] for line in table[2:]), "every figure was there"


def _figures(results: Results, scheduler: str) -> dict[str, float]:
    (run,) = results.runs[scheduler]
    return {key: value for key, value in run.figures.items() if value is not None}
