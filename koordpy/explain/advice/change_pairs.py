# SPDX-License-Identifier: Apache-2.0
"""Finds sets of two or three changes for a unit with several obstacles, such as a taint and a quota.

A later obstacle shows only after the first is removed. So the first change is applied, the unit is planned again, and
changes against the new refusal are tried in addition. If the unit waits with the same message as before, the first
change has removed no obstacle, and no further change is added to it. If no pair helps, a third change is added in the
same way to pairs that have removed two obstacles. The number of planned rounds is limited as for single changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

from koordpy.attempts.watched_pod import DecidedPod, Watch
from koordpy.cache.snapshot_variants import VariantError
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World
from koordpy.explain.advice.trials import Trials, is_spent
from koordpy.plan.limits import ADVICE_LINES, ADVICE_PAIRED
from koordpy.planner.planning_round import plan_round

_FIRST = (Effort.MISTAKE, Effort.OWN_WISH, Effort.OPEN_NODE, Effort.LIMIT)
"""Kinds of effort that a first change may have: such changes remove an obstacle completely, so that the next shows."""
_NEVER = (Effort.NOTHING, Effort.NO_GANG)
"""Kinds of effort that no change of a set may have."""


@dataclass
class ChangePairs:
    """Tries pairs, and then sets of three changes, for one pod."""

    decided: DecidedPod
    trials: Trials
    """The trials of single changes."""
    proposals: Callable[[Case], Iterable[ClusterChange]]
    """Returns the proposed changes for a case."""
    _lines: dict[frozenset[str], str] = field(default_factory=dict)
    """Texts of the changes of a set that helps -> line of the set."""
    _open: list["_Chain"] = field(default_factory=list)
    """Pairs that do not help and may be continued, in the order in which they were found."""
    _rounds: int = 0
    """Number of rounds planned for pairs and sets of three."""

    def __post_init__(self) -> None:
        self._work = self.trials.work
        """Work so far: sum over all planned rounds of (pending pods x nodes)."""

    def lines(self, changes: Sequence[ClusterChange]) -> list[str]:
        """Returns the lines of the pairs that help; if no pair helps, of the sets of three that help.

        changes: single changes, none of which helps alone, in order of effort.
        """
        said = self.decided.waits.message if self.decided.waits is not None else ""
        for effort in _FIRST:
            firsts = [one for one in changes if one.effort is effort and _may_be_first(one)]
            self._try_all([_Chain((first,), said) for first in firsts[:ADVICE_PAIRED]])
        if not self._lines:
            pairs = {frozenset(one.text for one in chain.changes): chain for chain in reversed(self._open)}
            self._try_all(list(pairs.values())[::-1])
        return list(self._lines.values())[:ADVICE_LINES]

    def _try_all(self, chains: Iterable["_Chain"]) -> None:
        for chain in chains:
            if len(self._lines) < ADVICE_LINES and not is_spent(self._rounds, self._work):
                self._try_after(chain)

    def _try_after(self, chain: "_Chain") -> None:
        """Applies the changes of a chain, plans the unit, and tries further changes."""
        try:
            world = chain.whole.make(World(self.decided.snapshot, self.decided.round_state.config))
        except VariantError:
            return
        pod = world.snapshot.pods.get(self.decided.pod.key)
        if pod is not None and pod.pending:
            self._rounds += 1
            self._work += len(world.snapshot.pending) * len(world.snapshot.nodes)
            watch = Watch(pod.key, lambda now: self._continue(now, chain))
            plan_round(world.snapshot, world.config, watch=watch)

    def _continue(self, now: DecidedPod, chain: "_Chain") -> None:
        """Tries a further change after those of the chain, and adds a line if it helps. now: the decision for the pod
        after the changes of the chain."""
        if now.node is not None or now.waits is None or now.waits.message == chain.message:
            return
        snapshot, config, unit, pod, plan = now.snapshot, now.round_state.config, now.outcome.unit, now.pod, now.plan
        trials = Trials(snapshot, config, unit, pod.key, plan, _done=self._rounds, _work=self._work)
        case, families = Case(snapshot, config, unit, pod, plan, trials.alone), set[str]()
        for last in _few(self.proposals(case), chain.changes):
            if trials.spent or len(self._lines) >= ADVICE_LINES:
                break
            if last.family and last.family in families:
                continue
            found = trials.helpful(last)
            if found is None:
                if len(chain.changes) == 1 and last.effort in _FIRST and _may_be_first(last):
                    self._open.append(_Chain((*chain.changes, last), now.waits.message))
            elif not any(self.trials.helps_alone(fewer) for fewer in chain.without_one(last)):
                families |= {last.family, last.supersedes}
                texts = [*(one.text for one in chain.changes), found.text]
                self._lines.setdefault(frozenset(texts), ", and ".join(texts))
        self._rounds, self._work = trials.done, trials.work


@dataclass(frozen=True)
class _Chain:
    """Changes that are applied one after the other, and that together do not help yet."""

    changes: tuple[ClusterChange, ...]
    message: str
    """Message of the pod before the last change. If the message stays the same, the last change removes no obstacle."""

    @property
    def whole(self) -> ClusterChange:
        """All changes as one."""
        return reduce(ClusterChange.combined_with, self.changes)

    def without_one(self, last: ClusterChange) -> Iterator[ClusterChange]:
        """Yields combined changes of `last` and all changes of the chain except one, for each change of the chain."""
        for i in range(len(self.changes)):
            yield reduce(ClusterChange.combined_with, (*self.changes[:i], *self.changes[i + 1 :], last))


def _may_be_first(change: ClusterChange) -> bool:
    """Returns True if a change has exactly one result, so that further changes can be tried after it."""
    return change.reduce is None and not change.also


def _few(changes: Iterable[ClusterChange], firsts: Sequence[ClusterChange]) -> Iterator[ClusterChange]:
    """Yields the first few changes of each kind of effort, without changes of the same families as `firsts`."""
    numbers: dict[Effort, int] = {}
    families, texts = {one.family for one in firsts} - {""}, {one.text for one in firsts}
    for one in sorted(changes, key=lambda change: change.order):
        if one.effort in _NEVER or one.family in families or one.text in texts:
            continue
        numbers[one.effort] = numbers.get(one.effort, 0) + 1
        if numbers[one.effort] <= ADVICE_PAIRED:
            yield one
