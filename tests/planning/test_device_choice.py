# SPDX-License-Identifier: Apache-2.0
"""Which devices of a node are chosen by their links and what is left (dra.md 6)."""

import random
from functools import partial
from typing import Any

import pytest

from koordpy.api.claim_objects import DeviceAttribute, DeviceClaim, SliceDevice
from koordpy.devices.dra.filters.claim_requests import UnallocatedClaim, claim_spec
from koordpy.devices.dra.filters.device_choice import BestChoice, PodShare, best_choice
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.link_order import LinkOrder, packed
from koordpy.devices.dra.filters.node_links import NUMA_NODE, PCIE_ROOT, NodeLinks, assumed_link
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.pods.claim_refs import DeviceId, Granted
from koordpy.pods.family_books import KnownLinks
from tests.planning.test_device_search import DRIVER, at_n1, offers_of, request


def device(name: str, root: str | None = None, numa: int | None = None, **more: str) -> SliceDevice:
    attributes = {key: DeviceAttribute(text=value) for key, value in more.items()}
    if root is not None:
        attributes[PCIE_ROOT] = DeviceAttribute(text=root)
    if numa is not None:
        attributes[NUMA_NODE] = DeviceAttribute(number=numa)
    return SliceDevice(name=name, attributes=attributes)


def best(
    devices: list[SliceDevice],
    *claims: DeviceClaim,
    taken: tuple[str, ...] = (),
    twins: bool = True,
    known: KnownLinks | None = None,
) -> BestChoice:
    """The choice for pods with one claim each, in order."""
    offers = offers_of(*devices)
    usage = DeviceUsage(offers)
    for name in taken:
        usage.change(Granted("r", DeviceId(DRIVER, "n1", name)), 1)
    opened = [UnallocatedClaim(f"default/c{i}", claim_spec(one, offers)) for i, one in enumerate(claims)]
    matching, at = DeviceMatching(offers), at_n1(offers)
    links = NodeLinks(at.devices, known, {})
    keys = links.twins if twins else partial(range, len(at.devices))
    search = DeviceSearch(at, opened, usage, matching, limit=1_000_000, twins=keys)
    pods = [PodShare((i,)) for i in range(len(opened))]
    return best_choice(search, BestChoice(usage, LinkOrder(links), pods))


def names(found: BestChoice) -> list[str] | None:
    return None if found.grants is None else [one.device.device for grant in found.grants for one in grant]


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        (("r", 0), ("r", 0), 12),
        (("r", 0), ("s", 0), 9),
        (("r", 0), ("s", 1), 8),
        ((None, None), (None, 0), 0),
        (("r", None), ("r", None), 12),
    ],
)
def test_links_follow_from_attributes(a: Any, b: Any, value: int) -> None:
    assert assumed_link(a, b, {}) == value * 10**6


CASES: dict[str, tuple[list[SliceDevice], int, list[str]]] = {
    "one NUMA node": ([device("d0", numa=0), device("d1", numa=1), device("d2", numa=0)], 2, ["d0", "d2"]),
    "one PCIe root": ([device("d0", "a", 0), device("d1", "b", 0), device("d2", "b", 0)], 2, ["d1", "d2"]),
    "a single device leaves pairs": (
        [device("d0", "a", 0), device("d1", "a", 0), device("d2", "b", 0)],
        1,
        ["d2"],
    ),
    "equal devices in order": ([device(f"d{i}") for i in range(4)], 2, ["d0", "d1"]),
}


@pytest.mark.parametrize(("devices", "count", "wanted"), CASES.values(), ids=CASES)
def test_devices_are_chosen_by_links(devices: list[SliceDevice], count: int, wanted: list[str]) -> None:
    assert names(best(devices, DeviceClaim(requests=[request("a", count)]))) == wanted


def test_what_is_left_is_packed_best_class_first() -> None:
    places = [("a", 0), ("a", 0), ("b", 0), ("c", 1), ("c", 1)]
    assert packed(places) == [0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("seed", range(60))
def test_leaving_out_equal_devices_changes_no_choice(seed: int) -> None:
    dice = random.Random(seed)
    devices = [
        device(f"d{i}", dice.choice([None, "a", "b"]), dice.choice([None, 0, 1])) for i in range(dice.randrange(2, 8))
    ]
    taken = tuple(one.name for one in devices if dice.random() < 0.2)
    claim = DeviceClaim(
        requests=[request("a", dice.choice([1, 2, 3])), *([request("b")] if dice.random() < 0.5 else [])]
    )
    every = best(devices, claim, taken=taken, twins=False)
    found = best(devices, claim, taken=taken)
    assert names(found) == names(every)
    assert found.rank == every.rank
