"""Which of a gang's own wishes keep it from room that there is: for `koordpy explain`, each one tried.

Source: simulate.md 5.2. MustGather and podCountMultiple are given up one by one, else all of them together, and
the gang is told only of what finds it a place.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from koordpy.api.gangspec import GatherRule
from koordpy.planning.build import build, unit_multiples
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.place import place_npus
from koordpy.planning.joint import place_gang
from koordpy.planning.units import Unit
from koordpy.planning.words.denial import domain_slots


class _Relaxation(NamedTuple):
    text: str
    change: Callable[[GatherRule], GatherRule]


def relaxed_misses(unit: Unit, figures: Figures, *, needed: int) -> list[str]:
    """What a unit without a place could give up to find one; empty where nothing of that helps.

    needed: pods that would have to be placed.
    """
    known = _relaxations(unit, figures)
    found = [(one.text, _where_it_fits(unit, [one], figures)) for one in known]
    if not any(there for _, there in found) and len(known) > 1:
        found = [(", and ".join(one.text for one in known), _where_it_fits(unit, known, figures))]
    out = []
    for text, there in found:
        if there is not None:
            out.append(text + (_room(there, figures, needed) if "PreferGather" in text else ""))
    return out


def _relaxations(unit: Unit, figures: Figures) -> list[_Relaxation]:
    layers = figures.snapshot.tree.layers
    rules = [rule for gang in unit.gangs for rule in gang.wish.gather if rule.must]
    hard = {(rule.layer, rule.scope): layers.level(rule.layer) or 0 for rule in rules}
    out = []
    for layer, scope in sorted(hard, key=lambda one: (-hard[one], one)):
        of = "" if scope == "group" else f" of each {scope}"
        out.append(_Relaxation(f"{layer}{of} were PreferGather", _preferred(layer, scope)))
    for level, k in unit_multiples(unit, figures).items():
        layer = figures.snapshot.tree.layer_name(level)
        out.append(_Relaxation(f"podCountMultiple {layer}={k} were left out", _uncounted(layer)))
    return out


def _preferred(layer: str, scope: str) -> Callable[[GatherRule], GatherRule]:
    return lambda rule: replace(rule, must=False, scope="group") if (rule.layer, rule.scope) == (layer, scope) else rule


def _uncounted(layer: str) -> Callable[[GatherRule], GatherRule]:
    return lambda rule: replace(rule, multiple=0) if rule.layer == layer else rule


def _where_it_fits(unit: Unit, given_up: Sequence[_Relaxation], figures: Figures) -> Unit | None:
    """The unit as it would be without some wishes; None where that has no place either."""
    gangs = []
    for gang in unit.gangs:
        rules = gang.wish.gather
        for one in given_up:
            rules = tuple(map(one.change, rules))
        gangs.append(replace(gang, wish=replace(gang.wish, gather=rules)))
    other = Unit(id=unit.id, gangs=tuple(gangs))
    by_rules = place_npus(other, figures)
    placed = by_rules if by_rules is not None else place_gang(other, build(other, figures), figures)
    return other if placed.nodes else None


def _room(unit: Unit, figures: Figures, needed: int) -> str:
    """The room of a unit that may go anywhere; empty of one that may not."""
    rules = [rule for gang in unit.gangs for rule in gang.wish.gather]
    if not rules or any(rule.must or rule.multiple > 1 for rule in rules):
        return ""
    return f": the cluster has {int(domain_slots(unit, figures)(0)[0])} slots for {needed}"
