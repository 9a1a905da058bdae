# SPDX-License-Identifier: Apache-2.0
"""A sick GPU that a pod still holds (gpu-topology.md 2): counted once where the kubelet is known to count it so.

A kubelet admits a pod if it has as many healthy devices that no pod booked, whatever `allocatable - requested` says: it
books first, and then takes allocatable to be no less than what is booked.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koordpy.cli.main import main
from tests.scenarios.test_gpu_rules import Json, device, node, pod, run

__all__ = ["run"]
DELIVERY = "scheduling.koordinator.sh/gpu-delivery"


def reported(size: int, sick: Sequence[int], delivery: str = "device-plugin") -> Json:
    return device(size, sick=sick, labels={DELIVERY: delivery})


@pytest.mark.parametrize(
    ("offered", "sick", "held", "asked", "gpus"),
    [
        pytest.param(1, [0], [[0]], 1, [1], id="two GPUs, the sick one is held"),
        pytest.param(7, [0], [[0]], 7, [1, 2, 3, 4, 5, 6, 7], id="all that are healthy"),
        pytest.param(7, [0], [[0, 1]], 6, [2, 3, 4, 5, 6, 7], id="the holder has a healthy one, too"),
        pytest.param(6, [0, 5], [[0, 5]], 6, [1, 2, 3, 4, 6, 7], id="two sick, both held"),
        pytest.param(6, [0, 5], [[0]], 6, [1, 2, 3, 4, 6, 7], id="two sick, one held"),
        pytest.param(6, [0, 5], [[0]], 7, None, id="the sick one that no pod holds stays out"),
        pytest.param(7, [0], [[1]], 6, [2, 3, 4, 5, 6, 7], id="a pod beside a sick one that no pod holds"),
        pytest.param(7, [0], [[1]], 7, None, id="no more than that"),
        pytest.param(8, [0], [[0]], 7, [1, 2, 3, 4, 5, 6, 7], id="the kubelet does not know yet"),
        pytest.param(0, [0], [[0]], 1, None, id="the plugin is not registered"),
        pytest.param(5, [0], [[0]], 6, None, id="the kubelet has fewer for another reason"),
    ],
)
def test_a_sick_gpu_that_a_pod_holds_costs_no_healthy_one(
    run: Any, offered: int, sick: list[int], held: list[list[int]], asked: int, gpus: list[int] | None
) -> None:
    size = 2 if offered == 1 else 8
    holders = [pod(f"h{i}", len(minors), at="n1", held=minors) for i, minors in enumerate(held)]
    outcome = run(node(gpus=offered), reported(size, sick), *holders, pod("p", asked))
    assert outcome.gpus() == gpus


HOLDER = "pod default/h uses GPU 0 of node n1, which is unhealthy"


@pytest.mark.parametrize("delivery", ["foreign", "env"])
@pytest.mark.parametrize("gang", [False, True])
def test_where_another_plugin_counts_the_nodes_own_figure_decides_and_the_holder_is_named(
    run: Any, delivery: str, gang: bool
) -> None:
    labels = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "1"}
    waiting = pod("p", 1, labels=labels) if gang else pod("p", 1)
    outcome = run(node(gpus=1), reported(2, [0], delivery), pod("h", 1, at="n1", held=[0]), waiting)
    assert (outcome.nodes, "Insufficient nvidia.com/gpu" in outcome.message) == ({}, True)
    assert HOLDER in outcome.message


def test_explain_says_that_the_pod_would_fit_without_the_holder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [node(gpus=1), reported(2, [0], "foreign"), pod("h", 1, at="n1", held=[0]), pod("p", 1)]
    (tmp_path / "in.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert main(["explain", "-f", str(tmp_path / "in.json"), "--pod", "default/p"]) == 0
    said = capsys.readouterr().out
    assert "pod default/h were deleted (it uses GPU 0 of node n1, which is unhealthy)" in said


@pytest.mark.parametrize(
    ("offered", "sick", "held", "asked", "more"),
    [
        pytest.param(1, [], [0], 2, {}, id="none is sick"),
        pytest.param(1, [1], [0], 1, {}, id="no pod holds the sick one"),
        pytest.param(1, [0], [0], 2, {}, id="not enough are healthy"),
        pytest.param(
            1, [0], [0], 1, {"nodeSelector": {"a": "b"}}, id="the node is closed to the pod for another reason"
        ),
    ],
)
def test_no_holder_is_named_where_its_end_would_not_help(
    run: Any, offered: int, sick: list[int], held: list[int], asked: int, more: Json
) -> None:
    holder = pod("h", len(held), at="n1", held=held)
    waiting = pod("p", asked, spec={"schedulerName": "koord-scheduler", **more})
    outcome = run(node(gpus=offered), reported(2, sick, "foreign"), holder, waiting)
    assert outcome.nodes == {}
    assert "not healthy" not in outcome.message


def test_a_pod_whose_gpus_cannot_be_told_leaves_the_nodes_own_figure(run: Any) -> None:
    holders = [pod("h", 1, at="n1", held=[0]), pod("u", 1, at="n1")]
    outcome = run(node(gpus=7), reported(8, [0]), *holders, pod("p", 6))
    assert outcome.nodes == {}
    assert run(node(gpus=7), reported(8, [0]), *holders, pod("p", 5)).nodes == {"p": "n1"}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_placed_is_what_a_kubelet_admits(run: Any, seed: int) -> None:
    """Against the kubelet's own rule: the pod is placed if and only if so many healthy devices are not booked."""
    dice = random.Random(seed)
    size = dice.randint(2, 8)
    sick = sorted(dice.sample(range(size), dice.randint(0, size - 1)))
    left, holders = dice.sample(range(size), dice.randint(0, size)), []
    booked = set(left)
    while left:
        count = dice.randint(1, len(left))
        minors, left = sorted(left[:count]), left[count:]
        holders.append(pod(f"h{len(holders)}", count, at="n1", held=minors))
    asked = dice.randint(1, size)
    free = set(range(size)) - set(sick) - booked
    outcome = run(node(gpus=size - len(sick)), reported(size, sick), *holders, pod("p", asked))
    assert (outcome.nodes == {"p": "n1"}) == (len(free) >= asked)
    assert set(outcome.gpus() or ()) <= free


def test_the_victim_is_the_holder_of_the_healthy_gpu_alone(run: Any) -> None:
    holders = [
        pod(f"h{i}", 1, at="n1", held=[i], spec={"priority": 1, "schedulerName": "koord-scheduler"}) for i in (0, 1)
    ]
    outcome = run(node(gpus=1), reported(2, [0]), *holders, pod("p", 1, spec={"priority": 1000}))
    assert [one["pod"] for one in outcome.out["evictions"]] == ["h1"]
