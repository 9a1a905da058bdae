# SPDX-License-Identifier: Apache-2.0
"""When a pending pod is told why it waits, and what it is told last, on a clock that the test moves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import convert

from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from koordpy.engine.client.api_errors import Unreachable
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.status.pod_status import PodStatusWriter
from koordpy.engine.status.reconciler import TRUSTED_SECONDS
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import PendingPod
from koordpy.pods.pod_info import PodInfo
from tests.engine.parts import a_context

MOMENT = EngineSettings().not_ready_hold_seconds


@dataclass
class Waiting:
    """A pod of a gang, and when its verdicts are due; nothing is sent."""

    now: float = 100.0
    writer: PodStatusWriter = field(init=False)
    info: PodInfo = field(init=False)

    def __post_init__(self) -> None:
        self.writer, state = PodStatusWriter(a_context(clock=lambda: self.now)), make_state()
        manifest = {
            "metadata": {"name": "a", "namespace": "default", "uid": "a"},
            "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]},
        }
        state.upsert(convert(manifest, Pod))
        known = state.pod("default/a")
        assert known is not None
        self.info = known

    def told(self, message: str, *, gated: bool = True) -> None:
        """A round's verdict."""
        reason = Reason.NOT_READY if gated else Reason.UNSCHEDULABLE
        verdict = PendingPod("default/a", "u", None, reason, message, gated=gated)
        self.writer.tell(verdict, self.info)

    def is_due(self) -> bool:
        """Whether the verdict would be sent now."""
        return any(due <= self.now for due in self.writer._marked.values())


def test_a_gang_that_does_not_grow_is_told_after_a_moment() -> None:
    pod = Waiting()
    for _ in range(4):
        pod.told("1 of 9")
        assert not pod.is_due()
        pod.now += MOMENT / 5
    pod.now += MOMENT / 4
    assert pod.is_due()


def test_a_gang_that_grows_is_told_a_moment_after_its_first_verdict() -> None:
    pod, count = Waiting(), 0
    while not pod.is_due():
        count += 1
        pod.told(f"{count} of 9000")
        pod.now += MOMENT / 5
    assert pod.now - 100.0 == pytest.approx(MOMENT)


def test_what_is_not_a_matter_of_members_is_told_at_once() -> None:
    pod = Waiting()
    pod.told("1 of 2")
    assert not pod.is_due()
    pod.told("0/1 nodes are available", gated=False)
    assert pod.is_due()


class SlowServer:
    """Takes patches of the pod's status and answers one when `answer` is called."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._open: list[asyncio.Future[None]] = []

    def complained(self, error: Exception, verbs: str, resource: str) -> bool:
        return False

    async def patch(self, path: str, body: Any, **_: Any) -> None:
        [condition] = body["status"]["conditions"]
        self.asked.append(condition["message"])
        self._open.append(asyncio.get_running_loop().create_future())
        await self._open[-1]

    async def answer(self, error: Exception | None = None) -> None:
        """The oldest patch under way is answered, and everybody gets on."""
        answered = self._open.pop(0)
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)
        await turn()


async def turn() -> None:
    """Lets tasks run that need no more time."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Told:
    """The same pod, whose verdicts are sent."""

    now: float = 100.0
    server: SlowServer = field(default_factory=SlowServer)
    state: ClusterState = field(default_factory=make_state)
    writer: PodStatusWriter = field(init=False)

    def __post_init__(self) -> None:
        nobody: Any = SimpleNamespace(tell=lambda reason, about, note: None)
        context = a_context(client=self.server, state=self.state, announcer=nobody, clock=lambda: self.now)
        self.writer = PodStatusWriter(context)
        self.shows("")

    def shows(self, message: str, name: str = "a") -> None:
        """The watch brings the pod, with a condition that says so."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        manifest = {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]},
            "status": {"conditions": [condition] if message else []},
        }
        self.state.upsert(convert(manifest, Pod))

    async def told(self, message: str, name: str = "a") -> None:
        """A round's verdict, and time for whoever sends it."""
        info = self.state.pod(f"default/{name}")
        assert info is not None
        self.writer.tell(PendingPod(info.key, "u", None, Reason.UNSCHEDULABLE, message), info)
        await turn()


@pytest.fixture
async def pod() -> AsyncIterator[Told]:
    told = Told()
    running = asyncio.create_task(told.writer.run())
    yield told
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_second_verdict_waits_until_the_first_is_answered_so_that_it_is_the_last(pod: Told) -> None:
    await pod.told("waits for members")
    await pod.told("no room")
    assert pod.server.asked == ["waits for members"]
    await pod.server.answer()
    assert pod.server.asked == ["waits for members", "no room"]


async def test_pods_of_a_hopeless_gang_are_told_beside_each_other(pod: Told) -> None:
    for i in range(16):
        pod.shows("", name=f"p{i}")
        await pod.told("no room", name=f"p{i}")
    assert pod.server.asked == ["no room"] * 16


async def test_of_verdicts_that_came_meanwhile_only_the_latest_is_sent(pod: Told) -> None:
    for message in ("waits for members", "no room", "no quota"):
        await pod.told(message)
    await pod.server.answer()
    assert pod.server.asked == ["waits for members", "no quota"]


async def test_a_verdict_that_comes_back_is_sent_though_the_watch_shows_it_still(pod: Told) -> None:
    pod.shows("no room")
    await pod.told("no quota")
    await pod.server.answer()
    await pod.told("no room")
    assert pod.server.asked == ["no quota", "no room"]


async def test_what_was_sent_is_not_sent_again_before_the_watch_shows_it(pod: Told) -> None:
    await pod.told("no room")
    await pod.server.answer()
    await pod.told("no room")
    assert pod.server.asked == ["no room"]


async def test_a_patch_of_which_nobody_knows_what_became_is_not_taken_for_undone(pod: Told) -> None:
    await pod.told("no room")
    await pod.server.answer()
    await pod.told("no quota")
    await pod.server.answer(Unreachable("timed out"))
    await pod.told("no room")
    pod.now += 60
    await pod.writer.flush()
    assert pod.server.asked == ["no room", "no quota", "no room"]


async def test_what_others_wrote_counts_once_the_watch_must_have_shown_ours(pod: Told) -> None:
    await pod.told("no room")
    await pod.server.answer()
    pod.shows("no room")
    pod.now += TRUSTED_SECONDS + 1
    await pod.told("no room")
    pod.shows("preempts others")
    await pod.told("no room")
    assert pod.server.asked == ["no room", "no room"]
