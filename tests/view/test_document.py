"""The JSON of the page: what docs/view.md says of it, and changes that add up to the whole."""

import json
import random
import re
from dataclasses import replace
from typing import Any

from msgspec import structs

from bench import objects
from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.api.custom import Device, DeviceEntry, DeviceSpec, ElasticQuota, ElasticQuotaSpec
from koordpy.api.objects import ObjectMeta
from koordpy.cluster.state import ClusterState
from koordpy.observe.decisions import DecisionLog
from koordpy.planning.inventory import GANG_PODS
from koordpy.planning.round import plan_round
from koordpy.view.document import VERSION, LiveDocument, Remarks
from koordpy.view.live import Planned, told_by
from tests.docs.worked import ROOT

GPU, NPU = keys.GPU_RESOURCES[0], keys.NPU_RESOURCES[0]
CONFIG = KoordpyConfiguration()


def cluster(nodes: int = 4) -> ClusterState:
    state = ClusterState(gpu=CONFIG.gpu)
    for i in range(nodes):
        state.upsert(objects.node(f"n{i}", {GPU: "8", "cpu": "64", "memory": "512Gi"}))
    return state


def gpu_pod(name: str, gpus: int = 8, **rest: Any) -> Any:
    return objects.pod(name, {GPU: str(gpus), "cpu": "1"}, **rest)


def seen(state: ClusterState, told: Remarks | None = None) -> dict[str, Any]:
    scene = LiveDocument(CONFIG)
    scene.update(state.snapshot(0.0), told or Remarks())
    found: dict[str, Any] = json.loads(json.dumps(scene.whole()))
    return found


def merged(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A document with a change taken in as docs/view.md says."""
    out = dict(document)
    for name, part in change.items():
        if name in ("nodes", "pods"):
            rows = {**out[name], **part}
            out[name] = {key: row for key, row in rows.items() if row is not None}
        elif name == "decisions":
            out[name] = out[name] + part
        else:
            out[name] = part
    return out


def test_every_field_is_documented_and_every_documented_one_is_there() -> None:
    state = cluster()
    state.upsert(gpu_pod("a"))
    state.upsert(gpu_pod("b", 9))
    log = DecisionLog()
    log.record(plan_round(state.snapshot(0.0), CONFIG), number=1, at=0.0)
    document = seen(state, told_by(log, source="test"))
    page = (ROOT / "docs" / "view.md").read_text(encoding="utf-8")
    table = page.partition("## The document")[2]
    named = {re.split(r"[.\[]", one)[0] for one in re.findall(r"^\| `([^`]+)` \|", table, re.M)}
    assert document.keys() <= named
    assert named - document.keys() == {"serial", "help"}
    assert f"`version` {VERSION}" in table
    for part, rows in (("queue.units[]", document["queue"]["units"]), ("decisions[]", document["decisions"])):
        line = next(line for line in table.splitlines() if line.startswith(f"| `{part}`"))
        assert rows
        assert set(rows[0]) == {
            name for name in re.findall(r"`(\w+)`", line.partition("|")[2].partition("|")[2]) if name
        }


def test_the_queue_says_what_each_waiting_unit_was_told() -> None:
    state = cluster(1)
    for i in range(2):
        state.upsert(gpu_pod(f"g-{i}", gang="g"))
    state.upsert(objects.group("g", 2))
    state.upsert(objects.group("short", 3))
    state.upsert(gpu_pod("short-0", gang="short"))
    log = DecisionLog()
    log.record(plan_round(state.snapshot(0.0), CONFIG), number=1, at=0.0)
    queue = seen(state, told_by(log, source=""))["queue"]
    assert (queue["waiting"], queue["held"]) == (1, 1)
    waits, held = queue["units"]
    assert waits["unit"] == "gang:default/g"
    assert "needed 2" in waits["message"]
    assert waits["asks"] == [[2, {GPU: "8", "cpu": "1"}]]
    assert held["state"] == "held"
    assert "3" in held["message"]


def test_cells_are_the_gpus_that_a_device_names() -> None:
    state = cluster(1)
    entries = [DeviceEntry(type="gpu", minor=i, id=f"GPU-{i}", health=i != 5) for i in range(8)]
    state.upsert(Device(metadata=ObjectMeta(name="n0"), spec=DeviceSpec(devices=entries)))
    state.upsert(
        gpu_pod("a", 2, at="n0", annotations={keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"main": [3, 6]}})})
    )
    document = seen(state)
    assert document["nodes"]["n0"][0] == 8
    assert document["nodes"]["n0"][2] == [5]
    assert document["pods"]["default/a"][3:6] == [2, [3, 6], "r"]


def test_slots_are_those_of_whole_nodes() -> None:
    state = cluster(9)
    state.upsert(gpu_pod("a", 1, at="n3"))
    slots = seen(state)["slots"]
    assert slots["perPod"] == 8
    assert slots["gangs"] == [8 * n for n in GANG_PODS]
    assert slots["layers"][0][1] == [8, 1, 0]
    assert slots["domains"][0] == [8]


def test_states_of_pods_are_told_apart() -> None:
    state = cluster(3)
    state.upsert(gpu_pod("runs", at="n0"))
    other = gpu_pod("other", at="n1")
    state.upsert(structs.replace(other, spec=structs.replace(other.spec, scheduler_name="default-scheduler")))
    state.upsert(gpu_pod("waits"))
    nominated = gpu_pod("held")
    state.upsert(structs.replace(nominated, status=structs.replace(nominated.status, nominated_node_name="n2")))
    ends = gpu_pod("ends", 1, at="n2")
    gone = structs.replace(ends.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    state.upsert(structs.replace(ends, metadata=gone))
    rows = {key.partition("/")[2]: (row[5], row[0]) for key, row in seen(state)["pods"].items()}
    assert rows == {
        "runs": ("r", "n0"), "other": ("o", "n1"), "waits": ("w", ""), "held": ("n", "n2"), "ends": ("e", "n2")
    }  # fmt: skip


def test_changes_add_up_to_the_whole() -> None:
    random.seed(21)
    state, scene = cluster(6), LiveDocument(CONFIG)
    state.upsert(objects.node("npu", {NPU: "8", "cpu": "64"}))
    entries = [DeviceEntry(type="gpu", minor=i, id=f"GPU-{i}", health=i != 5) for i in range(8)]
    log = DecisionLog()
    scene.update(state.snapshot(0.0), told_by(log, source=""))
    document: dict[str, Any] = json.loads(json.dumps(scene.whole()))
    there: set[str] = set()
    for step in range(160):
        kind = random.randrange(9)
        name = f"p{random.randrange(12)}"
        if kind <= 2:
            state.upsert(
                gpu_pod(name, random.choice([1, 4, 8]), at=random.choice(["", "n0", "n1", "n2"]), priority=step)
            )
            there.add(name)
        elif kind == 3 and there:
            gone = there.pop()
            state.delete(type(gpu_pod(gone)), f"default/{gone}")
        elif kind == 4:
            node = objects.node(f"n{random.randrange(8)}", {GPU: "8", "cpu": "64", "memory": "512Gi"})
            spec = structs.replace(node.spec, unschedulable=random.random() < 0.5)
            state.upsert(structs.replace(node, spec=spec))
        elif kind == 5:
            number = random.randrange(8)
            notes = {NPU: f"Ascend910-{number}", keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"main": [number]}})}
            asks = random.choice([NPU, GPU])
            at = "npu" if asks == NPU else "n0"
            state.upsert(objects.pod(name, {asks: "1"}, at=at, annotations=random.choice([notes, {}])))
            there.add(name)
        elif kind == 6:
            health = [structs.replace(one, health=random.random() < 0.8) for one in entries]
            state.upsert(Device(metadata=ObjectMeta(name="n0"), spec=DeviceSpec(devices=health)))
        elif kind == 7:
            spec = ElasticQuotaSpec(min={GPU: "8"}, max={GPU: str(random.choice([8, 16]))})
            labels = (
                random.choice([{}, {keys.QUOTA_NAMESPACES: '["default"]'}]) if hasattr(keys, "QUOTA_NAMESPACES") else {}
            )
            state.upsert(
                ElasticQuota(metadata=ObjectMeta(name="q", namespace="default", annotations=labels), spec=spec)
            )
        else:
            log.record(plan_round(state.snapshot(float(step)), CONFIG), number=step, at=float(step))
        change = scene.update(state.snapshot(float(step)), told_by(log, source=""))
        document = merged(document, json.loads(json.dumps(change)))
        assert document == json.loads(json.dumps(scene.whole())), step
        anew = LiveDocument(CONFIG)
        anew.update(state.snapshot(float(step)), told_by(log, source=""))
        assert scene.whole() == anew.whole(), step


def test_nothing_changed_is_a_change_of_the_time_alone() -> None:
    state, scene = cluster(), LiveDocument(CONFIG)
    state.upsert(gpu_pod("a", at="n0"))
    told = Remarks(source="s")
    scene.update(state.snapshot(0.0), told)
    assert scene.update(state.snapshot(1.0), replace(told)) == {"taken": 1.0}


def test_who_would_go_is_told_though_nothing_is_carried_out() -> None:
    state = cluster(1)
    state.upsert(gpu_pod("low", at="n0"))
    state.upsert(gpu_pod("high", priority=9))
    snapshot = state.snapshot(60.0)
    kept = LiveDocument(CONFIG)
    kept.update(snapshot, Planned(CONFIG, source="")(snapshot))
    (unit,) = kept.whole()["queue"]["units"]
    assert unit["victims"] == [["default/low", "n0", "priority"]]
    assert unit["room"] == {"default/high": "n0"}
    assert "would evict 1 pod (priority)" in unit["message"]
    assert kept.whole()["decisions"] == []
