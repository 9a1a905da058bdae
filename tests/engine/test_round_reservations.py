"""Room that units await from one round to the next."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.watching.feeds import Feeds
from koordpy.planning.plan import Deferred, Nomination, Placement, RoundPlan
from koordpy.planning.round import plan_round
from tests.scenarios.cluster import World, node, pod

LATE, TAKER = "default/late", "default/taker"


def round_of(**parts: Any) -> RoundPlan:
    return RoundPlan(**{"placements": (), "evictions": (), "pending": (), "gangs": (), "units": ()} | parts)


@pytest.mark.parametrize(("at", "kept"), [("n1", False), ("n2", True), ("", True)])
def test_room_that_a_cut_round_gave_to_others_does_not_come_back(at: str, kept: bool) -> None:
    snapshot = World().add(node("n1:4"), node("n2:4"), pod("late", cpu="4"), pod("taker", cpu="2")).snapshot()
    woken: list[str] = []
    queue = SimpleNamespace(unit_of={LATE: LATE, TAKER: TAKER}, wake_waiting=lambda _, event, **__: woken.append(event))
    feeds = SimpleNamespace(queue=queue, listeners=SimpleNamespace(pod_gone=[]))
    promises = RoundReservations(cast(Feeds, feeds))
    [tried] = plan_round(snapshot, only=frozenset({LATE})).units
    promises.found(round_of(units=(tried,), awaiting=(Nomination(LATE, "uid", "n1", LATE),)))
    assert promises.told(snapshot, frozenset()).reservations[LATE].node == "n1"
    placed = (Placement(TAKER, "uid", at, {}, TAKER),) if at else ()
    promises.found(round_of(placements=placed, deferred=(Deferred(LATE),)))
    assert (LATE in promises.told(snapshot, frozenset()).reservations) == kept
    assert woken == ([] if kept else ["AwaitedRoomGivenUp"]), "what is left of it may be others'"
