# SPDX-License-Identifier: Apache-2.0
"""Members of a gang that share claims, beside own claims that compete for the same devices (dra.md 7)."""

import itertools
import random
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import ClaimConsumer, DeviceClass, DeviceClassSpec, ExactRequest, ResourceSlice
from koordpy.api.objects import NodeSelector, NodeSelectorTerm, ObjectMeta, Requirement
from tests.planning.node_rules import node, planned
from tests.planning.test_filter_dra import CLASS, asks, held, messages, offers, resource_claim, user
from tests.scenarios.cluster import bound, group

NODES = ("n1", "n2")
NETWORK = "net.example.com"


def network(*names: str) -> ResourceSlice:
    """Devices that every node reaches."""
    made = offers("net", *names)
    return replace(made, spec=replace(made.spec, driver=NETWORK, node_name="", all_nodes=True))


@pytest.mark.parametrize("seed", range(80))
def test_shared_and_own_claims_are_placed_exactly_where_the_devices_are_enough(seed: int) -> None:
    dice = random.Random(seed)
    free = {at: dice.randrange(6) for at in NODES}
    sizes = [dice.choice([1, 1, 2]) for _ in range(dice.choice([1, 1, 2]))]
    own = [dice.choice([0, 0, 1, 1, 2]) for _ in range(dice.choice([2, 3, 4]))]
    names = [[k for k in range(len(sizes)) if dice.random() < 0.6] for _ in own]
    objects: list[Any] = [node(f"{at}:8") for at in NODES]
    objects += [CLASS, *(offers(at, *(f"g{i}" for i in range(number))) for at, number in free.items() if number)]
    objects += [resource_claim(f"s{k}", asks(size)) for k, size in enumerate(sizes)]
    members = []
    for i, (number, shared) in enumerate(zip(own, names, strict=True)):
        if number:
            objects.append(resource_claim(f"c{i}", asks(number)))
        claims = [*(f"s{k}" for k in shared), *([f"c{i}"] if number else [])]
        members.append(user(f"p-{i}", *claims, gang="g", cpu=dice.choice(["1", "1", "2"])))

    def holds(places: tuple[str, ...]) -> bool:
        at = [{places[i] for i, shared in enumerate(names) if k in shared} for k in range(len(sizes))]
        if any(len(one) > 1 for one in at):
            return False
        for name in NODES:
            taken = sum(number for number, place in zip(own, places, strict=True) if place == name)
            taken += sum(size for size, one in zip(sizes, at, strict=True) if name in one)
            if taken > free[name]:
                return False
        return True

    possible = any(map(holds, itertools.product(NODES, repeat=len(own))))
    plan = planned([*objects, group("g", len(own)), *members])
    placed = bound(plan)
    assert bool(placed) is possible, messages(plan)
    if possible:
        assert holds(tuple(placed[f"p-{i}"] for i in range(len(own))))


def test_a_claim_that_devices_of_nodes_and_of_the_network_suit_is_served_on_one_node() -> None:
    everything = DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=[]))
    objects = [node("n1:8"), node("n2:8"), everything, offers("n1", "g0"), network("d0"), resource_claim("s", asks(2))]
    members = [user(f"p-{i}", "s", gang="g") for i in range(2)]
    assert bound(planned([*objects, group("g", 2), *members])) == {"p-0": "n1", "p-1": "n1"}


@pytest.mark.parametrize(("number", "placed"), [(2, True), (3, False)])
def test_own_claims_beside_a_shared_one_may_take_devices_of_the_network(number: int, placed: bool) -> None:
    everything = DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=[]))
    objects = [node("n1:8"), node("n2:8"), everything, offers("n1", "g0", "g1"), network("d0")]
    objects += [resource_claim("s", asks()), *(resource_claim(f"c{i}", asks()) for i in range(number))]
    members = [user(f"p-{i}", "s", f"c{i}", gang="g") for i in range(number)]
    assert bool(bound(planned([*objects, group("g", number), *members]))) is placed


def test_one_member_may_take_devices_of_the_network_beside_members_with_devices_of_nodes() -> None:
    everything = DeviceClass(metadata=ObjectMeta(name="any"), spec=DeviceClassSpec(selectors=[]))
    anywhere = replace(asks(2), exactly=ExactRequest(device_class_name="any", count=2))
    objects = [node("n1:8"), CLASS, everything, offers("n1", "g0", "g1"), network("d0")]
    objects += [resource_claim("c0", anywhere), resource_claim("c1", asks())]
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(2)]
    assert bound(planned([*objects, group("g", 2), *members])) == {"p-0": "n1", "p-1": "n1"}


def test_members_with_equal_claims_and_different_requests_share_a_node() -> None:
    whole = offers("n1", "g0", "g1")
    shares = offers("n1", "g2", allow_multiple_allocations=True).spec.devices
    made = replace(whole, spec=replace(whole.spec, devices=[*whole.spec.devices, *shares]))
    objects = [node("n1:8"), CLASS, made, resource_claim("c0", asks()), resource_claim("c1", asks())]
    members = [user("p-0", "c0", gang="g", cpu="1"), user("p-1", "c1", gang="g", cpu="2")]
    assert bound(planned([*objects, group("g", 2), *members])) == {"p-0": "n1", "p-1": "n1"}


def users_of(number: int, first: str = "x") -> list[ClaimConsumer]:
    return [ClaimConsumer(resource="pods", name=f"{first}-{i}", uid=f"uid-{first}-{i}") for i in range(number)]


@pytest.mark.parametrize(
    ("others", "minimum", "members", "placed"),
    [
        (0, 2, 257, 256),
        (0, 257, 257, 0),
        (0, 256, 256, 256),
        (250, 2, 10, 6),  # an allocated claim counts the pods that it is reserved for
        (250, 7, 10, 0),
        (256, 1, 2, 0),
    ],
)
def test_members_beyond_256_users_of_a_claim_stay_pending(others: int, minimum: int, members: int, placed: int) -> None:
    claim = resource_claim("s", asks(), reserved_for=users_of(others))
    if others:
        status = replace(claim.status, allocation=held("d0", at="net", anywhere=True))
        claim = replace(claim, status=status)
    everything = DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=[]))
    pods = [user(f"p-{i}", "s", gang="g", cpu="10m") for i in range(members)]
    objects = [node("n1:300", pods="300"), everything, network("d0"), claim, group("g", minimum)]
    assert len(bound(planned([*objects, *pods]))) == placed


def test_a_shared_claim_is_placed_in_any_domain_that_one_of_its_devices_reaches() -> None:
    nodes = [node(f"n{i}:1", {"rack": rack}) for i, rack in enumerate("abbc")]
    slices = []
    for rack in "ab":
        here = Requirement(key="rack", operator="In", values=(rack,))
        selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=(here,))])
        made = network(f"d{rack}")
        spec = replace(
            made.spec, all_nodes=False, node_selector=selector, pool=replace(made.spec.pool, name=f"net-{rack}")
        )
        slices.append(replace(made, metadata=ObjectMeta(name=f"net-{rack}"), spec=spec))
    everything = DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=[]))
    members = [user(f"p-{i}", "s", gang="g") for i in range(2)]
    plan = planned([*nodes, *slices, everything, resource_claim("s", asks()), group("g", 2), *members])
    assert sorted(bound(plan).values()) == ["n1", "n2"]
