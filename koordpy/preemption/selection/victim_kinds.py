# SPDX-License-Identifier: Apache-2.0
"""Kinds of victims: equal units are grouped, so that the CP-SAT model needs one integer variable per group.

Options are of one kind if their units are equal in all numbers except the rank, and if every limit treats them equally.
Then only the number of evicted units of the kind matters, and the least important are evicted first
(docs/rules/preemption.md 6 (2)).
"""

from collections.abc import Hashable, Mapping, Sequence

from msgspec.structs import replace as changed

from koordpy.preemption.selection.victim_choice import (
    Choices,
)


def kinds_of(choices: Choices, of_unit: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Returns the options of the given units by kind: first option -> all options of the kind, the least important
    first.

    of_unit: unit -> its options. A unit in `told_apart` and a unit with several options are not grouped: each of their
    options is a kind by itself.
    """
    # every sum and every condition of the choice, in a fixed order; a condition counts as a sum with amount 1 per
    # option
    sums = [*(one.terms for one in choices.limits), *(one.terms for one in choices.multiples)]
    sums += [one.terms for one in choices.shortfalls]
    sums += [terms for one in choices.runtimes for terms in (one.gives, one.terms)]
    sums += [terms for crossing in choices.crossings for terms, _ in crossing.resources]
    conditions = [*(limit.when for limit in choices.limits), *(one.when for one in choices.multiples)]
    for either in choices.eithers:
        conditions.append(either.when)
        for branch in either.branches:
            sums += [limit.terms for limit in branch.limits]
            sums += [terms for crossing in branch.crossings for terms, _ in crossing.resources]
            conditions += [limit.when for limit in branch.limits]
    sums += [tuple((o, 1) for o in options) for options in conditions]
    # option -> (number of a sum, amount of the option in it): options of a kind have the same amounts in every sum
    parts: dict[int, list[tuple[int, int]]] = {}
    for number, terms in enumerate(sums):
        for o, amount in terms:
            parts.setdefault(o, []).append((number, amount))
    found: dict[Hashable, list[int]] = {}
    for u, options in of_unit.items():
        alone = u in choices.told_apart or len(options) > 1
        for o in options:
            alike = changed(choices.units[u], rank=0), choices.options[o].rule, tuple(parts.get(o, ()))
            found.setdefault(o if alone else alike, []).append(o)
    kinds = (sorted(kind, key=lambda o: choices.units[choices.options[o].unit].rank) for kind in found.values())
    return {kind[0]: kind for kind in kinds}
