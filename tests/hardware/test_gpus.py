# SPDX-License-Identifier: Apache-2.0
"""The agent on real GPUs: what NVML tells beside what nvidia-smi tells, faults of programs, and a pod's own GPU.

Needs an NVIDIA driver (`make hardware` on a GPU node); skipped elsewhere. Nothing of the GPUs' settings is changed.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.agent.backends.nvml import NvmlLibrary, open_nvml
from koordpy.agent.backends.topo_backend import read_topo
from koordpy.agent.gpu_facts import BackendError, XidEvent
from koordpy.agent.gpu_health import APPLICATION_XIDS, HealthBook
from koordpy.agent.link_matrix import in_order, link_matrix
from koordpy.api import keys
from koordpy.apiserver.embedded_server import ApiServer
from tests.agent.plugin.kubelet import Kubelet
from tests.clusters import node
from tests.e2e.process import Process, eventually
from tests.faults import FaultyServer
from tests.loudly import skip_loudly

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def nvml(request: pytest.FixtureRequest) -> NvmlLibrary:
    try:
        library = open_nvml()
        if not library.gpus():
            raise BackendError("NVML: the driver has none")
    except BackendError as fault:
        skip_loudly(request, "tests/hardware", f"no GPU to test with: {fault}")
    return library


def smi(*words: str) -> str:
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=True, timeout=60).stdout


def koordpy(name: str, *words: str, folder: Path) -> Process:
    return Process(name, [sys.executable, "-m", "koordpy", *words], log=folder / f"{name}.log")


def cuda(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program on the GPUs that its environment leaves it."""
    command = [sys.executable, "-m", "tests.hardware.cuda", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, check=False, timeout=120
    )


def test_nvml_and_nvidia_smi_tell_of_the_same_gpus(nvml: NvmlLibrary) -> None:
    fields = "index,uuid,pci.bus_id,memory.total,mig.mode.current"
    told = [line.split(", ") for line in smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits").splitlines()]
    seen = [
        [str(gpu.index), gpu.uuid, gpu.bus, str(gpu.memory_bytes >> 20), "Enabled" if gpu.mig else "Disabled"]
        for gpu in nvml.gpus()
    ]
    assert [row[:2] for row in seen] == [row[:2] for row in told]
    assert [row[2][-7:] for row in seen] == [row[2].lower()[-7:] for row in told]
    assert [row[3] for row in seen] == [row[3] for row in told]
    assert [row[4] == "Enabled" for row in seen] == [row[4] == "Enabled" for row in told]


def test_every_gpu_has_its_device_file_its_place_and_its_memory(nvml: NvmlLibrary) -> None:
    for gpu in nvml.gpus():
        assert Path(f"/dev/nvidia{gpu.minor}").exists()
        assert Path(f"/sys/bus/pci/devices/{gpu.bus}").exists()
        assert gpu.memory_bytes > 1 << 30
        assert gpu.pcie_root


def test_nvml_and_the_text_of_topo_give_one_matrix(nvml: NvmlLibrary, tmp_path: Path) -> None:
    text = smi("topo", "-m")
    other = read_topo(text, name="nvidia-smi topo -m")
    ours, theirs = (link_matrix(source, source.gpus()).classes for source in (nvml, other))
    assert [[cell.partition("+")[0] for cell in row] for row in ours] == [
        [cell.partition("+")[0] for cell in row] for row in theirs
    ]


def test_a_look_finds_every_gpu_healthy_and_no_event_is_no_error(nvml: NvmlLibrary) -> None:
    while nvml.health_events(0.0):
        pass
    book = HealthBook()
    book.poll(nvml.gpus(), nvml.health_events(0.2))
    assert [book.why_sick(gpu.key) for gpu in book.gpus] == [""] * len(nvml.gpus())


def test_a_fault_of_a_program_is_heard_and_harms_no_gpu(nvml: NvmlLibrary) -> None:
    nvml.gpus()
    nvml.health_events(0.0)
    ran = cuda("fault")
    assert ran.returncode == 0, ran.stderr
    heard: list[XidEvent] = []
    end = time.monotonic() + WAIT_SECONDS
    while not heard and time.monotonic() < end:
        heard += nvml.health_events(1.0)
    assert heard, "the driver told of no fault"
    assert {event.xid for event in heard} <= APPLICATION_XIDS
    assert {event.uuid for event in heard} <= {gpu.uuid for gpu in nvml.gpus()}
    lenient, strict = HealthBook(), HealthBook(recover_after=2, ignored=())
    for book in (lenient, strict):
        book.poll(nvml.gpus(), heard)
    hit = {event.uuid for event in heard}
    assert not any(lenient.why_sick(gpu.key) for gpu in lenient.gpus)
    assert {gpu.key for gpu in strict.gpus if strict.why_sick(gpu.key)} == hit
    for _ in range(2):
        strict.poll(nvml.gpus(), nvml.health_events(0.0))
    assert not any(strict.why_sick(gpu.key) for gpu in strict.gpus)
    assert cuda("seen").stdout.split(), "the GPU works after the fault"


def test_a_library_that_was_shut_down_is_opened_anew(nvml: NvmlLibrary) -> None:
    import pynvml

    before = [gpu.uuid for gpu in nvml.gpus()]
    pynvml.nvmlShutdown()
    assert [gpu.uuid for gpu in nvml.gpus()] == before
    assert nvml.health_events(0.1) == []


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with FaultyServer() as running:
        (tmp_path / "kubeconfig").write_text(running.kubeconfig())
        yield running


def gpu_pod(name: str, gpus: int) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "i", "resources": resources}],
        },
    }


async def test_a_pod_s_program_sees_the_gpu_that_it_was_given_and_no_other(
    nvml: NvmlLibrary, server: ApiServer, tmp_path: Path
) -> None:
    """From NVML to the Device, to the scheduler's choice, to the kubelet's Allocate, to a CUDA program."""
    gpus = in_order(nvml.gpus())
    server.store.create("nodes", node("here", gpus=len(gpus)))
    sockets = tmp_path / "kubelet"
    (sockets / "device-plugins").mkdir(parents=True)
    (sockets / "pod-resources").mkdir()
    kubelet = Kubelet(sockets / "device-plugins")
    await kubelet.start()
    (sockets / "pod-resources" / "kubelet.sock").symlink_to(kubelet.pod_resources)
    access = ["--kubeconfig", str(tmp_path / "kubeconfig")]
    words = ["--node", "here", "--delivery", "device-plugin", "--kubelet-folder", str(sockets), "--poll", "1"]
    agent = koordpy("agent", "agent", *words, *access, folder=tmp_path)
    scheduler = koordpy("run", "run", *access, "--bind-address", "127.0.0.1:0", "--leader-elect=false", folder=tmp_path)
    try:
        with agent, scheduler:

            async def reported() -> Any:
                devices = server.store.list("devices.scheduling.koordinator.sh")
                found = [one for one in devices if one.get("status", {}).get("conditions")]
                return found[0] if found else None

            processes = [agent, scheduler]
            device = await eventually(reported, what="the agent reports", within_s=30, processes=processes)
            assert [entry["id"] for entry in device["spec"]["devices"]] == [gpu.uuid for gpu in gpus]
            assert all(entry["health"] for entry in device["spec"]["devices"])
            ready = {one["type"]: one["status"] for one in device["status"]["conditions"]}
            assert ready["Ready"] == "True", device["status"]
            await kubelet.until(lambda: len(kubelet.devices) == len(gpus))
            assert {health for health, _ in kubelet.devices.values()} == {"Healthy"}
            server.store.create("pods", gpu_pod("train", 1), namespace="default")

            async def bound() -> Any:
                pod = server.store.get("pods", "train", namespace="default")
                return pod if pod["spec"].get("nodeName") else None

            pod = await eventually(bound, what="the pod is bound", within_s=30, processes=processes)
            (minors,) = json.loads(pod["metadata"]["annotations"][keys.GPU_ALLOCATION])["allocatedGPUs"].values()
            given = await asyncio.wait_for(kubelet.admit("train", 1, container="main"), 20)
            shown = await asyncio.to_thread(cuda, "seen", CUDA_VISIBLE_DEVICES=",".join(given))
            assert shown.stdout.split() == given, shown.stderr
            assert given == [gpu.uuid for gpu in gpus if str(gpu.minor) in minors]
            hidden = await asyncio.to_thread(cuda, "seen", CUDA_VISIBLE_DEVICES="")
            assert hidden.stdout.split() == []
            server.store.create("pods", gpu_pod("late", len(gpus)), namespace="default")

            async def told() -> Any:
                late = server.store.get("pods", "late", namespace="default")
                said = [one.get("message", "") for one in late.get("status", {}).get("conditions", [])]
                return said[0] if said else None

            message = await eventually(told, what="the next pod is told", within_s=30, processes=processes)
            assert "nvidia.com/gpu" in message
    finally:
        await kubelet.stop()


def test_the_device_that_is_printed_is_what_nvidia_smi_says(nvml: NvmlLibrary, tmp_path: Path) -> None:
    shown = koordpy("print", "agent", "--node", "here", "--print", folder=tmp_path)
    with shown:
        deadline = time.monotonic() + WAIT_SECONDS
        while shown.running and time.monotonic() < deadline:
            time.sleep(0.1)
    assert shown.exit_status == 0, shown.tail()
    device = yaml.safe_load(shown.log.read_text())
    told = smi("--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits").split("\n")
    by_id = {entry["id"]: entry["resources"]["koordinator.sh/gpu-memory"] for entry in device["spec"]["devices"]}
    assert by_id == {line.split(", ")[0]: f"{line.split(', ')[1]}Mi" for line in told if line}
