# SPDX-License-Identifier: Apache-2.0
"""Rules of victims in clusters too large for the exact model to prove its answer: they hold there as in small ones."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration, Preemption, Quota
from koordpy.plan.round_plan import Proof
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from tests.planning.gpu.machines import UNIFORM, device
from tests.planning.victims_at_size import compared
from tests.scenarios.cluster import World, group, node, pod
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"
SETTINGS = KoordpyConfiguration(preemption=Preemption(enabled=False), quota=Quota(enable_min_quota_scale=False))


@functools.lru_cache(4)  # every way of choosing has the same before it
def full_cluster(
    nodes: int, members: int, over: int, *, held: int = 0, halves: int = 0, lab: int | None = None, named: bool = False
) -> Snapshot:
    """Nodes full of single-GPU pods of q0, which is so many above its min; a gang of 8-GPU pods within the min of q1.

    held: nodes, the first ones, of which one pod is of q2, within its min; halves: nodes more that q2 holds half of
    and of which the rest is free; lab: what the two quotas above q0 are above their mins; named: GPUs have names.
    """
    world = World()
    total = 8 * nodes
    for name, parent in (("org", ""), ("lab", "org")) if lab is not None else ():
        least = {GPU: total - held - (lab or 0)}
        world.add(quota(name, least, {GPU: 10 * total}, parent=parent, inner=True, forced=True))
    parent = "lab" if lab is not None else ""
    world.add(quota("q0", {GPU: total - held - over}, {GPU: 10 * total}, parent=parent, forced=True))
    world.add(quota("q1", {GPU: 8 * members}, {GPU: 10 * total}))
    world.add(quota("q2", {GPU: total}, {GPU: 10 * total}))
    for i in range(nodes):
        world.add(node(f"n{i}", cpu="64", **{GPU: "8"}), *([device(UNIFORM, name=f"n{i}")] if named else []))
        for k in range(8):
            notes = {keys.GPU_ALLOCATION: f'{{"allocatedGPUs": {{"0": ["{k}"]}}, "visibleGPUs": ["{k}"]}}'}
            labels = belongs("q2" if i < held and not k else "q0")
            own = {"labels": labels, "annotations": notes if named else None, "created": (8 * i + k) % 3000}
            world.add(pod(f"r-{i}-{k}", at=f"n{i}", requests={GPU: "1"}, **own))  # type: ignore[arg-type]
    for i in range(halves):
        world.add(node(f"h{i}", cpu="64", **{GPU: "8"}))
        world.add(pod(f"h-{i}", at=f"h{i}", requests={GPU: "4"}, labels=belongs("q2")))
    world.add(group("g", members))
    for i in range(members):
        world.add(pod(f"g-{i}", gang="g", requests={GPU: "8"}, labels=belongs("q1"), created=3500))
    return world.snapshot()


@pytest.mark.parametrize(
    ("nodes", "members", "over"), [(100, 8, 63), (400, 20, 50), (500, 30, 150), (1000, 64, 511), (1000, 64, 100)]
)
def test_reclaim_leaves_a_quota_its_min(nodes: int, members: int, over: int) -> None:
    """3.2: (taken - the largest unit) < over, and the gang needs all of its GPUs."""
    plan = plan_round(full_cluster(nodes, members, over), SETTINGS)
    assert not plan.evictions
    assert not plan.placements
    [unit] = plan.units
    assert unit.proof is Proof.INFEASIBLE
    assert f"needed {8 * members} {GPU}, free 0, reclaimable {over}" in plan.pending[0].message


@pytest.mark.parametrize("ways", [EVERY_WAY, *((way,) for way in Way)], ids=lambda ways: "+".join(ways))
@pytest.mark.parametrize(("held", "halves", "over"), [(0, 0, 160), (300, 0, 160), (0, 60, 50)])
def test_no_way_of_choosing_takes_more_than_a_quota_lends(
    ways: Sequence[Way], held: int, halves: int, over: int
) -> None:
    """All it lends is just enough, and only on the nodes without pods of q2; or the sums say that it is enough, and
    it is not, since a pod needs all of a node."""
    plan = plan_round(full_cluster(400, 20, over, held=held, halves=halves), SETTINGS, ways=ways)
    assert len(plan.evictions) in (0, 160 if over == 160 else 0)
    assert bool(plan.placements) == bool(plan.evictions)
    if ways == EVERY_WAY:
        assert len(plan.evictions) == (160 if over == 160 else 0)


@pytest.mark.parametrize(("seed", "nodes"), [(1, 300), (3, 300), (5, 300), (8, 300), (1011, 500)])
def test_every_way_keeps_the_law_in_a_large_cluster(seed: int, nodes: int) -> None:
    """Few of those that `make oracle` looks at. Of 8 and 1011 the greedy way once took many more than it needed."""
    wrong, _ = compared(seed, nodes)
    assert not wrong


@pytest.mark.parametrize("seed", [32, 47, 48, 55, 57])
def test_every_way_keeps_the_law_among_many_kinds(seed: int) -> None:
    """Several units, GPUs by name, GangGroups, quotas in three levels, and quotas that give back."""
    wrong, _ = compared(seed, 60, rich=True)
    assert not wrong


@pytest.mark.parametrize("seed", [4, 7, 17])
def test_every_way_keeps_the_law_among_npus(seed: int) -> None:
    """In 17 two quotas are to give back pods of one GangGroup, whole for the one, and in part for the other."""
    wrong, _ = compared(seed, 60, rich=True, npus=True)
    assert not wrong


@pytest.mark.parametrize(
    ("members", "over", "others"),
    [(2, 15, {}), (2, 16, {}), (3, 16, {}), (2, 24, {"halves": 2}), (2, 15, {"halves": 4}), (1, 8, {"halves": 4}),
     (2, 20, {"lab": 15}), (2, 20, {"lab": 16}), (2, 16, {"named": True})],
)  # fmt: skip
def test_a_cluster_many_times_as_large_has_the_same_answer(members: int, over: int, others: Mapping[str, int]) -> None:
    """Of the small one it is proven. One GPU more or less than what the gang needs is less than a node."""

    def answer(times: int) -> tuple[bool, float, Proof]:
        larger: dict[str, Any] = {name: one if one is True else one * times for name, one in others.items()}
        plan = plan_round(full_cluster(8 * times, members * times, over * times, **larger), SETTINGS)
        assert not plan.rejected
        return bool(plan.placements), len(plan.evictions) / times, plan.units[0].proof

    placed, evicted, proof = answer(1)
    assert proof in (Proof.OPTIMAL, Proof.INFEASIBLE)
    assert answer(40)[:2] == (placed, evicted)
