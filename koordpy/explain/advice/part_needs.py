# SPDX-License-Identifier: Apache-2.0
"""Estimates which topology domains lack slots for the parts of a unit, so that changes can be proposed there.

A part is a set of members that must share one domain: a replica, a gang, or a multiple of members. Parts are packed
into domains by best fit decreasing. If a part fits no domain, it is assigned to the domain with the most free slots,
and the slots that are missing there are counted.
"""

from dataclasses import dataclass

from koordpy.explain.advice.advice_case import Case
from koordpy.gangs.gathered_parts import parts_of
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import unit_multiples


@dataclass(frozen=True)
class PartNeeds:
    """The numbers of slots that domains lack for parts of a unit."""

    level: int
    """Level of the domains in which parts must be."""
    lacks: dict[int, int]
    """Domain of the level -> number of missing slots, above 0."""


def part_needs(case: Case) -> PartNeeds | None:
    """Returns the slots that domains lack for the parts of a unit. The slots, and the sizes of parts, are counted in
    pods of the scarcest kind (`Case.scarcest`).

    None if the unit has no parts, if all parts fit, or if more parts than there are domains fit no domain.
    """
    pod = case.scarcest
    level, sizes = _sizes(case, pod)
    if not sizes:
        return None
    sums = case.snapshot.tree.levels[level].sums(case.round_state.of(pod).slots)
    left = {domain: int(slots) for domain, slots in enumerate(sums)}
    lacks: dict[int, int] = {}
    for size in sorted(sizes, reverse=True):
        holding = [domain for domain, slots in left.items() if slots >= size and domain not in lacks]
        if holding:
            domain = min(holding, key=lambda d: (left[d], d))
            left[domain] -= size
            continue
        domain = min((d for d in left if d not in lacks), key=lambda d: (-left[d], d), default=-1)
        if domain < 0:
            return None
        lacks[domain] = size - left[domain]
    return PartNeeds(level, lacks) if lacks else None


def _sizes(case: Case, pod: PodInfo) -> tuple[int, list[int]]:
    """Returns (lowest level with parts, number of core members of the kind of `pod` in each part of this level).

    Parts that must share the value of a node label, and parts with bound members, are left out. Without parts: level 0
    and an empty list.
    """
    core = {one.key for one in case.core if one.shape == pod.shape}
    by_level: dict[int, list[int]] = {}
    for part in parts_of(case.unit, case.snapshot.tree.layers):
        size = sum(one.key in core for one in part.members)
        if size and not part.label and not any(one.bound for one in part.members):
            by_level.setdefault(part.level, []).append(size)
    for level, multiple in unit_multiples(case.unit, case.round_state).items():
        if multiple <= len(core) and level < case.snapshot.tree.depth:
            by_level.setdefault(level, []).extend([multiple] * (len(core) // multiple))
    level = max(by_level, default=0)
    return level, by_level.get(level, [])
