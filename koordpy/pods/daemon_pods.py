# SPDX-License-Identifier: Apache-2.0
"""Finds the node for which a DaemonSet created a pod, and copies DaemonSet and mirror pods for a new node.

A copy of a node runs the same DaemonSet and mirror pods as the original node, so a new node has less free capacity than
its allocatable amounts.
"""

from msgspec.structs import replace

from koordpy.api.objects import NodeSelector, NodeSelectorTerm, Pod, PodSpec


def node_of_daemon(pod: Pod) -> str:
    """Returns the node for which a DaemonSet created a pod, from spec.nodeName or node affinity; empty for other
    pods."""
    if pod.spec.node_name or pod.spec.affinity is None or (of_nodes := pod.spec.affinity.node_affinity) is None:
        return pod.spec.node_name
    terms = of_nodes.required.node_selector_terms if of_nodes.required is not None else []
    named = (one for term in terms for one in term.match_fields if one.key == "metadata.name" and one.operator == "In")
    return next((one.values[0] for one in named if one.values), "")


def copied_daemon(pod: Pod, old: str, new: str) -> Pod:
    """Returns a copy of a DaemonSet or mirror pod of node `old`, bound to node `new`.

    In its name, the name of the old node at the end is replaced by that of the new node. The creation time is the same.
    """
    meta, stem = pod.metadata, pod.metadata.name.removesuffix(f"-{old}")
    meta = replace(meta, name=f"{stem}-{new}", uid=f"{meta.uid}-{new}")
    return replace(pod, metadata=meta, spec=_pinned(replace(pod.spec, node_name=new), old, new))


def _pinned(spec: PodSpec, old: str, new: str) -> PodSpec:
    """Returns the spec with node `new` in place of node `old` in the fields that required node affinity matches."""
    of_nodes = spec.affinity.node_affinity if spec.affinity is not None else None
    if spec.affinity is None or of_nodes is None or of_nodes.required is None:
        return spec

    def renamed(term: NodeSelectorTerm) -> NodeSelectorTerm:
        fields = (
            replace(one, values=tuple(new if name == old else name for name in one.values)) for one in term.match_fields
        )
        return replace(term, match_fields=tuple(fields))

    terms = [renamed(term) for term in of_nodes.required.node_selector_terms]
    of_nodes = replace(of_nodes, required=NodeSelector(node_selector_terms=terms))
    return replace(spec, affinity=replace(spec.affinity, node_affinity=of_nodes))
