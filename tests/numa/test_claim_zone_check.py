# SPDX-License-Identifier: Apache-2.0
"""The independent check refuses a plan with devices of claims outside the zones that a pod demands (numa.md 7)."""

from collections.abc import Sequence

import pytest

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.numa.admission import Policy, ZoneAdmission
from koordpy.devices.numa.numa_nodes import ZoneTake
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.claim_refs import CLAIMS, DeviceId, Granted
from koordpy.verify.device_check import DeviceCheck
from koordpy.verify.plan_check import check_claims
from tests.numa.test_allocated_claims_in_zones import CLASS, Zone, cluster, offered, report, worker
from tests.planning.node_rules import node, states
from tests.planning.test_filter_dra import DRIVER, asks, resource_claim


def outside(device: str, zones: list[int]) -> str:
    return f"device {device} is outside the zones {zones} of the pod"


@pytest.mark.parametrize(
    ("zones", "sets", "demand", "faults"),
    [
        # zones of f's device d0 and of c's device d1; zone sets of the pod's requests, as masks
        ((0, 0), (1,), True, []),
        ((1, 0), (1,), True, [outside("d0", [0])]),
        ((0, 1), (1,), True, [outside("d1", [0])]),
        ((1, 1), (1,), True, [outside("d0", [0]), outside("d1", [0])]),
        ((1, 1), (2,), True, []),
        ((0, 1), (1, 2), True, []),
        (((0, 1), None), (1,), True, []),
        (((1, 2), 0), (1,), True, [outside("d0", [0])]),
        ((1, 1), (1,), False, []),
        ((0, 1), (), True, ["devices d0 and d1 have no zone in common"]),
        ((0, 1), None, True, ["devices d0 and d1 have no zone in common"]),
        (((0, 1), 1), (), True, []),
        ((None, 1), None, True, []),
        ((0, 1), None, False, []),
    ],
)
def test_devices_of_allocated_and_of_new_claims(
    zones: Sequence[Zone], sets: tuple[int, ...] | None, demand: bool, faults: list[str]
) -> None:
    """sets: None for a plan without zones, as on a node without NUMA data."""
    pending = worker("p", 2, "f", "c", demand=demand)
    snapshot = states([*cluster(zones, (0, 0)), resource_claim("c", asks()), pending]).snapshot(0.0)
    draft = Draft(snapshot)
    RoundState(draft, KoordpyConfiguration())
    grant = (Granted("r", DeviceId(DRIVER, "n1", "d1")),)
    take = ZoneTake((0, 1), ZoneAdmission({}, sets), Policy.SINGLE) if sets is not None else None
    own = {CLAIMS: {"default/c": grant}, **({"numa": take} if take is not None else {})}
    draft.assign(snapshot.pods["default/p"], snapshot.index["n1"], devices=own)
    found = check_claims([snapshot.pods["default/p"]], draft)
    assert found == [f"default/p on n1: {text}" for text in faults]


def test_devices_for_extended_resources() -> None:
    """The claim is made for the pod, and has no object yet."""
    objects = [node("n1:64"), report("n1", (0, 0)), CLASS, offered("n1", (0, 1))]
    snapshot = states([*objects, worker("p", 2)]).snapshot(0.0)
    draft = Draft(snapshot)
    RoundState(draft, KoordpyConfiguration())
    key = "default/p/extended-resources"
    grant = (Granted("container-0-request-0", DeviceId(DRIVER, "n1", "d1")),)
    take = ZoneTake((0, 1), ZoneAdmission({}, (1,)), Policy.SINGLE)
    pod = snapshot.pods["default/p"]
    draft.assign(pod, snapshot.index["n1"], devices={CLAIMS: {key: grant}, "numa": take})
    assert outside("d1", [0]) in DeviceCheck(draft).faults(pod, snapshot.nodes[0])
