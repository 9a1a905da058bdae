# SPDX-License-Identifier: Apache-2.0
"""Devices that a plan has chosen for a moved pod stay reserved until its successor is bound (dra.md 10)."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from koordpy.api.objects import OwnerReference, Pod
from koordpy.cache.reservations import ReturningPod
from koordpy.planner.planning_round import plan_round
from koordpy.pods.claim_refs import CLAIMS, DeviceId, Granted
from tests.planning.node_rules import node, states
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, offers, resource_claim, user
from tests.scenarios.cluster import bound

OWNER = [OwnerReference(api_version="batch/v1", kind="Job", name="j", uid="uid-j", controller=True)]


def of_job(made: Pod) -> Pod:
    return changed(made, metadata=changed(made.metadata, owner_references=OWNER))


@pytest.mark.parametrize(
    ("priority", "successor", "kept", "wanted"),
    [
        pytest.param(0, False, True, {}, id="a pod of the same priority"),
        pytest.param(1, False, True, {"q": "n1"}, id="a pod of higher priority"),
        pytest.param(0, True, True, {"a2": "n1"}, id="the successor, and a pod of the same priority"),
        pytest.param(0, False, False, {"q": "n1"}, id="a moved pod without devices"),
    ],
)
@pytest.mark.parametrize("place", ["n1", ""], ids=["of the node", "of all nodes"])
def test_devices_of_a_moved_pod_are_reserved(
    priority: int, successor: bool, kept: bool, wanted: dict[str, str], place: str
) -> None:
    """a moves to n1, where g0 is the only free device."""
    slices = offers("n1", "g0")
    if not place:
        slices = changed(slices, spec=changed(slices.spec, node_name="", all_nodes=True))
    moved = of_job(user("a", "ca", at="n2", cpu="1", priority=0))
    objects: list[Any] = [CLASS, node("n1:8"), slices, resource_claim("ca", asks()), moved]
    snapshot = states(objects).snapshot(0.0)
    grant = (Granted("r", DeviceId(DRIVER, "n1", "g0")),)
    devices = {CLAIMS: {"default/ca": grant}} if kept else {}
    returning = ReturningPod("uid-a", snapshot.pods["default/a"], "n1", 0.0, 60.0, devices)
    objects = [CLASS, node("n1:8"), slices, resource_claim("cb", asks()), user("q", "cb", priority=priority, created=1)]
    if successor:
        objects += [resource_claim("ca2", asks()), of_job(user("a2", "ca2", priority=0, created=9))]
    plan = plan_round(replace(states(objects).snapshot(0.0), returning=(returning,)))
    assert bound(plan) == wanted
    for one in plan.placements:
        assert [given.device.device for own in one.devices[CLAIMS].values() for given in own] == ["g0"]
