# SPDX-License-Identifier: Apache-2.0
"""Who may have reserved capacity: the table of `koordpy/cache/reservations.py`, asked of the ledger."""

from typing import Any

import pytest
from msgspec.structs import replace as changed

from koordpy.api.objects import Pod
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.quota.quota_book import ShareQueue
from koordpy.reservations.capacity_view import PREEMPTOR
from tests.scenarios.cluster import World, node, pod

HOLDER, ASKER = "default/holder", "default/asker"


def world(*nominated: str, priority: int) -> World:
    """A node of 4 CPUs, to which some pods are nominated. The holder has priority 5 and asks for 3, the asker for 2."""
    pods: list[Pod] = [pod("holder", cpu="3", priority=5), pod("asker", cpu="2", priority=priority)]
    at = {True: "n1", False: ""}
    pods = [changed(one, status=changed(one.status, nominated_node_name=at[one.key in nominated])) for one in pods]
    return World().add(node("n1:4"), *pods)


def held(round_state: RoundState, key: str) -> int | None:
    """Milli-cores that are reserved on n1 from a pod; None where nothing is."""
    snapshot: Snapshot = round_state.snapshot
    found = round_state.available_to(snapshot.pods[key])
    return int(found.reserved[0, snapshot.columns["cpu"]]) if found is not None else None


@pytest.mark.parametrize(("priority", "reserved"), [(4, 3000), (5, 3000), (6, None)])
def test_a_nomination_is_closed_to_pods_of_its_priority_or_below(priority: int, reserved: int | None) -> None:
    snapshot = world(HOLDER, priority=priority).snapshot()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    assert held(round_state, ASKER) == reserved
    assert held(round_state, HOLDER) is None, "its own"


def test_a_nomination_is_closed_to_the_tenants_that_lost_its_capacity() -> None:
    made = world(priority=6)
    asker = made.snapshot().pods[ASKER]
    loser = ShareQueue("", made.snapshot().quotas.user_of(asker))
    made.state.foresee_nomination(HOLDER, "n1", [loser])
    assert held(RoundState(Draft(made.snapshot()), KoordpyConfiguration()), ASKER) == 3000


@pytest.mark.parametrize(("waits_for", "reserved"), [((), 3000), (("default/first",), 3000), ((ASKER,), None)])
def test_a_place_of_this_round_is_closed_to_all_but_those_it_waits_for(waits_for: Any, reserved: int | None) -> None:
    snapshot = world(ASKER, priority=9).snapshot()
    draft = Draft(snapshot)
    round_state = RoundState(draft, KoordpyConfiguration())
    mark = draft.mark()
    draft.reserve({HOLDER: 0}, waits_for)
    assert held(round_state, ASKER) == reserved
    draft.undo(mark)
    assert held(round_state, ASKER) is None


def test_in_the_view_of_a_preemptor_a_nomination_takes_first_what_terminating_pods_free() -> None:
    made = world(HOLDER, priority=5)
    leaving = pod("leaving", at="n1", cpu="2")
    made.add(changed(leaving, metadata=changed(leaving.metadata, deletion_timestamp="1970-01-01T00:00:00Z")))
    round_state = RoundState(Draft(made.snapshot()), KoordpyConfiguration())
    assert held(round_state, ASKER) == 3000
    assert held(round_state.of_view(PREEMPTOR), ASKER) == 1000
