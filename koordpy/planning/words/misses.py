"""The nearest misses of a pod that fits no node: what to free, wait for or relax (simulate.md, `koordpy explain`).

First the nodes that lack least, with figures; then every other ground on which nodes refuse, with its remedy.
"""

from collections import Counter

import numpy as np

from koordpy.api.quantity import quantity_text
from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.filters.base import Code

NEAREST = 5
"""Nodes named at most."""

_FIT = "NodeResourcesFit"
_REMEDIES = {
    "NodeUnschedulable": "uncordon them",
    "TaintToleration": "tolerate the taint, or take it from the nodes",
    "NodeAffinity": "relax the pod's node selector or affinity, or label the nodes",
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
    grounds: Counter[tuple[str, str]] = Counter()
    for i, which in enumerate(verdict.which.tolist()):
        if which and i not in told:
            refusal = verdict.refusals[which - 1]
            other = _RELAX if refusal.code is Code.UNRESOLVABLE else _WAIT
            grounds[refusal.reasons[0], _REMEDIES.get(refusal.plugin, other)] += 1
    return [f"{number} {reason}: {remedy}" for (reason, remedy), number in sorted(grounds.items())]
