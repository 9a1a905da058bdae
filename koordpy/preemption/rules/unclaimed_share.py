# SPDX-License-Identifier: Apache-2.0
"""A hint in the message of a pending pod: `fairness.reclaim` is not `all`, but with it the pod could take capacity
back.

Source: docs/rules/preemption.md 8. The hint is given if `fairness.reclaim` is `off` or `quotas`, the pod's tenant would
end within its share, and another tenant uses more than its share.
"""

from collections.abc import Sequence
from fractions import Fraction

from koordpy.fairness.tenant_entitlements import ACCELERATORS, Entitlements, Tenant
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.across_users import tenant_name, tenant_order
from koordpy.preemption.rules.reclaim import amount_text
from koordpy.quota.quota_book import CARDS


def unclaimed_share(pods: Sequence[PodInfo], round_state: RoundState, entitlements: Entitlements | None) -> str:
    """Returns the hint for pods of one unit, such as
    `fairness: user alice uses 0, share 2; user bob uses 4, share 2; fairness.reclaim is quotas`.

    Empty if fair share is reclaimed anyway, or if reclaim would free nothing. Of the tenants above their share, the
    hint names the tenant with the largest excess. entitlements: fair shares; None in mode off.
    """
    fairness, use = round_state.config.fairness, round_state.draft.quotas
    path = entitlements.path(pods[0]) if entitlements is not None else ()
    if entitlements is None or not path or fairness.reclaim == "all":
        return ""
    own, asked = path[-1], Amounts()
    for pod in pods:
        add_amounts(asked, entitlements.amounts(pod.charged))
    asked = {r: n for r, n in asked.items() if n > 0 and entitlements.counted(own, r)}
    if not asked or any(entitlements.use(use, own, r) + n > entitlements.share(own, r) for r, n in asked.items()):
        return ""
    found: list[tuple[Fraction, object, Tenant, str]] = []
    for resource in sorted(asked):
        for other in _tenants(round_state, by_user=resource == ACCELERATORS):
            if other != own and entitlements.counted(other, resource):
                excess = Fraction(entitlements.use(use, other, resource)) - Fraction(
                    entitlements.share(other, resource)
                )
                if excess > 0:
                    found.append((-excess, tenant_order(other), other, resource))
    if not found:
        return ""
    _, _, other, resource = min(found, key=lambda one: one[:2])

    def usage_text(tenant: Tenant) -> str:
        uses, share = entitlements.use(use, tenant, resource), entitlements.share(tenant, resource)
        return (
            f"{tenant_name(tenant, resource)} uses {amount_text(resource, uses)}, share {amount_text(resource, share)}"
        )

    unit = "" if resource == ACCELERATORS else f" {resource}"
    return f"fairness: {usage_text(own)}; {usage_text(other)}{unit}; fairness.reclaim is {fairness.reclaim}"


def _tenants(round_state: RoundState, *, by_user: bool) -> list[Tenant]:
    """Returns the tenants that have running pods: only these can be above their share."""
    quotas = round_state.snapshot.quotas
    if by_user:
        return [Tenant("", user) for user, usage in quotas.users_sharing.items() if usage.get(CARDS)]
    return list(quotas.queues)
