# SPDX-License-Identifier: Apache-2.0
"""Which units ask for nodes, with what, and the states of their requests (repair.md 3.1 to 3.3)."""

from typing import Any

import pytest
from msgspec import structs

from koordpy.api import keys
from koordpy.api.custom_objects import (
    PodTemplateReference,
    ProvisioningRequest,
    ProvisioningRequestSpec,
    ProvisioningRequestStatus,
    RequestedPodSet,
)
from koordpy.api.objects import Condition, ObjectMeta, Wire
from koordpy.api.times import rfc3339, seconds
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Autoscaling, Provisioning
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.plan.wanted_nodes import PodSet, WantedNodes
from koordpy.planner.planning_round import plan_round
from koordpy.provisioning.provisioning_report import states_of
from koordpy.provisioning.request_states import RequestPhase, state_of
from tests.scenarios.cluster import group, node, pod
from tests.scenarios.quotas import quota

NOW = seconds("2026-01-01T00:00:00Z")
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
ALL = Provisioning(mode="all")
WANTED = WantedNodes("gang:default/g", "default/g", "default", "default/g", CLASS, {}, (PodSet(("g-0", "g-1")),))


def plan_of(*objects: Wire, settings: Provisioning = ALL) -> RoundPlan:
    config = KoordpyConfiguration(autoscaling=Autoscaling(provisioning=settings))
    state = make_state()
    for obj in objects:
        state.upsert(obj)
    return plan_round(state.snapshot(NOW), config)


def gang(name: str = "g", count: int = 2, notes: dict[str, str] | None = None, **options: Any) -> list[Wire]:
    return [group(name, count, notes), *(pod(f"{name}-{i}", gang=name, **options) for i in range(count))]


def reasons(plan: RoundPlan) -> dict[str, str]:
    return {one.pod_key.partition("/")[2]: str(one.offline_reason) for one in plan.pending}


def request(
    attempt: int = 1, *, counts: tuple[int, ...] = (2,), title: str = "default/g", **true: str
) -> ProvisioningRequest:
    """A request with conditions: type -> time; a reason may follow after a space."""
    notes = {keys.PROVISIONING_FOR: title, keys.PROVISIONING_ATTEMPT: str(attempt)}
    name = f"koordpy-{title.partition('/')[2]}-{attempt}"
    sets = [
        RequestedPodSet(pod_template_ref=PodTemplateReference(name=f"{name}-{i}"), count=count)
        for i, count in enumerate(counts)
    ]
    conditions = []
    for type, text in true.items():
        at, _, reason = text.partition(" ")
        conditions.append(Condition(type=type, status="True", reason=reason, last_transition_time=at or None))
    return ProvisioningRequest(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, annotations=notes),
        spec=ProvisioningRequestSpec(pod_sets=sets, provisioning_class_name=CLASS),
        status=ProvisioningRequestStatus(conditions=conditions),
    )


def ago(span: float) -> str:
    return rfc3339(NOW - span)


# -- which units ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "note", "asks"),
    [
        ("off", "", ""),
        ("off", "own-class", ""),
        ("annotated", "", ""),
        ("annotated", "own-class", "own-class"),
        ("annotated", "none", ""),
        ("all", "", CLASS),
        ("all", "own-class", "own-class"),
        ("all", "none", ""),
    ],
)
def test_mode_and_annotation_decide(mode: Any, note: str, asks: str) -> None:
    notes = {keys.GANG_PROVISIONING_CLASS: note} if note else {}
    plan = plan_of(node("n1"), *gang(notes=notes), settings=Provisioning(mode=mode))
    assert [one.class_name for one in plan.wanted_nodes] == ([asks] if asks else [])
    reason = "WaitingForProvisioning" if asks else "NeverFits"
    assert reasons(plan) == {"g-0": reason, "g-1": reason}


def test_the_oldest_pod_of_a_gang_without_a_pod_group_decides() -> None:
    notes = {keys.GANG_NAME: "g", keys.GANG_MIN: "2", keys.GANG_PROVISIONING_CLASS: "own-class"}
    pods = [pod(f"g-{i}", annotations=notes, created=i) for i in range(2)]
    plan = plan_of(node("n1"), *pods, settings=Provisioning(mode="annotated"))
    assert [one.class_name for one in plan.wanted_nodes] == ["own-class"]


def test_plain_pods_gated_gangs_and_gangs_with_bound_members_do_not_ask() -> None:
    assert reasons(plan_of(node("n1"), pod("p", cpu="2"))) == {"p": "NeverFits"}
    waiting = plan_of(node("n1"), group("g", 3), pod("g-0", gang="g"))
    assert reasons(waiting) == {"g-0": "NotReadyForScheduling"}
    bound = [pod("g-0", gang="g", at="n1"), pod("g-1", gang="g"), group("g", 2)]
    assert reasons(plan_of(node("n1"), *bound))["g-1"] in ("Unschedulable", "NeverFits")
    # the node of the bound member is gone, so the gang starts anew
    lost = plan_of(node("n2"), *bound, pod("g-2", gang="g"))
    assert [one.pods for one in lost.wanted_nodes[0].sets] == [("g-1", "g-2")]


@pytest.mark.parametrize(
    ("objects", "text"),
    [
        (
            gang(notes={keys.GANG_PROVISIONING_CLASS: "Bad_Class"}),
            f"annotation {keys.GANG_PROVISIONING_CLASS} cannot be read: 'Bad_Class' is no provisioning class name",
        ),
        (gang("g" * 245), "no ProvisioningRequest can be named after it"),
        ([group("g", 33), *(pod(f"g-{i}", gang="g", cpu=str(i + 1)) for i in range(33))], "more than 32 kinds of pods"),
    ],
    ids=("class", "name", "kinds"),
)
def test_what_cannot_ask_is_told_once(objects: list[Wire], text: str) -> None:
    plan = plan_of(node("n1"), *objects)
    assert not plan.wanted_nodes
    assert [said for _, said in plan.warnings if said == text] == [text]
    assert set(reasons(plan).values()) <= {"Unschedulable", "NeverFits"}


def test_sets_are_kinds_in_the_order_of_ranks_and_names_follow_the_gang() -> None:
    members = [pod("g-0", gang="g", cpu="2"), pod("g-1", gang="g", cpu="3"), pod("g-2", gang="g", cpu="2")]
    plan = plan_of(node("n1"), group("g", 3), *members)
    wanted = plan.wanted_nodes[0]
    assert [one.pods for one in wanted.sets] == [("g-0", "g-2"), ("g-1",)]
    assert (wanted.name(2), wanted.template(2, 1)) == ("koordpy-g-2", "koordpy-g-2-1")
    derived = WantedNodes("u", "default/j:workers@3", "default", "default/j:workers@3", CLASS, {}, ())
    assert derived.name(1) == "koordpy-j-workers-3-1"


def test_parameters_of_gangs_overlay_the_configuration() -> None:
    own = {keys.PROVISIONING_PARAMETER + "Zone": "a", keys.PROVISIONING_PARAMETER + "Long": "x" * 256}
    plan = plan_of(
        node("n1"), *gang(notes=own), settings=Provisioning(mode="all", parameters={"Zone": "b", "Size": "1"})
    )
    assert dict(plan.wanted_nodes[0].parameters) == {"Size": "1", "Zone": "a"}
    assert any("Long: at most 255 characters" in text for _, text in plan.warnings)


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "phase", "attempt"),
    [
        ([], "Wanted", 1),
        ([request()], "Open", 1),
        ([request(Accepted=ago(60))], "Open", 1),
        ([request(counts=(3,))], "Wanted", 1),
        ([request(counts=(1, 1))], "Wanted", 1),
        ([request(Provisioned=ago(60))], "Provisioned", 1),
        ([request(Provisioned=ago(601))], "BackOff", 1),
        ([request(Provisioned=ago(661))], "Wanted", 2),
        ([request(Provisioned=ago(60), BookingExpired=ago(5))], "BackOff", 1),
        ([request(Provisioned=ago(60), BookingExpired=ago(5) + " CapacityBookingConsumed")], "Provisioned", 1),
        ([request(Provisioned=ago(60), CapacityRevoked=ago(61))], "Wanted", 2),
        ([request(Failed=ago(30))], "BackOff", 1),
        ([request(Failed=ago(120))], "Wanted", 2),
        ([request(2, Failed=ago(119))], "BackOff", 2),
        ([request(2, Failed=ago(120))], "Wanted", 3),
        ([request(3, Failed=ago(240))], "Wanted", 4),
        ([request(4, Failed=ago(1 << 20))], "GivenUp", 4),
        ([request(1, Failed=ago(500)), request(2)], "Open", 2),
        ([request(1), request(3, Failed=ago(10))], "BackOff", 3),
    ],
)
def test_states(requests: list[ProvisioningRequest], phase: str, attempt: int) -> None:
    """Worked example 5 is among them."""
    found = state_of(WANTED, requests, ALL, NOW)
    assert (str(found.phase), found.attempt) == (phase, attempt)
    kept = {found.request.metadata.name} if found.request is not None else set()
    assert {one.metadata.name for one in found.delete} == {one.metadata.name for one in requests} - kept


def test_the_pause_has_a_maximum() -> None:
    short = Provisioning(mode="all", backoff=60.0, max_backoff=90.0, retries=9)
    assert state_of(WANTED, [request(5, Failed=ago(89))], short, NOW).phase is RequestPhase.BACK_OFF
    assert state_of(WANTED, [request(5, Failed=ago(90))], short, NOW).phase is RequestPhase.WANTED


def test_few_requests_are_open_at_once() -> None:
    def phases(open_now: int, *, undecided: tuple[str, ...] = ()) -> list[str]:
        units = [
            WantedNodes(f"gang:default/w{i}", f"default/w{i}", "default", f"default/w{i}", CLASS, {}, (PodSet(("p",)),))
            for i in range(3)
        ]
        others = [request(title=f"default/o{i}") for i in range(open_now)]
        settings = Provisioning(mode="all", max_open=2)
        return [str(state.phase) for _, state in states_of(units, others, undecided, settings, NOW)]

    assert phases(0) == ["Wanted", "Wanted", "Queued"]
    assert phases(1) == ["Wanted", "Wanted", "Queued"]  # the others do not ask any more
    assert phases(1, undecided=("default/o0",)) == ["Wanted", "Queued", "Queued"]
    assert phases(2, undecided=("default/o0", "default/o1")) == ["Queued", "Queued", "Queued"]


def test_given_up_is_told_and_bindings_name_provisioned_requests() -> None:
    failed = plan_of(node("n1"), *gang(), request(4, Failed=ago(60)))
    assert reasons(failed) == {"g-0": "ProvisioningFailed", "g-1": "ProvisioningFailed"}
    for made, noted in (
        (request(Provisioned=ago(60)), True),
        (request(), False),
        (request(Provisioned=ago(700)), False),
    ):
        plan = plan_of(node("n1"), node("n2"), *gang(), made)
        assert len(plan.placements) == 2
        found = {keys.CONSUMES_REQUEST: "koordpy-g-1", keys.CONSUMES_CLASS: CLASS} if noted else {}
        for one in plan.placements:
            assert {key: text for key, text in one.annotations.items() if "autoscaling" in key} == found


# -- new nodes --------------------------------------------------------------------------------------------------------


def born(text: str, span: float, **amounts: str) -> Wire:
    made = node(text, **amounts)
    return structs.replace(made, metadata=structs.replace(made.metadata, creation_timestamp=ago(span)))


def made(span: float, **true: str) -> ProvisioningRequest:
    one = request(counts=(3,), **true)
    return structs.replace(one, metadata=structs.replace(one.metadata, creation_timestamp=ago(span)))


def test_new_nodes_are_kept_for_the_gang_that_asked() -> None:
    old, first, second = node("n0"), born("n1", 50), born("n2", 40)
    members = gang(count=3, created=50)
    plain = pod("p", created=1)
    here = plan_of(first, second, *members, made(60), plain)
    assert not here.placements
    assert reasons(here)["p"] == "HeldBack"
    text = "room on 2 nodes is held for gang default/g, provisioned for it"
    assert text in next(one.message for one in here.pending if one.pod_key == "default/p")
    assert reasons(here)["g-0"] == "WaitingForProvisioning"
    taken = plan_of(old, first, second, *members, made(60), plain)
    assert {one.pod_key: one.node for one in taken.placements} == {"default/p": "n0"}


@pytest.mark.parametrize(
    ("nodes", "asked", "priority", "place"),
    [
        ([born("n1", 50)], made(60), 0, None),
        ([born("n1", 70)], made(60), 0, "n1"),
        ([node("n1")], made(60), 0, "n1"),
        ([born("n1", 50)], made(60), 1, "n1"),
        ([born("n1", 50)], made(60, Provisioned=ago(10)), 0, None),
        ([born("n1", 50)], made(60, Failed=ago(10)), 0, "n1"),
    ],
    ids=("new", "old", "without an age", "higher priority", "provisioned", "failed"),
)
def test_which_nodes_are_kept(nodes: list[Wire], asked: ProvisioningRequest, priority: int, place: str | None) -> None:
    plan = plan_of(*nodes, *gang(count=3), asked, pod("p", created=-9, priority=priority))
    assert {one.pod_key: one.node for one in plan.placements} == ({"default/p": place} if place else {})


def test_no_more_new_nodes_are_kept_than_the_gang_needs() -> None:
    nodes = [born("n1:2", 50), born("n2", 40), born("n3", 30)]
    plain = [pod(f"p{i}", created=-9) for i in range(2)]
    plan = plan_of(*nodes, *gang(count=3), made(60), *plain)
    assert [one.node for one in plan.placements if one.pod_key.startswith("default/p")] == ["n3"]


@pytest.mark.parametrize("kept", [True, False])
def test_new_nodes_are_kept_from_units_that_a_runtime_refused_first(kept: bool) -> None:
    """Two quotas of half a cluster each: without a hold, the first pod starts in its second turn."""
    quotas = [quota(name, {"cpu": "0"}, {"cpu": "9"}) for name in ("q1", "q2")]
    pods = [pod(f"p{i}", created=-9 + i, labels={keys.QUOTA_NAME: f"q{i}"}) for i in (1, 2)]
    asked = [*gang(count=3), made(60)] if kept else []
    plan = plan_of(born("n1", 50), *quotas, *pods, *asked)
    assert {one.pod_key for one in plan.placements} == (set() if kept else {"default/p1"})


def test_new_nodes_have_no_seats_of_other_gangs() -> None:
    """A broken gang may not use these nodes, so seats would keep them from both gangs."""
    broken = [group("h", 2), pod("h-0", gang="h", at="n0")]
    asked = [*gang(count=3), made(60), node("n0"), born("n2", 40)]

    def seats(*free: Wire) -> dict[str, int]:
        plan = plan_of(*asked, *broken, *free)
        return {name: number for kept in plan.seats.values() for name, number in kept.nodes.items()}

    assert (seats(), seats(node("n3"))) == ({}, {"n3": 1})


@pytest.mark.parametrize(("priority", "moves"), [(0, False), (1, True)])
def test_broken_gangs_do_not_move_to_new_nodes_of_other_gangs(priority: int, moves: bool) -> None:
    notes = {keys.GANG_REPAIR: "regather", keys.GANG_STALE_GRACE: "0s"}
    live = pod("h-0", gang="h", at="n0", priority=priority)
    broken = [group("h", 2, notes), live, pod("h-1", gang="h", cpu="4", priority=priority)]
    asked = [*gang(count=3, cpu="3"), made(60)]
    plan = plan_of(*asked, node("n0", cpu="4"), born("n2", 40, cpu="3"), *broken)
    assert [one.rule for one in plan.evictions] == (["repair"] if moves else ["stale-gang"])


@pytest.mark.parametrize(
    ("count", "notes", "kept"),
    [(3, {}, True), (4, {}, False), (3, {keys.GANG_PROVISIONING_CLASS: "none"}, False)],
    ids=["in-charge", "other-count", "opted-out"],
)
def test_requests_that_are_not_in_charge_keep_no_nodes(count: int, notes: dict[str, str], kept: bool) -> None:
    """These requests are deleted."""
    plan = plan_of(*gang(count=count, notes=notes, created=50), made(60), born("n1", 50), pod("p", created=60))
    assert [one.pod_key for one in plan.placements] == ([] if kept else ["default/p"])
