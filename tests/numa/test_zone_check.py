# SPDX-License-Identifier: Apache-2.0
"""The independent check of zones refuses a plan with wrong zones, and with GPUs outside its zones (numa.md 3 and 6)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import allocate, faults_of_devices
from koordpy.devices.numa.numa_nodes import ZoneTake
from koordpy.feasibility.round_state import RoundState
from tests.planning.gpu.machines import M, device
from tests.scenarios.cluster import World
from tests.scenarios.gpus import GPU, gpu_node, gpu_pod

Notes = dict[str, str]
Change = Callable[[ZoneTake, Notes], ZoneTake]


def changed(take: ZoneTake, **fields: Any) -> ZoneTake:
    return take._replace(admission=take.admission._replace(**fields))


def in_zone_1(take: ZoneTake, notes: Notes) -> ZoneTake:
    return changed(take, taken={GPU: (0, 3)}, sets=(2,))


def in_both(take: ZoneTake, notes: Notes) -> ZoneTake:
    return changed(take, taken={GPU: (2, 1)}, sets=(3,))


def too_few(take: ZoneTake, notes: Notes) -> ZoneTake:
    return changed(take, taken={GPU: (2, 0)})


def without_sets(take: ZoneTake, notes: Notes) -> ZoneTake:
    return changed(take, sets=())


def other_gpus(take: ZoneTake, notes: Notes) -> ZoneTake:
    notes[keys.DEVICE_ALLOCATED] = json.dumps({"gpu": [{"minor": minor} for minor in (0, 1, 7)]})
    return take


def other_record(take: ZoneTake, notes: Notes) -> ZoneTake:
    notes[keys.RESOURCE_STATUS] = notes[keys.RESOURCE_STATUS].replace('"3"', '"2"')
    return take


def unchanged(take: ZoneTake, notes: Notes) -> ZoneTake:
    return take


RECORD = f"annotation {keys.RESOURCE_STATUS} does not record its zones"


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (unchanged, []),
        (too_few, [f"its zones have {{'{GPU}': 2}} of {{'{GPU}': 3}}", RECORD]),
        (without_sets, ["has 1 aligned requests and 0 zone sets"]),
        (in_both, ["needs 2 zones, the policy allows one", f"{GPU} prefers another number of zones than 2", RECORD]),
        (other_record, [RECORD]),
        (other_gpus, ["GPUs 7 are outside its zones [0]"]),
        (
            in_zone_1,
            [
                f"zone 1 lacks {GPU}: 3 of 2",
                f"zones [1] have too little {GPU}",
                RECORD,
                "GPUs 0, 2, 3 are outside its zones [1]",
            ],
        ),
    ],
)
def test_a_plan_is_refused_for_its_zones(change: Change, faults: list[str]) -> None:
    """A machine with GPUs 0 to 3 in zone 0 and 4 to 7 in zone 1, of which a pod uses two."""
    labels = {keys.NUMA_POLICY: "SingleNUMANode"}
    machine = device(M, name="n1", places=[{"node_id": i // 4} for i in range(8)])
    world = World().add(gpu_node("n1", labels), machine, gpu_pod("x", 2, held=(4, 5), at="n1"), gpu_pod("p", 3))
    now = RoundState(Draft(world.snapshot()), KoordpyConfiguration())
    pod = now.snapshot.pods["default/p"]
    found = allocate({pod.key: 0}, now)
    assert not found.faults
    notes = dict(found.notes[pod.key])
    given = {**found.devices[pod.key], "numa": change(found.devices[pod.key]["numa"], notes)}
    wanted = [("numa", f"{pod.key}: {text}") for text in faults]
    assert [*faults_of_devices([(pod, 0)], {pod.key: given}, {pod.key: notes}, now)] == wanted
