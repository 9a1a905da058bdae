# SPDX-License-Identifier: Apache-2.0
"""The score plugins that depend on other pods or on the whole cluster; each pod gets only the scores that concern it.
`SoftTotal` is the weighted sum of the scores of a pod.

To add a score, write a `SoftScore` in a separate module, one line in `SCORES`, and its name with its weight in the
configuration (`koordpy.config.config_values.DEFAULT_WEIGHTS`); see docs/extending.md. Each function in `SCORES` yields
a score only for pods that the score concerns, so other pods cost no time. Scores of a node's labels, taints, images and
resources are in `plugins/node_scores.py`. Source: docs/rules/kube-parity.md 3.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints
from koordpy.config.configuration import Scores
from koordpy.devices.family_registry import device_scores
from koordpy.feasibility.scarce_resources import ScarceResourceAvoidance, asks_for_scarce
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.node_scores import StaticScores, normalised
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


class SoftTotal:
    """The weighted sum of a shape's scores that do not depend on free capacity, normalised over feasible nodes."""

    def __init__(
        self, scores: Sequence[SoftScore], static: StaticScores, weights: Scores, feasible: NDArray[np.bool_]
    ) -> None:
        """scores: of `scores_of`. static: scores that depend on node objects alone. feasible: [nodes]."""
        counted = [one for one in scores if weights.weight(one.plugin) and not one.silent]
        moving = any(not one.silent and not one.fixed and not one.local for one in scores)
        self._varies = bool(static.untolerated.any() or static.preferred.any() or moving)
        """True if a change of the draft may change the normalised scores of all nodes."""
        self._far: Ints = np.zeros(len(feasible), dtype=np.int64)
        """[nodes] the sum without local scores."""
        for plugin, values in normalised(static, feasible).items():
            self._far = self._far + weights.weight(plugin) * values
        for one in counted:
            if not one.local:
                self._far = self._far + weights.weight(one.plugin) * one.values(feasible)
        self._local = [(one, one.scale(feasible), weights.weight(one.plugin)) for one in counted if one.local]
        """(local score, number by which it is normalised, weight)."""
        self.values: Ints = self._far
        """[nodes] the sum."""
        for one, _, weight in self._local:
            self.values = self.values + weight * one.values(feasible)

    def renew(self, nodes: Ints, slots: Ints) -> bool:
        """Updates the sums of the nodes (positions) that the draft has changed. Returns False if the sums of other
        nodes may differ, too: then all must be normalised again. slots: [nodes] above 0 if a node is feasible now."""
        if self._varies or not self._local:
            return not self._varies
        feasible = slots > 0
        if any(one.scale(feasible) != scale for one, scale, _ in self._local):
            return False
        for node, able in zip(nodes.tolist(), feasible[nodes].tolist(), strict=True):
            near = sum(weight * one.value_at(node, scale, feasible=able) for one, scale, weight in self._local)
            self.values[node] = self._far[node] + near
        return True
