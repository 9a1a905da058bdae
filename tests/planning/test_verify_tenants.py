# SPDX-License-Identifier: Apache-2.0
"""The check of what plans take of other tenants, and move: plans that are handed to it, right and wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, Preemption, Protection, Quota
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.preemption.selection.disruption_budgets import snapshot_budgets
from koordpy.verify.eviction_check import EvictedUnit, Round
from koordpy.verify.plan_fault import Check
from koordpy.verify.preemption_check import check_victims
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"


def of(user: str, name: str, at: str = "", *, gpu: int = 1, priority: int = 0, leaf: str = "", **more: Any) -> Pod:
    asked = {GPU: str(gpu)}
    return pod(name, at=at, cpu="0", requests=asked, priority=priority, labels=belongs(leaf, user=user), **more)


def cluster() -> World:
    """Alice uses 6 of 8 and Bob 2: shares of 4 (his pending pods ask for more). Alice's `far` is on nodes of another
    kind."""
    world = World()
    for name in ("n1", "n2"):
        world.add(node(name, {"kind": "a"}, cpu="64", **{GPU: "4"}))
    world.add(node("n3", {"kind": "b"}, cpu="64", **{GPU: "4"}))
    world.add(quota("q", {GPU: 2}, {GPU: 4}))
    world.add(*(of("alice", f"a{i}", "n1") for i in range(3)), of("alice", "large", "n2", gpu=3))
    world.add(of("bob", "b", "n1"), of("bob", "b2", "n2"))
    world.add(of("alice", "far", "n3"), of("", "mine", "n3", leaf="q"))
    marked = of("alice", "marked", "n3")
    world.add(replace(marked, metadata=replace(marked.metadata, annotations={keys.SAFE_TO_CONSOLIDATE: "false"})))
    near = {"kind": "a"}
    world.add(of("bob", "p", priority=9, node_selector=near), of("bob", "p3", priority=9, gpu=3, node_selector=near))
    world.add(of("bob", "p2", priority=9, gpu=2, node_selector=near), of("bob", "equal", node_selector=near))
    world.add(of("bob", "vip", gpu=3, priority=2_000_000_000, node_selector=near))
    world.add(of("bob", "never", priority=9, preemption_policy="Never", node_selector=near))
    return world


@dataclass(frozen=True)
class Case:
    """taken: names of pods, each a unit, and their rule. back: where they return."""

    name: str
    taken: Sequence[str]
    text: str = ""
    who: str = "p"
    to: str = "n1"
    rule: str = "priority"
    across: str = "overShare"
    reclaim: str = "off"
    mode: str = "gpu-count"
    back: Mapping[str, str] = field(default_factory=dict)
    moves: bool = False


CASES = [
    Case("above the share", ["a2"]),
    Case("as much as is above it", ["a1", "a2"], who="p2"),
    Case("the last unit crosses, with an excess that is no larger", ["large"], who="p3", to="n2"),
    Case("more than is above it", ["a0", "a1", "a2"], "alice would lose capacity within its share", who="p3"),
    Case("a system priority", ["a0", "a1", "a2"], who="vip"),
    Case("any", ["a0", "a1", "a2"], who="p3", across="any"),
    Case("never", ["a2"], "a2 belongs to another tenant", across="never"),
    Case("never, of the own", ["b"], "priority 0", who="equal", across="never"),
    Case("mode off", ["a0", "a1", "a2"], who="p3", mode="off"),
    Case("moves for a priority that was asked", ["a2"], rule="consolidation", back={"a2": "n3"}),
    Case("not of its own priority", ["a2"], "consolidation is off", who="equal", rule="consolidation",
         back={"a2": "n3"}),
    Case("nor with any", ["a2"], "consolidation is off", rule="consolidation", back={"a2": "n3"}, across="any"),
    Case("nor with policy Never", ["a2"], "consolidation is off", "never", rule="consolidation", back={"a2": "n3"}),
    Case("a pod that says so stays", ["marked"], "marked must not be moved", rule="consolidation",
         back={"marked": "n2"}),
    Case("a quota within its min stays", ["mine"], "quota q is within its min", rule="consolidation",
         back={"mine": "n2"}, moves=True),
    Case("also for equal priorities, where consolidation is on", ["a2"], who="equal", rule="consolidation",
         back={"a2": "n3"}, moves=True),
]  # fmt: skip


def texts(case: Case) -> list[str]:
    """Faults other than those that say that a unit could stay, or of room."""
    config = KoordpyConfiguration(
        preemption=Preemption(across_users=case.across),  # type: ignore[arg-type]
        fairness=Fairness(mode=case.mode, reclaim=case.reclaim),  # type: ignore[arg-type]
        consolidation=Consolidation(enabled=case.moves),
        quota=Quota(enable_runtime_quota=False),
        protection=Protection(),
    )
    snapshot = cluster().snapshot()
    round_state = RoundState(Draft(snapshot), config)
    unit = next(one for one in Groups(snapshot).units() if one.id == f"default/{case.who}")
    taken = [EvictedUnit((snapshot.pods[f"default/{name}"],), case.rule) for name in case.taken]
    nodes = {f"default/{case.who}": snapshot.index[case.to]}
    back = {f"default/{name}": snapshot.index[to] for name, to in case.back.items()}
    found = check_victims(unit, taken, nodes, back, Round(round_state, None, snapshot_budgets(snapshot)))
    return [str(one) for one in found if one.check is not Check.QUOTAS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_other_tenants_lose_is_checked(case: Case) -> None:
    found = texts(case)
    assert any(case.text in one for one in found) if case.text else not found
