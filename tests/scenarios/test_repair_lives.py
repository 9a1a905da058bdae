# SPDX-License-Identifier: Apache-2.0
"""Random lives of gangs on nodes that fail, return and are cordoned, with every policy (repair.md 4)."""

from random import Random

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Condition, Node, Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration, StaleGangs
from koordpy.config.node_failures import Repair
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import GangStatus, RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import TWO_LAYERS, group, node, pod, wish

NOW = 2_000_000_000.0
CONFIG = KoordpyConfiguration(stale_gangs=StaleGangs(enabled=True, grace=0.0), repair=Repair(lost_conditions=("Sick",)))


class Life:
    """One cluster with gangs and plain pods, and the events of its nodes."""

    def __init__(self, seed: int) -> None:
        self.random, self.made = Random(seed), 0
        self.state: ClusterState = make_state(repair=CONFIG.repair)
        self.state.upsert(TWO_LAYERS)
        self.nodes = [node(f"n{i}", {"block": f"b{i // 4}", "spine": "s"}) for i in range(self.random.randint(6, 12))]
        for one in self.nodes:
            self.state.upsert(one)
        for name in ("g", "h"):
            size, least = self.random.randint(2, 4), self.random.choice((0, 0, 1))
            notes = {
                keys.GANG_REPAIR: self.random.choice(("replace", "regather", "wait")),
                **(wish({"blockLayer": self.random.choice(("Must", "Prefer"))}) if self.random.random() < 0.7 else {}),
            }
            self.state.upsert(group(name, size - least, notes))
            for i in range(size):
                self.create(f"{name}-{i}", name)

    def create(self, name: str, gang: str = "") -> None:
        self.made += 1
        priority = 5 if gang else self.random.choice((0, 5, 9))
        self.state.upsert(pod(name, gang=gang, priority=priority, created=self.made))

    def strike(self) -> None:
        """One event: a node fails, returns, sickens or is cordoned, or a plain pod is created or ends."""
        chosen = self.random.choice(self.nodes)
        name, kind = chosen.metadata.name, self.random.choice(("fail", "return", "sick", "cordon", "pod", "end"))
        plain = [one for one in self.state.pods() if one.gang is None]
        if kind == "fail":
            gone = [one for one in self.state.pods() if one.node == name]
            self.state.delete(Node, name)
            for one in gone if self.random.random() < 0.7 else ():
                self.recreate(one.pod)
        elif kind == "return":
            self.state.upsert(chosen)
        elif kind == "sick":
            status = replace(chosen.status, conditions=[Condition(type="Sick", status="True")])
            self.state.upsert(replace(chosen, status=status))
        elif kind == "cordon":
            self.state.upsert(replace(chosen, spec=replace(chosen.spec, unschedulable=True)))
        elif kind == "pod":
            self.create(f"p-{self.made}")
        elif plain:
            self.state.delete(Pod, self.random.choice(plain).key)

    def recreate(self, gone: Pod) -> None:
        self.state.delete(Pod, gone.key)
        if gone.metadata.name.startswith(("g", "h")):
            self.create(gone.metadata.name, gone.metadata.name[0])

    def round(self) -> RoundPlan:
        """Plans one round and carries it out."""
        plan = plan_round(self.state.snapshot(NOW + self.made), CONFIG)
        for eviction in plan.evictions:
            info = self.state.pod(eviction.pod_key)
            assert info is not None and not info.lost
            self.recreate(info.pod)
        for one in plan.placements:
            self.state.bind(one.pod_key, one.node, dict(one.annotations))
        return plan


def check(plan: RoundPlan, life: Life) -> None:
    """The invariants of one round."""
    assert not plan.rejected
    for told in plan.gangs:
        if 0 < told.bound < told.min_member:
            assert told.status in (GangStatus.DEGRADED, GangStatus.INVALID), told
    lost = life.state.snapshot(NOW + life.made).lost_nodes
    assert not any(one.node in lost for one in plan.placements)
    held: dict[str, int] = {}
    for told in plan.gangs:
        for name, number in told.repair.seats.items() if told.repair is not None else ():
            held[name] = held.get(name, 0) + number
    assert all(number == 1 for number in held.values())
    waits = {told.name for told in plan.gangs if told.repair is not None and told.repair.policy == "wait"}
    assert not any(one.rule != "stale-gang" and one.beneficiary in waits for one in plan.evictions)


@pytest.mark.parametrize("seed", range(60))
def test_no_gang_is_partly_bound_without_being_told(seed: int) -> None:
    life = Life(seed)
    for _ in range(12):
        life.strike()
        check(life.round(), life)
