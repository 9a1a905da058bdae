# SPDX-License-Identifier: Apache-2.0
"""Members of gangs on unhealthy GPUs, which move to other nodes with `repair.sickDevices: evict` (repair.md 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod, Wire
from koordpy.api.times import rfc3339
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import TWO_LAYERS, group, wish
from tests.scenarios.gpus import M, device, gpu_node, gpu_pod, measured
from tests.scenarios.test_victims import budget

NOW = 2_000_000_000.0
EVICT = Repair(sick_devices="evict")


def planned(*objects: Wire, repair: Repair = EVICT) -> RoundPlan:
    state = make_state(repair=repair)
    for one in objects:
        state.upsert(one)
    return plan_round(state.snapshot(NOW), KoordpyConfiguration(repair=repair))


def member(index: int, at: str, *held: int, **more: Any) -> Pod:
    return gpu_pod(f"g-{index}", len(held), gang="g", at=at, held=held, **more)


def moved(plan: RoundPlan) -> dict[str, str]:
    """Evicted pod -> node of its return."""
    assert not plan.rejected
    for one in plan.evictions:
        assert (one.rule, one.beneficiary, one.reason) == ("repair", "default/g", "Moved")
    return {one.pod_key.partition("/")[2]: one.returns_to for one in plan.evictions}


def placed(plan: RoundPlan) -> dict[str, str]:
    """Pod -> node of the placements."""
    return {one.pod_key.partition("/")[2]: one.node for one in plan.placements}


WHOLE = range(len(M))


@dataclass
class Case:
    nodes: Sequence[Wire]
    """Besides n0, with a sick GPU 3, and n1: both with all GPUs used by a member."""
    moved: dict[str, str]
    more: Sequence[Wire] = ()
    repair: Repair = field(default_factory=lambda: EVICT)
    notes: dict[str, str] = field(default_factory=dict)


CASES = {
    "a free node": Case(measured("n2"), {"g-0": "n2"}),
    "by default they are reported": Case(measured("n2"), {}, repair=Repair()),
    "no free node": Case([], {}),
    "the policy of the cluster keeps them": Case(measured("n2"), {}, repair=Repair("wait", sick_devices="evict")),
    "the policy of the gang keeps them": Case(measured("n2"), {}, notes={keys.GANG_REPAIR: "wait"}),
    "the policy of the gang moves them": Case(
        measured("n2"), {"g-0": "n2"}, repair=Repair("wait", sick_devices="evict"), notes={keys.GANG_REPAIR: "regather"}
    ),
    "a free node with a sick GPU of its own": Case(measured("n2", sick=(0,)), {}),
    "a node with a pod of lower priority": Case(
        measured("n2"), {}, more=[gpu_pod("low", 1, at="n2", held=(0,), priority=0)]
    ),
    "a budget": Case(measured("n2"), {}, more=[budget(0, "g")]),
    "a spare": Case([gpu_node("n2", labels={keys.SPARE: "true"}, gpus=len(M)), device(M, name="n2")], {"g-0": "n2"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hurt_members_move_if_all_of_them_have_a_place(case: Case) -> None:
    gang = [group("g", 2, case.notes), *(member(i, f"n{i}", *WHOLE, priority=5, labels={"app": "g"}) for i in range(2))]
    plan = planned(*measured("n0", sick=(3,)), *measured("n1"), *case.nodes, *case.more, *gang, repair=case.repair)
    assert moved(plan) == case.moved


def test_all_hurt_members_of_a_gang_move_or_none() -> None:
    gang = [group("g", 2), *(member(i, f"n{i}", *WHOLE) for i in range(2))]
    hurt = [*measured("n0", "n1", sick=(3,)), *gang]
    assert moved(planned(*hurt, *measured("n2"))) == {}
    assert moved(planned(*hurt, *measured("n2", "n3"))) == {"g-0": "n2", "g-1": "n3"}


def test_hurt_members_of_linked_gangs_move_gang_by_gang() -> None:
    """Each gang of a GangGroup has its own policy and moves by itself; both hurt gangs share the one free node."""
    notes = {keys.GANG_GROUPS: '["default/g", "default/h"]'}
    other = gpu_pod("h-0", len(M), gang="h", at="n1", held=WHOLE)
    for policy, gone in (("", ["default/g-0"]), ("wait", ["default/h-0"])):
        own = {**notes, **({keys.GANG_REPAIR: policy} if policy else {})}
        gang = [group("g", 1, own), group("h", 1, notes), member(0, "n0", *WHOLE), other]
        plan = planned(*measured("n0", "n1", sick=(3,)), *measured("n2"), *gang)
        assert [(one.pod_key, one.returns_to) for one in plan.evictions] == [(key, "n2") for key in gone]
        assert {one.beneficiary for one in plan.evictions} == {key.rpartition("-")[0] for key in gone}
        assert not plan.rejected


def test_a_hurt_member_moves_before_other_units_take_its_new_node() -> None:
    gang = [group("g", 2), *(member(i, f"n{i}", *WHOLE) for i in range(2))]
    hurt = [*measured("n0", sick=(3,)), *measured("n1", "n2"), *gang]
    fillers = [gpu_pod(f"x-{i}", len(M), priority=9) for i in range(2)]
    assert moved(planned(*hurt, *fillers)) == {"g-0": "n2"}


def test_a_hurt_member_stays_in_the_hard_domain_of_its_gang() -> None:
    def machine(name: str, block: str, *sick: int) -> list[Wire]:
        labels = {"block": block, "spine": "s"}
        return [gpu_node(name, labels, gpus=len(M)), device(M, name=name, sick=sick)]

    gang = [group("g", 2, wish({"blockLayer": "Must"})), *(member(i, f"n{i}", *WHOLE) for i in range(2))]
    cluster = [TWO_LAYERS, *machine("n0", "b0", 3), *machine("n1", "b0"), *machine("n2", "b1"), *gang]
    assert moved(planned(*cluster)) == {}
    assert moved(planned(*cluster, *machine("n3", "b0"))) == {"g-0": "n3"}


def test_the_sick_gpu_of_a_holder_costs_its_node_one_more_until_the_holder_has_ended() -> None:
    """The device plugin has lowered allocatable, and kubelet and scheduler count the holder against it."""
    lowered = [gpu_node("n0", gpus=len(M) - 1), device(M, name="n0", sick=(0,))]
    holder, small = member(0, "n0", 0), gpu_pod("p", len(M) - 2)
    assert placed(planned(*lowered, small)) == {"p": "n0"}
    assert placed(planned(*lowered, holder, group("g", 1), small, gpu_pod("q", 1), repair=Repair())) == {"p": "n0"}
    leaving = replace(holder, metadata=replace(holder.metadata, deletion_timestamp=rfc3339(NOW + 30)))
    assert placed(planned(*lowered, leaving, group("g", 1), small, gpu_pod("q", 1))) == {"p": "n0"}
