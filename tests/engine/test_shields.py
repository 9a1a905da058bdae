# SPDX-License-Identifier: Apache-2.0
"""Who was refused while others were being bound looks again once those may be victims."""

from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.objects import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements
from koordpy.devices.family_registry import make_state
from koordpy.engine.queue_entry import Entry
from koordpy.engine.unschedulable import UnconfirmedHint
from koordpy.pods.pod_info import PodInfo

GPU = "nvidia.com/gpu"


def pod(name: str, *, priority: int = 0, quota: str = "", gpus: int = 1, gang: str = "") -> Pod:
    labels = {keys.QUOTA_NAME: quota} if quota else {}
    labels |= {keys.LABEL_POD_GROUP: gang} if gang else {}
    requests = {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", labels=labels),
        spec=PodSpec(
            scheduler_name=keys.DEFAULT_SCHEDULER_NAME,
            priority=priority,
            containers=[Container(name="main", resources=ResourceRequirements(requests=requests))],
        ),
    )


class Cluster:
    """What the shields see of the cluster, and whom they wake."""

    def __init__(self, *pods: Pod, quotas: bool = False) -> None:
        self.state = make_state()
        for one in pods:
            self.state.upsert(one)
        self.woken: list[str] = []
        self.entries: dict[str, Entry] = {}
        self.shields = UnconfirmedHint(self.state, self, owners_matter=lambda: quotas)  # type: ignore[arg-type]

    def touch(self, unit: str, event: str) -> None:
        self.woken.append(unit)

    def info(self, name: str) -> PodInfo:
        info = self.state.pod(f"default/{name}")
        assert info is not None
        return info

    def plan(self) -> None:
        self.assumed = self.shields.snapshot_taken()

    def refuse(self, name: str) -> None:
        entry = Entry(name)
        entry.pods[f"default/{name}"] = None  # type: ignore[assignment]
        self.shields.refused([entry], self.assumed)

    def assume(self, name: str) -> None:
        self.state.assume(f"default/{name}", "n1")

    def confirm(self, name: str) -> None:
        self.state.forget(f"default/{name}")
        self.shields.confirmed(self.info(name))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool, bool]] = {
    "who is more important": ({"priority": 5}, {"priority": 1}, False, True),
    "who is as important": ({"priority": 5}, {"priority": 5}, False, False),
    "an owner whose accelerators are borrowed": ({"quota": "a"}, {"quota": "b"}, True, True),
    "one of the same quota": ({"quota": "a"}, {"quota": "a"}, True, False),
    "an owner where nobody takes back": ({"quota": "a"}, {"quota": "b"}, False, False),
    "an owner of accelerators, from a pod without": ({"quota": "a"}, {"quota": "b", "gpus": 0}, True, False),
    "an owner of none": ({"quota": "a", "gpus": 0}, {"quota": "b"}, True, False),
}


@pytest.mark.parametrize(("waits", "runs", "quotas", "woken"), CASES.values(), ids=CASES)
def test_a_pod_that_is_confirmed_wakes(waits: Any, runs: Any, quotas: bool, woken: bool) -> None:
    cluster = Cluster(pod("waits", **waits), pod("runs", **runs), quotas=quotas)
    cluster.assume("runs")
    cluster.plan()
    cluster.refuse("waits")
    assert cluster.woken == []
    cluster.confirm("runs")
    assert cluster.woken == (["waits"] if woken else [])


def test_a_pod_that_was_confirmed_while_the_round_was_planned_wakes_at_once() -> None:
    cluster = Cluster(pod("waits", priority=5), pod("runs"))
    cluster.assume("runs")
    cluster.plan()
    cluster.confirm("runs")
    cluster.refuse("waits")
    assert cluster.woken == ["waits"]


def test_a_pod_that_is_planned_after_the_refusal_wakes_too() -> None:
    cluster = Cluster(pod("waits", quota="a"), pod("runs", quota="b"), quotas=True)
    cluster.plan()
    cluster.refuse("waits")
    cluster.assume("runs")
    cluster.confirm("runs")
    assert cluster.woken == ["waits"]
    cluster.shields.confirmed(cluster.info("runs"))
    assert cluster.woken == ["waits"], "once"


@pytest.mark.parametrize(("theirs", "woken"), [("g", ["waits"]), ("h", [])])
def test_a_member_that_is_confirmed_wakes_whoever_may_take_what_its_gang_can_spare_then(
    theirs: str, woken: list[str]
) -> None:
    cluster = Cluster(
        pod("waits", priority=5), pod("runs", priority=5, gang="g"), pod("spare", priority=1, gang=theirs)
    )
    cluster.assume("runs")
    cluster.plan()
    cluster.refuse("waits")
    cluster.confirm("runs")
    assert cluster.woken == woken
