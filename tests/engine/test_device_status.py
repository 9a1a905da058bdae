# SPDX-License-Identifier: Apache-2.0
"""What Devices are told: faults of their matrices, and who holds their GPUs."""

import json
from typing import Any

import pytest
from msgspec import convert

from koordpy.api import keys
from koordpy.api.custom_objects import Device
from koordpy.engine.status.device_status import ASYMMETRIC, MALFORMED, device_conditions
from koordpy.engine.wakeups import Wake, of_device
from tests.engine.live import Live, live, small, until

DEVICES = "devices.scheduling.koordinator.sh"
GOOD = [[0, 50, 50, 50], [50, 0, 50, 50], [50, 50, 0, 50], [50, 50, 50, 0]]
SKEWED = [[0, 50, 50, 50], [10, 0, 50, 50], [50, 50, 0, 50], [50, 50, 50, 0]]


def device(matrix: Any, name: str = "n1") -> dict[str, Any]:
    text = matrix if isinstance(matrix, str) else json.dumps(matrix)
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {
            "topologies": {"gpu": [{"name": "bandwidth", "topology": text}]},
            "devices": [{"type": "gpu", "minor": i, "id": f"GPU-{name}-{i}", "health": True} for i in range(4)],
        },
    }


def put(cluster: Live, manifest: dict[str, Any]) -> None:
    """What an agent does: the spec changes, the status stays as it is unless it is given."""
    store = cluster.server.store
    resource = store.resource(DEVICES)
    there = store.get(DEVICES, manifest["metadata"]["name"])
    store.replace(resource, ("", there["metadata"]["name"]), {**there, **manifest, "metadata": there["metadata"]})


def conditions(cluster: Live, name: str = "n1") -> dict[str, tuple[str, str]]:
    status = cluster.server.store.get(DEVICES, name).get("status", {})
    return {c["type"]: (c["status"], c.get("message", "")) for c in status.get("conditions", [])}


def holders(cluster: Live, name: str = "n1") -> dict[str, list[int]]:
    status = cluster.server.store.get(DEVICES, name).get("status", {})
    return {e["name"]: e["minors"] for one in status.get("allocations", []) for e in one["entries"]}


async def test_a_matrix_that_cannot_be_read_is_said_and_so_is_that_it_can_be_read_again() -> None:
    async with live([small("n1")]) as cluster:
        agents = [{"type": "Ready", "status": "True", "reason": "Reported", "message": "4 GPUs healthy"}]
        cluster.server.store.create(DEVICES, device("[[0, 1]"))
        put(cluster, {**device("[[0, 1]"), "status": {"conditions": agents}})
        async with cluster.running():
            await until(lambda: MALFORMED in conditions(cluster))
            status, message = conditions(cluster)[MALFORMED]
            assert status == "True"
            assert "spec.topologies.gpu[0].topology: the bandwidth matrix is not valid JSON" in message
            assert set(conditions(cluster)) == {"Ready", MALFORMED}
            put(cluster, device(GOOD))
            await until(lambda: conditions(cluster)[MALFORMED] == ("False", ""))
            assert conditions(cluster)["Ready"] == ("True", "4 GPUs healthy")


async def test_a_link_that_is_slow_in_one_direction_is_said() -> None:
    async with live([small("n1")]) as cluster:
        cluster.server.store.create(DEVICES, device(SKEWED))
        async with cluster.running():
            await until(lambda: ASYMMETRIC in conditions(cluster))
            status, message = conditions(cluster)[ASYMMETRIC]
            assert (status, "1 to 0" in message) == ("True", True)
            assert MALFORMED not in conditions(cluster)


async def test_a_device_without_faults_and_holders_is_not_written() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        cluster.server.store.create(DEVICES, device(GOOD))
        cluster.server.store.create(DEVICES, device(SKEWED, "n2"))
        async with cluster.running() as scheduler:
            await until(lambda: ASYMMETRIC in conditions(cluster, "n2"))
            assert conditions(cluster) == {}
            writer = scheduler.writers.devices if scheduler.writers is not None else None
            assert writer is not None
            await until(lambda: writer.sent)  # the reply comes after what was written
            assert writer.sent == 1


async def test_holders_are_listed_as_long_as_they_hold() -> None:
    async with live([small("n1")]) as cluster:
        cluster.server.store.create(DEVICES, device(GOOD))
        async with cluster.running():
            cluster.pod("a", gpus=2)
            await until(lambda: holders(cluster) == {"a": [0, 1]})
            cluster.pod("b", gpus=1)
            await until(lambda: holders(cluster) == {"a": [0, 1], "b": [2]})
            cluster.delete("a")
            await until(lambda: holders(cluster) == {"b": [2]})
            cluster.delete("b")
            await until(lambda: holders(cluster) == {})


def read(*, faults: list[tuple[str, str]], there: list[dict[str, str]]) -> dict[str, tuple[str, str]]:
    of = convert({"status": {"conditions": there}}, Device)
    return {c.type: (c.status, c.reason) for c in device_conditions(of, faults)}


@pytest.mark.parametrize(
    ("faults", "there", "said"),
    [
        ([], [], {}),
        ([(ASYMMETRIC, "x")], [], {ASYMMETRIC: ("True", "DirectionsDiffer")}),
        ([("", "a table that cannot be read")], [], {}),
        (
            [],
            [{"type": MALFORMED, "status": "True", "reason": "MatrixUnreadable"}],
            {MALFORMED: ("False", "MatrixReadable")},
        ),
        ([], [{"type": MALFORMED, "status": "True", "reason": "MeasurementUnreadable"}], {}),
        (
            [(MALFORMED, "x")],
            [{"type": MALFORMED, "status": "False", "reason": "Readable"}],
            {MALFORMED: ("True", "MatrixUnreadable")},
        ),
    ],
)
def test_conditions_of_others_stay_theirs(faults: Any, there: Any, said: Any) -> None:
    assert read(faults=faults, there=there) == said


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False),
        ({"metadata": {"annotations": {keys.GPU_PARTITIONS: "{}"}}}, True),
        ({"metadata": {"labels": {keys.GPU_DELIVERY: "env"}}}, True),
        ({"spec": {"devices": []}}, True),
    ],
)
def test_a_status_wakes_nobody(change: dict[str, Any], wakes: bool) -> None:
    before = convert(device(GOOD), Device)
    after = convert({**device(GOOD), **change}, Device)
    assert of_device(before, after) == (Wake.DEVICE if wakes else Wake.NOTHING)
