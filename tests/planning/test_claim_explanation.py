# SPDX-License-Identifier: Apache-2.0
"""What `explain` says about claims: devices, selectors without a device, devices to free, reasons (dra.md 9, 13)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import ClaimConsumer, DeviceRequest, SubRequest
from koordpy.planner.planning_round import plan_round
from tests.planning.node_rules import asked, node, planned, states
from tests.planning.test_filter_dra import CANNOT, CLASS, DRIVER, asks, facts, held, offers, resource_claim, user
from tests.scenarios.cluster import group, messages, pod

NODES = [node("n1:8"), node("n2:8")]


def held_by(name: str, *devices: str, at: str, by: str = "r") -> Any:
    consumer = ClaimConsumer(resource="pods", name=by, uid=f"uid-{by}")
    return resource_claim(name, asks(len(devices)), allocation=held(*devices, at=at), reserved_for=[consumer])


def test_a_feasible_node_shows_the_devices_that_it_would_give() -> None:
    objects = [*NODES, CLASS, offers("n1", "g0", "g1", "g2"), offers("n2", "g0"), held_by("rc", "g0", at="n1")]
    found = asked([*objects, resource_claim("c", asks(2)), user("r", "rc", at="n1"), user("p", "c")])
    wanted = [
        {"claim": "default/c", "request": "r", "driver": DRIVER, "pool": "n1", "device": device}
        for device in ("g1", "g2")
    ]
    assert {one.node: list(one.devices) for one in found.nodes} == {"n1": wanted, "n2": []}


def test_the_score_of_alternatives_is_shown_and_is_no_part_of_the_total() -> None:
    subs = [SubRequest(name=f"s{i}", device_class_name="gpu", count=3 - i) for i in range(3)]
    choice = resource_claim("c", DeviceRequest(name="r", first_available=subs))
    slices = [offers("n1", "g0", "g1"), offers("n2", "g0"), offers("n3", *(f"g{i}" for i in range(4)))]
    nodes = [*NODES, node("n3:8"), node("n4:8")]
    cases = (choice, {"n1": 87, "n2": 75, "n3": 100}), (resource_claim("c", asks()), {"n1": 0, "n2": 0, "n3": 0})
    for claim, scores in cases:
        found = [one for one in asked([*nodes, CLASS, *slices, claim, user("p", "c")]).nodes if one.feasible]
        assert {one.node: one.scores["DynamicResources"] for one in found} == scores
        assert len({one.total for one in found}) == 1
    assert "DynamicResources" not in asked([*NODES, CLASS, *slices, user("p")]).nodes[0].scores


def test_a_selector_that_matches_no_device_is_named() -> None:
    claim = resource_claim("c", asks(1, f'device.attributes["{DRIVER}"].?model.orValue("") == "b"'))
    objects = [*NODES, CLASS, offers("n1", "g0", attributes=facts(model="a")), claim, user("p", "c")]
    found = asked(objects)
    reasons = [[message for _, _, message in one.reasons] for one in found.nodes]
    assert reasons == [["cannot allocate all claims", "claim default/c, request r: selector #0 matches no device"]] * 2


NEVER: dict[str, tuple[list[Any], str]] = {
    "a node has too few devices": ([offers("n1", "g0"), resource_claim("c", asks(2))], "NeverFits"),
    "a device is in use": (
        [offers("n1", "g0"), held_by("rc", "g0", at="n1"), user("r", "rc", at="n1"), resource_claim("c", asks(1))],
        "Unschedulable",
    ),
    "the pool is not complete": ([offers("n1", "g0", slices=2), resource_claim("c", asks(1))], "Unschedulable"),
    "tied to the node of other pods": (
        [
            offers("n1", "g0"),
            held_by("c", "g0", at="n1"),
            user("r", "c", at="n1", cpu="8"),
        ],
        "NodesCannotHelp",
    ),
    "tied, and all nodes are full": (
        [
            offers("n1", "g0"),
            held_by("c", "g0", at="n1"),
            user("r", "c", at="n1", cpu="8"),
            pod("full", at="n2", cpu="8"),
        ],
        "NodesCannotHelp",
    ),
    "no class": ([resource_claim("c", asks(1))], "NeverFits"),
}


@pytest.mark.parametrize(("objects", "reason"), NEVER.values(), ids=NEVER)
def test_reasons_of_pods_with_claims(objects: list[Any], reason: str) -> None:
    everything = [*NODES, CLASS, *objects, user("p", "c", cpu="1")]
    [pending] = [one for one in planned(everything).pending if one.pod_key == "default/p"]
    assert str(pending.offline_reason) == reason
    if reason == "NodesCannotHelp":
        assert pending.message.endswith("no new node would help: claim c is tied to a node")


@pytest.mark.parametrize("minimum", [None, 1, 2])
def test_a_claim_is_tied_in_a_cluster_that_has_no_other_node(minimum: int | None) -> None:
    claim = held_by("c", "g0", at="n1")
    running = user("r", "c", at="n1", cpu="8")
    gang = "g" if minimum else ""
    waiting = [user(f"p-{i}", "c", cpu="1", gang=gang) for i in range(minimum or 1)]
    groups = [group("g", minimum)] if minimum else []
    everything = [node("n1:8"), CLASS, offers("n1", "g0"), claim, running, *groups, *waiting]
    for pending in planned(everything).pending:
        assert str(pending.offline_reason) == "NodesCannotHelp"
        assert pending.message.endswith("no new node would help: claim c is tied to a node")
    # a claim of the own gang ties no pod to a node that other pods occupy
    own = [node("n1:8"), CLASS, offers("n1", "g0"), group("g", 1), pod("full", at="n1", cpu="7")]
    members = [user("r", "c", at="n1", cpu="1", gang="g"), user("p", "c", cpu="1", gang="g")]
    [pending] = planned([*own, claim, *members]).pending
    assert str(pending.offline_reason) != "NodesCannotHelp"


def test_a_gang_never_fits_without_enough_devices() -> None:
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(2)]
    claims = [resource_claim(f"c{i}", asks(2)) for i in range(2)]
    objects = [*NODES, CLASS, offers("n1", "g0"), group("g", 2), *claims, *members]
    assert "never fits" in messages(planned(objects))["p-0"]


def test_new_slices_end_the_answer_that_a_pod_never_fits() -> None:
    state = states([*NODES, CLASS, offers("n1", "g0"), resource_claim("c", asks(2)), user("p", "c")])
    assert str(plan_round(state.snapshot(0.0)).pending[0].offline_reason) == "NeverFits"
    state.upsert(offers("n1", "g0", "g1", generation=2))
    assert not plan_round(state.snapshot(0.0)).pending


def test_devices_to_free_are_suggested_with_the_least_number() -> None:
    objects = [*NODES, CLASS, offers("n1", "g0", "g1", "g2"), offers("n2", "g0", "g1", "g2")]
    objects += [held_by("a", "g0", "g1", at="n1", by="r"), user("r", "a", at="n1")]
    objects += [held_by("b", "g0", "g1", "g2", at="n2", by="s"), user("s", "b", at="n2")]
    found = asked([*objects, resource_claim("c", asks(2)), user("p", "c")])
    assert "free 1 devices of class gpu on n1" in found.would_fit_if
    assert not any("on n2" in text and text.startswith("free") for text in found.would_fit_if)
    assert [one.reasons[0][2] for one in found.nodes] == [CANNOT.partition(": ")[2]] * 2


def full(*names: str) -> list[Any]:
    """Nodes without free CPUs, each with one device of two in use."""
    nodes = [node(f"{name}:8") for name in names]
    pods = [user(f"r-{name}", f"c-{name}", at=name, cpu="8") for name in names]
    claims = [held_by(f"c-{name}", "g0", at=name, by=f"r-{name}") for name in names]
    return [*nodes, *pods, *claims, *(offers(name, "g0", "g1") for name in names)]


NETWORK = offers("net", "g0", "g1")
NETWORK = replace(NETWORK, spec=replace(NETWORK.spec, node_name="", all_nodes=True))
INVALID = offers("n1", "d", "d", number=1)
INVALID = replace(INVALID, spec=replace(INVALID.spec, pool=replace(INVALID.spec.pool, name="twice")))
FREED_ON: dict[str, tuple[list[Any], str]] = {
    "other nodes lack CPUs, too": (
        [*full("n1", "n2", "n3"), node("n4:8"), offers("n4", "g0", "g1"), held_by("a", "g0", at="n4")],
        "n4",
    ),
    "a device for all nodes": (
        [node("n1:8"), node("n2:8"), user("r", at="n1", cpu="8"), NETWORK, held_by("a", "g0", at="net")],
        "n2",
    ),
    "another pool is invalid": (
        [node("n1:8"), offers("n1", "g0", "g1"), INVALID, held_by("a", "g0", at="n1")],
        "n1",
    ),
}
"""Objects; the node on which freed devices are suggested."""


@pytest.mark.parametrize(("objects", "name"), FREED_ON.values(), ids=FREED_ON)
def test_devices_are_freed_on_a_node_that_lacks_nothing_else(objects: list[Any], name: str) -> None:
    found = asked([CLASS, *objects, resource_claim("c", asks(2)), user("p", "c", cpu="1")])
    freed = [text for text in found.would_fit_if if text.startswith("free")]
    assert freed == [f"free 1 devices of class gpu on {name}"]


OWN_CLAIM: dict[str, tuple[list[Any], bool, bool]] = {
    "the node has no other device": ([offers("n1", "g0")], False, False),
    "a pod has the other device": (
        [offers("n1", "g0", "g1"), held_by("b", "g1", at="n1", by="s"), user("s", "b", at="n1")],
        True,
        True,
    ),
    "an unknown pod has the other device": ([offers("n1", "g0", "g1"), held_by("b", "g1", at="n1")], False, True),
}
"""Objects; whether evictions could resolve the refusal; whether a free device is suggested."""


@pytest.mark.parametrize(("objects", "evictable", "suggested"), OWN_CLAIM.values(), ids=OWN_CLAIM)
def test_devices_of_own_claims_are_not_freed_for_other_claims(
    objects: list[Any], evictable: bool, suggested: bool
) -> None:
    own = [held_by("a", "g0", at="n1", by="q"), user("q", "a", at="n1"), resource_claim("c", asks(1))]
    found = asked([NODES[0], CLASS, *objects, *own, user("p", "a", "c")])
    code = "Unschedulable" if evictable else "UnschedulableAndUnresolvable"
    assert found.nodes[0].reasons == (("DynamicResources", code, "cannot allocate all claims"),)
    assert ("free 1 devices of class gpu on n1" in found.would_fit_if) is suggested


@pytest.mark.parametrize("gang", ["", "g"])
def test_an_error_of_a_selector_refuses_every_node(gang: str) -> None:
    failing = resource_claim("c1", asks(1, f'device.attributes["{DRIVER}"].model == "a"'))
    objects = [*NODES, CLASS, offers("n1", "g0", attributes=facts(model="a")), offers("n2", "g0"), failing]
    text = f"claim default/c1: selector #0 on device {DRIVER}/n2/g0: CEL runtime error: no such key: model"
    if gang:
        members = [user("p", "c0", gang="g"), user("p-1", "c1", gang="g")]
        objects += [resource_claim("c0", asks(1)), group("g", 2), *members]
    else:
        objects.append(user("p", "c1"))
    found = asked(objects)
    assert found.reason == "SchedulerError" and found.message.startswith(text) and not found.feasible_nodes
    told = [(code, message) for one in found.nodes for _, code, message in one.reasons]
    assert told == [("UnschedulableAndUnresolvable", found.message)] * 2
