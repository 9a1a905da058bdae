# SPDX-License-Identifier: Apache-2.0
"""Answers beside a scheduler: made once for all, few at a time, in turns, and in proportion to what they cost."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bench import objects
from koordpy.api import keys
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.plan.limits import (
    BOARD_SECONDS,
    QUESTIONS_OPEN_EACH,
    TENANT_PACE,
    TENANT_PAUSE_SECONDS,
    WORK_PACE,
    WORK_PAUSE_SECONDS,
)
from koordpy.view import tenant_answers as module
from koordpy.view.live_documents import NotReadyError
from koordpy.view.subjects import UnknownSubjectError
from koordpy.view.tenant_answers import Answers, UnknownResourceError, answers_of
from tests.engine.live import live, pod, small
from tests.engine.scripted import until
from tests.engine.tuning import LONG_LEASE

GPU = keys.GPU_RESOURCES[0]
CONFIG = KoordpyConfiguration()


class Scene:
    """A cluster of one node, and a clock that a test moves."""

    def __init__(self) -> None:
        self.state = make_state(gpu=CONFIG.gpu)
        self.state.upsert(objects.node("n0", {GPU: "8", "cpu": "64"}))
        for i in range(3):
            self.state.upsert(objects.pod(f"p{i}", {GPU: "9", "cpu": "1"}))
        self.now, self.looks, self.ready = 0.0, 0, True
        self.messages: dict[str, str] = {}

    def take(self) -> tuple[Snapshot, Mapping[str, str]]:
        self.looks += 1
        if not self.ready:
            raise NotReadyError("the cluster is still being read: pods")
        return self.state.snapshot(self.now), self.messages


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def answers(scene: Scene) -> AsyncIterator[Answers]:
    made = Answers(scene.take, CONFIG, clock=lambda: scene.now)
    yield made
    made.close()


async def test_a_question_about_a_pod_has_its_message_place_and_remedies(scene: Scene, answers: Answers) -> None:
    scene.messages = {"default/p1": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
    found = await answers.why("default", "p1")
    (pod,) = found["pods"]
    assert pod["message"] == scene.messages["default/p1"]
    assert found["queue"] == {"place": 2, "waiting": 3}
    explained = found["explanation"]
    assert (explained["feasibleNodes"], explained["allNodes"]) == (0, 1)
    assert explained["reasons"] == {"Insufficient nvidia.com/gpu": 1} and "n0" not in explained["reasons"]
    assert explained["queue"]["place"] == 2


async def test_one_view_of_the_cluster_serves_all_until_it_is_old(scene: Scene, answers: Answers) -> None:
    for _ in range(5):
        await answers.queue("default")
    assert scene.looks == 1
    scene.now += BOARD_SECONDS
    await asyncio.gather(*(answers.queue(f"ns-{i}") for i in range(5)))
    assert scene.looks == 2


async def test_another_namespace_has_no_rows_and_counts(answers: Answers) -> None:
    found = await answers.queue("elsewhere")
    assert (found["units"], found["others"]) == ([], {"waiting": 3, "held": 0, "pods": 3})
    with pytest.raises(UnknownSubjectError, match="no pending or running pod, gang or workload named elsewhere/p1"):
        await answers.why("elsewhere", "p1")
    with pytest.raises(UnknownSubjectError):
        await answers.why("elsewhere", "default/p1")


async def test_before_the_caches_are_in_sync_no_question_is_answered(scene: Scene, answers: Answers) -> None:
    scene.ready = False
    for ask in (answers.why("default", "p0"), answers.queue("default"), answers.slots("default", "", 1)):
        with pytest.raises(NotReadyError):
            await ask


async def test_slots_are_of_resources_that_nodes_have(answers: Answers) -> None:
    found = await answers.slots("default", "", 4)
    assert (found["resource"], found["gangs"][0]["slots"]) == (GPU, 2)
    assert [one["name"] for one in found["domains"]] == [""]
    with pytest.raises(UnknownResourceError, match=r"no node has example\.com/x"):
        await answers.slots("default", "example.com/x", 1)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Explanations that take as long as a test says, by its clock; what was explained, and how many at once."""
    seen: dict[str, Any] = {"done": [], "at once": 0, "most": 0, "cost": lambda: None}
    lock = threading.Lock()

    def explained(view: Any, namespace: str, pod: Any) -> dict[str, Any]:
        with lock:
            seen["at once"] += 1
            seen["most"] = max(seen["most"], seen["at once"])
        seen["cost"]()
        with lock:
            seen["at once"] -= 1
            seen["done"].append(pod.key)
        return {"pod": pod.key}

    monkeypatch.setattr(module, "explanation_document", explained)
    return seen


async def test_an_explanation_holds_for_a_while_and_is_made_once_for_those_who_ask_together(
    answers: Answers, work: dict[str, Any]
) -> None:
    found = await asyncio.gather(*(answers.why("default", "p0") for _ in range(4)))
    assert {one["explanation"]["pod"] for one in found} == {"default/p0"}
    await answers.why("default", "p0")
    assert work["done"] == ["default/p0"]


async def test_one_explanation_is_made_at_a_time(scene: Scene, answers: Answers, work: dict[str, Any]) -> None:
    for i in range(3):
        await answers.why("default", f"p{i}")
    assert work["most"] == 1 and len(work["done"]) == 3


def costs(scene: Scene, seconds: float) -> Callable[[], None]:
    def pay() -> None:
        scene.now += seconds

    return pay


async def test_a_namespace_pauses_in_proportion_to_what_it_cost_and_is_told_when_to_ask_again(
    scene: Scene, answers: Answers, work: dict[str, Any]
) -> None:
    work["cost"] = costs(scene, 3.0)
    assert (await answers.why("default", "p0"))["explanation"] is not None
    found = await answers.why("default", "p1")
    assert found["explanation"] is None and found["pods"][0]["pod"] == "p1" and found["queue"]["place"] == 2
    assert found["explanationInSeconds"] == 3.0 * TENANT_PACE
    assert work["done"] == ["default/p0"]
    scene.now += 3.0 * TENANT_PACE
    work["cost"] = costs(scene, 1000.0)
    assert (await answers.why("default", "p1"))["explanation"] is not None
    assert (await answers.why("default", "p2"))["explanationInSeconds"] == TENANT_PAUSE_SECONDS


async def test_another_namespace_waits_for_a_bounded_time_alone(
    scene: Scene, answers: Answers, work: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def pass_time(seconds: float) -> None:
        if seconds > 0:
            waited.append(seconds)
            scene.now += seconds
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", pass_time)
    theirs = objects.pod("q", {GPU: "9", "cpu": "1"})
    scene.state.upsert(replace(theirs, metadata=replace(theirs.metadata, namespace="theirs", uid="q")))
    for cost, pause in ((1.0, WORK_PACE), (1000.0, WORK_PAUSE_SECONDS)):
        work["cost"] = costs(scene, cost)
        await answers.why("default", "p0")
        work["cost"] = lambda: None
        assert (await answers.why("theirs", "q"))["explanation"] is not None
        assert waited == [pause]
        waited.clear()
        scene.now += 10_000.0


async def test_few_explanations_of_a_namespace_are_due_at_once(
    scene: Scene, answers: Answers, work: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)
    gate = threading.Event()
    work["cost"] = lambda: gate.wait(30)
    for i in range(20):
        scene.state.upsert(objects.pod(f"many-{i}", {GPU: "9", "cpu": "1"}))
    found = await asyncio.gather(*(answers.why("default", f"many-{i}") for i in range(20)))
    assert all(one["explanation"] is None and one["explanationInSeconds"] for one in found)
    assert len(answers._running) == QUESTIONS_OPEN_EACH
    gate.set()
    await until(lambda: not answers._running)
    assert len(work["done"]) == QUESTIONS_OPEN_EACH


async def test_a_view_that_is_not_asked_for_is_let_go(
    scene: Scene, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BOARD_SECONDS", 0.0)
    monkeypatch.setattr(module, "ANSWERS_HELD_SECONDS", 0.01)
    await answers.queue("default")
    assert answers._board is not None
    await until(lambda: answers._board is None)


async def test_a_replica_that_does_not_lead_answers_with_what_its_leader_wrote() -> None:
    async with live([small("n1")]) as cluster:
        cluster.create(pod("vast", gpus=9, cpu="1", memory="1Gi"))
        async with cluster.running(lease=LONG_LEASE) as leader:
            await until(leader.leading.is_set)
            await until(lambda: bool(cluster.condition("vast").get("message")))
            async with cluster.running(lease=LONG_LEASE) as standby:
                await until(lambda: cluster.is_known_to(standby, "pods"))
                assert not standby.leading.is_set() and not standby.decisions.messages
                asked = answers_of(standby, CONFIG)
                try:
                    found = await asked.why("default", "vast")
                finally:
                    asked.close()
        there = cluster.condition("vast")
        (told,) = found["pods"]
        assert (told["reason"], told["message"]) == (there["reason"], there["message"])
        assert found["explanation"]["feasibleNodes"] == 0 and found["queue"] == {"place": 1, "waiting": 1}
