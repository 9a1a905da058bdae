"""Demand that can never be satisfied: requests of units that a quota refuses, that a gate holds, or that never fit;
and, for some nodes, those of units that could use none of these.

A runtime leaves room for what waits in other quotas (quota-fairness.md 4), also for a job that asks for more
than its own runtime, or for a node that is not there, and so does not start.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.rule_registry import device_gate
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gathered_parts import has_parts
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import gate
from koordpy.infeasibility.never_fits import never_fits
from koordpy.pods.pod_info import Owner
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.quota.quota_book import Quotas
from koordpy.reservations.capacity_view import QuotaDemand

Mask = NDArray[np.bool_]


def startless(units: Iterable[Unit], figures: RoundState) -> list[Unit]:
    """Units that do not start on the draft as it is, however much room others leave them."""
    admission, use = figures.admission, figures.draft.quotas
    known: dict[Hashable, bool] = {}
    out = []
    for unit in units:
        key = _kind(unit, figures)
        if key not in known:
            held = gate(unit, figures.groups) is not None or device_gate(unit, figures) is not None
            held = held or admission.refusal(unit, use) is not None or _lacks_claims(unit, figures)
            known[key] = held or bool(never_fits(unit, figures))
        if known[key]:
            out.append(unit)
    return out


def _kind(unit: Unit, figures: RoundState) -> Hashable:
    """Equal for units that start alike."""
    pods = tuple((pod.owner, figures.key(pod)) for pod in unit.pending)
    if unit.plain is not None:
        return pods
    if unit.bound_any or has_parts(unit):
        return unit.id
    return pods, tuple(
        (len(g.members), unit.need(g), g.min_member, g.wish, g.hard_keys, g.fault, g.links) for g in unit.gangs
    )


def _lacks_claims(unit: Unit, figures: RoundState) -> bool:
    """Whether too few of its members pass what no node decides, as where a volume claim is not there."""
    able = {pod.key for pod in unit.pending if figures.of(pod).refusal is None}
    needs = [(sum(pod.key in able for pod in gang.pending), unit.need(gang)) for gang in unit.gangs]
    return not able or any(have < need for have, need in needs)


class Reaches:
    """Nodes that waiting units could use: by labels, taints and size, were the nodes empty."""

    def __init__(self, figures: RoundState) -> None:
        self._figures = figures
        self._of: dict[frozenset[bytes], Mask] = {}

    def of(self, unit: Unit) -> Mask:
        """[nodes] True where some pending pod of the unit could be."""
        figures = self._figures
        pods = {figures.key(pod): pod for pod in (unit.pending if unit.plain is None else (unit.plain,))}
        kind = frozenset(pods)
        if kind not in self._of:
            self._of[kind] = np.any([figures.could_hold(pod) for pod in pods.values()], axis=0)
        return self._of[kind]


def without(refused: Iterable[Unit], quotas: Quotas, names: Collection[str]) -> QuotaDemand:
    """Demand without the requests of some units, except of pods in or below the quotas named."""
    waiting: dict[Owner, Amounts] = {owner: dict(amounts) for owner, amounts in quotas.waiting.items()}
    for unit in refused:
        for pod in unit.pending:
            asked = waiting.get(pod.owner)
            if asked is not None and not any(name in names for name in quotas.tree.path(quotas.quota_of(pod))):
                add_amounts(asked, pod.requests, -1)
    return QuotaDemand(replace(quotas, waiting=waiting))
