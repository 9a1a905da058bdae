# SPDX-License-Identifier: Apache-2.0
"""The row of gangs that wait, on the embedded server: what is measured has happened, in this order."""

from __future__ import annotations

import pytest

from bench.live.cluster import PODS
from bench.live.embedded import embedded_cluster
from bench.live.schedulers import Koordpy
from bench.yardstick import bounds, waiting

NODES = 6


async def test_gangs_that_wait_are_bound_and_gone_afterwards() -> None:
    async with embedded_cluster(NODES) as cluster:
        koordpy = Koordpy()
        run = await waiting.gangs(cluster, koordpy, gangs=2, size=5, gpus=4)
        assert await cluster.api.items(PODS) == []
        assert await bounds.seconds_to_bind(cluster, count=20) > 0
        assert await bounds.seconds_to_list(cluster) > 0
    figures = {key: value or 0.0 for key, value in run.figures.items()}
    assert 0 < figures["first_s"] <= figures["last_s"] < waiting.TIMEOUT_S
    assert 0 < figures["cpu_ms"] <= figures["cpu_later_ms"]
    assert figures["rate"] > 0 and not run.notes
    assert run.usage is not None and run.usage.peak_bytes >= run.usage.resident_bytes > 0


async def test_pods_that_are_not_bound_in_time_give_a_note_and_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TIMEOUT_S", 3.0)
    async with embedded_cluster(1) as cluster:
        run = await waiting.gangs(cluster, Koordpy(), gangs=1, size=2, gpus=8)
    assert dict(run.figures) == {} and list(run.notes) == ["0 of 2 bound in 3 s"]
