# SPDX-License-Identifier: Apache-2.0
"""How long the GPUs of a pod that is gone are kept, by what is known of its processes."""

import pytest

from koordpy.agent.plugin.delivery_ledger import Delivery
from koordpy.agent.plugin.orphans import SETTLE_SECONDS, Orphans

GONE = Delivery(("g0",), ("g0",), ("uid", "c"), "default/a", grace_seconds=20.0)


class Node:
    """A clock, and what control groups tell of the pod: None where they tell nothing."""

    def __init__(self, processes: bool | None) -> None:
        self.processes, self.now = processes, 1000.0
        self.orphans = Orphans(lambda uid: self.processes, clock=lambda: self.now)

    def after(self, seconds: float, *, ended: bool = False) -> bool:
        self.now += seconds
        return self.orphans.may_run(GONE, ended)


def test_a_pod_runs_as_long_as_it_has_processes_however_long_that_is() -> None:
    node = Node(processes=True)
    assert node.after(0) and node.after(10_000) and node.after(1, ended=True)
    node.processes = False
    assert not node.after(0)


def test_no_process_is_a_proof_only_of_a_pod_that_had_one() -> None:
    node = Node(processes=True)
    node.orphans.look(["uid"])
    node.processes = False
    assert not node.after(0)


def test_a_pod_that_was_deleted_before_it_started_may_start_for_a_moment() -> None:
    node = Node(processes=False)
    assert node.after(0) and node.after(SETTLE_SECONDS - 1)
    assert not node.after(1)


def test_without_control_groups_the_grace_period_passes_and_then_the_time_for_the_kill() -> None:
    node = Node(processes=None)
    assert node.after(0) and node.after(20 + SETTLE_SECONDS - 1)
    assert not node.after(1)


@pytest.mark.parametrize("processes", [False, None])
def test_a_pod_whose_containers_have_ended_by_its_status_has_nothing(processes: bool | None) -> None:
    assert not Node(processes).after(0, ended=True)


def test_a_wait_is_counted_from_the_moment_the_pod_was_gone() -> None:
    node = Node(processes=True)
    assert node.orphans.gone_for("uid") == 0
    node.after(0)
    node.now += 7
    assert node.orphans.gone_for("uid") == 7
    node.orphans.keep([])
    assert node.orphans.gone_for("uid") == 0
