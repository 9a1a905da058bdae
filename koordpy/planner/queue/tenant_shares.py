# SPDX-License-Identifier: Apache-2.0
"""Usage and share of every tenant that `simulate` reports at the end of a run.

Source: docs/rules/quota-fairness.md 3. In mode gpu-count, tenants are users, and only accelerators are counted. In the
other modes, tenants are queues, and every resource that is shared out to them is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from koordpy.api.quantity import cpu_text
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Fairness
from koordpy.fairness.tenant_entitlements import ACCELERATORS, Entitlements, Tenant, entitlements_of
from koordpy.preemption.rules.across_users import tenant_order
from koordpy.quota.quota_book import QuotaUse

Amount = int | float | str
"""Accelerators and whole units as a number, cpu as a quantity such as `500m`."""


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Usage and share of one tenant."""

    queue: str
    """Name of the user or queue."""
    used: Amount | Mapping[str, Amount]
    """Accelerators in mode gpu-count; in the other modes resource -> amount."""
    share: Amount | Mapping[str, Amount]
    """In the form of `used`."""
    usage: float | None = None
    """Always None, because past usage is not counted."""


def tenant_shares(snapshot: Snapshot, fairness: Fairness) -> tuple[TenantShare, ...]:
    """Returns the tenants with pending or bound pods, in natural order of names; none in mode off."""
    entitlements = entitlements_of(snapshot, fairness)
    if entitlements is None:
        return ()
    paths = (entitlements.path(pod) for pod in snapshot.pods.values() if pod.bound or pod.pending)
    tenants = sorted({path[-1] for path in paths if path}, key=tenant_order)
    use = QuotaUse(snapshot.quotas)
    return tuple(_share(tenant, entitlements, use, fairness.mode) for tenant in tenants)


def _share(tenant: Tenant, entitlements: Entitlements, use: QuotaUse, mode: str) -> TenantShare:
    """Returns usage and share of one tenant."""
    name = tenant.quota or tenant.user
    if mode == "gpu-count":
        used, share = entitlements.use(use, tenant, ACCELERATORS), entitlements.share(tenant, ACCELERATORS)
        return TenantShare(name, _cards(used), _cards(share))
    resources = [resource for resource in entitlements.resources(tenant) if entitlements.counted(tenant, resource)]
    return TenantShare(
        name,
        {resource: _amount(resource, entitlements.use(use, tenant, resource)) for resource in resources},
        {resource: _amount(resource, entitlements.share(tenant, resource)) for resource in resources},
    )


def _cards(hundredths: Fraction | int) -> Amount:
    """Returns hundredths of a device as devices."""
    cards = Fraction(hundredths) / 100
    return int(cards) if cards.denominator == 1 else float(cards)


def _amount(resource: str, amount: Fraction | int) -> Amount:
    """Returns an amount for the output: cpu as a quantity such as `500m`, everything else as a number."""
    if resource == "cpu":
        return cpu_text(int(amount))
    value = Fraction(amount)
    return int(value) if value.denominator == 1 else float(value)
