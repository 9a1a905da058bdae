# SPDX-License-Identifier: Apache-2.0
"""The demo's verdict can fail, and its picture fits: both on clusters made up here, without a scheduler."""

import io
from typing import Any

import pytest
from rich.console import Console

from koordpy.api import keys
from koordpy.demo.acts import Forecast, Forecaster, read_cluster
from koordpy.demo.demo_checks import checks
from koordpy.demo.demo_objects import devices_of
from koordpy.demo.demo_scene import DemoScene, scene_of
from koordpy.demo.demo_view import Picture, Style
from koordpy.demo.programme import ASCEND
from tests.demo.forecasts import Pods, as_forecast

NODES = [one for one in read_cluster() if one["kind"] == "Node"]
NPU_NODES = [one for one in read_cluster(ASCEND.cluster) if one["kind"] == "Node"]
GPUS = {node["metadata"]["name"]: devices_of(node["status"]["allocatable"]) for node in NODES}


def broken(forecasts: list[Forecast], pods: Pods) -> list[str]:
    return [text for text, faults in checks(forecasts, list(pods.values()), GPUS).items() if faults]


def moved(pods: Pods, name: str, node: str) -> None:
    pods[f"default/{name}"]["spec"]["nodeName"] = node


def unbound(pods: Pods, name: str) -> None:
    del pods[f"default/{name}"]["spec"]["nodeName"]
    pods[f"default/{name}"]["status"] = {"phase": "Pending"}


def idle(pods: Pods, name: str) -> None:
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
        (
            lambda pods: moved(pods, "replica-a-stage-1", "node-8"),
            "no node has more accelerators in use than it has",
        ),
        (lambda pods: idle(pods, "prefill-1"), "every bound pod runs"),
        (lambda pods: unbound(pods, "prefill-1"), "gang-group is placed as the planner places it offline"),
        (lambda pods: bound(pods, "elastic-8", "node-63"), "elastic is placed as the planner places it offline"),
        (lambda pods: pods.pop("default/multiples-0"), "multiples is placed as the planner places it offline"),
        (
            lambda pods: pods.update(again=renamed(pods["default/elastic-0"], "elastic-7")),
            "elastic is placed as the planner places it offline",
        ),
        (lambda pods: ranked(pods, "train-3", "0"), "job is placed as the planner places it offline"),
        (
            lambda pods: pods["default/gpu-pair"]["metadata"]["annotations"].update(
                {keys.GPU_ALLOCATION: '{"allocatedGPUs": {"0": ["0", "1"]}}'}
            ),
            "gpu-pair is placed as the planner places it offline",
        ),
        (lambda pods: idle(pods, "does-not-fit-0"), "does-not-fit is placed as the planner places it offline"),
    ],
)
def test_a_broken_promise_is_noticed(forecasts: list[Forecast], change: Any, broken_promise: str) -> None:
    pods = as_forecast(forecasts)
    change(pods)
    assert broken_promise in broken(forecasts, pods)


def test_superpods_of_many_nodes_take_several_lines(npu_forecasts: list[Forecast]) -> None:
    scene = scene_of(Forecaster(cluster=ASCEND.cluster).state.nodes.tree, NPU_NODES, ASCEND.devices)
    for forecast in npu_forecasts:
        scene.arrive(forecast)
    scene.look(as_forecast(npu_forecasts).values())
    lines = [line.plain for line in Picture(scene, Style(colour=False, unicode=True)).lines(80)]
    assert max(map(len, lines)) <= 80
    assert sum("sp1-" in line for line in lines) == 3
    assert any("NPUs, all free" in line for line in lines)


# The picture


def drawn(forecasts: list[Forecast], *, height: int, width: int = 100) -> list[str]:
    scene: DemoScene = scene_of(Forecaster().state.nodes.tree, NODES)
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
    scene = scene_of(Forecaster().state.nodes.tree, NODES)
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
    scene = scene_of(Forecaster().state.nodes.tree, NODES)
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
