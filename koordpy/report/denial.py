"""The words of a denial: kube-scheduler's sentence for the pod, then what the gang needs and what each domain offers.

Sources: kube-parity.md section 1, gang-network.md section 6.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from koordpy.api.natural import natural_key
from koordpy.cluster.pods import PodInfo
from koordpy.planning.build import build, hard_keys, named_partitions, partitions, unit_multiples
from koordpy.planning.figures import Figures
from koordpy.planning.filters.base import Code
from koordpy.planning.parts import parts_of, without_parts
from koordpy.planning.placement.goals import slots_by_level
from koordpy.planning.placement.problem import Ints, Problem
from koordpy.planning.units import Unit

CANNOT_HOLD = "node(s) cannot hold the whole gang"
KEPT = "node(s) are needed for a promised start"
NO_NODES = "no nodes available to schedule pods"
_LISTED_DOMAINS = 5


def filter_sentence(
    pod: PodInfo, figures: Figures, *, alone: bool, passing: str = CANNOT_HOLD
) -> tuple[str, tuple[str, ...]]:
    """(`0/N nodes are available: ...`, plugins that refused) for one pod on the draft as it is.

    A node that would take the pod alone counts as one that cannot hold the whole gang (`passing`), unless `alone`.
    """
    total = len(figures.snapshot.nodes)
    if not total:
        return NO_NODES, ()
    own = figures.of(pod)
    if own.refusal is not None:
        # a verdict on the pod is said once, one on the nodes with their number, as if each had been tried
        count = f"{total} " if own.refusal.code is Code.UNSCHEDULABLE else ""
        reasons = ", ".join(f"{count}{reason}" for reason in own.refusal.reasons)
        return f"0/{total} nodes are available: {reasons}.", (own.refusal.plugin,)
    verdict = own.verdict()
    numbers = np.bincount(verdict.which, minlength=len(verdict.refusals) + 1).tolist()
    counts: Counter[str] = Counter()
    plugins: dict[str, None] = {}
    for refusal, number in zip(verdict.refusals, numbers[1:], strict=True):
        if number:
            plugins[refusal.plugin] = None
            for reason in refusal.reasons:
                counts[reason] += number
    if numbers[0] and not alone:
        counts[passing] = numbers[0]
    entries = sorted(f"{number} {reason}" for reason, number in counts.items())
    return f"0/{total} nodes are available: {', '.join(entries)}.", tuple(plugins)


def domain_slots(unit: Unit, figures: Figures, ranks: tuple[int, ...] | None = None) -> Callable[[int], Ints]:
    """Usable slots of the reference pod in every domain of a level (section 5), on the draft as it is.

    ranks: the members that a plan places, all pending ones where there is none.
    """
    problem = build(unit, figures)
    reference = problem.reference(ranks)
    parts = list(partitions(unit, problem, figures))

    def usable(level: int) -> Ints:
        if not parts:
            return np.zeros(len(figures.snapshot.tree.levels[level]), dtype=np.int64)
        return np.asarray(np.max([slots_by_level(part, reference)[level] for part in parts], axis=0), dtype=np.int64)

    return usable


def needed_sentence(unit: Unit, figures: Figures) -> str:
    """`needed K, available in <place>` of a gang as it stands after the round: equal for units of one shape."""
    whole = without_parts(unit)  # what its parts keep to is said behind
    problem = build(whole, figures)
    needed = max(1, sum(problem.needs))
    usable = domain_slots(whole, figures)
    if problem.hard:
        place = _hard_domains(problem, usable(problem.hard))
    elif labelled := _labelled(whole, problem, figures):
        place = labelled
    else:
        place = f"the cluster: {int(usable(0)[0])}"
    text = f"needed {needed}, available in {place}"
    if problem.multiples:
        asked = unit_multiples(unit, figures)
        named = ", ".join(f"{problem.tree.layer_name(level)}={k}" for level, k in asked.items())
        text += f"; podCountMultiple {named}"
    largest: dict[tuple[str, str], int] = {}
    for part in parts_of(unit, problem.tree.layers):
        kind = part.scope, part.label or problem.tree.layer_name(part.level)
        largest[kind] = max(largest.get(kind, 0), len(part.members))
    for (scope, layer), members in largest.items():
        text += f"; each {scope} (largest {members}) in one {layer}"
    return text


def _hard_domains(problem: Problem, slots: Ints) -> str:
    tree, level = problem.tree, problem.hard
    held = tree.levels[level].sums(problem.bound_counts)
    listed = np.nonzero(held)[0] if held.any() else np.arange(len(slots))
    return _listed(tree.layer_name(level), [(tree.path(level, d), int(slots[d])) for d in listed.tolist()])


def _labelled(unit: Unit, problem: Problem, figures: Figures) -> str:
    """The same for upstream's topology keys, each a MustGather on a node label; empty without them."""
    reference = problem.reference()
    parts = [(name, part) for name, part in named_partitions(unit, problem, figures) if name]
    found = [(name, int(slots_by_level(part, reference)[0][0])) for name, part in parts]
    in_order = sorted(found, key=lambda entry: natural_key(entry[0]))
    return _listed("/".join(hard_keys(unit)), in_order) if found else ""


def _listed(layer: str, slots: Sequence[tuple[str, int]]) -> str:
    """`LAYER: NAME: SLOTS, ...`, most slots first, of equal ones as they come."""
    order = sorted(slots, key=lambda entry: -entry[1])
    more = len(order) - _LISTED_DOMAINS
    text = ", ".join(f"{name}: {number}" for name, number in order[:_LISTED_DOMAINS])
    return f"{layer}: {text}" + (f", {more} more" if more > 0 else "")


def met_sentence(unit: Unit) -> dict[str, str]:
    """Gang key -> `gang NS/NAME: minMember 4 met, 2 more waiting for room; ` of the gangs whose minimum is met."""
    return {
        gang.key: f"gang {gang.key}: minMember {gang.min_member} met, {len(gang.pending)} more waiting for room; "
        for gang in unit.gangs
        if gang.pending and len(gang.bound) >= max(1, gang.min_member)
    }
