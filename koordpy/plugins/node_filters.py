# SPDX-License-Identifier: Apache-2.0
"""Filters that read only the pod and the node object: NodeUnschedulable, TaintToleration, NodeAffinity.

Their verdicts change only with the node's name, labels, taints and cordon, so they are computed once per pod spec and
cached between rounds. The filter NodeName is not needed, because a pending pod has no node name. Source: kube-parity.md
sections 2.1 and 2.3.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.api.label_selectors import LabelColumns
from koordpy.api.objects import NodeAffinity, NodeSelector, Pod, Taint, Toleration
from koordpy.cache.snapshot import UNSCHEDULABLE_TAINT, NodeInfo
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, all_fit, refused_where
from koordpy.pods.tolerations import tolerated

UNSCHEDULABLE = Refusal("NodeUnschedulable", Code.UNRESOLVABLE, ("node(s) were unschedulable",))
TAINTED = Refusal("TaintToleration", Code.UNRESOLVABLE, ("node(s) had untolerated taint(s)",))
AFFINITY = Refusal("NodeAffinity", Code.UNRESOLVABLE, ("node(s) didn't match Pod's node affinity/selector",))
NOT_NAMED = Refusal("NodeAffinity", Code.UNRESOLVABLE, ("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
ENFORCED = Refusal("NodeAffinity", Code.UNRESOLVABLE, ("node(s) didn't match scheduler-enforced node affinity",))
CONFLICT = Refusal("NodeAffinity", Code.UNRESOLVABLE, ("pod affinity terms conflict",))

FILTERING_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects of taints that refuse a node; PreferNoSchedule only lowers the score."""


def repels(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Returns True if the taint excludes pods with these tolerations from its node."""
    return taint.effect in FILTERING_EFFECTS and not tolerated(taint, tolerations)


def taint_text(taint: Taint) -> str:
    """Returns the taint as kubectl writes it: `key=value:effect`, or `key:effect`."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def check_unschedulable(nodes: Sequence[NodeInfo], pod: Pod) -> Verdict:
    """Refuses cordoned nodes (spec.unschedulable), unless the pod tolerates the taint of a cordon."""
    mask = np.fromiter((node.unschedulable for node in nodes), dtype=bool, count=len(nodes))
    if not mask.any() or tolerated(UNSCHEDULABLE_TAINT, pod.spec.tolerations):
        return all_fit(len(nodes))
    return refused_where(mask, UNSCHEDULABLE)


def check_taints(nodes: Sequence[NodeInfo], pod: Pod) -> Verdict:
    """Refuses nodes with NoSchedule or NoExecute taints that the pod does not tolerate."""
    known: dict[tuple[Taint, ...], bool] = {(): False}

    def refused(taints: tuple[Taint, ...]) -> bool:
        answer = known.get(taints)
        if answer is None:
            answer = known[taints] = any(repels(taint, pod.spec.tolerations) for taint in taints)
        return answer

    mask = np.fromiter((bool(node.taints) and refused(node.taints) for node in nodes), dtype=bool, count=len(nodes))
    return refused_where(mask, TAINTED)


def named_nodes(required: NodeSelector | None) -> set[str] | None:
    """Returns the names of the only nodes that required node affinity can match, if every term lists node names.

    A term lists names by `metadata.name In` in matchFields. None if a term lists no names, so that it may match any
    node. The result is the union over all terms; requirements within one term are intersected, and the result is empty
    if they conflict. As in kube-scheduler, names of an invalid term are included, although it matches no node.
    """
    if required is None or not required.node_selector_terms:
        return None
    names: set[str] = set()
    for term in required.node_selector_terms:
        wanted: set[str] | None = None
        for requirement in term.match_fields:
            if requirement.key == "metadata.name" and requirement.operator == "In":
                one = set(requirement.values)
                wanted = one if wanted is None else wanted & one
        if wanted is None:
            return None
        names |= wanted
    return names


def check_affinity(nodes: Sequence[NodeInfo], pod: Pod) -> Verdict | Refusal:
    """Checks nodeSelector and required node affinity.

    Returns a Refusal of the pod as a whole instead of a Verdict, if the terms list node names but name no node.
    """
    selector = pod.spec.node_selector
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required if affinity else None
    if not selector and required is None:
        return all_fit(len(nodes))
    names = named_nodes(required)
    if names is not None and not names:
        return CONFLICT
    return refused_where(~_matched(nodes, selector, required), AFFINITY)


def check_added(nodes: Sequence[NodeInfo], added: NodeAffinity | None) -> Verdict:
    """Checks the required node affinity that the configuration adds to every pod.

    added: `filters.nodeAffinity.addedAffinity`; None without one.
    """
    if added is None or added.required is None:
        return all_fit(len(nodes))
    return refused_where(~_matched(nodes, {}, added.required), ENFORCED)


def check_named(nodes: Sequence[NodeInfo], pod: Pod) -> Verdict:
    """Refuses nodes that required node affinity excludes by name (`named_nodes`).

    kube-scheduler does this in its PreFilter stage, before any other filter, with a separate message.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    names = named_nodes(affinity.required if affinity else None)
    if not names:
        return all_fit(len(nodes))
    mask = np.fromiter((node.name not in names for node in nodes), dtype=bool, count=len(nodes))
    return refused_where(mask, NOT_NAMED)


def first_words(
    nodes: Sequence[NodeInfo], pod: Pod, added: NodeAffinity | None
) -> tuple[list[Verdict], Refusal | None]:
    """Returns (verdicts of all filters of this module in order, refusal of the pod as a whole or None).

    If the pod is refused as a whole, the verdict of node affinity is missing. added: as in `check_added`.
    """
    affinity = check_affinity(nodes, pod)
    parts = [check_named(nodes, pod), check_unschedulable(nodes, pod), check_taints(nodes, pod)]
    if isinstance(affinity, Refusal):
        return parts, affinity
    return [*parts, check_added(nodes, added), affinity], None


def _restarts_all_containers(pod: Pod) -> bool:
    """Returns True if the end of one container restarts all containers of the pod (KEP-5532)."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(rule.action == "RestartAllContainers" for one in containers for rule in one.restart_policy_rules)


def _has_users_on_host_network(pod: Pod) -> bool:
    """Returns True if the pod uses a user namespace together with the host network."""
    return pod.spec.host_network and pod.spec.host_users is False


REQUIRED_FEATURES: dict[str, Callable[[Pod], bool]] = {
    "RestartAllContainersOnContainerExits": _restarts_all_containers,
    "UserNamespacesHostNetworkSupport": _has_users_on_host_network,
}
"""Feature of Kubernetes -> function that returns True if a pod needs a node which declares the feature. All other
declared features concern only updates of pods."""


def required_features(pod: Pod) -> tuple[str, ...]:
    """Returns the features that a node must declare; empty for nearly all pods."""
    return tuple(name for name, is_needed in REQUIRED_FEATURES.items() if is_needed(pod))


def columns_of(nodes: Sequence[NodeInfo]) -> LabelColumns:
    """Returns the names and labels of nodes as columns, to match node selector terms with all nodes at once."""
    return LabelColumns([node.name for node in nodes], [node.labels for node in nodes])


def _matched(nodes: Sequence[NodeInfo], selector: dict[str, str], required: NodeSelector | None) -> NDArray[np.bool_]:
    """Returns [nodes] True if nodeSelector and required node affinity match."""
    wanted = selector.items()
    out = np.fromiter((wanted <= node.labels.items() for node in nodes), dtype=bool, count=len(nodes))
    if required is not None:
        columns = columns_of(nodes)
        terms = (columns.matches(term) for term in required.node_selector_terms)
        out &= np.logical_or.reduce(list(terms), initial=False)
    return out
