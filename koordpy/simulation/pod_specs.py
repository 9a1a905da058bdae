# SPDX-License-Identifier: Apache-2.0
"""Changes that controllers make to the spec of a pod template when they create a pod.

These are the placement of JobSet and LeaderWorkerSet pods with exclusive topology, the claims of StatefulSets, and node
and tolerations of DaemonSet pods. Source: workloads.md 10.2.
"""

from collections.abc import Callable

from msgspec.structs import replace

from koordpy.api.objects import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Requirement,
    Toleration,
    Volume,
)
from koordpy.workloads.workload_model import Slot


def _apart(spec: PodSpec, key: str, label: str, value: str, everywhere: bool) -> PodSpec:
    """Returns the spec with an exclusive domain (exclusive-topology).

    Pods with one value of a pod label share one domain, and no pod with another value may be in it. key: node label of
    the domains. label, value: label of the pods. everywhere: True to match pods of all namespaces.
    """

    def term(*operators: str) -> PodAffinityTerm:
        """Returns a term that selects pods by the label, with one expression for each operator."""
        values = {"Exists": ()}
        asked = (Requirement(key=label, operator=one, values=values.get(one, (value,))) for one in operators)
        namespaces = LabelSelector() if everywhere else None
        chosen = LabelSelector(match_expressions=tuple(asked))
        return PodAffinityTerm(label_selector=chosen, topology_key=key, namespace_selector=namespaces)

    affinity = spec.affinity or Affinity()
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    near = replace(near, required=[*near.required, term("In")])
    far = replace(far, required=[*far.required, term("Exists", "NotIn")])
    return replace(spec, affinity=replace(affinity, pod_affinity=near, pod_anti_affinity=far))


def _on_node(spec: PodSpec, node: str) -> PodSpec:
    """Returns the spec of a DaemonSet's pod, which may run only on one node. node: name of the node."""
    named = Requirement(key="metadata.name", operator="In", values=(node,))
    affinity = spec.affinity or Affinity()
    of_nodes = affinity.node_affinity or NodeAffinity()
    given = of_nodes.required.node_selector_terms if of_nodes.required is not None else []
    terms = [replace(one, match_fields=(*one.match_fields, named)) for one in given or [NodeSelectorTerm()]]
    of_nodes = replace(of_nodes, required=NodeSelector(node_selector_terms=terms))
    tolerations = daemon_tolerations(spec)
    return replace(spec, affinity=replace(affinity, node_affinity=of_nodes), tolerations=tolerations)


DAEMON_TAINTS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""(key, effect) of taints that pods of DaemonSets tolerate."""


def daemon_tolerations(spec: PodSpec) -> list[Toleration]:
    """Returns the tolerations of a DaemonSet's pod: those of its template and of `DAEMON_TAINTS`."""
    own = [Toleration(key=key, operator="Exists", effect=effect) for key, effect in DAEMON_TAINTS]
    return [*spec.tolerations, *(one for one in own if one not in spec.tolerations)]


def placed(spec: PodSpec, slot: Slot, label_of: Callable[[str], str]) -> PodSpec:
    """Returns the spec of the pod to create for a slot.

    label_of: returns the value of a node label on the leader's node, which the pod must follow.
    """
    if slot.exclusive_domain is not None:
        spec = _apart(spec, *slot.exclusive_domain)
    if slot.follows:
        spec = replace(spec, node_selector={**spec.node_selector, slot.follows: label_of(slot.follows)})
    if slot.node:
        spec = _on_node(spec, slot.node)
    if slot.claims:
        own = [
            Volume(name=one.volume, persistent_volume_claim=PersistentVolumeClaimSource(claim_name=one.name))
            for one in slot.claims
        ]
        given = {volume.name for volume in own}
        spec = replace(spec, volumes=[*own, *(volume for volume in spec.volumes if volume.name not in given)])
    return spec
