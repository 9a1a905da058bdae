# SPDX-License-Identifier: Apache-2.0
"""Who went for whom, as it is remembered (preemption.md 3.6)."""

from koordpy.quota import preemption_history
from koordpy.quota.preemption_history import EVICTION_SECONDS, PreemptionHistory, units_that_gained


def remembered(*pairs: str, at: float = 0.0) -> PreemptionHistory:
    """`ab`: a went for b."""
    out = PreemptionHistory()
    for loser, gainer in pairs:
        out.add(loser, gainer, at)
    return out


def test_who_gained_by_an_eviction_is_found_along_chains_and_circles() -> None:
    view = remembered("ab", "bc", "ca", "bd", "xa", "ef").view(0.0)
    assert units_that_gained(view, "a") == {"a", "b", "c", "d"}
    assert units_that_gained(view, "d") == frozenset()
    assert units_that_gained(view, "x") == {"a", "b", "c", "d"}


def test_it_is_forgotten_after_an_hour_since_it_last_happened() -> None:
    kept = remembered("ab", "bc", at=100.0)
    kept.add("b", "c", 200.0)
    assert kept.view(99.0 + EVICTION_SECONDS) == {"a": ("b",), "b": ("c",)}
    assert kept.view(100.0 + EVICTION_SECONDS) == {"b": ("c",)}


def test_what_comes_a_moment_after_the_clock_was_read_is_remembered_for_an_hour_from_then() -> None:
    """Times of day are rounded, and clocks are set back."""
    kept = remembered("ab", at=100.000001)
    assert kept.view(100.0) == {"a": ("b",)}
    assert kept.view(99.0 + EVICTION_SECONDS) == {"a": ("b",)}
    assert kept.view(100.0 + EVICTION_SECONDS) == {}


def test_no_more_than_so_many_are_kept(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(preemption_history, "MAX_EVICTIONS", 2)
    assert remembered("ab", "bc", "ab", "cd").view(0.0) == {"a": ("b",), "c": ("d",)}
