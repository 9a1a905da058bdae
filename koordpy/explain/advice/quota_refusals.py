# SPDX-License-Identifier: Apache-2.0
"""Finds the limits of quotas that refuse a pending unit, in the present cluster or with changed quotas."""

from collections.abc import Sequence

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.family_registry import nominated_allocation
from koordpy.explain.advice.advice_case import Case
from koordpy.fairness.quota_admission import Admission, QuotaRefusal
from koordpy.pods.pod_info import PodInfo
from koordpy.reservations.reservation_ledger import ReservationLedger


def limit_refusals(case: Case, snapshot: Snapshot) -> list[QuotaRefusal]:
    """Returns the refusals of the unit's core by limits of quotas; empty if no quota refuses it.

    snapshot: of the case, or one with the same pods and nodes but other quotas.
    """
    if not snapshot.quotas.tree.quotas:
        return []
    draft = case.draft_on(snapshot)
    state = case.round_state
    ledger = ReservationLedger(draft, case.config, lambda: state.inputs.reach, nominated_allocation, state.groups)
    admission = Admission(draft, case.config.quota, ledger)
    return [one for one in admission.core_refusals(case.unit, draft.quotas) if one.limit]


def relieves_quotas(pods: Sequence[PodInfo], refusals: Sequence[QuotaRefusal], case: Case) -> bool:
    """Returns True if the end of the pods lowers the usage of a quota that refuses.

    The pods must be in the subtree of such a quota. Capacity that is freed by other pods would not help the unit.
    """
    quotas = case.snapshot.quotas
    inside = {name for pod in pods for name in quotas.tree.path(quotas.quota_of(pod))}
    return any(inside.intersection(one.path) for one in refusals)
