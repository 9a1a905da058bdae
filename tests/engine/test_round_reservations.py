# SPDX-License-Identifier: Apache-2.0
"""Room that units await from one round to the next."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from koordpy.cache.snapshot import Snapshot
from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.watching.feeds import Feeds
from koordpy.plan.gang_repair import KeptSeats
from koordpy.plan.round_plan import Deferral, Placement, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.pods.gang_refs import GangRef
from tests.scenarios.cluster import World, node, pod

LATE, TAKER = "default/late", "default/taker"


def round_of(**parts: Any) -> RoundPlan:
    return RoundPlan(**{"placements": (), "evictions": (), "pending": (), "gangs": (), "units": ()} | parts)


@pytest.mark.parametrize(("at", "kept"), [("n1", False), ("n2", True), ("", True)])
def test_room_that_a_cut_round_gave_to_others_does_not_come_back(at: str, kept: bool) -> None:
    snapshot = World().add(node("n1:4"), node("n2:4"), pod("late", cpu="4"), pod("taker", cpu="2")).snapshot()
    woken: list[str] = []
    queue = SimpleNamespace(unit_of={LATE: LATE, TAKER: TAKER}, wake_waiting=lambda _, event, **__: woken.append(event))
    feeds = SimpleNamespace(queue=queue, listeners=SimpleNamespace(pod_gone=[], gang=[]))
    reservations = RoundReservations(cast(Feeds, feeds))
    [tried] = plan_round(snapshot, only=frozenset({LATE})).units
    reservations.keep(round_of(units=(tried,), awaiting_nominations=(Placement(LATE, "uid", "n1", LATE),)), snapshot)
    assert reservations.add_to(snapshot, frozenset()).reservations[LATE].node == "n1"
    placed = (Placement(TAKER, "uid", at, TAKER),) if at else ()
    reservations.keep(round_of(placements=placed, deferred=(Deferral(LATE),)), snapshot)
    assert (LATE in reservations.add_to(snapshot, frozenset()).reservations) == kept
    assert woken == ([] if kept else ["AwaitedRoomGivenUp"]), "what is left of it may be others'"


TERMINATING = "2026-01-01T00:00:10Z"


@pytest.mark.parametrize(
    ("uid", "stamp", "kept"),
    [
        pytest.param("uid-victim", TERMINATING, True, id="still terminating"),
        pytest.param("", None, True, id="gone"),
        pytest.param("uid-victim", None, False, id="it stays, because the plan that evicts it was dropped"),
        pytest.param("uid-other", None, True, id="gone, and another pod has its name"),
    ],
)
def test_a_place_is_given_up_when_a_terminating_pod_stays(uid: str, stamp: str | None, kept: bool) -> None:
    def cluster(uid: str, stamp: str | None) -> Snapshot:
        world = World().add(node("n1:4"), node("n2:4"), pod("late", cpu="4"))
        if uid:
            victim = pod("victim", cpu="4", at="n1")
            world.add(replace(victim, metadata=replace(victim.metadata, uid=uid, deletion_timestamp=stamp)))
        return world.snapshot()

    woken: list[str] = []
    queue = SimpleNamespace(unit_of={LATE: LATE}, wake_waiting=lambda _, event, **__: woken.append(event))
    feeds = SimpleNamespace(queue=queue, listeners=SimpleNamespace(pod_gone=[], gang=[]))
    reservations = RoundReservations(cast(Feeds, feeds))
    plan = round_of(awaiting_nominations=(Placement(LATE, "uid-late", "n1", LATE),))
    reservations.keep(plan, cluster("uid-victim", TERMINATING))
    assert (LATE in reservations.add_to(cluster(uid, stamp), frozenset()).reservations) == kept
    assert woken == ([] if kept else ["AwaitedRoomGivenUp"])


def test_a_change_of_a_gang_with_seats_wakes_waiting_units() -> None:
    woken: list[str] = []
    queue = SimpleNamespace(broadcast=lambda _, event: woken.append(event))
    feeds = SimpleNamespace(queue=queue, listeners=SimpleNamespace(pod_gone=[], gang=[]))
    reservations = RoundReservations(cast(Feeds, feeds))
    reservations.keep_seats({"default/g": KeptSeats(300.0, {"n1": 1})})
    [changed] = feeds.listeners.gang
    changed(GangRef("default", "other"))
    assert woken == []
    changed(GangRef("default", "g"))
    assert woken == ["SeatsChanged"]


def test_the_seats_of_two_gangs_end_at_one_time() -> None:
    woken: list[str] = []
    queue = SimpleNamespace(broadcast=lambda _, event: woken.append(event))
    feeds = SimpleNamespace(queue=queue, listeners=SimpleNamespace(pod_gone=[], gang=[]))
    reservations = RoundReservations(cast(Feeds, feeds))
    kept = {"default/a": KeptSeats(300.0, {"n1": 1}), "default/b": KeptSeats(300.0, {"n2": 1})}
    reservations.keep_seats({**kept, "default/c": KeptSeats(400.0, {"n3": 1})})
    reservations.end_due(299.0)
    assert woken == []
    reservations.end_due(300.0)
    assert woken == ["SeatsEnded"]
    assert reservations.next_due() == 400.0
