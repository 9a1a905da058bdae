# SPDX-License-Identifier: Apache-2.0
"""Affinity and topology spread as constraints of the CP-SAT model of victims.

For each constraint of the preemptor, this module finds the evictable pods that it counts, and their domains.

Sources: docs/rules/preemption.md 5, kube-parity.md 2.6 and 2.7. A filter for affinity or spread reads numbers of pods
per domain, and evicting a pod changes these numbers. They are sums over the variables of the victims, so the filters
can be constraints of the model. Without these constraints, each infeasible set would cost a dry run and a no-good cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.api.label_selectors import selector_matches
from koordpy.feasibility.round_state import RoundState
from koordpy.placement.member_interactions import (
    AntiAffinity,
    InOneDomain,
    Interaction,
    LinkedAffinity,
    RequiredAffinity,
    linked_sets,
)
from koordpy.plugins.interpod_affinity import OwnTerms
from koordpy.plugins.topology_spread import Spreading, TopologySpread
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True, eq=False)
class AffinityTerm:
    """An affinity or spread constraint, with the evictable pods that it counts.

    interaction: the constraint, counted with all victims present.
    """

    interaction: Interaction
    leaving: tuple[tuple[tuple[int, str], ...], ...] = ()
    """One entry per label of the constraint: ((domain, key of an evictable pod that is counted there), ...)."""


def affinity_terms(
    kinds: Sequence[PodInfo], among: Sequence[Interaction], victims: Sequence[PodInfo], round_state: RoundState
) -> tuple[AffinityTerm, ...]:
    """Returns the affinity and spread constraints of the members, between each other and with running pods.

    kinds: one pod for each shape of the problem. among: constraints between the members, read from the draft with all
    victims present; constraints that do not depend on running pods are returned unchanged. victims: running pods that
    may be evicted.
    """
    out = [AffinityTerm(one) for one in among if isinstance(one, AntiAffinity | InOneDomain)]
    index = round_state.snapshot.index
    standing = [(pod, index[pod.node]) for pod in victims]
    near: list[_Near] = []
    for shape, pod in enumerate(kinds):
        for rule in round_state.rules(pod):
            if isinstance(rule, OwnTerms):
                near += _near(shape, rule, kinds, standing)
            elif isinstance(rule, TopologySpread):
                out += _spread(shape, rule.spreading, kinds, standing)
    leaving = {one.near.shape: one.leaving for one in near}
    for owners in linked_sets([one.near for one in near]):
        labels = tuple(label for one in owners for label in leaving[one.shape])
        out.append(AffinityTerm(LinkedAffinity(tuple(owners)), labels))
    return tuple(out)


class _Near(NamedTuple):
    """Required affinity of a shape, and for each of its terms the evictable pods that match it: (domain, pod key)."""

    near: RequiredAffinity
    leaving: tuple[tuple[tuple[int, str], ...], ...]


def _near(shape: int, rule: OwnTerms, kinds: Sequence[PodInfo], standing: Sequence[tuple[PodInfo, int]]) -> list[_Near]:
    """Returns the required affinity of a shape by one rule; empty if the rule has no required term. standing: evictable
    pods with the positions of their nodes."""
    meant = tuple(i for i, other in enumerate(kinds) if rule.wants(other))
    if (near := rule.tie(shape, meant)) is None:
        return []
    there = [(pod.key, node) for pod, node in standing if rule.wants(pod)]
    leaving = tuple(tuple((int(of[node]), key) for key, node in there if of[node] >= 0) for of in near.groups)
    return [_Near(near, leaving)]


def _spread(
    shape: int, spreading: Spreading, kinds: Sequence[PodInfo], standing: Sequence[tuple[PodInfo, int]]
) -> list[AffinityTerm]:
    """Returns the spread constraints of a shape, with the evictable pods that count in each domain."""
    own = kinds[shape]
    counted = [(pod.key, node, spreading.counting(pod, node)) for pod, node in standing]
    out = []
    for number, one in enumerate(spreading.constraints):
        meant = tuple(
            i
            for i, other in enumerate(kinds)
            if other.namespace == own.namespace and selector_matches(one.selector, other.pod.metadata.labels)
        )
        leaving = tuple((int(one.domains.of[node]), key) for key, node, counts in counted if counts[number])
        out.append(AffinityTerm(one.tie(shape, meant), (leaving,)))
    return out
