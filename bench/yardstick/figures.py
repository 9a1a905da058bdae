# SPDX-License-Identifier: Apache-2.0
"""Figures of runs, their medians and their goals: the part of the yardstick that only computes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.live.usage import Usage


@dataclass(frozen=True, slots=True)
class Goal:
    """What koordpy's figure is to be; one of the three is set."""

    at_most: float | None = None
    exactly: float | None = None
    times_other: float | None = None
    """At least so many times the other scheduler's figure."""

    def met(self, figure: float | None, other: float | None) -> bool:
        """Whether koordpy's figure meets it; None is a figure that did not come. other: the other scheduler's."""
        if figure is None:
            return False
        if self.times_other is not None:
            return other is None or figure >= self.times_other * other
        return figure == self.exactly if self.at_most is None else figure <= self.at_most


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a figure of every run of a row."""

    figure: str
    what: str
    unit: str
    """"/s", "s", "ms", "MB"; empty for a number of things."""
    goal: Goal | None = None
    bounded: bool = False
    """Whether the machine's bound is told in this figure."""

    @property
    def more_is_better(self) -> bool:
        """Rates; everything else is better where it is less."""
        return self.unit == "/s"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of one scheduler gave. figures: by name, None for what did not come in time."""

    figures: Mapping[str, float | None]
    usage: Usage | None
    """None where the process ended by itself."""
    notes: Sequence[str] = ()


@dataclass(slots=True)
class Results:
    """Runs of one row: scheduler -> a run a round. bounds: what the machine can do, a figure a round."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    bounds: list[float] = field(default_factory=list)

    def figure(self, line: Line, scheduler: str) -> float | None:
        """The median of a scheduler's runs; None where it had none, or where half of them did not get there."""
        values = [run.figures.get(line.figure) for run in self.runs.get(scheduler, ())]
        return median(values, more_is_better=line.more_is_better)

    def usage(self, scheduler: str) -> Usage | None:
        """The medians of CPU and memory held, and the most memory that any run held."""
        runs = [run.usage for run in self.runs.get(scheduler, ()) if run.usage is not None]
        if not runs:
            return None
        cpu = statistics.median(usage.cpu_s for usage in runs)
        resident = round(statistics.median(usage.resident_bytes for usage in runs))
        return Usage(cpu, resident, max(usage.peak_bytes for usage in runs))

    def met(self, line: Line, ours: str, other: str) -> bool | None:
        """Whether a line's goal is met; None where it has none or nothing was measured."""
        if line.goal is None or not self.runs.get(ours):
            return None
        return line.goal.met(self.figure(line, ours), self.figure(line, other))

    @property
    def bound(self) -> float | None:
        """The median of what the machine can do."""
        return statistics.median(self.bounds) if self.bounds else None


def median(values: Sequence[float | None], *, more_is_better: bool) -> float | None:
    """The median, None for no values; a value that did not come counts as worse than every other."""
    worst = float("-inf") if more_is_better else float("inf")
    if not values:
        return None
    # not the mean of two: half of infinity is no figure
    middle = sorted((worst if value is None else value for value in values), reverse=more_is_better)
    low, high = middle[(len(middle) - 1) // 2], middle[len(middle) // 2]
    return None if high == worst else (low + high) / 2


def advantage(line: Line, ours: float | None, theirs: float | None) -> float | None:
    """How many times better ours is; None where one of the two is missing or nought."""
    if not ours or not theirs:
        return None
    return ours / theirs if line.more_is_better else theirs / ours
