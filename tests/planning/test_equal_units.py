# SPDX-License-Identifier: Apache-2.0
"""Pods that are alike on nodes that are alike, by every rule and all of them together: the model, which counts how many
of a kind go, takes whom the ways before it take.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption
from koordpy.gangs.queue_units import Groups
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
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


def compared(seed: int) -> tuple[str, ...]:
    """The rules that took somebody, the same whether all ways are tried or the model alone."""
    random = Random(seed)
    snapshot, settings = world(random).snapshot(), config(random)
    assert Groups(snapshot).units()

    def answer(ways: Sequence[Way]) -> tuple[object, ...]:
        plan = plan_round(snapshot, settings, ways=ways)
        gone = sorted((one.pod_key, str(one.rule)) for one in plan.evictions)
        return gone, sorted((one.pod_key, one.node) for one in plan.placements), [one.proof for one in plan.units]

    found = answer(EVERY_WAY)
    assert found == answer((Way.MODEL,)), seed
    return tuple(sorted({rule for _, rule in found[0]}))  # type: ignore[attr-defined]


def test_the_model_takes_of_equal_units_whom_counting_takes() -> None:
    rules = Counter(compared(seed) for seed in range(160))
    assert {("priority",), ("quota",), ("fair-share",)} <= set(rules)
