# SPDX-License-Identifier: Apache-2.0
"""Requested amounts of a capacity: which end the attempt, and which shared device is chosen (dra.md 5, 6)."""

import pytest

from koordpy.api.claim_objects import (
    CapacityPolicy,
    CapacityRange,
    CapacityRequirements,
    DeviceCapacity,
    DeviceClaim,
    DeviceRequest,
    ResourceClaim,
    SliceDevice,
    SubRequest,
)
from koordpy.decoding.strict_decoding import decode
from koordpy.devices.dra.filters.claim_requests import AttemptFault, UnallocatedClaim, claim_spec
from koordpy.devices.dra.filters.device_choice import BestChoice, PodShare, best_choice
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.link_order import LinkOrder
from koordpy.devices.dra.filters.node_links import NodeLinks
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.pods.claim_refs import DeviceId, Granted
from tests.planning.test_device_choice import names
from tests.planning.test_device_search import DRIVER, at_n1, offers_of, request, search

MOST = 2**63 - 1


def memory(amount: str) -> CapacityRequirements:
    return CapacityRequirements(requests={"memory": amount})


def card(name: str, value: str = "80Gi", *, shared: bool = True, **more: object) -> SliceDevice:
    policy = CapacityPolicy(default="1", valid_range=CapacityRange(min="1"))
    capacity = {"memory": DeviceCapacity(value=value, request_policy=policy)}
    return SliceDevice(name=name, capacity=capacity, allow_multiple_allocations=shared, **more)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("amount", "ends"), [("-1", True), ("-1m", True), (str(MOST + 1), True), (str(MOST), False), ("0", False)]
)
def test_an_amount_out_of_range_ends_the_attempt_with_the_name_of_its_claim(
    amount: str, ends: bool, shared: bool
) -> None:
    claims = DeviceClaim(requests=[request("a")]), DeviceClaim(requests=[request("b", capacity=memory(amount))])
    offers = offers_of(card("d0", shared=shared), card("d1", shared=shared))
    if ends:
        with pytest.raises(AttemptFault, match=r"^claim default/c1: capacity request .* is out of range$"):
            search(offers, *claims)
    else:
        assert (search(offers, *claims) is None) is (amount != "0")


@pytest.mark.parametrize("shared", [True, False])
def test_an_alternative_that_is_not_reached_ends_no_attempt(shared: bool) -> None:
    subs = [
        SubRequest(name=name, device_class_name="gpu", count=1, capacity=memory(amount))
        for name, amount in (("good", "1Gi"), ("bad", "-1"))
    ]
    claim = DeviceClaim(requests=[DeviceRequest(name="r", first_available=subs)])
    offers = offers_of(card("d0", shared=shared), card("d1", shared=shared))
    assert search(offers, claim) == [["r/good d0"]]
    assert names(chosen(offers_of(card("d0", shared=shared)), claim)) == ["d0"]


def chosen(offers: object, *claims: DeviceClaim, taken: dict[str, str] | None = None) -> BestChoice:
    usage = DeviceUsage(offers)
    for name, amount in (taken or {}).items():
        usage.change(Granted("r", DeviceId(DRIVER, "n1", name), consumed=(("memory", amount),)), 1)
    opened = [UnallocatedClaim(f"default/c{i}", claim_spec(one, offers)) for i, one in enumerate(claims)]
    at, matching = at_n1(offers), DeviceMatching(offers)
    order = LinkOrder(NodeLinks(at.devices, None, {}))
    pods = [PodShare((i,)) for i in range(len(opened))]
    return best_choice(DeviceSearch(at, opened, usage, matching, limit=10_000), BestChoice(usage, order, pods))


@pytest.mark.parametrize(
    ("taken", "devices"),
    [
        ({"d0": "500", "d1": "98"}, ["d0", "d1"]),  # 0.499 + 0.01 before 2 x 0.498; two shares would use up d1
        ({"d0": "500", "d1": "90"}, ["d1", "d1"]),  # 2 x 0.08 before 0.499 + 0.09
        ({"d0": "997", "d1": "80"}, ["d0", "d0"]),  # 2 x 0.001 before 0.002 + 0.19 and 2 x 0.18
    ],
)
def test_the_fullest_devices_are_chosen_share_by_share(taken: dict[str, str], devices: list[str]) -> None:
    offers = offers_of(card("d0", "1000"), card("d1", "100"))
    found = chosen(offers, DeviceClaim(requests=[request("a"), request("b")]), taken=taken)
    assert names(found) == devices


def test_a_device_with_binding_conditions_counts_once_for_two_shares() -> None:
    waits = card("d0", binding_conditions=["ready"], binding_failure_conditions=["failed"])
    offers = offers_of(waits, card("d1", "1"))
    found = chosen(offers, DeviceClaim(requests=[request("a"), request("b")]))
    assert names(found) == ["d0", "d0"]  # one device begun; with d1 it would be two


@pytest.mark.parametrize(
    ("amount", "faults"),
    [
        ("150m", []),
        ("-1", []),
        ("x", ["spec.devices.requests[0].exactly.capacity.requests[gpu.example.com/cores]"]),
        (True, ["spec.devices.requests[0].exactly.capacity.requests[gpu.example.com/cores]"]),
    ],
)
def test_requested_amounts_are_those_of_no_resource(amount: object, faults: list[str]) -> None:
    exact = {"deviceClassName": "gpu", "capacity": {"requests": {"gpu.example.com/cores": amount}}}
    raw = {"spec": {"devices": {"requests": [{"name": "r", "exactly": exact}]}}}
    assert [fault.path for fault in decode(raw, ResourceClaim).faults] == faults
