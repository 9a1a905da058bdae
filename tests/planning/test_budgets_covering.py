# SPDX-License-Identifier: Apache-2.0
"""Which budgets count a pod: the index by labels against asking every budget."""

from random import Random

from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    Requirement,
)
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.disruption_budgets import Budget, BudgetCover, allowances, forbid, protects
from tests.scenarios.cluster import World, node, pod


def budget(random: Random, number: int) -> PodDisruptionBudget:
    """Of labels, of expressions, of both, of nothing at all."""
    labels = {key: random.choice("xy") for key in "ab" if random.random() < 0.5}
    wanted = [Requirement(key="a", operator=random.choice(["Exists", "DoesNotExist"]))] if random.random() < 0.3 else []
    selector = LabelSelector(match_labels=labels, match_expressions=wanted) if random.random() < 0.9 else None
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=f"b{number}", namespace=random.choice(["default", "other"])),
        spec=PodDisruptionBudgetSpec(selector=selector, min_available=str(random.randint(0, 3))),
        status=PodDisruptionBudgetStatus(
            disruptions_allowed=random.choice([None, 0, 2]),
            disrupted_pods={"p1": "2026-01-01T00:00:00Z"} if random.random() < 0.2 else {},
        ),
    )


def running(random: Random) -> list[PodInfo]:
    world = World()
    world.add(node("n0"))
    for i in range(8):
        labels = {key: random.choice("xyz") for key in "ab" if random.random() < 0.7}
        world.add(pod(f"p{i}", at="n0", labels=labels))
    return list(world.snapshot().pods.values())


def test_the_index_finds_the_budgets_that_count_a_pod() -> None:
    found = 0
    for seed in range(60):
        random = Random(seed)
        pods, objects = running(random), [budget(random, i) for i in range(6)]
        budgets = [Budget(one, random.randint(0, 2)) for one in objects]
        index = BudgetCover(objects)
        covers = [
            [protects(one, other) and other.name not in one.status.disrupted_pods for one in objects] for other in pods
        ]
        for one, own in zip(pods, covers, strict=True):
            assert index.budgets_of(one) == tuple(b for b, known in enumerate(own) if known), seed
            found += sum(own)
        for some in range(len(pods) + 1):
            counted = [sum(own[b] for own in covers[:some]) for b in range(len(budgets))]
            over = any(number > known.allowed for number, known in zip(counted, budgets, strict=True))
            assert forbid(budgets, pods[:some]) == (over or any(sum(own) > 1 for own in covers[:some])), seed
        for one, allowed in zip(objects, allowances(objects, pods), strict=True):
            stated, number = one.status.disruptions_allowed, sum(protects(one, other) for other in pods)
            least = int(str(one.spec.min_available))
            assert allowed == (max(0, number - least) if stated is None else stated), seed
    assert found > 100
