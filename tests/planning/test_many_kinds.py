# SPDX-License-Identifier: Apache-2.0
"""Gangs of many kinds of pods: what no model is made for is placed by filling nodes, in work that grows with kinds
times nodes, and never said to be best or impossible where it is not known."""

import tracemalloc
from dataclasses import replace

import pytest
from msgspec import structs

from koordpy.api import reading_limits
from koordpy.api.objects import (
    Affinity,
    Container,
    ContainerPort,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    TopologySpreadConstraint,
    Volume,
)
from koordpy.cache.plan_draft import Draft
from koordpy.placement.goals import violations
from koordpy.placement.problem import Sizes
from koordpy.placement.solver.exact_placement import can_place, solve
from koordpy.plan.round_plan import GangStatus, Proof, RoundPlan
from koordpy.planner.planning_round import PlannerCache, plan_round
from koordpy.verify.tie_check import check_ties
from tests.cluster.test_hostile import calls_of
from tests.halves import own_half
from tests.planning.oracle import best_placement, is_as_good
from tests.planning.test_solver import random_problem
from tests.scenarios.cluster import TWO_LAYERS, World, bound, group, messages, nodes_of, pod, wish


def rack(blocks: int, of: int, slots: str = "8") -> str:
    return "s1{" + "; ".join(f"b{b}: " + " ".join(f"n{b}x{i}:{slots}" for i in range(of)) for b in range(blocks)) + "}"


def of_kinds(count: int, **settings: object) -> World:
    """A gang of so many pods, no two alike."""
    world = World().add(TWO_LAYERS, *nodes_of(rack(10, 12)), group("train", count, wish({"blockLayer": "Prefer"})))
    return world.add(*(pod(f"p-{i}", gang="train", cpu=f"{100 + i}m", **settings) for i in range(count)))


@pytest.mark.parametrize("seed", own_half(range(300)))
def test_what_is_too_large_for_a_model_is_valid_and_nothing_of_it_is_proven_wrongly(seed: int) -> None:
    problem = replace(random_problem(seed), gather=seed % 2 == 0, sizes=Sizes(model_pods=seed % 7))
    if not problem.gather:
        problem = replace(problem, hard=0, multiples={})
    best, solution = best_placement(problem), solve(problem)
    if best is None:
        assert not solution.nodes and solution.proof in (Proof.INFEASIBLE, Proof.UNKNOWN)
        return
    assert solution.proof is not Proof.INFEASIBLE
    if solution.nodes:
        assert violations(problem, solution.nodes) == []
        if solution.proof is Proof.OPTIMAL:
            assert is_as_good(problem, solution, best)
    if not problem.gather:
        assert can_place(problem) is not Proof.INFEASIBLE or len(best) < len(problem.pending)


def test_a_plan_of_twice_as_many_kinds_takes_about_twice_the_work() -> None:
    calls = {}
    for count in (300, 600):
        world = of_kinds(count)
        world.snapshot()
        plans = []
        calls[count] = calls_of(lambda world=world, plans=plans: plans.append(world.plan()))  # type: ignore[misc]
        assert len(bound(plans[0])) == count
        assert plans[0].gangs[0].proof is Proof.FEASIBLE
    assert calls[600] < 2.5 * calls[300]
    assert calls[600] < 1_500_000


def test_victims_for_many_kinds_are_found_in_bounded_work_and_none_goes_in_vain() -> None:
    world = World().add(TWO_LAYERS, *nodes_of(rack(10, 5)), group("train", 100))
    for i in range(200):
        world.add(pod(f"low-{i}", cpu="2", at=f"n{i // 4 % 10}x{i // 40}", priority=1))
    world.add(*(pod(f"p-{i}", gang="train", cpu=f"{1000 + i}m", priority=9) for i in range(100)))
    plans: list[RoundPlan] = []
    assert calls_of(lambda: plans.append(world.plan())) < 5_000_000
    assert not plans[0].rejected
    assert len(plans[0].placements) == 100 and 55 <= len(plans[0].evictions) <= 65


def test_kinds_that_say_the_same_of_nodes_are_looked_at_once() -> None:
    world = of_kinds(200)
    cache = PlannerCache()
    plan_round(world.snapshot(), planner_cache=cache)
    assert len(cache.static) == 1


def test_many_kinds_are_planned_beside_many_nodes_that_hold_none_of_them() -> None:
    world = World().add(TWO_LAYERS, *nodes_of(rack(100, 5) + " s2{" + "full: " + "f0:1m}"))
    world.add(group("train", 500, wish({"blockLayer": "Prefer"})))
    world.add(*(pod(f"p-{i}", gang="train", cpu=f"{2000 + i}m") for i in range(500)))
    assert len(bound(world.plan())) == 500


def job_apart(i: int, key: str) -> dict[str, object]:
    """The leader of a Job that has a domain of its own, as a JobSet's exclusive topology has it."""
    others = LabelSelector(
        match_expressions=[
            Requirement(key="job", operator="Exists"),
            Requirement(key="job", operator="NotIn", values=[f"j{i}"]),
        ]
    )
    term = PodAffinityTerm(topology_key=key, label_selector=others)
    return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=[term])), "labels": {"job": f"j{i}"}}


@pytest.mark.parametrize("key", ["block", "kubernetes.io/hostname"])
def test_eighty_kinds_that_stand_apart_are_placed_without_a_model(key: str) -> None:
    world = World().add(TWO_LAYERS, *nodes_of(rack(100, 1)), group("train", 80))
    world.add(*(pod(f"p-{i}", gang="train", cpu=f"{100 + i}m", **job_apart(i, key)) for i in range(80)))
    plans = []
    assert calls_of(lambda: plans.append(world.plan())) < 2_000_000
    assert len(set(bound(plans[0]).values())) == 80


def test_kinds_that_shun_the_same_pods_are_one_resource_of_a_node() -> None:
    world = World().add(TWO_LAYERS, *nodes_of(rack(1, 40)), group("train", 40))
    term = PodAffinityTerm(
        topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "a"})
    )
    rule = Affinity(pod_anti_affinity=PodAffinity(required=[term]))
    shy = {"affinity": rule, "labels": {"app": "a"}}
    for i in range(40):
        world.add(pod(f"p-{i}", gang="train", cpu=f"{100 + i}m", **(shy if i % 2 else {"labels": {"app": "a"}})))
    placed = bound(world.plan())
    beside = [node for name, node in placed.items() if int(name[2:]) % 2]
    assert len(placed) == 40 and len(set(beside)) == 20
    assert not set(beside) & {node for name, node in placed.items() if not int(name[2:]) % 2}


def test_more_kinds_than_are_planned_are_refused_in_one_line() -> None:
    most = reading_limits.GANG_KINDS
    world = World().add(*nodes_of("s1{b1: n1:100}"), group("train", most + 1))
    world.add(*(pod(f"p-{i}", gang="train", cpu=f"{i + 1}m") for i in range(most + 1)))
    plan = world.plan()
    assert set(messages(plan).values()) == {f"gang default/train: {most + 1} kinds of pods, at most {most} are read"}
    assert plan.gangs[0].status is GangStatus.INVALID


def test_kinds_that_a_plan_need_not_tell_apart_are_one() -> None:
    world = World().add(*nodes_of("s1{b1: n1:2000}"), group("train", reading_limits.GANG_KINDS + 1))
    world.add(
        *(pod(f"p-{i}", gang="train", cpu="1", labels={"i": f"{i}"}) for i in range(reading_limits.GANG_KINDS + 1))
    )
    assert "needed 1001, available in the cluster: 110" in next(iter(messages(world.plan()).values()))


def test_more_terms_about_other_pods_than_are_held_against_each_other_are_refused() -> None:
    most = reading_limits.TIED_TERMS
    rule = TopologySpreadConstraint(max_skew=1, topology_key="block", when_unsatisfiable="DoNotSchedule")
    for more in (0, 1):
        count = most // 4
        world = of_kinds(count, topology_spread_constraints=[rule] * 4)
        if more:
            world.add(pod("p-0", gang="train", cpu="9m", topology_spread_constraints=[rule] * 5))
        text = (
            f"gang default/train: {most + 1} terms of affinity and spread of its kinds of pods, at most {most} are read"
        )
        assert (set(messages(world.plan()).values()) == {text}) is bool(more)


def test_more_host_ports_of_a_gang_than_are_told_apart_are_refused() -> None:
    each, gangs = reading_limits.PORTS, reading_limits.GANG_PORTS // reading_limits.PORTS + 1
    world = World().add(*nodes_of("s1{b1: n1:9 n2:9}"), group("train", 2 * gangs))
    for i in range(2 * gangs):
        ports = [ContainerPort(container_port=1, host_port=1 + i // 2 * each + k) for k in range(each)]
        one = pod(f"p-{i}", gang="train", cpu="1m")
        world.add(structs.replace(one, spec=structs.replace(one.spec, containers=[Container(name="c", ports=ports)])))
    assert "unsupported: more than 1000 host ports among the members of a gang" in messages(world.plan())["p-0"]


def test_the_check_of_a_plan_looks_at_pairs_of_one_node_alone_where_nobody_shuns_others() -> None:
    calls = {}
    for count in (300, 600):
        world = World().add(*nodes_of(rack(10, count // 60)))
        volume = Volume(name="v", csi={"driver": "d"})
        world.add(*(pod(f"p-{i}", volumes=[volume]) for i in range(count)))
        snapshot = world.snapshot()
        nodes = [node.name for node in snapshot.nodes]
        placed = [(one, nodes[i % len(nodes)]) for i, one in enumerate(snapshot.pods.values())]
        calls[count] = calls_of(lambda placed=placed, snapshot=snapshot: check_ties(placed, Draft(snapshot)))  # type: ignore[misc]
    assert calls[600] < 2.5 * calls[300]


def shunning(owner: int, terms: int) -> Affinity:
    """Anti-affinity to pods that nobody else shuns, and that are not there."""
    keys = (LabelSelector(match_labels={f"k{owner}-{k}": "v"}) for k in range(terms))
    required = [PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=one) for one in keys]
    return Affinity(pod_anti_affinity=PodAffinity(required=required))


def test_terms_about_other_pods_cost_only_those_whom_they_may_mean() -> None:
    world = World().add(*nodes_of("s1{b1: n1:999}"))
    world.add(*(pod(f"a-{i}", at="n1" if i % 2 else "", affinity=shunning(i, 90)) for i in range(60)))
    calls = {}
    for count in (0, 50):
        world.add(*(pod(f"p-{i}", cpu=f"{1 + i}m") for i in range(count)))
        snapshot, plans = world.snapshot(), list[RoundPlan]()
        calls[count] = calls_of(lambda snapshot=snapshot, plans=plans: plans.append(plan_round(snapshot)))  # type: ignore[misc]
        assert len(plans[0].placements) == 30 + count
    assert calls[0] < 200_000
    assert calls[50] - calls[0] < 50 * 600


def test_terms_about_pods_that_are_not_there_take_no_memory_for_nodes() -> None:
    peaks = []
    for nodes in (10, 310):
        world = World().add(*nodes_of("s1{b1: " + " ".join(f"n{i}:99" for i in range(nodes)) + "}"))
        snapshot = world.add(*(pod(f"a-{i}", affinity=shunning(i, 90)) for i in range(20))).snapshot()
        tracemalloc.start()
        assert len(plan_round(snapshot).placements) == 20
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 20 * 90 * 300 * 8 / 4
