"""Affinity and topology-spread counts as linear terms of the model of victims.

Sources: preemption.md 5 (all filters run on the state after the evictions), kube-parity.md 2.6 and 2.7. Evicting a pod
changes the counts that affinity and spread filters read. Both are sums over the 0/1 variables of the victims, so they
are constraints of the model. Without them each infeasible choice would have to be cut off by a no-good cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.selectors import selector_matches
from koordpy.planning.figures import Figures
from koordpy.planning.filters.interpod import OwnTerms
from koordpy.planning.filters.spread import Spreading, TopologySpread
from koordpy.planning.placement.ties import Apart, InOneDomain, Interaction


@dataclass(frozen=True, eq=False)
class AffinityTerm:
    """An interaction as it stands with all victims there. leaving: per label that it goes by (domain, key of a pod that
    counts there and may go)."""

    interaction: Interaction
    leaving: tuple[tuple[tuple[int, str], ...], ...] = ()


def affinity_terms(
    kinds: Sequence[PodInfo], among: Sequence[Interaction], victims: Sequence[PodInfo], figures: Figures
) -> tuple[AffinityTerm, ...]:
    """All that pods of some kinds ask of places: of each other, and of running pods of which `victims` may go.

    kinds: one pod per shape of the problem, by number. among: what its members ask of each other, as the draft is.
    """
    out = [AffinityTerm(one) for one in among if isinstance(one, Apart | InOneDomain)]
    index = figures.snapshot.index
    standing = [(pod, index[pod.node]) for pod in victims]
    for shape, pod in enumerate(kinds):
        for rule in figures.rules(pod):
            if isinstance(rule, OwnTerms):
                out += _near(shape, rule, kinds, standing)
            elif isinstance(rule, TopologySpread):
                out += _spread(shape, rule.spreading, kinds, standing)
    return tuple(out)


def _near(
    shape: int, rule: OwnTerms, kinds: Sequence[PodInfo], standing: Sequence[tuple[PodInfo, int]]
) -> list[AffinityTerm]:
    meant = tuple(i for i, other in enumerate(kinds) if rule.wants(other))
    if (near := rule.tie(shape, meant)) is None:
        return []
    there = [(pod.key, node) for pod, node in standing if rule.wants(pod)]
    leaving = tuple(tuple((int(of[node]), key) for key, node in there if of[node] >= 0) for of in near.groups)
    return [AffinityTerm(near, leaving)]


def _spread(
    shape: int, spreading: Spreading, kinds: Sequence[PodInfo], standing: Sequence[tuple[PodInfo, int]]
) -> list[AffinityTerm]:
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
