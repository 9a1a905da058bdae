# SPDX-License-Identifier: Apache-2.0
"""Random clusters: no pending unit is `Unschedulable` if only a quota, a gate or a missing object is in its way, and
none has a reason that buys no nodes if nodes alone would help (repair.md 1.2). Checked by planning the same cluster
with further empty nodes that fit."""

from random import Random

import pytest

from koordpy.api.objects import PersistentVolumeClaimSource, Pod, Volume
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.halves import own_half
from tests.scenarios.cluster import TWO_LAYERS, group, node, pod, wish
from tests.scenarios.quotas import belongs, quota

NOW = 2_000_000_000.0
SEEDS, SLOTS, FURTHER = 2000, 4, 8
MISSING = Volume(name="v", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="missing"))
BUYS = {Reason.UNSCHEDULABLE, Reason.NEVER_FITS}
HELPLESS = {Reason.NOT_READY, Reason.QUOTA_EXCEEDED}
"""Reasons with which no node helps."""


class Cluster:
    """One random cluster of nodes in blocks, with running pods, plain pods and gangs."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = Random(seed)
        self.objects: list[object] = [TWO_LAYERS]
        self.blocks = dice.randint(1, 3)
        for i in range(dice.randint(1, 6)):
            self.objects.append(node(f"n{i}:{SLOTS}", {"block": f"b{i % self.blocks}", "spine": "s"}))
            if dice.random() < 0.6:
                self.objects.append(pod(f"r{i}", at=f"n{i}", cpu=str(dice.randint(1, SLOTS)), priority=9))
        self.has_quota = dice.random() < 0.5
        if self.has_quota:
            most = dice.randint(1, 12)
            self.objects.append(quota("q", {"cpu": str(dice.randint(0, most))}, {"cpu": str(most)}))
        for i in range(dice.randint(1, 3)):
            self.plain(f"p{i}")
        for name in ("g", "h"):
            if dice.random() < 0.7:
                self.gang(name)

    def plain(self, name: str) -> None:
        self.objects.append(self.pod(name, cpu=str(self.dice.randint(1, SLOTS))))

    def gang(self, name: str) -> None:
        size, strategy = self.dice.randint(2, 4), self.dice.choice(("Must", "Prefer", ""))
        least = size + self.dice.choice((0, 0, 0, -1, 1))
        notes = wish({"blockLayer": strategy}) if strategy else {}
        if self.dice.random() < 0.9:
            self.objects.append(group(name, least, notes))
        cpu, quota = str(self.dice.randint(1, SLOTS)), self.dice.random() < 0.4
        self.objects += [self.pod(f"{name}-{i}", gang=name, cpu=cpu, inside=quota) for i in range(size)]

    def pod(self, name: str, *, gang: str = "", cpu: str, inside: bool | None = None) -> Pod:
        """A pending pod, sometimes in the quota, with a claim that does not exist, or on a node by name."""
        labels = {}
        if self.has_quota and (self.dice.random() < 0.4 if inside is None else inside):
            labels = belongs("q")
        own: dict[str, object] = {}
        chance = self.dice.random()
        if chance < 0.1 and not gang:
            own = {"node_selector": {"kubernetes.io/hostname": "n0"}}
        elif chance < 0.2:
            own = {"volumes": [MISSING]}
        return pod(name, gang=gang, cpu=cpu, labels=labels, **own)

    def plan(self, further: int = 0, only: frozenset[str] | None = None) -> RoundPlan:
        """Plans one round; with so many further empty nodes in each block, and in one of their own.

        only: ids of the units that are planned; None for all.
        """
        state = make_state()
        more = [
            node(f"x{block}-{i}:{SLOTS}", {"block": f"b{block}", "spine": "s"})
            for block in range(self.blocks + 1)
            for i in range(further)
        ]
        for one in (*self.objects, *more):
            state.upsert(one)
        return plan_round(state.snapshot(NOW), KoordpyConfiguration(), only=only)


def check(cluster: Cluster) -> set[Reason]:
    """Checks the reasons of one cluster against its plan with further nodes; returns the reasons that were seen."""
    before, every = cluster.plan(), cluster.plan(FURTHER)
    for told in before.pending:
        if told.reason in BUYS:
            # alone, because units before it may use up a quota once they have nodes
            after = cluster.plan(FURTHER, frozenset({told.unit}))
            left = {one.pod_key: f"{one.reason}: {one.message}" for one in after.pending}
            assert after.placements, f"{told.pod_key}: {told.reason}: {told.message}; then {left}"
        elif told.reason in HELPLESS:
            left = {one.pod_key: one.reason for one in every.pending}
            assert left.get(told.pod_key) == told.reason, f"{told.pod_key}: {told.reason}: {told.message}; then {left}"
        elif told.reason is Reason.NODES_CANNOT_HELP:
            # other pods may leave it their node
            helped = [one for one in every.placements if one.pod_key == told.pod_key and one.node.startswith("x")]
            assert not helped, f"{told.pod_key}: {told.reason}: {told.message}; then {helped}"
    return {told.reason for told in before.pending}


@pytest.mark.parametrize("first", own_half(range(0, SEEDS, 50)))
def test_only_units_that_nodes_would_help_buy_nodes(first: int) -> None:
    seen: set[Reason] = set()
    for seed in range(first, first + 50):
        seen |= check(Cluster(seed))
    assert seen >= HELPLESS | {Reason.NODES_CANNOT_HELP, Reason.UNSCHEDULABLE}
