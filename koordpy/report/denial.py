# SPDX-License-Identifier: Apache-2.0
"""Composes the sentences about a lack of capacity in the message of a pending pod.

`filter_sentence` returns kube-scheduler's sentence: `0/N nodes are available: ...`. `gang_need` returns the gang's
sentence: how many members it needs, and how many slots each domain has. Sources: kube-parity.md section 1,
gang-network.md section 6.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from koordpy.api.natural_order import natural_key
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.filter_protocol import Code
from koordpy.gangs.gathered_parts import parts_of, without_parts
from koordpy.gangs.queue_units import Unit
from koordpy.infeasibility.limiting_rules import (
    divided,
    divided_sentence,
    lacking_resources,
    limiting_rules,
    missing_member,
    unlabelled_layer,
    wrong_multiple,
)
from koordpy.placement.goals import slots_by_level
from koordpy.placement.opened_place import opening_shapes
from koordpy.placement.problem import Ints, Problem
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build, hard_keys, named_partitions, partitions, unit_multiples
from koordpy.report.gang_sentence import GangNeed

CANNOT_HOLD = "node(s) cannot hold the whole gang"
"""Reason for nodes that would take a single member, but not the whole gang."""
KEPT = "node(s) are needed for a promised start"
"""Reason for nodes that would take the pod, but have capacity reserved for the promised start of an earlier unit."""
NO_NODES = "no nodes available to schedule pods"
"""Sentence of kube-scheduler for a cluster without nodes."""


def filter_sentence(
    pod: PodInfo, round_state: RoundState, *, alone: bool, passing: str = CANNOT_HOLD
) -> tuple[str, tuple[str, ...]]:
    """Returns (`0/N nodes are available: ...`, names of the plugins that refused) for one pod on the current draft.

    passing: reason for the nodes that no filter refuses. Such nodes cannot hold the whole gang, or are needed for a
    promised start. alone: True to leave these nodes out.
    """
    total = len(round_state.snapshot.nodes)
    if not total:
        return NO_NODES, ()
    own = round_state.of(pod)
    if own.refusal is not None:
        # a refusal of all nodes at once (PreFilter) is listed once; with code Unschedulable it has the number of all
        # nodes, as if each node had been tried
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


def domain_slots(unit: Unit, round_state: RoundState, ranks: tuple[int, ...] | None = None) -> Callable[[int], Ints]:
    """Returns a function from a level to an array with the usable slots of each domain of the level, for the reference
    pod: a pod of the shape with the fewest slots in the cluster (gang-network.md 5).

    The slots are those on the current draft. A topology key requires that all members are on nodes with the same value
    of this node label. So if the unit has topology keys, the slots are the maximum over their values. ranks: the
    members that a plan places, and that the reference pod is chosen from; None for all pending members.
    """
    problem = build(unit, round_state)
    reference = problem.reference(ranks)
    parts = list(partitions(unit, problem, round_state))

    def usable(level: int) -> Ints:
        if not parts:
            return np.zeros(len(round_state.snapshot.tree.levels[level]), dtype=np.int64)
        return np.asarray(np.max([slots_by_level(part, reference)[level] for part in parts], axis=0), dtype=np.int64)

    return usable


def core_size(unit: Unit) -> int:
    """Returns the number of pods that a plan must place: the sum over the unit's gangs of their needs, at least 1."""
    return max(1, sum(unit.need(gang) for gang in unit.gangs))


def gang_need(unit: Unit, round_state: RoundState) -> GangNeed:
    """Returns the sentence `needed K, available in LAYER: DOMAIN: SLOTS, ...; ADDITION` of a gang after the round.

    It does not contain the gang's name, so that units of one equivalence class share it. The list has the domains of
    the MustGather layer, else the values of topology keys, else the cluster. A more precise cause replaces the list:
    bound members in several domains, a refusal of every node, or a layer without any label.
    """
    whole = without_parts(unit)  # the rules of parts are additions at the end of the sentence
    problem = build(whole, round_state)
    if divided := divided_sentence(whole, problem, round_state):
        return GangNeed(divided)
    if refused := _refused_everywhere(whole, round_state):
        return GangNeed(f"needed {problem.core_size}: {refused}")
    usable = domain_slots(whole, round_state)
    if problem.hard and (unlabelled := unlabelled_layer(problem, usable(problem.hard), round_state)):
        return GangNeed(f"needed {problem.core_size}, {unlabelled}")
    if problem.hard:
        layer, slots = _hard_domains(problem, usable(problem.hard))
    else:
        named = _labelled(whole, problem, round_state) or _opened(whole, problem, round_state)
        layer, slots = named or ("the cluster", [("", int(usable(0)[0]))])
    domains = tuple(f"{name}: {number}" if name else str(number) for name, number in slots)
    text = f"needed {problem.core_size}, available in {layer}: "
    return GangNeed(text, domains or ("none",), tuple(_additions(unit, problem, round_state)))


def _additions(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[str]:
    """Yields the additions of the sentence, in order: limits of a gang other than slots.

    problem: placement problem of the unit without its parts.
    """
    yield from _multiples(unit, problem, round_state)
    yield from limiting_rules(unit, round_state)
    yield from lacking_resources(unit, problem, round_state)
    yield from _parts(unit, problem)
    yield from divided_parts(unit, problem, round_state)


def _multiples(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[str]:
    """Yields the podCountMultiples of the unit, and a sentence if no possible number of members satisfies them."""
    if problem.multiples:
        asked = unit_multiples(unit, round_state)
        named = ", ".join(f"{problem.tree.layer_name(level)}={k}" for level, k in asked.items())
        _, wrong = wrong_multiple(unit, problem.core_size, asked)
        yield f"podCountMultiple {named}" + (f" ({wrong})" if wrong else "")


def _parts(unit: Unit, problem: Problem) -> Iterator[str]:
    """Yields `each SCOPE (largest N) in one LAYER` for each kind of part, such as replicas that share a block each."""
    largest: dict[tuple[str, str], int] = {}
    for part in parts_of(unit, problem.tree.layers):
        kind = part.scope, part.label or problem.tree.layer_name(part.level)
        largest[kind] = max(largest.get(kind, 0), len(part.members))
    for (scope, layer), members in largest.items():
        yield f"each {scope} (largest {members}) in one {layer}"


def _refused_everywhere(unit: Unit, round_state: RoundState) -> str:
    """Returns the reasons if a filter refuses a needed member for all nodes at once (PreFilter); else empty."""
    refusals = {pod.shape: round_state.of(pod).refusal for pod in unit.pending}
    pod = missing_member(unit, lambda pod: refusals[pod.shape] is None)
    refusal = refusals[pod.shape] if pod is not None else None
    return ", ".join(refusal.reasons) if refusal is not None else ""


def divided_parts(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[str]:
    """Yields a sentence for each part with pending members that already has bound members in several domains."""
    snapshot, tree = round_state.snapshot, problem.tree
    for part in parts_of(unit, tree.layers):
        bound = [snapshot.index[pod.node] for pod in part.members if not pod.pending and pod.node in snapshot.index]
        if len(bound) < 2 or len(bound) == len(part.members):
            continue
        if part.label:
            names = {snapshot.nodes[node].labels.get(part.label, "") for node in bound}
        else:
            groups = part.domains(snapshot)
            names = {tree.path(part.level, int(groups[node])) for node in bound}
        if len(names) > 1:
            yield divided(f"bound members of one {part.scope}", part.label or tree.layer_name(part.level), names)


DomainSlots = tuple[str, list[tuple[str, int]]]
"""(layer or label keys, (domain, slots) of its domains, most slots first)."""


def _hard_domains(problem: Problem, slots: Ints) -> DomainSlots:
    """Returns the domains of the MustGather layer; with bound members only those that contain them."""
    tree, level = problem.tree, problem.hard
    held = tree.levels[level].sums(problem.bound_counts)
    listed = np.nonzero(held)[0] if held.any() else np.arange(len(slots))
    return _listed(tree.layer_name(level), [(tree.path(level, d), int(slots[d])) for d in listed.tolist()])


def _labelled(unit: Unit, problem: Problem, round_state: RoundState) -> DomainSlots | None:
    """Returns the values of the unit's topology keys with their slots; None without such keys. A topology key requires
    that all members are on nodes with the same value of this node label."""
    reference = problem.reference()
    parts = [(name, part) for name, part in named_partitions(unit, problem, round_state) if name]
    found = [(name, int(slots_by_level(part, reference)[0][0])) for name, part in parts]
    in_order = sorted(found, key=lambda entry: natural_key(entry[0]))
    return _listed("/".join(hard_keys(unit)), in_order) if found else None


def _opened(unit: Unit, problem: Problem, round_state: RoundState) -> DomainSlots | None:
    """Returns the values of the topology key (or keys) of the pods' required affinity, with their slots.

    This is for a unit in which all pending pods have required affinity to each other, and no running pod fixes the
    domain, so that they must share one domain, but any may be used. None for other units, or if the pods have different
    keys.
    """
    owners = opening_shapes(problem)
    if not owners or len(owners) < len(problem.pending_counts):
        return None
    keys = {tuple(dict.fromkeys(t.topology_key for t in pod.ties.terms.affinity.required)) for pod in unit.pending}
    if len(keys) > 1:
        return None
    (wanted,) = keys
    slots, counts = problem.copies_of[problem.reference()].tolist(), Counter[str]()
    for node, number in zip(round_state.snapshot.nodes, slots, strict=True):
        if all(key in node.labels for key in wanted):
            counts["/".join(node.labels[key] for key in wanted)] += number
    return _listed("/".join(wanted), sorted(counts.items(), key=lambda entry: natural_key(entry[0])))


def _listed(layer: str, slots: Sequence[tuple[str, int]]) -> DomainSlots:
    """Returns the domains of a layer, most slots first.

    slots: (domain, slots) in natural order. Domains with equal slots stay in this order.
    """
    return layer, sorted(slots, key=lambda entry: -entry[1])


def met_sentence(unit: Unit) -> dict[str, str]:
    """Returns gang key -> `gang NS/NAME: minMember 4 met, 2 more waiting for room; `, the beginning of messages.

    Only gangs that have reached minMember and still have pending members have an entry.
    """
    return {
        gang.key: f"gang {gang.key}: minMember {gang.min_member} met, {len(gang.pending)} more waiting for room; "
        for gang in unit.gangs
        if gang.pending and len(gang.bound) >= max(1, gang.min_member)
    }
