# SPDX-License-Identifier: Apache-2.0
"""Sets of completion indexes, as the status of a Job lists them (completedIndexes, failedIndexes): `0,2-4`.

A Job may have 100,000 indexes, so a set is stored as spans of consecutive numbers.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from itertools import chain


class Indexes(Set[int]):
    """Set of numbers, stored as spans (first, last).

    Memory is O(spans), and a membership test O(log spans), however long the spans are.
    """

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._first, self._last = array("q"), array("q")
        """First and last numbers of the spans, which are disjoint and in order."""
        end = -1  # last number so far; spans that overlap are merged
        for low, high in sorted(spans):
            if low > end:
                self._first.append(low)
                self._last.append(high)
            else:
                self._last[-1] = max(high, end)
            end = max(high, end)

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """Yields (first, last) of each span, in order."""
        return zip(self._first, self._last, strict=True)

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int):
            return False
        at = bisect_right(self._first, index)
        return at > 0 and self._last[at - 1] >= index

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(low, high + 1) for low, high in self.spans)

    def __len__(self) -> int:
        return sum(self._last) - sum(self._first) + len(self._first)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Indexes):
            return self._first == other._first and self._last == other._last
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # a class with `__eq__` and arrays is not hashable

    def below(self, stop: int) -> int:
        """Returns how many numbers of the set are below `stop`."""
        if not self._last or self._last[-1] < stop:
            return len(self)
        return sum(min(high + 1, stop) - low for low, high in self.spans if low < stop)

    _from_iterable = frozenset  # type of unions and intersections


def indexes(text: str) -> Indexes:
    """Parses a text such as `0,2-4`; ignores invalid parts.

    Numbers may have at most 18 digits, because the arrays have 64-bit integers. A span may have at most 1,000,001
    numbers, because the text is not trusted, and a set may be iterated.
    """
    spans = list[tuple[int, int]]()
    for one in text.split(","):
        first, _, last = one.partition("-")
        if len(first) <= 18 and len(last) <= 18 and first.isdecimal() and (not last or last.isdecimal()):
            low = int(first)
            spans.append((low, min(int(last), low + 1_000_000) if last else low))
    return Indexes(span for span in spans if span[0] <= span[1])
