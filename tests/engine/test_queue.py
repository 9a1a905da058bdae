# SPDX-License-Identifier: Apache-2.0
"""The queue by itself, on a clock that the test moves."""

from dataclasses import dataclass

import pytest

from koordpy.engine.queue_entry import LOAD_BYTES, Entry, QueuedPod, State, pod_load
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import GANG, Wake, helpful


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> UnitQueue:
    return UnitQueue(clock=clock)


def pod(name: str, *, priority: int = 0, created: float = 0.0, light: bool = True, uid: str = "") -> QueuedPod:
    return QueuedPod(f"default/{name}", uid or name, 0.0, priority, created, light)


def add(queue: UnitQueue, *names: str) -> None:
    for name in names:
        queue.add(f"default/{name}", pod(name))


def fail(queue: UnitQueue, name: str, *plugins: str, gated: bool = False, seconds: float = 0.0) -> None:
    """One attempt that ends with a denial by these filters."""
    (entry,) = [entry for entry in queue.take(light_pods=100) if entry.unit == f"default/{name}"]
    queue.settle_unschedulable(entry, wakes=helpful(plugins, gang=False), plugins=plugins, gated=gated, seconds=seconds)


def state(queue: UnitQueue, name: str) -> State:
    return next(entry.state for entry in queue.entries.values() if entry.unit == f"default/{name}")


def test_a_new_pod_is_due_at_once_and_taken_once(queue: UnitQueue) -> None:
    add(queue, "a")
    assert [entry.unit for entry in queue.take(light_pods=10)] == ["default/a"]
    assert queue.take(light_pods=10) == []


@pytest.mark.parametrize(
    ("plugins", "wake", "woken"),
    [
        (("NodeResourcesFit",), Wake.CAPACITY_FREED, True),
        (("NodeResourcesFit",), Wake.NODE_ADDED, True),
        (("NodeResourcesFit",), Wake.NODE_ALLOCATABLE, True),
        (("NodeResourcesFit",), Wake.NODE_LABELS, False),
        (("NodeResourcesFit",), Wake.POD_BOUND, False),
        (("TaintToleration",), Wake.CAPACITY_FREED, False),
        (("TaintToleration",), Wake.NODE_TAINTS, True),
        (("NodeAffinity",), Wake.NODE_LABELS, True),
        (("NodeAffinity",), Wake.NODE_TAINTS, False),
        (("InterPodAffinity",), Wake.POD_BOUND, True),
        (("PodTopologySpread",), Wake.POD_LABELS, True),
        (("NodeAffinity", "NodeResourcesFit"), Wake.CAPACITY_FREED, True),
        (("ANewFilter",), Wake.DEVICE, True),
        ((), Wake.CAPACITY_FREED, True),
        ((), Wake.POD_BOUND, False),
    ],
)
def test_only_a_change_that_can_help_wakes_a_unit(
    queue: UnitQueue, plugins: tuple[str, ...], wake: Wake, woken: bool
) -> None:
    add(queue, "a")
    fail(queue, "a", *plugins)
    queue.broadcast(wake, "test")
    queue.poll()
    assert queue.ready() is woken


def test_load_alone_never_helps_a_gang() -> None:
    assert not GANG & Wake.POD_BOUND
    assert GANG & Wake.NODE_LABELS


def test_a_change_during_the_attempt_counts_when_it_ends(queue: UnitQueue) -> None:
    add(queue, "a")
    (entry,) = queue.take(light_pods=10)
    queue.broadcast(Wake.CAPACITY_FREED, "test")
    queue.settle_unschedulable(
        entry, wakes=Wake.CAPACITY_FREED, plugins=("NodeResourcesFit",), gated=False, seconds=0.0
    )
    assert queue.ready()


def test_a_change_during_the_attempt_counts_also_when_it_was_polled_meanwhile(queue: UnitQueue) -> None:
    add(queue, "a")
    (entry,) = queue.take(light_pods=10)
    queue.broadcast(Wake.CAPACITY_FREED, "test")
    queue.poll()
    queue.settle_unschedulable(
        entry, wakes=Wake.CAPACITY_FREED, plugins=("NodeResourcesFit",), gated=False, seconds=0.0
    )
    assert queue.ready()


def test_a_change_before_the_attempt_does_not_count_again(queue: UnitQueue) -> None:
    add(queue, "a")
    queue.broadcast(Wake.CAPACITY_FREED, "test")
    queue.poll()
    fail(queue, "a", "NodeResourcesFit")
    assert state(queue, "a") is State.UNSCHEDULABLE


def test_a_member_that_comes_during_the_attempt_makes_the_unit_due_again(queue: UnitQueue) -> None:
    queue.add("gang:default/g", pod("g-0", light=False))
    (entry,) = queue.take(light_pods=10)
    queue.add("gang:default/g", pod("g-1", light=False))
    queue.settle_unschedulable(entry, wakes=GANG, plugins=(), gated=True, seconds=0.0)
    assert next(iter(queue.entries.values())).state is State.ACTIVE


def lacking(queue: UnitQueue, short: int) -> None:
    """One attempt of gang g that finds so many members missing."""
    (entry,) = queue.take(light_pods=10)
    queue.settle_unschedulable(entry, wakes=GANG, plugins=(), gated=True, seconds=0.0, short=short)


def test_a_gang_that_lacks_members_is_not_tried_for_each_that_comes_but_at_once_with_the_last(
    queue: UnitQueue, clock: Clock
) -> None:
    queue.add("gang:default/g", pod("g-0", light=False))
    lacking(queue, 3)
    for name in ("g-1", "g-2"):
        clock.now += 0.01
        queue.add("gang:default/g", pod(name, light=False))
        assert not queue.ready()
    queue.add("gang:default/g", pod("g-3", light=False))
    assert queue.ready()


def test_a_gang_that_still_lacks_members_is_looked_at_a_quarter_second_later(queue: UnitQueue, clock: Clock) -> None:
    queue.add("gang:default/g", pod("g-0", light=False))
    lacking(queue, 3)
    queue.add("gang:default/g", pod("g-1", light=False))
    due = queue.next_due()
    assert due is not None and due - clock.now == pytest.approx(0.25)
    clock.now += 0.26
    assert queue.ready()


def test_members_that_come_while_their_gang_is_found_short_count(queue: UnitQueue) -> None:
    queue.add("gang:default/g", pod("g-0", light=False))
    (entry,) = queue.take(light_pods=10)
    queue.add("gang:default/g", pod("g-1", light=False))
    queue.settle_unschedulable(entry, wakes=GANG, plugins=(), gated=True, seconds=0.0, short=1)
    due = queue.next_due()
    assert entry.state is State.ACTIVE and due is not None and due <= queue.clock() + 0.02


def test_a_member_that_goes_makes_its_gang_wait_for_another(queue: UnitQueue) -> None:
    queue.add("gang:default/g", pod("g-0", light=False))
    queue.add("gang:default/g", pod("g-1", light=False))
    lacking(queue, 1)
    queue.discard("default/g-1")
    queue.add("gang:default/g", pod("g-2", light=False))
    assert not queue.ready()
    queue.add("gang:default/g", pod("g-3", light=False))
    assert queue.ready()


def test_errors_back_off_from_one_second_doubling_to_ten(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a")
    for pause in (1, 2, 4, 8, 10, 10):
        (entry,) = queue.take(light_pods=10)
        queue.settle_error(entry)
        clock.now += pause - 0.01
        queue.poll()
        assert not queue.ready()
        clock.now += 0.02
        queue.poll()
        assert queue.ready()


def test_a_verdict_of_the_planner_ends_the_count_of_errors(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a")
    (entry,) = queue.take(light_pods=10)
    queue.settle_error(entry)
    clock.now += 1
    queue.poll()
    fail(queue, "a", "NodeResourcesFit")
    assert next(iter(queue.entries.values())).errors == 0


def test_an_unschedulable_unit_is_tried_after_five_minutes_without_any_event(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a")
    fail(queue, "a", "NodeResourcesFit")
    assert queue.next_due() == clock.now + 300
    clock.now += 300
    queue.poll()
    assert queue.ready()


def test_a_gated_unit_hears_of_itself_alone(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a")
    fail(queue, "a", gated=True)
    queue.broadcast(Wake.CAPACITY_FREED | Wake.NODE_ADDED, "test")
    queue.poll()
    assert state(queue, "a") is State.GATED
    queue.touch("default/a", "test")
    clock.now += 1
    assert queue.ready()


def test_a_costly_hopeless_unit_is_not_tried_more_than_a_tenth_of_the_time(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a")
    fail(queue, "a", "NodeResourcesFit", seconds=0.5)
    queue.broadcast(Wake.CAPACITY_FREED, "test")
    queue.poll()
    assert state(queue, "a") is State.ACTIVE
    assert not queue.ready()
    clock.now += 5
    assert queue.ready()


def test_light_pods_are_taken_in_parts_the_most_important_first_and_everything_else_at_once(queue: UnitQueue) -> None:
    for name, priority, created in (("late", 0, 2.0), ("early", 0, 1.0), ("vip", 9, 3.0)):
        queue.add(f"default/{name}", pod(name, priority=priority, created=created))
    queue.add("gang:default/g", pod("g-0", light=False))
    taken = {entry.unit for entry in queue.take(light_pods=2)}
    assert taken == {"gang:default/g", "default/vip", "default/early"}


def test_of_many_light_pods_namespaces_take_turns_by_what_their_pods_cost(queue: UnitQueue) -> None:
    for i in range(6):
        queue.add(f"evil/{i}", QueuedPod(f"evil/{i}", f"evil-{i}", 0.0, 0, i, light=True, load=4))
    for i in range(3):
        queue.add(f"good/{i}", QueuedPod(f"good/{i}", f"good-{i}", 0.0, 0, 100.0 + i, light=True))
    assert [entry.unit for entry in queue.take(light_pods=8)] == ["good/0", "good/1", "good/2", "evil/0"]
    assert [entry.unit for entry in queue.take(light_pods=8)] == ["evil/1", "evil/2"]
    assert [entry.unit for entry in queue.take(light_pods=3)] == ["evil/3"]


def test_the_load_of_a_pod_grows_with_what_it_says_of_others() -> None:
    assert [pod_load(b"x" * size) for size in (0, LOAD_BYTES - 1, LOAD_BYTES, 8192)] == [1, 1, 2, 33]


def test_a_pod_that_is_gone_leaves_no_trace(queue: UnitQueue) -> None:
    add(queue, "a")
    queue.discard("default/a")
    assert not queue.entries
    assert sum(queue.counts().values()) == 0


def test_a_pod_that_goes_during_the_attempt_is_not_settled_back(queue: UnitQueue) -> None:
    add(queue, "a")
    (entry,) = queue.take(light_pods=10)
    queue.discard("default/a")
    queue.settle_unschedulable(entry, wakes=GANG, plugins=(), gated=False, seconds=0.0)
    assert not queue.entries


def test_a_pod_recreated_under_its_name_during_the_attempt_is_tried(queue: UnitQueue) -> None:
    add(queue, "a")
    (entry,) = queue.take(light_pods=10)
    queue.discard("default/a")
    queue.add("default/a", pod("a", uid="another"))
    queue.settle_again(entry)
    assert queue.ready()


def test_pods_whose_binding_failed_come_back_after_a_pause_and_at_once_when_nothing_was_sent(
    queue: UnitQueue, clock: Clock
) -> None:
    queue.put_back("default/a", pod("a"), errors=1)
    queue.put_back("default/b", pod("b"), errors=0)
    assert [entry.unit for entry in queue.take(light_pods=10)] == ["default/b"]
    clock.now += 1
    queue.poll()
    assert [entry.unit for entry in queue.take(light_pods=10)] == ["default/a"]


def test_retry_after_of_the_server_is_honoured(queue: UnitQueue, clock: Clock) -> None:
    queue.put_back("default/a", pod("a"), errors=1, at_least_seconds=7)
    clock.now += 6.9
    queue.poll()
    assert not queue.ready()
    clock.now += 0.2
    queue.poll()
    assert queue.ready()


@pytest.mark.parametrize("what", ["a member comes", "the last member comes", "its gang is due", "the round ends"])
def test_retry_after_of_the_server_is_honoured_whatever_happens(queue: UnitQueue, clock: Clock, what: str) -> None:
    if what == "the round ends":
        queue.add("default/a", pod("b"))
        (entry,) = queue.take(light_pods=10)
    queue.put_back("default/a", pod("a"), errors=1, at_least_seconds=7)
    match what:
        case "the round ends":
            queue.settle_again(entry)
        case "its gang is due":
            queue.hurry("default/a", "StaleGang")
        case "the last member comes":
            (one,) = queue.entries.values()
            one.complete_pods = 2
            queue.add("default/a", pod("b"))
        case _:
            queue.add("default/a", pod("b"))
    clock.now += 6.9
    queue.poll()
    assert not queue.ready()
    clock.now += 0.2
    queue.poll()
    assert queue.ready()


def test_nobody_waits_for_a_day_because_a_server_says_so(queue: UnitQueue, clock: Clock) -> None:
    queue.put_back("default/a", pod("a"), errors=1, at_least_seconds=86_400)
    clock.now += 300.1
    queue.poll()
    assert queue.ready()


def test_the_pause_doubles_as_bindings_of_a_pod_fail_one_after_the_other(queue: UnitQueue, clock: Clock) -> None:
    failing, pauses = pod("a"), []
    for _ in range(6):
        queue.put_back("default/a", failing, errors=1)
        pauses.append((queue.next_due() or 0.0) - clock.now)
        clock.now += pauses[-1]
        queue.poll()
        assert len(queue.take(light_pods=10)) == 1
        # placed: its Binding is sent
        queue.discard("default/a")
        (entry,) = queue.entries.values()
        queue.settle_again(entry)
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_units_move_when_gangs_are_linked(queue: UnitQueue) -> None:
    queue.add("gang:default/a", pod("a-0", light=False))
    queue.add("gang:default/b", pod("b-0", light=False))
    queue.regroup(lambda key: "gang:default/a,default/b")
    (entry,) = queue.take(light_pods=10)
    assert set(entry.pods) == {"default/a-0", "default/b-0"}


def test_units_move_while_they_are_planned(queue: UnitQueue) -> None:
    """The ids are not read anew when the round has ended: nothing would be planned under the old one for ever."""
    queue.add("gang:default/a", pod("a-0", light=False))
    (old,) = queue.take(light_pods=10)
    queue.add("gang:default/b", pod("b-0", light=False))
    queue.regroup(lambda key: "gang:default/a,default/b")
    (entry,) = queue.take(light_pods=10)
    assert set(entry.pods) == {"default/a-0", "default/b-0"}
    queue.settle_again(old)
    assert [one.unit for one in queue.entries.values()] == ["gang:default/a,default/b"]


def test_room_that_a_round_gives_up_wakes_who_waits_and_who_is_in_another_round_but_not_its_own(
    queue: UnitQueue,
) -> None:
    add(queue, "waits")
    fail(queue, "waits", "NodeResourcesFit")
    add(queue, "first")
    (first,) = queue.take(light_pods=10)
    add(queue, "late")
    (late,) = queue.take(light_pods=10)
    queue.wake_waiting(Wake.CAPACITY_FREED, "AwaitedRoomGivenUp", planned={"default/late"})
    for entry in (late, first):
        queue.settle_unschedulable(entry, wakes=Wake.CAPACITY_FREED, plugins=(), gated=False, seconds=0.0)
    states = [state(queue, name) for name in ("waits", "first", "late")]
    assert states == [State.ACTIVE, State.ACTIVE, State.UNSCHEDULABLE]


def defer(queue: UnitQueue, *names: str) -> None:
    """A round that leaves these units to a search, and is overtaken for all others."""
    taken = {entry.unit: entry for entry in queue.take(light_pods=100)}
    for name in names:
        queue.settle_for_search(taken.pop(f"default/{name}"))
    for entry in taken.values():
        queue.settle_again(entry)


def named(entries: list[Entry]) -> list[str]:
    return [entry.unit.removeprefix("default/") for entry in entries]


def units(queue: UnitQueue) -> list[str]:
    return named(queue.take(light_pods=100))


def test_units_that_wait_for_a_search_are_in_no_round(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a", "b")
    assert not queue.has_searches()
    defer(queue, "a")
    assert queue.has_searches() and queue.ready()
    assert units(queue) == ["b"]
    assert not queue.ready() and queue.next_due() is None
    assert named(queue.take_searches()) == ["a"]
    assert not queue.has_searches()


def test_an_answer_ends_the_wait_for_a_search_and_deferrals_are_no_attempts(queue: UnitQueue) -> None:
    add(queue, "a")
    defer(queue, "a")
    for _ in range(3):
        (entry,) = queue.take_searches()
        queue.settle_for_search(entry)
    (entry,) = queue.take_searches()
    queue.settle_unschedulable(entry, wakes=Wake.CAPACITY_FREED, plugins=(), gated=False, seconds=0.0)
    assert (entry.search, entry.attempts) == (None, 1)
    assert [pod.attempts for pod in entry.pods.values()] == [1]


@pytest.mark.parametrize("change", ["PodGroupUpdate", "a new member"])
def test_a_change_of_a_unit_takes_it_from_its_search_to_the_next_round(queue: UnitQueue, change: str) -> None:
    add(queue, "a", "b")
    defer(queue, "a", "b")
    if change == "a new member":
        queue.add("default/a", pod("a2"))
    else:
        queue.touch("default/a", change)
    queue.touch("default/b", "LesserBound")
    assert units(queue) == ["a"]
    assert named(queue.take_searches()) == ["b"]


def test_units_that_move_to_another_gang_group_leave_no_search(queue: UnitQueue) -> None:
    add(queue, "a", "b")
    defer(queue, "a", "b")
    assert queue.has_searches()
    queue.regroup(lambda key: "gang:default/both")
    assert queue.take_searches() == []
    assert not queue.has_searches()
    assert [entry.unit for entry in queue.take(light_pods=100)] == ["gang:default/both"]


def test_a_change_during_a_search_that_did_not_decide_takes_the_unit_to_the_next_round(queue: UnitQueue) -> None:
    add(queue, "a")
    defer(queue, "a")
    (entry,) = queue.take_searches()
    queue.touch("default/a", "PodGroupUpdate")
    queue.settle_for_search(entry)
    assert units(queue) == ["a"]


def test_a_unit_with_a_stale_plan_is_searched_for_next_and_alone(queue: UnitQueue) -> None:
    add(queue, "a", "b", "c")
    defer(queue, "a", "b", "c")
    a, b, c = queue.take_searches()
    queue.settle_for_search(b, stale=True)
    for entry in (a, c):
        queue.settle_for_search(entry)
    for stale_plans in (1, 2):
        assert b.search is not None and b.search.stale_plans == stale_plans
        assert queue.take_searches() == [b]
        queue.settle_for_search(b, stale=True)
    assert queue.take_searches() == [b]
    queue.settle_unschedulable(b, wakes=Wake.CAPACITY_FREED, plugins=(), gated=False, seconds=0.0)
    assert named(queue.take_searches()) == ["a", "c"]


def test_after_the_planner_failed_one_unit_is_searched_for_at_a_time(queue: UnitQueue) -> None:
    add(queue, "a", "b")
    defer(queue, "a", "b")
    assert named(queue.take_searches(alone=True)) == ["a"]


def test_no_unit_is_searched_for_again_before_all_others_had_an_answer(queue: UnitQueue, clock: Clock) -> None:
    add(queue, "a", "b", "c")
    defer(queue, "a", "b", "c")
    asked = []
    for _ in range(6):
        clock.now += 1.0
        taken = {entry.unit: entry for entry in queue.take_searches()}
        first = min(taken)  # the first of the queue is woken at once, whenever it has its answer
        asked.append(first.removeprefix("default/"))
        entry = taken.pop(first)
        queue.broadcast(Wake.CAPACITY_FREED, "test")
        queue.settle_unschedulable(
            entry, wakes=Wake.CAPACITY_FREED, plugins=("NodeResourcesFit",), gated=False, seconds=0.0
        )
        for other in taken.values():
            queue.settle_for_search(other)
        queue.poll()
        defer(queue, *units_due(queue))
    assert asked == ["a", "b", "c", "a", "b", "c"]


def units_due(queue: UnitQueue) -> list[str]:
    active = (entry for entry in queue.entries.values() if entry.state is State.ACTIVE and entry.search is None)
    return [entry.unit.removeprefix("default/") for entry in active]


def test_a_unit_that_its_round_did_not_reach_is_in_the_next_round(queue: UnitQueue) -> None:
    add(queue, "a")
    (entry,) = queue.take(light_pods=100)
    queue.settle_for_round(entry)
    (entry,) = queue.take(light_pods=100)
    assert (entry.search, entry.attempts) == (None, 1)


def test_who_was_passed_over_has_its_turn_before_others_of_its_namespace_and_priority_have_a_second(
    queue: UnitQueue, clock: Clock
) -> None:
    add(queue, "a", "b", "c")
    queue.add("default/urgent", pod("urgent", priority=9))
    answers = dict.fromkeys(("default/a", "default/urgent"), "refused")
    turns = []
    for also in ("default/b", "default/c", "default/a", ""):
        taken = queue.take(light_pods=100)
        turns.append({entry.unit.rpartition("/")[2] for entry in taken})
        for entry in taken:
            if entry.unit in answers:
                queue.settle_unschedulable(entry, wakes=Wake.CAPACITY_FREED, plugins=(), gated=False, seconds=0.0)
            else:
                queue.settle_for_round(entry, passed_over=True)
        answers[also] = "refused"
        clock.now += 1.0
        queue.broadcast(Wake.CAPACITY_FREED, "test")
        queue.poll()
    assert turns == [{"a", "b", "c", "urgent"}, {"b", "c", "urgent"}, {"c", "urgent"}, {"a", "b", "c", "urgent"}]


def test_it_is_known_who_came_since_the_units_were_taken(queue: UnitQueue) -> None:
    add(queue, "a")
    queue.take(light_pods=100)
    assert not queue.came
    for priority in (5, 9, 7):
        queue.add(f"default/{priority}", pod(str(priority), priority=priority))
    assert queue.came == {"default": 9}
