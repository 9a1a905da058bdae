# SPDX-License-Identifier: Apache-2.0
"""What the reasons of pending pods cost (repair.md 1.2): the share of a round that is spent to decide them.

`python -m bench.reasons [REPEATS]`: each case plans 5,000 pods. The share is the processor time inside `Reasons.of`, by
the processor time of the same round, so that other jobs on the machine change it little: the median of some rounds.
The verdict of the filters on a plain pod does not count, because its message needs it, too. The garbage collector is
off during a round, because a collection would count wholly where it happens to start.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from msgspec import structs

from bench.objects import group, node, pod, state_of
from bench.timing import Row, rounds
from koordpy.api.keys import HOSTNAME
from koordpy.api.objects import Pod, Wire
from koordpy.attempts.reason_rules import PendingReason, Reasons
from koordpy.attempts.unit_outcome import DecidedUnit
from koordpy.cache.cluster_state import ClusterState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import RoundPlan
from tests.clusters import GPU

PODS, NODES, SIZE, REPEATS = 5000, 1000, 8, 5
BAR = 0.01
"""Share of a round that the reasons may take."""
GPUS = 8
"""Of a node."""


@dataclass(frozen=True)
class Case:
    """5,000 pending pods on 1,000 nodes of 8 GPUs; nodes without a free GPU have no pods here."""

    name: str
    pods: Callable[[], Sequence[Wire]]
    gpus: int = GPUS
    """Of a node."""

    def state(self) -> ClusterState:
        nodes = [node(f"n{i}", {GPU: self.gpus, "cpu": "64"}) for i in range(NODES)]
        return state_of([*nodes, *self.pods()])


def _plain(gpus: int) -> list[Pod]:
    return [pod(f"p-{i}", {GPU: gpus}) for i in range(PODS)]


def _named() -> list[Pod]:
    made = _plain(1)
    return [structs.replace(one, spec=structs.replace(one.spec, node_selector={HOSTNAME: "gone"})) for one in made]


def _different() -> list[Pod]:
    return [pod(f"p-{i}", {GPU: GPUS + 1, "cpu": f"{i + 1}m"}) for i in range(PODS)]


def _gangs(least: int) -> list[Wire]:
    made: list[Wire] = []
    for i in range(PODS // SIZE):
        made.append(group(f"g{i}", least))
        made += [pod(f"g{i}-{k}", {GPU: GPUS + 1}, gang=f"g{i}") for k in range(SIZE)]
    return made


def cases() -> list[Case]:
    """Units that fit, that lack capacity, that a gate blocks, and that no node can help."""
    return [
        Case("plan 5,000 pods, all fit", lambda: _plain(1)),
        Case("plan 5,000 pods, 3,000 fit", lambda: _plain(1), gpus=3),
        Case("plan 5,000 pods, none fits", lambda: _plain(GPUS + 1)),
        Case("plan 5,000 pods of different requests, none fits", _different),
        Case("plan 5,000 pods that ask for a node by name", _named),
        Case("plan 625 gangs of 8 pods, none fits", lambda: _gangs(SIZE)),
        Case("plan 625 gangs of 8 pods that lack a member", lambda: _gangs(SIZE + 1)),
    ]


def _clock_seconds() -> float:
    """Returns how long the clock seems to run between two readings."""
    return statistics.median(-time.thread_time() + time.thread_time() for _ in range(1001))


def shares(state: ClusterState, repeats: int) -> tuple[list[float], RoundPlan]:
    """Returns the share of the reasons in the processor time of each round, and the last plan."""
    decide, tick, spent, found = Reasons.of, _clock_seconds(), 0.0, list[float]()

    def measured(self: Reasons, outcome: DecidedUnit, after: Unit, *given: Any, **named: Any) -> PendingReason:
        nonlocal spent
        if outcome.unit.plain is not None:
            self.round_state.of(outcome.unit.plain).verdict()
        start = time.thread_time()
        out = decide(self, outcome, after, *given, **named)
        spent += time.thread_time() - start - tick
        return out

    rounds(state, 1)  # fills the caches that rounds share
    with patch.object(Reasons, "of", measured):
        for _ in range(repeats):
            spent = 0.0
            gc.collect()
            gc.disable()
            try:
                (taken,), plan = rounds(state, 1)
            finally:
                gc.enable()
            found.append(spent / taken)
    return found, plan


def run(repeats: int = REPEATS) -> Iterator[Row]:
    """Rows of (what, share of the reasons, note)."""
    for case in cases():
        found, plan = shares(case.state(), repeats)
        middle = statistics.median(found)
        reasons = ", ".join(sorted({str(one.reason) for one in plan.pending})) or "no pending pod"
        note = f"bar {BAR:.0%} {'holds' if middle < BAR else 'MISSED'}; at most {max(found):.2%}; {reasons}"
        yield f"reasons: {case.name}", f"{middle:.2%}", note


if __name__ == "__main__":
    for row in run(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS):
        print("{:<66}{:>8}  {}".format(*row), flush=True)
