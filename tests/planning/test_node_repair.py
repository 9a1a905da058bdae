# SPDX-License-Identifier: Apache-2.0
"""The filter NodeRepair: which nodes take no pods for now, and in which order of filters that is said (repair.md 5)."""

from msgspec.structs import replace

from koordpy.api.objects import Condition, Node, NodeSpec, Taint, Wire
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.feasibility.round_state import PlannerCache
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import group, node, pod

BROKEN = "node(s) were reported broken"
CONFIG = KoordpyConfiguration(repair=Repair(lost_conditions=("SickGPU",)))


def sick(name: str, status: str = "True", spec: NodeSpec | None = None) -> Node:
    made = node(name)
    status_with = replace(made.status, conditions=[Condition(type="SickGPU", status=status)])
    return replace(made, status=status_with, spec=spec or made.spec)


def placed(*objects: Wire, cache: PlannerCache | None = None) -> dict[str, str]:
    state = make_state(repair=CONFIG.repair)
    for obj in objects:
        state.upsert(obj)
    plan = plan_round(state.snapshot(100.0), CONFIG, planner_cache=cache)
    return {one.pod_key.partition("/")[2]: one.node for one in plan.placements}


def reasons(*objects: Wire) -> dict[str, list[tuple[str, str, str]]]:
    state = make_state(repair=CONFIG.repair)
    for obj in objects:
        state.upsert(obj)
    return {one.node: list(one.reasons) for one in explain(state.snapshot(100.0), CONFIG, "default/p").nodes}


def test_a_node_lost_by_a_condition_takes_no_pods() -> None:
    assert reasons(sick("n1"), pod("p"))["n1"] == [("NodeRepair", "UnschedulableAndUnresolvable", BROKEN)]
    assert placed(sick("n1"), sick("n2", "False"), pod("p")) == {"p": "n2"}
    members = [group("g", 2), pod("g-0", gang="g"), pod("g-1", gang="g")]
    assert placed(sick("n1"), node("n2"), *members) == {}
    assert placed(sick("n1"), node("n2:2"), *members) == {"g-0": "n2", "g-1": "n2"}


def test_its_reason_comes_after_the_cordon_and_before_taints_and_affinity() -> None:
    tainted = NodeSpec(taints=[Taint(key="k", effect="NoSchedule")])
    assert [one[0] for one in reasons(sick("n1", spec=tainted), pod("p"))["n1"]] == ["NodeRepair"]
    cordoned = NodeSpec(unschedulable=True)
    assert [one[0] for one in reasons(sick("n1", spec=cordoned), pod("p"))["n1"]] == ["NodeUnschedulable"]
    elsewhere = pod("p", node_selector={"zone": "z"})
    assert [one[0] for one in reasons(sick("n1"), elsewhere)["n1"]] == ["NodeRepair"]


def test_the_verdict_is_not_kept_for_the_next_round() -> None:
    cache = PlannerCache()
    assert placed(sick("n1"), pod("p"), cache=cache) == {}
    assert placed(sick("n1", "False"), pod("p"), cache=cache) == {"p": "n1"}
    assert placed(sick("n1"), pod("p"), cache=cache) == {}


def test_a_nomination_on_a_broken_node_reserves_nothing() -> None:
    nominated = pod("q", priority=5)
    waiting = replace(nominated, status=replace(nominated.status, nominated_node_name="n1"))
    assert placed(sick("n1"), node("n2"), waiting, pod("p", priority=1)) == {"q": "n2"}
