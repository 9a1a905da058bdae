# SPDX-License-Identifier: Apache-2.0
"""Score plugins that read only node objects and free capacity, for all nodes at once (kube-parity.md section 3).

TaintToleration, NodeAffinity and ImageLocality are static: they do not depend on free capacity. NodeResourcesFit and
NodeResourcesBalancedAllocation depend on it. Each score is 0..100; TaintToleration and NodeAffinity are normalised over
the feasible nodes. The scores PodTopologySpread and InterPodAffinity depend on other pods (`soft_scores.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import NodeAffinity, Pod
from koordpy.api.quantity import is_extended
from koordpy.cache.snapshot import Ints, NodeInfo, Snapshot
from koordpy.config.configuration import NodeResourcesFitScore, UtilizationPoint
from koordpy.plugins.node_filters import columns_of
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.tolerations import tolerates

BALANCED = "NodeResourcesBalancedAllocation"
PACKING = "NodeResourcesFit"
"""Name of the plugin that is left out of the total for gangs with a gather goal, because goals 4 to 6 of their
placement already prefer full nodes."""

_WEIGHED = ("cpu", "memory")
"""Resources for which kube-scheduler's scores assume an amount if a container has no request."""
_IMAGE_MIN_BYTES = 23 * 2**20
"""Image bytes for score 0 (kube-scheduler's minThreshold)."""
_IMAGE_MAX_BYTES = 1000 * 2**20
"""Image bytes of one container for score 100 (kube-scheduler's maxContainerThreshold)."""


@dataclass(frozen=True, eq=False)
class StaticScores:
    """Inputs of the scores that do not depend on free capacity, before normalisation."""

    untolerated: Ints
    """[nodes] number of PreferNoSchedule taints that the pod does not tolerate."""
    preferred: Ints
    """[nodes] sum of the weights of matching preferred node affinity terms."""
    image: Ints
    """[nodes] ImageLocality, 0..100; not normalised."""


def static_scores(nodes: Sequence[NodeInfo], pod: Pod, added: NodeAffinity | None) -> StaticScores:
    """Returns the static scores of a pod on all nodes.

    added: the node affinity that the configuration adds to every pod; None without one. Its preferred terms are added
    to those of the pod.
    """
    count = len(nodes)
    known: dict[object, int] = {(): 0}
    soft = [t for t in pod.spec.tolerations if t.effect in ("", "PreferNoSchedule")]

    def untolerated(node: NodeInfo) -> int:
        answer = known.get(node.taints)
        if answer is None:
            answer = known[node.taints] = sum(
                1
                for taint in node.taints
                if taint.effect == "PreferNoSchedule" and not any(tolerates(t, taint) for t in soft)
            )
        return answer

    own = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = [term for affinity in (own, added) if affinity is not None for term in affinity.preferred]
    preferred = np.zeros(count, dtype=np.int64)
    if terms:
        columns = columns_of(nodes)
        for one in terms:
            preferred += columns.matches(one.preference) * one.weight
    return StaticScores(
        untolerated=np.fromiter((untolerated(node) for node in nodes), dtype=np.int64, count=count),
        preferred=preferred,
        image=_image_scores(nodes, pod),
    )


def _image_scores(nodes: Sequence[NodeInfo], pod: Pod) -> Ints:
    """Returns [nodes] ImageLocality: the bytes of the pod's images on the node, scaled to 0..100.

    As in kube-scheduler, the bytes of an image are multiplied by the share of nodes that have it, so that not all pods
    prefer the only node with an image.
    """
    scores = np.zeros(len(nodes), dtype=np.int64)
    if not any(node.images for node in nodes):
        return scores
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    wanted = [
        c.image if ":" in c.image.rpartition("/")[2] or "@" in c.image else c.image + ":latest" for c in containers
    ]
    sizes: list[dict[str, int]] = [
        {name: size for names, size in node.images for name in names if name in wanted} for node in nodes
    ]
    holders = {name: sum(1 for have in sizes if name in have) for name in set(wanted)}
    limit = _IMAGE_MAX_BYTES * len(containers)
    for i, have in enumerate(sizes):
        if have:
            total = sum(have[name] * holders[name] // len(nodes) for name in wanted if name in have)
            total = min(max(total, _IMAGE_MIN_BYTES), limit)
            scores[i] = 100 * (total - _IMAGE_MIN_BYTES) // (limit - _IMAGE_MIN_BYTES)
    return scores


def first_node(able: Ints, *criteria: NDArray[np.generic]) -> int | None:
    """Returns the node of `able` with the lowest value in the first of `criteria`; ties are broken by the second, and
    so on.

    able: node positions, which are indices of the arrays in `criteria`. None if `able` is empty.
    """
    for values in criteria:
        if len(able) < 2:
            break
        own = values[able]
        able = able[own == own.min()]
    return int(able[0]) if len(able) else None


_EXACT_BELOW = 2**56
"""Largest amount that fits into 64 bits when multiplied by 100. Larger amounts are used without their last 8 bits."""


def resources_fit(
    snapshot: Snapshot,
    used: Ints,
    score_used: Ints,
    pod: PodInfo,
    *,
    rows: NDArray[np.int64] | slice,
    config: NodeResourcesFitScore,
) -> Ints:
    """Returns the NodeResourcesFit score of the given nodes, 0..100: how full they would be with the pod.

    MostAllocated prefers full nodes, LeastAllocated empty ones, RequestedToCapacityRatio uses a configured function.
    The score is the weighted mean over the configured resources. Left out are resources that the node does not have,
    and extended resources that the pod does not request.

    used: [nodes, resources] requests of placed pods. score_used: [nodes, 2] cpu and memory of these pods, with the
    amounts that scores assume for containers without requests. rows: node positions or a slice.
    """
    columns = snapshot.columns
    whole = snapshot.allocatable[rows]
    total = np.zeros(len(whole), dtype=np.int64)
    weights = np.zeros(len(whole), dtype=np.int64)
    held = used[rows]
    score_held = score_used[rows]
    ratio = config.strategy == "RequestedToCapacityRatio"
    for resource in config.resources:
        name = resource.name
        column = columns.get(name)
        if column is None or (is_extended(name) and name not in pod.requests):
            continue
        if name in _WEIGHED:
            i = _WEIGHED.index(name)
            taken = score_held[:, i] + pod.score_requests[i]
        else:
            taken = held[:, column] + pod.requests.get(name, 0)
        # sums are limited to `quantity.MAX_SUM`, so a subtraction after an addition may give less than 0
        taken = np.maximum(taken, 0)
        have = whole[:, column]
        counts = have > 0
        # Exact integers. Above 64 PiB per node the percentage is computed without the last 8 bits, to stay within 64
        # bits.
        bits = np.where(have > _EXACT_BELOW, 8, 0)
        have, taken = have >> bits, taken >> bits
        # with amounts assumed for containers without requests, the sum may exceed the node: it then counts as full
        share = np.minimum(taken, have) * 100 // np.where(counts, have, 1)
        if config.strategy == "LeastAllocated":
            share = np.maximum(have - taken, 0) * 100 // np.where(counts, have, 1)
        elif ratio:
            share = _shaped(share, config)
            counts = counts & (share > 0)
        total += np.where(counts, share * resource.weight, 0)
        weights += np.where(counts, resource.weight, 0)
    safe = np.maximum(weights, 1)
    # for RequestedToCapacityRatio kube-scheduler rounds, and leaves out resources with score 0
    return np.asarray((2 * total + safe) // (2 * safe) if ratio else total // safe, dtype=np.int64)


def resources_fit_at(
    columns: Mapping[str, int],
    whole: Sequence[int],
    used: Sequence[int],
    score_used: Sequence[int],
    pod: PodInfo,
    *,
    config: NodeResourcesFitScore,
) -> int:
    """Returns the same score as `resources_fit`, for one node. Uses plain integers, which is faster than arrays.

    whole, used, score_used: rows of the node in `allocatable`, `used` and `score_used`.
    """
    total = weights = 0
    for resource in config.resources:
        name = resource.name
        column = columns.get(name)
        if column is None or (is_extended(name) and name not in pod.requests):
            continue
        have = whole[column]
        if have <= 0:
            continue
        if name in _WEIGHED:
            i = _WEIGHED.index(name)
            taken = score_used[i] + pod.score_requests[i]
        else:
            taken = used[column] + pod.requests.get(name, 0)
        taken = max(taken, 0)
        if have > _EXACT_BELOW:
            have, taken = have >> 8, taken >> 8
        if config.strategy == "LeastAllocated":
            share = max(have - taken, 0) * 100 // have
        else:
            share = min(taken, have) * 100 // have
        if config.strategy == "RequestedToCapacityRatio":
            share = int(_shaped(np.array([share], dtype=np.int64), config)[0])
            if share <= 0:
                continue
        total += share * resource.weight
        weights += resource.weight
    safe = max(weights, 1)
    return (2 * total + safe) // (2 * safe) if config.strategy == "RequestedToCapacityRatio" else total // safe


def balanced_allocation(snapshot: Snapshot, used: Ints, pod: PodInfo, *, rows: NDArray[np.int64] | slice) -> Ints:
    """Returns the NodeResourcesBalancedAllocation score of the given nodes, 0..100, as kube-scheduler 1.35 computes it.

    The score is 100 x (1 - standard deviation) of the used shares of cpu and memory, including the pod: it is higher if
    the shares are closer to each other. 0 for a pod that requests neither cpu nor memory. It is computed in floating
    point and truncated to an integer, as in kube-scheduler. used, rows: as in `resources_fit`.
    """
    whole = snapshot.allocatable[rows]
    score = np.zeros(len(whole), dtype=np.int64)
    if not any(pod.requests.get(name) for name in _WEIGHED):
        return score
    shares = []
    for name in _WEIGHED:
        column = snapshot.columns.get(name)
        if column is None:
            return score + 100
        have = whole[:, column]
        taken = used[rows][:, column] + pod.requests.get(name, 0)
        share = np.minimum(taken / np.where(have > 0, have, 1), 1.0)
        shares.append(np.where(have > 0, share, np.nan))
    spread = np.abs((shares[0] - shares[1]) / 2)
    return ((1 - np.where(np.isnan(spread), 0.0, spread)) * 100).astype(np.int64)


def _shaped(utilisation: Ints, config: NodeResourcesFitScore) -> Ints:
    """Returns the score of RequestedToCapacityRatio, 0..100, for utilisations in percent.

    It is the piecewise linear function through the configured points. The configured scores 0..10 are multiplied by 10.
    """
    points = config.shape or (UtilizationPoint(), UtilizationPoint(utilization=100, score=10))
    out = np.full(len(utilisation), points[-1].score * 10, dtype=np.int64)
    out[utilisation <= points[0].utilization] = points[0].score * 10
    for low, high in pairwise(points):
        inside = (utilisation > low.utilization) & (utilisation <= high.utilization)
        rise = (high.score - low.score) * 10 * (utilisation - low.utilization)
        step = np.trunc(rise / (high.utilization - low.utilization)).astype(np.int64)
        out = np.where(inside, low.score * 10 + step, out)
    return np.asarray(out, dtype=np.int64)


def normalised(static: StaticScores, feasible: NDArray[np.bool_]) -> dict[str, Ints]:
    """Returns plugin -> [nodes] static score 0..100, normalised over the feasible nodes as in kube-scheduler."""
    count = len(static.image)
    taints = np.full(count, 100, dtype=np.int64)
    top = int(static.untolerated[feasible].max(initial=0))
    if top:
        taints = 100 - 100 * static.untolerated // top
    affinity = np.zeros(count, dtype=np.int64)
    top = int(static.preferred[feasible].max(initial=0))
    if top:
        affinity = 100 * static.preferred // top
    return {"TaintToleration": taints, "NodeAffinity": affinity, "ImageLocality": static.image}
