# SPDX-License-Identifier: Apache-2.0
"""docs/gangs.md holds: its manifests do what it says, its tables name what the code has, no more and no less."""

import ast
import contextlib
import inspect
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from koordpy.cli.main import main
from koordpy.config.configuration_file import load_config
from koordpy.engine.status import group_status, scheduler_events
from koordpy.report import eviction_words as wording
from tests.clusters import BLOCK
from tests.docs.jobs import pods_of, with_pods
from tests.docs.worked import ROOT, blocks_of

PAGE = ROOT / "docs" / "gangs.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = {block.path: block.text for block in blocks_of(PAGE)}
CLUSTER = str(ROOT / "examples" / "cluster")
RANK = "scheduling.koordinator.sh/rank"
Json = dict[str, Any]


def documents(name: str) -> list[Json]:
    return list(yaml.safe_load_all(BLOCKS[name]))


def rows(heading: str) -> list[list[str]]:
    """Cells of the tables under a heading, without their first two lines."""
    section = re.split(rf"^#+ {re.escape(heading)}$", TEXT, flags=re.M)[1]
    section = re.split(r"^## ", section, flags=re.M)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.M)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def simulated(objects: Iterable[Json], folder: Path, *words: str, cluster: bool = True) -> tuple[Json, str]:
    """(answer, warnings) of simulate."""
    file = folder / "in.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["simulate", *(["-f", CLUSTER] if cluster else []), "-f", str(file), "-o", "json", *words]) == 0, (
            err.getvalue()
        )
    return json.loads(out.getvalue()), err.getvalue()


def pod(name: str, *, gpus: int = 1, labels: Json | None = None, notes: Json | None = None) -> Json:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container]}
    meta = {"name": name, "labels": labels or {}, "annotations": notes or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def group(name: str, minimum: int, notes: Json | None = None, labels: Json | None = None) -> Json:
    meta = {"name": name, "annotations": notes or {}, "labels": labels or {}}
    kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
    return {**kind, "metadata": meta, "spec": {"minMember": minimum}}


# Its manifests


def test_every_manifest_is_tried_here() -> None:
    assert set(BLOCKS) == {"train.yaml", "small.yaml", "config.yaml", "rank.yaml", "pipeline.yaml", "server.yaml"}


@pytest.mark.parametrize(("name", "layer"), [("train.yaml", "blockLayer"), ("small.yaml", "acceleratorLayer")])
def test_its_jobs_start_as_gangs_in_one_domain(name: str, layer: str, tmp_path: Path) -> None:
    answer, warned = simulated(with_pods(documents(name)), tmp_path)
    (found,) = answer["gangs"]
    assert warned == ""
    assert (found["status"], found["proof"], found["domain"]["layer"]) == ("Scheduled", "optimal", layer)
    job = documents(name)[-1]
    places = {made["metadata"]["name"]: i for i, made in enumerate(pods_of(job))}
    assert {one["pod"]: int(one["annotations"][RANK]) for one in answer["bindings"]} == places


@pytest.mark.parametrize("name", ["train.yaml", "small.yaml"])
def test_one_member_alone_waits_for_the_others(name: str, tmp_path: Path) -> None:
    *groups, job = documents(name)
    minimum = job["spec"]["parallelism"]
    answer, _ = simulated([*groups, pods_of(job)[0]], tmp_path)
    (waiting,) = answer["pending"]
    assert f"waiting for members, 1 of minMember {minimum} exist" in waiting["message"]


def test_pods_wait_for_their_pod_group(tmp_path: Path) -> None:
    answer, _ = simulated(pods_of(documents("train.yaml")[-1]), tmp_path)
    assert {one["message"] for one in answer["pending"]} == {"gang default/train: PodGroup not found"}


def test_the_configuration_is_one_and_gathers_gangs_that_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(BLOCKS["config.yaml"])
    gangs = load_config(str(file)).gangs
    assert [rule.layer for _, rule in gangs.gather("default")] == ["blockLayer"]
    assert list(gangs.gather("inference")) == []
    silent = [group("g", 2), *(pod(f"g-{i}", gpus=8, labels={keys.LABEL_POD_GROUP: "g"}) for i in range(2))]
    without, warned = simulated(silent, tmp_path)
    assert without["gangs"][0]["domain"] is None and "no gather goal" in warned
    gathered, warned = simulated(silent, tmp_path, "--config", str(file))
    assert (gathered["gangs"][0]["domain"]["layer"], warned) == ("acceleratorLayer", "")


def test_a_pipeline_stays_whole(tmp_path: Path) -> None:
    """Eight members over two blocks of four free nodes each: each pipeline of four in one of them."""
    labels = {keys.LABEL_POD_GROUP: "pipeline"}
    nodes = list(yaml.safe_load_all((ROOT / "examples" / "cluster" / "nodes.yaml").read_text()))
    block = {one["metadata"]["name"]: one["metadata"]["labels"][BLOCK] for one in nodes}
    first, second = sorted(set(block.values()))[:2]
    kept = [n for name in (first, second) for n in [one for one in nodes if block[one["metadata"]["name"]] == name][:4]]
    topology = list(yaml.safe_load_all((ROOT / "examples" / "cluster" / "topology.yaml").read_text()))
    pods = [pod(f"p-{i}", gpus=8, labels=labels) for i in range(8)]
    answer, warned = simulated([*kept, *topology, *documents("pipeline.yaml"), *pods], tmp_path, cluster=False)
    assert warned == ""
    ranks = {int(one["annotations"][RANK]): block[one["node"]] for one in answer["bindings"]}
    assert len({ranks[i] for i in range(4)}) == len({ranks[i] for i in range(4, 8)}) == 1
    assert ranks[0] != ranks[4]


def test_gangs_of_a_group_start_together_or_not_at_all(tmp_path: Path) -> None:
    pods = {
        name: [pod(f"{name}-{i}", gpus=8, labels={keys.LABEL_POD_GROUP: name}) for i in range(count)]
        for name, count in (("prefill", 2), ("decode", 4))
    }
    short, _ = simulated([*documents("server.yaml"), *pods["prefill"], *pods["decode"][:3]], tmp_path)
    assert short["bindings"] == []
    whole, _ = simulated([*documents("server.yaml"), *pods["prefill"], *pods["decode"]], tmp_path)
    assert len(whole["bindings"]) == 6
    alone, _ = simulated([documents("server.yaml")[0], *pods["prefill"]], tmp_path)
    assert {one["message"] for one in alone["pending"]} == {
        "gang default/decode: PodGroup not found, listed in groups of gang default/prefill"
    }


# What it says in words


def gathered(notes: Json, folder: Path, count: int, *cluster: Json, minimum: int | None = None) -> Json:
    """The answer for so many members of 8 GPUs; on the cluster of the examples where none is given."""
    pods = [pod(f"g-{i}", gpus=8, labels={keys.LABEL_POD_GROUP: "g"}) for i in range(count)]
    made = group("g", count if minimum is None else minimum, notes)
    return simulated([*cluster, made, *pods], folder, cluster=not cluster)[0]


def wish(layer: str, strategy: str) -> Json:
    return {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [{"layer": layer, "strategy": strategy}]})}


def test_which_layer_is_preferred_makes_no_difference(tmp_path: Path) -> None:
    for count in (2, 10):
        layers = ("spineLayer", "blockLayer", "acceleratorLayer", "nodeLayer")
        answers = [gathered(wish(layer, "PreferGather"), tmp_path, count) for layer in layers]
        places = [[(one["pod"], one["node"]) for one in answer["bindings"]] for answer in answers]
        assert len(places[0]) == count and places.count(places[0]) == len(layers)


def test_members_come_before_nearness_unless_a_must_forbids(tmp_path: Path) -> None:
    """A block has eight nodes."""
    preferred = gathered(wish("blockLayer", "PreferGather"), tmp_path, 10, minimum=4)
    assert (preferred["gangs"][0]["bound"], preferred["gangs"][0]["domain"]["layer"]) == (10, "spineLayer")
    forced = gathered(wish("blockLayer", "MustGather"), tmp_path, 10, minimum=4)
    assert (forced["gangs"][0]["bound"], forced["gangs"][0]["domain"]["layer"]) == (8, "blockLayer")


@pytest.mark.parametrize(("ended", "rank"), [(False, "3"), (True, "2")])
def test_a_member_that_is_made_again_has_its_rank_while_all_others_exist(
    ended: bool, rank: str, tmp_path: Path
) -> None:
    job = documents("train.yaml")[-1]
    pods = pods_of(job)
    for one in pods[:3]:
        one["spec"] = {**one["spec"], "nodeName": "node-0"}
        one["status"] = {"phase": "Running"}
    pods[0]["status"] = {"phase": "Succeeded" if ended else "Running"}
    for one, node in zip(pods, ("node-0", "node-1", "node-2"), strict=False):
        one["spec"]["nodeName"] = node
    answer, _ = simulated([documents("train.yaml")[0], *pods], tmp_path)
    assert [one["annotations"][RANK] for one in answer["bindings"]] == [rank]


def test_a_container_reads_the_rank_that_a_binding_writes() -> None:
    (variable,) = yaml.safe_load(BLOCKS["rank.yaml"])["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{keys.BOUND_RANK}']"


@pytest.mark.parametrize(("free", "bound"), [("16", 2), ("17", 0)])
def test_min_resources_hold_a_gang_until_so_much_is_free(free: str, bound: int, tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    room = {"allocatable": {"cpu": "9", "pods": "9", "nvidia.com/gpu": "16"}}
    made = group("g", 2)
    made["spec"]["minResources"] = {"nvidia.com/gpu": free}
    pods = [pod(f"g-{i}", labels={keys.LABEL_POD_GROUP: "g"}) for i in range(2)]
    answer, _ = simulated([{**node, "status": room}, made, *pods], tmp_path, cluster=False)
    assert len(answer["bindings"]) == bound


# Its tables


CASES = {
    "0 run": (0, 0, 4),
    "2 run, 2 pending": (2, 0, 2),
    "3 Succeeded, 1 pending": (0, 3, 1),
    "2 run, 4 pending": (2, 0, 4),
}
"""Column -> members that run, have Succeeded, wait."""
NEEDS = [
    (row[0], case, cell)
    for row in rows("Settings of a gang")
    if row[0] in ("once-satisfied", "waiting-and-running", "only-waiting")
    for case, cell in zip(CASES, row[1:], strict=True)
]


def started(policy: str, case: str, *, free: int, folder: Path) -> int:
    """How many of those that wait start where so many GPUs are free."""
    run, done, wait = CASES[case]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    room = {"cpu": "99", "memory": "1Ti", "pods": "99", "nvidia.com/gpu": str(run + free)}
    labels = {keys.LABEL_POD_GROUP: "g"}
    pods = [pod(f"g-{i}", labels=labels) for i in range(run + done + wait)]
    for one in pods[: run + done]:
        one["spec"]["nodeName"] = "n"
    for i, one in enumerate(pods[: run + done]):
        one["status"] = {"phase": "Running" if i < run else "Succeeded"}
    objects = [{**node, "status": {"allocatable": room}}, group("g", 4, {keys.GANG_MATCH_POLICY: policy}), *pods]
    answer, _ = simulated(objects, folder, cluster=False)
    return len(answer["bindings"])


def test_the_table_of_needs_has_a_column_for_every_case() -> None:
    assert [cell.strip() for cell in TEXT.partition("| match-policy |")[2].splitlines()[0].split("|")[:-1]] == list(
        CASES
    )
    assert len(NEEDS) == 12


@pytest.mark.parametrize(("policy", "case", "cell"), NEEDS)
def test_so_many_start_together_as_the_table_says(policy: str, case: str, cell: str, tmp_path: Path) -> None:
    wait = CASES[case][2]
    need = 1 if cell == "each alone" else int(cell.partition(":")[0])
    assert started(policy, case, free=need - 1, folder=tmp_path) == 0
    assert started(policy, case, free=need, folder=tmp_path) == (need if need <= wait else 0)
    assert (need > wait) == ("wait for more" in cell)


def constants_in(function: Any) -> set[str]:
    """Capitalised words in the code of a function."""
    tree = ast.parse(inspect.getsource(function))
    words = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {word for word in words if re.fullmatch(r"[A-Z][a-z]+", word)}


def test_every_phase_is_told() -> None:
    told = [row[0] for row in rows("Status and events")]
    assert constants_in(group_status.phase_of) == set(told) & {
        "Pending", "Scheduling", "Scheduled", "Running", "Finished", "Failed",
    }  # fmt: skip


def test_every_condition_is_told_with_the_reasons_that_it_has() -> None:
    told = {row[0]: row[2] for row in rows("Status and events") if len(row) == 3}
    assert {group_status.SCHEDULED, group_status.STALE, group_status.DISRUPTED} <= set(told)
    for type_, reasons in (
        (group_status.SCHEDULED, (group_status.SCHEDULED, group_status.TIMED_OUT, *group_status.GangStatus)),
        (group_status.STALE, (group_status.MEMBERS_MISSING, group_status.WHOLE, group_status.DISBANDED)),
        (group_status.DISRUPTED, (group_status.WHOLE, *wording._REASONS.values())),
    ):
        assert [str(reason) for reason in reasons if str(reason) not in told[type_]] == []


def test_every_event_of_a_gang_is_told() -> None:
    told = {word for row in rows("Status and events") for word in row[0].split(", ")}
    of_others = {
        scheduler_events.LEADS,
        scheduler_events.SCHEDULED,
        scheduler_events.FAILED,
        scheduler_events.INVALID_SPEC,
        "Preempted",
    }
    of_others |= {"ForeignBinding", "TopologyDegraded", "TopologyRepaired", "NodeBackedOff", "NodeGivenBack"}
    of_others |= {"ProvisioningRequested", "Provisioned", "ProvisioningFailed"}
    of_others |= {"BindingConditionsPending", "FeatureDisabled"}
    assert scheduler_events.EVENTS.keys() - of_others <= told
