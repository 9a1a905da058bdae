# SPDX-License-Identifier: Apache-2.0
"""Which errors take a GPU out of use, and when it comes back."""

import pytest

from koordpy.agent.gpu_facts import MachineGpu, XidEvent
from koordpy.agent.gpu_health import HealthBook

GPUS = [MachineGpu(index=i, minor=i, uuid=f"GPU-{i}") for i in range(3)]


def book(**options: int) -> HealthBook:
    found = HealthBook(**options)
    found.poll(GPUS, ())
    return found


def sick(found: HealthBook) -> list[str]:
    return [gpu.key for gpu in found.gpus if found.why_sick(gpu.key)]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_a_fault_of_the_program_is_none_of_the_gpu(xid: int) -> None:
    found = book()
    found.poll(GPUS, [XidEvent("GPU-1", xid)])
    assert sick(found) == []


def test_a_critical_error_takes_one_gpu_out_until_three_clean_polls() -> None:
    found = book()
    found.poll(GPUS, [XidEvent("GPU-1", 48)])
    for _ in range(2):
        assert sick(found) == ["GPU-1"]
        found.poll(GPUS, ())
    assert found.why_sick("GPU-1") == "Xid 48"
    found.poll(GPUS, ())
    assert sick(found) == []


def test_an_error_in_between_starts_the_count_anew() -> None:
    found = book(recover_after=2)
    for events in ([XidEvent("GPU-1", 48)], [], [XidEvent("GPU-1", 48)], []):
        found.poll(GPUS, events)
    assert sick(found) == ["GPU-1"]
    found.poll(GPUS, ())
    assert sick(found) == []


def test_a_gpu_that_fell_off_the_bus_stays_out() -> None:
    found = book()
    found.poll(GPUS, [XidEvent("GPU-1", 79)])
    for _ in range(10):
        found.poll(GPUS, ())
    assert sick(found) == ["GPU-1"]


def test_nvlink_errors_degrade_the_links_and_leave_the_gpu_in_use() -> None:
    found = book(recover_after=1)
    found.poll(GPUS, [XidEvent("GPU-2", 74)])
    assert (sick(found), found.without_nvlink) == ([], frozenset({"GPU-2"}))
    found.poll(GPUS, ())
    assert found.without_nvlink == frozenset()


@pytest.mark.parametrize("uuid", ["", "GPU-elsewhere"])
def test_an_event_of_an_unknown_gpu_takes_all_out(uuid: str) -> None:
    found = book()
    found.poll(GPUS, [XidEvent(uuid, 48)])
    assert sick(found) == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_wait_that_fails_takes_all_out_until_clean_polls() -> None:
    found = book(recover_after=1)
    found.poll(GPUS, None)
    assert sick(found) == ["GPU-0", "GPU-1", "GPU-2"]
    found.poll(GPUS, ())
    assert sick(found) == []


def test_a_vanished_gpu_stays_in_the_list_and_out_of_use() -> None:
    found = book(recover_after=1)
    for _ in range(5):
        found.poll(GPUS[:2], ())
    assert sick(found) == ["GPU-2"]
    assert [gpu.key for gpu in found.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [gpu.key for gpu in found.present] == ["GPU-0", "GPU-1"]


def test_gpus_of_an_earlier_process_that_are_not_there_count_as_vanished() -> None:
    found = HealthBook()
    found.remember([GPUS[2]])
    found.poll(GPUS[:2], ())
    assert sick(found) == ["GPU-2"]
    found.poll(GPUS, ())
    assert sick(found) == []
