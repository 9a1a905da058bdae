# SPDX-License-Identifier: Apache-2.0
"""Scenarios in steps, and output that is the next input: bindings and places are told, or follow from enumeration."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main

GPU = "nvidia.com/gpu"
Json = dict[str, Any]


def node(name: str, block: str = "b1", gpus: int = 8, **spec: Any) -> Json:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    labels = {"net/block": block, "kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec} | {
        "status": {"allocatable": amounts}
    }


def pod(name: str, gpus: int = 8, **more: Any) -> Json:
    resources = {"limits": {GPU: str(gpus)}}
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i", "resources": resources}]}
    meta = {"name": name, **more.pop("meta", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, **more}}


def job(name: str, pods: int, gpus: int = 8) -> Json:
    template = {"spec": {**pod("x", gpus)["spec"], "restartPolicy": "Never"}}
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


class Asked:
    """Runs simulate on manifests in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys, self._files = folder, capsys, 0

    def file(self, *manifests: Json) -> str:
        self._files += 1
        path = self._folder / f"in-{self._files}.yaml"
        path.write_text(yaml.safe_dump_all(manifests), encoding="utf-8")
        return str(path)

    def text(self, *words: str) -> tuple[int, str, str]:
        status = main(["simulate", *words])
        said = self._capsys.readouterr()
        return status, said.out, said.err

    def json(self, *words: str) -> Json:
        status, out, err = self.text(*words, "-o", "json")
        assert status == 0, err
        found: Json = json.loads(out)
        return found


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(tmp_path, capsys)


def places(document: Json) -> dict[str, str]:
    return {one["pod"]: one["node"] for one in document["final"]}


def bound_in(document: Json) -> dict[int, dict[str, str]]:
    out: dict[int, dict[str, str]] = {}
    for one in document["bindings"]:
        out.setdefault(one["round"], {})[one["pod"]] = one["node"]
    return out


def test_steps_go_in_the_order_of_the_options_and_rounds_are_counted_on(ask: Asked) -> None:
    first = ask.file(node("n1"), node("n2"), node("n3"), pod("a"))
    then = ask.file(pod("b"))
    found = ask.json("-f", first, "--then", then, "--fail-node", "n1", "--drain", "n2")
    assert bound_in(found) == {1: {"a": "n1"}, 3: {"b": "n2"}, 5: {"a": "n3"}}
    assert places(found) == {"a": "n3"}
    assert [(one["step"], one["firstRound"], one["rounds"], one["gone"], one["pending"]) for one in found["steps"]] == [
        ("the input", 1, 2, [], []),
        (f"--then {then}", 3, 2, [], []),
        ("--fail-node n1", 5, 2, ["default/a"], []),
        ("--drain n2", 7, 1, ["default/b"], ["default/b"]),
    ]
    assert found["rounds"] == 7 and found["evictions"] == []
    other = ask.json("-f", first, "--drain", "n2", "--fail-node", "n1", "--then", then)
    assert places(other) == {"a": "n3"} and other["steps"][-1]["pending"] == ["default/b"]


def test_the_result_has_steps_only_where_there_are_some(ask: Asked) -> None:
    assert "steps" not in ask.json("-f", ask.file(node("n1"), pod("a")))


def test_pods_that_leave_a_node_are_gone_where_evicted_ones_are_dropped(ask: Asked) -> None:
    first = ask.file(node("n1"), node("n2"), job("train", 1))
    for step in ("--drain", "--fail-node"):
        found = ask.json("-f", first, step, "n1", "--evicted", "drop")
        assert places(found) == {} and found["pending"] == []
        assert found["steps"][-1]["gone"] == ["default/train-0"]


def daemon(name: str) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    return pod(name, 0, meta={"ownerReferences": [owner]}, nodeName="n1")


def test_pods_of_daemons_stay_on_a_node_that_is_drained_and_vanish_with_one_that_fails(ask: Asked) -> None:
    first = ask.file(node("n1"), node("n2"), daemon("d-1"), pod("a", nodeName="n1"))
    assert places(ask.json("-f", first, "--drain", "n1")) == {"d-1": "n1", "a": "n2"}
    assert places(ask.json("-f", first, "--fail-node", "n1")) == {"a": "n2"}


def test_new_nodes_are_copies_without_what_the_old_one_holds(ask: Asked) -> None:
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n1"},
        "spec": {"devices": [{"type": "gpu", "minor": i, "id": f"GPU-{i}", "health": True} for i in range(8)]},
    }
    cordoned = node(
        "n1", unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    )
    first = ask.file(cordoned, device, pod("old", nodeName="n1"), job("train", 2))
    found = ask.json("-f", first, "--add-nodes", "2", "--like", "n1")
    assert [one["pending"] for one in found["steps"]] == [["default/train-0", "default/train-1"], []]
    assert sorted(places(found).values()) == ["n1", "n1-copy-1", "n1-copy-2"]
    (gpus,) = {one["annotations"]["topology.scheduling.koordinator.sh/gpu"] for one in found["bindings"]}
    assert len(json.loads(gpus)["visibleGPUs"]) == 8


@pytest.mark.parametrize("has_object", [True, False])
def test_added_nodes_run_the_daemons_of_the_node_that_they_are_like(ask: Asked, has_object: bool) -> None:
    """A DaemonSet uses 2 of 8 GPUs of each node, and a mirror pod 2, whether the DaemonSet is in the input or not."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": True}
    agent = pod("agent-n1", 2, nodeName="n1", schedulerName="other", meta={"ownerReferences": [owner]})
    local = pod("local-n1", 2, nodeName="n1", meta={"annotations": {"kubernetes.io/config.mirror": "x"}})
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod("x", 2, schedulerName="other")["spec"]}
    daemons = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "uid": "u"}}
    daemons["spec"] = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    waiting = [pod(f"p-{i}", 4) for i in range(4)]
    first = ask.file(node("n1"), agent, local, *waiting, *([daemons] if has_object else []))
    found = ask.json("-f", first, "--add-nodes", "2", "--like", "n1")
    assert sorted(one["node"] for one in found["bindings"]) == ["n1", "n1-copy-1", "n1-copy-2"]
    status, left, _ = ask.text("-f", first, "--add-nodes", "1", "--like", "n1", "-o", "manifests")
    made = {one["metadata"]["name"]: one for one in yaml.safe_load_all(left)}
    assert status == 0 and made["agent-n1-copy-1"]["spec"]["nodeName"] == "n1-copy-1"
    assert "local-n1-copy-1" in made


def test_an_object_of_a_step_takes_the_place_of_one_of_its_name(ask: Asked) -> None:
    """Status and age stay where the step says none: a node that is cordoned in a file keeps its GPUs."""
    first = ask.file(node("n1"), node("n2"), pod("a"))
    cordoned = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}, "spec": {"unschedulable": True}}
    assert ask.json("-f", first, "--then", ask.file(cordoned), "--then", ask.file(pod("b")))["pending"] != []
    opened = ask.file({**cordoned, "spec": {}})
    assert (
        places(ask.json("-f", first, "--then", ask.file(cordoned), "--then", opened, "--then", ask.file(pod("b"))))["b"]
        == "n2"
    )
    done = {**pod("a", nodeName="n1"), "status": {"phase": "Succeeded"}}
    assert places(
        ask.json("-f", first, "--then", ask.file(done), "--then", ask.file(pod("b", nodeSelector={"net/block": "b1"})))
    ) == {"b": "n1"}


def test_a_job_that_grows_makes_the_pods_that_it_lacks(ask: Asked) -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    found = ask.json("-f", ask.file(*nodes, job("train", 2)), "--then", ask.file(job("train", 3)))
    assert set(places(found)) == {"train-0", "train-1", "train-2"}
    (told,) = found["workloads"]
    assert (told["made"], told["present"]) == (3, 0)


FAULTS = {
    ("--drain", "nx"): "--drain nx: no node nx at this step",
    ("--fail-node", "nx"): "--fail-node nx: no node nx at this step",
    ("--fail-node", "n1", "--fail-node", "n2"): "--fail-node n2: no node would be left",
    ("--add-nodes", "2"): "--add-nodes 2: --like NODE is missing",
    ("--like", "n1"): "--like n1: does not follow --add-nodes COUNT",
    ("--add-nodes", "1", "--like", "n9"): "--add-nodes 1 --like n9: no node n9 at this step",
    ("--then", "/nowhere.yaml"): "/nowhere.yaml: cannot be read: No such file or directory",
}


@pytest.mark.parametrize("words", FAULTS)
def test_faults_of_a_step_end_with_status_2_before_anything_is_told(ask: Asked, words: tuple[str, ...]) -> None:
    status, out, err = ask.text("-f", ask.file(node("n1"), node("n2"), pod("a")), *words)
    assert (status, out) == (2, "") and err.startswith(FAULTS[words])


@pytest.mark.parametrize("seed", range(12))
def test_what_a_run_leaves_is_the_next_input(ask: Asked, seed: int) -> None:
    """Random clusters: the manifests of one run with others on top end as both in steps; and they are at rest."""
    rng = random.Random(seed)
    nodes = [node(f"n{i}", f"b{i % 2}") for i in range(rng.randint(2, 5))]
    one = [job(f"j{i}", rng.randint(1, 3), rng.choice([2, 4, 8])) for i in range(rng.randint(1, 3))]
    two = [pod(f"p{i}", rng.choice([1, 2, 4, 8])) for i in range(rng.randint(1, 4))]
    first, second = ask.file(*nodes, *one), ask.file(*two)
    status, left, _ = ask.text("-f", first, "-o", "manifests")
    assert status == 0
    again = ask.file()
    Path(again).write_text(left)
    assert ask.json("-f", again)["bindings"] == []
    assert ask.text("-f", again, "-o", "manifests")[1] == left
    result = ask.json("-f", first)
    assert places(ask.json("-f", again)) == places(result)
    told = ask.json("-f", first, "-f", ask.file(result))
    assert told["bindings"] == [] and places(told) == places(result)
    in_steps = ask.json("-f", first, "--then", second)
    assert places(ask.json("-f", again, "-f", second)) == places(in_steps)
    used: dict[str, int] = {}
    asked = {f"{one['metadata']['name']}-{i}": one for one in one for i in range(3)} | {
        p["metadata"]["name"]: p for p in two
    }
    for name, where in places(in_steps).items():
        spec = asked[name]["spec"]
        containers = spec["template"]["spec"]["containers"] if "template" in spec else spec["containers"]
        used[where] = used.get(where, 0) + int(containers[0]["resources"]["limits"][GPU])
    assert max(used.values()) <= 8


def test_numbers_are_written_as_their_author_wrote_them(ask: Asked) -> None:
    amounts = "{cpu: 0.10, memory: 9007199254740993, pods: 1e1}"
    text = f"kind: Node\napiVersion: v1\nmetadata: {{name: n1}}\nstatus: {{allocatable: {amounts}}}\n"
    path = Path(ask.file())
    path.write_text(text)
    left = ask.text("-f", str(path), "-o", "manifests")[1]
    for number in ("cpu: 0.10\n", "memory: 9007199254740993\n", "pods: 1e1\n"):
        assert number in left


RESULT = {"apiVersion": "koordpy.io/v1alpha1", "kind": "SimulationResult"}


def test_a_result_says_where_pods_are_at_the_beginning(ask: Asked) -> None:
    """Also of pods that workloads make, step by step; who was evicted waits or is gone, as the result says."""
    low, high = pod("low", priority=0), pod("high", priority=1000)
    first = ask.file(node("n1"), node("n2", gpus=0), pod("other", 0, nodeName="n2"), low, job("train", 1, 0))
    for evicted in ("recreate", "drop"):
        bound = ask.file(*yaml.safe_load_all(Path(first).read_text()))
        once = ask.json("-f", bound)
        assert places(once)["low"] == "n1"
        result = ask.json("-f", bound, "-f", ask.file(once), "-f", ask.file(high), "--evicted", evicted)
        assert {one["pod"]: one["rule"] for one in result["evictions"]} == {"low": "priority"}
        again = ask.json("-f", bound, "-f", ask.file(high), "-f", ask.file(result))
        assert (again["bindings"], again["evictions"]) == ([], [])
        assert places(again) == places(result) and places(again)["high"] == "n1"
        assert [one["pod"] for one in again["pending"]] == (["low"] if evicted == "recreate" else [])


def test_a_result_leaves_a_pod_alone_whose_node_object_is_gone(ask: Asked) -> None:
    first = ask.file(node("n1"), pod("a", nodeName="lost"), pod("b"))
    result = ask.json("-f", first)
    assert places(ask.json("-f", first, "-f", ask.file(result))) == places(result) == {"a": "lost", "b": "n1"}


def test_annotations_of_a_result_count_as_those_of_bindings(ask: Asked) -> None:
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n1"},
        "spec": {"devices": [{"type": "gpu", "minor": i, "id": f"GPU-{i}", "health": True} for i in range(8)]},
    }
    first = ask.file(node("n1"), device, pod("a", 5))
    result = ask.json("-f", first)
    more = ask.json("-f", first, "-f", ask.file(result), "-f", ask.file(pod("b", 3)))

    def gpus(document: Json) -> set[str]:
        (one,) = document["bindings"]
        return set(json.loads(one["annotations"]["topology.scheduling.koordinator.sh/gpu"])["allocatedGPUs"]["0"])

    assert len(gpus(result)) == 5 and len(gpus(more)) == 3 and not gpus(result) & gpus(more)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"final": 1}, "final: must be a list, not a number"),
        ({"final": [{"namespace": "default", "pod": "a"}]}, "final[0].node: is no text"),
        (
            {"final": [{"namespace": "default", "pod": "a", "node": "n3"}]},
            "final: pod default/a: no node n3 in the input",
        ),
        (
            {"final": [{"namespace": "default", "pod": "ab", "node": "n1"}]},
            "final: no pod default/ab in the input",
        ),
    ],
)
def test_a_result_that_does_not_go_with_the_input_is_refused(ask: Asked, result: Json, said: str) -> None:
    status, out, err = ask.text("-f", ask.file(node("n1"), node("n2"), pod("a"), {**RESULT, **result}))
    assert (status, out) == (2, "") and f": document 4: SimulationResult: {said}" in err, err


def test_volumes_that_a_run_bound_stay_bound_and_leave_with_their_node(ask: Asked) -> None:
    """A local volume holds its pod on the node that has it: drained, the pod waits for it."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
    late = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"}, **late}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    reader = pod("a", 1, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    first = ask.file(node("n1"), node("n2"), volume, kind, claim, reader)
    left = {one["kind"]: one for one in yaml.safe_load_all(ask.text("-f", first, "-o", "manifests")[1])}
    assert left["PersistentVolumeClaim"]["spec"]["volumeName"] == "disk"
    assert left["PersistentVolume"]["spec"]["claimRef"]["name"] == "data"
    assert left["Pod"]["spec"]["nodeName"] == "n1"
    drained = ask.json("-f", first, "--drain", "n1")
    (waits,) = drained["pending"]
    assert waits["pod"] == "a" and "node(s) didn't match PersistentVolume's node affinity" in waits["message"]


@pytest.mark.parametrize("seed", range(10))
def test_random_steps_lose_no_pod_and_overfill_no_node(ask: Asked, seed: int) -> None:
    rng = random.Random(1000 + seed)
    nodes = {f"n{i}" for i in range(4)}
    asked = {f"a-{i}": rng.choice([1, 2, 4, 8]) for i in range(5)}
    words: list[str] = []
    usable = [set(nodes)]
    limit = str(rng.choice([2, 20]))
    for number in range(5):
        kind = rng.choice(["then", "drain", "fail-node", "add-nodes"])
        now = usable[-1]
        if kind == "then":
            more = {f"s{number}-{i}": rng.choice([1, 4, 8]) for i in range(rng.randint(1, 3))}
            asked |= more
            urgent = rng.choice([0, 1000])
            words += ["--then", ask.file(*(pod(name, gpus, priority=urgent) for name, gpus in more.items()))]
        elif kind == "add-nodes":
            like = rng.choice(sorted(now))
            words += ["--add-nodes", "1", "--like", like]
            name = next(f"{like}-copy-{i}" for i in range(1, 9) if f"{like}-copy-{i}" not in nodes)
            nodes.add(name)
            now = now | {name}
        elif len(now) > 1:
            gone = rng.choice(sorted(now))
            words += [f"--{kind}", gone]
            now = now - {gone}
            if kind == "fail-node":
                nodes.discard(gone)
        else:
            continue
        usable.append(now)
    first = ask.file(*(node(f"n{i}", f"b{i % 2}") for i in range(4)), *(pod(n, g) for n, g in list(asked.items())[:5]))
    found = ask.json("-f", first, *words, "--rounds", limit)
    final, pending = places(found), {one["pod"] for one in found["pending"]}
    assert final.keys() | pending == asked.keys() and not final.keys() & pending
    used = dict.fromkeys(nodes, 0)
    for name, where in final.items():
        used[where] += asked[name]
    assert max(used.values()) <= 8
    for step, there in zip(found["steps"], usable, strict=True):
        rounds = range(step["firstRound"], step["firstRound"] + step["rounds"])
        assert {one["node"] for one in found["bindings"] if one["round"] in rounds} <= there
    assert ask.json("-f", first, *words, "--rounds", limit) == found
