"""Anti-affinity of pods that run already: it closes its whole domain to the pods it matches (kube-parity.md 2.7).

Required (anti-)affinity of the incoming pod itself is refused by `koordpy.planning.filters.unsupported` for now.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.api.objects import Pod, PodAffinityTerm
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import NodeInfo
from koordpy.planning.filters.base import Code, Refusal, Verdict, all_fit, refused_where
from koordpy.planning.selectors import selector_matches

EXISTING = Refusal(
    "InterPodAffinity", Code.UNSCHEDULABLE, ("node(s) didn't satisfy existing pods anti-affinity rules",)
)


def term_matches_pod(term: PodAffinityTerm, owner: Pod, pod: Pod, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a term of `owner` speaks of `pod`: namespace and selector, with matchLabelKeys merged in."""
    namespace = pod.metadata.namespace
    if not term.namespaces and term.namespace_selector is None:
        if namespace != owner.metadata.namespace:
            return False
    elif namespace not in term.namespaces and not selector_matches(
        term.namespace_selector, namespaces.get(namespace, {})
    ):
        return False
    return selector_matches(term.label_selector, pod.metadata.labels)


def check_existing(
    nodes: Sequence[NodeInfo],
    index: Mapping[str, int],
    pod: Pod,
    anti_affine: Sequence[PodInfo],
    namespaces: Mapping[str, Mapping[str, str]],
) -> Verdict:
    """Nodes in the domain of a running pod whose required anti-affinity matches this pod."""
    closed: set[tuple[str, str]] = set()
    for other in anti_affine:
        at = index.get(other.node)
        affinity = other.pod.spec.affinity
        if at is None or affinity is None or affinity.pod_anti_affinity is None:
            continue
        for term in affinity.pod_anti_affinity.required:
            value = nodes[at].labels.get(term.topology_key)
            if value is not None and term_matches_pod(term, other.pod, pod, namespaces):
                closed.add((term.topology_key, value))
    if not closed:
        return all_fit(len(nodes))
    mask = np.fromiter(
        (any(node.labels.get(key) == value for key, value in closed) for node in nodes), dtype=bool, count=len(nodes)
    )
    return refused_where(mask, EXISTING)
