# SPDX-License-Identifier: Apache-2.0
"""Composes the message of each pending pod: why it is not placed, as shown in its PodScheduled condition and events.

A message joins up to four sentences: kube-scheduler's, and those on the gang, on quotas and on reservations. There is
one entry per pending member. Pods and units of one equivalence class share their sentences within a round, because
computing them is expensive. Source: gang-network.md 6, kube-parity.md 1.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from koordpy.api.counted_nouns import count_noun
from koordpy.attempts.reason_rules import PendingReason, Reasons
from koordpy.attempts.unit_attempt import equivalence_class
from koordpy.attempts.unit_outcome import (
    BoundUnit,
    DecidedUnit,
    NoCapacity,
    PreemptingUnit,
    RejectedUnit,
    WaitingUnit,
)
from koordpy.devices.family_registry import find_obstruction
from koordpy.fairness.quota_admission import PLUGIN
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.pending_reason import SELF_CHECK, Reason
from koordpy.plan.round_plan import PendingPod, Proof
from koordpy.plugins.spare_nodes import spares_of
from koordpy.pods.pod_info import PodInfo
from koordpy.report.denial import KEPT, core_size, filter_sentence, gang_need, met_sentence
from koordpy.report.eviction_words import (
    preemption_bar,
    preemption_sentence,
)
from koordpy.report.gang_sentence import GangNeed, GangSentence, join_sentences
from koordpy.report.rollout_words import blocked_by_predecessor, holder_of_room


@dataclass
class SentenceCache:
    """Caches the sentences of one round. The keys contain everything that a sentence depends on."""

    sentences: dict[tuple[bytes, bool, bool], tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """(pod key of `RoundState.key`, alone, with_promise) -> result of `sentence`."""
    needs: dict[Hashable, GangNeed] = field(default_factory=dict)
    """Equivalence class of a unit -> result of `gang_need`."""
    preemptions: dict[tuple[bytes, bool, str, str], str] = field(default_factory=dict)
    """(pod key of `RoundState.key`, with_promise, preemptionPolicy, bar) -> result of `preemption`."""
    entries: dict[Hashable, tuple[PendingReason, str, tuple[str, ...]]] = field(default_factory=dict)
    """Key of the pod's outcome -> (reason, message, plugins) of plain pods."""

    def sentence(
        self, pod: PodInfo, key: bytes, round_state: RoundState, *, alone: bool, with_promise: bool
    ) -> tuple[str, tuple[str, ...]]:
        """Returns (kube-scheduler's sentence on the filters, plugins that refused) for pods with this key.

        alone: True for a plain pod. with_promise: True if capacity for a promised start is withheld from the pod in the
        round state. Then the sentence says that nodes without a refusal are needed for that start.
        """
        known = self.sentences.get((key, alone, with_promise))
        if known is None:
            if alone and with_promise:
                known = filter_sentence(pod, round_state, alone=False, passing=KEPT)
            else:
                known = filter_sentence(pod, round_state, alone=alone)
            self.sentences[key, alone, with_promise] = known
        return known

    def preemption(self, pod: PodInfo, key: bytes, round_state: RoundState, *, with_promise: bool, bar: str) -> str:
        """Returns kube-scheduler's sentence on preemption for pods with this key. Not cached for a nominated pod.

        bar: result of `preemption_bar` for the pod's unit.
        """
        if pod.nominated_node:
            return preemption_sentence(pod, round_state, bar=bar)
        alike = key, with_promise, pod.preemption_policy, bar
        known = self.preemptions.get(alike)
        if known is None:
            known = self.preemptions[alike] = preemption_sentence(pod, round_state, bar=bar)
        return known

    def gang_need(self, unit: Unit, kind: Hashable | None, round_state: RoundState) -> GangNeed:
        """Returns the sentence on what a gang needs and what is available (`denial.gang_need`).

        kind: equivalence class of the unit; None if the result must not be cached.
        """
        known = self.needs.get(kind) if kind is not None else None
        found = known or gang_need(unit, round_state)
        if kind is not None:
            self.needs[kind] = found
        return found


def pending_pods(
    one: DecidedUnit,
    waiting: Sequence[PodInfo],
    after: Unit,
    round_state: RoundState,
    words: SentenceCache,
    reasons: Reasons,
    never: str,
) -> list[PendingPod]:
    """Returns an entry with the message for each pending member of a unit.

    waiting: the pending members, at least one. after: the unit as if the placements of the plan were bound. reasons:
    decides the reason of the members. never: why the unit never fits; empty if it may fit. The entries of a unit that
    only reserved capacity holds back do not contain it.

    The first cause that applies determines the message: a gate, a plan that the check refused, a quota, no capacity.
    """

    def pending_entry(
        pod: PodInfo, said: PendingReason, text: str, plugins: tuple[str, ...], *, gated: bool = False
    ) -> PendingPod:
        gang = pod.gang.key if pod.gang is not None else None
        return PendingPod(
            pod.key,
            one.unit.id,
            gang,
            said.reason,
            text,
            gated=gated,
            plugins=plugins,
            never=never,
            mode=round_state.config.autoscaling.reasons,
        )

    match one:
        case WaitingUnit(diagnosis=Gate() as gate):
            said = reasons.of(one, after, None)
            return [pending_entry(pod, said, gate.text, gate.plugins, gated=not gate.plugins) for pod in waiting]
        case RejectedUnit(fault=fault):
            text = f"internal error: {SELF_CHECK}: {fault}"
            said = reasons.of(one, after, None)
            return [pending_entry(pod, said, text, ()) for pod in waiting]
    alone = not one.unit.is_gang
    kind = equivalence_class(after, round_state)
    shared = (kind, one.diagnosis, one.reasons, never) if alone and _is_copied(one) else None
    if shared is not None and (entry := words.entries.get(shared)) is not None:
        return [pending_entry(pod, *entry) for pod in waiting]
    # a quota refusal: on the current draft, or else in the unit's attempt. `lack`: diagnosis of a unit without
    # capacity; `alone`: True for a plain pod; `met`: gang -> sentence if its minimum is met
    wait = one if isinstance(one, WaitingUnit) else None
    lack = wait.diagnosis if wait is not None and isinstance(wait.diagnosis, NoCapacity) else NoCapacity()
    blocked = wait.reasons if wait is not None else ()
    met = {} if alone else met_sentence(after)
    first = wait.refusal if wait is not None else None
    asks_quotas = wait is None or first is not None
    refusal = (round_state.admission.core_refusal(after, round_state.draft.quotas) if asks_quotas else None) or first
    # entries of copied plain pods are shared as a whole
    said = reasons.of(one, after, refusal, kind if not alone and _is_copied(one) else None, never=bool(never))
    if said.reason is Reason.HELD_BACK:
        never = ""  # only spare nodes would hold the unit, and a spare becomes free if it is no spare any more
    core = core_size(after)
    fits_alone = [f"never fits: {never}"] if never and alone else []
    out: list[PendingPod] = []
    known_texts: dict[tuple[bytes, str | None, str | None, bool], tuple[str, tuple[str, ...]]] = {}
    if refusal is not None:
        room = f"quota {refusal.quota} has room for {refusal.remaining}"
        lacks = GangNeed(f"needed {core}, {room if refusal.limit_name else refusal.reason}")
        texts = [refusal.text(len(round_state.snapshot.nodes)), *blocked]
        for pod in waiting:
            of_gang = met.get(pod.gang.key if pod.gang else "", "")
            gang = None if alone else GangSentence(after.group_id, lacks, of_gang, never)
            text = _message(gang, [*texts, *fits_alone], said.sentence)
            out.append(pending_entry(pod, said, text, (PLUGIN,)))
        return out
    # no capacity: the sentence of the gang, then for each pod the sentences on filters and on preemption
    remarks = _remarks(one, after, waiting[0], round_state, undecided=not never)
    if said.reason is Reason.HELD_BACK and (spares := spares_of(round_state.snapshot)):
        remarks.append(count_noun(len(spares), "spare node"))
    awaited = wait.awaits if wait is not None and not alone else {}
    surplus = PendingReason(Reason.UNSCHEDULABLE)  # a member without a place in capacity that terminating pods free
    if alone:
        lacks = GangNeed("")
    elif awaited:  # one sentence for all members; it does not change while the awaited pods terminate
        lacks = GangNeed(f"needed {core}, {blocked[0].removesuffix('.')}")
    else:
        need = words.gang_need(after, None if lack.beside_promise else kind, round_state)
        lacks = need.with_additions(remarks)
    held_room = [text for text in (lack.hold, lack.promise) if text]
    bar = preemption_bar(one.unit, round_state)
    for pod in waiting:
        gang_key = pod.gang.key if pod.gang is not None else None
        key = round_state.key(pod)
        awaits = pod.key in awaited
        alike = (key, pod.preemption_policy, gang_key, awaits)
        known = None if pod.nominated_node else known_texts.get(alike)
        if known is None:
            text, plugins = words.sentence(pod, key, round_state, alone=alone, with_promise=lack.beside_promise)
            if awaits:
                texts = [f"0/{len(round_state.snapshot.nodes)} nodes are available: {blocked[0]}"]
            else:
                texts = [
                    text,
                    words.preemption(pod, key, round_state, with_promise=lack.beside_promise, bar=bar),
                    *(blocked if not awaited else ()),
                ]
            texts += [*fits_alone, *held_room]
            if alone:
                known = _message(None, [*texts, *remarks], said.sentence), plugins
            else:
                gang = GangSentence(after.group_id, lacks, met.get(gang_key or "", ""), never)
                known = _message(gang, texts, said.sentence), plugins
            if not pod.nominated_node:
                known_texts[alike] = known
        out.append(pending_entry(pod, surplus if awaited and not awaits else said, *known))
        if shared is not None:
            words.entries[shared] = said, *known
    return out


def _is_copied(one: DecidedUnit) -> TypeGuard[WaitingUnit]:
    """Returns True if the outcome is the same for all units of an equivalence class (`WaitingUnit.copy_for`)."""
    match one:
        case WaitingUnit(diagnosis=NoCapacity(beside_promise=False)):
            nominated = any(pod.nominated_node for pod in one.unit.pending)
            return one.attempt.proof is not Proof.UNKNOWN and not (one.awaits or nominated)
    return False


def _message(gang: GangSentence | None, texts: Iterable[str], last: str) -> str:
    """Returns the message of a pod: the gang's short sentence, `texts`, then the gang's full sentence if needed.

    gang: sentence of its gang; None for a plain pod. texts: kube-scheduler's sentence, then the sentences on preemption
    and reservations; empty texts are left out (gang-network.md 6). last: a last sentence without a full stop; empty for
    none.
    """
    sentences = [text for text in texts if text]
    if gang is not None:
        sentences = [gang.first, *sentences, *gang.last]
    if last:
        return f"{join_sentences(sentences)} {last}"
    if gang is not None:
        return join_sentences(sentences)
    return sentences[0] if len(sentences) == 1 else join_sentences(sentences)


def _remarks(
    one: BoundUnit | PreemptingUnit | WaitingUnit,
    after: Unit,
    first: PodInfo,
    round_state: RoundState,
    *,
    undecided: bool,
) -> list[str]:
    """Returns remarks on a unit, which are additions to the sentence of a gang, or sentences for a plain pod.

    The remarks, as far as they apply: the solver did not decide; remarks of the unit's attempt; the pod of a rollout
    that uses the capacity; the unhealthy device that blocks it; the older pod that blocks the rollout. first: any
    pending pod of the unit. undecided: False if it is proven in another way that the unit never fits.
    """
    attempt = one.attempt
    refused = next((run for run in attempt.runs if run.fault), None)
    match one:
        case (
            BoundUnit(remark=remark) | PreemptingUnit(remark=remark) | WaitingUnit(diagnosis=NoCapacity(remark=remark))
        ):
            pass
        case _:
            remark = ""
    out = []
    undecided &= attempt.proof is Proof.UNKNOWN
    if undecided and refused is not None:
        out.append(f"not decided, the solver refused ({refused.stage}): {refused.fault}")
    elif undecided and one.unit.is_gang:
        out.append("not decided in time")
    if remark:
        out.append(remark)
    if one.unit.is_gang and (holder := holder_of_room(after, round_state)):
        out.append(holder)
    if (found := find_obstruction(first, round_state)) is not None:
        out.append(found.sentence)
    if one.unit.is_gang and (blocked := blocked_by_predecessor(after, round_state)):
        out.append(blocked)
    return out
