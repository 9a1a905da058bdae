"""When a pending pod is told why it waits, on a clock that the test moves."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import convert

from koordpy.api.objects import Pod
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.state import ClusterState
from koordpy.engine.settings import EngineSettings
from koordpy.engine.status.pods import PodStatusWriter
from koordpy.planning.plan import PendingPod, Reason

MOMENT = EngineSettings().gated_hold_seconds


@dataclass
class Waiting:
    """A pod of a gang, and when its verdicts are due; nothing is sent."""

    now: float = 100.0
    writer: PodStatusWriter = field(init=False)
    info: PodInfo = field(init=False)

    def __post_init__(self) -> None:
        writing: Any = SimpleNamespace(clock=lambda: self.now, settings=EngineSettings())
        self.writer, state = PodStatusWriter(writing), ClusterState()
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
        verdict = PendingPod("default/a", "u", None, Reason.UNSCHEDULABLE, message, gated=gated)
        self.writer.tell(verdict, self.info)

    def is_due(self) -> bool:
        """Whether the verdict would be sent now."""
        self.writer.release_due()
        return self.writer.lined_up > 0


def test_a_gang_that_does_not_grow_is_told_after_a_moment() -> None:
    pod = Waiting()
    for _ in range(4):
        pod.told("1 of 9")
        assert not pod.is_due()
        pod.now += MOMENT / 5
    pod.now += MOMENT / 4
    assert pod.is_due()


def test_a_gang_that_grows_is_told_a_moment_after_its_last_member() -> None:
    pod = Waiting()
    for count in range(1, 5):
        pod.told(f"{count} of 9")
        pod.now += MOMENT * 0.9
        assert not pod.is_due()
    pod.now += MOMENT * 0.2
    assert pod.is_due()


def test_a_gang_that_grows_for_ever_is_told_all_the_same() -> None:
    pod, count = Waiting(), 0
    while not pod.is_due():
        count += 1
        pod.told(f"{count} of 9000")
        pod.now += MOMENT / 2
    assert pod.now - 100.0 == pytest.approx(5 * MOMENT)


def test_what_is_not_a_matter_of_members_is_told_at_once() -> None:
    pod = Waiting()
    pod.told("1 of 2")
    assert not pod.is_due()
    pod.told("0/1 nodes are available", gated=False)
    assert pod.is_due()
