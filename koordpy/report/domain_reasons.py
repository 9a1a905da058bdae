# SPDX-License-Identifier: Apache-2.0
"""Returns for each topology domain why a gang is or is not placed there: a column in the table of `koordpy explain`.

The reason is `large enough`, a lack of slots or of a resource, or `N slots, but ...` with another obstacle, such as
bound members in another domain.
"""

from collections.abc import Sequence

from koordpy.api.counted_nouns import count_noun, join_words
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.infeasibility.limiting_rules import ResourceSum, ResourceSums, limiting_rules, several_kinds
from koordpy.placement.problem import Problem
from koordpy.plan.limits import LISTED_DOMAINS
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import hard_keys


class DomainReasons:
    """The reasons of all domains for one gang. pods: the pods that a plan of the gang places, or must place."""

    def __init__(
        self, unit: Unit, pods: Sequence[PodInfo], problem: Problem, round_state: RoundState, *, fails: bool
    ) -> None:
        """fails: True if it is proven that no placement exists. Then no domain gets the reason `large enough`."""
        self._pods, self._problem, self._fails = pods, problem, fails
        self._sums = ResourceSums(pods, round_state) if several_kinds(pods) else None
        self._levels: dict[int, list[ResourceSum]] = {}
        self._but = ""
        if fails and hard_keys(unit):
            self._but = f"not on nodes of one {'/'.join(hard_keys(unit))}"
        elif fails:
            rules = join_words([*limiting_rules(unit, round_state)] or ["other rules"])
            self._but = f"no placement satisfies {rules}"

    def of(self, level: int, domain: int, slots: int) -> str:
        """Returns the reason of one domain. slots: usable slots of the reference pod in it."""
        if (lacks := self._lacks(level, domain, slots)) or not self._fails:
            return lacks or "large enough"
        room = f"room for {count_noun(slots, 'member')}" if self._sums is None else "enough of each resource"
        hard = self._problem.hard
        but = f"not in one {self._problem.tree.layer_name(hard)}" if level < hard else self._but
        if hard and level >= hard and (elsewhere := self._bound_elsewhere(level, domain)):
            but = f"bound members are in {elsewhere}"
        return f"{room}, but {but}"

    def _bound_elsewhere(self, level: int, domain: int) -> str:
        """Returns the names of the MustGather layer's domains with bound members, if the domain is in none of them;
        else empty. level: at or below that layer."""
        tree, hard = self._problem.tree, self._problem.hard
        held = sorted({int(tree.domain_of[hard][node]) for node in self._problem.bound.values()})
        own = int(tree.domain_of[hard][int(tree.levels[level].start[domain])])
        return "" if own in held else ", ".join(tree.path(hard, one) for one in held[:LISTED_DOMAINS])

    def _lacks(self, level: int, domain: int, slots: int) -> str:
        """Returns what a domain lacks for the gang: slots of a shape, else the first resource with too small an
        amount; empty if it lacks nothing."""
        if self._sums is None:
            needed = len(self._pods)
            return f"room for {slots} of {count_noun(needed, 'member')}" if slots < needed else ""
        if level not in self._levels:
            self._levels[level] = list(self._sums.at(level))
        known = ((one, int(one.available[domain])) for one in self._levels[level])
        return next((one.text(free) for one, free in known if free < one.needed), "")
