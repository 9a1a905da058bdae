# SPDX-License-Identifier: Apache-2.0
"""The independent check of what claims take: a volume or a device that is not for them is refused."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.plugins.volume_binding import VolumeBinding
from koordpy.pods.claim_refs import DeviceId, Grant, Granted
from koordpy.verify.plan_check import check_claims
from tests.planning.node_rules import node, planned, pod, states
from tests.planning.test_device_links import device_object, linked_offers
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, held, offers, resource_claim
from tests.planning.test_filter_dra import user as device_user
from tests.planning.test_filter_volumes import claim, disk, storage_class
from tests.planning.test_filter_volumes import user as volume_user

NODES = [node("n1:4"), node("n2:4")]
STORES = [
    *NODES,
    storage_class(),
    storage_class("other"),
    storage_class("made", "csi.example.com"),
    claim("c"),
    claim("d"),
    claim("m", cls="made"),
    claim("there", volume="v2"),
    disk("v1", "5Gi", "n1"),
    disk("v2", "5Gi", "n2"),
    disk("small", "1Gi", "n1"),
    disk("foreign", "5Gi", "n1", cls="other"),
    disk("wide", "9Gi", "n1", "n2"),
]


def nominated(wire: Any, at: str) -> Any:
    return replace(wire, status=replace(wire.status, nominated_node_name=at))


def texts(
    objects: list[Any], given: Mapping[str, Mapping[str, str]], devices: Mapping[str, Mapping[str, Grant]] = {}
) -> list[str]:
    """Faults of pods that a planner puts on n1 with these volumes and devices."""
    snapshot = states(objects).snapshot(0.0)
    draft = Draft(snapshot)
    RoundState(draft, KoordpyConfiguration())
    for name in dict.fromkeys((*given, *devices)):
        own = {"claims": devices[name]} if name in devices else {}
        draft.assign(snapshot.pods[f"default/{name}"], snapshot.index["n1"], given.get(name), own)
    return list(check_claims([snapshot.pods[key] for key in draft.placed], draft))


@pytest.mark.parametrize(
    ("claims", "given", "fault"),
    [
        (["c"], {"default/c": "v1"}, ""),
        (["c"], {"default/c": "wide"}, ""),
        (["m"], {"default/m": ""}, ""),
        (["c"], {"default/c": "v2"}, "volume v2 cannot be used there"),
        (["there"], {}, "volume v2 cannot be used there"),
        (["c"], {"default/c": "small"}, "volume small is too small for claim default/c"),
        (["c"], {"default/c": "foreign"}, "volume foreign has another storage class than claim default/c"),
        (["c"], {"default/c": "gone"}, "volume gone does not exist"),
        (["c"], {"default/c": ""}, "claim default/c gets no volume, and none is provisioned"),
        (["c"], {}, "claim default/c gets no volume, and none is provisioned"),
        (["c", "d"], {"default/c": "v1", "default/d": "v1"}, "volume v1 is used by claim default/d, not default/c"),
        (["none"], {}, "claim default/none does not exist"),
    ],
)
def test_volumes(claims: list[str], given: dict[str, str], fault: str) -> None:
    found = texts([*STORES, volume_user("p", *claims)], {"p": given})
    assert found == ([f"default/p on n1: {fault}"] if fault else [])


def test_a_volume_that_a_nominated_pod_counts_on() -> None:
    held = nominated(volume_user("h", "d", priority=10), "n1")
    assert texts([*STORES, volume_user("p", "c", priority=5), held], {"p": {"default/c": "v1"}}) == [
        "default/p on n1: volume v1 is used by claim default/d, not default/c"
    ]


OFFERED = [
    *NODES,
    CLASS,
    offers("n1", "d0", "d1"),
    offers("n2", "d0"),
    resource_claim("c", asks()),
    resource_claim("d", asks()),
]


def grant(pool: str, *names: str) -> Grant:
    return tuple(Granted("r", DeviceId(DRIVER, pool, name)) for name in names)


@pytest.mark.parametrize(
    ("taken", "fault"),
    [
        ({"c": grant("n1", "d0")}, ""),
        ({"c": ()}, "resource claim default/c gets no device for request r"),
        ({"c": grant("n1", "d0", "d1")}, "resource claim default/c requests 1 device and gets 2"),
        ({"c": grant("n2", "d0")}, "device d0 of pool n2 is not offered there"),
        (
            {"c": grant("n1", "d0"), "d": grant("n1", "d0")},
            "device d0 of pool n1 is not available to resource claim default/c",
        ),
    ],
)
def test_devices(taken: dict[str, Grant], fault: str) -> None:
    users = [device_user(f"p-{name}", name) for name in taken]
    given = {f"p-{name}": {f"default/{name}": one} for name, one in taken.items()}
    assert texts([*OFFERED, *users], {}, given)[:1] == ([f"default/p-c on n1: {fault}"] if fault else [])


def test_a_plan_that_takes_what_is_not_there_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VolumeBinding, "choice", lambda self, node: {"default/c": "v2"})
    plan = planned([*STORES[:-1], volume_user("p", "c", node_selector={"kubernetes.io/hostname": "n1"}), pod("q")])
    assert [one.pod_key for one in plan.placements] == ["default/q"]
    assert [one.text for one in plan.rejected] == [
        "internal error: a plan failed koordpy's own check and was not carried out (claims): "
        "default/p on n1: volume v2 cannot be used there"
    ]


PAIRS = [[0, 50, 10, 10], [50, 0, 10, 10], [10, 10, 0, 50], [10, 10, 50, 0]]
NIC = "nic.example.com"
NICS = replace(offers("n1-nics", "e0", "e1"), spec=replace(offers("n1", "e0", "e1").spec, driver=NIC))


def linked(*names: str, driver: str = DRIVER) -> Grant:
    return tuple(Granted("r", DeviceId(driver, "n1", name)) for name in names)


@pytest.mark.parametrize(
    ("gbs", "held_by_pod", "given", "faults"),
    [
        ("50", [], linked("d0", "d1"), []),
        ("50", [], linked("d0", "d2"), ["devices d0 and d2 are not linked at 50 GB/s"]),
        ("10", [], linked("d0", "d2"), []),
        ("50", [], linked("d0", "d1", "d2"), [f"devices d{i} and d2 are not linked at 50 GB/s" for i in (0, 1)]),
        ("50", ["d0"], linked("d1"), []),
        ("50", ["d0"], linked("d2"), ["devices d0 and d2 are not linked at 50 GB/s"]),
        ("50", [], linked("e0", "e1", driver=NIC), ["devices e0 and e1 are not linked at 50 GB/s"]),
        ("50", [], (*linked("d0", "d1"), *linked("e0", "e1", driver=NIC)), []),
    ],
    ids=["fast", "slow", "fast enough", "two slow", "held", "held and slow", "unknown driver", "beside known ones"],
)
def test_the_minimum_bandwidth_of_claims(gbs: str, held_by_pod: list[str], given: Grant, faults: list[str]) -> None:
    everyone = replace(CLASS, spec=replace(CLASS.spec, selectors=[]))
    before = [held(*held_by_pod, at="n1")] if held_by_pod else []
    claims = [resource_claim("c", asks(len(given))), *(resource_claim("h", asks(1), allocation=one) for one in before)]
    pod = device_user("p", "c", *(["h"] if before else []), annotations={keys.GPU_MIN_BANDWIDTH: gbs})
    objects = [node("n1:4"), everyone, device_object("n1", PAIRS), linked_offers("n1", 4), NICS, *claims, pod]
    assert texts(objects, {}, {"p": {"default/c": given}}) == [f"default/p on n1: {fault}" for fault in faults]
