"""Pods that are alike on nodes that are alike: leaving most of them out of the search for victims changes nothing.

Every rule and all of them together; the same worlds are searched with twins left out at any number of units, and with
all units looked at.
"""

from collections import Counter
from random import Random
from unittest.mock import patch

from koordpy.api.config import Fairness, KoordpyConfiguration, Preemption
from koordpy.planning.plan import RoundPlan
from koordpy.planning.round import plan_round
from koordpy.planning.units import Groups
from koordpy.planning.victim_selection.names import EVERY_WAY, Way
from koordpy.planning.victims import equivalent_units
from tests.scenarios.cluster import TWO_LAYERS, World, group, node, pod, wish
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"


def world(random: Random) -> World:
    """A few equal nodes full of pods of two or three templates, and somebody who waits for several places."""
    out, layers = World(), random.random() < 0.4
    if layers:
        out.add(TWO_LAYERS)
    count, size = random.randint(2, 4), random.choice([3, 4, 6])
    for i in range(count):
        labels = {"block": f"b{i // 2}", "spine": "s0"}
        out.add(node(f"n{i}", labels, cpu="64", **{GPU: str(size)}))
    leaves = [""]
    for name in ("qa", "qb", "qc")[: random.choice([0, 2, 2, 3])]:
        out.add(quota(name, {GPU: random.randint(0, size * count // 2)}, {GPU: 1000}, forced=True))
        leaves.append(name)
    templates = [
        (random.choice(leaves), random.choice([0, 0, 1, 3]), random.choice(["", "alice"]), random.choice([1, 1, 2]))
        for _ in range(random.randint(1, 3))
    ]
    number = 0
    for i in range(count):
        free = size
        while free and random.random() < 0.97:
            leaf, priority, user, amount = random.choice(templates)
            if amount > free:
                break
            free -= amount
            number += 1
            out.add(
                pod(
                    f"v{number}",
                    at=f"n{i}",
                    cpu="0",
                    requests={GPU: str(amount)},
                    priority=priority,
                    created=random.choice([5, 5, 5, random.randint(0, 40)]),
                    labels=belongs(leaf, user=user),
                )
            )
    leaf, notes = random.choice(leaves), None
    if layers:
        notes = wish({"blockLayer": random.choice(["Prefer", "Must"])})
    members, amount = random.randint(1, 4), str(random.choice([1, 1, 2, size]))
    out.add(group("me", random.randint(1, members), notes))
    for i in range(members):
        asked = {GPU: amount if random.random() < 0.85 else "1"}
        waits = {"cpu": "0", "requests": asked, "priority": 2, "created": 59, "labels": belongs(leaf, user="bob")}
        out.add(pod(f"m-{i}", gang="me", **waits))  # type: ignore[arg-type]
    return out


def config(random: Random) -> KoordpyConfiguration:
    return KoordpyConfiguration(
        fairness=Fairness(
            mode=random.choice(["gpu-count", "exact", "off"]), reclaim=random.choice(["quotas", "all", "all"])
        ),
        preemption=Preemption(enabled=random.random() < 0.8, across_quotas=random.choice(["overMin", "any", "never"])),
    )


def answer(plan: RoundPlan) -> tuple[object, ...]:
    gone = sorted((one.pod_key, str(one.rule)) for one in plan.evictions)
    return gone, sorted((one.pod_key, one.node) for one in plan.placements), [one.proof for one in plan.units]


def compared(seed: int, *, modelled: bool) -> tuple[str, ...]:
    """The rules that took somebody, the same whether twins are left out or not."""
    random = Random(seed)
    snapshot, settings = world(random).snapshot(), config(random)
    assert Groups(snapshot).units()

    def planned(least: int) -> RoundPlan:
        with patch.object(equivalent_units, "TWIN_UNITS", least):
            return plan_round(snapshot, settings, ways=(Way.MODEL,) if modelled else EVERY_WAY)

    without = planned(0)
    assert answer(without) == answer(planned(10**9)), seed
    return tuple(sorted({str(one.rule) for one in without.evictions}))


def test_leaving_twins_out_changes_no_choice() -> None:
    rules = Counter(compared(seed, modelled=False) for seed in range(80))
    assert {("priority",), ("quota",), ("fair-share",)} <= set(rules)


def test_leaving_twins_out_changes_no_choice_of_the_model() -> None:
    rules = Counter(compared(seed, modelled=True) for seed in range(500, 540))
    assert len(rules) > 2
