# SPDX-License-Identifier: Apache-2.0
"""Demand of units that cannot start, and the demand of quotas without it.

The runtime of a quota, the amount that it may use now, leaves capacity to pending pods of other quotas
(docs/rules/quota-fairness.md 4). Demand of a unit that cannot start would reserve capacity without use. Such a unit is
refused by a quota, blocked by a gate, or never fits any node. So runtimes are computed without it. For a decision about
some nodes, demand of units that cannot use these nodes is left out as well (`Reaches`).
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


def units_that_cannot_start(units: Iterable[Unit], round_state: RoundState) -> list[Unit]:
    """Returns the units that cannot start on the current draft, however much capacity other units leave to them."""
    admission, use = round_state.admission, round_state.draft.quotas
    known: dict[Hashable, bool] = {}
    out = []
    for unit in units:
        key = _kind(unit, round_state)
        if key not in known:
            held = gate(unit, round_state.groups) is not None or device_gate(unit, round_state) is not None
            held = held or admission.refusal(unit, use) is not None or _lacks_claims(unit, round_state)
            known[key] = held or bool(never_fits(unit, round_state))
        if known[key]:
            out.append(unit)
    return out


def _kind(unit: Unit, round_state: RoundState) -> Hashable:
    """Returns a cache key for `units_that_cannot_start`: units with equal keys either all can start or all cannot."""
    pods = tuple((pod.owner, round_state.key(pod)) for pod in unit.pending)
    if unit.plain is not None:
        return pods
    if unit.bound_any or has_parts(unit):
        return unit.id
    return pods, tuple(
        (len(g.members), unit.need(g), g.min_member, g.wish, g.hard_keys, g.fault, g.links) for g in unit.gangs
    )


def _lacks_claims(unit: Unit, round_state: RoundState) -> bool:
    """Returns True if fewer members than needed pass the pod checks that concern no node.

    A pod fails such a check for example if its volume claim does not exist.
    """
    able = {pod.key for pod in unit.pending if round_state.of(pod).refusal is None}
    needs = [(sum(pod.key in able for pod in gang.pending), unit.need(gang)) for gang in unit.gangs]
    return not able or any(have < need for have, need in needs)


class Reaches:
    """The nodes that pending units could use if the nodes were empty: by labels, taints and size of the node.

    Cached.
    """

    def __init__(self, round_state: RoundState) -> None:
        self._round_state = round_state
        self._of: dict[frozenset[bytes], Mask] = {}

    def of(self, unit: Unit) -> Mask:
        """Returns [nodes] True if at least one pending pod of the unit could be placed there."""
        round_state = self._round_state
        pods = {round_state.key(pod): pod for pod in (unit.pending if unit.plain is None else (unit.plain,))}
        kind = frozenset(pods)
        if kind not in self._of:
            self._of[kind] = np.any([round_state.could_hold(pod) for pod in pods.values()], axis=0)
        return self._of[kind]


def demand_without(refused: Iterable[Unit], quotas: Quotas, names: Collection[str]) -> QuotaDemand:
    """Returns the demand of pending pods without the requests of the units in `refused`.

    Requests of pods in the quotas `names`, and in quotas below them, are not left out.
    """
    waiting: dict[Owner, Amounts] = {owner: dict(amounts) for owner, amounts in quotas.demand.items()}
    for unit in refused:
        for pod in unit.pending:
            asked = waiting.get(pod.owner)
            if asked is not None and not any(name in names for name in quotas.tree.path(quotas.quota_of(pod))):
                add_amounts(asked, pod.demanded, -1)
    return QuotaDemand(replace(quotas, demand=waiting))
