# SPDX-License-Identifier: Apache-2.0
"""One run of the yardstick: the schedulers in turns, round by round, and the report of what they did."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.live.cluster import LiveCluster
from bench.live.schedulers import Scheduler
from bench.yardstick.figures import Results, Run
from bench.yardstick.rows import Row
from bench.yardstick.table import amount, entitlements_of, markdown, usage_text
from tests.e2e.process import ProcessDied


@dataclass
class Session:
    """ours is judged against other, of this version. judged: whether the goals are for a cluster of this size."""

    cluster: LiveCluster
    ours: Scheduler
    other: Scheduler
    version: str
    rounds: int
    judged: bool
    say: Callable[[str], None]
    """Prints progress."""
    missed: int = 0
    results: dict[str, Results] = field(default_factory=dict)
    """By the row's key."""
    _rows: list[Row] = field(default_factory=list)

    async def measure(self, row: Row) -> None:
        """All runs of a row, which leave pods behind: what stays is taken away before the next row.

        The one who begins changes with every round, so that neither always finds the warmer server.
        """
        if self._rows:
            await self.cluster.clean()
        results = self.results[row.key] = Results()
        self._rows.append(row)
        await row.prepare(self.cluster)
        for number in range(self.rounds):
            turns = (self.ours, self.other) if number % 2 == 0 else (self.other, self.ours)
            for scheduler in turns:
                run = await self._play(row, scheduler)
                results.runs.setdefault(scheduler.name, []).append(run)
                self._tell(row, scheduler, run)
            if row.bound is not None:
                results.bounds.append(await row.bound(self.cluster))
        if self.judged:
            self.missed += sum(results.met(line, self.ours.name, self.other.name) is False for line in row.lines)

    async def _play(self, row: Row, scheduler: Scheduler) -> Run:
        try:
            return await row.play(self.cluster, scheduler)
        except ProcessDied as died:
            self.say(str(died))
            await self.cluster.clean()
            await row.prepare(self.cluster)
            return Run({}, None, [f"{scheduler.name} ended by itself"])

    def _tell(self, row: Row, scheduler: Scheduler, run: Run) -> None:
        told = [f"{line.figure} {amount(run.figures.get(line.figure), line.unit)}" for line in row.lines]
        self.say(f"{row.key:<12}{scheduler.name:<16}{', '.join(told)}; {usage_text(run.usage)}")
        for note in filter(None, run.notes):
            self.say(f"{'':<28}{note}")

    def report(self) -> str:
        """The table of all rows so far, and what it was measured on."""
        names = {"ours": self.ours.name, "other": self.other.name}
        cells = [
            line
            for row in self._rows
            for line in entitlements_of(row.lines, self.results[row.key], **names, judged=self.judged)
        ]
        rounds = "one round" if self.rounds == 1 else f"medians of {self.rounds} rounds"
        load = ", ".join(f"{figure:.1f}" for figure in os.getloadavg())
        notes = [
            f"- {row.key}, {name}: {note}"
            for row in self._rows
            for name, runs in self.results[row.key].runs.items()
            for note in sorted({note for run in runs for note in run.notes if note})
        ]
        head = (
            f"{self.ours.name} beside {self.version}: {rounds}, {os.cpu_count()} cores for the control plane, the "
            f"scheduler and the client together, load at the end {load}.\n"
        )
        return "\n".join([head, markdown(cells, **names), *notes, ""])
