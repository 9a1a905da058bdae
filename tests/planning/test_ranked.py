"""The order of nodes for many pods of one shape is that of comparing all nodes anew each time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordpy.planning.scores.ranked import RankedNodes

FIGURES = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(
    st.lists(FIGURES, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), FIGURES), max_size=30),
    st.randoms(use_true_random=False),
)
def test_the_best_node_after_any_changes_is_the_one_found_by_looking_at_all(
    start: list[tuple[int, int]], changes: list[tuple[int, tuple[int, int]]], random: "object"
) -> None:
    slots = np.array([slots for slots, _ in start], dtype=np.int64)
    total = np.array([total for _, total in start], dtype=np.int64)
    names = np.arange(len(start), dtype=np.int64)
    random.shuffle(names)  # type: ignore[attr-defined]
    ranked = RankedNodes(slots=slots, total=total, names=names)
    for node, (new_slots, new_total) in [(0, start[0]), *changes]:
        at = node % len(start)
        slots[at], total[at] = new_slots, new_total
        ranked.changed(np.array([at]))
        able = [i for i in range(len(start)) if slots[i]]
        best = min(able, key=lambda i: (-total[i], slots[i], names[i]), default=None)
        assert ranked.first() == best
