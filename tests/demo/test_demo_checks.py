"""The demo's verdict can fail, and its picture fits: both on clusters made up here, without a scheduler."""

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from koordpy.api import keys
from koordpy.demo.acts import Forecast, Forecaster, read_acts, read_cluster
from koordpy.demo.checks import checks
from koordpy.demo.outcome import key_of, outcome_of
from koordpy.demo.programme import ASCEND
from koordpy.demo.scene import DemoScene, scene_of
from koordpy.demo.view import Picture, Style

NODES = [one for one in read_cluster() if one["kind"] == "Node"]
Pods = dict[str, dict[str, Any]]


def manifests(forecast: Forecast) -> Iterator[dict[str, Any]]:
    """Pods of an act; those that a Job makes, as far as anybody looks at them."""
    given = {key_of(obj): obj for obj in forecast.act.objects if obj["kind"] == "Pod"}
    for key in forecast.pods:
        if key in given:
            yield given[key]
            continue
        spec = forecast.act.objects[0]["spec"]
        for role in spec.get("replicatedJobs", ()):
            if f"-{role['name']}-" in key:
                spec = role["template"]["spec"]
        namespace, _, name = key.partition("/")
        yield {"kind": "Pod", "metadata": {"namespace": namespace, "name": name}, "spec": spec["template"]["spec"]}


def as_forecast(forecasts: list[Forecast]) -> Pods:
    """The pods as a scheduler leaves them that does what the planner says."""
    pods: Pods = {}
    for forecast in forecasts:
        for key in forecast.evicted:
            pods.pop(key, None)
        for obj in manifests(forecast):
            pod = pods[key_of(obj)] = copy.deepcopy(obj)
            key = key_of(pod)
            if node := forecast.nodes.get(key):
                pod["spec"]["nodeName"] = node
                pod["metadata"]["annotations"] = dict(forecast.annotations[key])
                pod["status"] = {"phase": "Running"}
            else:
                refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                pod["status"] = {"phase": "Pending", "conditions": [{**refused, "message": forecast.pending[key]}]}
    return pods


@pytest.fixture(scope="module")
def forecasts() -> list[Forecast]:
    forecaster = Forecaster()
    return [forecaster.forecast(act) for act in read_acts()]


def broken(forecasts: list[Forecast], pods: Pods) -> list[str]:
    return [check.text for check in checks(forecasts, outcome_of(pods.values(), NODES)) if not check.holds]


def moved(pods: Pods, name: str, node: str) -> None:
    pods[f"default/{name}"]["spec"]["nodeName"] = node


def unbound(pods: Pods, name: str) -> None:
    del pods[f"default/{name}"]["spec"]["nodeName"]
    pods[f"default/{name}"]["status"] = {"phase": "Pending"}


def bound(pods: Pods, name: str, node: str) -> None:
    moved(pods, name, node)
    pods[f"default/{name}"]["status"] = {"phase": "Running"}


def ranked(pods: Pods, name: str, rank: str) -> None:
    pods[f"default/{name}"]["metadata"]["annotations"][keys.BOUND_RANK] = rank


def renamed(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return pod | {"metadata": pod["metadata"] | {"name": name}}


def test_every_promise_holds_where_the_scheduler_does_what_the_planner_says(forecasts: list[Forecast]) -> None:
    assert broken(forecasts, as_forecast(forecasts)) == []


@pytest.mark.parametrize(
    ("change", "broken_promise"),
    [
        (lambda pods: moved(pods, "notebook", "node-1"), "plain-pod is placed as the planner places it offline"),
        (lambda pods: moved(pods, "prefer-gather-3", "node-63"), "prefer-gather is in one block"),
        (lambda pods: moved(pods, "must-gather-0", "node-1"), "must-gather is in one accelerator"),
        (lambda pods: moved(pods, "replica-a-stage-1", "node-63"), "pipeline-2x2 is in one block"),
        (
            lambda pods: moved(pods, "replica-a-stage-1", "node-10"),
            "each pipeline of pipeline-2x2 is in one accelerator",
        ),
        (lambda pods: moved(pods, "replica-a-stage-1", "node-8"), "no node has more GPUs given away than it has"),
        (lambda pods: moved(pods, "decode-0", "node-63"), "prefill and decode are in one block"),
        (lambda pods: unbound(pods, "prefill-1"), "every pod runs but those that cannot fit"),
        (lambda pods: moved(pods, "master-workers-master", "node-63"), "master-workers are in one block"),
        (lambda pods: moved(pods, "multiples-11", "node-38"), "multiples are six and six"),
        (lambda pods: bound(pods, "elastic-8", "node-63"), "elastic goes on with its minimum of four in one block"),
        (lambda pods: pods.pop("default/elastic-0"), "elastic goes on with its minimum of four in one block"),
        (lambda pods: pods.pop("default/multiples-0"), "multiples is placed as the planner places it offline"),
        (
            lambda pods: pods.update(again=renamed(pods["default/elastic-0"], "elastic-7")),
            "elastic is placed as the planner places it offline",
        ),
        (lambda pods: moved(pods, "urgent-3", "node-63"), "urgent is in block-3"),
        (lambda pods: moved(pods, "train-0", "node-63"), "train is a gang in one block"),
        (lambda pods: ranked(pods, "train-3", "0"), "ranks of every whole gang run from 0 without a gap"),
        (
            lambda pods: moved(pods, "multislice-workers-1-3", "node-1"),
            "each Job of the workers of multislice is in one block",
        ),
        (
            lambda pods: pods["default/gpu-pair"]["metadata"]["annotations"].update(
                {keys.GPU_ALLOCATION: '{"allocatedGPUs": {"0": ["0", "1"]}}'}
            ),
            "gpu-pair has the pair of GPUs with 256 GB/s",
        ),
        (lambda pods: bound(pods, "does-not-fit-0", "node-63"), "does-not-fit waits and is told why"),
        (lambda pods: ranked(pods, "must-gather-0", "7"), "ranks of every whole gang run from 0 without a gap"),
    ],
)
def test_a_broken_promise_is_noticed(forecasts: list[Forecast], change: Any, broken_promise: str) -> None:
    pods = as_forecast(forecasts)
    change(pods)
    assert broken_promise in broken(forecasts, pods)


# Ascend NPUs

NPU_NODES = [one for one in read_cluster(ASCEND.cluster) if one["kind"] == "Node"]
N910 = keys.NPU_RESOURCES[0]


@pytest.fixture(scope="module")
def npu_forecasts() -> list[Forecast]:
    forecaster = Forecaster(cluster=ASCEND.cluster)
    return [forecaster.forecast(act) for act in read_acts(ASCEND.acts)]


def broken_npus(forecasts: list[Forecast], pods: Pods) -> list[str]:
    found = checks(forecasts, outcome_of(pods.values(), NPU_NODES), programme=ASCEND.name)
    return [check.text for check in found if not check.holds]


def as_told(forecasts: list[Forecast]) -> Pods:
    pods = as_forecast(forecasts)
    pods["default/three-chips"]["status"]["conditions"][0]["reason"] = "JobValidateFailed"
    return pods


def noted(pods: Pods, name: str, **notes: str) -> None:
    pods[f"default/{name}"]["metadata"]["annotations"].update(notes)


def test_every_promise_of_npus_holds_where_the_scheduler_does_what_the_planner_says(
    npu_forecasts: list[Forecast],
) -> None:
    assert broken_npus(npu_forecasts, as_told(npu_forecasts)) == []


@pytest.mark.parametrize(
    ("change", "broken_promise"),
    [
        (lambda pods: moved(pods, "switch-job-5", "c-0"), "switch-job is placed as the planner places it offline"),
        (
            lambda pods: moved(pods, "switch-job-4", "b-2"),
            "ranks of switch-job that are four apart share a slice position",
        ),
        (
            lambda pods: noted(pods, "module-job-1", **{N910: "Ascend910-3,Ascend910-4"}),
            "pods of module-job have their chips in one ring",
        ),
        (
            lambda pods: noted(pods, "module-job-1", **{N910: "Ascend910-0,Ascend910-1"}),
            "every pod has its chips, and no chip is given twice",
        ),
        (
            lambda pods: noted(pods, "module-job-1", **{N910: "Ascend910-2"}),
            "every pod has its chips, and no chip is given twice",
        ),
        (lambda pods: moved(pods, "superpod-job-3", "sp1-7"), "superpod-job is in two whole blocks of four nodes"),
        (lambda pods: noted(pods, "superpod-job-3", **{keys.SUPER_POD_RANK: "1"}), "superpod-job is in two whole"),
        (lambda pods: moved(pods, "urgent-3", "sp0-4"), "urgent is one whole block of four nodes"),
        (lambda pods: pods.pop("default/background-0"), "two pods of background made room for urgent, and nobody else"),
        (lambda pods: bound(pods, "three-chips", "module-1"), "every pod runs but the one whose job is illegal"),
        (
            lambda pods: pods["default/three-chips"].update(status={"phase": "Pending"}),
            "three-chips is told that its request is illegal",
        ),
        (lambda pods: noted(pods, "urgent-0", **{keys.RANK_INDEX: "3"}), "ranks of every job run from 0 without a gap"),
    ],
)
def test_a_broken_promise_of_npus_is_noticed(npu_forecasts: list[Forecast], change: Any, broken_promise: str) -> None:
    pods = as_told(npu_forecasts)
    change(pods)
    assert any(text.startswith(broken_promise) for text in broken_npus(npu_forecasts, pods))


def test_superpods_of_many_nodes_take_several_lines(npu_forecasts: list[Forecast]) -> None:
    scene = scene_of(Forecaster(cluster=ASCEND.cluster).state.tree, NPU_NODES, ASCEND.devices)
    for forecast in npu_forecasts:
        scene.arrive(forecast)
    scene.look(as_told(npu_forecasts).values())
    lines = [line.plain for line in Picture(scene, Style(colour=False, unicode=True)).lines(80)]
    assert max(map(len, lines)) <= 80
    assert sum("sp1-" in line for line in lines) == 3
    assert any("NPUs, all free" in line for line in lines)


# The picture


def drawn(forecasts: list[Forecast], *, height: int, width: int = 100) -> list[str]:
    scene: DemoScene = scene_of(Forecaster().state.tree, NODES)
    for forecast in forecasts:
        scene.arrive(forecast)
    scene.look(as_forecast(forecasts).values())
    console = Console(width=width, height=height, color_system=None, file=io.StringIO())
    picture = Picture(scene, Style(colour=False, unicode=True))
    console.print(picture.render(seconds=1, width=width, height=height, status=""))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("height", [24, 40, 50, 60, 80])
def test_the_picture_fits_the_terminal_or_says_which_one_it_would(
    forecasts: list[Forecast], height: int, width: int
) -> None:
    lines = drawn(forecasts, height=height, width=width)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    hints = [line for line in lines if "lines shows the whole tree" in line]
    assert len(hints) == (height < 70)
    for hint in hints:
        (needed,) = (int(word) for word in hint.split() if word.isdigit())
        assert not any("shows the whole tree" in line for line in drawn(forecasts, height=needed, width=width))


def test_a_gang_counts_the_members_that_exist(forecasts: list[Forecast]) -> None:
    """The last act evicts some of `elastic`, and nobody makes them again."""
    scene = scene_of(Forecaster().state.tree, NODES)
    for forecast in forecasts:
        scene.arrive(forecast)
    scene.look(as_forecast(forecasts).values())
    (row,) = (row for row in scene.rows if row.name == "elastic")
    assert (row.bound, row.members, len(row.evicted)) == (4, 6, 4)


def test_who_sits_where_is_readable_without_colours(forecasts: list[Forecast]) -> None:
    text = "\n".join(drawn(forecasts, height=80))
    assert "node-6  C0==C1==" in text
    assert "node-16 H1======+H0" in text
    assert "node-0  A·······" in text


def test_a_low_terminal_folds_what_has_been_quiet_for_longest(forecasts: list[Forecast]) -> None:
    scene = scene_of(Forecaster().state.tree, NODES)
    pods: Pods = {}
    for forecast in forecasts:
        scene.arrive(forecast)
        pods |= as_forecast([forecast])
        scene.look(pods.values())
    style = Style(colour=False, unicode=True)
    lines = [str(line) for line in Picture(scene, style).lines(80, 24)]
    assert len(lines) <= 24
    assert any("block-0" in line and "A 1 pod" in line for line in lines)
    assert any("J0======" in line for line in lines)
