# SPDX-License-Identifier: Apache-2.0
"""The search for devices on one node against an enumeration of all allocations (dra.md 2, 4, 5)."""

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest

from koordpy.api.claim_objects import (
    CapacityPolicy,
    CapacityRequirements,
    CelSelector,
    Counter,
    CounterSet,
    CounterUse,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
    SubRequest,
)
from koordpy.api.objects import ObjectMeta
from koordpy.devices.dra.filters.claim_requests import (
    Alternative,
    AttemptFault,
    ClaimSpec,
    UnallocatedClaim,
    UndecidedNode,
    claim_spec,
)
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, NodeDevices, OfferedDevice
from koordpy.pods.claim_refs import DeviceId, Granted
from tests.planning.node_rules import node, states

DRIVER = "gpu.example.com"
MODEL = f'device.attributes["{DRIVER}"].model == "{{}}"'


def offers_of(*devices: SliceDevice, counters: dict[str, str] | None = None) -> DeviceOffers:
    sets = [CounterSet(name="card", counters={name: Counter(value=v) for name, v in (counters or {}).items()})]
    number = 2 if counters else 1
    pool = ResourcePool(name="n1", generation=1, resource_slice_count=number)
    spec = ResourceSliceSpec(driver=DRIVER, pool=pool, node_name="n1", devices=list(devices))
    slices = {"s": ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec)}
    if counters:
        shared = ResourceSliceSpec(driver=DRIVER, pool=pool, node_name="n1", shared_counters=sets)
        slices["t"] = ResourceSlice(metadata=ObjectMeta(name="t"), spec=shared)
    return DeviceOffers(slices, {"gpu": DeviceClass(metadata=ObjectMeta(name="gpu"))}, {})


def at_n1(offers: DeviceOffers) -> NodeDevices:
    return offers.at(states([node("n1:8")]).snapshot(0.0).nodes[0])


def request(name: str, count: int = 1, model: str = "", **more: Any) -> DeviceRequest:
    chosen = [DeviceSelector(cel=CelSelector(expression=MODEL.format(model)))] if model else []
    return DeviceRequest(
        name=name, exactly=ExactRequest(device_class_name="gpu", count=count, selectors=chosen, **more)
    )


def search(
    offers: DeviceOffers, *claims: DeviceClaim, usage: DeviceUsage | None = None, limit: int = 100_000
) -> list[list[str]] | None:
    """Devices of each claim, or None."""
    opened = [UnallocatedClaim(f"default/c{i}", claim_spec(one, offers)) for i, one in enumerate(claims)]
    usage = usage or DeviceUsage(offers)
    found = DeviceSearch(at_n1(offers), opened, usage, DeviceMatching(offers), limit=limit).first()
    return None if found is None else [[f"{one.request} {one.device.device}" for one in grant] for grant in found]


# -- an enumeration ----------------------------------------------------------------------------------------------------


def enumerated(
    specs: Sequence[ClaimSpec], devices: Sequence[OfferedDevice], taken: set[str], counters: dict[str, int]
) -> list[list[str]] | None:
    """The first allocation in kube-scheduler's order, by trying all of them."""
    matching = DeviceMatching(offers_of())

    def sets(one: Alternative) -> Iterator[tuple[int, ...]]:
        able = [i for i, device in enumerate(devices) if matching.suits(one, device) is True]
        if one.all:
            if able:
                yield tuple(able)
            return
        yield from itertools.combinations(able, one.count)

    places = [(spec, request) for spec in specs for request in spec.requests]
    options = [[(one, chosen) for one in request.alternatives for chosen in sets(one)] for _, request in places]
    for chosen in itertools.product(*options):
        used = [i for one, group in chosen if not one.admin for i in group]
        if len(set(used)) < len(used) or any(devices[i].id.device in taken for i in used):
            continue
        drawn: dict[str, Fraction] = {}
        for i in used:
            for (_, name), amount in devices[i].consumes:
                drawn[name] = drawn.get(name, Fraction(0)) + amount
        if any(amount > counters[name] for name, amount in drawn.items()):
            continue
        if all(_keeps(spec, places, chosen, devices) for spec in specs):
            out = []
            for spec in specs:
                own = [pick for place, pick in zip(places, chosen, strict=True) if place[0] is spec]
                out.append([f"{one.name} {devices[i].id.device}" for one, group in own for i in group])
            return out
    return None


def _keeps(spec: ClaimSpec, places: Any, chosen: Any, devices: Sequence[OfferedDevice]) -> bool:
    own = [pick for place, pick in zip(places, chosen, strict=True) if place[0] is spec]
    for constraint in spec.constraints:
        values = [
            devices[i].attribute(constraint.attribute) for one, group in own if constraint.covers(one) for i in group
        ]
        if None in values:
            return False
        number = len(set(values))
        if values and number != (len(values) if constraint.distinct else 1):
            return False
    given: set[int] = set()
    for one, group in own:
        if one.admin and given.intersection(group):
            return False
        given |= set(group)
    return True


@pytest.mark.parametrize("seed", range(150))
def test_the_first_allocation_is_that_of_an_enumeration(seed: int) -> None:
    dice = random.Random(seed)
    counters = {"m": 3} if dice.random() < 0.4 else {}
    devices = []
    for i in range(dice.randrange(2, 6)):
        attributes = {"model": DeviceAttribute(text=dice.choice("ab"))}
        if dice.random() < 0.8:
            attributes["numa"] = DeviceAttribute(number=dice.randrange(2))
        uses = [CounterUse(counter_set="card", counters={"m": Counter(value=str(dice.randrange(1, 3)))})]
        consumes = uses if counters and dice.random() < 0.7 else []
        devices.append(SliceDevice(name=f"d{i}", attributes=attributes, consumes_counters=consumes))
    offers = offers_of(*devices, counters={name: str(v) for name, v in counters.items()})
    claims = []
    for _ in range(dice.choice([1, 1, 2])):
        requests = []
        for j in range(dice.choice([1, 2, 2])):
            kind = dice.random()
            if kind < 0.2:
                subs = [
                    SubRequest(
                        name=f"s{k}",
                        device_class_name="gpu",
                        count=dice.choice([1, 2]),
                        selectors=[DeviceSelector(cel=CelSelector(expression=MODEL.format(dice.choice("ab"))))],
                    )
                    for k in range(2)
                ]
                requests.append(DeviceRequest(name=f"r{j}", first_available=subs))
            elif kind < 0.35:
                requests.append(
                    DeviceRequest(
                        name=f"r{j}",
                        exactly=ExactRequest(
                            device_class_name="gpu",
                            allocation_mode="All",
                            selectors=[DeviceSelector(cel=CelSelector(expression=MODEL.format("a")))],
                        ),
                    )
                )
            elif kind < 0.45 and not counters:
                requests.append(request(f"r{j}", admin_access=True))
            else:
                requests.append(request(f"r{j}", dice.choice([1, 1, 2]), dice.choice(["", "a", "b"])))
        constraints = []
        if dice.random() < 0.4:
            side = {
                dice.choice(["match_attribute", "distinct_attribute"]): f"{DRIVER}/{dice.choice(['numa', 'model'])}"
            }
            constraints.append(DeviceConstraint(requests=dice.choice([[], ["r0"]]), **side))
        claims.append(DeviceClaim(requests=requests, constraints=constraints))
    taken = {f"d{i}" for i in range(len(devices)) if dice.random() < 0.2}
    usage = DeviceUsage(offers)
    for name in sorted(taken):
        usage.change(Granted("r", DeviceId(DRIVER, "n1", name)), 1)
    left = {name: v - int(usage.counters.get((DRIVER, "n1", ("card", name)), 0)) for name, v in counters.items()}
    specs = [claim_spec(one, offers) for one in claims]
    specs = [ClaimSpec(s.content, s.requests, s.constraints, s.unsupported, s.missing) for s in specs]
    wanted = enumerated(specs, at_n1(offers).devices, taken, left)
    assert search(offers, *claims, usage=usage) == wanted


# -- single rules ------------------------------------------------------------------------------------------------------


def test_equal_devices_are_decided_without_a_search() -> None:
    offers = offers_of(*(SliceDevice(name=f"d{i}") for i in range(16)))
    eight = DeviceClaim(requests=[request("a", 8), request("b", 9)])
    assert search(offers, eight, limit=20) is None


def test_a_search_over_different_devices_ends_at_the_limit() -> None:
    devices = [SliceDevice(name=f"d{i}", attributes={"x": DeviceAttribute(number=i)}) for i in range(12)]
    distinct = [DeviceConstraint(distinct_attribute=f"{DRIVER}/y")]
    marked = [DeviceConstraint(match_attribute=f"{DRIVER}/x")]
    claim = DeviceClaim(requests=[request("a", 5)], constraints=marked)
    assert search(offers_of(*devices), claim) is None
    with pytest.raises(UndecidedNode, match="timed out trying to allocate devices"):
        search(offers_of(*devices), claim, limit=10)
    assert search(offers_of(*devices), DeviceClaim(requests=[request("a", 5)], constraints=distinct)) is None


def test_a_claim_has_at_most_32_devices() -> None:
    offers = offers_of(*(SliceDevice(name=f"d{i}") for i in range(40)))
    assert search(offers, DeviceClaim(requests=[request("a", 32)])) is not None
    with pytest.raises(AttemptFault, match="claim default/c0: number of requested devices 33 exceeds the claim limit"):
        search(offers, DeviceClaim(requests=[request("a", 20), request("b", 13)]))


def test_shares_are_given_until_a_capacity_is_used_up() -> None:
    card = SliceDevice(name="d0", capacity={"memory": DeviceCapacity(value="80Gi")}, allow_multiple_allocations=True)
    offers = offers_of(card)
    usage = DeviceUsage(offers)
    half = request("a", capacity=CapacityRequirements(requests={"memory": "40Gi"}))
    two = DeviceClaim(requests=[half])
    assert search(offers, two, two, usage=usage) == [["a d0"], ["a d0"]]
    assert search(offers, two, two, two, usage=usage) is None
    assert search(offers, DeviceClaim(requests=[request("a", 2, capacity=half.exact.capacity)])) is None


@pytest.mark.parametrize(
    ("claims", "shares", "given"),
    [
        pytest.param(["share admin"], 0, [["share d0", "admin d0"]], id="beside a share of the same claim"),
        pytest.param(["share admin"], 1, [["share d0", "admin d1"]], id="beside a share that uses up a capacity"),
        pytest.param(["admin"], 1, [["admin d0"]], id="enough capacity left"),
        pytest.param(["admin"], 2, [["admin d1"]], id="no capacity left"),
        pytest.param(["share", "share", "admin"], 0, [["share d0"], ["share d0"], ["admin d1"]], id="none in the pod"),
        pytest.param(["admin", "share", "share"], 0, [["admin d0"], ["share d0"], ["share d0"]], id="takes nothing"),
        pytest.param(["admin admin2"], 0, [["admin d0", "admin2 d1"]], id="a device once in a claim"),
        pytest.param(["admin admin2"], 2, None, id="no second device"),
    ],
)
def test_admin_access_to_a_shared_device(claims: list[str], shares: int, given: list[list[str]] | None) -> None:
    policy = CapacityPolicy(default="10Gi")
    memory = {"memory": DeviceCapacity(value="20Gi", request_policy=policy)}
    offers = offers_of(SliceDevice(name="d0", capacity=memory, allow_multiple_allocations=True), SliceDevice(name="d1"))
    usage = DeviceUsage(offers)
    for _ in range(shares):
        usage.change(Granted("r", DeviceId(DRIVER, "n1", "d0"), consumed=(("memory", "10Gi"),)), 1)
    requests = [[request(name, admin_access=name != "share") for name in one.split()] for one in claims]
    assert search(offers, *(DeviceClaim(requests=one) for one in requests), usage=usage) == given


@pytest.mark.parametrize(
    ("claims", "used", "given"),
    [
        pytest.param(["admin"], "", [["admin d0"]], id="counters remain"),
        pytest.param(["admin"], "d1", [["admin d2"]], id="counters do not remain"),
        pytest.param(["admin"], "d0", [["admin d0"]], id="drawn by a share of the device"),
        pytest.param(["share", "admin"], "", [["share d0"], ["admin d0"]], id="drawn by a share of the pod"),
    ],
)
def test_counters_for_admin_access_to_a_shared_device(claims: list[str], used: str, given: list[list[str]]) -> None:
    uses = [CounterUse(counter_set="card", counters={"memory": Counter(value="4")})]
    offers = offers_of(
        SliceDevice(name="d0", consumes_counters=uses, allow_multiple_allocations=True),
        SliceDevice(name="d1", consumes_counters=uses),
        SliceDevice(name="d2"),
        counters={"memory": "4"},
    )
    usage = DeviceUsage(offers)
    if used:
        usage.change(Granted("r", DeviceId(DRIVER, "n1", used), consumed=() if used == "d0" else None), 1)
    requests = [request(one, admin_access=one == "admin") for one in claims]
    assert search(offers, *(DeviceClaim(requests=[one]) for one in requests), usage=usage) == given


def test_admin_access_to_a_shared_device_is_stated_as_a_share() -> None:
    memory = {"memory": DeviceCapacity(value="40Gi", request_policy=CapacityPolicy(default="10Gi"))}
    offers = offers_of(SliceDevice(name="d0", capacity=memory, allow_multiple_allocations=True))
    claim = DeviceClaim(requests=[request("admin", admin_access=True)])
    opened = [UnallocatedClaim("default/c0", claim_spec(claim, offers))]
    found = DeviceSearch(at_n1(offers), opened, DeviceUsage(offers), DeviceMatching(offers), limit=9).first()
    [[granted]] = found or [[]]
    assert granted.admin and granted.consumed == (("memory", "10Gi"),)
