# SPDX-License-Identifier: Apache-2.0
"""Composes the texts about preemption: a sentence in messages of pending pods, and the events on evicted pods.

The beneficiary of an eviction is the pending pod or gang that gets the freed capacity. Sources: preemption.md 8,
kube-parity.md 1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from koordpy.api.counted_nouns import count_noun
from koordpy.attempts.unit_outcome import PreemptingUnit
from koordpy.fairness.quota_admission import core_members
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.filter_protocol import Code
from koordpy.gangs.broken_gangs import only_waits
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import Benefit, Eviction, Placement, Proof
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.rules.victim_rules import BY_NAME
from koordpy.preemption.search.ending_pods import waits_on_nominated
from koordpy.preemption.search.preemptor_sets import members_preempt_individually
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_units import UnitKind
from koordpy.quota.quota_book import card_hundredths

NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NEVER = "preemption: not eligible due to preemptionPolicy=Never."
WAIT = "preemption: not eligible due to repair policy wait."
ENDING = "preemption: not eligible due to a terminating pod on the nominated node."
RECLAIMING = (RuleName.QUOTA, RuleName.FAIR_SHARE)
"""Preemption rules that reclaim capacity. While one of them is enabled, each eviction records the victim's unit
(`victim_unit`), because that unit must not reclaim the capacity again for a while (preemption.md 3.6).
"""


def preemption_bar(unit: Unit, round_state: RoundState) -> str:
    """Returns the sentence on the setting by which a whole unit preempts no pod; empty if no setting forbids it.

    The setting is preemptionPolicy Never of a core member, unless the members preempt one by one, or the repair policy
    `wait` of a broken gang (docs/rules/repair.md 4.3).
    """
    core = () if members_preempt_individually(unit) else core_members(unit)
    if any(pod.preemption_policy == "Never" for pod in core):
        return NEVER
    return WAIT if unit.bound_any and only_waits(unit.gangs, round_state.snapshot, round_state.config.repair) else ""


def preemption_sentence(pod: PodInfo, round_state: RoundState, *, bar: str = "") -> str:
    """Returns kube-scheduler's sentence on preemption, which follows its sentence on the filters in a message.

    Empty if preemption is disabled, or if the cluster has no nodes. bar: result of `preemption_bar` for the pod's unit.
    """
    total = len(round_state.snapshot.nodes)
    if not round_state.config.preemption.enabled or not total:
        return ""
    if bar or pod.preemption_policy == "Never":
        return bar or NEVER
    if waits_on_nominated(pod, round_state):
        return ENDING
    own = round_state.of(pod)
    counts: Counter[str] = Counter()
    if own.refusal is not None:
        counts[NOT_HELPFUL if own.refusal.code is Code.UNRESOLVABLE else NO_VICTIMS] = total
    else:
        verdict = own.verdict()
        numbers = np.bincount(verdict.which, minlength=len(verdict.refusals) + 1).tolist()
        counts[NO_VICTIMS] = numbers[0]
        for refusal, number in zip(verdict.refusals, numbers[1:], strict=True):
            counts[NOT_HELPFUL if refusal.code is Code.UNRESOLVABLE else NO_VICTIMS] += number
    entries = sorted(f"{number} {reason}" for reason, number in counts.items() if number)
    return f"preemption: 0/{total} nodes are available: {', '.join(entries)}."


# --- events -----------------------------------------------------------------------------------------------------------

DEFAULT_GRACE_SECONDS = 30
"""Termination grace period of a pod without the field, as the API server sets it."""
MOVED = "Moved"
"""Reason for victims that koordpy places on other nodes."""
_REASONS = {
    **{rule.name: rule.reason for rule in BY_NAME.values()},
    RuleName.CONSOLIDATION: MOVED,
    RuleName.STALE_GANG: "StaleGang",
    RuleName.REPAIR: MOVED,
}
"""Rule -> reason of the event on a victim."""


def beneficiary_of(one: PreemptingUnit) -> str:
    """Returns `namespace/name` of the beneficiary: the plain pod, or the gang of the placed member with the lowest
    rank."""
    if one.unit.plain is not None:
        return one.unit.plain.key
    first = next((pod for pod in one.unit.members if pod.key in one.nodes), one.unit.members[0])
    return first.gang.key if first.gang is not None else first.key


def unit_evictions(one: PreemptingUnit, round_state: RoundState) -> list[Eviction]:
    """Returns the evictions of one unit's plan, each with the reason and text of the event on the victim.

    For victims by the rule `priority` the text is kube-scheduler's, with more detail. Each other rule has another text.
    """
    # the preemptor as text, and the nodes that its pods get
    name = beneficiary_of(one)
    placed = [round_state.snapshot.pods[key] for key in one.nodes]
    kind = "gang" if one.unit.is_gang else "pod"
    many = f"{count_noun(len(placed), 'pod')}, " if one.unit.is_gang else ""
    preemptor_text = f"{kind} {name} ({many}priority {min((pod.priority for pod in placed), default=0)}"
    back = {b.pod.key: round_state.snapshot.nodes[b.node].name for b in one.back}
    devices = {b.pod.key: b.devices for b in one.back}
    taken = {round_state.snapshot.nodes[node].name for node in one.nodes.values()}
    reclaims = any(BY_NAME[name].is_open(round_state.snapshot, round_state.config) for name in RECLAIMING)
    out = []
    for victim in one.victims:
        for pod in victim.unit.pods:
            if victim.rule is RuleName.PRIORITY:
                text = f"Preempted by {preemptor_text} over {pod.priority}) on node {pod.node}"
                if victim.unit.kind is UnitKind.CORE and pod.node not in taken:
                    text += ", evicted with its gang"
            else:
                rule = BY_NAME.get(victim.rule)
                text = f"{rule.reason if rule is not None else 'Moved'} for {kind} {name}: {victim.why}"
            returns_to = back.get(pod.key, "")
            evicted = _eviction(pod, victim.rule, name, text, unit=one.unit.id, returns_to=returns_to)
            if devices.get(pod.key):
                evicted = replace(evicted, returning_devices=devices[pod.key])
            if reclaims and victim.rule in BY_NAME:
                evicted = replace(evicted, victim_unit=round_state.unit_id(pod))
            out.append(evicted)
    return out


def given_back_evictions(pods: Iterable[PodInfo], text: str) -> list[Eviction]:
    """Returns the evictions of pods of a quota above its runtime. They have no beneficiary."""
    return [_eviction(pod, RuleName.QUOTA, None, text) for pod in pods]


def stale_evictions(gang: Gang, pods: Iterable[PodInfo], text: str, unit: Unit) -> list[Eviction]:
    """Returns the evictions of members of a unit with a stale gang (it has lost members that it needs).

    The beneficiary is the stale gang. pods: of this gang, or of another gang in its GangGroup. unit: of the gang. The
    evictions of all its gangs have one id, so that they are carried out together.
    """
    name = unit.id if len(unit.gangs) > 1 else "gang:" + gang.key
    return [_eviction(pod, RuleName.STALE_GANG, gang.key, text, unit=name) for pod in pods]


def hurt_evictions(gang: Gang, pods: Iterable[PodInfo], unit: str, returns: Mapping[str, str]) -> list[Eviction]:
    """Returns the evictions of members that use unhealthy devices. The beneficiary is the gang itself.

    unit: id of the gang's unit. The evictions get a different id derived from it, because no pending member waits for
    them. returns: key of a member -> name of its new node.
    """
    text = f"Moved for gang {gang.key}: a device of the pod is unhealthy"
    name = f"hurt:{unit}"
    return [_eviction(pod, RuleName.REPAIR, gang.key, text, unit=name, returns_to=returns[pod.key]) for pod in pods]


def _eviction(
    pod: PodInfo, rule: RuleName, beneficiary: str | None, message: str, *, unit: str = "", returns_to: str = ""
) -> Eviction:
    """Returns the eviction of one pod. returns_to: node to which a moved pod returns; empty for none."""
    given = pod.pod.spec.termination_grace_period_seconds
    return Eviction(
        pod_key=pod.key,
        uid=pod.uid,
        node=pod.node,
        rule=str(rule),
        beneficiary=beneficiary,
        unit=unit,
        reason=_REASONS[rule],
        message=message,
        priority=pod.priority,
        grace_seconds=DEFAULT_GRACE_SECONDS if given is None else given,
        returns_to=returns_to,
    )


def nominations(unit: Unit, nodes: Mapping[str, int], round_state: RoundState) -> list[Placement]:
    """Returns the nominations of a unit's members for the nodes that they get after the victims have terminated.

    nodes: pod key -> node position.
    """
    snapshot = round_state.snapshot
    return [Placement(key, snapshot.pods[key].uid, snapshot.nodes[node].name, unit.id) for key, node in nodes.items()]


def benefit(one: PreemptingUnit, round_state: RoundState) -> Benefit:
    """Returns the totals and the sentence of one unit's plan with victims: the pods evicted, and the pods that
    start."""
    pods = [pod for victim in one.victims for pod in victim.unit.pods]
    devices = sum(card_hundredths(pod.charged) for pod in pods)
    broken = sum(victim.unit.kind is UnitKind.CORE for victim in one.victims)
    text = f"evicts {count_noun(len(pods), 'pod')}"
    if devices:
        text += f" with {count_noun(devices / 100, 'accelerator')}"
    if broken:
        text += f" ({count_noun(broken, 'gang')} broken)"
    text += f" so that {count_noun(len(one.nodes), 'pod')} can start"
    if one.attempt.proof is not Proof.OPTIMAL:
        text += f" (best found: {count_noun(len(pods), 'pod')}"
        text += f", bound {one.least}: any plan evicts at least {count_noun(one.least, 'pod')})" if one.least else ")"
    if rejected := one.attempt.rejected:
        text += f". Earlier in this round, {rejected[0].text.removeprefix('internal error: ')}"
    return Benefit(one.unit.id, beneficiary_of(one), text)
