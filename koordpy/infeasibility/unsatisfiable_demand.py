"""Requests that stand for nobody who could start: those of units that a quota refuses, that a gate holds, or that no
node could hold if all others were gone; and, for some nodes, those of units that could use none of these.

A runtime leaves room for what waits in other quotas (quota-fairness.md 4), also for a job that asks for more
than its own runtime, or for a node that is not there, and so does not start.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import Owner, PodInfo
from koordpy.cluster.quotas import Quotas
from koordpy.cluster.resources import Amounts, add_amounts
from koordpy.planning.build import build
from koordpy.planning.emptied import emptied
from koordpy.planning.figures import Figures
from koordpy.planning.gates import gate
from koordpy.planning.jobs.ascend.place import npu_gate
from koordpy.planning.limits import STARTLESS_UNITS
from koordpy.planning.parts import has_parts
from koordpy.planning.place import hopeless, needs_solver, place
from koordpy.planning.quota.admission import Asking
from koordpy.planning.units import Unit

Mask = NDArray[np.bool_]


def startless(units: Iterable[Unit], figures: Figures) -> list[Unit]:
    """Units that do not start on the draft as it is, however much room others leave them.

    What is not told by nodes one by one, by sums or counts, or leans on other pods, counts as able to start.
    """
    admission, use = figures.admission, figures.draft.quotas
    known: dict[Hashable, bool] = {}
    empty: Figures | None = None
    looked = 0
    out = []
    for unit in units:
        key = _kind(unit, figures)
        if key not in known:
            held = gate(unit, figures.groups) is not None or npu_gate(unit, figures) is not None
            held = held or admission.refusal(unit, use) is not None
            held = held or _lacks_something(unit, figures)
            if not held and looked < STARTLESS_UNITS and _told_by_counts(unit):
                empty, looked = empty or emptied(figures), looked + 1
                held = _fits_nowhere(unit, empty)
            known[key] = held
        if known[key]:
            out.append(unit)
    return out


def _kind(unit: Unit, figures: Figures) -> Hashable:
    """Equal for units that start alike."""
    pods = tuple((pod.owner, figures.key(pod)) for pod in unit.pending)
    if unit.plain is not None:
        return pods
    if unit.bound_any or has_parts(unit):
        return unit.id
    return pods, tuple(
        (len(g.members), unit.need(g), g.min_member, g.wish, g.hard_keys, g.fault, g.links) for g in unit.gangs
    )


def _lacks_something(unit: Unit, figures: Figures) -> bool:
    """Whether too few of its members pass what no node decides, as where a volume claim is not there, and have a node
    whose labels and taints let them in and that is large enough."""
    able = {pod.key for pod in unit.pending if _has_a_node(pod, figures)}
    needs = [(sum(pod.key in able for pod in gang.pending), unit.need(gang)) for gang in unit.gangs]
    return not able or any(have < need for have, need in needs)


def _has_a_node(pod: PodInfo, figures: Figures) -> bool:
    return figures.of(pod).refusal is None and bool(figures.could_hold(pod).any())


def _told_by_counts(unit: Unit) -> bool:
    """Whether an empty cluster has the more room for it: not for who leans on pods that run, holds claims or NPUs."""
    return not unit.bound_any and not any(
        pod.ties.terms.affinity.required or npu_resource(pod.requests) is not None or pod.pod.spec.resource_claims
        for pod in unit.pending
    )


def _fits_nowhere(unit: Unit, empty: Figures) -> bool:
    if unit.plain is not None:
        return not empty.of(unit.plain).slots.any()
    problem = build(unit, empty)
    return hopeless(problem) or (not needs_solver(problem) and not place(problem).placed)


class Reaches:
    """Nodes that waiting units could use: by labels, taints and size, were the nodes empty."""

    def __init__(self, figures: Figures) -> None:
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


def without(refused: Iterable[Unit], quotas: Quotas, names: Collection[str]) -> Asking:
    """Requests among which some units ask for nothing, but for those with pods in or below the quotas named."""
    waiting: dict[Owner, Amounts] = {owner: dict(amounts) for owner, amounts in quotas.waiting.items()}
    for unit in refused:
        for pod in unit.pending:
            asked = waiting.get(pod.owner)
            if asked is not None and not any(name in names for name in quotas.tree.path(quotas.quota_of(pod))):
                add_amounts(asked, pod.requests, -1)
    return Asking(replace(quotas, waiting=waiting))
