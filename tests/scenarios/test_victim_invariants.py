# SPDX-License-Identifier: Apache-2.0
"""Invariants of preemption.md 9 on random clusters, through 50 rounds of `simulate`."""

from datetime import UTC, datetime
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, Preemption
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import SimulationResult, simulate
from tests.scenarios.cluster import World, group, node, pod
from tests.scenarios.quotas import GPU, belongs, quota

MODES = ("gpu-count", "exact", "kai", "off")
NEVER = {keys.GANG_STALE_GRACE: "-1"}


class Cluster:
    """A random cluster; `order` shuffles the listing without touching any creation time."""

    def __init__(self, random: Random) -> None:
        self.objects: list[object] = []
        self.protected: set[str] = set()
        self.priority: dict[str, int] = {}
        self._free: dict[str, int] = {}
        for i in range(random.randint(1, 4)):
            self._free[f"n{i}"] = random.randint(1, 8)
            self.objects.append(node(f"n{i}", cpu="64", **{GPU: str(self._free[f"n{i}"])}))
        leaves = self._quotas(random) if random.random() < 0.8 else [""]
        for i in range(random.randint(0, 4)):
            self._gang(random, f"g{i}", random.choice(leaves))
        for i in range(random.randint(2, 9)):
            self._plain(random, f"p{i}", random.choice(leaves))
        fairness = Fairness(mode=random.choice(MODES), reclaim=random.choice(["quotas", "all", "all", "off"]))  # type: ignore[arg-type]
        self.config = KoordpyConfiguration(
            fairness=fairness,
            preemption=Preemption(enabled=random.random() < 0.7),
            consolidation=Consolidation(enabled=random.random() < 0.2),
        )

    def _quotas(self, random: Random) -> list[str]:
        inner, leaves = list[str](), [""]
        for i in range(random.randint(1, 4)):
            parent, is_inner = random.choice(["", *inner]), random.random() < 0.25
            least = {GPU: random.randint(0, 5)}
            self.objects.append(quota(f"q{i}", least, {GPU: 1000}, parent=parent, inner=is_inner, forced=True))
            (inner if is_inner else leaves).append(f"q{i}")
        return leaves

    def _spot(self, random: Random, amount: int) -> str:
        fitting = [name for name, free in self._free.items() if free >= amount]
        at = random.choice(fitting) if fitting else ""
        if at:
            self._free[at] -= amount
        return at

    def _add(self, random: Random, name: str, amount: int, **settings_: object) -> None:
        self.priority[f"default/{name}"] = int(settings_["priority"])  # type: ignore[call-overload]
        created = random.randint(0, 90)
        asked = {GPU: str(amount)}
        self.objects.append(pod(name, cpu="0", requests=asked, created=created, **settings_))  # type: ignore[arg-type]

    def _gang(self, random: Random, name: str, owner: str) -> None:
        least, amount, priority = random.randint(1, 4), random.randint(1, 3), random.choice([0, 0, 1, 5])
        self.objects.append(group(name, least, NEVER))
        before, spots = dict(self._free), list[str]()
        count = random.randint(least, least + 2)
        if random.random() < 0.6:
            spots = [at for _ in range(count) if (at := self._spot(random, amount))]
            if len(spots) < least:
                self._free, spots = before, []
        for i in range(count):
            at, labels = spots[i] if i < len(spots) else "", belongs(owner)
            self._add(random, f"{name}-{i}", amount, gang=name, at=at, priority=priority, labels=labels)

    def _plain(self, random: Random, name: str, owner: str) -> None:
        amount, rigid = random.randint(1, 4), random.random() < 0.1
        user = random.choice(["", "", "alice", "bob"])
        at = self._spot(random, amount) if random.random() < 0.65 else ""
        if rigid:
            self.protected.add(f"default/{name}")
        labels = belongs(owner, user=user, rigid=rigid)
        self._add(random, name, amount, at=at, priority=random.choice([0, 0, 1, 5, 9]), labels=labels)

    def run(self, order: Random | None = None) -> SimulationResult:
        objects = list(self.objects)
        if order is not None:
            order.shuffle(objects)
        state = World().add(*objects).state
        return simulate(state, self.config, planner=plan_round, now=datetime(2026, 1, 1, 1, tzinfo=UTC), rounds=50)


@settings(max_examples=120, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whatever_the_cluster_it_comes_to_rest_with_whole_gangs(random: Random) -> None:
    cluster = Cluster(random)
    result = cluster.run()
    assert result.stable  # I1
    assert not [one.message for one in result.pending if "failed koordpy's own check" in one.message]
    for report, _ in result.gangs:
        assert report.bound == 0 or report.bound >= report.min_member  # I5
    bound_in = {(one.pod_key, one.round) for one in result.bindings}
    gangs = {report.name for report, _ in result.gangs}
    for one in result.evictions:
        victim, rule, beneficiary = one.eviction.pod_key, one.eviction.rule, one.eviction.beneficiary
        assert victim not in cluster.protected
        assert beneficiary in gangs or (beneficiary, one.round) in bound_in  # I4
        if beneficiary in gangs:
            name = beneficiary.partition("/")[2]
            members = [key for key, at in bound_in if at == one.round and key.startswith(f"default/{name}-")]
            assert members  # I4
            takers = [cluster.priority[key] for key in members]
        else:
            takers = [cluster.priority[beneficiary]] if beneficiary else []
        if rule == "priority":
            assert cluster.priority[victim] < min(takers)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_in_which_objects_are_listed_decides_nothing(random: Random) -> None:
    """I6."""
    cluster = Cluster(random)
    first, second = cluster.run(), cluster.run(Random(random.randint(0, 1 << 30)))
    assert first.document()["evictions"] == second.document()["evictions"]
    assert first.document()["final"] == second.document()["final"]
