# SPDX-License-Identifier: Apache-2.0
"""Victims in random clusters of hundreds of nodes, by every way of choosing: `python -m tests.planning.victims_at_size
[COUNT]`.

Each way is forced in turn. What it takes is held against the law (`victim_law.py`), some of it given back, and
the ways against each other: where one has proven its answer, no other finds a better one, or one at all. Two seeds of
three have more in them: quotas in three levels, GangGroups, GPUs by name, units that are moved, and several units that
wait; these are judged one after another, as the round takes them. Ends with 1 where anything differs, and names the
seeds.
"""

import json
import sys
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.config.node_failures import Repair
from koordpy.gangs.queue_units import Groups
from koordpy.plan.round_plan import Eviction, Proof, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.preemption_names import EVERY_WAY, RuleName, Way
from tests.planning.gpu.machines import UNIFORM, M, device
from tests.planning.minimality import proven
from tests.planning.victim_law import GPU, Judge, covers
from tests.scenarios.cluster import World, group, hierarchy, node, pod, wish
from tests.scenarios.npus import N910, ids, npu_node
from tests.scenarios.quotas import belongs, quota

PRODUCT = "module-910b-8"
"""Of nodes with NPUs: eight chips, of which any may be given together."""
GIVEN_BACK = 6
"""Units of each plan that are given back one by one."""


def config(random: Random, *, rich: bool = False) -> KoordpyConfiguration:
    """Who may take from whom. The judge knows no seats of broken gangs (tests/scenarios/test_seats.py)."""
    return KoordpyConfiguration(
        consolidation=Consolidation(enabled=rich and random.random() < 0.3),
        quota=Quota(monitor_all_quotas=rich and random.random() < 0.3, delay_evict_time=0.0),
        fairness=Fairness(
            mode=random.choice(["gpu-count", "gpu-count", "exact", "off"]),
            reclaim=random.choice(["quotas", "quotas", "all", "all", "off"]),
        ),
        preemption=Preemption(
            enabled=random.random() < 0.7,
            across_quotas=random.choice(["overMin", "overMin", "overMin", "any", "never"]),
        ),
        repair=Repair(seat_hold=0.0),
    )


def cluster(random: Random, nodes: int, *, rich: bool = False, npus: bool = False) -> World:
    """Nodes of 8 GPUs, or of 8 NPUs, nearly full with pods and gangs of several quotas, users and priorities; somebody
    waits."""
    out = World().add(hierarchy(("blockLayer", "block"), ("spineLayer", "spine")))
    device_name = N910 if npus else GPU
    leaves = _quotas(out, random, nodes, device_name, rich=rich)
    named = rich and random.random() < 0.5
    for i in range(nodes):
        labels = {"block": f"b{i // 16}", "spine": f"s{i // 128}"}
        if npus:
            out.add(npu_node(f"n{i}", product=PRODUCT, labels=labels, cpu="256"))
            continue
        if named and random.random() < 0.7:
            sick = [random.randrange(8)] if random.random() < 0.05 else []
            out.add(device(random.choice([UNIFORM, M]), name=f"n{i}", sick=sick))
        out.add(node(f"n{i}", labels, cpu="256", **{GPU: "8"}))
    groups = [(f"g{i}", random.randint(1, 4), random.choice(leaves), random.choice([0, 0, 1, 5])) for i in range(nodes)]
    joined = _joined(random, [name for name, *_ in groups]) if rich else {}
    out.add(*(group(name, least, joined.get(name)) for name, least, *_ in groups))
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
            app = {"app": random.choice("abcd")} if random.random() < (0.5 if rich else 0.2) else {}
            held = [str(minor) for minor in range(free, free + amount)]
            notes = {keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"0": held}, "visibleGPUs": held})}
            if npus:
                notes = {N910: ids(range(free, free + amount))}
            out.add(
                pod(
                    f"r{number}", at=f"n{i}", gang=gang, cpu="1", requests={device_name: str(amount)},
                    priority=priority, created=random.randint(0, 3000), labels={**labels, **app},
                    annotations=notes if named or npus else None,
                    scheduler="other" if random.random() < 0.02 else "koord-scheduler",
                )
            )  # fmt: skip
            number += 1
    for app in "ab":
        meta, spec = ObjectMeta(name=app, namespace="default"), LabelSelector(match_labels={"app": app})
        allowed = PodDisruptionBudgetStatus(disruptions_allowed=random.choice([0, 1, 20]))
        out.add(PodDisruptionBudget(metadata=meta, spec=PodDisruptionBudgetSpec(selector=spec), status=allowed))
    for name in ["me", "you", "they"][: random.randint(1, 3) if rich else 1]:
        _waiting(out, random, leaves, name, device_name, named=named)
    return out


def _joined(random: Random, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Gang -> annotations that join it to the next one."""
    out = {}
    for one, other in zip(names[::2], names[1::2], strict=False):
        if random.random() < 0.3:
            notes = {keys.GANG_GROUPS: json.dumps([f"default/{one}", f"default/{other}"])}
            out[one] = out[other] = notes
    return out


def _quotas(out: World, random: Random, nodes: int, device_name: str, *, rich: bool = False) -> list[str]:
    leaves, parents, all_of_it = [""], ["", "org"], {device_name: 100_000}
    least, most = {device_name: 4 * nodes}, all_of_it
    if rich:
        parents = ["", "org", "dep", "dep", "lab", "firm"]
        for name, parent in (("firm", ""), ("dep", "org"), ("lab", "org")):
            least = {device_name: random.choice([0, nodes // 2, nodes, 3 * nodes])}
            most = all_of_it if random.random() < 0.7 else {device_name: max(least[device_name], 2 * nodes)}
            out.add(quota(name, least, most, parent=parent, inner=True, forced=True, lends=random.random() < 0.8))
        least = {device_name: random.choice([0, nodes, 4 * nodes])}
        most = random.choice([all_of_it, {device_name: 6 * nodes}])
    out.add(quota("org", least, most, inner=True, forced=True))
    for i in range(random.randint(2, 6)):
        least = {device_name: random.choice([0, nodes // 2, nodes, 2 * nodes])}
        most = all_of_it if random.random() < 0.7 else {device_name: max(least[device_name], nodes)}
        out.add(quota(f"q{i}", least, most, parent=random.choice(parents), forced=True))
        leaves.append(f"q{i}")
    return leaves


def _waiting(out: World, random: Random, leaves: Sequence[str], name: str, device_name: str, *, named: bool) -> None:
    labels = belongs(random.choice(leaves[1:]), user=random.choice(["", "carol"]))
    settings = {"priority": random.choice([0, 1, 5, 9]), "created": 3500, "labels": labels, "cpu": "1"}
    if named:
        fast = {keys.GPU_MIN_BANDWIDTH: random.choice(["40", "90"])} if random.random() < 0.3 else {}
        never = {"preemption_policy": "Never"} if random.random() < 0.1 else {}
        settings = {**settings, **never, "annotations": fast}
    if random.random() < 0.25:
        out.add(pod(name, requests={device_name: random.choice("1248")}, **settings))  # type: ignore[arg-type]
        return
    count, sizes = random.choice([2, 4, 8, 16, 32]), random.choice(["8", "8", "4", "1", "84", "12"])
    notes = wish({"spineLayer": random.choice(["Prefer", "Must"])}) if random.random() < 0.3 else None
    out.add(group(name, random.choice([count, count, count // 2]), notes))
    for i in range(count):
        out.add(pod(f"{name}-{i}", gang=name, requests={device_name: sizes[i % len(sizes)]}, **settings))  # type: ignore[arg-type]


def faults_of(plan: RoundPlan, judge: Judge, random: Random) -> list[str]:
    """What is wrong with what is taken for one unit by the law."""
    evictions = [one for one in plan.evictions if one.unit == judge.unit.id]
    if not evictions:
        return []
    bound = {one.pod_key for one in plan.placements}
    ranks = [rank for rank, member in enumerate(judge.unit.members) if member.key in bound]
    pods = [judge.unit.members[rank] for rank in ranks]
    if {one.rule for one in evictions} == {RuleName.CONSOLIDATION}:
        return _faults_of_moves(evictions, judge, pods, ranks)
    parts = judge.parts()
    taken = judge.of(evictions, parts)
    if not pods or not judge.lawful(taken, parts, pods):
        return ["the law forbids it"]
    out = []
    for i in random.sample(sorted(taken), min(GIVEN_BACK, len(taken))):
        fewer = {k: rule for k, rule in taken.items() if k != i}
        gone = [one for k in fewer for one in parts[k].pods]
        if judge.lawful(fewer, parts, pods) and judge.place(gone, ranks) is not None:
            out.append(f"{parts[i].pods[0].key} is evicted in vain")
    return out


def _faults_of_moves(
    evictions: Sequence[Eviction], judge: Judge, pods: Sequence[PodInfo], ranks: Sequence[int]
) -> list[str]:
    """The same of units that are moved: nobody more important, budgets, and nobody for whom there is room as he is."""
    parts = judge.parts()
    taken = judge.of(evictions, parts)
    to = {one.pod_key: one.returns_to for one in evictions}
    gone = [one for i in taken for one in parts[i].pods]
    least = min(one.priority for one in pods)
    out = [f"{one.key} is moved for somebody less important" for one in gone if one.priority > least]
    if not judge.spares_budgets(gone, gone):
        out.append("a budget forbids a move")
    for i in taken:
        mark = judge.draft.mark()
        others = [one for k in taken if k != i for one in parts[k].pods]
        for one in others:
            judge.draft.evict(one)
        for one in others:
            judge.draft.assign(one, judge.snapshot.index[to[one.key]])
        if judge.place([], ranks) is not None:
            out.append(f"{parts[i].pods[0].key} is moved in vain")
        judge.draft.undo(mark)
    return out


def carried_out(world: World, plan: RoundPlan, unit: str) -> None:
    """What a plan does for one unit is done."""
    objects, known = world.state, world.snapshot().pods
    for one in (one for one in plan.evictions if one.unit == unit):
        pod = known[one.pod_key].pod
        for budget in objects.disruption_budgets():
            if covers(budget, pod) and budget.status.disruptions_allowed:
                status = replace(budget.status, disruptions_allowed=budget.status.disruptions_allowed - 1)
                objects.upsert(replace(budget, status=status))
        objects.delete(Pod, one.pod_key)
        if one.returns_to:
            spec, meta = replace(pod.spec, node_name=one.returns_to), replace(pod.metadata, annotations={})
            objects.upsert(replace(pod, spec=spec, metadata=meta))
    members = {member.key for one in Groups(world.snapshot()).units() if one.id == unit for member in one.members}
    for placed in plan.placements:
        if placed.pod_key in members:
            objects.bind(placed.pod_key, placed.node, dict(placed.annotations))


def one_after_another(plan: RoundPlan, world: World, settings: KoordpyConfiguration, random: Random) -> list[str]:
    """What is wrong with each unit's part of a round, those before it being carried out. Limits and shares are what
    they were when the round began."""
    at_first = Judge(world.snapshot(), settings, plan.units[0].unit)
    bound = {one.pod_key for one in plan.placements}
    out = [f"refused: {one.text}" for one in plan.rejected]
    out += [f"{one}: a unit is evicted in vain" for one in plan.not_minimal]
    out += [f"{one.pod_key} is bound and evicted in a round" for one in plan.evictions if one.pod_key in bound]
    given = [one for one in plan.evictions if not one.unit]
    parts = at_first.parts()
    gone = [one for i in at_first.of(given, parts) for one in parts[i].pods]
    if not at_first.spares_budgets(gone, gone):
        out.append("a budget forbids what is given back")
    carried_out(world, plan, "")
    earlier: list[PodInfo] = []
    """Victims of units before: those in no quota have given up what they used."""
    for unit in dict.fromkeys(report.unit for report in plan.units):
        judge = Judge(world.snapshot(), settings, unit)
        judge.limits = lambda gone, before=(*earlier,): at_first.limits([*before, *gone])  # type: ignore[method-assign, misc]
        judge.shares = at_first.shares
        out += [f"{unit}: {text}" for text in faults_of(plan, judge, random)]
        earlier += [judge.snapshot.pods[one.pod_key] for one in plan.evictions if one.unit == unit]
        carried_out(world, plan, unit)
    return out + overfull(world.snapshot())


def overfull(snapshot: Snapshot) -> list[str]:
    """Nodes on which more is asked for than there is."""
    over = (snapshot.used > snapshot.allocatable).any(axis=1)
    return [f"{one.name} holds more than it has" for one, full in zip(snapshot.nodes, over, strict=True) if full]


def compared(seed: int, nodes: int, *, rich: bool = False, npus: bool = False) -> tuple[list[str], dict[str, Proof]]:
    """(what is wrong, way -> what it claims) of one cluster."""
    random = Random(seed)
    snapshot = cluster(random, nodes, rich=rich, npus=npus).snapshot()
    settings = config(random, rich=rich)
    waiting = [one for one in Groups(snapshot).units() if one.pending]
    if len(waiting) == 1 and not settings.quota.monitor_all_quotas:
        return ways_compared(snapshot, settings, random)
    wrong: list[str] = []
    claims: dict[str, Proof] = {}
    for ways in (EVERY_WAY, *((way,) for way in Way)):
        name, world = ways[0] if len(ways) == 1 else "all", cluster(Random(seed), nodes, rich=rich, npus=npus)
        with proven():
            plan = plan_round(snapshot, settings, ways=ways)
        claims[name] = plan.units[0].proof
        wrong += [f"{name}: {text}" for text in one_after_another(plan, world, settings, random)]
    return wrong, claims


def ways_compared(
    snapshot: Snapshot, settings: KoordpyConfiguration, random: Random
) -> tuple[list[str], dict[str, Proof]]:
    """The same of any cluster in which one unit waits."""
    [unit] = [one for one in Groups(snapshot).units() if one.pending]
    judge = Judge(snapshot, settings, unit.id)
    wrong: list[str] = []
    claims: dict[str, Proof] = {}
    costs: dict[str, tuple[int, set[str], tuple[int, ...]]] = {}
    for ways in (EVERY_WAY, *((way,) for way in Way)):
        name = ways[0] if len(ways) == 1 else "all"
        with proven():
            plan = plan_round(snapshot, settings, only=frozenset({unit.id}), ways=ways)
        wrong += [f"{name}: refused: {one.text}" for one in plan.rejected]
        wrong += [f"{name}: a unit is evicted in vain" for _ in plan.not_minimal]
        wrong += [f"{name}: {text}" for text in faults_of(plan, judge, random)]
        claims[name] = plan.units[0].proof
        if plan.evictions:
            rules = {str(one.rule) for one in plan.evictions}
            parts = judge.parts()
            costs[name] = (
                len(plan.placements),
                rules,
                judge.cost(judge.of(plan.evictions, parts), parts) if len(rules) == 1 else (),
            )
    sure = claims["all"]
    for name, (members, rules, cost) in costs.items():
        if sure is Proof.INFEASIBLE:
            wrong.append(f"{name}: a plan, and it was proven that there is none")
        elif sure is Proof.OPTIMAL and (members, rules) == costs["all"][:2] and () != cost < costs["all"][2]:
            wrong.append(f"{name}: costs {cost}, and {costs['all'][2]} was proven least")
    return wrong, claims


def main(count: int, first: int) -> int:
    """Tries one seed of twenty of those from first to first + count - 1: they are large."""
    count, first = max(1, count // 20), first // 20
    bad, found = 0, dict[str, int]()
    for seed in range(first, first + count):
        nodes = Random(seed).choice([300, 500, 1000])
        wrong, claims = compared(seed, nodes, rich=seed % 3 > 0, npus=seed % 4 == 3)
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
