# SPDX-License-Identifier: Apache-2.0
"""Devices that claims still allocate to deleted pods: live, units wait for them, and no pod is evicted instead (dra.md
10, preemption.md 4)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.api.objects import Pod
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.planning.node_rules import leaving, node, pod
from tests.planning.test_filter_dra import CLASS, asks, held, offers, resource_claim, user
from tests.scenarios.cluster import bound, group

WAITS = "waiting for devices of deleted or finished pods on n1."
GONE = ClaimConsumer(resource="pods", name="gone", uid="uid-gone")
VICTIM = ClaimConsumer(resource="pods", name="v", uid="uid-v")
GROUP = ClaimConsumer(api_group="scheduling.k8s.io", resource="podgroups", name="gone", uid="uid-gone")


def plan_of(*objects: Any, live: bool = True) -> RoundPlan:
    state = make_state(live=live)
    for one in objects:
        state.upsert(one)
    return plan_round(state.snapshot(0.0))


def allocated(name: str, device: str, *consumers: ClaimConsumer, at: str = "n1") -> Any:
    return resource_claim(name, asks(), allocation=held(device, at=at), reserved_for=list(consumers))


def finished_member(name: str) -> Pod:
    """A pod of a gang, so that it is in the cache."""
    made = user(name, f"of-{name}", at="n3", gang="g", phase="Succeeded")
    return replace(made, metadata=replace(made.metadata, uid=f"uid-{name}"))


def holder(name: str = "v", at: str = "n2") -> Pod:
    made = user(name, f"of-{name}", at=at)
    return replace(made, metadata=replace(made.metadata, uid=f"uid-{name}"))


SCENES: dict[str, tuple[list[ClaimConsumer], bool, list[str], str]] = {
    "of a deleted pod": ([GONE], True, [], WAITS),
    "of a deleted pod, offline": ([GONE], False, ["default/v"], ""),
    "of a deleted and a terminating pod": ([GONE, replace(GONE, name="l", uid="uid-l")], True, [], "waiting for"),
    "of a finished pod of a gang": ([replace(GONE, name="f", uid="uid-f")], True, [], WAITS),
    "of a deleted and a running pod": ([GONE, VICTIM], True, ["default/v"], ""),
    "of a deleted PodGroup": ([GROUP], True, ["default/v"], ""),
    "of no consumer": ([], True, ["default/v"], ""),
}


@pytest.mark.parametrize(("consumers", "live", "victims", "words"), SCENES.values(), ids=SCENES)
def test_a_pod_waits_for_devices_of_deleted_pods_and_evicts_none(
    consumers: list[ClaimConsumer], live: bool, victims: list[str], words: str
) -> None:
    last = leaving(holder("l", at="n3"))
    plan = plan_of(
        *[node(f"{name}:4") for name in ("n1", "n2", "n3")],
        *[CLASS, offers("n1", "d0"), offers("n2", "d0")],
        allocated("c0", "d0", *consumers),
        *[allocated("of-v", "d0", VICTIM, at="n2"), holder()],
        *([last, resource_claim("of-l", asks())] if any(one.name == "l" for one in consumers) else []),
        *([finished_member("f")] if any(one.name == "f" for one in consumers) else []),
        *[resource_claim("c1", asks()), user("p", "c1", priority=5)],
        live=live,
    )
    assert [one.pod_key for one in plan.evictions] == victims
    assert victims or words in plan.pending[0].message
    assert [(one.pod_key, one.node) for one in (*plan.nominations, *plan.awaiting_nominations)] == [
        ("default/p", "n2" if victims else "n1")
    ]


def test_a_pod_that_does_not_fit_with_the_freed_devices_evicts() -> None:
    plan = plan_of(
        *[node("n1:1"), node("n2:4"), CLASS, offers("n1", "d0"), offers("n2", "d0")],
        *[allocated("c0", "d0", GONE), allocated("of-v", "d0", VICTIM, at="n2"), holder()],
        *[resource_claim("c1", asks()), user("p", "c1", priority=5, cpu="2")],
    )
    assert [one.pod_key for one in plan.evictions] == ["default/v"]


@pytest.mark.parametrize(("consumer", "placed"), [(GONE, {}), (GROUP, {"g-1": "n1"})])
def test_a_member_does_not_take_the_room_of_a_nominated_one_that_waits_for_devices(
    consumer: ClaimConsumer, placed: dict[str, str]
) -> None:
    first = user("g-0", "c1", gang="g", cpu="2", priority=5)
    first = replace(first, status=replace(first.status, nominated_node_name="n1"))
    second = pod("g-1", gang="g", cpu="2", priority=5)
    objects = [node("n1:3"), CLASS, offers("n1", "d0"), resource_claim("c1", asks()), group("g", 1), first, second]
    assert bound(plan_of(*objects, allocated("c0", "d0", consumer))) == placed
