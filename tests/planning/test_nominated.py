"""Room kept for nominated pods (kube-parity.md 2.2)."""

from typing import Any

import pytest

from koordpy.api.objects import Pod, SchedulingGate
from tests.planning.node_rules import anti, leaving, near, node, planned, pod, reasons, term
from tests.scenarios.cluster import bound, group

WEB = {"app": "web"}
HOST = "kubernetes.io/hostname"


def nominated(name: str, at: str, **settings: Any) -> Pod:
    """A pod of another scheduler, nominated to a node."""
    from msgspec.structs import replace

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
    from msgspec.structs import replace

    kept = pod("kept", cpu="3", priority=5, created=1)
    kept = replace(kept, status=replace(kept.status, nominated_node_name="n1"))
    plan = planned([node("n1:4"), pod("p", cpu="2", priority=5), kept])
    assert bound(plan) == {"kept": "n1"}


def test_members_of_a_gang_do_not_stand_in_each_others_way() -> None:
    from msgspec.structs import replace

    members = [pod(f"p-{i}", gang="g", cpu="2") for i in range(2)]
    members = [replace(one, status=replace(one.status, nominated_node_name="n1")) for one in members]
    assert len(bound(planned([node("n1:4"), group("g", 2), *members]))) == 2


def test_a_gang_leaves_room_for_others_nominated_pods() -> None:
    members = [pod(f"p-{i}", gang="g", cpu="1") for i in range(4)]
    other = nominated("h", "n1", cpu="1", priority=10)
    assert bound(planned([node("n1:4"), group("g", 4), *members, other])) == {}
    assert len(bound(planned([node("n1:5"), group("g", 4), *members, other]))) == 4
