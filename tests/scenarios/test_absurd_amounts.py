# SPDX-License-Identifier: Apache-2.0
"""Amounts that no machine has: nothing ends a round, and what is not decided says so."""

import json
import re
from pathlib import Path

import pytest

from koordpy.cli.main import main as koordpy
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.round_plan import Proof
from tests.scenarios.cluster import World, group, node, pod, whole_messages

MOST = 2**56
"""Larger amounts are cut to this."""


def crowded(pods: int) -> World:
    """A node that holds so many pods of nearly all it has each, and a gang of two kinds that would preempt them."""
    world = World().add(node("n0", cpu="64", memory=str(MOST)), group("g", 2))
    world.add([pod(f"v-{i}", at="n0", cpu="0", requests={"memory": str(MOST - 1)}) for i in range(pods)])
    for i, amount in enumerate((MOST // 2 + 1, MOST // 4 + 1)):
        world.add(pod(f"g-{i}", gang="g", cpu="0", requests={"memory": str(amount)}, priority=5))
    return world


def test_a_model_that_leaves_64_bits_is_no_answer_and_no_error() -> None:
    model = cp_model.CpModel()
    numbers = [model.new_int_var(0, 100, "") for _ in range(200)]
    model.add(sum(one * MOST for one in numbers) <= MOST)
    budget = TimeBudget(1.0)
    assert budget.solve("room", model) == (Proof.UNKNOWN, [])
    assert not budget.proven
    assert [(run.stage, run.status, run.fault) for run in budget.runs] == [
        ("room", Proof.UNKNOWN, "Possible integer overflow in constraint")
    ]


def test_an_answer_that_contradicts_an_earlier_one_is_noted() -> None:
    budget = TimeBudget(1.0)
    budget.broken("nodes", "a solved model became infeasible")
    assert not budget.proven and budget.runs[0].fault == "a solved model became infeasible"


def test_a_gang_that_the_solver_cannot_count_for_waits_and_is_told_why() -> None:
    plan = crowded(70).plan()
    assert not plan.placements and not plan.evictions
    assert plan.gangs[0].proof is Proof.UNKNOWN
    [unit] = plan.units
    assert unit.solver_faults == ("the solver refused (victims): Possible integer overflow in constraint",)
    told = "; not decided, the solver refused (victims): Possible integer overflow in constraint."
    assert all(text.endswith(told) for text in whole_messages(plan).values())


def test_a_node_is_not_emptied_by_half_where_its_sums_are_cut() -> None:
    """With 40 of them the node holds more than sums are kept for: 20 that leave show no room."""
    plan = crowded(40).plan()
    gone, placed = len(plan.evictions), len(plan.placements)
    assert (gone, placed) in {(0, 0), (40, 2)}


@pytest.mark.parametrize("memory", ["1e30", "9E", str(MOST), str(MOST + 1), str(2**53 + 1)])
def test_simulate_answers_whatever_the_amounts(memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made(name: str, amount: str, **spec: object) -> dict[str, object]:
        main = {"name": "c", "image": "i", "resources": {"requests": {"memory": amount, "cpu": "1"}}}
        labels = {} if spec.get("nodeName") else {"pod-group.scheduling.sigs.k8s.io": "g"}
        body = {"schedulerName": "koord-scheduler", "containers": [main], **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": body}

    amounts = {"cpu": "900", "memory": memory, "pods": "200"}
    version = "scheduling.sigs.k8s.io/v1alpha1"
    items = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": amounts}},
        {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}},
        *(made(f"v-{i}", memory, nodeName="n0") for i in range(80)),
        *(made(f"g-{i}", amount, priority=9) for i, amount in enumerate((memory, "7205759403792793"))),
    ]
    (tmp_path / "input.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert koordpy(["simulate", "-f", str(tmp_path / "input.json"), "-o", "json"]) == 0
    said, told = capsys.readouterr()
    assert {one["gang"] for one in json.loads(said)["pending"]} == {"default/g"}
    assert not re.search("Traceback|Error", told)
