# SPDX-License-Identifier: Apache-2.0
"""Finds a few changes that would let a pending unit start, the least effort first. Entry point: `advice`.

Generators propose changes, such as a raised quota or an uncordoned node. Each proposal is tried by planning rounds on a
changed snapshot. Only changes with which the planner placed the unit are returned. If no single change helps, pairs of
changes are tried.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.natural_order import natural_key
from koordpy.attempts.unit_outcome import UnitOutcome, WaitingUnit
from koordpy.attempts.watched_pod import DecidedPod
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import VariantError, read_again, with_pods
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.change_pairs import ChangePairs
from koordpy.explain.advice.cluster_change import ClusterChange, Effort
from koordpy.explain.advice.ended_changes import ended_changes
from koordpy.explain.advice.gang_changes import gang_changes
from koordpy.explain.advice.gated_changes import gated_changes
from koordpy.explain.advice.member_changes import member_changes
from koordpy.explain.advice.node_changes import node_changes
from koordpy.explain.advice.pod_spec_changes import pod_changes
from koordpy.explain.advice.priority_changes import priority_changes
from koordpy.explain.advice.queue_changes import queue_changes
from koordpy.explain.advice.quota_changes import quota_changes
from koordpy.explain.advice.trials import Trials
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.limits import ADVICE_LINES, ADVICE_NAMED, ADVICE_PAIRED
from koordpy.plan.pending_reason import Reason
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.preemption_names import RuleName

_NOT_PAIRED = (Effort.NOTHING, Effort.FEWER_MEMBERS, Effort.PRIORITY, Effort.SMALLER, Effort.NO_GANG)
"""Kinds of effort that are not combined with others: waiting, giving up the gang, and changes with an amount that is
reduced by further trials."""


def advice(decided: DecidedPod) -> list[str]:
    """Returns the ends of the lines `Would fit if ...` for a pending pod, the change with the least effort first.

    Empty if the pod starts in the round, or if no change was found. If a gate blocks the unit, only corrections of
    misspelt names and other numbers of members are tried.
    """
    snapshot, config, unit, pod = decided.snapshot, decided.round_state.config, decided.outcome.unit, decided.pod
    if decided.node is not None:
        return []
    held = _is_gated(decided.outcome)
    trials = Trials(snapshot, config, unit, pod.key, decided.plan)
    case = Case(snapshot, config, unit, pod, decided.plan, trials.alone)
    changes = sorted(gated_changes(case) if held else _changes(case), key=lambda change: change.order)
    if decided.waits is not None and decided.waits.reason is Reason.NODES_CANNOT_HELP:
        changes = [change for change in changes if change.effort is not Effort.NEW_NODE]
    lines = list(_helpful(changes, trials))
    if not lines and not held:
        lines = ChangePairs(decided, trials, _changes).lines(changes) or list(_helpful(_pairs(changes), trials))
    return lines


def _is_gated(outcome: UnitOutcome) -> bool:
    """Returns True if a gate blocked the unit before any node or quota was checked."""
    match outcome:
        case WaitingUnit(diagnosis=Gate(plugins=())):
            return True
    return False


def advice_of_ignored(snapshot: Snapshot, config: KoordpyConfiguration, pod: PodInfo, text: str) -> list[str]:
    """Returns [text] if the round would place an ignored pod once koordpy schedules it; else an empty list.

    text: the change that makes koordpy schedule the pod, such as another schedulerName.
    """
    spec = structs.replace(pod.pod.spec, scheduler_name=config.scheduler_names[0], scheduling_gates=[])
    served = read_again(pod, structs.replace(pod.pod, spec=spec), snapshot, config)
    try:
        changed = with_pods(snapshot, [served])
    except VariantError:
        return []
    plan = plan_round(changed, config)
    return [text] if any(one.pod_key == pod.key for one in plan.placements) else []


def _changes(case: Case) -> Iterator[ClusterChange]:
    """Yields the proposals of all generators for a unit without a gate."""
    yield from queue_changes(case)
    yield from pod_changes(case)
    yield from gang_changes(case)
    yield from member_changes(case)
    yield from node_changes(case)
    yield from quota_changes(case)  # before pods that end, so that a line about the quota is shown first
    yield from ended_changes(case)
    yield from priority_changes(case)


def _helpful(changes: Iterable[ClusterChange], trials: Trials) -> Iterator[str]:
    """Yields the texts of the changes that help, in the given order.

    Of each family (`ClusterChange.family`) only the first change that helps is yielded. A change that contains all
    parts of an earlier one is not yielded.
    """
    done, shown, parts, lines = set[str](), set[str](), list[frozenset[str]](), 0
    for change in changes:
        if lines >= ADVICE_LINES or trials.spent:
            return
        if change.reduce is None and (change.text in shown or _contains(change, parts)):
            continue
        if change.family and change.family in done:
            continue
        found = trials.helpful(change)
        if found is not None and found.text not in shown and not _contains(found, parts):
            shown |= {change.text, found.text}
            done |= {change.family, change.supersedes}
            parts += [found.parts] if found.parts else []
            lines += 1
            yield found.text


def _contains(change: ClusterChange, others: Iterable[frozenset[str]]) -> bool:
    """Returns True if a change contains all parts of another change. others: the parts of each other change."""
    return any(parts <= change.parts for parts in others)


def _pairs(changes: Sequence[ClusterChange]) -> list[ClusterChange]:
    """Returns pairs of changes, each pair as one change.

    The two changes of a pair have different kinds of effort. Of each kind of effort only the first few changes are
    used.
    """
    few: list[ClusterChange] = []
    for effort in Effort:
        if effort not in _NOT_PAIRED:
            few += [one for one in changes if one.effort is effort and one.text][:ADVICE_PAIRED]
    both = [a.combined_with(b) for i, a in enumerate(few) for b in few[i + 1 :] if a.effort is not b.effort]
    return sorted(both, key=lambda change: change.order)


def evictions_for(decided: DecidedPod) -> list[str]:
    """Returns one sentence per victim rule on the pods that the round evicts or moves so that a pod can start.

    Empty for a pod that does not start in the round.
    """
    by_rule: dict[str, list[str]] = {}
    for eviction in decided.plan.evictions if decided.node is not None else ():
        if eviction.unit == decided.outcome.unit.id:
            by_rule.setdefault(eviction.rule, []).append(eviction.pod_key)
    out = []
    for rule, keys in by_rule.items():
        done = "moved" if rule == RuleName.CONSOLIDATION else "evicted"
        verb = "is" if len(keys) == 1 else "are"
        text = f"{count_noun(len(keys), 'pod')} {verb} {done} by rule {rule}"
        out.append(f"{text}: {name_first(sorted(keys, key=natural_key), ADVICE_NAMED)}")
    return out
