# SPDX-License-Identifier: Apache-2.0
"""Room kept for nominated pods (kube-parity.md 2.2)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.api.objects import Pod, SchedulingGate
from tests.planning.node_rules import anti, leaving, near, node, planned, pod, reasons, term
from tests.planning.test_filter_dra import CLASS as GPU_CLASS
from tests.planning.test_filter_dra import asks, held, offers, resource_claim
from tests.planning.test_filter_dra import user as device_user
from tests.planning.test_filter_volumes import NO_VOLUME, claim, disk, storage_class
from tests.planning.test_filter_volumes import user as volume_user
from tests.scenarios.cluster import bound, group

WEB = {"app": "web"}
HOST = "kubernetes.io/hostname"


def nominated(name: str, at: str, **settings: Any) -> Pod:
    """A pod of another scheduler, nominated to a node."""
    wire = pod(name, scheduler="default-scheduler", **settings)
    return replace(wire, status=replace(wire.status, nominated_node_name=at))


CASES: dict[str, tuple[Any, str]] = {
    "of a higher priority": (nominated("h", "n1", cpu="3", priority=10), "U: Insufficient cpu"),
    "of the same priority": (nominated("h", "n1", cpu="3", priority=5), "U: Insufficient cpu"),
    "of a lower priority": (nominated("h", "n1", cpu="3", priority=4), "fits"),
    "to another node": (nominated("h", "n2", cpu="3", priority=10), "fits"),
    "gated": (nominated("h", "n1", cpu="3", priority=10, scheduling_gates=[SchedulingGate(name="g")]), "fits"),
    "being deleted": (leaving(nominated("h", "n1", cpu="3", priority=10)), "fits"),
    "and shunning the pod": (
        nominated("h", "n1", priority=10, affinity=anti(term(HOST, WEB))),
        "U: node(s) didn't satisfy existing pods anti-affinity rules",
    ),
}


@pytest.mark.parametrize(("other", "word"), CASES.values(), ids=CASES)
def test_a_nominated_pod_holds_its_room(other: Pod, word: str) -> None:
    assert reasons([node("n1:4"), other, pod("p", cpu="2", priority=5, labels=WEB)]) == {"n1": word}


def test_nobody_leans_on_a_nominated_pod() -> None:
    db = nominated("db", "n1", priority=10, labels={"app": "db"})
    leaning = pod("p", priority=5, affinity=near(term(HOST, {"app": "db"})))
    words = reasons([node("n1:4"), node("n2:4"), db, leaning])
    assert words == dict.fromkeys(("n1", "n2"), "UU: node(s) didn't match pod affinity rules")


def test_the_room_is_kept_from_rounds_too_and_its_own_pod_may_take_it() -> None:
    kept = pod("kept", cpu="3", priority=5, created=1)
    kept = replace(kept, status=replace(kept.status, nominated_node_name="n1"))
    plan = planned([node("n1:4"), pod("p", cpu="2", priority=5), kept])
    assert bound(plan) == {"kept": "n1"}


@pytest.mark.parametrize(("free", "taken"), [("n2:4", "n2"), ("n2:1", "n1")])
def test_a_plain_pod_goes_where_it_is_nominated_if_that_takes_it(free: str, taken: str) -> None:
    hinted = promised(pod("p", cpu="2", priority=5), "n2")
    assert bound(planned([node("n1:2"), node(free), hinted])) == {"p": taken}


def test_members_of_a_gang_do_not_stand_in_each_others_way() -> None:
    members = [pod(f"p-{i}", gang="g", cpu="2") for i in range(2)]
    members = [replace(one, status=replace(one.status, nominated_node_name="n1")) for one in members]
    assert len(bound(planned([node("n1:4"), group("g", 2), *members]))) == 2


def test_a_gang_leaves_room_for_others_nominated_pods() -> None:
    members = [pod(f"p-{i}", gang="g", cpu="1") for i in range(4)]
    other = nominated("h", "n1", cpu="1", priority=10)
    assert bound(planned([node("n1:4"), group("g", 4), *members, other])) == {}
    assert len(bound(planned([node("n1:5"), group("g", 4), *members, other]))) == 4


def promised(wire: Pod, at: str) -> Pod:
    """A pod with room promised on a node."""
    return replace(wire, status=replace(wire.status, nominated_node_name=at))


def ending(name: str, claim_name: str, device: str) -> list[Any]:
    """A claim with a device of n1, and the terminating pod that has it."""
    consumer = ClaimConsumer(resource="pods", name=name, uid=f"uid-{name}")
    allocated = resource_claim(claim_name, asks(), allocation=held(device, at="n1"), reserved_for=[consumer])
    return [allocated, leaving(device_user(name, claim_name, at="n1"))]


VOLUME = [storage_class(), claim("c1"), claim("c2")]
CLAIMS: dict[str, tuple[list[Any], Pod, Pod, dict[str, str]]] = {
    "a volume of its node": (
        [*VOLUME, disk("v1", "5Gi", "n1"), disk("v2", "5Gi", "n2")],
        promised(volume_user("h", "c1", priority=10), "n1"),
        volume_user("p", "c2", priority=5),
        {"n1": NO_VOLUME, "n2": "fits"},
    ),
    "a volume that others reach": (
        [*VOLUME, disk("v1", "5Gi", "n1", "n2")],
        promised(volume_user("h", "c1", priority=10), "n1"),
        volume_user("p", "c2", priority=5),
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "a volume, from a more important one": (
        [*VOLUME, disk("v1", "5Gi", "n1", "n2")],
        promised(volume_user("h", "c1", priority=4), "n1"),
        volume_user("p", "c2", priority=5),
        {"n1": "fits", "n2": "fits"},
    ),
    "a volume of two, the smallest": (
        [storage_class(), claim("c1"), claim("c2", "8Gi"), disk("v1", "5Gi", "n1"), disk("v2", "9Gi", "n1")],
        promised(volume_user("h", "c1", priority=10), "n1"),
        volume_user("p", "c2", priority=5),
        {"n1": "fits", "n2": NO_VOLUME},
    ),
    "a device of its node": (
        [GPU_CLASS, offers("n1", "d0"), offers("n2", "d0"), resource_claim("c1", asks()), resource_claim("c2", asks())],
        promised(device_user("h", "c1", priority=10), "n1"),
        device_user("p", "c2", priority=5),
        {"n1": "UU: cannot allocate all claims", "n2": "fits"},
    ),
    "one device of two": (
        [GPU_CLASS, offers("n1", "d0", "d1"), resource_claim("c1", asks()), resource_claim("c2", asks())],
        promised(device_user("h", "c1", priority=10), "n1"),
        device_user("p", "c2", priority=5),
        {"n1": "fits", "n2": "UU: cannot allocate all claims"},
    ),
    "a device, beside one that a terminating pod has": (
        [
            GPU_CLASS,
            offers("n1", "d0", "d1"),
            *ending("l", "c0", "d0"),
            resource_claim("c1", asks(2)),
            resource_claim("c2", asks()),
        ],
        promised(device_user("h", "c1", priority=10), "n1"),
        device_user("p", "c2", priority=5),
        {"n1": "U: cannot allocate all claims", "n2": "UU: cannot allocate all claims"},
    ),
    "a device, beside one of a pod that is gone": (
        [
            GPU_CLASS,
            offers("n1", "d0", "d1"),
            ending("l", "c0", "d0")[0],
            resource_claim("c1", asks(2)),
            resource_claim("c2", asks()),
        ],
        promised(device_user("h", "c1", priority=10), "n1"),
        device_user("p", "c2", priority=5),
        {"n1": "UU: cannot allocate all claims", "n2": "UU: cannot allocate all claims"},
    ),
    "the node of a claim that both name": (
        [GPU_CLASS, offers("n1", "d0"), offers("n2", "d0"), resource_claim("c1", asks())],
        promised(device_user("h", "c1", priority=10), "n1"),
        device_user("p", "c1", priority=5),
        {"n1": "fits", "n2": "UU: cannot allocate all claims"},
    ),
    "not the node of a claim that a more important one names": (
        [GPU_CLASS, offers("n1", "d0"), offers("n2", "d0"), resource_claim("c1", asks())],
        promised(device_user("h", "c1", priority=4), "n1"),
        device_user("p", "c1", priority=5),
        {"n1": "fits", "n2": "fits"},
    ),
    "the node of a claim that both name, while its devices come free": (
        [
            GPU_CLASS,
            offers("n1", "d0"),
            offers("n2", "d0"),
            *ending("l", "c0", "d0"),
            resource_claim("c1", asks()),
        ],
        promised(device_user("h", "c1", priority=10), "n1"),
        device_user("p", "c1", priority=5),
        {"n1": "U: cannot allocate all claims", "n2": "UU: cannot allocate all claims"},
    ),
}


@pytest.mark.parametrize(("objects", "kept", "asking", "words"), CLAIMS.values(), ids=CLAIMS)
def test_what_the_claims_of_a_nominated_pod_take_is_kept(
    objects: list[Any], kept: Pod, asking: Pod, words: dict[str, str]
) -> None:
    held = replace(kept, spec=replace(kept.spec, scheduler_name="default-scheduler"))
    assert reasons([node("n1:4"), node("n2:4"), *objects, held, asking]) == words


def test_a_gang_counts_no_device_that_a_nominated_pod_keeps() -> None:
    kept = promised(device_user("h", "c9", priority=10, scheduler="default-scheduler"), "n1")
    claims = [resource_claim(f"c{i}", asks()) for i in (0, 1, 9)]
    members = [device_user(f"p-{i}", f"c{i}", gang="g") for i in range(2)]
    objects = [node("n1:8"), GPU_CLASS, *claims, group("g", 2), *members, kept]
    plan = planned([*objects, offers("n1", "d0", "d1")])
    assert bound(plan) == {} and {one.reason for one in plan.pending} == {"Unschedulable"}
    assert len(bound(planned([*objects, offers("n1", "d0", "d1", "d2")]))) == 2


def test_a_nominated_pod_takes_the_volume_that_is_kept_for_it() -> None:
    kept = promised(volume_user("h", "c1", priority=5, created=1), "n1")
    plan = planned([node("n1:4"), *VOLUME, disk("v1", "5Gi", "n1"), volume_user("p", "c2", priority=5), kept])
    assert bound(plan) == {"h": "n1"}
