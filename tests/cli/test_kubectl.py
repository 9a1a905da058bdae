# SPDX-License-Identifier: Apache-2.0
"""`kubectl koordpy` on the embedded API server, without kubectl: what it says, reads, and does without."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cli.kubectl import main
from tests.engine.live import Live, gang, live, pod, small, until
from tests.engine.manifests import BLOCK, QUOTAS
from tests.engine.stage import blocks

Json = dict[str, Any]
MUST = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]})}
BUSY = {"busy-0": "n1", "busy-1": "n2"}
WAITING = ("vast", "wide-0", "lonely-0", "poor", "shared", "far-0")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Live]:
    """Two blocks of two nodes with four GPUs; pods that run, and one that waits of each kind."""
    nodes = [small(f"n{i}", labels={BLOCK: f"b{(i + 1) // 2}"}) for i in (1, 2, 3, 4)]
    async with live(nodes) as one:
        store = one.server.store
        store.create("clusternetworktopologies.scheduling.koordinator.sh", blocks())
        quota = {"metadata": {"name": "poor", "namespace": "default"}, "spec": {"min": {}, "max": {"cpu": "1"}}}
        store.create(QUOTAS, quota)
        for name, node in BUSY.items():
            one.create(pod(name, gpus=2, cpu="1", memory="1Gi"))
            one.bind(name, node)
        one.create(pod("vast", gpus=9, cpu="1", memory="1Gi"))
        one.create(*gang("wide", 4, gpus=4), *gang("lonely", 1, gpus=1, min_member=3))
        one.create(pod("poor", gpus=0, cpu="2", memory="1Gi", labels={keys.QUOTA_NAME: "poor"}))
        shares = pod("shared", gpus=0, cpu="1", memory="1Gi")
        for amounts in shares["spec"]["containers"][0]["resources"].values():
            amounts |= {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
        one.create(shares)
        one.create(*gang("far", 3, gpus=4, annotations=MUST))
        (tmp_path / "config").write_text(one.server.kubeconfig())
        yield one


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the plugin beside the server: (status, output, errors)."""

    async def run(*words: str) -> tuple[int, str, list[str]]:
        try:
            status = await asyncio.to_thread(main, [*words, "--kubeconfig", str(tmp_path / "config")])
        except SystemExit as end:
            status = int(str(end.code or 0))
        said = capsys.readouterr()
        return status, said.out, said.err.splitlines()

    return run


async def test_why_says_word_for_word_what_the_running_scheduler_writes(cluster: Live, ask: Any) -> None:
    def told() -> bool:
        return all(cluster.condition(name).get("message") for name in WAITING)

    async with cluster.running() as scheduler:
        await until(told)
        await cluster.at_rest(scheduler)
        for name in WAITING:
            there = cluster.condition(name)
            status, out, err = await ask("why", name, "-o", "json")
            assert status == 0 and not [line for line in err if line.startswith(("warning: ", "error: "))]
            (said,) = json.loads(out)["pods"]
            assert (said["reason"], said["message"]) == (there["reason"], there["message"])
            assert said["lastTold"] == there["message"]
            _, out, _ = await ask("why", f"default/{name}")
            assert f"    {there['message']}\n" in out
            assert "last message in the condition" not in out
            assert re.search(r"^as of \d+\.\d s ago, resourceVersion \d+ of http://127\.0\.0\.1:\d+, ", out, re.M)


async def test_a_gang_is_told_of_with_all_that_its_members_hear(cluster: Live, ask: Any) -> None:
    _, out, _ = await ask("why", "wide")
    assert out.startswith("gang default/wide: Unschedulable, 0 of 4 required members bound\n")
    assert "default/wide-0, default/wide-1, default/wide-2, default/wide-3 (gang default/wide): Unschedulable" in out
    assert "Would fit if" in out and "Queue\n  place " in out
    assert "resourceVersion " in out and "configuration: defaults" in out
    assert (await ask("why", "podgroup/wide"))[1].startswith("gang default/wide")
    _, wide, _ = await ask("why", "wide", "-o", "wide")
    assert "blockLayer" in wide and "Nodes\n" in wide


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("why", "wid"),
            "error: no pending or running pod, gang or workload named default/wid, did you mean default/wide?",
        ),
        (("why", "pod/wide"), "error: no pending or running pod named default/wide"),
        (("why", "vast", "-n", "other"), "error: no pending or running pod, gang or workload named other/vast"),
        (("why", "vast", "--context", "there"), "error: the cluster cannot be read: "),
        (("slots", "--gpus", "0"), "error: argument --gpus: "),
        (("why",), "error: the following arguments are required: NAME"),
        (("what",), "error: argument VIEW: invalid choice: 'what'"),
        (("top", "--config", "nowhere.yaml"), "error: nowhere.yaml: cannot be read"),
    ],
)
async def test_what_cannot_be_answered_is_a_line_and_status_1(cluster: Live, ask: Any, words: Any, line: str) -> None:
    status, out, err = await ask(*words)
    assert (status, out) == (1, "") and err[0].startswith(line), err


async def test_options_stand_before_or_behind_the_word(cluster: Live, ask: Any) -> None:
    line = "error: no pending or running pod, gang or workload named other/vast"
    for words in (("-n", "other", "why", "vast"), ("why", "-n", "other", "vast"), ("why", "vast", "-n", "other")):
        assert (await ask(*words))[2][0].startswith(line), words
    assert json.loads((await ask("-o", "json", "-n", "other", "queue"))[1])["units"] == []


async def test_a_pod_that_fits_one_that_runs_and_one_of_another(cluster: Live, ask: Any) -> None:
    cluster.pod("easy")
    cluster.pod("theirs", scheduler_name="default-scheduler")
    assert "default/easy: Fits\n    fits now on n" in (await ask("why", "easy"))[1]
    assert (await ask("why", "busy-0"))[1].startswith("default/busy-0: pod is bound to n1\n")
    assert "pod has schedulerName default-scheduler, koordpy handles koord-scheduler" in (await ask("why", "theirs"))[1]


async def test_who_would_go_for_a_pod_is_named(cluster: Live, ask: Any) -> None:
    cluster.server.store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
    for number in range(4):
        cluster.create(pod(f"low-{number}", gpus=2, cpu="1", memory="1Gi"))
        cluster.bind(f"low-{number}", f"n{number + 1}")
    urgent = pod("urgent", gpus=4, cpu="1", memory="1Gi")
    urgent["spec"] |= {"priority": 1000, "priorityClassName": "high"}
    cluster.create(urgent)
    _, out, _ = await ask("why", "urgent", "-o", "json")
    (said,) = json.loads(out)["pods"]
    assert said["reason"] == "Preempting" and said["node"] in ("n3", "n4")
    (victim,) = said["victims"]
    assert victim["rule"] == "priority"
    assert said["message"] == f"will be bound to {said['node']} once {victim['pod']} has terminated"


async def test_the_queue_has_everybody_in_turn_and_those_that_are_held_at_the_end(cluster: Live, ask: Any) -> None:
    _, out, _ = await ask("queue", "-o", "json")
    units = json.loads(out)["units"]
    assert [one["place"] for one in units] == [1, 2, 3, 4, 5, None]
    assert {one["unit"] for one in units[:5]} == {
        "pod default/vast", "gang default/wide", "pod default/poor", "pod default/shared", "gang default/far"
    }  # fmt: skip
    (poor,) = (one for one in units if one["unit"] == "pod default/poor")
    assert (poor["quota"], poor["asks"]["cpu"]) == ("poor", "2")
    assert units[5]["unit"] == "gang default/lonely" and "waiting for members, 1 of minMember 3" in units[5]["message"]
    rows = (await ask("queue"))[1].splitlines()
    assert rows[0].split() == ["PLACE", "UNIT", "PODS", "PRIORITY", "QUOTA", "USER", "REQUESTS", "WAITING", "STATE"]
    assert len(rows) == 9 and rows[-1].startswith("as of ")
    assert (await ask("queue", "-n", "other"))[1].startswith("no pending gangs or pods\n")
    assert "nodes are available" in (await ask("queue", "-o", "wide"))[1]


async def test_quota_and_user_are_those_that_count_without_any_label(cluster: Live, ask: Any) -> None:
    _, out, _ = await ask("queue", "-o", "json")
    owners = {one["unit"]: (one["quota"], one["user"]) for one in json.loads(out)["units"]}
    assert owners.pop("pod default/poor") == ("poor", "poor")
    assert {*owners.values()} == {("koordinator-default-quota", "default")}
    cluster.server.store.delete(QUOTAS, "poor", namespace="default")
    _, out, _ = await ask("queue", "-o", "json")
    assert {(one["quota"], one["user"]) for one in json.loads(out)["units"]} == {("", "default")}


async def test_a_gang_that_is_held_has_no_place(cluster: Live, ask: Any) -> None:
    assert "\nQueue\n  blocked before planning, not among the 5 in the queue" in (await ask("why", "lonely"))[1]
    _, out, _ = await ask("why", "lonely", "-o", "json")
    assert json.loads(out)["explanation"]["queue"]["place"] is None


async def test_members_are_in_natural_order_and_each_that_runs_takes_one_line(cluster: Live, ask: Any) -> None:
    cluster.create(*gang("many", 11, gpus=0, cpu="1"))
    for number in range(11):
        cluster.bind(f"many-{number}", f"n{number % 4 + 1}")
    rows = (await ask("why", "many"))[1].splitlines()
    assert rows[1:12] == [f"default/many-{number}: pod is bound to n{number % 4 + 1}" for number in range(11)]


async def test_slots_are_the_planners_count_for_each_size_of_gang(cluster: Live, ask: Any) -> None:
    _, out, _ = await ask("slots", "--gpus", "2", "-o", "json")
    found = {one["layer"]: one["gangs"] for one in json.loads(out)["gangs"]}
    assert found["blockLayer"] == {"2": 6, "16": 0, "128": 0}
    assert found["nodeLayer"] == {"2": 6, "16": 0, "128": 0}
    _, out, _ = await ask("slots")
    assert "number of gangs that fit, each within one domain of the layer; 1 nvidia.com/gpu per pod:" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:] if line}
    assert rows["LAYER"] == ["DOMAINS", "OF", "1", "OF", "8", "OF", "64", "LARGEST"]
    assert rows["blockLayer"] == ["2", "12", "1", "0", "8", "x", "1", "in", "b2"]
    assert rows["ClusterTopologyLayer"][-3:] == ["12", "x", "1"]
    assert "n1" in (await ask("slots", "-o", "wide"))[1]


async def test_the_tree_and_the_top(cluster: Live, ask: Any) -> None:
    _, out, _ = await ask("tree")
    assert "cluster  4 nodes, 12 of 16 accelerators free" in out and "b1  2 nodes" in out and "n1" not in out
    assert "n1" in (await ask("tree", "-o", "wide"))[1]
    _, out, _ = await ask("top", "-o", "json")
    top = json.loads(out)
    assert top["accelerators"] == [{"resource": "nvidia.com/gpu", "used": 4, "free": 12}]
    (poor,) = (one for one in top["quotas"] if (one["quota"], one["resource"]) == ("poor", "cpu"))
    assert (poor["max"], poor["request"], poor["used"]) == (1, 2, 0)
    lines = [line.split() for line in (await ask("top"))[1].splitlines()]
    assert ["QUOTA", "RESOURCE", "MIN", "RUNTIME", "USED", "REQUEST", "MAX"] in lines
    assert ["koordinator-default-quota", "memory", "-", "-", "2Gi", "4104Mi", "-"] in lines


async def test_it_reads_and_nothing_else_and_page_by_page(
    cluster: Live, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    drawn = cluster.server.faults.drawn
    monkeypatch.setattr(
        cluster.server.faults, "drawn", lambda method, path: asked.append((method, path)) or drawn(method, path)
    )
    for number in range(600):
        cluster.create(pod(f"crowd-{number}", scheduler_name="default-scheduler"))
    before = cluster.server.store.version
    assert (await ask("why", "vast"))[0] == 0
    assert {method for method, _ in asked} == {"GET"}
    assert len([path for _, path in asked if path == "/api/v1/pods"]) == 2
    assert cluster.server.store.version == before


async def test_kinds_that_are_forbidden_or_missing_are_done_without(cluster: Live, ask: Any) -> None:
    cluster.server.faults.fail(403, path="*/elasticquotas")
    cluster.server.faults.fail(404, path="*/devices")
    status, out, err = await ask("why", "poor")
    assert status == 0 and "default/poor: Fits" in out
    assert any(line.startswith("warning: without elasticquotas.scheduling.sigs.k8s.io: ") for line in err)
    missing = "its CustomResourceDefinition is not installed"
    assert f"warning: without devices.scheduling.koordinator.sh: {missing}" in err


@pytest.mark.parametrize(("code", "path"), [(403, "/api/v1/pods"), (403, "/api/v1/nodes"), (401, "*"), (500, "*")])
async def test_without_pods_or_credentials_nothing_is_said(cluster: Live, ask: Any, code: int, path: str) -> None:
    cluster.server.faults.fail(code, path=path)
    status, out, err = await ask("queue")
    assert (status, out, len(err)) == (1, "", 1)
    assert err[0].startswith(f"error: the cluster cannot be read: {code}")


async def test_a_server_that_is_gone_is_a_line(cluster: Live, ask: Any) -> None:
    await cluster.server.stop()
    status, out, err = await ask("tree")
    assert (status, out, len(err)) == (1, "", 1) and err[0].startswith("error: the cluster cannot be read: ")


async def test_the_configuration_of_the_one_release_counts(cluster: Live, ask: Any) -> None:
    def release(name: str, text: str) -> None:
        labels = {"app.kubernetes.io/name": "koordpy"}
        meta = {"name": name, "namespace": "kube-system", "labels": labels}
        cluster.server.store.create("configmaps", {"metadata": meta, "data": {"config.yaml": text}})

    release("first", "schedulerNames: [other]")
    _, out, _ = await ask("why", "vast")
    assert "pod has schedulerName koord-scheduler, koordpy handles other" in out
    assert "configuration: ConfigMap kube-system/first" in out
    release("second", "")
    _, out, err = await ask("why", "vast")
    assert "default/vast: Unschedulable" in out and "configuration: defaults" in out
    assert "kube-system/first, kube-system/second" in err[0]
