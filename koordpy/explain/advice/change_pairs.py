# SPDX-License-Identifier: Apache-2.0
"""Finds pairs of changes for a unit with two obstacles, such as a taint and a quota: the second hides behind the first.

The first change is applied, the unit is decided again, and changes for what then refuses it are tried there. A first
change after which the unit waits with the same message removes no obstacle, and is not continued. The number of rounds
is limited as for single changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from koordpy.attempts.watched_pod import DecidedPod, Watch
from koordpy.cache.snapshot_variants import VariantError
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World
from koordpy.explain.advice.trials import Trials, is_spent
from koordpy.plan.limits import ADVICE_LINES, ADVICE_PAIRED
from koordpy.planner.planning_round import plan_round

_FIRST = (Effort.MISTAKE, Effort.OWN_WISH, Effort.OPEN_NODE, Effort.LIMIT)
"""Efforts of changes that remove one obstacle completely, so that another one may show."""
_NEVER = (Effort.NOTHING, Effort.NO_GANG)
"""Efforts that no pair contains."""


@dataclass
class ChangePairs:
    """Tries pairs for one pod."""

    decided: DecidedPod
    trials: Trials
    """The trials of single changes."""
    proposals: Callable[[Case], Iterable[ClusterChange]]
    """Returns the changes for a case."""
    _lines: dict[frozenset[str], str] = field(default_factory=dict)
    """Texts of the two changes -> line."""
    _rounds: int = 0
    """Number of rounds planned for pairs."""

    def __post_init__(self) -> None:
        self._work = self.trials.work
        """Sum over all rounds of pending pods times nodes."""

    def lines(self, changes: Sequence[ClusterChange]) -> list[str]:
        """Returns the lines of the pairs that help. changes: single changes of which none helps, in order of effort."""
        for effort in _FIRST:
            firsts = [one for one in changes if one.effort is effort and one.reduce is None and not one.also]
            for first in firsts[:ADVICE_PAIRED]:
                if len(self._lines) < ADVICE_LINES and not is_spent(self._rounds, self._work):
                    self._try_after(first)
        return list(self._lines.values())[:ADVICE_LINES]

    def _try_after(self, first: ClusterChange) -> None:
        """Tries second changes in the world after a first one."""
        try:
            world = first.make(World(self.decided.snapshot, self.decided.round_state.config))
        except VariantError:
            return
        pod = world.snapshot.pods.get(self.decided.pod.key)
        if pod is not None and pod.pending:
            self._rounds += 1
            self._work += len(world.snapshot.pending) * len(world.snapshot.nodes)
            watch = Watch(pod.key, lambda now: self._continue(now, first))
            plan_round(world.snapshot, world.config, watch=watch)

    def _continue(self, now: DecidedPod, first: ClusterChange) -> None:
        """Adds lines for second changes that help. now: the decision after the first change."""
        before = self.decided.waits
        if now.node is not None or now.waits is None or (before is not None and now.waits.message == before.message):
            return
        snapshot, config, unit, pod, plan = now.snapshot, now.round_state.config, now.outcome.unit, now.pod, now.plan
        trials = Trials(snapshot, config, unit, pod.key, plan, _done=self._rounds, _work=self._work)
        case, families = Case(snapshot, config, unit, pod, plan, trials.alone), set[str]()
        for second in _few(self.proposals(case), first):
            if trials.spent or len(self._lines) >= ADVICE_LINES:
                break
            if second.family and second.family in families:
                continue
            found = trials.helpful(second)
            if found is not None and not self.trials.helps_alone(second):
                families |= {second.family, second.spares}
                self._lines.setdefault(frozenset({first.text, found.text}), f"{first.text}, and {found.text}")
        self._rounds, self._work = trials.done, trials.work


def _few(changes: Iterable[ClusterChange], first: ClusterChange) -> Iterator[ClusterChange]:
    """Yields the first few changes of each kind of effort, except those of the family of `first`."""
    numbers: dict[Effort, int] = {}
    for one in sorted(changes, key=lambda change: change.asks):
        if one.effort in _NEVER or (first.family and one.family == first.family) or one.text == first.text:
            continue
        numbers[one.effort] = numbers.get(one.effort, 0) + 1
        if numbers[one.effort] <= ADVICE_PAIRED:
            yield one
