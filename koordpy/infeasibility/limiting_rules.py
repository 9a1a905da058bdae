# SPDX-License-Identifier: Apache-2.0
"""Finds what prevents the placement of a gang, other than a lack of slots, for its message (gang-network.md 6).

Possible causes are rules among the members (affinity, anti-affinity, spread, host ports), sums of resources, multiples,
and bound members in several domains. Rules among members are found by trial: a rule is reported if the planner can
place the gang without this one rule. Each trial costs one placement, so at most `LIMITING_RULES_TRIED` rules are tried.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from koordpy.api.label_selectors import selector_matches
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot_variants import read_again
from koordpy.cache.topology_gaps import bare_layer
from koordpy.fairness.quota_admission import core_members
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Ints, Problem
from koordpy.plan.limits import LIMITING_RULES_MEMBERS, LIMITING_RULES_TRIED, LISTED_DOMAINS
from koordpy.plugins.interpod_affinity import term_matches
from koordpy.plugins.topology_spread import own_selector
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_rules import Respec, rules_of
from koordpy.problems.problem_building import build, hard_keys
from koordpy.problems.unit_placement import Question, place_unit


def limiting_rules(unit: Unit, round_state: RoundState, *, emptied_time: float | None = None) -> Iterator[str]:
    """Yields each rule among the members that alone prevents the placement, such as `spread over KEY`.

    Without this one rule, the planner can place the unit. emptied_time: None if `round_state` is the draft of a round;
    if it is the empty cluster, the deterministic time limit of each trial.
    """
    if len(unit.members) < 2 or not any(round_state.concerned(pod) for pod in unit.pending):
        return
    among = _among_members(unit, round_state)
    rules = [one for one in rules_of(pod.pod for pod in unit.pending) if one[0] in among]
    if len(rules) > 1 and len(unit.pending) > LIMITING_RULES_MEMBERS:
        return  # each trial solves the problem with all other rules, which takes too long for many members
    for text, respec in rules[:LIMITING_RULES_TRIED]:
        other = unit.with_changes(_Respec(respec, round_state))
        changed = round_state.of_changed(other)
        problem = build(other, changed)
        if emptied_time is not None:
            problem = replace(problem, deterministic_time=emptied_time, device_costs=None)
        if place_unit(other, problem, changed, Question.BEST).placed:
            yield text


def _among_members(unit: Unit, round_state: RoundState) -> set[str]:
    """Returns the names of the rules by which pending members concern each other (names as in `pod_rules.rules_of`)."""
    found, namespaces = set[str](), round_state.snapshot.namespaces
    labelled = {(pod.namespace, *sorted(pod.pod.metadata.labels.items())): pod for pod in unit.members}
    ports = Counter(port.port for pod in unit.pending for port in pod.ties.ports)
    found |= {f"host port {port}" for port, number in ports.items() if number > 1}
    for pod in {pod.shape: pod for pod in unit.pending}.values():
        own, near = pod.pod.metadata.labels, pod.ties.terms
        for other in labelled.values():
            labels = other.pod.metadata.labels
            for one in pod.pod.spec.topology_spread_constraints:
                if other.namespace == pod.namespace and selector_matches(own_selector(one, own), labels):
                    found.add(f"spread over {one.topology_key}")
            for what, terms in (("affinity", near.affinity), ("anti-affinity", near.anti_affinity)):
                for term in terms.required:
                    if term_matches(term, pod.namespace, other.namespace, labels, namespaces):
                        found.add(f"{what} over {term.topology_key}")
    return found


def apart_domains(unit: Unit, round_state: RoundState) -> Iterator[tuple[str, int]]:
    """Yields (topology key, number of its domains) for each key for which any two members have anti-affinity.

    Then each member needs a separate domain. Yields nothing if a member is bound. A key is left out if a node that
    could be used lacks the label, because the rule does not apply there.
    """
    kinds = list({pod.shape: pod for pod in unit.pending}.values())
    if len(unit.members) > len(unit.pending) or not all(pod.ties.terms.anti_affinity.required for pod in kinds):
        return
    namespaces, nodes = round_state.snapshot.namespaces, round_state.snapshot.nodes
    usable = np.logical_or.reduce([round_state.of(pod).allowed > 0 for pod in kinds])
    for key in sorted({term.topology_key for term in kinds[0].ties.terms.anti_affinity.required}):
        apart = all(
            any(
                term.topology_key == key
                and term_matches(term, pod.namespace, other.namespace, other.pod.metadata.labels, namespaces)
                for term in pod.ties.terms.anti_affinity.required
            )
            for pod in kinds
            for other in kinds
        )
        values = {nodes[node].labels.get(key) for node in np.nonzero(usable)[0].tolist()}
        if apart and None not in values:
            yield key, len(values)


class _Respec:
    """A function that returns a pending member with one rule removed, and a bound member unchanged."""

    def __init__(self, respec: Respec, round_state: RoundState) -> None:
        self._respec, self._round_state = respec, round_state

    def __call__(self, pod: PodInfo) -> PodInfo:
        changed = self._respec(pod.pod) if pod.pending else pod.pod
        return (
            pod
            if changed == pod.pod
            else read_again(pod, changed, self._round_state.snapshot, self._round_state.config)
        )


def lacking_resources(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[str]:
    """Yields `RESOURCE: needed N, available M` for each resource that is too scarce for a unit of several shapes.

    A resource is too scarce if the core requests more of it than any domain of the hard layer has free. Only nodes
    count that admit a shape which requests the resource. Yields nothing for a unit of one shape, because slots are
    enough for its message.
    """
    core = core_members(unit)
    if several_kinds(core):
        for one in ResourceSums(core, round_state).at(problem.hard):
            if one.needed > one.available.max(initial=0):
                yield one.text(int(one.available.max(initial=0)))


def several_kinds(pods: Iterable[PodInfo]) -> bool:
    """Returns True if the pods have several shapes, so that slots of one shape do not decide if all pods fit."""
    return len({pod.shape for pod in pods}) > 1


class ResourceSum(NamedTuple):
    """The total request of pods for one resource, and the amount available to them in each domain of a level."""

    resource: str
    needed: int
    """Total request."""
    available: Ints
    """[domains of the level] free amount on nodes that admit at least one of the pods that request the resource."""

    def text(self, available: int) -> str:
        """Returns `RESOURCE: needed N, available M`. available: the amount M to print."""
        needed, free = quantity_text(self.resource, self.needed), quantity_text(self.resource, available)
        return f"{self.resource}: needed {needed}, available {free}"


class ResourceSums:
    """Compares the total requests of the given pods with free capacity, for each resource in the order of names."""

    def __init__(self, pods: Sequence[PodInfo], round_state: RoundState) -> None:
        self._pods, self._round_state = pods, round_state

    def at(self, level: int) -> Iterator[ResourceSum]:
        """Yields the sums for the domains of a level.

        Left out are resources that only pods without any node request.
        """
        snapshot, free = self._round_state.snapshot, np.maximum(self._round_state.draft.free(), 0)
        kinds = {pod.shape: pod for pod in reversed(self._pods)}
        for name in sorted({name for pod in self._pods for name in pod.requests}):
            asking = [pod for pod in kinds.values() if pod.requests.get(name)]
            if asking and len(snapshot.nodes):
                usable = np.logical_or.reduce([self._round_state.of(pod).allowed > 0 for pod in asking])
                if not usable.any():
                    continue  # no node admits these pods, so another rule is the cause
                inside = np.where(usable, free[:, snapshot.columns[name]], 0)
                needed = sum(pod.requests.get(name, 0) for pod in self._pods)
                yield ResourceSum(name, needed, snapshot.tree.levels[level].sums(inside))


def missing_member(unit: Unit, able: Callable[[PodInfo], bool]) -> PodInfo | None:
    """Returns the first pending pod that cannot be placed, if every plan must place such a pod; else None.

    able: returns True if a pod can be placed. Every plan must place such a pod if no pending pod is able, or if a gang
    has fewer able pods than it needs.
    """
    if unit.plain is not None:
        return None if able(unit.plain) else unit.plain
    first = {pod.shape: pod for pod in reversed(unit.pending)}
    known = {shape: able(pod) for shape, pod in first.items()}
    unable = [pod for pod in unit.pending if not known[pod.shape]]
    if len(unable) == len(unit.pending):
        return unable[0]
    for gang in unit.gangs if unable else ():
        own = [pod for pod in unable if pod.gang == gang.ref or len(unit.gangs) == 1]
        if len(gang.pending) - len(own) < unit.need(gang):
            return own[0]
    return None


def divided_sentence(unit: Unit, problem: Problem, round_state: RoundState) -> str:
    """Returns `bound members are in two domains of LAYER: A, B` if the unit must be in one domain; else empty.

    In that case no domain is possible for the pending members. It happens if labels of nodes change while a gang runs.
    """
    tree, level = problem.tree, problem.hard
    if level:
        held = np.nonzero(tree.levels[level].sums(problem.bound_counts))[0].tolist()
        if len(held) > 1:
            return divided("bound members", tree.layer_name(level), [tree.path(level, d) for d in held])
    nodes = round_state.snapshot.nodes
    for key in hard_keys(unit):
        values = {nodes[node].labels.get(key, "") for node in problem.bound.values()}
        if len(values) > 1:
            return divided("bound members", key, values)
    return ""


def divided(what: str, layer: str, names: Collection[str]) -> str:
    """Returns `WHAT are in two domains of LAYER: A, B`, with at most `LISTED_DOMAINS` names in natural order."""
    order = sorted(names, key=natural_key)
    number = "two" if len(order) == 2 else len(order)
    more = len(order) - LISTED_DOMAINS
    text = ", ".join(name or "(without the label)" for name in order[:LISTED_DOMAINS])
    return f"{what} are in {number} domains of {layer}: {text}" + (f", {more} more" if more > 0 else "")


def wrong_multiple(unit: Unit, needed: int, multiples: Mapping[int, int]) -> tuple[int, str]:
    """Returns (level, `8 members are not a multiple of 6`) if no number of members that may be placed is a multiple.

    Otherwise returns (0, ""). needed: number of pods that must be placed. multiples: level -> number that must divide
    the members of each domain of the level, and therefore the sum of all members.
    """
    bound, every = len(unit.members) - len(unit.pending), len(unit.members)
    least = bound + needed
    wrong = next((level for level, k in multiples.items() if every // k * k < least), None)
    if wrong is None:
        return 0, ""
    numbers = f"{every}" if least >= every else f"{least} to {every}"
    subject = "1 member is" if numbers == "1" else f"{numbers} members are"
    return wrong, f"{subject} not a multiple of {multiples[wrong]}"


def unlabelled_layer(problem: Problem, slots: Ints, round_state: RoundState) -> str:
    """Returns `no node has the label KEY of LAYER` if all domains of the MustGather layer are private (one node each).

    Without this message, node names would be listed as if they were domains. Empty if some node has the label, or if
    one of the nodes is large enough. slots: [domains of the layer] usable slots.
    """
    needed = problem.core_size
    if not problem.bound and (needed == 1 or int(slots.max(initial=0)) >= needed):
        return ""
    return bare_layer(round_state.snapshot, problem.hard)
