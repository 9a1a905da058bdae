# SPDX-License-Identifier: Apache-2.0
"""Proposes new nodes that would let a unit start: copies of existing nodes, in the domains where they help.

A node to copy is called a template. A lower bound on the number of copies follows from sums of resources, an upper
bound from the requests of this unit and of all earlier units. Trials find the smallest number that helps. `Case`
defines *hard domain* (a domain that the whole unit must share) and *kind* (the pods of one shape).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import ceil, inf

import numpy as np
from msgspec import structs

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.keys import HOSTNAME
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import PODS, NodeInfo, Snapshot
from koordpy.cache.snapshot_variants import new_node, with_daemons, with_nodes
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World, of_snapshot
from koordpy.explain.advice.part_needs import PartNeeds, part_needs
from koordpy.explain.advice.reductions import lowest
from koordpy.explain.advice.scarce_kinds import Kinds
from koordpy.framework.filter_protocol import Code
from koordpy.plan.limits import ADVICE_NAMED, ADVICE_NEW_NODES, ADVICE_TEMPLATES
from koordpy.plugins.node_filters import repels
from koordpy.pods.daemon_pods import copied_daemon
from koordpy.pods.pod_info import PodInfo

CORDONED, AFFINITY = "NodeUnschedulable", "NodeAffinity"
"""Names of the filter plugins that refuse cordoned nodes, and nodes that node selector or node affinity exclude."""


def in_order(case: Case, nodes: Iterable[int]) -> list[int]:
    """Returns the positions from `nodes` on which the unit may be placed, in the order in which to propose changes.

    Nodes in the hard domains with the most free slots are first; nodes of one domain are in natural order of names.
    """
    domain, slots = case.domain_of, case.slots
    allowed = filter(case.may_hold, nodes)
    return sorted(allowed, key=lambda i: (-slots[domain[i]], natural_key(case.snapshot.nodes[i].name)))


def listed(names: Sequence[str]) -> str:
    """Returns `node A` or `nodes A, B and C`."""
    return f"node{'s' if len(names) > 1 else ''} {_joined(names)}"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def more_nodes(case: Case) -> Iterator[ClusterChange]:
    """Yields new nodes in one domain, for each template; then new nodes in several domains at once, if parts of the
    unit lack slots in several domains."""
    kinds = Kinds(case)
    scarce = kinds.scarce or case.kinds[0]
    templates = _templates(case, scarce)
    for place, template in enumerate(templates.values()):
        yield from _more_like(case, scarce, template, place, kinds.remark)
    needs = part_needs(case)
    if needs is not None and needs.level:
        yield from _more_in_parts(case, scarce, needs, kinds.remark)


class _Growth:
    """Proposals for numbers of new nodes that are copies of one template."""

    def __init__(self, case: Case, pod: PodInfo, template: int, remark: str) -> None:
        """pod: a pod of the kind that lacks capacity. template: position of the node to copy. remark: end of the text
        (`Kinds.remark`)."""
        self._case, self._template, self._remark = case, template, remark
        self.node = case.snapshot.nodes[template]
        self._resource = _shown(pod, self.node)
        self.elsewhere = _like_in_other_places(case, pod, template)
        """Positions of equal nodes in other places of the same hard domain."""
        self._firsts: dict[int, Callable[[World], World]] = {}
        """Number of nodes -> change that adds them in the template's place. Stored, because trials are cached by the
        identity of this function."""

    def change(self, number: int, size: int, *, wherever: bool) -> ClusterChange:
        """Returns the change that adds `number` new nodes.

        wherever: False for a text with the exact place of the nodes. True for a text that names only the hard domain;
        users may then add the nodes anywhere in it, so the change must help in each place that is tried.
        """
        case, node = self._case, self.node
        first = self._firsts.setdefault(number, of_snapshot(_NewNodes(case, [node] * number, "0")))
        others = [of_snapshot(_NewNodes(case, [node] * number, "~"))]
        if wherever and self.elsewhere:
            nodes = [case.snapshot.nodes[i] for i in self.elsewhere]
            others += [of_snapshot(_NewNodes(case, [one] * number, "0")) for one in nodes]
            mixed = [node, *nodes]
            if number > 1:
                others.append(of_snapshot(_NewNodes(case, [mixed[i % len(mixed)] for i in range(number)], "0")))
        place = _place(case, self._template) if wherever else exact_place(case, self._template)
        text = f"there were {_with(number, self._resource, node)} in {place}, like node {node.name}{self._remark}"
        return ClusterChange(text, Effort.NEW_NODE, first, size, "new nodes", also=tuple(others))


def _with(number: int, resource: str, node: NodeInfo) -> str:
    """Returns `2 more nodes with 8 nvidia.com/gpu`, or `2 more nodes with room for 110 pods`."""
    amount = node.allocatable.get(resource, 0)
    what = f"{quantity_text(resource, amount)} {resource}"
    if resource == "pods":
        what = f"room for {count_noun(amount, 'pod')}"
    return f"{count_noun(number, 'more node')} with {what}"


def _more_like(case: Case, pod: PodInfo, template: int, place: int, remark: str) -> Iterator[ClusterChange]:
    """Yields changes that add copies of a template: a few numbers from a lower bound up, then one large number.

    The large number is enough for this unit and all earlier units. A trial reduces it to the smallest number that
    helps. place: rank of the template among all templates, for the order of trials.
    """
    least = _least(case, template)
    if least > ADVICE_NEW_NODES:
        return
    growth = _Growth(case, pod, template, remark)
    few = list(range(least, min(least + ADVICE_TEMPLATES, ADVICE_NEW_NODES + 1)))
    most = min(max(least, _with_earlier_units(case, growth.node)), ADVICE_NEW_NODES)
    for wherever in (True, False) if exact_place(case, template) and growth.elsewhere else (True,):
        rank = 2 * place + (not wherever)

        def change(number: int, rank: int = rank, wherever: bool = wherever) -> ClusterChange:
            return growth.change(number, 2 * number * ADVICE_TEMPLATES + rank, wherever=wherever)

        for number in few:
            yield change(number)
        if most > few[-1]:
            yield replace(change(most), reduce=partial(_smallest, change, few[-1], most))


def _smallest(
    change: Callable[[int], ClusterChange], low: int, high: int, helps: Callable[[ClusterChange], bool]
) -> ClusterChange:
    """Returns the change with the smallest number above `low` that helps; the change with `high` is known to help.

    change: number -> change. helps: returns True if a change helps.
    """
    return change(lowest(low, high, lambda number: helps(change(number))))


def _more_in_parts(case: Case, pod: PodInfo, needs: PartNeeds, remark: str) -> Iterator[ClusterChange]:
    """Yields one change with new nodes in several domains. Each domain gets enough nodes for the slots that it lacks
    for parts of the unit."""
    domain_of = case.snapshot.tree.domain_of[needs.level].tolist()
    able = _able_when_empty(case, pod)
    like = {domain: next((i for i in able if domain_of[i] == domain), -1) for domain in needs.lacks}
    if len(like) > ADVICE_NAMED or min(like.values()) < 0:
        return
    takes = {domain: max(1, _pods_per_empty_node(case, case.snapshot.nodes[i], pod)) for domain, i in like.items()}
    numbers = {domain: ceil(lack / takes[domain]) for domain, lack in needs.lacks.items()}
    if sum(numbers.values()) <= ADVICE_NEW_NODES:
        whole = _in_domains(case, pod, needs.level, like, numbers, remark)
        yield replace(whole, reduce=partial(_fewer_in_domains, case, pod, needs.level, like, numbers, remark))


def _fewer_in_domains(
    case: Case,
    pod: PodInfo,
    level: int,
    like: dict[int, int],
    numbers: dict[int, int],
    remark: str,
    helps: Callable[[ClusterChange], bool],
) -> ClusterChange:
    """Returns the change with the fewest new nodes per domain that still help, reduced one domain after the other."""
    best = dict(numbers)
    for domain in numbers:
        while best[domain] and sum(best.values()) > 1:
            fewer = {**best, domain: best[domain] - 1}
            if not helps(_in_domains(case, pod, level, like, fewer, remark)):
                break
            best = fewer
    return _in_domains(case, pod, level, like, best, remark)


def _in_domains(
    case: Case, pod: PodInfo, level: int, like: dict[int, int], numbers: dict[int, int], remark: str
) -> ClusterChange:
    """Returns the change that adds new nodes in several domains of a level.

    numbers: domain -> number of new nodes. like: domain -> position of a node in it to copy.
    """
    tree, nodes = case.snapshot.tree, case.snapshot.nodes
    chosen = [domain for domain, number in numbers.items() if number]
    templates = [nodes[like[domain]] for domain in chosen]
    paths = [f"{tree.layer_name(level)} {tree.path(level, domain)}" for domain in chosen]
    more = [f"{numbers[domain]} in {path}" for domain, path in zip(chosen[1:], paths[1:], strict=True)]
    first = f"{_with(numbers[chosen[0]], _shown(pod, templates[0]), templates[0])} in {paths[0]}"
    text = f"there were {_joined([first, *more])}, like {listed([node.name for node in templates])}{remark}"
    new = [node for domain, node in zip(chosen, templates, strict=True) for _ in range(numbers[domain])]
    first_names, last_names = (of_snapshot(_NewNodes(case, new, start)) for start in ("0", "~"))
    size = 2 * len(new) * ADVICE_TEMPLATES
    return ClusterChange(text, Effort.NEW_NODE, first_names, size, "new nodes", also=(last_names,))


class _NewNodes:
    """A change of a snapshot that adds copies of nodes, with copies of their DaemonSet and mirror pods.

    start: beginning of the new nodes' names. Between equal nodes the planner decides by name. So each change is tried
    twice: with names that are first in natural order, and with names that are last.
    """

    def __init__(self, case: Case, templates: Sequence[NodeInfo], start: str) -> None:
        self._case, self._templates, self._start = case, tuple(templates), start

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        made: dict[str, NodeInfo] = {}
        like = {}
        for template in self._templates:
            names = (f"{self._start}{template.name}-{i}" for i in count(1))
            name = next(one for one in names if one not in snapshot.index and one not in made)
            made[name], like[name] = new_node(template, name), template.name
        daemons = [_on(pod, old, name) for name, old in like.items() for pod in self._case.daemons.get(old, ())]
        return with_daemons(with_nodes(snapshot, made.values(), like), daemons)


def _on(info: PodInfo, old: str, new: str) -> PodInfo:
    """Returns a copy, bound to node `new`, of a DaemonSet or mirror pod of node `old`."""
    pod = copied_daemon(info.pod, old, new)
    return structs.replace(
        info, pod=pod, key=f"{info.namespace}/{pod.metadata.name}", node=new, pending=False, shape=b"", gang=None
    )


def _able_when_empty(case: Case, pod: PodInfo) -> list[int]:
    """Returns the positions of nodes that could take a pod of a kind if they were empty, in the order of `in_order`."""
    static, nodes = case.grounds(pod), case.snapshot.nodes
    able = []
    for i in in_order(case, range(len(nodes))):
        node = nodes[i]
        if node.unschedulable or any(repels(taint, pod.pod.spec.tolerations) for taint in node.taints):
            continue
        if any(one.code is Code.UNRESOLVABLE for one in static[i]) or not _pods_per_empty_node(case, node, pod):
            continue
        able.append(i)
    return able


def _label_keys(case: Case, pod: PodInfo) -> list[str]:
    """Returns the node label keys that rules of a pod or of the unit's gangs refer to, except the hostname."""
    chosen = {constraint.topology_key for constraint in pod.pod.spec.topology_spread_constraints}
    terms = pod.ties.terms
    if terms:
        chosen |= {term.topology_key for term in (*terms.affinity.required, *terms.anti_affinity.required)}
    chosen |= {key for gang in case.unit.gangs for key in gang.hard_keys}
    return sorted(chosen - {HOSTNAME})


def _templates(case: Case, pod: PodInfo) -> dict[object, int]:
    """Returns the templates: sort of node -> position of the first node of this sort; at most `ADVICE_TEMPLATES`.

    Nodes are of one sort if they have the same hard domain, allocatable resources, and values of the labels that rules
    refer to. Sorts in the hard domains with the most free slots are first.
    """
    label_keys = _label_keys(case, pod)
    found: dict[object, int] = {}
    for i in _able_when_empty(case, pod):
        node = case.snapshot.nodes[i]
        labels = tuple(node.labels.get(key) for key in label_keys)
        found.setdefault((case.domain_of[i], tuple(sorted(node.allocatable.items())), labels), i)
    return dict(list(found.items())[:ADVICE_TEMPLATES])


def _like_in_other_places(case: Case, pod: PodInfo, template: int) -> list[int]:
    """Returns positions of a few nodes that are equal to a template and in its hard domain, but in other places.

    Nodes are in one place if they have the same domain of the lowest layer and the same values of the labels that rules
    refer to. The result has nodes of the first and the last place, and one for each value of these labels. So trials
    also find places where a new node would not help, because rules about other pods forbid the unit's pods there.
    """
    nodes, tree, label_keys = case.snapshot.nodes, case.snapshot.tree, _label_keys(case, pod)
    finest = tree.domain_of[tree.depth - 1].tolist()

    def place(i: int) -> object:
        return finest[i], tuple(nodes[i].labels.get(key) for key in label_keys)

    def labels(i: int) -> object:
        return tuple(nodes[i].labels.get(key) for key in label_keys)

    found = {place(template): template}
    static, own = case.grounds(pod), nodes[template]
    for i in in_order(case, range(len(nodes))):
        selected = all(one.plugin != AFFINITY for one in static[i])
        like = nodes[i].allocatable == own.allocatable and nodes[i].taints == own.taints
        if case.domain_of[i] == case.domain_of[template] and selected and like:
            found.setdefault(place(i), i)
    others = list(found.values())[1:]
    by_label = {labels(i): i for i in others if labels(i) != labels(template)}
    return list(dict.fromkeys([*others[:1], *others[-1:], *by_label.values()]))[: ADVICE_NAMED + 1]


def _pods_per_empty_node(case: Case, node: NodeInfo, pod: PodInfo) -> int:
    """Returns how many pods of a kind fit a node that runs only its DaemonSet and mirror pods, by resources alone."""
    free = case.capacity_when_new(node)
    amounts = [free.get(name, 0) // amount for name, amount in pod.requests.items() if amount]
    return min([*amounts, free.get(PODS, 0)])


def _least(case: Case, template: int) -> int:
    """Returns a lower bound on the number of copies that the unit needs of a node.

    It follows from the sum of each resource in the node's hard domain; for a unit with one kind of pods, from its
    slots. If the node lacks a requested resource, no number of copies helps: then more than `ADVICE_NEW_NODES` is
    returned.
    """
    node, snapshot = case.snapshot.nodes[template], case.snapshot
    capacity = case.capacity_when_new(node)
    inside = np.asarray(case.domain_of) == case.domain_of[template]
    usable = np.zeros(len(snapshot.nodes), dtype=bool)
    for pod in case.kinds:
        usable |= case.round_state.of(pod).allowed > 0
    free = np.maximum(case.round_state.draft.free()[inside & usable], 0).sum(axis=0)
    asked, most = snapshot.requests_of(case.core), 1.0
    for name in {PODS, *(name for pod in case.core for name in pod.requests)}:
        column = snapshot.columns[name]
        lacks, has = int(asked[column] - free[column]), capacity.get(name, 0)
        most = max(most, lacks / has if has else inf if lacks > 0 else 0)
    if len(case.kinds) == 1:
        lacks = case.needed - int(case.slots[case.domain_of[template]])
        most = max(most, lacks / max(1, _pods_per_empty_node(case, node, case.kinds[0])))
    return ADVICE_NEW_NODES + 1 if most == inf else ceil(most)


def _with_earlier_units(case: Case, node: NodeInfo) -> int:
    """Returns how many new nodes have the resources for the unit and for all pending units before it in the queue.

    So many are needed at most, even if these earlier units use the added capacity first.
    """
    waiting, snapshot = list(case.core), case.snapshot
    for one in case.plan.pending:
        if one.unit == case.unit.id:
            break
        waiting.append(snapshot.pods[one.pod_key])
    asked = snapshot.requests_of(waiting)
    parts = [
        ceil(int(asked[snapshot.columns[name]]) / amount)
        for name, amount in case.capacity_when_new(node).items()
        if amount and name in snapshot.columns
    ]
    return max(parts, default=1)


def _shown(pod: PodInfo, node: NodeInfo) -> str:
    """Returns the resource by which a text describes a new node, as in `2 more nodes with 8 nvidia.com/gpu`.

    It is an extended resource that the pod requests, such as an accelerator. Without one, it is the resource with the
    largest fraction of the node requested by the pod.
    """
    device = next((name for name in sorted(pod.requests) if name in keys.ACCELERATORS or "/" in name), "")
    if device:
        return device
    parts = {name: amount / max(1, node.allocatable.get(name, 0)) for name, amount in pod.requests.items()}
    return max(sorted(parts), key=lambda name: parts[name], default="pods")


def exact_place(case: Case, node: int) -> str:
    """Returns the exact place of a node as text, such as `rack r7`; empty if there is none below the hard domain.

    The place is the domain of the lowest layer, if this layer is below the hard one; else the value of a label that
    rules refer to. Also empty for a node that lacks a topology label.
    """
    tree, level = case.snapshot.tree, case.snapshot.tree.depth - 1
    if level > case.hard:
        if any(case.snapshot.nodes[node].name in names for names in tree.lacking):
            return ""
        return f"{tree.layer_name(level)} {tree.path(level, int(tree.domain_of[level][node]))}"
    labels = case.snapshot.nodes[node].labels
    key = next((key for key in _label_keys(case, case.pod) if key in labels), "")
    return f"{key} {labels[key]}" if key else ""


def _place(case: Case, node: int) -> str:
    """Returns the hard domain of a node as text, such as `block b1`; `the cluster` without a hard layer."""
    tree, level = case.snapshot.tree, case.hard
    return f"{tree.layer_name(level)} {tree.path(level, int(tree.domain_of[level][node]))}" if level else "the cluster"
