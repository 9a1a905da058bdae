# SPDX-License-Identifier: Apache-2.0
"""Proposes changes of nodes: cordons removed, labels added, devices repaired. `new_nodes.py` proposes new nodes.

The nodes of a proposal, and their number, are estimated from slots and resources. A trial decides whether it helps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from msgspec import structs

from koordpy.api.natural_order import natural_key
from koordpy.api.times import rfc3339
from koordpy.cache.snapshot import UNSCHEDULABLE_TAINT, NodeInfo, Snapshot
from koordpy.cache.snapshot_variants import Edit, with_nodes
from koordpy.devices.family_registry import missing_amounts, remedies
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, of_snapshot
from koordpy.explain.advice.new_nodes import AFFINITY, CORDONED, in_order, listed, more_nodes
from koordpy.explain.advice.part_needs import PartNeeds, part_needs
from koordpy.framework.filter_protocol import Refusal
from koordpy.plan.limits import ADVICE_NAMED
from koordpy.pods.pod_info import PodInfo
from koordpy.rejections.closed_nodes import NOTHING_CLOSED
from koordpy.rejections.request_shapes import request_shape


def node_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of existing nodes, then new nodes."""
    yield from _opened(case)
    yield from _reopened(case)
    yield from _labelled(case)
    yield from _in_layers(case)
    yield from _delivering(case)
    yield from _missing(case)
    yield from more_nodes(case)


def _sizes(number: int) -> list[int]:
    """Returns the numbers of nodes to change together, one number per proposal: 1, 2, .. `ADVICE_NAMED`, then
    `number`."""
    return sorted({*range(1, min(number, ADVICE_NAMED) + 1), number})


def _opened(case: Case) -> Iterator[ClusterChange]:
    """Yields the removal of cordons, first from few nodes, then from all cordoned nodes. Other filters may exclude
    these nodes as well: a trial decides."""
    nodes = case.snapshot.nodes
    closed = [i for i, grounds in enumerate(case.grounds(case.kinds[0])) if any(g.plugin == CORDONED for g in grounds)]
    order = [nodes[i] for i in in_order(case, closed)]
    for number in _sizes(len(order)) if order else ():
        some = order[:number]
        names = sorted((node.name for node in some), key=natural_key)
        what = listed(names) if number <= ADVICE_NAMED else f"all {number} cordoned nodes"
        yield ClusterChange(
            f"{what} were uncordoned",
            Effort.OPEN_NODE,
            of_snapshot(_OtherNodes(map(_uncordoned, some))),
            number,
            "cordon",
        )


def _reopened(case: Case) -> Iterator[ClusterChange]:
    """Yields, for each node that is closed to the unit's pods because its kubelet rejected such pods, that it takes
    them again (numa.md 8.6, 8.7)."""
    closed = case.snapshot.closed_nodes
    if closed is NOTHING_CLOSED:
        return
    keys = {request_shape(pod.pod).key for pod in case.kinds}
    for name in sorted({*closed.shapes, *closed.nodes}, key=natural_key):
        own = [shape for key, shape in closed.shapes.get(name, {}).items() if key in keys]
        found = own[0] if own else closed.nodes.get(name)
        if found is None:
            continue
        text = (
            f"node {name} took pods of this shape again: it rejected {found.rejections}, until {rfc3339(found.until)}"
        )
        yield ClusterChange(text, Effort.OPEN_NODE, of_snapshot(_Reopened(name)), 1, "rejections")


class _Reopened:
    """A change of a snapshot that ends all closures of a node, so that it takes pods of every request shape again."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, closed_nodes=snapshot.closed_nodes.without([self._node]), memo={})


class _OtherNodes:
    """A change of a snapshot that replaces the given nodes."""

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        self._nodes = tuple(nodes)

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        return with_nodes(snapshot, self._nodes)


def _uncordoned(node: NodeInfo) -> NodeInfo:
    """Returns a node without its cordon and without the taint that belongs to the cordon."""
    taints = tuple(taint for taint in node.taints if taint.key != UNSCHEDULABLE_TAINT.key)
    own = [taint for taint in node.node.spec.taints if taint.key != UNSCHEDULABLE_TAINT.key]
    spec = structs.replace(node.node.spec, unschedulable=False, taints=own)
    return replace(node, taints=taints, unschedulable=False, node=structs.replace(node.node, spec=spec))


def _labelled(case: Case) -> Iterator[ClusterChange]:
    """Yields labels to add to nodes, so that they match the unit's node selector.

    Only nodes without another refusal than node affinity and capacity are proposed. Only keys that a node lacks are
    added, because a label that exists describes the node, and another value would be untrue. Of the keys that are
    reserved for Kubernetes, only those of topology layers are proposed.
    """
    asked = {item for pod in case.kinds for item in pod.pod.spec.node_selector.items()}
    layers = {key for layer in case.snapshot.tree.layers.chain for key in layer.label_keys}
    if not asked:
        return

    def has_or_may(node: NodeInfo, key: str, value: str) -> bool:
        if key in node.labels:
            return node.labels[key] == value
        return key in layers or not _written_by_kubernetes(key)

    # nodes that only the node selector or affinity excludes, and that may get the missing labels
    nodes = case.snapshot.nodes
    grounds = case.grounds(case.kinds[0])
    lacking = [i for i, found in enumerate(grounds) if found and all(one.plugin == AFFINITY for one in found)]
    missing = [i for i in lacking if all(has_or_may(nodes[i], key, value) for key, value in asked)]
    order = [nodes[i] for i in in_order(case, missing)]
    for number in _sizes(len(order)) if order else ():
        if number > ADVICE_NAMED:
            continue
        some = order[:number]
        labels = sorted({item for item in asked if any(node.labels.get(item[0]) != item[1] for node in some)})
        text = f"{listed([node.name for node in some])} had label{'s' if len(labels) > 1 else ''} "
        text += " and ".join(f"{key}={value}" for key, value in labels)
        made = [_with_labels(node, dict(labels)) for node in some]
        yield ClusterChange(text, Effort.OPEN_NODE, of_snapshot(_OtherNodes(made)), number + len(labels), "label")


def _in_layers(case: Case) -> Iterator[ClusterChange]:
    """Yields topology labels to add to nodes without them, so that the nodes become part of a domain that lacks slots.

    The labels are copied from a node in that domain.
    """
    snapshot, tree = case.snapshot, case.snapshot.tree
    unlabelled = {name for names in tree.lacking for name in names}
    needs = PartNeeds(case.hard, {}) if case.hard else part_needs(case)
    if not unlabelled or needs is None or not needs.level or len(needs.lacks) > 1:
        return
    # nodes without topology labels that have slots; nodes with the most slots are first
    slots = case.round_state.of(case.scarcest).slots
    lacking = [i for i, node in enumerate(snapshot.nodes) if node.name in unlabelled and slots[i]]
    lacking.sort(key=lambda i: (-slots[i], natural_key(snapshot.nodes[i].name)))
    of_layers = [key for layer in tree.layers.chain[: needs.level] for key in layer.label_keys[:1]]
    domain_of = tree.domain_of[needs.level].tolist()
    sums = tree.levels[needs.level].sums(slots)
    # domain -> a node in it, from which the labels are copied
    like: dict[int, NodeInfo] = {}
    for i, node in enumerate(snapshot.nodes):
        if node.name not in unlabelled and case.may_hold(i):
            like.setdefault(domain_of[i], node)
    chosen = needs.lacks or dict.fromkeys(sorted(like, key=lambda d: (-sums[d], d))[:ADVICE_NAMED], 0)
    for peer in (like[domain] for domain in chosen if domain in like):
        labels = {key: peer.labels[key] for key in of_layers if key in peer.labels}
        able = [
            i for i in lacking if all(snapshot.nodes[i].labels.get(key, text) == text for key, text in labels.items())
        ]
        for number in range(1, min(len(able), ADVICE_NAMED) + 1):
            some = sorted((snapshot.nodes[i] for i in able[:number]), key=lambda node: natural_key(node.name))
            new = {k: v for k, v in labels.items() if any(k not in node.labels for node in some)}
            if not new:
                continue
            label_text = " and ".join(f"{key}={value}" for key, value in new.items())
            text = f"{listed([node.name for node in some])} had label{'s' if len(new) > 1 else ''} {label_text}"
            made = [_with_labels(node, new) for node in some]
            yield ClusterChange(
                text, Effort.OPEN_NODE, of_snapshot(_OtherNodes(made)), number + len(new), "layer label"
            )


def _written_by_kubernetes(key: str) -> bool:
    """Returns True if a label has a prefix that is reserved for Kubernetes."""
    prefix = key.rpartition("/")[0]
    return any(prefix == own or prefix.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))


def _with_labels(node: NodeInfo, more: dict[str, str]) -> NodeInfo:
    """Returns a node with further labels."""
    labels = {**node.labels, **more}
    meta = structs.replace(node.node.metadata, labels=labels)
    return replace(node, labels=labels, node=structs.replace(node.node, metadata=meta))


def _missing(case: Case) -> Iterator[ClusterChange]:
    """Yields additional amounts for single nodes that lack them for a pod, such as GPUs in one NUMA zone.

    Left out are nodes that also another filter refuses.
    """
    found = islice(_missing_alone(case, case.kinds[0]), ADVICE_NAMED)
    for i, (text, edit) in enumerate(found):
        yield ClusterChange(text, Effort.OTHERS_END, of_snapshot(edit), i, "zone")


def _missing_alone(case: Case, pod: PodInfo) -> Iterator[tuple[str, Edit]]:
    """Yields (text, change of a snapshot) for the amounts that a node lacks which no second filter refuses."""
    grounds: list[tuple[Refusal, ...]] = []
    for node, text, edit in missing_amounts(pod, case.round_state.inputs):
        grounds = grounds or case.grounds(pod)
        if len(grounds[node]) <= 1:
            yield text, edit


def _delivering(case: Case) -> Iterator[ClusterChange]:
    """Yields repairs of device faults that block pods, such as a node agent that cannot deliver GPUs now."""
    for text, edit in islice(remedies(case.snapshot), ADVICE_NAMED):
        yield ClusterChange(text, Effort.OPEN_NODE, of_snapshot(edit), 1, "delivery")
