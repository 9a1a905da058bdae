# SPDX-License-Identifier: Apache-2.0
"""Checks a plan against quotas: no quota on the path of a placed pod exceeds a limit.

The limits are the runtime (or max) for all pods, and the min for non-preemptible pods (preemption.md 9, I3 and I10).
Requests are added up pod by pod and quota by quota, without the planner's sums and slots.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from koordpy.feasibility.round_state import RoundState
from koordpy.pods.claim_refs import CLAIMS
from koordpy.pods.family_books import AllocatedDevices
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts
from koordpy.verify.claim_amounts import planned_amounts


def check_quotas(
    placed: Iterable[PodInfo], round_state: RoundState, given: Mapping[str, AllocatedDevices] | None = None
) -> list[str]:
    """Returns the faults of placing pods; empty if no quota is exceeded. The draft must not contain the pods.

    given: pod key -> devices of each family that the plan allocates by name.
    """
    snapshot, draft = round_state.snapshot, round_state.draft
    quotas = snapshot.quotas
    tree = quotas.tree
    if not tree.quotas:
        return []
    asked: dict[str, Counter[str]] = {}
    rigid: dict[str, Counter[str]] = {}
    claims = snapshot.families.get(CLAIMS)
    for pod in placed:
        request = Counter(pod.requests)
        devices = (given or {}).get(pod.key, {}).get(CLAIMS)
        if devices:
            request.update(planned_amounts(devices, claims, round_state.config.dra))
        for name in tree.path(quotas.quota_of(pod)):
            asked.setdefault(name, Counter()).update(request)
            if pod.owner.rigid:
                rigid.setdefault(name, Counter()).update(request)
    faults = []
    limits = _limits(round_state)
    for name, request in asked.items():
        limit, least = limits[name], tree.quotas[name].min
        for resource in tree.quotas[name].max:
            used = draft.quotas.used(name, resource)
            most = limit[resource]
            if round_state.admission.lends:
                most = min(most, tree.quotas[name].max[resource])
            if request[resource] and used + request[resource] > most:
                faults.append(f"quota {name}: {resource} {used} + {request[resource]} > {most}")
            if name in rigid and rigid[name][resource]:
                held, most = draft.quotas.rigid_used(name, resource), least.get(resource, 0)
                if held + rigid[name][resource] > most:
                    faults.append(f"quota {name}: non-preemptible {resource} {held} + {rigid[name][resource]} > {most}")
    return faults


def _limits(round_state: RoundState) -> Mapping[str, Amounts]:
    """Returns quota -> resource -> limit.

    If the round state does not count terminating pods, then victims and terminating pods without a quota return
    capacity to the total that quotas share. This capacity, without that reserved for nominated pods without a quota, is
    added up here pod by pod. With `guaranteeUsage`, the limits of admission are used unchanged.
    """
    admission, ledger, quotas = round_state.admission, round_state.reservations, round_state.snapshot.quotas
    guarantees = round_state.config.quota.guarantee_usage
    if not round_state.view.without_terminating or not round_state.config.quota.enable_runtime_quota:
        # with guaranteeUsage the current usage is guaranteed, also to pods that replace it
        return admission.admission_limits() if guarantees else admission.limits
    if guarantees:
        return admission.admission_limits()
    draft, pods = round_state.draft, round_state.snapshot.pods
    leaving = {*draft.evicted, *(pod.key for pod in ledger.terminating)} - set(draft.placed)
    gone = [pods[key] for key in leaving if quotas.quota_of(pods[key]) not in quotas.tree.quotas]
    kept = [pods[key] for key in ledger.feasible if key not in draft.placed]
    freed: Counter[str] = Counter()
    for pod in gone:
        freed.update(pod.charged)
    for pod in kept:
        if quotas.quota_of(pod) not in quotas.tree.quotas:
            freed.subtract(pod.charged)
    return admission.limits_after({r: amount for r, amount in freed.items() if amount > 0})
