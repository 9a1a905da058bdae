# SPDX-License-Identifier: Apache-2.0
"""Victims whose going moves what members lean on, neighbours and spreads; against brute force over all subsets.

The exact model counts who leaves (preemption/search/affinity_terms.py); the oracle evicts each subset and asks all
filters.
"""

from random import Random
from typing import Any

from koordpy.api.objects import Affinity, LabelSelector, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from koordpy.plan.round_plan import Proof
from koordpy.planner.planning_round import plan_round
from tests.planning.victim_oracle import TWO_LAYERS, least_harmful
from tests.scenarios.cluster import World, group, node, pod, wish

KEYS = ("zone", "zone", "block", "kubernetes.io/hostname")
APPS = "ab"


def asks(random: Random) -> dict[str, Any]:
    """What a kind of member asks of other pods: affinity, anti-affinity, a spread, two of them, or nothing."""
    out: dict[str, Any] = {}
    selector = LabelSelector(match_labels={"app": random.choice(APPS)})
    term = PodAffinityTerm(label_selector=selector, topology_key=random.choice(KEYS))
    what = random.random()
    if what < 0.35:
        out["affinity"] = Affinity(pod_affinity=PodAffinity(required=[term]))
    elif what < 0.5:
        out["affinity"] = Affinity(pod_anti_affinity=PodAffinity(required=[term]))
    if random.random() < 0.4:
        out["topology_spread_constraints"] = [
            TopologySpreadConstraint(
                max_skew=random.randint(1, 2),
                topology_key=random.choice(KEYS),
                when_unsatisfiable="DoNotSchedule",
                label_selector=LabelSelector(match_labels={"app": random.choice(APPS)}),
                min_domains=random.choice([None, None, None, 2, 3]),
            )
        ]
    return out


def world(random: Random) -> World:
    """A few nodes of few cores in zones, pods of two apps on them, and a gang of some kinds that waits."""
    out, free = World(), dict[str, int]()
    out.add(TWO_LAYERS)
    for i in range(random.randint(2, 4)):
        free[f"n{i}"] = random.randint(1, 5)
        labels = {"spine": "s", "block": f"b{i // 2}"} | ({"zone": f"z{i % 2}"} if random.random() < 0.9 else {})
        out.add(node(f"n{i}", labels, cpu=str(free[f"n{i}"])))
    out.add(group("g", random.randint(1, 3)))
    for i in range(random.randint(2, 7)):
        at, amount = random.choice(list(free)), random.randint(1, 2)
        if amount > free[at]:
            continue
        free[at] -= amount
        out.add(
            pod(
                f"v{i}",
                at=at,
                cpu=str(amount),
                gang="g" if random.random() < 0.3 else "",
                priority=random.choice([0, 0, 1, 2, 9]),
                created=random.randint(0, 50),
                labels={"app": random.choice(APPS)},
            )
        )
    kinds = [
        {"cpu": str(random.randint(1, 3)), "labels": {"app": random.choice(APPS)}, **asks(random)}
        for _ in range(random.randint(1, 3))
    ]
    plain, count = random.random() < 0.2, random.randint(1, 4)
    members = _none_alone([random.choice(kinds) for _ in range(1 if plain else count)])
    if plain:
        out.add(pod("me", priority=5, created=100, **members[0]))
        return out
    notes = wish({"blockLayer": random.choice(["Must", "Prefer"])}) if random.random() < 0.4 else None
    out.add(group("me", random.choice([count, random.randint(1, count)]), notes))
    for i, member in enumerate(members):
        out.add(pod(f"me-{i}", gang="me", priority=5, created=100, **member))
    return out


def _none_alone(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with no member that only its own affinity speaks of: the first of its kind finds nodes that are never
    emptied (preemption.md 4), which the oracle does not know."""
    apps = [member["labels"]["app"] for member in members]
    return [
        {**one, "labels": {"app": "c"}} if apps.count(app) < 2 else one for one, app in zip(members, apps, strict=True)
    ]


def compared(seed: int) -> str:
    """What became of a random cluster: `room` without victims, `victims` or `none`, as the oracle has it."""
    snapshot = world(Random(seed)).snapshot()
    wanted = least_harmful(snapshot)
    if wanted is None:
        return "room"
    plan = plan_round(snapshot, KoordpyConfiguration(repair=Repair(seat_hold=0.0)))
    taken = sorted(one.pod_key.partition("/")[2] for one in plan.evictions)
    proof = plan.units[0].proof
    assert not [one.message for one in plan.pending if "failed koordpy's own check" in one.message], seed
    assert proof in (Proof.OPTIMAL, Proof.INFEASIBLE), (seed, proof, wanted)
    assert taken == wanted, (seed, taken, wanted)
    return "victims" if wanted else "none"


def test_the_least_harmful_set_is_found_and_proven_where_members_lean_on_others() -> None:
    found = [compared(seed) for seed in range(150)]
    assert found.count("victims") > 20
    assert found.count("none") > 10


def test_where_the_last_of_its_kind_leaves_a_node_is_open_that_is_never_emptied() -> None:
    """`a` alone keeps `new`, which would be the first of its kind, from n1; the model looks at n2 only."""
    kind = LabelSelector(match_labels={"app": "a"})
    near = Affinity(pod_affinity=PodAffinity(required=[PodAffinityTerm(label_selector=kind, topology_key="zone")]))
    stands = World().add(node("n1", {"zone": "z1"}, cpu="2"), node("n2", {"zone": "z2"}, cpu="3"))
    stands.add(*(pod(name, at="n2", cpu="1", created=i) for i, name in enumerate(("b", "c"))))
    stands.add(pod("a", at="n2", cpu="1", created=9, labels={"app": "a"}))
    new = pod("new", cpu="2", priority=9, labels={"app": "a"}, affinity=near)
    plan = stands.add(new).plan()
    assert [one.pod_key for one in plan.evictions] == ["default/a"] and not plan.rejected
    assert [(one.pod_key, one.node) for one in plan.nominations] == [("default/new", "n1")]
