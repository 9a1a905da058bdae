# SPDX-License-Identifier: Apache-2.0
"""Admission by zones agrees with a brute force over all zone sets, for random nodes and pods (numa.md 3 and 7)."""

import random

import pytest

from koordpy.devices.numa.admission import (
    PodAmounts,
    Policy,
    Request,
    RequestPart,
    ZoneAdmission,
    Zones,
    admit,
    copies,
    minus,
)
from tests.numa.kubelet_law import Containers, Node, is_memory, kubelet_answer

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi")
KINDS = {"init": RequestPart.INIT, "sidecar": RequestPart.SIDECAR, "container": RequestPart.CONTAINER}


def random_node(rng: random.Random) -> Node:
    """Returns a node of up to four zones; its zones may differ, and a resource may be missing in one."""
    numbers = sorted(rng.sample(range(6), rng.choice((2, 2, 2, 3, 4))))
    resources = rng.sample(RESOURCES, rng.randint(1, 4))
    out: Node = {number: {} for number in numbers}
    for name in resources:
        even, size = rng.random() < 0.7, rng.randint(1, 8)
        for number in numbers:
            capacity = size if even else rng.randint(0, 8)
            allocatable = max(0, capacity - rng.choice((0, 0, 0, 1)))
            out[number][name] = capacity, allocatable, allocatable if rng.random() < 0.5 else rng.randint(-1, 8)
    return out


def random_pod(rng: random.Random, resources: list[str]) -> Containers:
    def amounts() -> dict[str, int]:
        return {name: rng.randint(1, 6) for name in resources if rng.random() < 0.6}

    inits = [(rng.choice(("init", "init", "sidecar")), amounts()) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    return [*inits, *(("container", amounts()) for _ in range(rng.randint(1, 3)))]


def zones_of(node: Node) -> tuple[Zones, dict[str, tuple[int, ...]]]:
    names = sorted(next(iter(node.values())))
    sizes = ((name, tuple(own[name][1 if is_memory(name) else 0] for own in node.values())) for name in names)
    free = {name: tuple(own[name][2] for own in node.values()) for name in names}
    return Zones(tuple(node), tuple(sizes)), free


def amounts_of(containers: Containers, scope: str) -> PodAmounts:
    def row(own: dict[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((name, amount) for name, amount in own.items() if amount))

    held: dict[str, int] = {}
    for kind, own in containers:
        for name, amount in own.items() if kind != "init" else ():
            held[name] = held.get(name, 0) + amount
    if scope == "container":
        parts = (Request(KINDS[kind], row(own)) for kind, own in containers)
        return PodAmounts(tuple(one for one in parts if one.amounts), row(held))
    whole: dict[str, int] = {}
    for name in {name for _, own in containers for name in own}:
        running = peak = 0
        for kind, own in containers:
            if kind == "sidecar":
                running += own.get(name, 0)
                peak = max(peak, running)
            elif kind == "init":
                peak = max(peak, running + own.get(name, 0))
        whole[name] = max(held.get(name, 0), peak)
    requests = (Request(RequestPart.POD, row(whole)),) if any(whole.values()) else ()
    return PodAmounts(requests, row(held))


@pytest.mark.parametrize("seed", range(20))
def test_admission_agrees_with_the_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    outcomes = {True: 0, False: 0}
    for _ in range(300):
        node = random_node(rng)
        zones, free = zones_of(node)
        containers = random_pod(rng, list(free))
        policy = rng.choice(("best-effort", "restricted", "single-numa-node"))
        scope = rng.choice(("container", "pod"))
        sets = [frozenset(rng.sample(list(node), rng.randint(1, 2))) for _ in range(rng.choice((0, 0, 1)))]
        groups = frozenset(sum(1 << zones.numbers.index(z) for z in one) for one in sets)
        want = kubelet_answer(node, containers, policy, scope, sets)
        found = admit(amounts_of(containers, scope), zones, free, Policy(policy), groups)
        case = node, containers, policy, scope, sets
        outcomes[want[0]] += 1
        assert isinstance(found, ZoneAdmission) == want[0], case
        if isinstance(found, ZoneAdmission):
            taken = {
                name: {z: one for z, one in zip(zones.numbers, row, strict=True) if one}
                for name, row in found.taken.items()
            }
            assert taken == want[1], case
    assert min(outcomes.values()) > 50


@pytest.mark.parametrize("seed", range(10))
def test_copies_are_those_that_are_admitted_in_turn(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        node = random_node(rng)
        zones, free = zones_of(node)
        pod = amounts_of(random_pod(rng, list(free)), rng.choice(("container", "pod")))
        policy = Policy(rng.choice(("restricted", "single-numa-node")))
        left, number = free, 0
        while number < 9 and isinstance(found := admit(pod, zones, left, policy), ZoneAdmission):
            left, number = minus(left, found.taken), number + 1
        if not any(is_memory(name) for name, _ in pod.held):  # memory of earlier copies groups zones
            assert copies(pod, zones, free, policy, most=9) == number, (node, pod, policy)
