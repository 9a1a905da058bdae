# SPDX-License-Identifier: Apache-2.0
"""Explains why a pod is or is not placed (`koordpy explain`): verdict of each node, slots of each domain, suggestions.

It plans the next round on a snapshot, and reads the draft at the moment when the planner decides on the pod. This draft
contains the placements and evictions of earlier units, nominations and reserved capacity, so the explanation agrees
with the round. Must not place anything. Source: simulate.md 5; gang-network.md section 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from koordpy.api.natural_order import natural_key
from koordpy.attempts.filter_errors import unit_error
from koordpy.attempts.unit_outcome import PreemptingUnit, RejectedUnit, WaitingUnit
from koordpy.attempts.watched_pod import DecidedPod, Watch
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import families_of, node_facts
from koordpy.devices.family_round import NodeFacts
from koordpy.devices.rule_registry import place_by_rules, shown_scores
from koordpy.explain.advice.advise import advice, advice_of_ignored, evictions_for
from koordpy.fairness.quota_admission import PLUGIN as QUOTA
from koordpy.fairness.quota_admission import core_members
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.attempt_error import AttemptError
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.infeasibility.limiting_rules import divided_sentence
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import Method, PendingPod, Proof, RoundPlan, ranks_proven
from koordpy.planner.planning_round import plan_round
from koordpy.planner.queue.backfill import NO_PROMISE, moment
from koordpy.planner.queue.queue_rank import QueueRank, rank_in_queue
from koordpy.pods.claim_refs import CLAIMS
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build
from koordpy.report.denial import domain_slots
from koordpy.report.domain_reasons import DomainReasons
from koordpy.report.gang_sentence import join_sentences, short_lead
from koordpy.report.ignored_pods import IgnoredPod, find_ignored_reason
from koordpy.report.rollout_words import blocked_by_predecessor
from koordpy.report.setting_warnings import counted_parts, counted_text, goal_remark, warnings_of

DYNAMIC_RESOURCES = "DynamicResources"
"""Name of kube-scheduler's filter of resource claims."""
NUMA = "numa"
"""Name of the device family of NUMA zones."""
NO_NUMA = "no node has NUMA data"
RANKS_OPEN = "rank order: not proven best"
"""Remark on a gang with a plan that is proven best except for its rank order, which is goal 7 (gang-network.md 5)."""


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """The verdict of one node on the pod alone, without the other members of its gang."""

    node: str
    feasible: bool
    """True if every filter passes."""
    reasons: tuple[tuple[str, str, str], ...]
    """(plugin, code, message) of each refusal; empty for a feasible node."""
    scores: dict[str, float]
    """Plugin -> score before weighting; also scores of device families. Empty for a node that is not feasible."""
    total: int
    """Weighted total of the scores; 0 for a node that is not feasible."""
    devices: tuple[Mapping[str, str], ...] = ()
    """Devices that a feasible node would allocate to the pod's resource claims; empty if the pod has none."""
    numa: Mapping[str, Any] | None = None
    """Policy, scope and free amounts of the node's NUMA zones, and the zones that the pod would take; None without NUMA
    data."""


class DomainExplanation(NamedTuple):
    """The slots for a gang in one domain above the node layer, or in the domain that the round has chosen for it."""

    layer: str
    name: str
    """Path of the domain; empty for the cluster."""
    slots: int
    """Usable slots in the domain for the gang's reference pod."""
    needed: int
    """Number of pods that the plan must place."""
    chosen: bool
    """True for the lowest domain with all members of the gang, if the round places it."""
    reason: str
    """Why the gang is or is not placed there (`report.domain_reasons`)."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Answer of `explain` for one pod."""

    pod: str
    gang: str | None
    """Key of the gang; None for a plain pod."""
    feasible_nodes: int = 0
    """Number of nodes that take the pod alone."""
    nodes: tuple[NodeExplanation, ...] = ()
    domains: tuple[DomainExplanation, ...] = ()
    """Empty for a plain pod, and if a gate or quota blocks the gang before any node is checked."""
    message: str = ""
    """A gate, a quota refusal, a promised start, or that the unit never fits; empty if none of them applies."""
    would_fit_if: tuple[str, ...] = ()
    """Changes that let the unit start; empty for a pod that the round places."""
    evictions: tuple[str, ...] = ()
    """Sentences on the pods that the round evicts or moves for a pod that it places."""
    method: str = ""
    """Method that found the plan in the round, or showed that there is none; empty if no search ran."""
    origin: str | None = None
    """What makes the pods a gang, such as their workload; None for a plain pod."""
    queue_rank: QueueRank | None = None
    """Position of the unit in the queue; None for a pod that is not pending."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of settings without effect."""
    numa: str = NO_NUMA
    """Sentence on how many nodes report NUMA zones."""
    reason: str = ""
    """Reason as the offline commands show it; empty if the pod is placed, or if no round decides on it."""
    node: str = ""
    """Node that the pod is bound to or nominated for; empty if it stays pending, or if no round decides on it."""
    round: int | None = None
    """Number of the explained round in a simulation, from 1. None without a simulation."""


def explain(snapshot: Snapshot, config: KoordpyConfiguration | None, pod_key: str) -> Explanation:
    """Returns the explanation of one pod in the next round on a snapshot.

    If the pod is not pending, the explanation says why koordpy ignores it. Raises KeyError if the pod is not in the
    snapshot. Plans one round, and further rounds to try suggestions. config: None for the defaults.
    """
    return explained_round(snapshot, config, pod_key)[1]


def explained_round(
    snapshot: Snapshot, config: KoordpyConfiguration | None, pod_key: str
) -> tuple[RoundPlan, Explanation]:
    """Returns (plan of the next round on a snapshot, explanation of one pod in it). Arguments as in `explain`."""
    pod, config = snapshot.pods[pod_key], config or KoordpyConfiguration()
    if not pod.pending:
        return plan_round(snapshot, config), _explain_ignored(pod, snapshot, config)
    watch = Watch(pod_key, _explained)
    plan = plan_round(snapshot, config, watch=watch)
    assert watch.answer is not None, "a round without a bound decides for every pending pod"
    return plan, watch.answer


def _explain_ignored(pod: PodInfo, snapshot: Snapshot, config: KoordpyConfiguration) -> Explanation:
    """Returns why a pod that is not pending is ignored, and the change that would make koordpy place it."""
    left = left_alone(pod, config.scheduler_names)
    found = undecided(snapshot, config, pod.key, left.why)
    misses = advice_of_ignored(snapshot, config, pod, left.miss) if left.miss else []
    return replace(found, would_fit_if=tuple(misses))


def undecided(snapshot: Snapshot, config: KoordpyConfiguration, pod_key: str, message: str) -> Explanation:
    """Returns an explanation of a pod on which no round decides, such as a bound pod. message: the reason."""
    pod, groups = snapshot.pods[pod_key], Groups(snapshot, config.gangs, config.stale_gangs, repair=config.repair)
    return Explanation(
        pod=pod.key,
        gang=pod.gang.key if pod.gang else None,
        origin=groups.gang(pod.gang).origin if pod.gang else None,
        message=message,
        warnings=tuple(warnings_of([], groups)),
    )


def _explained(decided: DecidedPod) -> Explanation:
    """Returns the explanation of a pending pod from the round's decision for its unit."""
    pod, groups, snapshot, config = (
        decided.pod,
        decided.round_state.groups,
        decided.snapshot,
        decided.round_state.config,
    )
    unit = decided.unit
    verdict = _gate_or_quota_message(decided)
    with decided.picture() as round_state:
        by_family = node_facts(pod, round_state.inputs)
        facts = by_family.get(NUMA)
        is_error = decided.waits is not None and decided.waits.reason == Reason.SCHEDULER_ERROR
        ended = unit_error(unit, round_state) if is_error else None
        nodes = _nodes(pod, unit, round_state, facts, by_family.get(CLAIMS), ended)
        domains = _domains(decided) if unit.is_gang and not verdict else ()
        message = _with_never(decided, verdict, _promise(decided) or _plan_remark(decided))
        warnings = (
            *warnings_of([unit], groups),
            *((about, counted_text(resource)) for about, resource in counted_parts([unit])),
            *((f"gang {gang.key}", remark) for gang in unit.gangs if (remark := goal_remark(unit, round_state))),
        )
        rank = rank_in_queue(groups.unit_of(pod), groups, snapshot, config, use=round_state.draft.quotas)
    return Explanation(
        pod=pod.key,
        gang=pod.gang.key if pod.gang is not None else None,
        origin=groups.gang(pod.gang).origin if pod.gang is not None else None,
        feasible_nodes=sum(node.feasible for node in nodes),
        nodes=tuple(sorted(nodes, key=lambda node: natural_key(node.node))),
        domains=domains,
        message=message,
        would_fit_if=tuple(advice(decided)),
        evictions=tuple(evictions_for(decided)),
        method=decided.outcome.attempt.method,
        queue_rank=rank,
        warnings=warnings,
        numa=facts.sentence if facts is not None else NO_NUMA,
        reason=str(decided.waits.offline_reason) if decided.waits is not None else "",
        node=snapshot.nodes[decided.node].name if decided.node is not None else "",
    )


def _gate_or_quota_message(decided: DecidedPod) -> str:
    """Returns the message if the pod stays pending for a reason other than the verdicts of nodes; empty otherwise.

    Such a reason is a gate, a quota, a plan that the independent check refused, a missing object, or an obstacle that
    no new node removes.
    """
    waits = decided.waits
    if waits is None:
        return ""
    match decided.outcome:
        case WaitingUnit(diagnosis=Gate()) | RejectedUnit():
            return waits.message
    is_other = waits.reason in (Reason.NOT_READY, Reason.NODES_CANNOT_HELP)
    return waits.message if is_other or _quota_refuses(decided) else ""


def _with_never(decided: DecidedPod, verdict: str, remark: str) -> str:
    """Returns the message of an explanation.

    If the unit never fits, it begins with `never fits: ...`; this sentence is removed from `verdict`, so that it
    appears once. Otherwise it is `verdict`, or `remark` if `verdict` is empty.
    """
    never = decided.waits.never if decided.waits is not None else ""
    if not never:
        return verdict or remark
    message = verdict or join_sentences([remark])
    sentence = join_sentences([f"never fits: {never}"])
    before, _, after = message.partition(sentence)
    if decided.unit.is_gang:
        unit = decided.unit.group_id
        first = short_lead(unit, f"never fits: {never}")
        if before.startswith(f"{first}never fits: "):
            before = before[len(first) :].partition("... ")[2]  # the same sentence in a shortened form
        before = before.removesuffix(f"gang {unit}: ").removesuffix(first)
        same = f"gang {unit}: {never}."  # the gang's sentence states it without `never fits`
        before = before.removeprefix(same)
    return " ".join(filter(None, (sentence, before.strip(), after.strip())))


def _promise(decided: DecidedPod) -> str:
    """Returns the sentence on the promised start: of this unit, or of an earlier unit for which this unit waits.

    Empty without `queue.backfill`, for a placed pod, and for a unit that the promise does not concern.
    """
    plan, unit = decided.plan, decided.unit.id
    if not decided.round_state.config.queue.backfill or decided.node is not None:
        return ""
    if plan.reservation is not None and plan.reservation.unit == unit:
        return f"start promised at {moment(plan.reservation.start)}"
    said = decided.waits.message if decided.waits is not None else ""
    # units of equal shape share one entry
    kept = plan.reservation.blocked_units.values() if plan.reservation is not None else ()
    promised = next((text for text in kept if f"{text}." in said), "")
    return promised or (NO_PROMISE if f"{NO_PROMISE}." in said else "")


def _quota_refuses(decided: DecidedPod) -> bool:
    return decided.waits is not None and decided.waits.plugins == (QUOTA,)


def _plan_remark(decided: DecidedPod) -> str:
    """Returns a remark on the plan; empty if none applies.

    For a placed pod it says that the rank order is not proven best. For a pending pod it says that the unit waits for
    terminating pods, which reserved capacity holds the unit back, or that an older pod of the rollout blocks it.
    """
    if decided.node is not None:
        return "" if ranks_proven(decided.outcome.attempt.runs) else RANKS_OPEN
    match decided.outcome, decided.waits:
        case WaitingUnit(awaits=awaits), PendingPod(message=message) if awaits:
            return message
        case _, PendingPod(reason=Reason.HELD_BACK, message=message):
            return message
    return blocked_by_predecessor(decided.unit, decided.round_state)


def left_alone(pod: PodInfo, served: Sequence[str]) -> IgnoredPod:
    """Returns why a pod that is not pending is ignored: another scheduler, gates, or its state. Never None."""
    return find_ignored_reason(pod, served) or IgnoredPod(f"pod is {_state(pod)}", "")


def _state(pod: PodInfo) -> str:
    if pod.node:
        return f"bound to {pod.node}"
    return "being deleted" if pod.pod.metadata.deletion_timestamp else pod.pod.status.phase


def _nodes(
    pod: PodInfo,
    unit: Unit,
    round_state: RoundState,
    facts: NodeFacts | None,
    claims: NodeFacts | None,
    ended: AttemptError | None,
) -> list[NodeExplanation]:
    """Returns the explanation of every node for the pod alone, in the order of the snapshot.

    facts: NUMA zones of the nodes; None without them. claims: devices for the pod's claims; None without claims.
    ended: the error that has ended the attempt of the unit, and so refuses every node; None for none.
    """
    own = round_state.of(pod)
    verdict = own.verdict()
    scores: dict[str, Sequence[float]] = {plugin: values.tolist() for plugin, values in own.plugin_scores().items()}
    total = own.total.tolist()  # before `shown_scores`, which may place members on trial and change `own`
    scores |= {shown.name: shown.values for shown in shown_scores(pod, unit, round_state)}
    marks = [
        mark
        for family in families_of(pod, round_state.snapshot)
        if (mark := family.shown_value(pod, round_state.inputs)) is not None
    ]
    out = []
    for i, node in enumerate(round_state.snapshot.nodes):
        refusal = own.refusal or ended or verdict.of(i)
        numa = facts.of(i) if facts is not None else None
        devices = (claims.of(i) if claims is not None else None) or {"devices": (), "reasons": ()}
        if refusal is None:
            shown: dict[str, float] = {plugin: values[i] for plugin, values in sorted(scores.items())}
            for name, of in marks:
                if (figure := of(i)) is not None:
                    shown[name] = round(figure, 2)
            out.append(NodeExplanation(node.name, True, (), shown, total[i], tuple(devices["devices"]), numa))
        else:
            reasons = tuple((refusal.plugin, refusal.code.value, reason) for reason in refusal.reasons)
            if refusal.plugin == DYNAMIC_RESOURCES and refusal is not ended:
                reasons += tuple((refusal.plugin, refusal.code.value, text) for text in devices["reasons"])
            out.append(NodeExplanation(node.name, False, reasons, {}, 0, (), numa))
    return out


def _domains(decided: DecidedPod) -> tuple[DomainExplanation, ...]:
    """Returns the explanation of every domain above the node layer, and of the chosen domain if that is a node."""
    unit, round_state = decided.unit, decided.round_state
    tree = round_state.snapshot.tree
    problem = build(unit, round_state)
    needed = problem.core_size
    chosen: tuple[int, int] | None = None
    ranks: tuple[int, ...] | None = None
    if decided.node is not None:
        nodes = decided.nodes
        needed = len(nodes)
        chosen = tree.lowest_common([*nodes.values(), *_staying(decided)])
        ranks = tuple(rank for rank, pod in enumerate(unit.members) if pod.key in nodes)
    # per domain the slots and the reason
    usable = domain_slots(unit, round_state, ranks)
    divided = divided_sentence(unit, problem, round_state) if problem.bound else ""
    fails = decided.node is None and decided.outcome.attempt.proof is Proof.INFEASIBLE
    planned = [unit.members[rank] for rank in ranks] if ranks else list(core_members(unit))
    reasons = DomainReasons(unit, planned, problem, round_state, fails=fails)
    out: list[DomainExplanation] = []
    for level in range(tree.depth):
        for d, have in enumerate(usable(level).tolist()):
            reason = reasons.of(level, d, have)
            if divided and level >= problem.hard:
                reason = divided
            elif (level, d) == chosen:
                reason = "chosen"  # even if it has fewer slots, because slots are those of the reference pod alone
            out.append(
                DomainExplanation(
                    tree.layer_name(level), tree.path(level, d), have, needed, (level, d) == chosen, reason
                )
            )
    if chosen is not None and chosen[0] == tree.depth:
        have = int(usable(tree.depth)[chosen[1]])
        path = tree.path(*chosen)
        out.append(DomainExplanation(tree.layer_name(tree.depth), path, have, needed, True, "chosen"))
    return tuple(out)


def _staying(decided: DecidedPod) -> list[int]:
    """Returns the node positions of the unit's bound members after the plan is carried out.

    Members that the plan evicts are left out. A member that the plan moves has its new node.
    """
    index, outcome = decided.snapshot.index, decided.outcome
    victims = outcome.victims if isinstance(outcome, PreemptingUnit) else ()
    gone = {pod.key for victim in victims for pod in victim.unit.pods}
    there = [index[pod.node] for pod in decided.unit.members if pod.node in index and pod.key not in gone]
    by_rules = victims and outcome.attempt.method == Method.RULES
    moved = place_by_rules(decided.unit, decided.round_state) if by_rules else None
    return there if moved is None else [*there, *moved.returns.values()]
