# SPDX-License-Identifier: Apache-2.0
"""Decides the reason of a pending unit from its outcome (repair.md 1.2), and why no new node would help (1.3).

`Reasons.of` gives all pending members of a unit one reason. Gated, rejected and preempting units have fixed reasons;
for other units it is the first condition that applies, in the order of the table in repair.md 1.2. A unit is planned a
second time only if capacity withheld for other units may be what blocks it; units of one equivalence class share the
result.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from koordpy.attempts.unit_attempt import equivalence_class, plan_unit
from koordpy.attempts.unit_outcome import (
    DecidedUnit,
    PlacedUnit,
    PreemptingUnit,
    RejectedUnit,
    WaitingUnit,
)
from koordpy.cache.plan_draft import Draft
from koordpy.fairness.quota_admission import QuotaRefusal
from koordpy.feasibility.round_state import RoundState
from koordpy.feasibility.shape_state import ShapeState
from koordpy.framework.filter_protocol import Refusal
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.infeasibility.fixed_domains import find_unit_cause
from koordpy.infeasibility.limiting_rules import missing_member
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import Proof
from koordpy.plan.wanted_nodes import WantedNodes
from koordpy.plugins.node_independent import find_cause
from koordpy.pods.pod_info import PodInfo
from koordpy.provisioning.asking_units import Asking
from koordpy.provisioning.request_states import RequestPhase, state_of


@dataclass(frozen=True, slots=True)
class PendingReason:
    """The reason of a unit's pending members."""

    reason: Reason
    cause: str = ""
    """Why no new node would help; empty unless the reason is NodesCannotHelp."""

    @property
    def sentence(self) -> str:
        """The end of the members' messages, such as "no new node would help: ..."; empty if there is no cause."""
        return f"no new node would help: {self.cause}" if self.cause else ""


@dataclass
class Reasons:
    """Decides the reasons of one round, on the draft that has all placements of the round."""

    round_state: RoundState
    asking: Asking | None = None
    """The units that request nodes by ProvisioningRequests; None if no unit does."""
    wanted: dict[str, WantedNodes] = field(default_factory=dict)
    """Id of a unit with the reason WaitingForProvisioning or ProvisioningFailed -> the nodes that it requests."""
    has_promise: bool = False
    """True if a start is promised to a unit, so that capacity is withheld from later units."""
    _unreserved: RoundState | None = None
    """The round state without withheld capacity; None until it is needed."""
    _held_back: dict[Hashable, bool] = field(default_factory=dict)
    """Equivalence class -> True if its units fit once no capacity is withheld."""
    _known: dict[Hashable, PendingReason] = field(default_factory=dict)
    """Equivalence class -> the reason of its units, if their outcomes are copies of one outcome."""

    def of(
        self,
        outcome: DecidedUnit,
        after: Unit,
        refusal: QuotaRefusal | None,
        kind: Hashable | None = None,
        *,
        never: bool = False,
    ) -> PendingReason:
        """Returns the reason of a unit's members that stay pending.

        after: the unit with the pods of its plan bound. refusal: the quota that refuses the pending members now; None
        if none does. kind: equivalence class of the unit, if all units of the class have this outcome; None otherwise.
        never: True if it is proven that the unit never fits.
        """
        if kind is None or self.asking is not None:  # a request for nodes is of one unit
            return self._decide(outcome, after, refusal, never=never)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._decide(outcome, after, refusal, never=never)
        return known

    def _decide(self, outcome: DecidedUnit, after: Unit, refusal: QuotaRefusal | None, *, never: bool) -> PendingReason:
        """Returns the reason of a unit; arguments as in `of`."""
        match outcome:
            case WaitingUnit(diagnosis=Gate(reason=reason)):
                return _REASONS[reason]
            case RejectedUnit():
                return _REASONS[Reason.SCHEDULER_ERROR]
            case PreemptingUnit():  # surplus members, which are not nominated
                return _REASONS[Reason.UNSCHEDULABLE]
        state = self.round_state.of(after.plain) if after.plain is not None else None
        if _lacks_object(state) if state is not None else self._lacks_objects(after):
            return _REASONS[Reason.NOT_READY]
        if isinstance(outcome, WaitingUnit) and outcome.awaits:
            return _REASONS[Reason.WAITING_FOR_TERMINATION]
        if refusal is not None and _is_refused_in_larger_cluster(after, refusal, self.round_state):
            return _REASONS[Reason.QUOTA_EXCEEDED]
        if isinstance(outcome, WaitingUnit):
            if outcome.lacks_capacity and self._is_held_back(after):
                return _REASONS[Reason.HELD_BACK]
            if outcome.attempt.proof is Proof.UNKNOWN and outcome.lacks_capacity and not never:
                return _REASONS[Reason.UNDETERMINED]
        if cause := self._find_cause(after, state):
            return PendingReason(Reason.NODES_CANNOT_HELP, cause)
        return _REASONS[self._without_cause(after)]

    def _without_cause(self, unit: Unit) -> Reason:
        """Returns the reason of a unit for which new nodes may help; it depends on the unit's ProvisioningRequest, if
        any."""
        if self.asking is None or (wanted := self.asking.request_of(unit).wanted) is None:
            return Reason.UNSCHEDULABLE
        config, now = self.round_state.config.autoscaling.provisioning, self.round_state.snapshot.now
        state = state_of(wanted, self.asking.requests_of(unit), config, now)
        self.wanted[unit.id] = wanted
        gave_up = state.phase is RequestPhase.GIVEN_UP
        return Reason.PROVISIONING_FAILED if gave_up else Reason.WAITING_FOR_PROVISIONING

    def _lacks_objects(self, gang: Unit) -> bool:
        """Returns True if a gang cannot start without pods that lack an object."""
        return missing_member(gang, lambda pod: not _lacks_object(self.round_state.of(pod))) is not None

    # --- reserved capacity --------------------------------------------------------------------------------------------

    def _is_held_back(self, unit: Unit) -> bool:
        """Returns True if, with all withheld capacity and spare nodes open, the unit would be placed without victims.

        Capacity nominated to other pods counts as used: autoscalers count these pods as placed on their nodes.
        """
        if not self._withholds:
            return False
        key = equivalence_class(unit, self.round_state)
        found = self._held_back.get(key) if key is not None else None
        if found is None:
            state = self._unreserved = self._unreserved or self._without_withheld()
            with state.draft.trial():
                found = isinstance(plan_unit(unit, state), PlacedUnit)
            if key is not None:
                self._held_back[key] = found
        return found

    @cached_property
    def _withholds(self) -> bool:
        """True if the round withholds capacity from any unit, or keeps spare nodes."""
        draft = self.round_state.draft
        return bool(self.has_promise or draft.withheld or self.round_state.snapshot.keeps_spares or _moved_pods(draft))

    def _without_withheld(self) -> RoundState:
        """Returns the round state of a copy of the draft on which no capacity is withheld, spare nodes are open, and no
        capacity is kept for moved pods."""
        main, snapshot = self.round_state.draft, self.round_state.snapshot
        draft, moved = Draft(snapshot), _moved_pods(main)
        draft.evict_all(main.evicted.values())
        for key, node in main.placed.items():
            if key not in moved:
                draft.assign(snapshot.pods[key], node, main.claims(key), main.devices_of(key))
        state = self.round_state.of_draft(draft)
        state.inputs.opens_spares = True
        return state

    # --- no new node would help ---------------------------------------------------------------------------------------

    def _find_cause(self, unit: Unit, state: ShapeState | None) -> str:
        """Returns why no new node would help a unit; empty if a new node may help. state: of a plain pod; None for a
        gang.

        If the unit cannot start without the members that have a cause: the cause of the lowest rank among them. Else,
        for a gang, the cause of the gang as a whole.
        """
        if state is not None:
            return self._cause_of(unit.members[0], state, unit)
        first = {pod.shape: pod for pod in reversed(unit.pending)}
        known = {shape: self._cause_of(pod, self.round_state.of(pod), unit) for shape, pod in first.items()}
        if any(known.values()) and missing_member(unit, lambda pod: not known[pod.shape]) is not None:
            return next(cause for pod in unit.pending if (cause := known[pod.shape]))
        return find_unit_cause(unit, self.round_state) if unit.is_gang else ""

    def _cause_of(self, pod: PodInfo, state: ShapeState, unit: Unit) -> str:
        """Returns why no new node would help one pending member; empty if a new node may help. state: of the pod."""
        added = self.round_state.config.filters.node_affinity.added_affinity
        spec = pod.pod.spec
        refusals = _refusals(state)
        if not (spec.affinity or spec.node_selector or added or pod.ties or refusals):
            return ""
        return find_cause(pod, unit.members, self.round_state.draft, added, refusals)


_REASONS = {reason: PendingReason(reason) for reason in Reason}
"""The reasons without a cause."""


def _lacks_object(state: ShapeState) -> bool:
    """Returns True if an object that the pod needs does not exist, or is being deleted."""
    return state.refusal is not None and state.refusal.not_ready


def _refusals(state: ShapeState) -> Sequence[Refusal]:
    """Returns the one refusal that applies to all nodes, else the different refusals of nodes.

    Refusals of nodes are returned only if no node accepts the pod, and a refusal says that no new node helps or that
    something is unsupported; else empty. A refusal that says that no new node helps comes first, also if an earlier
    filter has refused all its nodes, because it applies to each new node.
    """
    if state.refusal is not None:
        return (state.refusal,)
    verdict = state.verdict()
    final = [one for one in verdict.refusals if one.is_final]
    if not final or verdict.fits.any():
        return ()
    return [
        *(one for one in final if one.no_node_helps),
        *(verdict.refusals[i - 1] for i in np.unique(verdict.which).tolist()),
    ]


def _moved_pods(draft: Draft) -> frozenset[str]:
    """Returns the keys of the pods that the round evicts and for which it keeps capacity on other nodes."""
    return frozenset(draft.evicted.keys() & draft.placed.keys())


def _is_refused_in_larger_cluster(unit: Unit, refusal: QuotaRefusal, round_state: RoundState) -> bool:
    """Returns True if a quota would also refuse the unit in a larger cluster: by its max, its min or its settings.

    A runtime grows with the cluster, except in a quota tree with its own total.
    """
    if not refusal.limit_name:
        return True
    admission, tree = round_state.admission, round_state.snapshot.quotas.tree
    for one in (refusal, *admission.core_refusals(unit, round_state.draft.quotas)):
        if one.limit_name != "runtime" or tree.quotas[one.path[0]].tree_id:
            return True
        used, request, most = one.used or {}, one.request or {}, tree.quotas[one.quota].max
        if any(used[name] + request[name] > most.get(name, 0) for name in one.limit or ()):
            return True
    return False
