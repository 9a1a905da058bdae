# SPDX-License-Identifier: Apache-2.0
"""Devices of claims by links: the joint choice against an enumeration, nodes, and minimum bandwidths (dra.md 6)."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.claim_objects import ClaimConsumer, DeviceAttribute, DeviceClaim, SliceDevice
from koordpy.api.custom_objects import Device, DeviceEntry, DeviceMatrices, DeviceMatrix, DeviceSpec, DeviceTopology
from koordpy.api.objects import ObjectMeta
from koordpy.devices.dra.filters import set_choice
from koordpy.devices.links.device_partitioning import Partitioner
from koordpy.pods.family_books import KnownLinks
from tests.planning.node_rules import node, planned, reasons
from tests.planning.test_device_choice import best, names
from tests.planning.test_device_search import DRIVER, request
from tests.planning.test_filter_dra import CLASS, asks, held, offers, resource_claim, user
from tests.scenarios.cluster import bound, group

NO_PAIR = 10**9
Sets = Sequence[Sequence[int]]


def known_links(matrix: Sequence[Sequence[int]], numa: Sequence[int | None]) -> KnownLinks:
    ids = {f"GPU-{i}": i for i in range(len(matrix))}
    return KnownLinks(ids, {}, matrix, matrix, matrix, numa, [""] * len(matrix))


def device(i: int) -> SliceDevice:
    return SliceDevice(name=f"d{i}", attributes={"uuid": DeviceAttribute(text=f"GPU-{i}")})


class Enumeration:
    """Rules 1 to 6 of gpu-topology.md 4, set by set, without tables."""

    def __init__(self, matrix: Sequence[Sequence[int]], numa: Sequence[int], free: Sequence[int]) -> None:
        self.matrix, self.numa, self.free = matrix, numa, free

    def slow(self, some: Sequence[int]) -> int:
        return min((self.matrix[i][j] for i, j in combinations(some, 2)), default=NO_PAIR)

    def ring(self, some: Sequence[int]) -> int:
        if len(some) <= 3:
            return self.slow(some)
        if len(some) > 8:
            return NO_PAIR
        first, *rest = some
        rounds = ([first, *order] for order in permutations(rest))
        return max(min(self.matrix[a][b] for a, b in zip(one, [*one[1:], first], strict=True)) for one in rounds)

    def packings(self, rest: frozenset[int], size: int) -> Iterator[tuple[int, ...]]:
        yield ()
        for some in combinations(sorted(rest), size):
            for more in self.packings(frozenset(i for i in rest if i > some[0]) - set(some), size):
                yield (self.slow(some), *more)

    def packed(self, rest: frozenset[int], size: int) -> list[int]:
        classes = sorted({value for row in self.matrix for value in row}, reverse=True)
        return max([one.count(value) for value in classes] for one in self.packings(rest, size))

    def rank(self, sets: Sets) -> tuple[Any, ...]:
        every = [i for one in sets for i in one]
        rest = frozenset(self.free) - set(every)
        sums = [sum(self.matrix[i][j] for i, j in combinations(one, 2)) for one in (*sets, every)]
        return (
            -self.slow(every),
            [-value for value in sorted(map(self.slow, sets))],
            [-value for value in sorted(map(self.ring, sets))],
            -self.ring(every),
            [[-number for number in self.packed(rest, size)] for size in (8, 4, 2)],
            -sum(sums[:-1]),
            -sums[-1],
            len({self.numa[i] for i in every}),
            every,
        )

    def best(self, counts: Sequence[int]) -> Sets:
        def grow(left: Sequence[int], counts: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
            if not counts:
                yield []
                return
            for own in combinations(left, counts[0]):
                for more in grow([i for i in left if i not in own], counts[1:]):
                    yield [own, *more]

        return min(grow(self.free, counts), key=self.rank)


@pytest.mark.parametrize("seed", range(100))
def test_the_joint_choice_equals_an_enumeration(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.choice([4, 5, 6, 7, 8])
    values = dice.choice([[10, 50], [10, 50], [10, 25, 50], [50]])
    matrix = [[0] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        matrix[i][j] = matrix[j][i] = dice.choice(values)
    numa = [dice.choice([0, 1]) for _ in range(size)]
    free = [i for i in range(size) if dice.random() < 0.9]
    counts = dice.choice([[2], [3], [4], [5], [1, 1], [2, 2], [1, 2], [4, 2], [1, 1, 1], [2, 1, 1], [2, 2, 2]])
    if sum(counts) > len(free):
        return
    claims = [DeviceClaim(requests=[request("a", count)]) for count in counts]
    taken = tuple(f"d{i}" for i in range(size) if i not in free)
    found = best([device(i) for i in range(size)], *claims, taken=taken, known=known_links(matrix, numa))
    wanted = [f"d{i}" for own in Enumeration(matrix, numa, free).best(counts) for i in own]
    assert names(found) == wanted


def test_few_fast_links_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some pods cannot each get a best set, because the best sets have devices in common."""
    divided: set[bool] = set()

    class Watched(Partitioner):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            if len(given) > 4:
                divided.add(bool(len(self.us)))

    monkeypatch.setattr(set_choice, "Partitioner", Watched)
    for seed in range(40):
        dice = random.Random(seed)
        size = dice.choice([5, 6, 7])
        matrix = [[0 if i == j else 10 for j in range(size)] for i in range(size)]
        for i, j in dice.sample(list(combinations(range(size), 2)), dice.choice([2, 3])):
            matrix[i][j] = matrix[j][i] = dice.choice([25, 50])
        counts = dice.choice([[2, 2], [2, 1, 2], [2, 3], [1, 2, 2]])
        claims = [DeviceClaim(requests=[request("a", count)]) for count in counts]
        numa = [dice.choice([0, 1]) for _ in range(size)]
        found = best([device(i) for i in range(size)], *claims, known=known_links(matrix, numa))
        wanted = [f"d{i}" for own in Enumeration(matrix, numa, range(size)).best(counts) for i in own]
        assert names(found) == wanted, seed
    assert divided == {True, False}


def device_object(name: str, matrix: Sequence[Sequence[float]], *, by_bus: bool = False) -> Device:
    entries = [
        DeviceEntry(type="gpu", id=f"{name}-{i}", minor=i, topology=DeviceTopology(bus_id=f"{name}:{i}"))
        for i in range(len(matrix))
    ]
    if by_bus:
        entries = [replace(one, id=f"other-{one.id}") for one in entries]
    topology = DeviceMatrices(gpu=[DeviceMatrix(name="bandwidth", topology=json.dumps(matrix))])
    return Device(metadata=ObjectMeta(name=name), spec=DeviceSpec(topologies=topology, devices=entries))


def linked_offers(name: str, count: int, *, by_bus: bool = False) -> Any:
    made = offers(name, *(f"d{i}" for i in range(count)))
    attribute, sign = ("resource.kubernetes.io/pciBusID", ":") if by_bus else ("uuid", "-")
    devices = [
        replace(one, attributes={attribute: DeviceAttribute(text=f"{name}{sign}{i}")})
        for i, one in enumerate(made.spec.devices)
    ]
    return replace(made, spec=replace(made.spec, devices=devices))


def pairs(size: int, fast: float, slow: float) -> list[list[float]]:
    """Devices 2k and 2k+1 have a fast link."""
    return [[0 if i == j else fast if i // 2 == j // 2 else slow for j in range(size)] for i in range(size)]


def given(objects: list[Any]) -> dict[str, list[str]]:
    plan = planned([CLASS, *objects])
    return {
        one.pod_key.split("/")[1]: [
            f"{one.node}/{d.device.device}" for grant in one.devices["claims"].values() for d in grant
        ]
        for one in plan.placements
    }


@pytest.mark.parametrize("by_bus", [False, True])
def test_devices_are_identified_by_uuid_or_bus(by_bus: bool) -> None:
    slices = [linked_offers("n1", 4, by_bus=by_bus), resource_claim("x", asks(1), allocation=held("d0", at="n1"))]
    objects = [node("n1:8"), device_object("n1", pairs(4, 50, 10), by_bus=by_bus), *slices]
    assert given([*objects, resource_claim("c", asks(2)), user("p", "c")]) == {"p": ["n1/d2", "n1/d3"]}


def test_members_of_a_node_are_chosen_together() -> None:
    cross = [[0, 10, 10, 50], [10, 0, 50, 10], [10, 50, 0, 10], [50, 10, 10, 0]]
    objects = [node("n1:8"), device_object("n1", cross), linked_offers("n1", 4), group("g", 2)]
    claims = [resource_claim(f"c{i}", asks(2)) for i in range(2)]
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(2)]
    assert given([*objects, *claims, *members]) == {"p-0": ["n1/d0", "n1/d3"], "p-1": ["n1/d1", "n1/d2"]}


def test_a_gang_gets_the_nodes_with_the_fastest_slowest_pair() -> None:
    fast, slow = pairs(4, 50, 50), pairs(4, 50, 10)
    objects = [node(f"n{i}:8") for i in (1, 2, 3)]
    objects += [device_object("n1", slow), device_object("n2", fast), device_object("n3", fast)]
    objects += [linked_offers(f"n{i}", 4) for i in (1, 2, 3)]
    claims = [resource_claim(f"c{i}", asks(4)) for i in range(2)]
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(2)]
    assert bound(planned([CLASS, *objects, group("g", 2), *claims, *members])) == {"p-0": "n2", "p-1": "n3"}


def test_links_of_a_running_member_count() -> None:
    consumer = ClaimConsumer(resource="pods", name="p-0", uid="uid-p-0")
    running = resource_claim("c0", asks(1), allocation=held("d2", at="n1"), reserved_for=[consumer])
    objects = [node("n1:8"), device_object("n1", pairs(4, 50, 10)), linked_offers("n1", 4), running]
    members = [user("p-0", "c0", gang="g", at="n1"), user("p-1", "c1", gang="g")]
    assert given([*objects, group("g", 2), resource_claim("c1", asks(1)), *members]) == {"p-1": ["n1/d3"]}


BANDWIDTHS: dict[str, tuple[list[Any], int, str, str]] = {
    "fast enough": ([device_object("n1", pairs(4, 50, 10))], 2, "50", "fits"),
    "one device has no link": ([], 1, "50", "fits"),
    "too slow": (
        [device_object("n1", pairs(4, 50, 10))],
        3,
        "50.0",
        "UU: node(s) lack free GPUs linked at 50.0 GB/s or more",
    ),
    "no Device": ([], 2, "5", "UU: node(s) lack free GPUs linked at 5 GB/s or more"),
    "unreadable": (
        [device_object("n1", pairs(4, 50, 10))],
        2,
        "fast",
        f"UU: annotation {keys.GPU_MIN_BANDWIDTH} cannot be read: 'fast' is not a positive number of GB/s",
    ),
}


@pytest.mark.parametrize(("objects", "count", "text", "word"), BANDWIDTHS.values(), ids=BANDWIDTHS)
def test_minimum_bandwidth(objects: list[Any], count: int, text: str, word: str) -> None:
    pod = user("p", "c", annotations={keys.GPU_MIN_BANDWIDTH: text})
    everything = [node("n1:8"), CLASS, linked_offers("n1", 4), *objects, resource_claim("c", asks(count)), pod]
    assert reasons(everything) == {"n1": word}


def test_a_minimum_bandwidth_is_met_by_devices_after_a_slow_one() -> None:
    links = [[0, 10, 10, 10], [10, 0, 50, 10], [10, 50, 0, 10], [10, 10, 10, 0]]
    pod = user("p", "c", annotations={keys.GPU_MIN_BANDWIDTH: "50"})
    objects = [node("n1:8"), device_object("n1", links), linked_offers("n1", 4), resource_claim("c", asks(2)), pod]
    assert given(objects) == {"p": ["n1/d1", "n1/d2"]}


def test_a_driver_that_the_device_does_not_know_is_left_out_beside_gpus() -> None:
    gpus = linked_offers("n1", 2)
    made = offers("n1-nics", "e0", "e1")
    nics = replace(made, spec=replace(made.spec, node_name="n1", driver="nic.example.com"))
    everyone = replace(CLASS, spec=replace(CLASS.spec, selectors=[]))
    both = [
        replace(asks(2, f'device.driver == "{driver}"'), name=name)
        for name, driver in (("g", DRIVER), ("n", "nic.example.com"))
    ]
    objects = [node("n1:8"), everyone, gpus, nics, device_object("n1", pairs(2, 50, 10))]
    pod = user("p", "c", annotations={keys.GPU_MIN_BANDWIDTH: "50"})
    assert reasons([*objects, resource_claim("c", *both), pod]) == {"n1": "fits"}
    assert reasons([*objects, resource_claim("c", both[1]), pod])["n1"].startswith("UU: node(s) lack")
