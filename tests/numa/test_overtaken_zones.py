# SPDX-License-Identifier: Apache-2.0
"""Zones that a plan takes and that another pod has by the time the plan is carried out (numa.md 9)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordpy.api import keys
from koordpy.api.custom_objects import NodeResourceTopology
from koordpy.api.objects import Node, Pod, Wire
from koordpy.engine.staleness import find_stale_reason, group_by
from tests.numa.test_zone_placements import container, in_zone, node, pod, report
from tests.scenarios.cluster import World

KINDS: dict[str, type[Wire]] = {"Node": Node, "NodeResourceTopology": NodeResourceTopology, "Pod": Pod}
NIC = "example.com/nic"


def made(manifest: dict[str, Any]) -> Any:
    meta = {"namespace": "default", "uid": manifest["metadata"]["name"], **manifest["metadata"]}
    return msgspec.convert({**manifest, "metadata": meta}, KINDS[manifest["kind"]])


def zones(policy: str, *free: int) -> dict[str, Any]:
    return report("n1", policy, "pod", [{NIC: ("4", "4", str(one))} for one in free])


def nics(name: str, number: int, on: str = "", zone: int | None = None) -> dict[str, Any]:
    record = in_zone(zone, number)[keys.RESOURCE_STATUS].replace("nvidia.com/gpu", NIC) if zone is not None else ""
    notes = {keys.RESOURCE_STATUS: record} if record else {}
    return pod(name, container(**{NIC.replace("/", "_"): str(number)}), on=on, annotations=notes)


@pytest.mark.parametrize(
    ("policy", "later", "why"),
    [
        ("single-numa-node", [], ""),
        ("single-numa-node", [nics("x", 1, "n1", zone=0)], ""),
        ("single-numa-node", [nics("x", 2, "n1", zone=0)], "numa"),
        ("single-numa-node", [nics("x", 4, "n1", zone=1)], ""),
        # without a record it gets the first zone that has them
        ("single-numa-node", [nics("x", 2, "n1")], "numa"),
        # amounts in use of which no pod is known are those of a pod that has left
        ("single-numa-node", [zones("single-numa-node", 1, 4)], ""),
        # a report that shows where another pod is
        ("single-numa-node", [nics("x", 2, "n1"), zones("single-numa-node", 2, 4)], "numa"),
        ("single-numa-node", [nics("x", 2, "n1"), zones("single-numa-node", 3, 3)], ""),
        ("single-numa-node", [zones("restricted", 4, 4)], "numa"),
        # no pod is rejected
        ("best-effort", [nics("x", 2, "n1", zone=0)], ""),
    ],
)
def test_a_plan_is_checked_again_for_its_zones(policy: str, later: list[dict[str, Any]], why: str) -> None:
    """The plan takes 3 of 4 devices of zone 0."""
    world = World().add(made(node("n1", **{NIC.replace("/", "_"): "8"})), made(zones(policy, 4, 4)), made(nics("p", 3)))
    snapshot = world.snapshot()
    plan = world.plan()
    assert [one.devices["numa"].by_zone for one in plan.placements] == [{NIC: {0: 3}}]
    for one in later:
        world.state.upsert(made(one))
    pods = [world.state.pod(f"default/{one['metadata']['name']}") for one in later if one["kind"] == "Pod"]
    foreign = group_by([one for one in pods if one is not None], lambda one: one.node)
    assert find_stale_reason(world.state, snapshot, plan.placements, foreign) == why


def test_the_pods_of_the_plan_itself_take_nothing_from_it() -> None:
    world = World().add(made(node("n1", **{NIC.replace("/", "_"): "8"})), made(zones("single-numa-node", 4, 4)))
    world.add(made(nics("p", 3)), made(nics("q", 1)))
    snapshot = world.snapshot()
    plan = world.plan()
    first, second = plan.placements
    world.state.bind(first.pod_key, first.node, dict(first.annotations))
    world.state.upsert(made(nics("x", 1, "n1", zone=1)))
    other = world.state.pod("default/x")
    assert other is not None
    assert find_stale_reason(world.state, snapshot, [second], {"n1": [other]}) == ""
