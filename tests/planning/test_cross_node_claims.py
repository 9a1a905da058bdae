# SPDX-License-Identifier: Apache-2.0
"""Members of a gang that each own claims for network-attached devices, against an enumeration (dra.md 6, 7)."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import DeviceConstraint, ResourceSlice
from koordpy.api.objects import NodeSelector, NodeSelectorTerm, ObjectMeta, Requirement
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.dra_settings import Dra
from tests.planning.node_rules import node, planned
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, facts, offers, resource_claim, user
from tests.scenarios.cluster import bound, group, messages

RACKS = {"n1": "a", "n2": "a", "n3": "b"}
MODEL = f'device.attributes["{DRIVER}"].model == "{{}}"'


def slice_of(pool: str, place: str, models: Sequence[str]) -> ResourceSlice:
    """A pool. place: name of a node, a rack, or `all`."""
    made = offers(pool)
    [blank] = offers(pool, "d").spec.devices
    devices = [replace(blank, name=f"d{i}", attributes=facts(model=model)) for i, model in enumerate(models)]
    spec = replace(made.spec, devices=devices, node_name=place if place in RACKS else "")
    if place == "all":
        spec = replace(spec, all_nodes=True)
    elif place not in RACKS:
        here = Requirement(key="rack", operator="In", values=(place,))
        spec = replace(
            spec, node_selector=NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=(here,))])
        )
    return replace(made, metadata=ObjectMeta(name=pool), spec=spec)


def reaches(place: str, at: str) -> bool:
    return place in ("all", at, RACKS[at])


def sets(
    devices: Sequence[tuple[str, str]], at: str, number: int, model: str, *, equal: bool
) -> Iterator[frozenset[int]]:
    """The sets of devices, each (place, model), that serve a claim on a node."""
    able = [i for i, (place, own) in enumerate(devices) if reaches(place, at) and model in ("", own)]
    for some in itertools.combinations(able, number):
        if not equal or len({devices[i][1] for i in some}) == 1:
            yield frozenset(some)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("choice", ["topology", "firstFit"])
def test_own_claims_are_served_exactly_where_the_devices_are_enough(seed: int, choice: Any) -> None:
    dice = random.Random(seed)
    pools = [(place, [dice.choice("xy") for _ in range(dice.choice([0, 1, 2]))]) for place in ("all", "a", "b", "n1")]
    devices = [(place, model) for place, models in pools for model in models]
    room = {at: dice.choice([1, 1, 2]) for at in RACKS}
    objects: list[Any] = [*(node(f"{at}:{room[at]}", {"rack": RACKS[at]}) for at in RACKS), CLASS]
    objects += [slice_of(f"pool-{place}", place, models) for place, models in pools if models]
    wants = []
    for i in range(dice.choice([2, 2, 3])):
        number, model, equal = dice.choice([1, 1, 2]), dice.choice(["", "", "x", "y"]), dice.random() < 0.3
        wants.append((number, model, equal))
        request = asks(number, *([MODEL.format(model)] if model else []))
        rules = [DeviceConstraint(match_attribute=f"{DRIVER}/model")] if equal else []
        objects.append(resource_claim(f"c{i}", request, constraints=rules))
    members = [user(f"p-{i}", f"c{i}", gang="g", cpu="1") for i in range(len(wants))]

    def serve(places: Sequence[str], taken: frozenset[int] = frozenset(), i: int = 0) -> bool:
        if i == len(places):
            return True
        number, model, equal = wants[i]
        found = sets(devices, places[i], number, model, equal=equal)
        return any(serve(places, taken | some, i + 1) for some in found if not taken & some)

    possible = any(
        all(places.count(at) <= room[at] for at in RACKS) and serve(places)
        for places in itertools.product(RACKS, repeat=len(wants))
    )
    config = KoordpyConfiguration(dra=Dra(choice=choice))
    plan = planned([*objects, group("g", len(wants)), *members], config)
    placed = bound(plan)
    assert bool(placed) is possible, messages(plan)
    given = [
        (placement.node, one.device)
        for placement in plan.placements
        for grant in placement.devices.get("claims", {}).values()
        for one in grant
    ]
    assert len({device for _, device in given}) == len(given) == possible * sum(number for number, _, _ in wants)
    assert all(reaches(device.pool.removeprefix("pool-"), at) for at, device in given)


def test_a_member_leaves_the_only_device_that_a_member_on_another_node_can_use() -> None:
    objects = [node("n1:1", {"rack": "a"}), node("n2:1", {"rack": "a"}), CLASS, slice_of("net", "all", "xy")]
    claims = [resource_claim("c0", asks()), resource_claim("c1", asks(1, MODEL.format("x")))]
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(2)]
    plan = planned([*objects, *claims, group("g", 2), *members])
    found = {
        key: one.device.device
        for placement in plan.placements
        for key, grant in placement.devices["claims"].items()
        for one in grant
    }
    assert found == {"default/c0": "d1", "default/c1": "d0"}
