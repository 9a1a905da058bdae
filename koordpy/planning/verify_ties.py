"""The part of a plan's independent check that concerns pods and pods: host ports, disks and anti-affinity.

Pair by pair over the objects, no counts and no arrays shared with the filters. Of the pods outside of the plan those
on the same node are looked at; members of the plan are held against each other wherever they stand.
"""

from collections.abc import Mapping, Sequence

from koordpy.api.objects import PodAffinityTerm
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft
from koordpy.planning.selectors import selector_matches

_WILDCARDS = ("", "0.0.0.0")


def check_ties(placed: Sequence[tuple[PodInfo, str]], draft: Draft) -> list[str]:
    """Faults of the placements (pod, node name) towards each other and the pods that hold the same node."""
    if not any(pod.ties is not None or pod.pod.spec.topology_spread_constraints for pod, _ in placed):
        return []
    there: list[tuple[PodInfo, str]] = []
    for name in dict.fromkeys(name for _, name in placed):
        there += [(pod, name) for pod in draft.snapshot.pods_on.get(name, ()) if pod.key not in draft.evicted]
        there += [(pod, name) for pod in draft.placed_on.get(draft.snapshot.index[name], {}).values()]
    faults = []
    for i, (pod, node) in enumerate(placed):
        for other, at in (*placed[i + 1 :], *there):
            if node == at:
                faults += _ports(pod, other, node) + _disks(pod, other, node)
            faults += _anti_affinity(pod, node, other, at, draft) + _anti_affinity(other, at, pod, node, draft)
    return faults


def _host_ports(pod: PodInfo) -> list[tuple[str, int, str]]:
    spec = pod.pod.spec
    holders = [*spec.containers, *(c for c in spec.init_containers if c.restart_policy == "Always")]
    return [(p.protocol or "TCP", p.host_port, p.host_ip) for c in holders for p in c.ports if p.host_port > 0]


def _ports(pod: PodInfo, other: PodInfo, node: str) -> list[str]:
    for protocol, number, address in _host_ports(pod):
        for protocol2, number2, address2 in _host_ports(other):
            same = address == address2 or address in _WILDCARDS or address2 in _WILDCARDS
            if (protocol, number) == (protocol2, number2) and same:
                return [f"{pod.key} and {other.key}: both hold port {number}/{protocol} of node {node}"]
    return []


def _disks(pod: PodInfo, other: PodInfo, node: str) -> list[str]:
    """Inline disks that two pods of a node may not share."""
    for one in pod.pod.spec.volumes:
        for two in other.pod.spec.volumes:
            for kind, identity in (("gce_persistent_disk", "pdName"), ("iscsi", "iqn")):
                mine, theirs = getattr(one, kind), getattr(two, kind)
                if not mine or not theirs or (mine.get("readOnly") and theirs.get("readOnly")):
                    continue
                if mine.get(identity) == theirs.get(identity):
                    return [f"{pod.key} and {other.key}: both hold disk {mine.get(identity)} on node {node}"]
            mine, theirs = one.aws_elastic_block_store, two.aws_elastic_block_store
            if mine and theirs and mine.get("volumeID") == theirs.get("volumeID"):
                return [f"{pod.key} and {other.key}: both hold disk {mine.get('volumeID')} on node {node}"]
    return []


def _anti_affinity(pod: PodInfo, node: str, other: PodInfo, at: str, draft: Draft) -> list[str]:
    """Required anti-affinity of one pod towards another."""
    affinity = pod.pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return []
    for term in affinity.pod_anti_affinity.required:
        here, there = _label(node, term.topology_key, draft), _label(at, term.topology_key, draft)
        if here is not None and here == there and _speaks(term, pod, other, draft.snapshot.namespaces):
            return [f"{pod.key} on {node}: its anti-affinity shuns {other.key} on {at} ({term.topology_key})"]
    return []


def _label(node: str, key: str, draft: Draft) -> str | None:
    at = draft.snapshot.index.get(node)
    return None if at is None else draft.snapshot.nodes[at].labels.get(key)


def _speaks(term: PodAffinityTerm, owner: PodInfo, other: PodInfo, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    if term.namespaces or term.namespace_selector is not None:
        labels = namespaces.get(other.namespace, {})
        inside = other.namespace in term.namespaces or selector_matches(term.namespace_selector, labels)
    else:
        inside = owner.namespace == other.namespace
    return inside and selector_matches(term.label_selector, other.pod.metadata.labels)
