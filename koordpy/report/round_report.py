# SPDX-License-Identifier: Apache-2.0
"""Creates the `RoundPlan`, the result of a planning round, from the outcomes of its units.

The RoundPlan has all data that the scheduler then writes to the API server, and that commands print: placements with
the annotations of their Bindings, evictions, nominations, messages of pending pods, and reports. `pending_messages.py`
composes the messages, `unit_reports.py` the reports of gangs and units. Sources: gang-network.md sections 2.7 and 6;
kube-parity.md 1.
"""

from collections.abc import Sequence
from dataclasses import replace

from koordpy.api import keys
from koordpy.attempts.reason_rules import Reasons
from koordpy.attempts.unit_outcome import (
    BoundUnit,
    DecidedUnit,
    DeferredUnit,
    NoCapacity,
    PlacedUnit,
    PreemptingUnit,
    RejectedUnit,
    UnitOutcome,
    WaitingUnit,
)
from koordpy.cache.reservations import Reservation
from koordpy.cache.snapshot import Snapshot
from koordpy.fairness.least_requests import least_requests
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import is_broken
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate, wish_warnings
from koordpy.infeasibility.fixed_domains import unknown_fixed_layers
from koordpy.infeasibility.never_fits import never_fits
from koordpy.plan.pending_reason import Reason
from koordpy.plan.quota_needs import QuotaNeed
from koordpy.plan.round_plan import (
    Deferral,
    Eviction,
    GangReport,
    PendingPod,
    Placement,
    RejectedPlan,
    RoundPlan,
    UnitReport,
)
from koordpy.plugins.spare_nodes import spare_names
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.provisioning.asking_units import Asking
from koordpy.provisioning.request_states import has_valid_attempt
from koordpy.report.eviction_words import (
    benefit,
    nominations,
    unit_evictions,
)
from koordpy.report.pending_messages import SentenceCache, pending_pods
from koordpy.report.setting_warnings import counted_parts, warnings_of
from koordpy.report.unit_reports import bound_domain, gang_report, unit_report

_BY_NODES = frozenset((Reason.UNSCHEDULABLE, Reason.WAITING_FOR_PROVISIONING))
"""Reasons with which nodes are added for a unit."""
_KnownNeeds = dict[tuple[bytes, Owner], tuple[QuotaNeed, ...]]
"""(shape, owner) of a plain pod -> what it would add to its quotas."""


def report_round(
    round_state: RoundState,
    outcomes: Sequence[UnitOutcome],
    *,
    every_gang: bool,
    evictions: Sequence[Eviction] = (),
    rejected: Sequence[RejectedPlan] = (),
    warnings: Sequence[tuple[str, str]] = (),
    not_minimal: Sequence[str] = (),
    withheld: Reservation | None = None,
) -> RoundPlan:
    """Returns the RoundPlan of the outcomes of all units that the round has planned, on the draft after the round.

    every_gang: True to report also gangs that this round has not planned. evictions: evictions that are not part of a
    unit's plan. rejected: plans of actions that the independent check refused. warnings: (object, sentence).
    not_minimal: units with a plan that evicts more pods than necessary. withheld: the reservation for a promised start;
    None without one.
    """
    groups = round_state.groups
    snapshot = round_state.snapshot
    nodes = [one.nodes for one in outcomes if isinstance(one, PlacedUnit)]
    placed = {key: snapshot.nodes[node].name for of_unit in nodes for key, node in of_unit.items()}
    placements: list[Placement] = []
    pending: list[PendingPod] = []
    units: list[UnitReport] = []
    gang_reports: dict[str, GangReport] = {}
    sentences: SentenceCache | None = None
    provisioning = round_state.config.autoscaling.provisioning
    asking = Asking(snapshot, provisioning) if provisioning.mode != "off" else None
    reasons: Reasons | None = None
    needs: _KnownNeeds = {}
    deferred: list[Deferral] = []
    decided = [one.unit for one in outcomes if not isinstance(one, DeferredUnit)]
    # units of this round
    for one in outcomes:
        if isinstance(one, DeferredUnit):
            deferred.append(Deferral(one.unit.id, one.reason, one.attempt.seconds))
            continue
        after = one.unit.with_bound(placed, round_state.draft.evicted)
        placements += _placements(one, after, round_state, asking)
        with round_state.draft.with_withheld(withheld if _is_beside_promise(one) else None):
            never = _never_reason(one, after, round_state)
            texts: list[PendingPod] = []
            if waiting := _waiting_pods(one, after):
                sentences = sentences or SentenceCache()
                reasons = reasons or Reasons(round_state, asking, has_promise=withheld is not None)
                texts = pending_pods(one, waiting, after, round_state, sentences, reasons, never)
                never = texts[0].never
        pending += texts
        report = unit_report(one, after, round_state, never)
        if texts and snapshot.live and texts[0].reason in _BY_NODES:
            report = replace(report, quota_needs=_quota_needs(after, snapshot, needs))
        units.append(report)
        by_gang = {p.gang: p for p in reversed(texts)}
        for gang in after.gangs if after.is_gang else ():
            first = by_gang.get(gang.key)
            gang_reports[gang.ref.source.value + gang.key] = gang_report(gang, after, round_state, one, first, never)
    # gangs that this round has not planned
    broken: list[Unit] = []
    for ref in groups.every() if every_gang else ():
        if ref.source.value + ref.key not in gang_reports:
            unit = groups.unit(ref).with_bound(placed, round_state.draft.evicted)
            # no gang of this gang's unit was planned: all of them are reported here
            for gang in unit.gangs:
                known = gang_report(gang, unit, round_state, None, None)
                gang_reports.setdefault(gang.ref.source.value + gang.ref.key, known)
            if is_broken(unit.gangs):
                broken.append(unit)
    evicting = [one for one in outcomes if isinstance(one, PreemptingUnit)]
    return RoundPlan(
        placements=tuple(placements),
        evictions=(
            *(eviction for one in evicting for eviction in unit_evictions(one, round_state)),
            *sorted(evictions, key=lambda eviction: eviction.beneficiary is None),
        ),
        pending=tuple(pending),
        gangs=tuple(gang_reports.values()),
        units=tuple(units),
        nominations=tuple(
            nomination for one in evicting for nomination in nominations(one.unit, one.nodes, round_state)
        ),
        awaiting_nominations=tuple(
            nomination
            for one in outcomes
            if isinstance(one, WaitingUnit)
            for nomination in nominations(one.unit, one.awaits, round_state)
        ),
        rejected=(*(plan for one in outcomes for plan in one.attempt.rejected), *rejected),
        benefits=tuple(benefit(one, round_state) for one in evicting),
        spares=spare_names(snapshot) if snapshot.keeps_spares else (),
        warnings=(
            *(warnings_of(decided, groups) if _has_settings(decided, snapshot) else ()),
            *(wish_warnings(broken, groups) if broken else ()),
            *(unknown_fixed_layers(round_state) if round_state.config.autoscaling.fixed_layers else ()),
            *(_warnings_of_asking(decided, asking) if asking is not None else ()),
            *warnings,
        ),
        wanted_nodes=tuple(reasons.wanted.values()) if reasons is not None else (),
        not_minimal=tuple(not_minimal),
        parts_by_number=tuple(counted_parts(decided))
        if any(pod.asks for one in decided for pod in one.pending)
        else (),
        deferred=tuple(deferred),
    )


def _quota_needs(unit: Unit, snapshot: Snapshot, known: _KnownNeeds) -> tuple[QuotaNeed, ...]:
    """Returns what a unit would add to its quotas. known: answers for plain pods of this round; extended here."""
    if unit.plain is None:
        return least_requests(unit, snapshot.quotas)
    key = unit.plain.shape, unit.plain.owner
    if key not in known:
        known[key] = least_requests(unit, snapshot.quotas)
    return known[key]


def _waiting_pods(one: DecidedUnit, after: Unit) -> Sequence[PodInfo]:
    """Returns a unit's pods that stay pending. after: the unit as if the placements of the plan were bound."""
    if one.unit.plain is None:
        return after.pending
    return () if isinstance(one, PlacedUnit) else (one.unit.plain,)


def _has_settings(units: Sequence[Unit], snapshot: Snapshot) -> bool:
    """Returns True if an object of the units, or of the cluster, may have a setting that has no effect."""
    if snapshot.topology_warnings or snapshot.node_warnings or snapshot.quotas.tree.warnings:
        return True
    if any(view.warnings for view in snapshot.families.values()) or any(unit.gangs for unit in units):
        return True
    metas = [(pod.asks, pod.pod.metadata) for unit in units for pod in unit.pending]
    return any(asks or meta.labels or meta.annotations for asks, meta in metas)


def _is_beside_promise(one: DecidedUnit) -> bool:
    """Returns True if a unit waits because capacity is reserved for the promised start of an earlier unit."""
    match one:
        case WaitingUnit(diagnosis=NoCapacity(beside_promise=True)):
            return True
    return False


def _warnings_of_asking(units: Sequence[Unit], asking: Asking) -> list[tuple[str, str]]:
    """Returns warnings about units for which nodes are requested, and about ProvisioningRequests that are invalid."""
    found = [warning for unit in units for warning in asking.request_of(unit).warnings]
    odd = (one for own in asking.requests.values() for one in own if not has_valid_attempt(one))
    text = f"annotation {keys.PROVISIONING_ATTEMPT} is no whole number of 1 or more: 1 holds"
    return found + [(f"ProvisioningRequest/{one.metadata.namespace}/{one.metadata.name}", text) for one in odd]


def _placements(
    one: DecidedUnit, after: Unit, round_state: RoundState, asking: Asking | None = None
) -> list[Placement]:
    """Returns the placements of a unit with the annotations of their Bindings; empty if it is not placed.

    asking: the units for which nodes were requested. Their Bindings name the ProvisioningRequest; None for no units.

    A gang member gets annotations with its rank, with the domain of the bound members, and with the id and size of the
    set of members that are bound together.
    """
    if not isinstance(one, PlacedUnit):
        return []
    snapshot = round_state.snapshot
    notes: dict[str, str] = {}
    ranks: dict[str, int] = {}
    if one.unit.is_gang:
        ranks = one.unit.ranks()
        where = bound_domain(after, round_state, tuple(pod for pod in after.members if pod.bound))
        if where is not None:
            notes[keys.BOUND_DOMAIN] = snapshot.tree.path(*where)
        if len(one.nodes) > 1:
            notes[keys.BIND_GROUP_ID] = one.unit.group_id
            notes[keys.BIND_MEMBER_COUNT] = str(len(one.nodes))
        if asking is not None:
            notes |= asking.notes_of_bindings(one.unit)
    out = []
    for key, node in one.nodes.items():
        own = {keys.BOUND_RANK: str(ranks[key]), **notes} if key in ranks else {}
        own.update(one.notes.get(key, {}))
        pod = snapshot.pods[key]
        own = {**_cleared_annotations(pod, own), **own}
        claims = round_state.draft.claims(key)
        devices = round_state.draft.devices_of(key)
        out.append(Placement(key, pod.uid, snapshot.nodes[node].name, one.unit.id, own, claims, devices))
    return out


def _cleared_annotations(pod: PodInfo, own: dict[str, str]) -> dict[str, str]:
    """Returns an empty value for each koordpy annotation that the pod already has and this Binding does not set.

    A Binding can only add or overwrite annotations, not remove them.
    """
    return {key: "" for key in pod.pod.metadata.annotations if keys.is_written(key) and key not in own}


def _never_reason(one: DecidedUnit, after: Unit, round_state: RoundState) -> str:
    """Returns why a unit never fits; empty if it may fit, or if that was not checked.

    It is not checked if the unit waits for another reason (a gate, terminating pods, or reserved capacity), or if all
    its members are placed.
    """
    match one:
        case BoundUnit() | PreemptingUnit():
            asked = one.unit.plain is None and bool(after.pending)
        case WaitingUnit(diagnosis=Gate()) | RejectedUnit():
            asked = False
        case WaitingUnit(diagnosis=NoCapacity() as lack):
            asked = not (one.awaits or lack.hold or lack.beside_promise)
        case WaitingUnit():
            asked = not one.awaits
    return never_fits(after, round_state) if asked else ""
