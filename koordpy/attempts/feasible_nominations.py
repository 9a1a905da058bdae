# SPDX-License-Identifier: Apache-2.0
"""Finds the nominations that are feasible now, so that a plan which invalidates one of them can be undone.

A nominated pod waits for its victims to terminate. If another pod makes the nominated node infeasible before that, the
victims were evicted for nothing. `reservation_ledger.py` already protects the capacity of the nominated node. Two other
conditions can make the node infeasible. First, inter-pod affinity and topology spread: a new pod matches a term.
Second, quota: a pod without a quota reduces the capacity that quotas share. Source: preemption.md 4.
"""

from collections.abc import Mapping

from koordpy.api.keys import BUILT_IN_QUOTAS
from koordpy.fairness.quota_admission import PLUGIN
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.reservations.capacity_view import STARTED

BY_PODS: tuple[str, ...] = ("PodTopologySpread", "InterPodAffinity")
"""Names of the filters with which another pod can make a nominated node infeasible."""
BY_QUOTAS: tuple[str, ...] = (PLUGIN,)
"""Name of the filter with which a quota can refuse a nominated pod."""
Conditions = frozenset[tuple[str, tuple[str, ...]]]
"""Pairs (key of a nominated pod, BY_PODS or BY_QUOTAS): these filters admit the pod on its nominated node."""


def nominations_still_feasible(unit: Unit, round_state: RoundState) -> Conditions:
    """Returns the nominations that a plan of the unit might invalidate, each with the filters that admit it now.

    `plan_unit` compares the result before and after the plan. Only two kinds of nominations are tested: those with
    reserved capacity that is closed to the unit, and those made in this round. Terminating pods count as already gone.
    """
    # `made`: nominations of this round, which are placed on the draft; `others`: of earlier rounds, reservations only
    draft, pods = round_state.draft, round_state.snapshot.pods
    made = {key: draft.placed[key] for key in draft.nominated if key in draft.placed}
    found = round_state.reservations.available_to(unit.pending, {pod.key for pod in unit.members})
    others = found.others if found is not None else {}
    has_anti_affinity = any(pod.ties.anti for pod in unit.pending)
    dependent = {key: node for key, node in others.items() if has_anti_affinity or _is_interpod_dependent(pods[key])}
    dependent |= {key: node for key, node in made.items() if _is_interpod_dependent(pods[key])}
    nodes = {**others, **made}
    out = {(key, BY_PODS) for key in _fitting(dependent, nodes, round_state)} if dependent else set()
    if _shrinks_quotas(unit, round_state):
        out |= {(key, BY_QUOTAS) for key in _admitted(nodes, round_state)}
    return frozenset(out)


def _is_interpod_dependent(pod: PodInfo) -> bool:
    """Returns True if the nodes that fit the pod depend on other pods."""
    return bool(pod.ties or pod.pod.spec.topology_spread_constraints)


def _fitting(dependent: Mapping[str, int], nodes: Mapping[str, int], round_state: RoundState) -> set[str]:
    """Returns the pods of `dependent` that fit their nodes by inter-pod rules.

    A pod fits if the filters admit it either without the other nominated pods, or with all of them placed on their
    nodes. The second case covers required affinity to another nominated pod. dependent: key -> node position of the
    nominated pods to test. nodes: key -> node position of all nominated pods.
    """
    draft, pods = round_state.draft, round_state.snapshot.pods
    made = [key for key in nodes if key in draft.placed]
    with draft.trial(without=[pod for pod in round_state.reservations.terminating if pod.key not in draft.evicted]):
        with draft.remove_placed(made):
            out = {key for key, node in dependent.items() if round_state.of(pods[key]).slots[node] > 0}
        for key, node in dependent.items() if len(out) < len(dependent) and len(nodes) > 1 else ():
            if key not in out:
                with draft.remove_placed([key] if key in made else []), draft.trial():
                    for other, at in nodes.items():
                        if other != key and other not in made:
                            draft.assign(pods[other], at)
                    out |= {key} if round_state.of(pods[key]).slots[node] > 0 else set()
    return out


def _shrinks_quotas(unit: Unit, round_state: RoundState) -> bool:
    """Returns True if placing the unit may lower the runtime of a quota, so that the quota refuses a nominated pod."""
    quotas, settings = round_state.snapshot.quotas, round_state.config.quota
    if not quotas.tree.quotas or not settings.enable_runtime_quota:
        return False
    return settings.guarantee_usage or any(quotas.quota_of(pod) in BUILT_IN_QUOTAS for pod in unit.pending)


def _admitted(nodes: Mapping[str, int], round_state: RoundState) -> list[str]:
    """Returns the keys of the nominated pods that their quotas admit.

    Admission is tested for the state after all nominated pods have started and all terminating pods have ended. nodes:
    key -> node position of all nominated pods.
    """
    # quota -> resource -> amount left
    draft, quotas, pods = round_state.draft, round_state.snapshot.quotas, round_state.snapshot.pods
    limits = round_state.of_view(STARTED).admission.admission_limits()
    left = {name: {r: n - draft.quotas.used(name, r) for r, n in of.items()} for name, of in limits.items()}
    # nominated pods that are not on the draft will use quota; terminating pods will give theirs back
    coming = [(1, pods[key]) for key in nodes if key not in draft.placed]
    for sign, pod in coming + [
        (-1, pod) for pod in round_state.reservations.terminating if pod.key not in draft.evicted
    ]:
        for name in quotas.tree.path(quotas.quota_of(pod)):
            for r, amount in pod.charged.items():
                if r in left[name]:
                    left[name][r] -= sign * amount
    return [
        key
        for key in nodes
        if all(
            left[name].get(r, 0) >= 0
            for name in quotas.tree.path(quotas.quota_of(pods[key]))
            for r in pods[key].charged
        )
    ]
