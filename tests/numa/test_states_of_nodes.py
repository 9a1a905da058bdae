# SPDX-License-Identifier: Apache-2.0
"""Nodes in one state of their zones share results, and follow every change: compared with the rules, node by node."""

import gc
import random
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import allocate
from koordpy.devices.gpu.gpu_nodes import GpuNodes
from koordpy.devices.gpu.gpu_view import gpu_view
from koordpy.devices.numa.admission import Policy, RequestPart, ZoneAdmission, Zoned, admit, memory_sets, minus
from koordpy.devices.numa.aligned_node import AlignedNode, aligned_node
from koordpy.devices.numa.numa_book import NO_DATA, numa_view
from koordpy.devices.numa.numa_filter import PLUGIN
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.feasibility.round_state import PlannerCache, RoundState
from koordpy.framework.pod_rule_filter import Rule
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_info import PodInfo
from tests.numa.test_zone_placements import UU, Cluster, U, container, node, pod, report
from tests.numa.zone_lives import Life

CONFIG = KoordpyConfiguration()
MOST = 40
"""Copies of a pod up to which the reference counts."""
WORDS = {
    RequestPart.POD: "cannot align pod",
    RequestPart.INIT: "cannot align init container",
    RequestPart.SIDECAR: "cannot align sidecar container",
    RequestPart.CONTAINER: "cannot align container",
}
Answer = tuple[int, tuple[str, str] | None]
"""(copies of a pod up to `MOST`, (code, reason) with which a node refuses the first)."""


def zones_on(draft: Draft, at: int) -> tuple[AlignedNode, Zoned, frozenset[int]]:
    """(zones of a node, free amounts, zone sets with memory), read from the draft without any cache."""
    info = draft.snapshot.nodes[at]
    numa, gpus_of = numa_view(draft.snapshot).nodes, gpu_view(draft.snapshot).nodes
    settings = CONFIG.numa, CONFIG.gpu
    found = aligned_node(numa.get(info.name, NO_DATA), gpus_of.get(info.name), info.allocatable, settings)
    gpus = GpuNodes(draft, CONFIG.gpu).state(at)
    if draft.evicted and not gpus.unknown:  # a count-only node becomes one with known GPUs
        found = found.by_name
    state = found.state_without(draft.evicted.keys(), gpus.free)
    free, groups = dict(state.free), state.groups
    for key in draft.placed_on.get(at, {}):
        take = draft.family_devices_of(key, NUMA)
        if take is not None:
            free = minus(free, {name: row for name, row in take.taken.items() if name not in found.by_device})
            groups |= memory_sets([take.taken])
    return found, free, groups


def answer(one: PodInfo, ask: NumaAsk, draft: Draft, at: int) -> Answer:
    """What the rules of numa.md 5 say about a pod on a node."""
    found, free, groups = zones_on(draft, at)
    kind = found.kind
    amounts = ask.on(frozenset(dict(kind.total)), kind.scope)
    if not kind.numbers:
        return (0, (UU, "node(s) have no NUMA data")) if ask.demand.rejects else (MOST, None)
    if len(kind.numbers) == 1:
        return MOST, None
    if kind.policy is Policy.NONE or not amounts.requests:
        return (0, (UU, "node(s) do not align the pod's resources")) if ask.demand.rejects else (MOST, None)
    policy = max(kind.policy, ask.demand, key=lambda policy: policy.strictness)
    if not policy.rejects:
        return MOST, None
    for number in range(MOST):
        taken = admit(amounts, kind.zones, free, policy, groups)
        if not isinstance(taken, ZoneAdmission):
            if number:
                return number, None
            able = isinstance(admit(amounts, kind.zones, dict(kind.total), policy), ZoneAdmission)
            return 0, (U if able else UU, WORDS[taken])
        if not taken.taken:
            return MOST, None
        free, groups = minus(free, taken.taken), groups | memory_sets([taken.taken])
    return MOST, None


def check(state: RoundState) -> int:
    """Compares the filter of each pending pod with the rules; returns the number of comparisons."""
    done = 0
    for one in [one for one in state.snapshot.pending if one.key not in state.draft.placed]:
        own, fresh = state.of(one), RoundState(state.draft, CONFIG).of(one)
        for name in ("slots", "allowed", "soft", "total"):
            np.testing.assert_array_equal(getattr(own, name), getattr(fresh, name), name)
        rule: Rule | None = next((rule for rule in own.rules if rule.plugin == PLUGIN), None)
        if rule is None:
            continue
        verdict, copies = rule.verdict(), rule.copies()
        assert copies is not None
        for at in range(len(state.snapshot.nodes)):
            refusal = verdict.of(at)
            said = (str(refusal.code), refusal.reasons[0]) if refusal is not None else None
            assert (min(MOST, int(copies[at])), said) == answer(one, one.ask(NUMA), state.draft, at), (one.key, at)
            done += 1
    return done


def changes(state: RoundState, rng: random.Random) -> Iterator[None]:
    """Places and evicts pods on the draft, and undoes some of it."""
    draft = state.draft
    marks = [draft.mark()]
    for _ in range(4):
        waiting = [one for one in state.snapshot.pending if one.key not in draft.placed]
        running = [one for one in state.snapshot.pods.values() if one.bound and one.key not in draft.evicted]
        if waiting and rng.random() < 0.7:
            one = rng.choice(waiting)
            able = np.nonzero(state.of(one).slots)[0].tolist()
            if able:
                at = rng.choice(able)
                draft.assign(one, at, devices=allocate({one.key: at}, state).devices.get(one.key, {}))
        elif running:
            draft.evict(rng.choice(running))
        if rng.random() < 0.2:
            draft.undo(rng.choice(marks))
        marks = [*(mark for mark in marks if mark <= draft.mark()), draft.mark()]
        yield


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_the_filter_says_of_each_node_what_the_rules_say(first: int) -> None:
    done = 0
    for seed in range(first, first + 10):
        life, rng, cache = Life(seed), random.Random(seed), PlannerCache()
        for _ in range(3):
            state = RoundState(Draft(life.world.snapshot()), CONFIG, cache)
            done += check(state)
            for _ in changes(state, rng):
                done += check(state)
            life.change(life.world.plan(planner_cache=cache))
    assert done > 1000


def test_nodes_that_differ_in_what_is_allocatable_alone_get_their_own_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both nodes have zones of 4 devices of which 1 is free. On n1 the others are used; on n2 they are not
    allocatable, so no eviction helps."""
    nic = "example.com/nic"
    zones = {"n1": ("4", "4", "1"), "n2": ("4", "1", "1")}
    nodes = [node(name, **{nic.replace("/", "_"): "8"}) for name in zones]
    reports = [report(name, "single-numa-node", "pod", [{nic: row}] * 2) for name, row in zones.items()]
    used = [pod(f"x{i}", container(**{nic.replace("/", "_"): "3"}), on="n1") for i in range(2)]
    cluster = Cluster(tmp_path, capsys, *nodes, *reports, *used, pod("p", container(**{nic.replace("/", "_"): "2"})))
    assert cluster.refusal("p", "n1") == (U, "cannot align pod")
    assert cluster.refusal("p", "n2") == (UU, "cannot align pod")


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_a_snapshot_is_freed_after_its_round_without_a_garbage_collection(first: int) -> None:
    """Objects of a round must not refer to each other in a cycle, because a cycle would keep the snapshot of every
    round until the next full collection."""
    for seed in range(first, first + 10):
        life, cache = Life(seed), PlannerCache()
        for _ in range(3):
            gc.collect()
            gc.disable()
            try:
                snapshot = life.world.snapshot()
                known = weakref.ref(snapshot)
                plan = plan_round(snapshot, CONFIG, planner_cache=cache)
                del snapshot
                assert known() is None, seed
            finally:
                gc.enable()
            life.change(plan)
