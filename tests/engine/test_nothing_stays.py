# SPDX-License-Identifier: Apache-2.0
"""Of pods that are gone nothing stays with those who had to do with them."""

import gc
import re
import sys
import weakref
from types import FunctionType, ModuleType
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.engine.scheduler import Scheduler
from koordpy.observe.message_rates import MOST_OF_A_NAMESPACE
from koordpy.pods.pod_info import PodInfo
from tests.engine.live import in_virtual_time, live, pod, small, until

ELSEWHERE = ("logging", "tests.", "koordpy.apiserver", "asyncio", "_asyncio", "aiohttp", "yarl")


@in_virtual_time
async def test_a_pod_that_was_bound_goes_with_its_deletion() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        known: list[weakref.ref[Any]] = []
        cluster.pod("short-lived")
        await until(lambda: scheduler.state.pod("default/short-lived") is not None)
        gc.collect()
        gc.disable()
        try:
            infos = [one for one in gc.get_objects() if isinstance(one, PodInfo) and one.name == "short-lived"]
            known += [weakref.ref(one.pod.metadata) for one in infos]
            del infos
            await until(lambda: cluster.bound("short-lived"))
            cluster.delete("short-lived")
            cluster.pod("q")  # the last plan of all is kept
            await until(lambda: cluster.bound("q"))
            assert known and not any(one() for one in known)
        finally:
            gc.enable()


STRANGERS = 400
STRANGE = re.compile(r"(?:stranger|label|mod)-[0-9]+")


def stranger(number: int) -> dict[str, Any]:
    """A pod of which nothing is like another's, and that fits nowhere."""
    made = pod(f"stranger-{number}", gpus=0, cpu="500", annotations={f"{keys.GANG_PREFIX}mod-{number}": "odd"})
    term = {"topologyKey": "t", "labelSelector": {"matchLabels": {f"label-{number}": "v"}}}
    made["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return made


def texts_of(scheduler: Scheduler) -> set[str]:
    """What strangers alone say, of all texts that the scheduler and its modules hold; without the server's."""
    found: set[str] = set()
    seen: set[int] = set()
    modules = [one for name, one in sys.modules.items() if name.startswith("koordpy.") and ".sim" not in name]
    left: list[object] = [scheduler, *map(vars, modules)]
    while left:
        one = left.pop()
        if id(one) not in seen and not str(type(one).__module__).startswith(ELSEWHERE):
            seen.add(id(one))
            if isinstance(one, str):
                found.update(STRANGE.findall(one))
            elif isinstance(one, dict):  # the collector is shown no keys that are texts
                left += [*one, *one.values()]
            elif isinstance(one, FunctionType):  # of other modules all it knows is its own
                left.append(one.__closure__)
            elif not isinstance(one, ModuleType):
                left += gc.get_referents(one)
    return found


@in_virtual_time
async def test_a_flood_of_strange_pods_leaves_no_word_behind() -> None:
    async with live([small("n1")]) as cluster, cluster.running(event_qps=0) as scheduler:
        cluster.create(*map(stranger, range(STRANGERS)))
        await until(lambda: len(cluster.events()) >= STRANGERS + MOST_OF_A_NAMESPACE)
        assert len(texts_of(scheduler)) >= 3 * STRANGERS
        for number in range(STRANGERS):
            cluster.delete(f"stranger-{number}")
        await cluster.at_rest(scheduler, "pods")
        rounds = cluster.planner.rounds
        held = len(rounds)
        scheduler.forgetting.look()
        await until(lambda: len(rounds) > held)  # what the planner remembers, it forgets itself
        await cluster.at_rest(scheduler, "pods")
        assert rounds[-1] == frozenset()
        assert not texts_of(scheduler)


@in_virtual_time
async def test_what_few_pods_leave_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr("koordpy.engine.forgetting.forget_all", lambda: forgotten.append(True))
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.create(*map(stranger, range(20)))
        await until(lambda: len(cluster.events()) >= 20)
        for number in range(20):
            cluster.delete(f"stranger-{number}")
        cluster.pod("q")
        await until(lambda: cluster.bound("q"))
        scheduler.forgetting.look()
        assert not forgotten


@in_virtual_time
async def test_after_a_flood_nobody_is_told_of_what_is_gone_and_everybody_of_what_is_there() -> None:
    async with live([small("n1")]) as cluster, cluster.running(event_qps=0.5, event_burst=1) as scheduler:
        cluster.create(*map(stranger, range(STRANGERS)))
        huge = pod("huge", gpus=0)
        asked = {f"example.com/r{i}": "1" for i in range(51)}
        huge["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
        cluster.create(huge)
        await until(lambda: scheduler.inspection.unreadable())
        for number in range(STRANGERS):
            cluster.delete(f"stranger-{number}")
        cluster.pod("q")
        await until(lambda: cluster.bound("q"))
        scheduler.forgetting.look()
        await until(lambda: any(event["reason"] == "Scheduled" for event in cluster.events()))
        told = [event["involvedObject"]["name"] for event in cluster.events()]
        assert told.count("huge") == 1
        assert len(told) < STRANGERS // 4
