# SPDX-License-Identifier: Apache-2.0
"""The score plugins that depend on other pods or on the whole cluster; each pod gets only the scores that concern it.

To add a score, write a `SoftScore` in a separate module, one line in `SCORES`, and its name with its weight in the
configuration (`koordpy.config.config_values.DEFAULT_WEIGHTS`); see docs/extending.md. Each function in `SCORES` yields
a score only for pods that the score concerns, so other pods cost no time. Scores of a node's labels, taints, images and
resources are in `plugins/node_scores.py`. Source: docs/rules/kube-parity.md 3.
"""

from collections.abc import Callable, Iterable, Iterator

from koordpy.devices.family_registry import device_scores
from koordpy.feasibility.scarce_resources import ScarceResourceAvoidance, asks_for_scarce
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.soft_scores import InterPodAffinity, PodTopologySpread, SoftScore
from koordpy.plugins.topology_spread import SCORES as SOFT
from koordpy.plugins.topology_spread import Spreading, constraints_of
from koordpy.pods.pod_info import PodInfo


def _spread(pod: PodInfo, inputs: FilterInputs) -> Iterator[SoftScore]:
    defaults, own = inputs.spread_defaults, pod.pod.spec.topology_spread_constraints
    if not (defaults or own):
        return
    if constraints := constraints_of(pod, SOFT, defaults):
        loose = defaults is not None and defaults.loose and not own
        yield PodTopologySpread(Spreading(pod, constraints, inputs.snapshot, inputs.domains, loose=loose))


def _pod_affinity(pod: PodInfo, inputs: FilterInputs) -> Iterator[SoftScore]:
    there, coming = inputs.terms_towards(pod)
    coming = coming or bool(pod.ties.terms)
    if there or coming:
        near = InterPodAffinity(pod, there, inputs.snapshot, inputs.domains, inputs.config.filters.inter_pod_affinity)
        if coming or not near.silent:
            yield near


def _scarce(pod: PodInfo, inputs: FilterInputs) -> Iterator[SoftScore]:
    scarce = inputs.scarce_nodes
    if scarce is not None and not asks_for_scarce(pod, inputs):
        yield ScarceResourceAvoidance(scarce)


def _devices(pod: PodInfo, inputs: FilterInputs) -> Iterator[SoftScore]:
    if pod.asks:
        yield from device_scores(pod, inputs)


SCORES: dict[str, Callable[[PodInfo, FilterInputs], Iterable[SoftScore]]] = {
    PodTopologySpread.plugin: _spread,
    InterPodAffinity.plugin: _pod_affinity,
    ScarceResourceAvoidance.plugin: _scarce,
    "NodeResourceTopologyMatch": _devices,
}
"""Plugin -> function that yields its scores for a pod."""
SHOWN_IF_GIVEN = frozenset({"NodeResourceTopologyMatch"})
"""Plugins that `koordpy explain` shows only for pods that they concern; for other pods, other plugins are shown with
0."""


def scores_of(pod: PodInfo, inputs: FilterInputs) -> list[SoftScore]:
    """Returns the scores that concern a pod, in the state of the snapshot, without changes of the draft.

    The caller must report every change of the draft to each score with `SoftScore.change`.
    """
    return [score for build in SCORES.values() for score in build(pod, inputs)]
