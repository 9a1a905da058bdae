# SPDX-License-Identifier: Apache-2.0
"""Whatever a planner could do wrong with victims, the independent check refuses it."""

from collections import Counter

import pytest

from koordpy.planner import round_context
from tests.planning.corrupted import CORRUPTIONS, attacked

MOVING = (287, 376, 383)
"""Clusters in which some are moved."""


def test_every_wrong_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    let: dict[int, list[str]] = {}
    for seed in (*range(100, 150), *MOVING):
        found = attacked(seed, lambda search: monkeypatch.setattr(round_context, "PreemptionSearch", search))
        seen.update(found.seen)
        if found.let:
            let[seed] = found.let
    assert let == {}
    assert [name for name in CORRUPTIONS if not seen[name]] == [], "these were never tried"
