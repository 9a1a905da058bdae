# SPDX-License-Identifier: Apache-2.0
"""Real machines as NVML shows them: classes as in the text of their topo -m, whatever calls their drivers lack."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from koordpy.agent.agent_loop import NodeAgent
from koordpy.agent.backends.topo_backend import TopoBackend, read_topo
from koordpy.agent.gpu_facts import BackendError
from koordpy.agent.gpu_health import HealthBook
from koordpy.agent.link_matrix import link_matrix
from tests.agent.test_nvml import GPU, SWITCH, Driver, library

SAMPLES = sorted((Path(__file__).parent / "topo").glob("*.txt"))
NPU = pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU
LEVELS = {
    "PIX": pynvml.NVML_TOPOLOGY_SINGLE,
    "PXB": pynvml.NVML_TOPOLOGY_MULTIPLE,
    "PHB": pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    "NODE": pynvml.NVML_TOPOLOGY_NODE,
    "SYS": pynvml.NVML_TOPOLOGY_SYSTEM,
}


class Box(Driver):
    """A driver that answers what the real ones answer: minors in order of the indexes, all calls, and lost GPUs."""

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self.failing: dict[str, int] = {}
        """Call -> error of every call of it."""
        self.mig: set[int] = set()
        self.sessions = 1
        self.unloaded = False

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if not name.startswith("nvml") or not callable(call):
            return call

        def answer(*args: Any) -> Any:
            if name in self.failing:
                raise pynvml.NVMLError(self.failing[name])
            if self.unloaded and name != "nvmlShutdown":
                code = pynvml.NVML_ERROR_DRIVER_NOT_LOADED if name == "nvmlInit" else pynvml.NVML_ERROR_UNINITIALIZED
                raise pynvml.NVMLError(code)
            if args and args[0] in list(self.lost) and name.startswith("nvmlDevice") and "ByIndex" not in name:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return call(*args)

        return answer

    def nvmlInit(self) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(handle in self.mig), 0]


def box_of(text: TopoBackend) -> Box:
    """A driver of the machine that a text shows. Where all pairs have the same NVLinks they lead to a switch."""
    gpus = list(text.gpus())
    box = Box(len(gpus))
    cells = {(a.index, b.index): text.cells[a.index, b.index] for a in gpus for b in gpus if a is not b}
    switched = len(gpus) > 2 and len(set(cells.values())) == 1 and next(iter(cells.values())).startswith("NV")
    used = dict.fromkeys(range(len(gpus)), 0)
    for (a, b), cell in cells.items():
        box.ancestors[frozenset((a, b))] = LEVELS.get(cell, pynvml.NVML_TOPOLOGY_SYSTEM)
        if not cell.startswith("NV") or (switched and b != (a + 1) % len(gpus)):
            continue
        for _ in range(int(cell[2:])):
            box.links[a, used[a]] = (SWITCH, "") if switched else (GPU, f"00000000:{b + 1:02X}:00.0")
            used[a] += 1
    return box


def classes(box: Box) -> list[list[str]]:
    backend = library(box)
    return [[cell.partition("+")[0] for cell in row] for row in link_matrix(backend, backend.gpus()).classes]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_nvml_and_the_text_of_the_same_machine_tell_the_same(sample: Path) -> None:
    text = read_topo(sample.read_text(), name=sample.name)
    assert classes(box_of(text)) == [list(row) for row in link_matrix(text, text.gpus()).classes]


def dgx() -> Box:
    sample = next(path for path in SAMPLES if path.stem == "dgx-1")
    return box_of(read_topo(sample.read_text(), name=sample.name))


def agent(box: Box, **options: Any) -> NodeAgent:
    return NodeAgent("n1", library(box), HealthBook(recover_after=2), **options)


def healthy(one: NodeAgent) -> list[bool]:
    return [entry["health"] for entry in one.look().device["spec"]["devices"]]


OPTIONAL = (
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetFree",
)
ERRORS = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_UNKNOWN,
)


@pytest.mark.parametrize("call", OPTIONAL)
@pytest.mark.parametrize("error", ERRORS)
def test_a_call_that_a_driver_lacks_leaves_a_device_that_can_be_written(call: str, error: int) -> None:
    box = dgx()
    box.failing[call] = error
    report = agent(box).look()
    assert [entry["minor"] for entry in report.device["spec"]["devices"]] == list(range(8))
    assert all(entry["health"] for entry in report.device["spec"]["devices"])
    assert all(len(row) == 8 for row in report.matrix.classes)


def test_a_driver_without_the_call_for_peers_says_nothing_against_nvlink() -> None:
    box = dgx()
    box.failing["nvmlDeviceGetP2PStatus"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert classes(box) == classes(dgx())


@pytest.mark.parametrize("status", [pynvml.NVML_P2P_STATUS_UNKNOWN, pynvml.NVML_P2P_STATUS_NOT_SUPPORTED])
def test_nvlink_counts_only_where_the_driver_says_ok(status: int) -> None:
    box = dgx()
    box.status = {pynvml.NVML_P2P_CAPS_INDEX_NVLINK: status}
    assert not any(cell.startswith("NV") for row in classes(box) for cell in row)


def test_links_to_the_processor_join_no_gpus() -> None:
    box = Box(4)
    box.ancestors = {frozenset((a, b)): LEVELS["SYS"] for a in range(4) for b in range(a)}
    for gpu in range(4):
        for link in range(3):
            box.links[gpu, link] = (NPU, "00000000:77:00.0")
            box.links[gpu, 3 + link] = (GPU, f"00000000:{(gpu ^ 1) + 1:02X}:00.0")
    assert classes(box)[0] == ["X", "NV3", "SYS", "SYS"]


def test_the_numa_node_is_the_kernel_s_not_that_of_the_gpu_s_own_memory() -> None:
    box = Box(2)
    box.nvmlDeviceGetNumaNodeId = lambda handle: 10 + handle  # type: ignore[attr-defined]
    assert [gpu.numa for gpu in library(box).gpus()] == [None, None]


def test_a_gpu_in_mig_mode_is_listed_without_links_and_not_given_away() -> None:
    box = dgx()
    box.mig = {3}
    report = agent(box).look()
    assert [entry["health"] for entry in report.device["spec"]["devices"]] == [i != 3 for i in range(8)]
    assert not any(cell.startswith("NV") for cell in report.matrix.classes[3])
    ready = next(c for c in report.conditions if c.type == "Ready")
    assert "GPU-3: divided into MIG instances" in ready.message


def test_a_gpu_that_falls_off_the_bus_is_sick_alone_and_keeps_its_row() -> None:
    box = dgx()
    one = agent(box)
    before = one.look()
    box.lost = {2}
    box.events.append((2, 79))
    after = one.look()
    assert [entry["health"] for entry in after.device["spec"]["devices"]] == [i != 2 for i in range(8)]
    assert [entry["minor"] for entry in after.device["spec"]["devices"]] == list(range(8))
    assert after.matrix.classes[2] == before.matrix.classes[2]
    box.lost = set()
    assert [healthy(one) for _ in range(3)][-1] == [i != 2 for i in range(8)], "for good until the node starts anew"


def test_an_unloaded_driver_makes_all_sick_and_one_that_is_back_is_opened_anew() -> None:
    box = dgx()
    one = agent(box)
    assert all(healthy(one))
    box.unloaded = True
    assert not any(healthy(one))
    box.unloaded = False
    seen = [healthy(one) for _ in range(4)]
    assert all(seen[-1])
    assert one.look().matrix.classes == agent(dgx()).look().matrix.classes


def test_a_session_that_ended_is_opened_anew_at_once() -> None:
    box = dgx()
    one = library(box)
    one.gpus()
    calls = iter([pynvml.NVML_ERROR_UNINITIALIZED])

    def count() -> int:
        for code in calls:
            raise pynvml.NVMLError(code)
        return 8

    box.nvmlDeviceGetCount = count  # type: ignore[method-assign]
    assert len(one.gpus()) == 8
    assert box.sessions == 1


def test_a_driver_that_does_not_come_back_is_said() -> None:
    box = Box(1)
    box.unloaded = True
    with pytest.raises(BackendError, match="opening the library again failed"):
        library(box).gpus()


def test_pointers_of_the_bindings_name_their_gpu() -> None:
    import ctypes

    class Struct(ctypes.Structure):
        pass

    box = Box(2)
    pointers = [ctypes.cast(address, ctypes.POINTER(Struct)) for address in (4096, 8192)]
    box.nvmlDeviceGetHandleByIndex = lambda index: pointers[index]  # type: ignore[method-assign]
    box.nvmlDeviceGetUUID = lambda handle: f"GPU-{ctypes.cast(handle, ctypes.c_void_p).value}"  # type: ignore
    box.nvmlDeviceGetMinorNumber = lambda handle: 0  # type: ignore[method-assign]
    box.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId=b"")  # type: ignore[method-assign]
    box.nvmlDeviceGetMigMode = lambda handle: [0, 0]  # type: ignore[method-assign]
    backend = library(box)
    backend.gpus()
    box.failing["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
    box.events.append((ctypes.cast(8192, ctypes.POINTER(Struct)), 79))  # type: ignore[arg-type]
    (event,) = backend.health_events(0)
    assert (event.uuid, event.xid) == ("GPU-8192", 79)
