# SPDX-License-Identifier: Apache-2.0
"""Finds units that fit once terminating pods are gone: they wait, and no further pod is evicted for them.

Source: docs/rules/preemption.md 1 (step 2) and 4; dra.md 10. The capacity of a terminating pod is expected to become
free until 120 s after its deletionTimestamp. After that the pod counts as stuck, and its capacity is not expected any
more. Devices may be allocated to a deleted pod a little longer; they are expected to become free. A unit also waits
while victims that were evicted for it terminate on its nominated nodes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.natural_order import natural_key
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.family_registry import allocate
from koordpy.devices.rule_registry import place_by_rules, rules_decide
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.filter_protocol import Code
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit
from koordpy.reservations.capacity_view import AFTER_TERMINATION
from koordpy.reservations.reservation_ledger import frees_capacity
from koordpy.verify.plan_check import check_plan

_LISTED = 3
"""Maximum number of node names in a message."""


@dataclass(frozen=True, slots=True)
class TerminationWait:
    """A placement of a unit, feasible once terminating pods are gone, and the pods that the unit waits for."""

    nodes: Mapping[str, int]
    """Pod key -> node position."""
    names: frozenset[str]
    """Names of these nodes."""
    pods: tuple[PodInfo, ...]
    """Terminating pods that the unit waits for. Empty if it waits only for devices that are allocated to deleted or
    finished pods."""

    @property
    def what(self) -> str:
        """The terminating pods and their nodes, as text for a message."""
        if not self.pods:
            return f"devices of deleted or finished pods on {_listed(self.names)}"
        return f"{count_noun(len(self.pods), 'terminating pod')} on {_listed({pod.node for pod in self.pods})}"

    @property
    def text(self) -> str:
        """Message of a plain pod that waits."""
        return f"waiting for {self.what}."

    @property
    def stable_text(self) -> str:
        """Message of every member of a gang that waits.

        It is independent of the number of pods that are still terminating.
        """
        return f"waiting for terminating pods: capacity on {_listed(self.names)} is reserved for it."


def _listed(nodes: Iterable[str]) -> str:
    """Returns node names as text for a message, in natural order; after `_LISTED` names, only the number of the
    rest."""
    return name_first(sorted(nodes, key=natural_key), _LISTED)


def find_termination_wait(unit: Unit, round_state: RoundState) -> TerminationWait | None:
    """Returns a placement of a unit that is feasible, on nodes and in quotas, once terminating pods are gone, and the
    devices of deleted pods are free.

    Returns None if the unit does not fit even then, or if nothing comes free. The unit's nominated nodes are tried
    first, because their capacity is reserved for it. The draft is the same afterwards.
    """
    draft, snapshot = round_state.draft, round_state.snapshot
    ending = [pod for pod in round_state.reservations.terminating if pod.key not in draft.evicted]
    quotas = snapshot.quotas
    with draft.trial():
        if not ending and not _untie_deleted(draft):
            return None
    refused = round_state.admission.core_refusal(unit, draft.quotas) is not None
    nodes: dict[str, int] = {}
    round_state = round_state.of_view(AFTER_TERMINATION)
    with draft.trial(without=ending):
        _untie_deleted(draft)
        if refused and round_state.admission.core_refusal(unit, draft.quotas) is not None:
            return None
        if nodes := _as_nominated(unit, round_state):
            pass
        elif rules_decide(unit, round_state):
            own = place_by_rules(unit, round_state)
            nodes = dict(own.nodes) if own is not None and not own.evicted else {}
        else:
            found = place_unit(unit, build(unit, round_state), round_state, Question.TRIAL)
            nodes = {unit.members[rank].key: node for rank, node in sorted(found.nodes.items())}
    if not nodes:
        return None
    # the unit waits for terminating pods on its nodes; if a quota refuses it now, also for those below its top quota
    used = {snapshot.nodes[node].name for node in nodes.values()}
    tops = {quotas.tree.path(quotas.quota_of(pod))[:1] for pod in unit.pending} if refused else set()
    there = [pod for pod in ending if pod.node in used or quotas.tree.path(quotas.quota_of(pod))[:1] in tops]
    return TerminationWait(nodes, frozenset(used), tuple(there or ending))


def _untie_deleted(draft: Draft) -> bool:
    """Frees devices that are allocated to deleted pods, until the draft is undone; returns False if there are none."""
    found = [ledger.untie_deleted(draft.snapshot.pods) for ledger in draft.ledgers.values()]
    for undo in found:
        if undo is not None:
            draft.record(undo)
    return any(undo is not None for undo in found)


def _as_nominated(unit: Unit, round_state: RoundState) -> dict[str, int]:
    """Returns pod key -> nominated node of the members that have a nomination; empty if they cannot all start there.

    Tried on the draft with all other nominated pods on their nodes. Empty also if the unit needs more members to start.
    """
    draft, pods, names, kept = (
        round_state.draft,
        round_state.snapshot.pods,
        round_state.snapshot.nodes,
        round_state.reservations.feasible,
    )
    nominated = [pod.key for pod in unit.pending if pod.nominated_node]
    nodes = {key: kept[key] for key in nominated if key in kept}
    if not nodes or len(nodes) < len(nominated):
        return {}
    own = {pod.key for pod in unit.members}
    with draft.trial():
        for key, node in kept.items():
            if key not in own and key not in draft.placed:
                draft.assign(pods[key], node)
        if any(not round_state.of(pods[key]).slots[node] for key, node in nodes.items()):
            return {}
        allocation = allocate(nodes, round_state)
        named = {key: names[node].name for key, node in nodes.items()}
        return (
            {}
            if allocation.faults or check_plan(unit, named, round_state, allocation.devices, allocation.notes)
            else nodes
        )


def waits_on_nominated(pod: PodInfo, round_state: RoundState) -> bool:
    """Returns True if victims of a pod are terminating on its nominated node, so that it must not search for more
    victims.

    The victims are terminating pods of lower priority, or of another quota or user. False if the node cannot take the
    pod whatever is evicted.
    """
    name = pod.nominated_node
    if not name or name not in round_state.snapshot.index:
        return False
    refusal = round_state.of(pod).verdict().of(round_state.snapshot.index[name])
    if refusal is not None and refusal.code is Code.UNRESOLVABLE:
        return False
    snapshot = round_state.snapshot
    return any(
        frees_capacity(other, snapshot.now)
        and (other.priority < pod.priority or _is_other_tenant(other, pod, snapshot))
        for other in snapshot.pods_on.get(name, ())
    )


def _waits_for_devices(unit: Unit, round_state: RoundState) -> bool:
    """Returns True if the nominated members of a unit can start on their nodes once devices of deleted pods are
    free."""
    with round_state.draft.trial():
        return _untie_deleted(round_state.draft) and bool(_as_nominated(unit, round_state.of_view(AFTER_TERMINATION)))


def crowds_siblings(unit: Unit, nodes: Mapping[str, int], round_state: RoundState) -> bool:
    """Returns True if a plan for some members of a unit would make earlier evictions for that unit useless.

    nodes: pod key -> node of the members in the plan. True only if victims of the unit are terminating or their devices
    are still allocated, and the plan leaves a nominated member without a node. There are two cases. The members in the
    plan start elsewhere than on their nominated nodes. Or the members that are left are too few to start later, because
    with matchPolicy `only-waiting` running members do not count.
    """
    names, pods = round_state.snapshot.nodes, round_state.snapshot.pods
    left = [pod for pod in unit.pending if pod.key not in nodes]
    return (
        any(pod.nominated_node for pod in left)
        and (any(waits_on_nominated(pod, round_state) for pod in unit.pending) or _waits_for_devices(unit, round_state))
        and (
            any(pods[key].nominated_node != names[node].name for key, node in nodes.items())
            or any(
                gang.match_policy == "only-waiting" and 0 < sum(p.gang == gang.ref for p in left) < unit.need(gang)
                for gang in unit.gangs
            )
        )
    )


def _is_other_tenant(victim: PodInfo, pod: PodInfo, snapshot: Snapshot) -> bool:
    """Returns True if users or quotas of two pods differ, so that `victim` may be evicted for `pod` at any priority."""
    quotas = snapshot.quotas
    return quotas.user_of(victim) != quotas.user_of(pod) or quotas.quota_of(victim) != quotas.quota_of(pod)
