# SPDX-License-Identifier: Apache-2.0
"""Reports that lag behind their kubelets let no amount be used twice, except as the rules say (numa.md 4)."""

from collections import Counter

import pytest

from tests.numa.lagging_reports import play


@pytest.mark.parametrize("seed", [2, 5])
def test_no_kubelet_rejects_a_pod_if_pods_end_while_no_pod_is_bound(seed: int) -> None:
    life = play(seed)
    assert life.faults == []
    assert life.tally["reports that lag"] > 5
    assert {what for what in life.tally if what.startswith("rejected")} <= {"rejected: matching"}


@pytest.mark.parametrize(("seed", "foreign"), [(16, False), (3, True)])
def test_every_rejection_has_a_cause_that_no_report_shows(seed: int, foreign: bool) -> None:
    """Seed 16 has a pod that was recorded in the zone which another pod left at that moment."""
    life = play(seed, racing=True, foreign=foreign)
    assert life.faults == []
    causes = Counter(what.partition(": ")[2] for what in life.tally.elements() if ": " in what)
    assert foreign or causes.keys() == {"freed", "misplaced"}
