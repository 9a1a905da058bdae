# SPDX-License-Identifier: Apache-2.0
"""Members of a gang that share claims for network-attached devices, on several nodes, against an enumeration
(dra.md 7)."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import (
    ClaimConsumer,
    DeviceConstraint,
    DeviceRequest,
    ExactRequest,
    ResourceSlice,
    SubRequest,
)
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.dra_settings import Dra
from tests.planning.node_rules import node, planned
from tests.planning.test_cross_node_claims import MODEL, RACKS, reaches, slice_of
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, held, offers, resource_claim, selectors, user
from tests.scenarios.cluster import bound, group, messages


@dataclass(frozen=True)
class Device:
    """A device of a random cluster."""

    place: str
    name: str
    model: str
    is_binding: bool


@dataclass(frozen=True)
class Want:
    """A random claim: alternatives (number of devices or `All`, model), in order."""

    alternatives: tuple[tuple[int | str, str], ...]
    equal: bool

    def request(self) -> DeviceRequest:
        """The request as the API states it."""
        fields: list[dict[str, Any]] = []
        for number, model in self.alternatives:
            size = {"allocation_mode": "All"} if number == "All" else {"count": number}
            wanted = selectors(MODEL.format(model)) if model else []
            fields.append({"device_class_name": "gpu", "selectors": wanted, **size})
        if len(fields) == 1:
            return DeviceRequest(name="r", exactly=ExactRequest(**fields[0]))
        choices = [SubRequest(name=f"s{i}", **one) for i, one in enumerate(fields)]
        return DeviceRequest(name="r", first_available=choices)

    def sets(self, devices: Sequence[Device], at: str) -> Iterator[frozenset[Device]]:
        """The sets of devices that serve the claim for a pod on a node, if all devices are free."""
        for number, model in self.alternatives:
            able = [one for one in devices if reaches(one.place, at) and model in ("", one.model)]
            size = max(len(able), 1) if number == "All" else int(number)
            for some in itertools.combinations(able, size):
                if not self.equal or len({one.model for one in some}) == 1:
                    yield frozenset(some)


def usable(some: frozenset[Device], at: frozenset[str]) -> bool:
    """Returns whether pods on all these nodes can use the devices that a pod on one of them got."""
    if any(one.place in RACKS or one.is_binding for one in some):
        return len(at) == 1
    return all(reaches(one.place, name) for one in some for name in at)


def served(
    places: Sequence[str], names: Sequence[Sequence[int]], wants: Sequence[Want], devices: Sequence[Device]
) -> bool:
    """Returns whether all claims find devices if the members are on these nodes."""
    users = {k: [i for i, own in enumerate(names) if k in own] for k in range(len(wants))}
    used = [(wants[k], places[some[0]], frozenset(places[i] for i in some)) for k, some in users.items() if some]

    def serve(number: int, taken: frozenset[Device]) -> bool:
        if number == len(used):
            return True
        want, first, at = used[number]
        found = (some for some in want.sets(devices, first) if not some & taken and usable(some, at))
        return any(serve(number + 1, taken | some) for some in found)

    return serve(0, frozenset())


def cluster_of(devices: Sequence[Device]) -> list[ResourceSlice]:
    slices: list[ResourceSlice] = []
    for place in dict.fromkeys(one.place for one in devices):
        here = [one for one in devices if one.place == place]
        made = slice_of(f"pool-{place}", place, [one.model for one in here])
        blank = [
            replace(facts, binds_to_node=True, binding_conditions=["ready"], binding_failure_conditions=["failed"])
            if own.is_binding
            else facts
            for facts, own in zip(made.spec.devices, here, strict=True)
        ]
        slices.append(replace(made, spec=replace(made.spec, devices=blank)))
    return slices


@pytest.mark.parametrize("choice", ["topology", "firstFit"])
@pytest.mark.parametrize("seed", range(120))
def test_shared_claims_are_served_exactly_where_devices_of_all_nodes_are_enough(seed: int, choice: Any) -> None:
    dice = random.Random(seed)
    devices = [
        Device(place, f"d{i}", dice.choice("xy"), dice.random() < 0.1)
        for place in ("all", "a", "b", "n1", "n2")
        for i in range(dice.choice([0, 0, 1, 1, 2]))
    ]
    has_all = seed % 3 == 0
    numbers: list[int | str] = [1, 1, 1, 2, 2, "All"] if has_all else [1, 1, 2]
    wants = [
        Want(
            tuple((dice.choice(numbers), dice.choice(["", "", "x", "y"])) for _ in range(dice.choice([1, 1, 1, 2]))),
            equal=dice.random() < 0.25,
        )
        for _ in range(dice.choice([1, 2, 2, 3]))
    ]
    names = [[k for k in range(len(wants)) if dice.random() < 0.6] or [0] for _ in range(dice.choice([2, 2, 3]))]
    room = {at: dice.choice([1, 1, 2]) for at in RACKS}
    objects: list[Any] = [*(node(f"{at}:{room[at]}", {"rack": RACKS[at]}) for at in RACKS), CLASS]
    objects += cluster_of(devices)
    for k, want in enumerate(wants):
        rules = [DeviceConstraint(match_attribute=f"{DRIVER}/model")] if want.equal else []
        objects.append(resource_claim(f"c{k}", want.request(), constraints=rules))
    members = [user(f"p-{i}", *(f"c{k}" for k in own), gang="g", cpu="1") for i, own in enumerate(names)]
    possible = [
        places
        for places in itertools.product(RACKS, repeat=len(names))
        if all(places.count(at) <= room[at] for at in RACKS) and served(places, names, wants, devices)
    ]
    config = KoordpyConfiguration(dra=Dra(choice=choice))
    plan = planned([*objects, group("g", len(names)), *members], config)
    placed = bound(plan)
    # of claims for all devices, members on nodes with different devices are left out
    assert bool(placed) <= bool(possible) if has_all else bool(placed) == bool(possible), messages(plan)
    if placed:
        assert tuple(placed[f"p-{i}"] for i in range(len(names))) in possible
        given = [grant for one in plan.placements for grant in one.devices.get("claims", {}).items()]
        assert sorted(key for key, _ in given) == sorted({f"default/c{k}" for own in names for k in own})
        taken = [one.device for _, grant in given for one in grant]
        assert len(set(taken)) == len(taken)


PLACES: dict[str, tuple[dict[str, str], list[tuple[int, str]], str]] = {
    # pools by place with the models of their devices; claims of p-0 to p-2 in common; nodes of p-0, p-1, p-2
    "devices of the network suffice": ({"all": "xx", "n1": "x"}, [(2, "")], "n1 n2 n3"),
    "they do not suffice for nodes together": ({"all": "x", "n1": "x"}, [(2, "")], ""),
    "a rack has them": ({"a": "xx", "b": "x"}, [(1, ""), (1, "")], ""),
    "every rack has some, all nodes have one": ({"a": "x", "b": "x", "all": "x"}, [(1, "")], "n1 n2 n3"),
    "two claims compete": ({"all": "x", "n1": "xx"}, [(1, ""), (1, "")], ""),
    "two claims, two devices": ({"all": "xx", "n1": "xx"}, [(1, ""), (1, "")], "n1 n2 n3"),
    "the model is only on a node": ({"all": "x", "n1": "y"}, [(1, "y")], ""),
}


@pytest.mark.parametrize(("pools", "claims", "nodes"), PLACES.values(), ids=PLACES)
def test_members_with_claims_in_common_stand_on_several_nodes(
    pools: dict[str, str], claims: list[tuple[int, str]], nodes: str
) -> None:
    objects: list[Any] = [*(node(f"{at}:1", {"rack": RACKS[at]}) for at in RACKS), CLASS]
    objects += [slice_of(f"pool-{place}", place, models) for place, models in pools.items()]
    for k, (number, model) in enumerate(claims):
        objects.append(resource_claim(f"c{k}", asks(number, *([MODEL.format(model)] if model else []))))
    members = [user(f"p-{i}", *(f"c{k}" for k in range(len(claims))), gang="g", cpu="1") for i in range(3)]
    placed = bound(planned([*objects, group("g", 3), *members]))
    assert " ".join(placed.get(f"p-{i}", "") for i in range(3)).strip() == nodes


def test_a_member_on_an_earlier_node_leaves_the_device_that_the_common_claim_needs() -> None:
    """The claim in common is chosen for `n2`, after the own claim of the member on `n1`."""
    objects = [node("n1:1", {"rack": "a"}), node("n2:1", {"rack": "a"}), CLASS, slice_of("pool-all", "all", "xy")]
    claims = [resource_claim("own", asks()), resource_claim("common", asks(1, MODEL.format("x")))]
    members = [
        user("p-0", "common", gang="g", cpu="1", node_selector={"kubernetes.io/hostname": "n2"}),
        user("p-1", "common", "own", gang="g", cpu="1", node_selector={"kubernetes.io/hostname": "n1"}),
    ]
    plan = planned([*objects, *claims, group("g", 2), *members])
    given = {one.pod_key: {k: g[0].device.device for k, g in one.devices["claims"].items()} for one in plan.placements}
    assert given == {"default/p-0": {"default/common": "d0"}, "default/p-1": {"default/own": "d1"}}


def test_a_gang_of_64_shares_a_device_of_the_network_beside_devices_of_nodes() -> None:
    objects: list[Any] = [*(node(f"n{i}:1", {"rack": "a"}) for i in range(64)), CLASS]
    objects += [slice_of("pool-all", "all", "x"), slice_of("pool-n1", "n1", "xx"), slice_of("pool-n2", "n2", "x")]
    members = [user(f"p-{i}", "c", gang="g", cpu="1") for i in range(64)]
    plan = planned([*objects, resource_claim("c", asks()), group("g", 64), *members])
    assert len(set(bound(plan).values())) == 64


def test_a_member_without_own_claims_beside_an_allocated_common_claim_needs_no_devices() -> None:
    """Both members have equal requests and may use the same node only."""
    consumer = ClaimConsumer(resource="pods", name="v", uid="uid-v")
    status = resource_claim("c", asks(), allocation=held("d0", at="n1"), reserved_for=[consumer])
    own = resource_claim("own", asks())
    objects = [node("n1:8"), node("n2:8"), CLASS, offers("n1", "d0", "d1"), offers("n2", "d0"), status, own]
    objects.append(user("v", "c", at="n1"))
    members = [user("p-0", "c", "own", gang="g"), user("p-1", "c", gang="g")]
    assert bound(planned([*objects, group("g", 2), *members])) == {"p-0": "n1", "p-1": "n1"}


def test_members_on_several_nodes_use_a_device_of_a_claim_that_is_dropped_for_them() -> None:
    idle = resource_claim("idle", asks(2), allocation=held("d0", at="pool-all"))
    slices = [slice_of("pool-all", "all", "x"), slice_of("pool-n1", "n1", "xx"), offers("n3", "d0")]
    consumer = ClaimConsumer(resource="pods", name="v", uid="uid-v")
    running = resource_claim("used", asks(), allocation=held("d0", at="n3"), reserved_for=[consumer])
    objects: list[Any] = [*(node(f"{at}:1", {"rack": RACKS[at]}) for at in RACKS), CLASS, *slices]
    objects += [running, user("v", "used", at="n3", cpu="0")]
    members = [user("p-0", "idle", gang="g"), *(user(f"p-{i}", "common", gang="g") for i in (1, 2))]
    plan = planned([*objects, idle, resource_claim("common", asks()), group("g", 3), *members])
    assert bound(plan)["p-0"] == "n1"
    assert sorted(bound(plan).values()) == ["n1", "n2", "n3"]
