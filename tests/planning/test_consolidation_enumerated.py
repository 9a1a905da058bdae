# SPDX-License-Identifier: Apache-2.0
"""Consolidation against brute force: every set of moves, and every way to place all who come with it.

Seeds of which each found a fault are kept by name.
"""

from random import Random

import pytest
from msgspec.structs import replace

from koordpy.config.configuration import KoordpyConfiguration, MaxHarm, Preemption, Protection
from koordpy.feasibility.round_state import RoundState
from koordpy.placement.goals import Goals
from koordpy.placement.problem import only_ranks
from koordpy.plan.round_plan import Proof, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.problems.problem_building import build
from tests.planning.consolidation_oracle import ANY_HARM, MOVES_ONLY, Mover, TooLarge, world
from tests.scenarios.cluster import World, node, pod

GPU = "nvidia.com/gpu"


def limited(seed: int) -> KoordpyConfiguration:
    """A configuration with one limit or another on what may move."""
    random = Random(seed)
    return replace(
        MOVES_ONLY,
        protection=Protection(max_harm=MaxHarm(consolidation=random.choice([0.5, 1.0, 1.0, 2.0, None]))),
        preemption=Preemption(enabled=False, surplus_victims=random.choice(["pods", "pods", "any"])),
    )


def compared(seed: int, config: KoordpyConfiguration = ANY_HARM) -> bool | None:
    """Whether somebody has to move; None where there are too many ways to look at."""
    snapshot = world(Random(seed)).snapshot()
    mover = Mover(snapshot, config)
    try:
        wanted = mover.answer()
    except TooLarge:
        return None
    plan = plan_round(snapshot, config)
    assert not [one.message for one in plan.pending if "failed koordpy's own check" in one.message], seed
    moved = tuple(sorted(one.pod_key.partition("/")[2] for one in plan.evictions))
    assert moved == wanted.moved, (seed, wanted, plan.units)
    assert bool(plan.placements) == (wanted.fits or bool(wanted.moved)), (seed, wanted)
    if moved:
        assert plan.units[0].proof is Proof.OPTIMAL, seed
        assert {one.rule for one in plan.evictions} == {"consolidation"} and all(e.returns_to for e in plan.evictions)
        assert (len(plan.placements), goals(mover, plan)) == (wanted.members, wanted.goals), (seed, wanted)
    elif not wanted.fits:
        assert plan.units[0].proof is Proof.INFEASIBLE, seed
    return bool(moved)


def goals(mover: Mover, plan: RoundPlan) -> tuple[object, ...]:
    """Goals 1 to 4 of a plan's placement."""
    for one in plan.evictions:
        mover.draft.evict(mover.snapshot.pods[one.pod_key])
    at = {one.pod_key: mover.tree.index[one.node] for one in plan.placements}
    nodes = {rank: at[pod.key] for rank, pod in enumerate(mover.unit.members) if pod.key in at}
    problem = only_ranks(build(mover.unit, RoundState(mover.draft, MOVES_ONLY)), set(nodes))
    worth = Goals(problem)
    if not problem.gather:
        return ()
    return worth.layers(nodes), worth.attraction(nodes), worth.pipeline(nodes), worth.domains(nodes)


def test_the_least_moves_make_room() -> None:
    found = [compared(seed) for seed in range(1000, 1160)]
    assert found.count(True) > 12 and found.count(None) < 20


def test_no_more_moves_than_the_limit_allows() -> None:
    found = [compared(seed, limited(seed)) for seed in range(2000, 2160)]
    assert found.count(True) > 8 and found.count(None) < 20


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        (660, "one pod moves, and the beneficiary stands less close for it: two had moved"),
        (486, "a gang that is no multiple already asks nobody else to move with it"),
        (259, "the same, with a core that need not break"),
        (21283, "two of one gang come back together to where its others are"),
    ],
)
def test_fewer_move_than_did(seed: int, fault: str) -> None:
    assert compared(seed), fault


@pytest.mark.parametrize(("nodes", "limit"), [(150, 2.0), (20, 1e-7)])
def test_moves_that_are_not_looked_at_to_the_end_are_not_called_impossible(nodes: int, limit: float) -> None:
    """Too many of them, or no time left: every second GPU is free, and a pod asks for two of a node."""
    out = World()
    for i in range(nodes):
        out.add(node(f"n{i}", cpu="64", **{GPU: "2"}), pod(f"v{i}", at=f"n{i}", requests={GPU: "1"}))
    out.add(pod("p", requests={GPU: "2"}, created=9))
    settings = replace(MOVES_ONLY, preemption=replace(MOVES_ONLY.preemption, time_limit=limit))
    [unit] = plan_round(out.snapshot(), settings).units
    assert unit.proof is Proof.UNKNOWN


def test_moves_make_no_room_of_their_own() -> None:
    out = World()
    for i in range(150):
        out.add(node(f"n{i}", cpu="64", **{GPU: "2"}), pod(f"v{i}", at=f"n{i}", requests={GPU: "2" if i else "1"}))
    out.add(pod("p", requests={GPU: "2"}, created=9))
    [unit] = plan_round(out.snapshot(), MOVES_ONLY).units
    assert unit.proof is Proof.INFEASIBLE
