# SPDX-License-Identifier: Apache-2.0
"""Gangs that need devices of running pods: victims free exactly the devices that the members lack (dra.md 10)."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.dra_settings import Dra
from tests.planning.node_rules import node, planned
from tests.planning.test_filter_dra import CLASS, asks, held, messages, offers, resource_claim, user
from tests.scenarios.cluster import bound, group

NODES = ("n1", "n2")


def holding(name: str, at: str, devices: Iterable[str], *users: str) -> Any:
    """An allocated claim that is reserved for pods."""
    consumers = [ClaimConsumer(resource="pods", name=one, uid=f"uid-{one}") for one in users]
    found = list(devices)
    return resource_claim(name, asks(len(found)), allocation=held(*found, at=at), reserved_for=consumers)


@pytest.mark.parametrize("seed", range(60))
def test_a_gang_evicts_the_fewest_pods_that_free_its_devices(seed: int) -> None:
    dice = random.Random(seed)
    size = {at: dice.choice([1, 2, 3, 4]) for at in NODES}
    objects: list[Any] = [*(node(f"{at}:8") for at in NODES), CLASS]
    objects += [offers(at, *(f"g{i}" for i in range(number))) for at, number in size.items()]
    holders: list[tuple[str, str]] = []  # (pod, node)
    claims: list[tuple[str, int, set[str]]] = []  # (node, devices, its pods)
    for at in NODES:
        left = [f"g{i}" for i in range(size[at])]
        while left and dice.random() < 0.8:
            devices, left = left[: dice.choice([1, 1, 2])], left[2:]
            users = [f"v{len(holders) + k}" for k in range(dice.choice([1, 1, 1, 2]))]
            holders += [(one, at) for one in users]
            objects.append(holding(f"v{len(claims)}", at, devices, *users))
            objects += [user(one, f"v{len(claims)}", at=at, priority=0) for one in users]
            claims.append((at, len(devices), set(users)))
    wants = [dice.choice([1, 1, 2, 3]) for _ in range(dice.choice([1, 2, 2, 3]))]
    objects += [resource_claim(f"c{i}", asks(number)) for i, number in enumerate(wants)]
    members = [user(f"p-{i}", f"c{i}", gang="g", priority=10) for i in range(len(wants))]

    def holds(gone: set[str]) -> bool:
        free = size.copy()
        for at, number, users in claims:
            if not users <= gone:
                free[at] -= number
        return any(
            all(sum(n for n, place in zip(wants, places, strict=True) if place == at) <= free[at] for at in NODES)
            for places in itertools.product(NODES, repeat=len(wants))
        )

    names = [name for name, _ in holders]
    sets = (set(some) for number in range(len(names) + 1) for some in itertools.combinations(names, number))
    least = next((some for some in sets if holds(some)), None)
    plan = planned([*objects, group("g", len(wants)), *members])
    gone = {one.pod_key.partition("/")[2] for one in plan.evictions}
    assert (len(bound(plan)) == len(wants)) is (least is not None), messages(plan)
    assert len(gone) == len(least or ())
    if least is not None:
        assert holds(gone)


def test_a_gang_evicts_no_pod_for_devices_if_preemption_for_devices_is_off() -> None:
    objects = [node("n1:8"), CLASS, offers("n1", "g0", "g1"), holding("v", "n1", ["g0"], "v0")]
    objects += [resource_claim("c0", asks()), resource_claim("c1", asks()), user("v0", "v", at="n1", priority=0)]
    members = [user(f"p-{i}", f"c{i}", gang="g", priority=10) for i in range(2)]
    for is_on, number in ((True, 1), (False, 0)):
        plan = planned([*objects, group("g", 2), *members], KoordpyConfiguration(dra=Dra(preemption=is_on)))
        assert (len(plan.evictions), len(bound(plan))) == (number, 2 * number)


def test_a_gang_evicts_a_pod_whose_devices_are_on_another_node() -> None:
    objects = [node("n1:8"), node("n2:8"), CLASS, offers("n1", "g0", "g1"), holding("v", "n1", ["g0"], "v0")]
    objects += [resource_claim("c0", asks()), resource_claim("c1", asks()), user("v0", "v", at="n2", priority=0)]
    members = [user(f"p-{i}", f"c{i}", gang="g", priority=10) for i in range(2)]
    plan = planned([*objects, group("g", 2), *members])
    assert [one.pod_key for one in plan.evictions] == ["default/v0"]
    assert bound(plan) == {"p-0": "n1", "p-1": "n1"}


def test_a_claim_that_a_pod_of_the_round_shares_frees_no_devices() -> None:
    """q is placed first and shares a claim with v, so evicting v for p frees no device."""
    objects = [CLASS, node("n1:8"), offers("n1", "g0"), holding("c", "n1", ["g0"], "v"), resource_claim("d", asks())]
    objects += [user("v", "c", at="n1", priority=0), user("q", "c", priority=20), user("p", "d", priority=10)]
    plan = planned(objects)
    assert (bound(plan), plan.evictions) == ({"q": "n1"}, ())
