"""The nearest misses of a pod that fits no node: what to free, wait for or relax (simulate.md, `koordpy explain`).

First the nodes that lack least, with figures; then every other ground on which nodes refuse, with its remedy.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from koordpy.api.quantity import quantity_text
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import NodeInfo
from koordpy.planning.figures import Figures
from koordpy.planning.filters.base import Code
from koordpy.planning.filters.node import repels, taint_text

NEAREST = 5
"""Nodes named at most."""

NAMED = 3
"""Taints, and values of a label, named at most."""

_FIT, _CORDONED, _TAINTS, _AFFINITY = "NodeResourcesFit", "NodeUnschedulable", "TaintToleration", "NodeAffinity"
_REMEDIES = {
    _CORDONED: "uncordon them",
    _TAINTS: "tolerate the taint, or take it from the nodes",
    _AFFINITY: "relax the pod's node selector or affinity, or label the nodes",
    "NodePorts": "ask for another host port, or wait for the pod that has it",
    "InterPodAffinity": "relax the rule, or wait until the pods it is about run or end",
    "PodTopologySpread": "raise maxSkew, or make room in the domains with fewest matching pods",
    "VolumeRestrictions": "wait until the pod that uses the volume ends",
    "NodeVolumeLimits": "wait for pods with volumes to end, or use fewer volumes",
    "VolumeBinding": "provide a volume or storage capacity that these nodes reach",
    "VolumeZone": "provide nodes in the volume's zone",
    "DynamicResources": "free devices that match the claim, or relax its selectors",
    "GPUDevices": "ask for a number or a bandwidth that the free GPUs have, or wait for GPUs to be given back",
    "AscendChips": "ask for a number of chips that the free ones of one node can form",
}
_UNSUPPORTED = "unsupported: "
_RELAX = "relax the pod's constraint or change the nodes"
_WAIT = "wait for pods there to end"


def node_misses(pod: PodInfo, figures: Figures) -> list[str]:
    """Misses of a pod that fits no node, the nearest nodes first; the pod's own fault alone where it has one."""
    own = figures.of(pod)
    if own.refusal is not None:
        return [_own_fault(reason) for reason in own.refusal.reasons]
    lacking = _lacking(pod, figures)
    nearest = [text for _, _, text in sorted((far, i, text) for i, (far, text) in lacking.items())]
    return nearest[:NEAREST] + _refusing(pod, figures, frozenset(lacking))


def closed_misses(pod: PodInfo, figures: Figures) -> list[str]:
    """Nodes that are cordoned or tainted against a pod: a gang that is short of room could have theirs."""
    verdict = figures.of(pod).verdict()
    closed = {at for at, refusal in enumerate(verdict.refusals, start=1) if refusal.plugin in (_CORDONED, _TAINTS)}
    others = (i for i, which in enumerate(verdict.which.tolist()) if which not in closed)
    return _refusing(pod, figures, frozenset(others)) if closed else []


def _own_fault(reason: str) -> str:
    """What keeps a pod from every node: a feature that no filter knows, or something in it that cannot be meant."""
    feature = reason.removeprefix(_UNSUPPORTED)
    return f"the pod did not use: {feature}" if feature != reason else f"this were mended: {reason}"


def _lacking(pod: PodInfo, figures: Figures) -> dict[int, tuple[int, str]]:
    """Nodes that refuse for want of resources: position -> (how much is lacking, in words)."""
    own, snapshot, draft = figures.of(pod), figures.snapshot, figures.draft
    verdict = own.verdict()
    fit = np.array([False, *(refusal.plugin == _FIT for refusal in verdict.refusals)])
    lacks: dict[int, tuple[int, str]] = {}
    for i in np.nonzero(fit[verdict.which])[0].tolist():
        parts, worst = [], 0
        for (column, amount), name in zip(own.request, own.names, strict=True):
            free = max(0, int(snapshot.allocatable[i, column] - draft.used[i, column]))
            if free < amount:
                what = name or "pods"
                text = f"{quantity_text(what, amount - free)} more {what} (free {quantity_text(what, free)})"
                if amount > (whole := int(snapshot.allocatable[i, column])):
                    text = f"{what} of {quantity_text(what, amount)} (it has {quantity_text(what, whole)} in all)"
                parts.append(text)
                worst = max(worst, (amount - free) * 1000 // amount)
        if parts:
            lacks[i] = len(parts) * 1000 + worst, f"node {snapshot.nodes[i].name} had {', '.join(parts)}"
    return lacks


def _refusing(pod: PodInfo, figures: Figures, told: frozenset[int]) -> list[str]:
    """The grounds of the nodes not told of yet, in the order of their words, with their number and the remedy."""
    verdict = figures.of(pod).verdict()
    grounds: dict[tuple[str, str, str], list[NodeInfo]] = {}
    for i, which in enumerate(verdict.which.tolist()):
        if which and i not in told:
            refusal = verdict.refusals[which - 1]
            other = _RELAX if refusal.code is Code.UNRESOLVABLE else _WAIT
            key = refusal.reasons[0], _REMEDIES.get(refusal.plugin, other), refusal.plugin
            grounds.setdefault(key, []).append(figures.snapshot.nodes[i])
    return [
        f"{len(nodes)} {reason}: {remedy}{_which(pod, plugin, nodes, figures)}"
        for (reason, remedy, plugin), nodes in sorted(grounds.items(), key=lambda ground: ground[0])
    ]


def _which(pod: PodInfo, plugin: str, nodes: Sequence[NodeInfo], figures: Figures) -> str:
    """The taints, or the labels asked for that no node of the cluster has, in brackets; else nothing."""
    found: list[str] = []
    if plugin == _TAINTS:
        tolerations = pod.pod.spec.tolerations
        found = _named(taint_text(taint) for node in nodes for taint in node.taints if repels(taint, tolerations))
    elif plugin == _AFFINITY:
        for key, value in sorted(pod.pod.spec.node_selector.items()):
            there = [node.labels[key] for node in figures.snapshot.nodes if key in node.labels]
            if value not in there:
                has = f"there is {' and '.join(_named(there))}" if there else "nor any other value of it"
                found.append(f"no node has {key}={value}, {has}")
    return f" ({', '.join(found)})" if found else ""


def _named(texts: Iterable[str]) -> list[str]:
    """The most frequent ones, equal ones by name; then how many others there are."""
    counted = sorted(Counter(texts).items(), key=lambda one: (-one[1], one[0]))
    more = [f"{len(counted) - NAMED} more"] if len(counted) > NAMED else []
    return [text for text, _ in counted[:NAMED]] + more
