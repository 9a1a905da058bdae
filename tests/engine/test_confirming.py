# SPDX-License-Identifier: Apache-2.0
"""Bindings that were accepted and that the watch does not show: what a GET of the pod says of them decides."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from koordpy.engine.binding.binding_confirmation import Confirmations
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import Unreachable
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.watching.feeds import Feeds
from tests.engine.parts import a_context

KEY = "default/p"


def the_pod(uid: str = "uid-p", node: str = "", version: str = "1") -> Pod:
    wire = {
        "metadata": {"name": "p", "namespace": "default", "uid": uid, "resourceVersion": version},
        "spec": {"schedulerName": "koord-scheduler", "nodeName": node, "containers": [{"name": "c"}]},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(wire, Pod)


class Answering(ApiClient):
    """Says what it is told, and lets something happen meanwhile."""

    def __init__(self, answer: Pod | Unreachable | None, meanwhile: Callable[[ClusterState], None] | None) -> None:
        super().__init__(ClusterAccess("http://127.0.0.1:9"))
        self.answer, self.meanwhile, self.asked = answer, meanwhile, 0

    async def get_or_none(self, path: str, *, type: Any) -> Any:
        self.asked += 1
        assert path.endswith("/namespaces/default/pods/p")
        if self.meanwhile is not None:
            self.meanwhile(self.state)
        if isinstance(self.answer, Unreachable):
            raise self.answer
        return self.answer

    state: ClusterState


class Scene:
    """The pod p, assumed on n1 at second 0; a look at `seconds` each."""

    def __init__(
        self, answer: Pod | Unreachable | None, meanwhile: Callable[[ClusterState], None] | None = None
    ) -> None:
        self.state = make_state(scheduler_names=("koord-scheduler",))
        self.queue = UnitQueue()
        self.client = Answering(answer, meanwhile)
        self.client.state = self.state
        self.now = 0.0
        feeds = Feeds(self.client, self.state, self.queue)
        self.confirmations = Confirmations(a_context(client=self.client, feeds=feeds, clock=lambda: self.now))
        self.state.upsert(the_pod())
        self.state.assume(KEY, "n1")
        self.confirmations.bound(KEY, "uid-p", "n1")

    async def look(self, *seconds: float) -> "Scene":
        for self.now in seconds:
            await self.confirmations.look()
        return self

    @property
    def outcome(self) -> tuple[str, str, list[str]]:
        """(node the pod counts on, node it is only assumed on, units in the queue)."""
        info = self.state.pod(KEY)
        waiting = [entry.unit for entry in self.queue.take(light_pods=9)]
        return (info.node if info is not None else "", self.state.assumed_node(KEY) or "", waiting)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(the_pod(node="n1"), ("n1", "n1", []), id="bound-as-planned-and-the-watch-is-slow"),
        pytest.param(the_pod(node="n2", version="9"), ("n2", "", []), id="bound-elsewhere"),
        pytest.param(the_pod(), ("", "", [KEY]), id="not-bound"),
        pytest.param(the_pod(uid="another", node="n1"), ("", "", []), id="another-pod-of-the-name-is-there"),
        pytest.param(None, ("", "", []), id="not-there"),
        pytest.param(Unreachable("no answer"), ("n1", "n1", []), id="no-answer"),
    ],
)
async def test_what_the_api_server_says_of_the_pod_decides(
    answer: Pod | Unreachable | None, outcome: tuple[str, str, list[str]]
) -> None:
    scene = await Scene(answer).look(30.0)
    assert (scene.client.asked, scene.outcome) == (1, outcome)


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        pytest.param(the_pod(node="n1"), 2, id="the-binding-is-good-for-as-long-again"),
        pytest.param(Unreachable("no answer"), 3, id="without-an-answer-it-is-asked-again-at-the-next-look"),
        pytest.param(the_pod(node="n2", version="9"), 1, id="what-was-settled-is-not-asked-for-again"),
        pytest.param(None, 1, id="what-was-given-up-is-not-asked-for-again"),
    ],
)
async def test_a_pod_is_read_once_it_has_waited_for_long_enough(answer: Pod | Unreachable | None, asked: int) -> None:
    assert (await Scene(answer).look(29.9)).client.asked == 0
    assert (await Scene(answer).look(29.9, 30.0, 59.9, 60.0)).client.asked == asked


def goes(state: ClusterState) -> None:
    state.delete(Pod, KEY)


def is_made_anew(state: ClusterState) -> None:
    state.delete(Pod, KEY)
    state.upsert(the_pod(uid="another"))
    state.assume(KEY, "n3")


def is_confirmed(state: ClusterState) -> None:
    state.upsert(the_pod(node="n1", version="5"))


@pytest.mark.parametrize(
    ("meanwhile", "outcome"),
    [(goes, ("", "", [])), (is_made_anew, ("n3", "n3", [])), (is_confirmed, ("n1", "", []))],
)
async def test_what_the_watch_brings_while_the_pod_is_read_goes_first(
    meanwhile: Callable[[ClusterState], None], outcome: tuple[str, str, list[str]]
) -> None:
    """However old the answer is: it speaks of a pod that is not the one assumed any more."""
    scene = await Scene(the_pod(), meanwhile).look(30.0, 60.0, 90.0)
    assert (scene.client.asked, scene.outcome) == (1, outcome)


async def test_a_pod_that_the_watch_has_shown_before_the_look_is_not_read() -> None:
    scene = Scene(the_pod())
    is_confirmed(scene.state)
    assert (await scene.look(30.0)).client.asked == 0
