# SPDX-License-Identifier: Apache-2.0
"""Victims under every rule against the law read a second time: preemption.md 1 to 5 over all subsets."""

from collections.abc import Sequence
from random import Random
from typing import Literal

from msgspec.structs import replace

from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.config.configuration import Fairness, KoordpyConfiguration, MaxHarm, Preemption, Protection, Quota
from koordpy.config.node_failures import Repair
from koordpy.gangs.queue_units import Groups
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from tests.planning.victim_law import GPU, Judge
from tests.scenarios.cluster import World, group, hierarchy, node, pod, wish
from tests.scenarios.quotas import belongs, quota

LAYERS = hierarchy(("blockLayer", "block"), ("spineLayer", "spine"))
MOST = {GPU: 1000, "cpu": 1000}


def config(random: Random) -> KoordpyConfiguration:
    found = KoordpyConfiguration(
        fairness=Fairness(
            mode=random.choice(["gpu-count", "gpu-count", "exact", "exact", "kai", "off"]),
            reclaim=random.choice(RECLAIMS),
        ),
        preemption=Preemption(
            enabled=random.random() < 0.8,
            across_quotas=random.choice(["overMin", "overMin", "any", "never"]),
            surplus_victims=random.choice(["pods", "pods", "any"]),
        ),
        protection=Protection(
            max_harm=MaxHarm(**{rule: random.choice(FACTORS) for rule in ("priority", "quota", "fair_share")})
        ),
        quota=Quota(no_quota_yields=random.choice(["lowerPriority", "lowerPriority", "always", "never"])),
        repair=Repair(seat_hold=0.0),
    )
    across: list[Literal["overShare", "any", "never"]] = ["overShare", "overShare", "never"]
    if found.fairness.reclaim != "all":
        across.append("any")
    return replace(found, preemption=replace(found.preemption, across_users=random.choice(across)))


FACTORS = [None, None, None, 1.0, 1.5, 0.5]


RECLAIMS: list[Literal["off", "quotas", "all"]] = ["quotas", "quotas", "all", "all", "all", "off"]


def world(random: Random) -> World:
    """Running pods and gangs in quotas, and somebody who waits."""
    out, free = World(), dict[str, int]()
    layers = random.random() < 0.3
    if layers:
        out.add(LAYERS)
    for i in range(random.randint(1, 3)):
        free[f"n{i}"] = random.randint(1, 4)
        labels = {"spine": f"s{random.randint(0, 1)}", "block": f"b{random.randint(0, 1)}", "model": f"m{i % 2}"}
        out.add(node(f"n{i}", labels, cpu="64", **{GPU: str(free[f"n{i}"])}))
    leaves = _quotas(out, random) if random.random() < 0.9 else [""]
    groups: list[tuple[str, str]] = []
    for i in range(random.randint(0, 2)):
        links = '["default/g0"]' if i and random.random() < 0.2 else ""
        notes = {"gang.scheduling.koordinator.sh/groups": links} if links else {}
        out.add(group(f"g{i}", random.randint(1, 3), notes))
        groups.append((f"g{i}", random.choice(leaves)))
    for i in range(random.randint(2, 7)):
        at, amount = max(free, key=lambda name: free[name]), random.choice([1, 1, 2, 3])
        amount = min(amount, free[at])
        if not amount:
            continue
        free[at] -= amount
        gang, leaf = random.choice([("", random.choice(leaves)), ("", random.choice(leaves)), *groups])
        labels = belongs(leaf, user=random.choice(["", "", "alice", "bob"]), rigid=random.random() < 0.08)
        settings = {"cpu": random.choice(["0", "1", "2"]), "priority": random.choice([0, 0, 1, 2, 5, 9])}
        app = {"app": random.choice("ab")} if random.random() < 0.4 else {}
        asked = {GPU: str(amount)}
        extra = {"scheduler": "other"} if random.random() < 0.05 else {}
        out.add(
            pod(
                f"v{i}",
                at=at,
                gang=gang,
                requests=asked,
                created=random.randint(0, 20),
                labels={**labels, **app},
                **settings,  # type: ignore[arg-type]
                **extra,  # type: ignore[arg-type]
            )
        )
    if random.random() < 0.3:
        out.add(
            PodDisruptionBudget(
                metadata=ObjectMeta(name="pdb", namespace="default"),
                spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "a"})),
                status=PodDisruptionBudgetStatus(disruptions_allowed=random.randint(0, 2)),
            )
        )
    _waiting(out, random, leaves, layers=layers)
    return out


def _quotas(out: World, random: Random) -> list[str]:
    inner, leaves = list[str](), [""]
    for i in range(random.randint(1, 4)):
        parent, is_inner = random.choice(["", *inner]), random.random() < 0.3
        counted = [GPU] if random.random() < 0.7 else [GPU, "cpu"]
        least = {name: random.randint(0, 4) for name in counted}
        most = {name: MOST[name] for name in counted}
        if random.random() < 0.25 and not is_inner:
            most = {name: max(least[name], random.randint(1, 6)) for name in counted}
        out.add(quota(f"q{i}", least, most, parent=parent, inner=is_inner, forced=True))
        (inner if is_inner else leaves).append(f"q{i}")
    return leaves


def _waiting(out: World, random: Random, leaves: list[str], *, layers: bool) -> None:
    for name in ("me", "also")[: random.choice([1, 1, 2])]:
        leaf, priority = random.choice(leaves), random.choice([0, 0, 0, 1, 5, 9])
        labels = belongs(leaf, user=random.choice(["", "", "alice", "bob"]), rigid=random.random() < 0.1)
        settings = {"priority": priority, "created": 100, "labels": labels, "cpu": random.choice(["0", "1"])}
        if random.random() < 0.2:
            settings["node_selector"] = {"model": "m0"}
        if random.random() < 0.08:
            settings["preemption_policy"] = "Never"
        if random.random() < 0.4:
            out.add(pod(name, requests={GPU: str(random.randint(1, 4))}, **settings))  # type: ignore[arg-type]
            continue
        count, amount = random.randint(1, 3), str(random.randint(1, 2))
        notes = None
        if layers and random.random() < 0.7:
            layer, strategy = random.choice(["blockLayer", "spineLayer"]), random.choice(["Prefer", "Must"])
            notes = wish({layer: strategy}, pp=random.choice([1, 1, 2]))
        out.add(group(name, random.randint(1, count), notes))
        for i in range(count):
            out.add(pod(f"{name}-{i}", gang=name, requests={GPU: amount}, **settings))  # type: ignore[arg-type]


def compared(seed: int, ways: Sequence[Way] = EVERY_WAY) -> str:
    """The rules that took somebody; the planner's answer for one unit is held against the law's."""
    random = Random(seed)
    snapshot, settings = world(random).snapshot(), config(random)
    unit = random.choice(Groups(snapshot).units())
    wanted = Judge(snapshot, settings, unit.id).verdict()
    plan = plan_round(snapshot, settings, only=frozenset({unit.id}), ways=ways)
    assert not [one.message for one in plan.pending if "failed koordpy's own check" in one.message], seed
    rules = {one.rule for one in plan.evictions}
    if rules == {"consolidation"}:
        bound = {one.pod_key for one in plan.placements}
        ranks = [rank for rank, pod in enumerate(unit.members) if pod.key in bound]
        assert Judge(snapshot, settings, unit.id).may_move(ranks), seed
        return "consolidation"
    assert tuple(sorted(one.pod_key.partition("/")[2] for one in plan.evictions)) == wanted.victims, (seed, wanted)
    assert bool(plan.placements) == wanted.placed, (seed, wanted)
    assert rules <= set(wanted.step), (seed, wanted)
    return "+".join(sorted(rules))


def test_the_planner_takes_the_least_harmful_lawful_set() -> None:
    rules = [compared(seed) for seed in range(150)]
    assert {"priority", "quota"} <= set(rules)


def test_the_model_alone_takes_the_least_harmful_lawful_set() -> None:
    assert any(compared(seed, (Way.MODEL,)) for seed in range(1000, 1120))


def kept(seed: int) -> bool:
    """Whether the greedy way took somebody; what it takes is lawful, and nobody of it could stay."""
    random = Random(seed)
    snapshot, settings = world(random).snapshot(), config(random)
    unit = random.choice(Groups(snapshot).units())
    plan = plan_round(snapshot, settings, only=frozenset({unit.id}), ways=(Way.GREEDY,))
    judge = Judge(snapshot, settings, unit.id)
    parts = judge.parts()
    taken = judge.of(plan.evictions, parts)
    bound = {one.pod_key for one in plan.placements}
    ranks = [rank for rank, pod in enumerate(unit.members) if pod.key in bound]
    pods = [unit.members[rank] for rank in ranks]
    assert not taken or judge.lawful(taken, parts, pods), seed
    for i in taken:
        fewer = {k: rule for k, rule in taken.items() if k != i}
        gone = [pod for k in fewer for pod in parts[k].pods]
        assert not judge.lawful(fewer, parts, pods) or judge.place(gone, ranks) is None, (seed, parts[i])
    return bool(taken)


def test_what_the_greedy_way_takes_is_lawful_and_needed() -> None:
    assert sum(kept(seed) for seed in range(3000, 3300)) > 20
