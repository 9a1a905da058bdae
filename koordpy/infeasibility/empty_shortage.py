# SPDX-License-Identifier: Apache-2.0
"""Says what a unit lacks on the empty cluster: slots, a resource, a multiple, domains, or space for a part of it.

The caller knows that the unit has no placement there (`never_fits.py`). The checks run in a fixed order, from the most
specific to the most general sentence, and the first one that applies gives the answer (docs/rules/gang-network.md 6).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from koordpy.api.counted_nouns import count_noun
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gathered_parts import parts_of, without_parts
from koordpy.gangs.queue_units import Unit
from koordpy.infeasibility.empty_fit import (
    has_placement,
    least_asked,
    members_required,
    one_kind,
    required_text,
    unit_kinds,
    usable_slots,
)
from koordpy.infeasibility.empty_nodes import EmptyNodes, Mask
from koordpy.infeasibility.limiting_rules import (
    apart_domains,
    divided_sentence,
    unlabelled_layer,
    wrong_multiple,
)
from koordpy.placement.goals import slots_by_level
from koordpy.placement.problem import Problem, Shape
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import hard_keys, partitions, unit_multiples

NO_PLACEMENT = "no placement on the empty cluster"
"""Sentence if no cause is found; rules that were found may be appended to it."""


class EmptyShortage(EmptyNodes):
    """The empty cluster, and the sentences about what a unit lacks there.

    Each method `_..._short` or `_too_...` returns a sentence, or an empty text if its check does not apply.
    """

    def _short(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns the sentence about what a unit without a placement on the empty cluster lacks; never empty.

        unit, problem: without parts (`without_parts`). round_state: the state in which the problem was built.
        """
        return (
            divided_sentence(unit, problem, round_state)
            or self._multiple_too_large(unit, problem, round_state)
            or self._missing_label(unit, problem, round_state)
            or self._too_few_domains(unit, problem, round_state)
            or (self._room_short if one_kind(problem) else self._sums_short)(unit, problem, round_state)
            or self._multiple_short(unit, problem, round_state)
        )

    def _multiple_too_large(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns a sentence if no possible number of members is a multiple, or no domain has slots for one multiple;
        else empty."""
        asked, tree = unit_multiples(unit, round_state), problem.tree
        level, wrong = wrong_multiple(unit, problem.core_size, asked)
        if wrong:
            return f"{wrong} (podCountMultiple {tree.layer_name(level)})"
        if problem.bound or not one_kind(problem):
            return ""
        slots = slots_by_level(replace(problem, multiples={}), problem.reference())
        for level, multiple in asked.items():
            most = int(slots[level].max(initial=0))
            if most < multiple:
                room = count_noun(most, "member")
                return f"the largest {tree.layer_name(level)} has room for {room}, podCountMultiple is {multiple}"
        return ""

    def _missing_label(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns a sentence if no node has the label of the MustGather layer; else empty."""
        parts = list(partitions(unit, problem, round_state))
        return unlabelled_layer(problem, usable_slots(parts, problem.hard), round_state) if problem.hard else ""

    def _too_few_domains(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns a sentence if anti-affinity among the members needs more domains than there are; else empty."""
        needed, slots = problem.core_size, int(usable_slots([problem], 0)[0])
        for key, domains in apart_domains(unit, round_state):
            if domains < min(needed, slots):
                return f"anti-affinity over {key}: {count_noun(domains, 'domain')}, {members_required(needed)}"
        return ""

    def _room_short(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns a sentence about the place with too few slots, for a unit of one shape; else empty.

        The place is a domain of the MustGather layer, else the nodes with one value of a topology key, else the
        cluster. With bound members it is the place that contains them, else the largest place.
        """
        needed = problem.core_size
        tree, held = problem.tree, problem.tree.levels[problem.hard].sums(problem.bound_counts)
        parts = list(partitions(unit, problem, round_state))
        labels = "/".join(hard_keys(unit))
        is_required = members_required(needed)
        slots = usable_slots(parts, problem.hard)
        if problem.hard:
            domains = np.nonzero(held)[0].tolist()
            layer = tree.layer_name(problem.hard)
            if len(domains) == 1 and slots[domains[0]] < needed:
                room = count_noun(int(slots[domains[0]]), "more member")
                return f"{layer} {tree.path(problem.hard, domains[0])} has room for {room}, {is_required}"
            if not domains and slots.max(initial=0) < needed:
                room = count_noun(int(slots.max(initial=0)), "member")
                return f"the largest {layer} has room for {room}, {is_required}"
        elif labels:
            most = int(usable_slots(parts, 0)[0])
            if most < needed and not problem.bound:
                return f"the largest {labels} has room for {count_noun(most, 'member')}, {is_required}"
            if most < needed:
                room = f"room for {count_noun(most, 'more member')}"
                return f"{labels} {self._value(unit, problem)} has {room}, {is_required}"
        most = int(usable_slots([problem], 0)[0])
        if most < needed:
            more = "more member" if problem.bound else "member"
            return f"the cluster has room for {count_noun(most, more)}, {is_required}"
        return ""

    def _value(self, unit: Unit, problem: Problem) -> str:
        """Returns the values of the topology keys on the nodes of bound members, joined by `/`."""
        node = self._snapshot.nodes[next(iter(problem.bound.values()))]
        return "/".join(node.labels.get(key, "") for key in hard_keys(unit))

    def _sums_short(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns a sentence about the place with too little of a resource, for a unit of several shapes; else empty.

        Sums of resources are compared, because slots of one shape say nothing about other shapes. For each resource,
        only nodes count that match a shape which requests it.
        """
        asked = {pod.shape: self._request_of(pod) for pod in unit_kinds(unit)}
        more = " more" if problem.bound else ""
        for where, level, inside in self._places(unit, problem, round_state):
            sums = problem.tree.levels[level].sums
            for name in sorted({name for own in asked.values() for name in own}, key=natural_key):

                def amount_text(pod: PodInfo, name: str = name) -> int:
                    return asked[pod.shape].get(name, 0)

                needed = least_asked(unit, amount_text)
                asking = [self._matches(pod) for pod in unit_kinds(unit) if name in asked[pod.shape]]
                free = np.maximum(problem.free[:, self._snapshot.columns[name]], 0) * np.logical_or.reduce(asking)
                most = max((int(sums(free * mask).max(initial=0)) for mask in inside), default=0)
                if most < needed:
                    amount = f"{quantity_text(name, most)}{more} {name}"
                    return f"{where} has {amount}, {required_text(name, needed)}"
        return ""

    def _places(self, unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[tuple[str, int, list[Mask]]]:
        """Yields the places to check, the smallest first: (name for the sentence, level, masks).

        The unit must be in one domain of the level, and only on nodes of one of the masks ([nodes] each).
        """
        tree, level = problem.tree, problem.hard
        every = np.ones(len(problem.free), dtype=bool)
        if level and problem.bound:
            held = int(tree.domain_of[level, next(iter(problem.bound.values()))])
            yield f"{tree.layer_name(level)} {tree.path(level, held)}", level, [tree.domain_of[level] == held]
        elif level:
            yield f"the largest {tree.layer_name(level)}", level, [every]
        elif labels := hard_keys(unit):
            value = self._value(unit, problem) if problem.bound else ""
            name = "/".join(labels)
            each = replace(problem, shapes=(Shape((), every.astype(np.int64), problem.attract),))
            masks = [part.shapes[0].allowed > 0 for part in partitions(unit, each, round_state)]
            yield f"{name} {value}" if problem.bound else f"the largest {name}", 0, masks
        yield "the cluster", 0, [every]

    def _multiple_short(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns `NO_PLACEMENT`; it also names the multiples if the unit has a placement without them."""
        if problem.multiples and has_placement(unit, replace(problem, multiples={}), round_state):
            asked = unit_multiples(unit, round_state).items()
            named = ", ".join(f"{problem.tree.layer_name(level)}={k}" for level, k in asked)
            return f"{NO_PLACEMENT}; podCountMultiple {named}"
        return NO_PLACEMENT

    def _part_short(self, unit: Unit, problem: Problem, round_state: RoundState) -> str:
        """Returns a sentence about parts (members that must share one domain); `NO_PLACEMENT` if parts are not the
        cause.

        If all members are needed, the sentence names the largest part with more members than any domain has slots.
        Otherwise it states the rule of the largest part, if the unit would fit without parts.
        """
        parts = [part for part in parts_of(unit, problem.tree.layers) if not part.label]
        shape_of = {unit.members[rank].shape: problem.members[rank].shape for rank in problem.pending}
        if all(len(gang.pending) == unit.need(gang) for gang in unit.gangs) and not problem.bound:
            for part in sorted(parts, key=lambda part: -len(part.members)):
                kinds = {pod.shape for pod in part.members}
                most = (
                    int(slots_by_level(problem, shape_of[next(iter(kinds))])[part.level].max(initial=0))
                    if len(kinds) == 1
                    else len(part.members)
                )
                if most < len(part.members):
                    layer = problem.tree.layer_name(part.level)
                    room = count_noun(most, "member")
                    return f"the largest {layer} has room for {room}, each {part.scope} needs {len(part.members)}"
        if parts and has_placement(without_parts(unit), problem, round_state):
            largest = max(parts, key=lambda part: len(part.members))
            layer = problem.tree.layer_name(largest.level)
            return f"{NO_PLACEMENT}; each {largest.scope} (largest {len(largest.members)}) in one {layer}"
        return NO_PLACEMENT
