# SPDX-License-Identifier: Apache-2.0
"""Equal units that wait are searched for once for each change that could help them, however many they are."""

import asyncio
from typing import Any

import pytest

from koordpy.attempts import preemption_pipeline
from koordpy.preemption.search.preemption_plan import SearchEnd
from tests.engine.live import Live, gang, in_virtual_time, live, small, until

EACH = 8


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """First letters of the units that victims were looked for, one entry a search."""
    units: list[str] = []
    find_plan = preemption_pipeline.find_plan

    def counted(unit: Any, *args: Any) -> Any:
        found = find_plan(unit, *args)
        if found.end is not SearchEnd.DEFERRED:
            units.append(unit.id.partition("/")[2][0])
        return found

    monkeypatch.setattr(preemption_pipeline, "find_plan", counted)
    return units


def told(cluster: Live, names: list[str], text: str) -> bool:
    return all(text in cluster.condition(f"{name}-0").get("message", "") for name in names)


def since(searched: list[str]) -> list[str]:
    """What was searched for since this was last asked."""
    found = sorted(searched)
    searched.clear()
    return found


@pytest.mark.parametrize("round_seconds", [0.5, 0.0], ids=["in one round", "in rounds of one search each"])
@in_virtual_time
async def test_equal_gangs_are_searched_for_once_a_change(searched: list[str], round_seconds: float) -> None:
    """Gangs a want three nodes and gangs b four, of two."""
    names = [f"{kind}{i}" for i in range(EACH) for kind in "ab"]
    async with live([small("n1"), small("n2")]) as cluster:
        for name in names:
            cluster.create(*gang(name, 3 if name < "b" else 4, gpus=4))
        async with cluster.running(round_seconds=round_seconds, search_seconds=round_seconds):
            await until(lambda: told(cluster, names, "available in the cluster: 2"))
            assert since(searched) == ["a", "b"]

            # a node that is too small for a member: it could have helped each, and helps none
            cluster.create(small("n3", gpus=1))
            await asyncio.sleep(60)
            assert since(searched) == ["a", "b"]

            # what helps nobody
            cluster.create(*gang("c", 1, gpus=8))
            await until(lambda: told(cluster, ["c"], "Insufficient nvidia.com/gpu"))
            await asyncio.sleep(60)
            assert since(searched) == ["c"]

            # room for one gang: who comes after it finds none any more
            cluster.create(small("n4"))
            await until(lambda: cluster.bound("a0-0", "a0-1", "a0-2"))
            await asyncio.sleep(60)
            assert len(since(searched)) <= 4  # once for the node, once for what a0 took
            assert len(cluster.places()) == 3
