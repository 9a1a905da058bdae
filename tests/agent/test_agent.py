# SPDX-License-Identifier: Apache-2.0
"""The agent as a whole: what `--print` shows, and what it writes to an API server over time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.agent import agent_loop
from koordpy.agent.agent_loop import NodeAgent
from koordpy.agent.backends.file_backend import read_fake
from koordpy.agent.gpu_facts import BackendError
from koordpy.agent.gpu_health import HealthBook
from koordpy.agent.publisher import DEVICES, DevicePublisher
from koordpy.api.key_hints import Holder, unread_keys
from koordpy.cli.main import main
from koordpy.devices.gpu.gpu_links import read_described, read_links
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from tests.clusters import node
from tests.faults import FaultyServer

SAMPLES = sorted((Path(__file__).parent / "topo").glob("*.txt"))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], list[str]]:
    assert main(["agent", "--node", "n1", "--print", *words]) == 0
    text = capsys.readouterr().out
    return yaml.safe_load(text), [line[2:] for line in text.splitlines() if line.startswith("# ")]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_prints_a_device_whose_matrix_fits_its_gpus(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device, conditions = printed(capsys, "--backend", f"topo:{sample}")
    assert device["metadata"]["name"] == "n1"
    (links,) = device["spec"]["topologies"]["gpu"]
    matrix = json.loads(links["topology"])
    assert len(matrix) == len(device["spec"]["devices"])
    assert all(matrix[i][j] == matrix[j][i] for i in range(len(matrix)) for j in range(len(matrix)))
    assert conditions[0].startswith("Ready=True")


def test_a_file_from_anywhere_is_shown_without_naming_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tSOC\nGPU1\tSYS\t X \n")
    assert main(["agent", "--backend", f"topo:{tmp_path}/topo.txt", "--print"]) == 0
    device = yaml.safe_load(capsys.readouterr().out)
    assert device["metadata"]["name"] == "node"
    assert device["spec"]["topologies"]["gpu"][0]["topology"] == '[["X","SYS"],["SYS","X"]]'


def test_a_measurement_stands_beside_the_links_never_in_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.yaml").write_text("gpus: 2\nfabric: 4")
    (tmp_path / "bw.yaml").write_text("bandwidth: [[0, 96.5], [95, 0]]")
    device, _ = printed(capsys, "--backend", f"fake:{tmp_path}/m.yaml", "--measurements", f"{tmp_path}/bw.yaml")
    found = {m["name"]: json.loads(m["topology"]) for m in device["spec"]["topologies"]["gpu"]}
    assert found == {"bandwidth": [[0, 96.5], [95, 0]], "links": [["X", "NV4+SYS"], ["NV4+SYS", "X"]]}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[0, 1]]", "not 2 rows of 2 numbers"),
        ("[[0, -1], [1, 0]]", "[0][1]: -1 is not a bandwidth in GB/s"),
        ("[[0, .inf], [1, 0]]", "[0][1]: inf is not a bandwidth in GB/s"),
        ("fast", "not a list of lists"),
    ],
)
def test_a_measurement_that_cannot_be_used_is_left_out_and_reported(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.yaml").write_text("gpus: 2")
    (tmp_path / "bw.yaml").write_text(text)
    device, conditions = printed(
        capsys, "--backend", f"fake:{tmp_path}/m.yaml", "--measurements", f"{tmp_path}/bw.yaml"
    )
    assert [m["name"] for m in device["spec"]["topologies"]["gpu"]] == ["links"]
    assert f"TopologyMalformed=True MeasurementUnreadable: measured bandwidth: {fault}" in conditions


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--node", "n", "--backend", "topo:/no/such"], "/no/such: cannot be read"),
        (["--node", "n", "--backend", "cuda"], "--backend cuda: must be nvml, fake:FILE or topo:FILE"),
        (["--backend", "nvml"], "--node: is required"),
    ],
)
def test_what_cannot_be_had_is_one_clear_line(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main(["agent", "--print", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert fault in err
    assert err.count("\n") == 1


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with FaultyServer() as server, ApiClient(ClusterAccess(server=server.url)) as running:
        await running.post("/api/v1/nodes", node("n1"))
        yield running


def agent(machine: str, **options: Any) -> NodeAgent:
    return NodeAgent("n1", read_fake(machine, name="m"), HealthBook(recover_after=2), **options)


async def device(client: ApiClient) -> dict[str, Any]:
    found: dict[str, Any] = await client.get(f"{DEVICES}/n1", type=dict[str, Any])
    return found


def healthy(found: dict[str, Any]) -> list[bool]:
    return [entry["health"] for entry in found["spec"]["devices"]]


async def test_the_device_belongs_to_its_node_and_is_written_once(client: ApiClient) -> None:
    publisher, one = DevicePublisher(client, "n1"), agent("gpus: 2\nfabric: 4")
    assert await publisher.publish(one.look())
    first = await device(client)
    assert first["metadata"]["ownerReferences"][0]["kind"] == "Node"
    assert first["metadata"]["labels"] == {"scheduling.koordinator.sh/gpu-delivery": "foreign"}
    conditions = {c["type"]: c["status"] for c in first["status"]["conditions"]}
    assert conditions == {
        "Ready": "True",
        "TopologyDegraded": "False",
        "TopologyMalformed": "False",
        "DeliveryUnavailable": "False",
    }
    assert not await publisher.publish(one.look())
    assert (await device(client))["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_an_error_is_seen_in_the_device_and_so_is_the_recovery(client: ApiClient) -> None:
    publisher, one = DevicePublisher(client, "n1"), agent("gpus: 2\nfaults: [{poll: 2, uuid: GPU-1, xid: 48}]")
    seen = []
    for _ in range(4):
        await publisher.publish(one.look())
        seen.append(healthy(await device(client)))
    assert seen == [[True, True], [True, False], [True, False], [True, True]]


async def test_a_driver_that_stops_answering_takes_every_gpu_out_and_keeps_the_links(client: ApiClient) -> None:
    publisher, one = DevicePublisher(client, "n1"), agent("gpus: 2\nfabric: 4\nfaults: [{poll: 2, fail: gpus}]")
    await publisher.publish(one.look())
    before = await device(client)
    await publisher.publish(one.look())
    after = await device(client)
    assert healthy(after) == [False, False]
    assert after["spec"]["topologies"] == before["spec"]["topologies"]


async def test_a_driver_that_fails_while_delivery_is_reported_ends_no_agent(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    why: list[str] = []
    one = agent("gpus: 2", delivery="device-plugin", obstacle=lambda: "".join(why))
    calls = 0

    def measured() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            why.append("no kubelet")  # delivery changes during the look, so a second report is made
        if calls == 2:
            raise BackendError("the driver does not answer")

    monkeypatch.setattr(one.backend, "measured", measured)
    await one.run(DevicePublisher(client, "n1"), once=True)
    assert calls == 3 and healthy(await device(client)) == [False, False]
    assert one.undeliverable == "no kubelet" and not one.unwritten


async def test_a_gpu_that_vanished_stays_out_after_the_agent_started_anew(client: ApiClient) -> None:
    await agent("gpus: 3\nfabric: 4\nboot: one").run(DevicePublisher(client, "n1"), once=True)
    await agent("gpus: 2\nfabric: 4\nboot: one").run(DevicePublisher(client, "n1"), once=True)
    assert healthy(await device(client)) == [True, True, False]
    await agent("gpus: 2\nfabric: 4\nboot: two").run(DevicePublisher(client, "n1"), once=True)
    assert healthy(await device(client)) == [True, True]


async def test_a_scheduler_finds_nothing_odd_in_what_an_agent_writes(client: ApiClient) -> None:
    await agent("gpus: 2\nboot: one", delivery="env").run(DevicePublisher(client, "n1"), once=True)
    meta = (await device(client))["metadata"]
    assert meta["annotations"]
    assert list(unread_keys(Holder.DEVICE, meta["labels"], meta["annotations"])) == []


async def test_a_gpu_that_a_pod_which_is_gone_may_use_is_healthy_and_not_to_be_given(client: ApiClient) -> None:
    held = {"GPU-1": "containers of pod ns/p, which is gone, may still use it"}
    publisher, one = DevicePublisher(client, "n1"), agent("gpus: 2", held=lambda: held)
    await publisher.publish(one.look())
    found = await device(client)
    ready = next(c for c in found["status"]["conditions"] if c["type"] == "Ready")
    assert healthy(found) == [True, False]
    assert ready["message"] == "GPU-1: containers of pod ns/p, which is gone, may still use it"
    held.clear()
    await publisher.publish(one.look())
    assert healthy(await device(client)) == [True, True]


async def test_a_device_that_went_with_its_node_is_written_for_the_next_one(client: ApiClient) -> None:
    publisher, one = DevicePublisher(client, "n1"), agent("gpus: 1")
    await publisher.publish(one.look())
    await publisher.check()
    assert not await publisher.publish(one.look())
    await client.delete(f"{DEVICES}/n1")
    await client.delete("/api/v1/nodes/n1")
    again = await client.post("/api/v1/nodes", node("n1"), type=dict[str, Any])
    await publisher.check()
    assert await publisher.publish(one.look())
    assert (await device(client))["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]


async def test_what_stirs_the_agent_is_written_before_the_driver_has_waited_for_a_whole_poll(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_loop, "SLICE_SECONDS", 0.02)
    why, waits = list[str](), list[float]()
    one = agent("gpus: 1", delivery="device-plugin", obstacle=lambda: "".join(why))

    def events(timeout: float) -> tuple[()]:
        waits.append(timeout)
        time.sleep(timeout)
        return ()

    monkeypatch.setattr(one.backend, "health_events", events)
    task = asyncio.create_task(one.run(DevicePublisher(client, "n1"), poll=0.2))
    async with asyncio.timeout(60):
        while 0.02 not in waits:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        why.append("ending")
        one.look_requested.set()
        await one.wait_until_reported("ending")
    assert max(waits) == pytest.approx(0.02)
    conditions = {c["type"]: c for c in (await device(client))["status"]["conditions"]}
    assert conditions["DeliveryUnavailable"]["message"] == "ending"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_delivery_by_env_needs_the_runtime_class(client: ApiClient) -> None:
    await agent("gpus: 1", delivery="env").run(DevicePublisher(client, "n1"), once=True)
    conditions = {c["type"]: c for c in (await device(client))["status"]["conditions"]}
    assert conditions["DeliveryUnavailable"]["status"] == "True"
    assert "RuntimeClass nvidia" in conditions["DeliveryUnavailable"]["message"]


async def test_a_running_agent_writes_a_deleted_device_again_when_its_report_changes(client: ApiClient) -> None:
    one = agent("gpus: 1\nfaults: [{poll: 3, uuid: GPU-0, xid: 48}]")
    publisher = DevicePublisher(client, "n1")
    await publisher.publish(one.look())
    await client.delete(f"{DEVICES}/n1")
    assert not await publisher.publish(one.look())
    assert await publisher.publish(one.look())
    assert healthy(await device(client)) == [False]


async def test_a_running_agent_goes_on_until_it_is_stopped(client: ApiClient) -> None:
    one = agent("gpus: 1\nfaults: [{poll: 2, uuid: GPU-0, xid: 48}]")
    task = asyncio.create_task(one.run(DevicePublisher(client, "n1"), poll=0.02))
    seen: list[bool] = []
    async with asyncio.timeout(60):
        while seen[-2:] != [False, True]:
            found = await client.get_or_none(f"{DEVICES}/n1", type=dict[str, Any])
            now = healthy(found) if found else []
            seen += now if now != seen[-1:] else []
            await asyncio.sleep(0.005)
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpus: [", "line 2, column 1: invalid YAML: "),
        ("", "must have one document, not 0"),
        ("gpus: x", "gpus: must be a number or a list, not the string 'x'"),
        ("gpu: 2", "gpu: unknown field, did you mean gpus?"),
        ("gpus: 2\nlinks: [[X, NV4], [NV4, null]]", "links[1][1]: null in a list"),
        ("gpus: 2\nfaults: [{xid: 79}]", "faults[0].poll: is missing"),
        (
            "gpus: [{minor: first}, {mig: 'no'}]",
            "gpus[0].minor: must be a whole number, not the string 'first'; gpus[1].mig:",
        ),
    ],
)
def test_a_machine_file_that_cannot_be_read_is_one_clear_line(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    assert main(["agent", "--node", "n", "--print", "--backend", f"fake:{path}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{path}: {fault}") and err.count("\n") == 1


@pytest.mark.parametrize(("text", "fault"), [("[[1,", "while parsing a flow"), (None, "No such file or directory")])
def test_a_file_of_measurements_that_cannot_be_read_is_one_clear_line(
    text: str | None, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.yaml").write_text("gpus: 2")
    path = tmp_path / "bw.yaml"
    if text is not None:
        path.write_text(text)
    backend = ["--backend", f"fake:{tmp_path}/m.yaml"]
    assert main(["agent", "--node", "n", "--print", *backend, "--measurements", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"{path}: cannot be read: {fault}") and err.count("\n") == 1


PAIRS_OF_THREE = ("GSOC_ID_0_1", "GSOC_ID_0_2", "GSOC_ID_1_2")


async def node_of(client: ApiClient) -> dict[str, Any]:
    found: dict[str, Any] = await client.get("/api/v1/nodes/n1", type=dict[str, Any])
    return found


async def test_the_node_has_annotations_of_links_only_if_they_are_asked_for(client: ApiClient) -> None:
    before = await node_of(client)
    await DevicePublisher(client, "n1").publish(agent("gpus: 3\nfabric: 4").look())
    assert await node_of(client) == before
    publisher, one = DevicePublisher(client, "n1", gsoc=True), agent("gpus: 3\nfabric: 4")
    assert await publisher.publish(one.look())
    after = await node_of(client)
    given = after["metadata"].pop("annotations")
    assert given == {**before["metadata"].get("annotations", {}), **dict.fromkeys(PAIRS_OF_THREE, "NV4+SYS")}
    assert after["spec"] == before["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert not await publisher.publish(one.look())
    assert (await node_of(client))["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


async def test_annotations_follow_the_links_and_come_back_with_a_new_node(client: ApiClient) -> None:
    publisher = DevicePublisher(client, "n1", gsoc=True)
    one = agent("gpus: 3\nfabric: 4\nfaults: [{poll: 2, uuid: GPU-1, xid: 74}]")
    seen = []
    for _ in range(2):
        await publisher.publish(one.look())
        seen.append((await node_of(client))["metadata"]["annotations"])
    assert [seen[1][key] for key in PAIRS_OF_THREE] == ["SYS", "NV4+SYS", "SYS"]
    await client.delete("/api/v1/nodes/n1")
    await client.delete(f"{DEVICES}/n1")
    await client.post("/api/v1/nodes", node("n1"))
    await publisher.check()
    assert await publisher.publish(one.look())
    assert set(PAIRS_OF_THREE) <= set((await node_of(client))["metadata"]["annotations"])


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_what_is_printed_of_the_node_is_read_back_as_the_links_of_the_device(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["agent", "--node", "n1", "--print", "--gsoc-annotations", "--backend", f"topo:{sample}"]
    assert main(words) == 0
    device, shown = yaml.safe_load_all(capsys.readouterr().out)
    assert (shown["kind"], shown["metadata"]["name"]) == ("Node", "n1")
    minors = [entry["minor"] for entry in device["spec"]["devices"]]
    (stated,) = device["spec"]["topologies"]["gpu"]
    read, faults = read_described(
        shown["metadata"]["annotations"], prefix="GSOC_ID_", minors=minors, ids=[""] * len(minors)
    )
    assert not faults
    assert (read or ((None,),) * len(minors)) == read_links(stated["topology"], len(minors))
