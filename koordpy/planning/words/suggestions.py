"""The nearest misses of a pod that fits no node: what to free, wait for or relax (simulate.md 5.2).

First the nodes that lack least, with figures; then every other ground on which nodes refuse, with its remedy. A node
that refuses on several grounds is told of with all of them: to mend one would not help.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from koordpy.api.objects import Taint
from koordpy.api.quantity import quantity_text
from koordpy.api.spelling import meant
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import UNSCHEDULABLE_TAINT, NodeInfo
from koordpy.planning.figures import Figures
from koordpy.planning.filters import gpu_devices
from koordpy.planning.filters.base import Code, Refusal
from koordpy.planning.filters.node import repels, taint_text

NEAREST = 5
"""Nodes named at most."""

NAMED = 3
"""Taints, and values of a label, named at most."""

_UNSUPPORTED = "unsupported: "
_FEW_GPUS = (gpu_devices.PLUGIN, gpu_devices.INSUFFICIENT)
"""What sees devices where NodeResourcesFit sees their number; so does all of AscendChips."""

FIT, CORDONED, TAINTS, AFFINITY = "NodeResourcesFit", "NodeUnschedulable", "TaintToleration", "NodeAffinity"
_BY_PLUGIN = {
    CORDONED: "uncordon them",
    TAINTS: "tolerate the taint, or take it from the nodes",
    AFFINITY: "relax the pod's node selector or affinity, or label the nodes",
    "NodePorts": "ask for another host port, or wait for the pod that has it",
    "InterPodAffinity": "relax the rule, or wait until the pods it is about run or end",
    "PodTopologySpread": "raise maxSkew, or make room in the domains with fewest matching pods",
    "VolumeRestrictions": "wait until the pod that uses the volume ends",
    "NodeVolumeLimits": "wait for pods with volumes to end, or use fewer volumes",
    "VolumeBinding": "provide a volume or storage capacity that these nodes reach",
    "VolumeZone": "provide nodes in the volume's zone",
    "DynamicResources": "free devices that match the claim, or relax its selectors",
    gpu_devices.PLUGIN: "ask for a number or a bandwidth that the free GPUs have, or wait for GPUs to be given back",
    "AscendChips": "ask for a number of chips that the free ones of one node can form",
}
_NEVER = {
    FIT: "ask for less, or for larger nodes",
    "PodTopologySpread": "label the nodes, or spread over a key that they have",
    gpu_devices.PLUGIN: "ask for a number or a bandwidth that the node's healthy GPUs have",
}
"""Where no end of another pod helps."""
_BY_REASON = {
    "node(s) didn't match scheduler-enforced node affinity": "label the nodes, or relax filters.nodeAffinity",
    gpu_devices.NO_TABLE: "give the Device a partition table, or lift Honor",
    gpu_devices.UNSUPPORTED_NUMBER: "ask for a number of GPUs that the partition table lists",
    gpu_devices.NOT_INJECTED: "create the pod anew through the webhook",
    gpu_devices.NOT_BY_NAME: "let the agent report the node's GPUs, or wait for the pods that hold unnamed ones",
    gpu_devices.NOT_WRITTEN: "let the agent report the node's GPUs, or wait for the pods that hold unnamed ones",
}
_RELAX = "relax the pod's constraint or change the nodes"
_WAIT = "wait for pods there to end"


def node_misses(pod: PodInfo, figures: Figures) -> list[str]:
    """Misses of a pod that fits no node, the nearest nodes first; the pod's own fault alone where it has one."""
    own = figures.of(pod)
    if own.refusal is not None:
        return [_own_fault(reason) for reason in own.refusal.reasons]
    lacking, others = [], dict[tuple[Refusal, ...], list[NodeInfo]]()
    for i, refusals in enumerate(_grounds(pod, figures)):
        if refusals[0].plugin == FIT and (found := _lack(i, pod, figures)):
            beside = [refusal for refusal in refusals[1:] if not _repeats(refusal, found)]
            text = "; and ".join([found.text, *map(remedy, beside)])
            lacking.append((len(beside), found.far, i, text))
        else:
            others.setdefault(refusals, []).append(figures.snapshot.nodes[i])
    nearest = [text for *_, text in sorted(lacking)[:NEAREST]]
    return nearest + _misspelt(pod, figures) + _refusing(pod, others, figures)


def _misspelt(pod: PodInfo, figures: Figures) -> list[str]:
    """Resources that no node has, and that are nearly called like one that some have."""
    there = figures.snapshot.offered
    lost = [name for name in figures.of(pod).names if name and name not in there]
    return [f"it asked for {near}: no node has {name}" for name in lost if (near := meant(name, there))]


def closed_misses(pod: PodInfo, figures: Figures) -> list[str]:
    """Nodes that nothing but a cordon or a taint closes to a pod: a gang that is short of room could have theirs."""
    closed: dict[tuple[Refusal, ...], list[NodeInfo]] = {}
    for node, refusals in zip(figures.snapshot.nodes, _grounds(pod, figures), strict=True):
        if refusals and all(refusal.plugin in (CORDONED, TAINTS) for refusal in refusals):
            closed.setdefault(refusals, []).append(node)
    return _refusing(pod, closed, figures)


def _grounds(pod: PodInfo, figures: Figures) -> list[tuple[Refusal, ...]]:
    """Per node what every filter has against it: where two refuse, the remedy of one changes nothing."""
    out: list[tuple[Refusal, ...]] = [()] * len(figures.snapshot.nodes)
    for word in figures.words(pod):
        for i in np.nonzero(word.which)[0].tolist():
            refusal = word.refusals[word.which[i] - 1]
            if refusal not in out[i] and (refusal.plugin != TAINTS or _repelling(pod, figures.snapshot.nodes[i])):
                out[i] = (*out[i], refusal)
    return out


def _own_fault(reason: str) -> str:
    """What keeps a pod from every node: a feature that no filter knows, or something in it that cannot be meant."""
    feature = reason.removeprefix(_UNSUPPORTED)
    return f"the pod did not use: {feature}" if feature != reason else f"this were mended: {reason}"


class _Lack(NamedTuple):
    """What a node has too little of. far: how far it is from enough."""

    far: int
    text: str
    resources: frozenset[str]


def _lack(node: int, pod: PodInfo, figures: Figures) -> _Lack | None:
    """The resources that a node lacks, in words; None where it refuses for another reason."""
    own, snapshot, draft = figures.of(pod), figures.snapshot, figures.draft
    parts: dict[str, str] = {}
    worst = 0
    for (column, amount), name in zip(own.request, own.names, strict=True):
        whole = int(snapshot.allocatable[node, column])
        free = whole - int(draft.used[node, column])
        if free >= amount:
            continue
        if pod.gpus is not None and name in pod.gpus.resources and amount == pod.gpus.count:
            devices = figures.gpus.devices(node, pod)  # some of those that nobody asks for may be sick
            free = free if devices is None else min(free, devices)
        what = name or "pods"
        parts[what] = f"{quantity_text(what, amount - free)} more {what} (free {quantity_text(what, max(0, free))})"
        if amount > whole:
            parts[what] = f"{what} of {quantity_text(what, amount)} (it has {quantity_text(what, whole)} in all)"
        worst = max(worst, (amount - free) * 1000 // amount)
    if not parts:
        return None
    text = f"node {snapshot.nodes[node].name} had {', '.join(parts.values())}"
    return _Lack(len(parts) * 1000 + worst, text, frozenset(parts))


def _repeats(refusal: Refusal, lack: _Lack) -> bool:
    """Whether a filter of devices says again that there are too few of them."""
    few = refusal.plugin == "AscendChips" or (refusal.plugin, refusal.reasons[0]) == _FEW_GPUS
    return few and bool(lack.resources - {"pods", "cpu", "memory"})


def _refusing(pod: PodInfo, grounds: Mapping[tuple[Refusal, ...], list[NodeInfo]], figures: Figures) -> list[str]:
    """Nodes by all that is against them: their number and the remedies, those with one ground first."""
    told: dict[tuple[str, ...], tuple[tuple[Refusal, ...], list[NodeInfo]]] = {}
    for refusals, nodes in grounds.items():  # refusals of two codes may have one remedy
        told.setdefault(tuple(map(remedy, refusals)), (refusals, []))[1].extend(nodes)
    lines = []
    for words, (refusals, nodes) in sorted(told.items(), key=lambda one: (len(one[0]), one[0])):
        whose = (_which(pod, refusal.plugin, nodes, figures) for refusal in refusals)
        text = "; and ".join(f"{word}{which}" for word, which in zip(words, whose, strict=True))
        lines.append((len(words), f"{len(nodes)} {text}"))
    alone = [text for number, text in lines if number == 1]
    return alone + [text for number, text in lines if number > 1][:NEAREST]


def _which(pod: PodInfo, plugin: str, nodes: Sequence[NodeInfo], figures: Figures) -> str:
    """The taints, or the labels asked for that no node of the cluster has, in brackets; else nothing."""
    found: list[str] = []
    if plugin == TAINTS:
        found = _named(taint_text(taint) for node in nodes for taint in _repelling(pod, node))
    elif plugin == AFFINITY:
        for key, value in sorted(pod.pod.spec.node_selector.items()):
            there = [node.labels[key] for node in figures.snapshot.nodes if key in node.labels]
            if value not in there:
                has = f"there is {' and '.join(_named(there))}" if there else "nor any other value of it"
                found.append(f"no node has {key}={value}, {has}")
    return f" ({', '.join(found)})" if found else ""


def _repelling(pod: PodInfo, node: NodeInfo) -> list[Taint]:
    """The taints that close a node to a pod; a cordon's own goes with the cordon."""
    cordon = UNSCHEDULABLE_TAINT.key if node.unschedulable else None
    return [taint for taint in node.taints if taint.key != cordon and repels(taint, pod.pod.spec.tolerations)]


def _named(texts: Iterable[str]) -> list[str]:
    """The most frequent ones, equal ones by name; then how many others there are."""
    counted = sorted(Counter(texts).items(), key=lambda one: (-one[1], one[0]))
    more = [f"{len(counted) - NAMED} more"] if len(counted) > NAMED else []
    return [text for text, _ in counted[:NAMED]] + more


def remedy(refusal: Refusal) -> str:
    """What ends a refusal, its words before a colon: `REASON: REMEDY`."""
    reasons, never = refusal.reasons, refusal.code is Code.UNRESOLVABLE
    found = _BY_REASON.get(reasons[0]) or (_NEVER.get(refusal.plugin) if never else None)
    found = found or _BY_PLUGIN.get(refusal.plugin) or (_RELAX if never else _WAIT)
    return f"{', '.join(reasons)}: {found}"
