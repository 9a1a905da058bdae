# SPDX-License-Identifier: Apache-2.0
"""The JSON of the page: what docs/view.md says of it, and changes that add up to the whole."""

import json
import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench import objects
from koordpy.api import keys
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    Device,
    DeviceEntry,
    DeviceSpec,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
)
from koordpy.api.objects import ObjectMeta, OwnerReference
from koordpy.cache.cluster_state import ClusterState
from koordpy.cli.main import main
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.infeasibility.domain_inventory import GANG_PODS
from koordpy.observe.decision_log import Decision, DecisionLog
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import simulate
from koordpy.view.document_rows import PlannedPlace, Remarks
from koordpy.view.live_documents import Planned, told_by
from koordpy.view.view_document import DECISION_SECONDS, DECISIONS_KEPT, VERSION, LiveDocument
from tests.docs.worked import ROOT
from tests.given_devices import numbers_of

GPU, NPU = keys.GPU_RESOURCES[0], keys.NPU_RESOURCES[0]
CONFIG = KoordpyConfiguration()


def cluster(nodes: int = 4) -> ClusterState:
    state = make_state(gpu=CONFIG.gpu)
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
    table = page.partition("## API")[2]
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
        plan = {f"default/p{i}": PlannedPlace("n0", {"gpus": (i,)}) for i in range(random.randrange(3))}
        told = told_by(log, source="", planned=plan)
        change = scene.update(state.snapshot(float(step)), told)
        document = merged(document, json.loads(json.dumps(change)))
        assert document == json.loads(json.dumps(scene.whole())), step
        anew = LiveDocument(CONFIG)
        anew.update(state.snapshot(float(step)), told)
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
    assert "would evict 1 pod by rule priority" in unit["message"]
    assert kept.whole()["decisions"] == []
    assert kept.whole()["planned"] == {"default/high": ["n0", None, True]}
    assert kept.whole()["slots"]["domains"] == [[0]]
    (plan,) = kept.whole()["plans"]
    assert (plan["what"], plan["victims"]) == ("would evict", unit["victims"])


def test_what_the_next_round_places_is_told_by_pod() -> None:
    state = cluster(3)
    state.upsert(objects.group("g", 2))
    for i in range(2):
        state.upsert(gpu_pod(f"g-{i}", gang="g"))
    state.upsert(gpu_pod("runs", at="n1"))
    state.upsert(gpu_pod("vast", 9))
    snapshot = state.snapshot(60.0)
    scene = LiveDocument(CONFIG)
    scene.update(snapshot, Planned(CONFIG, source="")(snapshot))
    document = scene.whole()
    places = {one.pod_key: one.node for one in plan_round(snapshot, CONFIG).placements}
    assert places.keys() == {"default/g-0", "default/g-1"}
    assert set(places.values()) == {"n0", "n2"}
    assert document["planned"] == {key: [node, None, False] for key, node in places.items()}
    assert [(one["unit"], one["what"]) for one in document["plans"]] == [("gang:default/g", "would bind")]
    gang = next(one for one in document["queue"]["units"] if one["unit"] == "gang:default/g")
    assert gang["room"] == places
    assert all(document["pods"][key][0] == "" for key in places), "nothing is carried out"
    assert document["slots"]["domains"] == [[0]], "another gang finds no room that is planned"
    for key, node in places.items():
        state.bind(key, node)
    assert seen(state)["slots"]["domains"] == document["slots"]["domains"]


def test_planned_gpus_are_told_by_their_positions() -> None:
    state = cluster(1)
    entries = [DeviceEntry(type="gpu", minor=2 * i, id=f"GPU-{i}", health=True) for i in range(8)]
    state.upsert(Device(metadata=ObjectMeta(name="n0"), spec=DeviceSpec(devices=entries)))
    state.upsert(gpu_pod("a", 3))
    snapshot = state.snapshot(60.0)
    scene = LiveDocument(CONFIG)
    scene.update(snapshot, Planned(CONFIG, source="")(snapshot))
    (placement,) = plan_round(snapshot, CONFIG).placements
    assert len(numbers_of(placement)) == 3
    (place,) = scene.whole()["planned"].values()
    assert place == ["n0", [minor // 2 for minor in numbers_of(placement)], False]


REPLICAS = OwnerReference(kind="ReplicaSet", name="web-7d9f", uid="u", controller=True)


@pytest.mark.parametrize(("owner", "labels", "workload"), [
    (None, {}, ""),
    (OwnerReference(kind="Job", name="train", uid="u", controller=True), {}, "Job/train"),
    (OwnerReference(kind="Job", name="train", uid="u"), {}, ""),
    (REPLICAS, {"pod-template-hash": "7d9f"}, "Deployment/web"),
    (REPLICAS, {"pod-template-hash": "0000"}, "ReplicaSet/web-7d9f"),
    (REPLICAS, {}, "ReplicaSet/web-7d9f"),
])  # fmt: skip
def test_a_pod_tells_its_workload(owner: OwnerReference | None, labels: dict[str, str], workload: str) -> None:
    state = cluster(1)
    pod = gpu_pod("a", 1, at="n0", labels=labels)
    meta = structs.replace(pod.metadata, owner_references=[owner] if owner is not None else [])
    state.upsert(structs.replace(pod, metadata=meta))
    assert seen(state)["pods"]["default/a"][10] == workload


def test_a_pod_tells_since_when_it_runs_else_since_when_it_exists() -> None:
    state = cluster(1)
    for name, start in (("new", None), ("runs", "2026-01-01T02:00:00Z")):
        pod = gpu_pod(name, 1, at="n0")
        meta = structs.replace(pod.metadata, creation_timestamp="2026-01-01T00:00:00Z")
        state.upsert(structs.replace(pod, metadata=meta, status=structs.replace(pod.status, start_time=start)))
    midnight = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    rows = seen(state)["pods"]
    assert (rows["default/new"][9], rows["default/runs"][9]) == (midnight, midnight + 7200)


@pytest.mark.parametrize(("old", "recent", "left"), [
    (3, 0, 3),
    (DECISIONS_KEPT + 5, 0, DECISIONS_KEPT),
    (DECISIONS_KEPT + 5, 7, DECISIONS_KEPT),
    (2, DECISIONS_KEPT + 4, DECISIONS_KEPT + 4),
])  # fmt: skip
def test_old_decisions_go_but_for_the_latest(old: int, recent: int, left: int) -> None:
    now = 10 * DECISION_SECONDS
    made = [
        Decision(i, 1.0 if i < old else now, f"u{i}", 1, 0, "unknown", None, (), "why") for i in range(old + recent)
    ]
    scene, state = LiveDocument(CONFIG), cluster(1)
    scene.update(state.snapshot(1.0), Remarks(decisions=tuple(made[:old]), decided=old))
    scene.update(state.snapshot(now), Remarks(decisions=tuple(made), decided=old + recent))
    assert [one["unit"] for one in scene.whole()["decisions"]] == [one.unit for one in made[-left:]]


BLOCKS = [
    HierarchyEntry(topology_layer="blockLayer", label_key=["block"]),
    HierarchyEntry(topology_layer="rackLayer", label_key=["rack"], parent_topology_layer="blockLayer"),
    HierarchyEntry(topology_layer="nodeLayer", parent_topology_layer="rackLayer"),
]


def half_full(draw: random.Random) -> list[Any]:
    """Nodes of two sizes in racks and blocks, some cordoned, some in use."""
    spec = ClusterNetworkTopologySpec(network_topology_spec=BLOCKS)
    out: list[Any] = [ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=spec)]
    for i in range(24):
        labels = {"block": f"b{i // 12}", "rack": f"r{i // 3}"}
        node = objects.node(f"n{i}", {GPU: draw.choice(["8", "8", "4"]), "cpu": "64"}, labels=labels)
        out.append(structs.replace(node, spec=structs.replace(node.spec, unschedulable=draw.random() < 0.15)))
        if draw.random() < 0.4:
            out.append(gpu_pod(f"runs-{i}", draw.choice([1, 4]), at=f"n{i}", priority=5))
    return out


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_gang_fits_and_one_larger_does_not(seed: int) -> None:
    there = half_full(random.Random(seed))

    def state_with(pods: int, layer: str) -> ClusterState:
        state = make_state(gpu=CONFIG.gpu)
        strategy = {"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]}
        group = objects.group("asked", pods, annotations={keys.GANG_TOPOLOGY: json.dumps(strategy)} if layer else {})
        for one in (*there, group, *(gpu_pod(f"asked-{i}", 8, gang="asked") for i in range(pods))):
            state.upsert(one)
        return state

    snapshot = state_with(0, "").snapshot(0.0)
    slots = seen(state_with(0, ""))["slots"]
    assert slots["perPod"] == 8
    assert [one[0] for one in slots["largest"]] == ["ClusterTopologyLayer", "blockLayer", "rackLayer"]
    for level, (layer, domain, pods) in enumerate(slots["largest"]):
        assert pods > 0
        for size in (pods, pods + 1):
            state = state_with(size, layer if level else "")
            found = simulate(state, CONFIG, planner=plan_round, now=datetime(2026, 1, 1, tzinfo=UTC))
            assert len(found.bindings) == (size if size == pods else 0), (layer, domain, size)
        names = [snapshot.tree.path(level, d) for d in range(len(snapshot.tree.levels[level].names))]
        assert slots["domains"][level][names.index(domain)] == max(slots["domains"][level])


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document of the page of a simulation, and its JSON."""
    texts = []
    for form in ("html", "json"):
        assert main(["simulate", "-o", form, *words]) == 0
        texts.append(capsys.readouterr().out)
    inside = re.search(r'<script id="document" type="application/json">(.*?)</script>', texts[0], re.DOTALL)
    assert inside is not None
    return json.loads(inside[1]), json.loads(texts[1])


def test_a_simulation_marks_the_pods_that_it_placed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = tmp_path / "runs.json"
    container = {"name": "main", "image": "i", "resources": {"requests": {GPU: "8"}, "limits": {GPU: "8"}}}
    spec = {"nodeName": "node-0", "schedulerName": CONFIG.scheduler_names[0], "containers": [container]}
    runs.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runs"}, "spec": spec}))
    examples = ROOT / "examples"
    document, result = simulated(
        capsys, "-f", str(examples / "cluster"), "-f", str(examples / "prefer-gather.yaml"), "-f", str(runs)
    )
    bound = {f"{one['namespace']}/{one['pod']}": one["node"] for one in result["bindings"]}
    assert len(bound) == 4
    assert {key: place[0] for key, place in document["planned"].items()} == bound
    assert document["pods"]["default/runs"][0] == "node-0"
    assert all(document["pods"][key][0] == node for key, node in bound.items())


def test_a_simulation_that_is_cut_off_draws_the_round_to_come(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "examples" / "preemption"
    words = ("-f", str(folder / "consolidation.yaml"), "--config", str(folder / "config-consolidation.yaml"))
    document, result = simulated(capsys, *words, "--rounds", "1")
    assert [one["pod"] for one in result["evictions"]] == ["other"]
    assert {key: place[0] for key, place in document["planned"].items()} == {"default/two": "n2", "default/other": "n1"}
    assert document["pods"]["default/two"][5] == "r"
    assert document["pods"]["default/other"][5] != "r"
    whole, result = simulated(capsys, *words)
    assert whole["planned"] == document["planned"]
    assert whole["pods"]["default/other"][5] == "r"
