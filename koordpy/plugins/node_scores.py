"""Node scores: 0..100 per plugin, weighted and summed (kube-parity.md section 3).

PodTopologySpread and InterPodAffinity, which depend on other pods, are in `koordpy.plugins.soft_scores`.
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
from koordpy.plugins.node_filters import columns_of, tolerates
from koordpy.pods.pod_info import PodInfo

BALANCED = "NodeResourcesBalancedAllocation"
PACKING = "NodeResourcesFit"
"""Plugin that is left out of the total if a gather goal exists, because goals 4 to 6 already pack."""

_WEIGHED = ("cpu", "memory")
_IMAGE_MIN_BYTES = 23 * 2**20
_IMAGE_MAX_BYTES = 1000 * 2**20


@dataclass(frozen=True, eq=False)
class StaticScores:
    """Scores that do not depend on free capacity, before normalisation: [nodes] each."""

    untolerated: Ints
    preferred: Ints
    image: Ints


def static_scores(nodes: Sequence[NodeInfo], pod: Pod, added: NodeAffinity | None) -> StaticScores:
    """Returns counts of untolerated soft taints, weights of matching preferred terms, and image scores.

    added: the affinity that the configuration adds to every pod. Its preferred terms count like the pod's own.
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


def first_node(able: Ints, *figures: NDArray[np.generic]) -> int | None:
    """Returns the node among `able` with the least first figure ([nodes]), then the least second figure, and so on.

    None if there is no node.
    """
    for values in figures:
        if len(able) < 2:
            break
        own = values[able]
        able = able[own == own.min()]
    return int(able[0]) if len(able) else None


_EXACT_BELOW = 2**56


def resources_fit(
    snapshot: Snapshot,
    used: Ints,
    score_used: Ints,
    pod: PodInfo,
    *,
    rows: NDArray[np.int64] | slice,
    config: NodeResourcesFitScore,
) -> Ints:
    """Returns NodeResourcesFit's score of the given nodes: how full (MostAllocated) or empty they are with the pod.

    An extended resource that the pod does not request is left out; so is a resource that a node does not have.
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
        # sums are capped (quantity.MAX_SUM), so the amount subtracted may exceed the amount added
        taken = np.maximum(taken, 0)
        have = whole[:, column]
        counts = have > 0
        # Exact integers. Above 64 PiB per node the percentage is computed without the last 8 bits, to stay within 64
        # bits.
        bits = np.where(have > _EXACT_BELOW, 8, 0)
        have, taken = have >> bits, taken >> bits
        # Amounts assumed for containers without requests may exceed the node, which is then full.
        share = np.minimum(taken, have) * 100 // np.where(counts, have, 1)
        if config.strategy == "LeastAllocated":
            share = np.maximum(have - taken, 0) * 100 // np.where(counts, have, 1)
        elif ratio:
            share = _shaped(share, config)
            counts = counts & (share > 0)
        total += np.where(counts, share * resource.weight, 0)
        weights += np.where(counts, resource.weight, 0)
    safe = np.maximum(weights, 1)
    # kube-scheduler rounds this strategy, and leaves out resources with score 0
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
    """Returns `resources_fit` of one node, given its rows of the allocatable, used and score amounts."""
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
    """Returns NodeResourcesBalancedAllocation's score of the given nodes, as kube-scheduler 1.35 computes it.

    100 less the spread of the used shares of cpu and memory, the pod included; 0 for a pod that requests neither.
    Floating point as in kube-scheduler: the result is truncated to an integer.
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
    """Returns RequestedToCapacityRatio: a piecewise linear function of the configured points, scaled to 0..100."""
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
    """Returns plugin -> [nodes] 0..100 over the feasible nodes, as kube-scheduler normalises."""
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
