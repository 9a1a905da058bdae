"""Victims in random clusters of hundreds of nodes, by every way of choosing: `python -m tests.planning.victims_at_size
[COUNT]`.

Each way is forced in turn. What it takes is held against the law (`victim_law.py`), some of it given back, and the ways
against each other: where one has proven its answer, no other finds a better one, or one at all. Ends with 1 where
anything differs, and names the seeds.
"""

import sys
from collections.abc import Sequence
from random import Random

from koordpy.api.config import Fairness, KoordpyConfiguration, Preemption
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.cluster.snapshot import Snapshot
from koordpy.planning.plan import Proof, RoundPlan
from koordpy.planning.round import plan_round
from koordpy.planning.units import Groups
from koordpy.planning.victims.names import EVERY_WAY, Way
from tests.planning.victim_law import GPU, Judge
from tests.scenarios.cluster import World, group, hierarchy, node, pod, wish
from tests.scenarios.quotas import belongs, quota

MOST = {GPU: 100_000}
GIVEN_BACK = 6
"""Units of each plan that are given back one by one."""


def config(random: Random) -> KoordpyConfiguration:
    """Who may take from whom."""
    return KoordpyConfiguration(
        fairness=Fairness(
            mode=random.choice(["gpu-count", "gpu-count", "exact", "off"]),
            reclaim=random.choice(["quotas", "quotas", "all", "all", "off"]),
        ),
        preemption=Preemption(
            enabled=random.random() < 0.7,
            across_quotas=random.choice(["overMin", "overMin", "overMin", "any", "never"]),
        ),
    )


def cluster(random: Random, nodes: int) -> World:
    """Nodes of 8 GPUs, nearly full with pods and gangs of several quotas, users and priorities; somebody waits."""
    out = World().add(hierarchy(("blockLayer", "block"), ("spineLayer", "spine")))
    leaves = _quotas(out, random, nodes)
    for i in range(nodes):
        out.add(node(f"n{i}", {"block": f"b{i // 16}", "spine": f"s{i // 128}"}, cpu="256", **{GPU: "8"}))
    groups = [(f"g{i}", random.randint(1, 4), random.choice(leaves), random.choice([0, 0, 1, 5])) for i in range(nodes)]
    out.add(*(group(name, least) for name, least, *_ in groups))
    slack, sizes = random.choice([0.0, 0.03, 0.08]), random.choice([[1], [1, 2], [1, 2, 4], [1, 1, 4, 8]])
    joins, number = iter(groups * 4), 0
    for i in range(nodes):
        free = 8
        while free:
            amount = min(random.choice(sizes), free)
            free -= amount
            if random.random() < slack:
                continue
            gang, leaf, priority = "", random.choice(leaves), random.choice([0, 0, 0, 1, 5, 9])
            if random.random() < 0.15 and (member := next(joins, None)) is not None:
                gang, _, leaf, priority = member
            labels = belongs(leaf, user=random.choice(["", "", "alice", "bob"]), rigid=random.random() < 0.03)
            app = {"app": random.choice("abcd")} if random.random() < 0.2 else {}
            out.add(
                pod(
                    f"r{number}", at=f"n{i}", gang=gang, cpu="1", requests={GPU: str(amount)}, priority=priority,
                    created=random.randint(0, 3000), labels={**labels, **app},
                    scheduler="other" if random.random() < 0.02 else "koord-scheduler",
                )
            )  # fmt: skip
            number += 1
    for app in "ab":
        meta, spec = ObjectMeta(name=app, namespace="default"), LabelSelector(match_labels={"app": app})
        allowed = PodDisruptionBudgetStatus(disruptions_allowed=random.choice([0, 1, 20]))
        out.add(PodDisruptionBudget(metadata=meta, spec=PodDisruptionBudgetSpec(selector=spec), status=allowed))
    _waiting(out, random, leaves)
    return out


def _quotas(out: World, random: Random, nodes: int) -> list[str]:
    leaves, parents = [""], ["", "org"]
    out.add(quota("org", {GPU: 4 * nodes}, MOST, inner=True, forced=True))
    for i in range(random.randint(2, 6)):
        least = {GPU: random.choice([0, nodes // 2, nodes, 2 * nodes])}
        most = MOST if random.random() < 0.7 else {GPU: max(least[GPU], nodes)}
        out.add(quota(f"q{i}", least, most, parent=random.choice(parents), forced=True))
        leaves.append(f"q{i}")
    return leaves


def _waiting(out: World, random: Random, leaves: Sequence[str]) -> None:
    labels = belongs(random.choice(leaves[1:]), user=random.choice(["", "carol"]))
    settings = {"priority": random.choice([0, 1, 5, 9]), "created": 3500, "labels": labels, "cpu": "1"}
    if random.random() < 0.25:
        out.add(pod("me", requests={GPU: random.choice("1248")}, **settings))  # type: ignore[arg-type]
        return
    count, sizes = random.choice([2, 4, 8, 16, 32]), random.choice(["8", "8", "4", "1", "84", "12"])
    notes = wish({"spineLayer": random.choice(["Prefer", "Must"])}) if random.random() < 0.3 else None
    out.add(group("me", random.choice([count, count, count // 2]), notes))
    for i in range(count):
        out.add(pod(f"me-{i}", gang="me", requests={GPU: sizes[i % len(sizes)]}, **settings))  # type: ignore[arg-type]


def faults_of(plan: RoundPlan, judge: Judge, random: Random) -> list[str]:
    """What is wrong with one plan by the law."""
    out = [f"refused: {one.text}" for one in plan.rejected]
    bound = {one.pod_key for one in plan.placements}
    ranks = [rank for rank, member in enumerate(judge.unit.members) if member.key in bound]
    pods = [judge.unit.members[rank] for rank in ranks]
    if not plan.evictions:
        return out
    parts = judge.parts()
    taken = judge.of(plan.evictions, parts)
    if not pods or not judge.lawful(taken, parts, pods):
        return [*out, "the law forbids it"]
    for i in random.sample(sorted(taken), min(GIVEN_BACK, len(taken))):
        fewer = {k: rule for k, rule in taken.items() if k != i}
        gone = [one for k in fewer for one in parts[k].pods]
        if judge.lawful(fewer, parts, pods) and judge.place(gone, ranks) is not None:
            out.append(f"{parts[i].pods[0].key} is evicted in vain")
    return out


def compared(seed: int, nodes: int) -> tuple[list[str], dict[str, Proof]]:
    """(what is wrong, way -> what it claims) of one cluster."""
    random = Random(seed)
    snapshot, settings = cluster(random, nodes).snapshot(), config(random)
    return ways_compared(snapshot, settings, random)


def ways_compared(
    snapshot: Snapshot, settings: KoordpyConfiguration, random: Random
) -> tuple[list[str], dict[str, Proof]]:
    """The same of any cluster in which one unit waits."""
    [unit] = [one for one in Groups(snapshot).units() if one.pending]
    judge = Judge(snapshot, settings, unit.id)
    wrong: list[str] = []
    claims: dict[str, Proof] = {}
    costs: dict[str, tuple[int, tuple[int, ...]]] = {}
    for ways in (EVERY_WAY, *((way,) for way in Way)):
        name = ways[0] if len(ways) == 1 else "all"
        plan = plan_round(snapshot, settings, only=frozenset({unit.id}), ways=ways)
        wrong += [f"{name}: {text}" for text in faults_of(plan, judge, random)]
        claims[name] = plan.units[0].proof
        if plan.evictions:
            rules = {str(one.rule) for one in plan.evictions}
            parts = judge.parts()
            costs[name] = (
                len(plan.placements),
                judge.cost(judge.of(plan.evictions, parts), parts) if len(rules) == 1 else (),
            )
    sure = claims["all"]
    for name, (members, cost) in costs.items():
        if sure is Proof.INFEASIBLE:
            wrong.append(f"{name}: a plan, and it was proven that there is none")
        elif sure is Proof.OPTIMAL and members == costs["all"][0] and () != cost < costs["all"][1]:
            wrong.append(f"{name}: costs {cost}, and {costs['all'][1]} was proven least")
    return wrong, claims


def main(count: int, first: int) -> int:
    """Tries one seed of twenty of those from first to first + count - 1: they are large."""
    count, first = max(1, count // 20), first // 20
    bad, found = 0, dict[str, int]()
    for seed in range(first, first + count):
        wrong, claims = compared(seed, Random(seed).choice([300, 500, 1000]))
        bad += bool(wrong)
        found[str(claims["all"])] = found.get(str(claims["all"]), 0) + 1
        for text in wrong:
            print(f"seed {seed}: {text}", flush=True)
    told = ", ".join(f"{number} {claim}" for claim, number in sorted(found.items()))
    print(f"{'victims at size':<24}{count - bad:>7} of {count} lawful by every way ({told})", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    sys.exit(main(*(numbers + [1000, 0][len(numbers) :])))
