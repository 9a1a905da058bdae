# SPDX-License-Identifier: Apache-2.0
"""The calls of NVML: the real bindings' constants and errors over a machine of our own."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from koordpy.agent.backends.nvml import NvmlLibrary
from koordpy.agent.gpu_facts import P2P, BackendError, Fabric, XidEvent
from koordpy.agent.link_matrix import link_matrix


class Driver:
    """Answers as the library does, for GPUs numbered from 0; what is not set is not supported."""

    def __init__(self, gpus: int) -> None:
        self.count = gpus
        self.links: dict[tuple[int, int], tuple[int, str]] = {}
        """(gpu, link) -> (type of the other end, its bus)."""
        self.inactive: set[tuple[int, int]] = set()
        self.ancestors: dict[frozenset[int], int] = {}
        self.status: dict[int, int] = {}
        self.lost: set[int] = set()
        self.events: deque[tuple[int, int] | Exception] = deque()
        self.registered: list[int] = []
        self.indexes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        return self._unsupported if name.startswith("nvml") and callable(real) else real

    def _unsupported(self, *args: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return self.count - 1 - handle

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        if handle < 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0".encode())

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        if frozenset((a, b)) not in self.ancestors:
            return int(self._unsupported())
        return self.ancestors[frozenset((a, b))]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if (handle, link) not in self.links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int((handle, link) not in self.inactive)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return self.links[handle, link][0]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=self.links[handle, link][1])

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        self.indexes.append(index)
        assert isinstance(index, int)
        return self.status.get(index, pynvml.NVML_P2P_STATUS_OK)

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, events: Any) -> None:
        self.registered.clear()

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: Any) -> None:
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> Any:
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        event = self.events.popleft()
        if isinstance(event, Exception):
            raise event
        return SimpleNamespace(device=event[0], eventData=event[1])


GPU, SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def library(driver: Driver, boot: Path | None = None) -> NvmlLibrary:
    return NvmlLibrary(driver, boot_id=boot or Path("/nowhere"))


def test_index_minor_and_uuid_are_kept_apart() -> None:
    gpus = library(Driver(2)).gpus()
    assert [(gpu.index, gpu.minor, gpu.uuid) for gpu in gpus] == [(0, 1, "GPU-0"), (1, 0, "GPU-1")]
    assert gpus[0].bus == "0000:01:00.0"
    assert gpus[0].memory_bytes == 80 << 30


def test_links_are_followed_to_the_gpu_at_their_end_or_to_the_fabric() -> None:
    driver = Driver(2)
    driver.links = {(0, 0): (GPU, "00000000:02:00.0"), (0, 1): (SWITCH, ""), (0, 2): (GPU, "00000000:77:00.0")}
    driver.links[0, 3] = (GPU, "00000000:02:00.0")
    driver.inactive = {(0, 3)}
    backend = library(driver)
    first, second = backend.gpus()
    assert list(backend.nvlinks(first)) == ["GPU-1", Fabric.SWITCH, Fabric.UNKNOWN]
    assert list(backend.nvlinks(second)) == []


def test_more_links_than_today_s_machines_have_are_counted() -> None:
    driver = Driver(2)
    driver.links = {(gpu, link): (SWITCH, "") for gpu in range(2) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)}
    backend = library(driver)
    gpus = backend.gpus()
    most = pynvml.NVML_NVLINK_MAX_LINKS
    assert link_matrix(backend, gpus).classes[0][1] == f"NV{most}"


def test_nvlink_does_not_count_where_the_driver_denies_it() -> None:
    driver = Driver(2)
    driver.links = {(0, 0): (SWITCH, ""), (1, 0): (SWITCH, "")}
    driver.ancestors = {frozenset((0, 1)): pynvml.NVML_TOPOLOGY_NODE}
    driver.status = {pynvml.NVML_P2P_CAPS_INDEX_NVLINK: pynvml.NVML_P2P_STATUS_NOT_SUPPORTED}
    backend = library(driver)
    assert link_matrix(backend, backend.gpus()).classes[0][1] == "NODE"


@pytest.mark.parametrize(("level", "expected"), [("SINGLE", "HOSTPIX"), ("SYSTEM", "HOST")])
def test_no_peer_access_is_a_path_through_the_host(level: str, expected: str) -> None:
    driver = Driver(2)
    driver.ancestors = {frozenset((0, 1)): getattr(pynvml, f"NVML_TOPOLOGY_{level}")}
    driver.status = {0: pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED, 3: pynvml.NVML_P2P_STATUS_NOT_SUPPORTED}
    backend = library(driver)
    assert link_matrix(backend, backend.gpus()).classes[0][1] == expected
    assert set(driver.indexes) == {0, pynvml.NVML_P2P_CAPS_INDEX_NVLINK}


def test_an_unknown_peer_status_is_no_denial() -> None:
    driver = Driver(2)
    driver.status = {0: pynvml.NVML_P2P_STATUS_UNKNOWN}
    backend = library(driver)
    a, b = backend.gpus()
    assert backend.p2p(a, b) == P2P(read=None, nvlink=True)


def test_a_lost_gpu_is_left_out_and_the_others_keep_their_index() -> None:
    driver = Driver(3)
    driver.lost = {1}
    assert [gpu.index for gpu in library(driver).gpus()] == [0, 2]


def test_errors_come_with_the_gpu_they_are_of() -> None:
    driver = Driver(2)
    backend = library(driver)
    backend.gpus()
    driver.events.extend([(1, 79), (-1, 48)])
    assert list(backend.health_events(1)) == [XidEvent("GPU-1", 79), XidEvent("", 48)]
    assert list(backend.health_events(1)) == []
    assert driver.registered == [0, 1]


def test_a_wait_that_fails_is_an_error_and_the_next_one_registers_anew() -> None:
    driver = Driver(2)
    backend = library(driver)
    backend.gpus()
    driver.events.append(pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN))
    with pytest.raises(BackendError, match="while events are awaited"):
        backend.health_events(1)
    assert driver.registered == []
    assert list(backend.health_events(1)) == []
    assert driver.registered == [0, 1]


def test_a_new_gpu_is_watched_too() -> None:
    driver = Driver(1)
    backend = library(driver)
    backend.gpus()
    backend.health_events(0)
    driver.count = 2
    backend.gpus()
    backend.health_events(0)
    assert driver.registered == [0, 1]


def test_the_start_of_the_node_is_told_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("abc\n")
    assert library(Driver(0), tmp_path / "boot_id").boot() == "abc"
    assert library(Driver(0)).boot() == ""
