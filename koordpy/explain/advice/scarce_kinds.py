# SPDX-License-Identifier: Apache-2.0
"""Finds which pods of a unit lack capacity if the unit has several kinds of pods, such as a driver and its workers.

A kind is the pods of one shape. If the core fits without the pods of one kind, this kind lacks capacity.
"""

from dataclasses import replace
from functools import cached_property

from koordpy.explain.advice.advice_case import Case
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit


class Kinds:
    """The kinds of pods in a unit's core. Tries to place the core without each kind, on the draft of the round."""

    def __init__(self, case: Case) -> None:
        self._case = case

    @cached_property
    def scarce(self) -> PodInfo | None:
        """A pod of the kind that lacks capacity: the core fits without the pods of this kind.

        None if there is no such kind, or if there are several.
        """
        kinds = self._case.kinds
        if len(kinds) < 2:
            return None
        able = [pod for pod in kinds if self._fits_without(pod)]
        return able[0] if len(able) == 1 else None

    @property
    def remark(self) -> str:
        """` (needed for the pods of KIND; the pods of OTHERS fit)`, to end a suggestion; empty if `scarce` is None."""
        if self.scarce is None:
            return ""
        names = dict.fromkeys(map(self._name, self._case.kinds))
        own = self._name(self.scarce)
        others = [name for name in names if name != own]
        if not others:
            return ""
        listed = others[0] if len(others) == 1 else f"{', '.join(others[:-1])} and {others[-1]}"
        return f" (needed for the pods of {own}; the pods of {listed} fit)"

    def _name(self, pod: PodInfo) -> str:
        """Returns a name for the kind of a pod: its role in the workload, such as `workers`.

        If it has no role: the name of its gang if all members are of this kind, else the pod's name without its number.
        """
        unit = self._case.unit
        gang = next((gang for gang in unit.gangs if gang.ref == pod.gang), None)
        if gang is not None and gang.workload_gang is not None and gang.workload_gang.role:
            return gang.workload_gang.role
        alike = [one for one in self._case.kinds if one.gang == pod.gang]
        if gang is not None and len(unit.gangs) > 1 and len(alike) == 1:
            return gang.ref.name
        stem, _, number = pod.name.rpartition("-")
        return stem if stem and number.isdigit() else pod.name

    def _fits_without(self, kind: PodInfo) -> bool:
        """Returns True if the core without the pods of one kind can be placed."""
        case = self._case
        left = [pod for pod in case.core if pod.shape != kind.shape]
        keys = {pod.key for pod in left} | {pod.key for pod in case.unit.members if not pod.pending}
        gangs = []
        for gang in case.unit.gangs:
            pods = tuple(pod for pod in gang.pods if pod.key in keys)
            needed = sum(pod.gang == gang.ref for pod in left)
            gangs.append(replace(gang, pods=pods, min_member=needed, workload_gang=None, match_policy="only-waiting"))
        unit = Unit(id=case.unit.id, gangs=tuple(gangs))
        return (
            bool(unit.pending)
            and place_unit(unit, build(unit, case.round_state), case.round_state, Question.BEST).placed
        )
