# SPDX-License-Identifier: Apache-2.0
"""Filters that count on a node what a problem does not know: gangs of equal and of different pods, by enumeration."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from koordpy.cache.snapshot import Ints
from koordpy.feasibility import filtering
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, refused_where
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo
from tests.halves import own_half
from tests.scenarios.cluster import World, bound, group, node, pod

WATTS = "example.com/watts"
"""Label of a node: what its supply gives. A pod takes one for each CPU."""
OVER = Refusal("Supply", Code.UNSCHEDULABLE, ("node(s) lacked power",))


def watts(pod: PodInfo) -> int:
    return pod.requests["cpu"] // 1000


class Supply(Rule):
    """No more watts taken on a node than its supply gives."""

    plugin = OVER.plugin
    local = True

    def __init__(self, pod: PodInfo, inputs: FilterInputs) -> None:
        self._asked = watts(pod)
        self._left: Ints = np.array([int(node.labels[WATTS]) for node in inputs.snapshot.nodes], dtype=np.int64)
        for other in inputs.snapshot.pods.values():
            if other.bound:
                self._left[inputs.snapshot.index[other.node]] -= watts(other)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        before = self._left[node] // self._asked
        self._left[node] -= sign * watts(pod)
        return bool(before != self._left[node] // self._asked)

    def verdict(self) -> Verdict:
        return refused_where(self._left < self._asked, OVER)

    def copies(self) -> Ints:
        return np.maximum(self._left // self._asked, 0)


def supply(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    yield Supply(pod, inputs)


@pytest.mark.parametrize("seed", own_half(range(120)))
def test_a_gang_is_placed_exactly_where_the_filter_lets_all_its_pods(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "FILTERS", (*filtering.FILTERS, supply))
    rng = random.Random(seed)
    gives = [rng.randint(1, 7) for _ in range(rng.randint(1, 3))]
    takes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(2, 4))]
    held = rng.randint(0, gives[0])
    slots = rng.randint(2, 4)
    world = World()
    for i, given in enumerate(gives):
        world.add(node(f"n{i}", {WATTS: str(given)}, cpu="64", pods=str(slots)))
    if held:
        world.add(pod("there", at="n0", cpu=str(held)))
    world.add(group("g", len(takes)))
    world.add(*(pod(f"g-{i}", gang="g", cpu=str(taken)) for i, taken in enumerate(takes)))

    def fits(places: tuple[int, ...]) -> bool:
        taken, number = Counter({0: held}), Counter({0: int(held > 0)})
        for place, amount in zip(places, takes, strict=True):
            taken[place] += amount
            number[place] += 1
        return all(taken[i] <= given and number[i] <= slots for i, given in enumerate(gives))

    able = any(fits(places) for places in product(range(len(gives)), repeat=len(takes)))
    placed = bound(world.plan())
    assert bool(placed) == able, (gives, takes, held)
    if placed:
        assert len(placed) == len(takes)
        assert fits(tuple(int(placed[f"g-{i}"][1:]) for i in range(len(takes))))
