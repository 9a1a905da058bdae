"""How long a round of the loop lasts for those who come meanwhile: by a clock that is set by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from koordpy.engine.loop import MOST_CARRIED, Pacing
from koordpy.engine.queue import Entry, QueuedPod
from koordpy.engine.settings import EngineSettings
from koordpy.engine.turns import RecentSeconds
from koordpy.planning.patience import Patience


class Moment:
    """A clock and a queue, as far as a round's patience asks for them."""

    def __init__(self, *entries: Entry) -> None:
        self.now = 100.0
        planned = RecentSeconds(lambda: self.now, 0.5)
        self.queue: Any = SimpleNamespace(ahead=False, behind=list, deferred=list, last_added=99.0, planned=planned)
        self.patience: Patience = Pacing(self.queue, EngineSettings(), lambda: self.now).of(list(entries), self.now)

    def after(self, seconds: float) -> "Moment":
        self.now += seconds
        return self

    def comes(self) -> None:
        self.queue.last_added = self.now


def woken() -> Entry:
    return Entry("default/a", woken=True)


@pytest.mark.parametrize(("to_begin", "lasts"), [(0.01, 0.1), (0.3, 0.3)])
def test_a_round_of_those_that_wait_is_cut_once_it_lasted_as_long_as_it_took_to_begin(
    to_begin: float, lasts: float
) -> None:
    at = Moment(woken())
    at.comes()
    at.after(to_begin).comes()
    assert not at.patience.cut()
    at.patience.begins()
    assert not at.after(lasts - 0.005).patience.cut() and not at.patience.interrupts.came()
    assert at.after(0.01).patience.cut() and at.patience.interrupts.came()


def test_nobody_who_came_is_no_reason_to_cut_it() -> None:
    at = Moment(woken())
    at.patience.begins()
    assert not at.after(5.0).patience.cut()
    assert at.patience.spent()


def test_a_round_of_plain_pods_with_somebody_new_in_it_is_not_cut() -> None:
    at = Moment(woken(), Entry("default/b"))
    at.patience.begins()
    at.after(0.01).comes()
    assert not at.after(0.3).patience.cut()
    assert at.after(0.2).patience.spent() and not at.patience.cut()


def test_one_of_gangs_that_are_new_is_cut_between_two_of_them_and_a_search_in_it_ended_later() -> None:
    gang = Entry("gang:default/a", pods={"default/a-0": QueuedPod("default/a-0", "u", 0.0, 0, 0.0, light=False)})
    at = Moment(gang, Entry("default/b"))
    at.patience.begins()
    at.after(0.01).comes()
    assert not at.patience.cut() and not at.patience.interrupts.came()
    assert at.after(0.1).patience.cut() and not at.patience.interrupts.came()
    assert at.after(0.4).patience.interrupts.came()


def test_a_search_pauses_for_those_who_come_and_takes_its_time_without_what_they_take() -> None:
    at = Moment(Entry("default/a", deferred=99.0))
    assert at.patience.searches and at.patience.pauses is not None
    at.patience.begins()
    at.after(0.4).comes()
    at.patience.pauses.go_on(taken=False, seconds=0.2)
    assert not at.after(0.2).patience.spent() and at.patience.cut()
    at.patience.pauses.began = at.now
    assert not at.patience.cut(), "who came had a round"
    assert at.after(0.2).patience.spent()


@pytest.mark.parametrize("flag", ["left", "ended"])
def test_who_came_uses_up_the_time_of_a_round_that_pauses_where_no_round_beside_it_decides(flag: str) -> None:
    """Else it would be cut for nobody however many units it has, or begin searches that are given up at once."""
    at = Moment(woken())
    pauses = at.patience.pauses
    assert at.patience.searches and pauses is not None
    at.patience.begins()
    at.after(0.01).comes()
    assert not at.after(0.1).patience.spent()
    setattr(pauses, flag, True)
    assert at.patience.spent() and at.patience.cut()
    pauses.began, pauses.left = at.now, False
    assert at.patience.spent(), "what is kept from then on is not taken by a plan with victims"


def test_what_is_planned_beside_a_round_is_no_time_of_its_units_nor_of_its_beginning() -> None:
    at = Moment(Entry("default/a", deferred=99.0))
    assert at.patience.pauses is not None and at.patience.clock is not None
    began = at.patience.clock()
    at.after(3.0)
    at.patience.pauses.go_on(taken=False, seconds=3.0)
    assert at.patience.clock() == began
    at.patience.begins()
    at.comes()
    assert at.after(0.01).patience.cut()


def test_a_search_that_is_carried_through_does_not_pause() -> None:
    """Else what is placed beside it would have it begun again each time."""
    assert Moment(Entry("default/a", deferred=90.0, interrupted=1.9)).patience.pauses is not None
    assert Moment(Entry("default/a", deferred=90.0, interrupted=2.0)).patience.pauses is None
    assert (
        Moment(Entry("default/a", deferred=90.0, interrupted=2.0), Entry("default/b", deferred=90.0)).patience.pauses
        is not None
    )


def test_a_round_of_many_does_not_pause_where_a_plan_for_one_of_them_was_dropped() -> None:
    """Else what comes meanwhile would overtake it each time, though it needs no search."""
    gang = Entry("gang:default/b", pods={"default/b-0": QueuedPod("default/b-0", "u", 0.0, 0, 0.0, light=False)})
    assert Moment(woken(), gang).patience.pauses is not None
    gang.overtaken = True
    assert Moment(woken(), gang).patience.pauses is None and Moment(gang).patience.pauses is not None


def test_a_round_pauses_that_searches_and_does_nothing_else() -> None:
    waits, new = Entry("default/a", deferred=99.0), Entry("default/b")
    assert Moment(new).patience.pauses and Moment(waits, Entry("default/c", deferred=99.0)).patience.pauses
    assert not Moment(new, Entry("default/c")).patience.pauses and not Moment(waits, new).patience.pauses


@pytest.mark.parametrize(("given_up", "lasts"), [(2.0, 2.0), (5.0, 5.0), (60.0, MOST_CARRIED * 2.0)])
def test_a_search_goes_on_for_as_long_as_those_that_were_given_up_took_but_not_for_ever(
    given_up: float, lasts: float
) -> None:
    at = Moment(Entry("default/a", deferred=90.0, interrupted=given_up), Entry("default/b", deferred=90.0))
    at.patience.begins()
    at.after(0.01).comes()
    assert at.patience.interrupts.came()
    (carried,) = at.patience.firm.values()
    assert not at.after(lasts - 0.02).patience.firm["default/a"].came()
    assert at.after(0.02) and carried.came()
