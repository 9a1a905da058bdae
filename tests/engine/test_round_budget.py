# SPDX-License-Identifier: Apache-2.0
"""How long rounds and searches plan while other pods are created: by a clock that is set by hand."""

import pytest
from msgspec.structs import replace

from koordpy.config.configuration import KoordpyConfiguration, Planning
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.queue_entry import QueuedPod
from koordpy.engine.round_budget import round_budget, search_budget
from koordpy.engine.scheduling_queue import UnitQueue


class Moment:
    """A clock, a queue and the budget of a round that begins at once."""

    def __init__(self, least_seconds: float = 0.1) -> None:
        self.now = 100.0
        self.queue = UnitQueue(clock=lambda: self.now)
        settings = EngineSettings(newcomer_seconds=least_seconds)
        self.budget = round_budget(self.queue, settings, lambda: self.now, gives_back=True)

    def after(self, seconds: float) -> "Moment":
        self.now += seconds
        return self

    def comes(self) -> None:
        self.queue.add("default/p", QueuedPod("default/p", "uid", self.now, 0, 0.0, light=True))


@pytest.mark.parametrize(("to_begin", "lasts"), [(0.01, 0.1), (0.3, 0.3)])
def test_a_round_ends_for_pods_that_are_created_once_it_planned_as_long_as_it_took_to_begin(
    to_begin: float, lasts: float
) -> None:
    at = Moment()
    at.after(to_begin).comes()
    assert not at.budget.ends()
    at.budget.begins()
    assert not at.after(lasts - 0.005).budget.ends()
    assert at.after(0.01).budget.ends()
    assert at.budget.shared() == pytest.approx(lasts)


def test_a_round_for_which_no_other_pod_waits_does_not_end() -> None:
    at = Moment()
    at.budget.begins()
    assert not at.after(5.0).budget.ends()


def test_a_round_searches_for_nothing_and_knows_which_namespaces_wait() -> None:
    at = Moment()
    at.after(0.01).comes()
    assert not at.budget.searches and at.budget.gives_back
    assert at.budget.came() == {"default": 0}


def test_a_search_ends_after_round_seconds_whatever_waits() -> None:
    now = 100.0
    config = replace(KoordpyConfiguration(), planning=Planning(round_seconds=0.5))
    budget = search_budget(EngineSettings(config), lambda: now)
    assert budget.searches and not budget.gives_back
    now += 0.4
    assert not budget.ends()
    now += 0.2
    assert budget.ends()
