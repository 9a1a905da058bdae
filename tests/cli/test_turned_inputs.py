# SPDX-License-Identifier: Apache-2.0
"""What must not matter does not: a random cluster is simulated again under other names, in another order, with things
beside it that concern nobody, and has to come out the same.

Sources: simulate.md 1; quota-fairness.md 2; preemption.md 9, I6; kube-parity.md 2.2.
"""

import contextlib
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main as koordpy
from tests.cli.random_manifests import GANG, GPU, Cluster, cluster, run_again, stamped
from tests.halves import own_half

Document = dict[str, Any]
SEEDS = 40
IN_ONE = 5
ROUND_ONE = ("bindings", "evictions")
OUTCOME = ("rounds", "stable", "bindings", "evictions", "final")


def said(one: Cluster, folder: Path, *more: str, form: str = "json") -> str:
    """What `koordpy simulate` prints."""
    path = folder / "input.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": one.documents}))
    return simulated([path], one, folder, *more, form=form)


def simulated(paths: list[Path], one: Cluster, folder: Path, *more: str, form: str = "json") -> str:
    """The same for files that are written already."""
    (folder / "config.json").write_text(json.dumps(one.config))
    words = [word for path in paths for word in ("-f", str(path))]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = koordpy(
            ["simulate", *words, "--config", str(folder / "config.json"), "-o", form, *one.arguments, *more]
        )
    assert status == 0, err.getvalue()
    return out.getvalue()


def copy(one: Cluster, **config: Any) -> Cluster:
    """Documents of its own, the configuration with some sections replaced."""
    return Cluster(json.loads(json.dumps(one.documents)), {**one.config, **config}, list(one.arguments))


def outcome(text: str, *parts: str) -> Document:
    """Parts of a result, and who waits."""
    found = json.loads(text)
    return {part: found[part] for part in parts or OUTCOME} | {"waits": [entry["pod"] for entry in found["pending"]]}


# -- what is changed ---------------------------------------------------------------------------------------------------


def other_order(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """The order of documents, and whether they stand in one file or several."""
    expected = said(one, folder)
    dice = random.Random(len(expected))
    turned = copy(one)
    dice.shuffle(turned.documents)
    yield expected, said(turned, folder)
    cut = dice.randint(0, len(turned.documents))
    first, second = folder / "first.yaml", folder / "second.json"
    first.write_text(yaml.safe_dump_all(turned.documents[:cut]))
    second.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": turned.documents[cut:]}))
    yield expected, simulated([first, second], one, folder)
    yield json.loads(expected), yaml.safe_load(said(one, folder, form="yaml"))


def other_names(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """Names of nodes and of pods, in the same order as before."""
    nodes = {name: f"m{name}0" for name in one.of("Node")}
    pods = {name: f"a{name}" for name in one.of("Pod")}
    turned = copy(one)
    for document in turned.documents:
        meta, spec = document["metadata"], document.get("spec", {})
        if document["kind"] == "Pod":
            meta["name"] = pods[meta["name"]]
            if "nodeName" in spec:
                spec["nodeName"] = nodes[spec["nodeName"]]
        elif document["kind"] in ("Node", "Device"):
            meta["name"] = nodes[meta["name"]]
            if document["kind"] == "Node":
                meta["labels"]["kubernetes.io/hostname"] = meta["name"]
    back = {new: old for names in (nodes, pods) for old, new in names.items()}
    text = re.sub(r"[\w-]+", lambda word: back.get(word[0], word[0]), said(turned, folder))
    yield json.loads(said(one, folder)), json.loads(text)


def beside(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """A node that takes nobody, a namespace, a quota without pods."""
    expected = said(one, folder)
    turned = copy(one)
    closed = {"metadata": {"name": "zz", "labels": {}}, "spec": {"unschedulable": True}}
    none = {"cpu": "0", "memory": "0", "pods": "0"}
    turned.documents.append({"apiVersion": "v1", "kind": "Node", **closed, "status": {"allocatable": none}})
    yield outcome(expected), outcome(said(turned, folder))
    turned = copy(one)
    turned.documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nobody"}})
    yield expected, said(turned, folder)
    turned.documents.append(
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": {"name": "nobody", "namespace": "nobody", "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"min": {}, "max": {"cpu": "4", GPU: "4"}},
        }
    )
    yield outcome(expected), outcome(said(turned, folder))


def twice_the_cpu(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """Cores that are counted twice, asked for and offered."""
    turned = copy(one)
    for document in turned.documents:
        amounts = [document.get("status", {}).get("allocatable", {})]
        amounts += [container["resources"]["requests"] for container in document.get("spec", {}).get("containers", ())]
        if document["kind"] == "ElasticQuota":
            amounts += [document["spec"]["min"], document["spec"]["max"]]
        for one_of in amounts:
            if "cpu" in one_of:
                one_of["cpu"] = str(2 * int(one_of["cpu"]))
    yield outcome(said(one, folder)), outcome(said(turned, folder))


def its_own_result(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """A stable result, fed back: nothing moves, and who waits is told the same."""
    first = json.loads(said(one, folder))
    again = json.loads(said(run_again(one, first), folder))
    yield ([], []), (again["bindings"], again["evictions"])
    for part in ("final", "pending"):
        yield first[part], again[part]


def the_least(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """A pod of the lowest priority, youngest and in nobody's quota, where priority orders the queue."""
    quiet = copy(one, fairness={"mode": "off", "reclaim": "off"})
    turned = copy(quiet)
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}
    turned.documents.append({"kind": "PriorityClass", "metadata": {"name": "least"}, "value": -1000})
    turned.documents.append(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "zz", "labels": {}, "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "zz"},
            "spec": {"schedulerName": "koord-scheduler", "priorityClassName": "least", "containers": [container]},
        }
    )
    before = json.loads(said(quiet, folder, "--rounds", "1"))
    after = json.loads(said(turned, folder, "--rounds", "1"))
    for part in ROUND_ONE:
        yield before[part], [entry for entry in after[part] if entry["pod"] != "zz"]


def more_room(one: Cluster, folder: Path) -> Iterator[tuple[object, object]]:
    """One more node like one there is, and empty: a job that found a place alone still finds one."""
    pods = one.of("Pod")
    pending = sorted(name for name, pod in pods.items() if "nodeName" not in pod["spec"])
    lone = next((name for name in pending if GANG not in pods[name]["metadata"]["labels"]), None)
    if lone is None or "topologySpreadConstraints" in pods[lone]["spec"]:
        return
    others = {"Pod": set(pending) - {lone}, "ElasticQuota": set(one.of("ElasticQuota"))}
    less = copy(one)
    less.documents = [d for d in less.documents if d["metadata"]["name"] not in others.get(d["kind"], ())]
    more = copy(less)
    twin = json.loads(json.dumps(next(d for d in more.documents if d["kind"] == "Node")))
    twin["metadata"] |= {"name": "zz", "labels": {**twin["metadata"]["labels"], "kubernetes.io/hostname": "zz"}}
    more.documents.append(twin)
    before, after = outcome(said(less, folder)), outcome(said(more, folder))
    yield True, lone in before["waits"] or lone not in after["waits"]


CHANGES: Mapping[str, Callable[[Cluster, Path], Iterator[tuple[object, object]]]] = {
    change.__name__: change
    for change in (other_order, other_names, beside, twice_the_cpu, its_own_result, the_least, more_room)
}


@pytest.mark.parametrize("first", own_half(range(0, SEEDS, IN_ONE)))
@pytest.mark.parametrize("change", CHANGES)
def test_it_does_not_matter(change: str, first: int, tmp_path: Path) -> None:
    for seed in range(first, first + IN_ONE):
        for expected, found in CHANGES[change](stamped(cluster(seed)), tmp_path):
            assert found == expected, f"seed {seed}"
