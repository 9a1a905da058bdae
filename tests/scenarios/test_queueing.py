# SPDX-License-Identifier: Apache-2.0
"""Queueing among gangs (gang-network.md 8), and reserve-and-backfill: who waits, who goes ahead, what is promised."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Affinity,
    LabelSelector,
    Node,
    OwnerReference,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodStatus,
)
from koordpy.config.configuration import KoordpyConfiguration, Queue
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.plan.round_plan import GangStatus, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.planner.queue.backfill import moment
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, messages, node, nodes_of, pod, wish
from tests.scenarios.npus import npu_node, npu_pod

HOUR = 3600.0
ON = KoordpyConfiguration(queue=Queue(backfill=True))
EPOCH = 1767225600.0
"""2026-01-01T00:00:00Z"""


def runs(length: str) -> dict[str, str]:
    return {keys.MAX_RUNTIME: length}


def gang(name: str, size: int, *, length: str = "", need: int | None = None, **settings: Any) -> list[Any]:
    """A PodGroup of `size` pods name-0, name-1, ...; `length` is its max-runtime."""
    notes = {**(runs(length) if length else {}), **settings.pop("wish", {})}
    made = group(name, size if need is None else need, notes)
    return [made, *(pod(f"{name}-{i}", gang=name, **settings) for i in range(size))]


def running(name: str, *nodes: str, length: str = "", began: float = 0.0, **settings: Any) -> list[Any]:
    """A gang that runs, one pod on each of the nodes."""
    made = [pod(f"{name}-{i}", gang=name, at=at, **settings) for i, at in enumerate(nodes)]
    start = moment(EPOCH + began)
    return [
        group(name, len(nodes), runs(length) if length else {}),
        *(replace(one, status=PodStatus(phase="Running", start_time=start)) for one in made),
    ]


def plan(world: World, *, at: float = 0.0, config: KoordpyConfiguration = ON, **settings: Any) -> RoundPlan:
    return plan_round(world.state.snapshot(EPOCH + at), config, **settings)


# -- without backfill -------------------------------------------------------------------------------------------------


def test_a_gang_that_does_not_fit_holds_nothing_and_blocks_nobody() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2; b1: n3 n4}"))
    world.add(gang("big", 5, created=0), gang("small", 2, created=1), gang("next", 2, created=2))
    done = world.plan()
    assert set(bound(done)) == {"small-0", "small-1", "next-0", "next-1"}
    assert messages(done)["big-0"] == (
        "gang default/big: never fits: the cluster has room for 4 members, 5 are required. "
        "0/4 nodes are available: 4 Insufficient cpu. gang default/big: needed 5, available in the cluster: 0."
    )


def test_of_two_gangs_that_want_one_domain_the_first_in_order_is_placed_and_the_other_told_what_is_left() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2 n3; b1: n4}"))
    block = wish({"blockLayer": "Must"})
    world.add(gang("late", 2, created=5, wish=block), gang("early", 2, created=1, wish=block))
    done = world.plan()
    assert bound(done) == {"early-0": "n1", "early-1": "n2"}
    assert set(messages(done)) == {"late-0", "late-1"}
    first = "gang default/late: needed 2, available in blockLayer: s/b0: 1, s/b1: 1. 0/4 nodes are available: "
    assert messages(done)["late-0"].startswith(first)
    assert {r.name: r.status for r in done.gangs} == {
        "default/early": GangStatus.SCHEDULED,
        "default/late": GangStatus.UNSCHEDULABLE,
    }


# -- the reservation --------------------------------------------------------------------------------------------------


def busy() -> World:
    """Four nodes of one slot; n1 and n2 are left after an hour, n3 after two, n4 is free."""
    world = World().add([node(f"n{i}") for i in range(1, 5)])
    return world.add(running("a", "n1", "n2", length="1h"), running("b", "n3", length="2h"))


def test_the_first_that_lacks_room_is_promised_the_earliest_time_it_can_start() -> None:
    done = plan(busy().add(gang("big", 3)))
    assert bound(done) == {}
    assert messages(done)["big-0"] == (
        "gang default/big: needed 3, available in the cluster: 1. 0/4 nodes are available: 1 node(s) cannot hold the "
        "whole gang, 3 Insufficient cpu. start promised at 2026-01-01T01:00:00Z."
    )
    assert done.reservation is not None and done.reservation.start == EPOCH + HOUR
    assert set(done.reservation.nodes.values()) == {"n1", "n2", "n4"}


def test_one_behind_it_that_ends_in_time_may_use_the_reserved_room() -> None:
    done = plan(busy().add(gang("big", 3), gang("short", 1, length="1h", created=1)))
    assert bound(done) == {"short-0": "n4"}


@pytest.mark.parametrize("length", ["", "61m", "never", "-1h"])
def test_one_behind_it_that_ends_late_or_does_not_say_may_not(length: str) -> None:
    done = plan(busy().add(gang("big", 3), gang("long", 1, length=length, created=1)))
    assert bound(done) == {}
    assert messages(done)["long-0"] == (
        "gang default/long: needed 1, available in the cluster: 0. 0/4 nodes are available: 4 Insufficient cpu. "
        "room on 1 node is reserved for gang default/big until 2026-01-01T01:00:00Z."
    )
    unreadable = [text for name, text in done.warnings if name == "PodGroup/default/long"]
    assert len(unreadable) == (length in ("never", "-1h"))
    assert all(text.startswith(f"annotation {keys.MAX_RUNTIME} cannot be read: ") for text in unreadable)


def test_plain_pods_wait_and_fill_alike() -> None:
    world = busy().add(gang("big", 3), pod("long", created=1), pod("short", created=2, annotations=runs("30m")))
    done = plan(world)
    assert bound(done) == {"short": "n4"}
    assert messages(done)["long"] == (
        "0/4 nodes are available: 4 Insufficient cpu. room on 1 node is reserved for gang default/big until "
        "2026-01-01T01:00:00Z."
    )


def test_a_plain_pod_may_be_the_one_that_is_promised_a_start() -> None:
    world = World().add(node("n1:4"), running("a", "n1", length="90s", cpu="3"))
    done = plan(world.add(pod("wide", cpu="2"), pod("narrow", created=1)))
    assert messages(done)["wide"] == (
        "0/1 nodes are available: 1 Insufficient cpu. start promised at 2026-01-01T00:01:30Z."
    )
    # one of the four slots is free now, and two are left beside the reservation then
    assert bound(done) == {"narrow": "n1"}


def test_room_beside_the_reservation_is_free_for_all() -> None:
    world = World().add(node("n1:4"), node("n2:4"), running("a", "n1", length="1h", cpu="3"))
    world.add(running("b", "n2", cpu="2")).add(gang("big", 3, cpu="2"), gang("long", 4, need=1, created=1))
    done = plan(world)
    # at one o'clock n1 has 4 free and n2 2: all of it is the large gang's; until then 1 and 2 are free
    assert done.reservation is not None and bound(done) == {}
    world.add(node("n3:1"))
    assert bound(plan(world)) == {"long-0": "n3"}


def test_chips_beside_the_reservation_are_free_for_all() -> None:
    world = World().add(npu_node("a"), npu_pod("ra", 2, at="a", holds=(0, 1), annotations=runs("1h")))
    world.add(npu_pod("rb", 3, at="a", holds=(4, 5, 6)), npu_pod("big", 4), npu_pod("one", 1, created=1))
    done = plan(world)
    assert messages(done)["big"].endswith(" start promised at 2026-01-01T01:00:00Z.")
    assert bound(done) == {"one": "a"}


def test_without_known_ends_there_is_no_promise_and_nobody_is_held_back() -> None:
    world = World().add([node(f"n{i}") for i in range(1, 4)]).add(running("a", "n1", "n2"))
    done = plan(world.add(gang("big", 2), gang("long", 1, created=1)))
    assert bound(done) == {"long-0": "n3"} and done.reservation is None
    assert messages(done)["big-0"].endswith(" no start can be promised: too few running pods say when they end.")


@pytest.mark.parametrize("deleted", [True, False])
def test_a_pod_that_is_being_deleted_has_no_known_end(deleted: bool) -> None:
    """Whatever its annotation says: it ends when it is gone."""
    stuck = "2025-12-31T23:00:00Z" if deleted else None
    a, b = (pod(name, at=at, annotations=runs("2h")) for name, at in (("a", "n1"), ("b", "n2")))
    b = replace(b, metadata=replace(b.metadata, deletion_timestamp=stuck))
    done = plan(World().add([node(f"n{i}") for i in range(1, 4)], a, b, gang("big", 3), gang("long", 1, created=1)))
    assert (done.reservation is None) == deleted and bound(done) == ({"long-0": "n3"} if deleted else {})


def test_only_the_first_that_lacks_room_is_looked_at() -> None:
    world = World().add(node("n1"), node("n2"), node("n3:2"), running("a", "n1", "n2"))
    world.add(running("b", "n3", length="1h", cpu="2"))
    done = plan(world.add(gang("big", 2, cpu="1", need=4), gang("big", 4, length="9h"), gang("next", 2, created=1)))
    assert messages(done)["big-0"].endswith("too few running pods say when they end.")
    assert done.reservation is None and "promise" not in messages(done)["next-0"]


def test_explain_says_so_where_there_is_no_promise() -> None:
    world = World().add([node(f"n{i}") for i in range(1, 4)]).add(running("a", "n1", "n2"), gang("big", 2))
    found = explain(world.state.snapshot(EPOCH), ON, "default/big-0")
    assert found.message == "no start can be promised: too few running pods say when they end"


def test_one_that_does_not_fit_an_empty_cluster_reserves_nothing_and_the_next_one_does() -> None:
    done = plan(busy().add(gang("never", 9), gang("big", 3, created=1), gang("later", 4, created=2)))
    assert done.reservation is not None and done.reservation.unit == "gang:default/big"
    assert "promised" not in messages(done)["never-0"] and "promise" not in messages(done)["later-0"]


def test_pods_of_daemon_sets_are_there_for_whoever_is_promised_a_start() -> None:
    agent = pod("agent", at="n1", cpu="1")
    owner = OwnerReference(kind="DaemonSet", name="agent", controller=True)
    world = World().add(node("n1:4"), replace(agent, metadata=replace(agent.metadata, owner_references=[owner])))
    world.add(running("a", "n1", length="1h", cpu="2"), pod("never", cpu="4"), pod("big", cpu="3", created=1))
    done = plan(world)
    assert done.reservation is not None and done.reservation.unit == "default/big"
    assert "promise" not in messages(done)["never"]


def test_a_gate_reserves_nothing() -> None:
    world = busy().add(group("waits", 4), gang_pods("waits", 3, "w"))
    done = plan(world.add(gang("big", 3, created=1)))
    assert done.reservation is not None and done.reservation.unit == "gang:default/big"


def test_a_gang_runs_from_its_earliest_pod_and_a_late_word_counts_for_as_long_again() -> None:
    world = World().add(node("n1")).add(running("a", "n1", length="1h", began=-1800)).add(gang("big", 1))

    def promised(at: float) -> str:
        return messages(plan(world, at=at))["big-0"].rpartition("cpu. ")[2]

    assert promised(0) == "start promised at 2026-01-01T00:30:00Z."
    assert promised(1800 + 60) == "start promised at 2026-01-01T00:31:00Z."
    assert promised(1800 + HOUR).startswith("no start can be promised")


def test_the_reserved_place_is_in_one_domain_where_the_gang_must_gather() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2; b1: n3 n4}"))
    world.add(running("a", "n1", length="1h"), running("b", "n3", length="3h"), running("c", "n4", length="2h"))
    done = plan(world.add(gang("big", 2, wish=wish({"blockLayer": "Must"})), gang("long", 1, created=1)))
    assert done.reservation is not None
    assert (done.reservation.start, set(done.reservation.nodes.values())) == (EPOCH + HOUR, {"n1", "n2"})
    assert bound(done) == {}


def test_members_beside_the_unit_in_its_own_gang_do_not_end_for_it() -> None:
    world = World().add(node("n1"), node("n2"), group("g", 2, runs("1h")))
    world.add(pod("g-0", gang="g", at="n1"), pod("g-1", gang="g"), pod("g-2", gang="g"))
    world.add(running("a", "n2", length="2h"))
    done = plan(world)
    assert done.reservation is not None and set(done.reservation.nodes.values()) == {"n2"}


def test_a_pod_that_would_repel_the_promised_one_is_held_back_though_it_takes_no_room_of_it() -> None:
    apart = Affinity(
        pod_anti_affinity=PodAffinity(
            required=[
                PodAffinityTerm(
                    label_selector=LabelSelector(match_labels={"app": "big"}), topology_key="kubernetes.io/hostname"
                )
            ]
        )
    )
    world = World().add(node("n1:4"), running("a", "n1", length="1h", cpu="3"))
    world.add(pod("wide", cpu="2", labels={"app": "big"}), pod("loner", created=1, affinity=apart))
    done = plan(world)
    assert bound(done) == {}
    assert messages(done)["loner"] == (
        "0/1 nodes are available: 1 node(s) are needed for a promised start. it would delay the promised start "
        "of pod default/wide at 2026-01-01T01:00:00Z."
    )


def test_equal_pods_behind_the_promised_one_are_told_of_its_room_not_of_a_promise() -> None:
    world = World().add(node("n1:4"), running("a", "n1", length="1h", cpu="3"))
    done = plan(world.add([pod(f"wide-{i}", cpu="2", created=i) for i in range(3)]))
    said = messages(done)
    assert said["wide-0"].endswith("Insufficient cpu. start promised at 2026-01-01T01:00:00Z.")
    assert "promise" not in said["wide-1"] + said["wide-2"] and bound(done) == {}


OTHER_USER = {keys.QUOTA_USER: "someone"}


@pytest.mark.parametrize(("low", "victims"), [(0, ["default/low"]), (6, [])])
def test_a_pod_behind_a_promise_evicts_where_it_delays_nobody(low: int, victims: list[str]) -> None:
    """The least of the pods in the way is the one that goes; where that one's end was counted on, none does."""
    world = World().add(node("n1"), node("n2"), running("a", "n1", length="1h", priority=5))
    world.add(pod("low", at="n2", priority=low), gang("big", 1))
    done = plan(world.add(pod("high", created=1, priority=9, labels=OTHER_USER)))
    assert done.reservation is not None and set(done.reservation.nodes.values()) == {"n1"}
    assert [one.pod_key for one in done.evictions] == victims
    assert messages(done)["big-0"].endswith(" start promised at 2026-01-01T01:00:00Z.")
    assert ("high" in bound(done)) == bool(victims)


def test_a_round_of_some_units_keeps_the_room_of_those_that_wait_elsewhere() -> None:
    world = busy().add(gang("big", 3), gang("long", 1, created=1), gang("short", 1, length="10m", created=2))
    done = plan(world, only=frozenset(["gang:default/long", "gang:default/short"]))
    assert bound(done) == {"short-0": "n4"}
    assert {one.unit for one in done.units} == {"gang:default/long", "gang:default/short"}
    assert done.reservation is not None and done.reservation.unit == "gang:default/big"


def test_explain_shows_the_promise() -> None:
    world = busy().add(gang("big", 3), gang("other", 3, created=1))
    snapshot = world.state.snapshot(EPOCH)
    found = explain(snapshot, ON, "default/big-0")
    assert found.message == "start promised at 2026-01-01T01:00:00Z"
    assert "it waited until 2026-01-01T01:00:00Z: by then enough running pods will have completed" in found.would_fit_if
    assert explain(snapshot, ON, "default/other-0").message == (
        "room on 1 node is reserved for gang default/big until 2026-01-01T01:00:00Z"
    )
    assert explain(snapshot, KoordpyConfiguration(), "default/big-0").message == ""


# -- properties -------------------------------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Node], list[list[Any]]]:
    """Nodes, and gangs with a length each: some run, the others come in this order."""
    blocks = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=2))
    text = "; ".join(
        f"b{b}: " + " ".join(f"n{b}{i}:{slots}" for i, slots in enumerate(row)) for b, row in enumerate(blocks)
    )
    made = nodes_of("s{" + text + "}")
    gangs = []
    for i in range(draw(st.integers(2, 7))):
        size = draw(st.integers(1, 4))
        length = draw(st.sampled_from(["", "10m", "20m", "30m", "45m", "60m"]))
        notes = wish({"blockLayer": "Must"}) if draw(st.booleans()) else {}
        cpu = draw(st.sampled_from(["1", "1", "2"]))
        gangs.append(gang(f"g{i}", size, length=length, created=i, wish=notes, cpu=cpu))
    return made, gangs


class Play:
    """A cluster on which gangs end exactly when they say."""

    def __init__(self, nodes: Iterable[Node], config: KoordpyConfiguration) -> None:
        self.state, self.config, self.at = make_state(), config, 0.0
        self.starts: dict[str, float] = {}
        for one in (TWO_LAYERS, *nodes):
            self.state.upsert(one)

    def add(self, objects: Iterable[Any]) -> None:
        for one in objects:
            self.state.upsert(one)

    def round(self) -> RoundPlan:
        """Plans, and starts what is placed."""
        done = plan_round(self.state.snapshot(EPOCH + self.at), self.config)
        for one in done.placements:
            self.state.bind(one.pod_key, one.node, dict(one.annotations))
            info = self.state.pod(one.pod_key)
            assert info is not None and info.gang is not None
            status = PodStatus(phase="Running", start_time=moment(EPOCH + self.at))
            self.state.upsert(replace(info.pod, status=status))
            self.starts.setdefault(info.gang.key, self.at)
        return done

    def end_of(self, key: str) -> float | None:
        length = self.state.gangs.groups[key].metadata.annotations.get(keys.MAX_RUNTIME)
        return self.starts[key] + 60.0 * int(length.removesuffix("m")) if length else None

    def next_end(self) -> float | None:
        ends = [end for key in self.starts if (end := self.end_of(key)) is not None]
        return min(ends, default=None)

    def go_on(self, until: float) -> None:
        self.at = until
        for key in [key for key in self.starts if (end := self.end_of(key)) is not None and end <= until]:
            del self.starts[key]
            for info in list(self.state.pods()):
                if info.gang is not None and info.gang.key == key:
                    self.state.delete(Pod, info.key)


@given(worlds())
@settings(max_examples=50, deadline=None)
def test_backfilling_never_delays_a_promised_start(world: tuple[list[Node], list[list[Any]]]) -> None:
    nodes, gangs = world
    play = Play(nodes, ON)
    promised: dict[str, float] = {}
    waiting = list(gangs)
    for _ in range(60):
        if waiting:
            play.add(waiting.pop(0))
        done = play.round()
        placed = {one.unit for one in done.placements}
        for unit, start in promised.items():
            assert unit in placed or play.at + EPOCH < start, f"{unit} was promised {moment(start)}"
        held = done.reservation
        promised = {unit: start for unit, start in promised.items() if unit not in placed}
        if held is not None:
            assert held.start <= promised.get(held.unit, held.start)
            promised[held.unit] = held.start
        over = play.next_end()
        if waiting:
            step = play.at + 300
            play.go_on(min(step, over) if over is not None else step)
        elif over is not None:
            play.go_on(over)
        else:
            break


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_what_is_placed_now_leaves_the_promised_room_and_nothing_is_overbooked(
    world: tuple[list[Node], list[list[Any]]],
) -> None:
    nodes, gangs = world
    play = Play(nodes, ON)
    for one in gangs[: len(gangs) // 2]:
        play.add(one)
    play.round()
    for one in gangs[len(gangs) // 2 :]:
        play.add(one)
    play.at = 60.0
    done = play.round()
    room = {one.metadata.name: int(one.status.allocatable["cpu"]) for one in nodes}
    used = dict.fromkeys(room, 0)
    then = dict.fromkeys(room, 0)
    held = done.reservation
    for info in play.state.pods():
        if info.bound:
            cpu = info.requests["cpu"] // 1000
            used[info.node] += cpu
            assert info.gang is not None
            end = play.end_of(info.gang.key)
            then[info.node] += 0 if held is not None and end is not None and end + EPOCH <= held.start else cpu
    assert all(used[name] <= room[name] for name in room)
    if held is not None:
        for key, name in held.nodes.items():
            waiting = play.state.pod(key)
            assert waiting is not None and not waiting.bound
            then[name] += waiting.requests["cpu"] // 1000
        assert all(then[name] <= room[name] for name in room)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_switched_off_lengths_change_nothing(world: tuple[list[Node], list[list[Any]]]) -> None:
    nodes, gangs = world
    told, silent = Play(nodes, KoordpyConfiguration()), Play(nodes, KoordpyConfiguration())
    for one in gangs:
        told.add(one)
        notes = {k: v for k, v in one[0].metadata.annotations.items() if k != keys.MAX_RUNTIME}
        silent.add([replace(one[0], metadata=replace(one[0].metadata, annotations=notes)), *one[1:]])
    assert told.round() == silent.round()
