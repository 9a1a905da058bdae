# SPDX-License-Identifier: Apache-2.0
"""The rank of a pending unit in the queue, with usage and share of its user or queue, as shown to users.

Source: docs/rules/quota-fairness.md 2 and 3. The rank is computed as if every unit before it were placed; nothing is
placed. A unit that a gate blocks (missing members, invalid settings) has no rank. Shares are those by which capacity is
reclaimed (docs/rules/preemption.md 3.3).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.fairness.order_keys import Job
from koordpy.fairness.tenant_entitlements import ACCELERATORS, entitlements_of
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.gangs.unit_gates import gate
from koordpy.planner.queue.unit_order import UnitOrder
from koordpy.quota.quota_book import QuotaUse

_HUNDREDTHS = 100
GPUS = "gpus"
"""Displayed name of accelerators of all kinds, which mode gpu-count counts together."""


@dataclass(frozen=True, slots=True)
class QueueRank:
    """The rank of one unit in the queue."""

    place: int | None
    """Rank from 1 on among `waiting` units; None if a gate blocks the unit."""
    waiting: int
    """Number of pending units that no gate blocks."""
    mode: str
    """The fairness mode."""
    owner: str
    """The user, or in modes exact and kai the queue; empty in mode off."""
    used: Mapping[str, str]
    """Resource -> quantity that the owner's pods use, for the resources that the unit requests."""
    share: Mapping[str, str]
    """Resource -> quantity that the owner is entitled to, for the same resources."""


def rank_in_queue(
    unit: Unit, groups: Groups, snapshot: Snapshot, config: KoordpyConfiguration, *, use: QuotaUse
) -> QueueRank:
    """Returns the rank of a pending unit on a snapshot. use: the usage that `QueueRank.used` reports."""
    fairness = config.fairness
    units = [one for one in groups.units() if one.plain is not None or gate(one, groups) is None]
    turns = enumerate(units_in_turn(units, snapshot, config), 1) if any(one.id == unit.id for one in units) else ()
    place = next((place for place, one in turns if one.id == unit.id), None)
    first = unit.members[0]  # the first member decides the queue of the unit
    entitlements = entitlements_of(snapshot, fairness)
    path = entitlements.path(first) if entitlements is not None else ()
    if entitlements is None or not path:
        return QueueRank(place, len(units), fairness.mode, "", {}, {})
    tenant = path[-1]
    usage: dict[str, str] = {}
    share: dict[str, str] = {}
    for resource in sorted(entitlements.amounts(Job(unit).requests())):
        if entitlements.counted(tenant, resource):
            usage[share_name(resource)] = share_text(resource, Fraction(entitlements.use(use, tenant, resource)))
            share[share_name(resource)] = share_text(resource, entitlements.share(tenant, resource))
    return QueueRank(place, len(units), fairness.mode, tenant.quota or tenant.user, usage, share)


def units_in_turn(units: list[Unit], snapshot: Snapshot, config: KoordpyConfiguration) -> Iterator[Unit]:
    """Yields the units in the order of their turns, as if each were placed in its turn.

    After the turn of a unit, its pending pods are added to usage, because usage decides which queue is next.
    """
    ahead = Draft(snapshot).quotas
    order = UnitOrder(units, use=ahead, pods=snapshot.pods.values(), config=config.fairness, now=snapshot.now)
    for one in order:
        yield one
        for pod in one.pending:
            ahead.change(pod, 1)
        order.placed()


def waiting(groups: Groups, snapshot: Snapshot, config: KoordpyConfiguration) -> tuple[list[Unit], list[Unit]]:
    """Returns (units that wait for capacity, the next one first; units that a gate blocks, by name)."""
    gated = {one.id: one for one in groups.units() if one.plain is None and gate(one, groups) is not None}
    units = [one for one in groups.units() if one.id not in gated]
    return list(units_in_turn(units, snapshot, config)), sorted(
        gated.values(), key=lambda one: natural_key(one.group_id)
    )


def share_name(resource: str) -> str:
    """Returns the name under which a resource of the shares is displayed."""
    return GPUS if resource == ACCELERATORS else resource


def share_text(resource: str, amount: Fraction | int) -> str:
    """Returns an amount of the shares as a quantity; accelerators, which are in hundredths, in devices."""
    if resource == ACCELERATORS:
        devices = Fraction(amount) / _HUNDREDTHS
        return str(devices) if devices.denominator == 1 else f"{float(devices):.3f}".rstrip("0")
    return quantity_text(resource, int(amount))
