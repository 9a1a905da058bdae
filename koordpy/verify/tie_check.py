# SPDX-License-Identifier: Apache-2.0
"""Checks the constraints between pods: host ports, disks, affinity, anti-affinity and spread.

It goes pod by pod over the objects, without the counts and arrays of the filters. The pods of a plan are always checked
against each other. A plan of several pods is also checked against every pod of the cluster. For a single pod, only pods
on its node are checked, because a full check for each plain pod would take too long. Anti-affinity terms that cannot
match a pod are skipped (`Audience` in `pods/pod_ties.py`).
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from koordpy.api.label_selectors import selector_matches
from koordpy.api.label_selectors import term_matches as node_matches
from koordpy.api.objects import PodAffinityTerm, TopologySpreadConstraint
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import NodeInfo
from koordpy.plugins import node_filters as node_filters
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import TermClass
from koordpy.pods.tolerations import tolerated

_WILDCARDS = ("", "0.0.0.0")
"""Host IPs that mean all addresses of a node."""
Placed = tuple[PodInfo, str]
"""A pod and the name of its node."""


def check_ties(placed: Sequence[tuple[PodInfo, str]], draft: Draft, *, whole: bool = False) -> list[str]:
    """Returns the faults between placed pods, and between placed pods and existing pods.

    placed: (pod, node name). whole: True to check also a single pod against pods on other nodes, as plans of several
    pods always are; the cost is proportional to the number of pods in the cluster.
    """
    whole = whole or len(placed) > 1
    own = any(pod.ties or pod.pod.spec.topology_spread_constraints for pod, _ in placed)
    if not own and not (whole and _is_shunned(placed, draft)):
        return []
    there: list[tuple[PodInfo, str]] = []
    for name in dict.fromkeys(name for _, name in placed):
        there += [(pod, name) for pod in draft.snapshot.pods_on.get(name, ()) if pod.key not in draft.evicted]
        there += [(pod, name) for pod in draft.placed_on.get(draft.snapshot.index[name], {}).values()]
    faults, near = list[str](), [*placed, *there]
    on: dict[str, list[PodInfo]] = {}
    for pod, node in there:
        on.setdefault(node, []).append(pod)
    for pod, node in placed:
        for other in on.setdefault(node, []):
            faults += _ports(pod, other, node) + _disks(pod, other, node)
        on[node].append(pod)
    for i, (pod, node) in enumerate(near):
        shuns = pod.ties.anti
        for other, at in (near if i < len(placed) else placed) if shuns else ():
            if other is not pod:
                faults += _anti_affinity(pod, node, other, at, draft)
    if whole:
        faults += _check_cluster(placed, draft)
    return faults


def _is_shunned(placed: Sequence[tuple[PodInfo, str]], draft: Draft) -> bool:
    """Returns True if a required anti-affinity term of a running pod, or of a pod that the round has placed, matches
    one of the pods."""
    snapshot, kinds = draft.snapshot, {pod.shape: pod for pod, _ in placed}.values()
    own = (TermClass(pod.namespace, pod.ties.terms) for pod in draft.with_anti_affinity.values())
    return any(
        _term_matches(term, namespace, pod, snapshot.namespaces)
        for namespace, terms in chain(snapshot.terms, own)
        for pod in kinds
        if terms.audience.may_have(namespace, pod.namespace, pod.pod.metadata.labels)
        for term in terms.anti_affinity.required
    )


def _check_cluster(placed: Sequence[tuple[PodInfo, str]], draft: Draft) -> list[str]:
    """Returns the faults by affinity, anti-affinity and spread, against all pods of the cluster and of the plan."""
    own = any(pod.ties.terms or _constraints(pod) for pod, _ in placed)
    if not own and not _is_shunned(placed, draft):
        return []
    everyone = list(placed)
    for name in draft.snapshot.index:
        everyone += [(pod, name) for pod in draft.snapshot.pods_on.get(name, ()) if pod.key not in draft.evicted]
    for position, pods in draft.placed_on.items():
        everyone += [(pod, draft.snapshot.nodes[position].name) for pod in pods.values()]
    new = {pod.key for pod, _ in placed}
    shunning = [(pod, at) for pod, at in everyone if pod.ties.anti and pod.key not in new]
    shapes: dict[bytes, list[tuple[PodInfo, str]]] = {}
    for pod, node in placed:
        shapes.setdefault(pod.shape, []).append((pod, node))
    faults = list[str]()
    faults += _affinity(shapes, [pair for pair in everyone if pair[0].key not in new], draft)
    for same in shapes.values():
        faults += _spread(same, everyone, draft)
        one = same[0][0]
        shuns = one.ties.anti
        shunned = [pair for pair in everyone if pair[0].key not in new] if shuns else []
        for node in dict.fromkeys(node for _, node in same):
            for other, at in shunned:
                faults += _anti_affinity(one, node, other, at, draft)
            for other, at in shunning:
                faults += _anti_affinity(other, at, one, node, draft)
    return faults


def _required_terms(pod: PodInfo) -> list[PodAffinityTerm]:
    """Returns the terms of a pod's required affinity to other pods."""
    affinity = pod.pod.spec.affinity
    return affinity.pod_affinity.required if affinity is not None and affinity.pod_affinity is not None else []


def _constraints(pod: PodInfo) -> list[TopologySpreadConstraint]:
    """Returns the spread constraints of a pod that must be satisfied (DoNotSchedule)."""
    given = pod.pod.spec.topology_spread_constraints
    return [one for one in given if one.when_unsatisfiable != "ScheduleAnyway"]


def _affinity(placed: Mapping[bytes, Sequence[Placed]], before: Sequence[Placed], draft: Draft) -> list[str]:
    """Returns the faults by required affinity of a plan's pods (kube-parity.md 2.7).

    placed: shape -> pods of the shape. before: pods outside the plan. Two shapes are linked if the terms of one match
    pods of the other. If pods exist that match the terms and are not linked, a pod must share a domain with one of
    them. If none exists, linked pods are the first of their group, and must share one domain.
    """
    own = {shape: same for shape, same in placed.items() if _required_terms(same[0][0])}
    rest = [*before, *(one for shape, same in placed.items() if shape not in own for one in same)]
    meant = {
        shape: {other for other in own if _matches(same[0][0], own[other][0][0], draft)} for shape, same in own.items()
    }
    faults, left = list[str](), list(own)
    # each set of linked shapes
    while left:
        linked = [left.pop(0)]
        for shape in linked:
            near = [other for other in left if other in meant[shape] or shape in meant[other]]
            linked += near
            left = [other for other in left if other not in near]
        opened: dict[str, set[str]] = {}
        for shape in linked:
            found, first = _near(own[shape], rest, [one for other in meant[shape] for one in own[other]], draft)
            faults += found
            for key, names in first.items():
                opened.setdefault(key, set()).update(names)
        several = [key for key, names in opened.items() if len(names) > 1]
        faults += [f"{own[linked[0]][0][0].key}: linked pods are placed in several domains of {key}" for key in several]
        if opened and not several:
            labels = {key: next(iter(names)) for key, names in opened.items()}
            if not any(labels.items() <= node.labels.items() for node in draft.snapshot.nodes):
                faults.append(f"{own[linked[0]][0][0].key}: linked pods are placed in domains without a common node")
    return faults


def _near(
    same: Sequence[Placed], rest: Sequence[Placed], linked: Sequence[Placed], draft: Draft
) -> tuple[list[str], dict[str, set[str]]]:
    """Returns (faults of pods of one shape, topology key -> domains in which these pods are the first of their group).

    same: the pods of the shape. rest: pods that are not linked with the shape. linked: placed pods that match its terms
    and also have terms.
    """
    terms, faults = _required_terms(same[0][0]), list[str]()
    there = [(other, at) for other, at in rest if _matches(same[0][0], other, draft)]
    unlinked = [[_label(at, term.topology_key, draft) for term in terms] for _, at in there]
    unlinked = [labels for labels in unlinked if any(label is not None for label in labels)]
    matches = unlinked or [[_label(at, term.topology_key, draft) for term in terms] for _, at in linked]
    opened: dict[str, set[str]] = {}
    for pod, node in same:
        for i, term in enumerate(terms):
            here = _label(node, term.topology_key, draft)
            if here is None:
                faults.append(f"{pod.key}: node {node} lacks a label of its pod affinity")
            elif all(labels[i] != here for labels in matches):
                faults.append(f"{pod.key} on {node}: no pod that its affinity requires is near ({term.topology_key})")
            elif not unlinked:
                opened.setdefault(term.topology_key, set()).add(here)
    return faults, opened


def _matches(pod: PodInfo, other: PodInfo, draft: Draft) -> bool:
    """Returns True if another pod matches all terms of required affinity of a pod."""
    return all(_term_matches(term, pod.namespace, other, draft.snapshot.namespaces) for term in _required_terms(pod))


def _spread(same: Sequence[tuple[PodInfo, str]], everyone: Sequence[tuple[PodInfo, str]], draft: Draft) -> list[str]:
    """Returns the faults by DoNotSchedule constraints of pods of one shape.

    The number of matching pods in a pod's domain may be at most maxSkew above that of the domain with the fewest
    matching pods.
    """
    one, faults = same[0][0], []
    constraints, own = _constraints(one), one.pod.metadata.labels
    for constraint in constraints:
        where = {
            node.name: node.labels[constraint.topology_key]
            for node in draft.snapshot.nodes
            if all(each.topology_key in node.labels for each in constraints) and _counts(node, constraint, one)
        }
        counts = dict.fromkeys(where.values(), 0)
        for other, at in everyone:
            meta = other.pod.metadata
            if at not in where or other.namespace != one.namespace or meta.deletion_timestamp:
                continue
            alike = all(meta.labels.get(key) == own[key] for key in constraint.match_label_keys if key in own)
            if alike and selector_matches(constraint.label_selector, meta.labels):
                counts[where[at]] += 1
        least = min(counts.values(), default=0) if len(counts) >= (constraint.min_domains or 1) else 0
        for pod, node in same:
            if node not in where:
                faults.append(f"{pod.key}: node {node} is in no domain of {constraint.topology_key}")
            elif counts[where[node]] - least > constraint.max_skew:
                more = counts[where[node]] - least
                faults.append(f"{pod.key} on {node}: {more} more than the fewest of {constraint.topology_key}")
    return faults


def _counts(node: NodeInfo, constraint: TopologySpreadConstraint, pod: PodInfo) -> bool:
    """Returns True if nodeAffinityPolicy and nodeTaintsPolicy include a node's pods in the count."""
    spec = pod.pod.spec
    if constraint.node_affinity_policy != "Ignore":
        if any(node.labels.get(key) != value for key, value in spec.node_selector.items()):
            return False
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        required = affinity.required if affinity is not None else None
        if required and not any(node_matches(t, node.name, node.labels) for t in required.node_selector_terms):
            return False
    return constraint.node_taints_policy != "Honor" or all(
        tolerated(taint, spec.tolerations) for taint in node.taints if taint.effect in node_filters.FILTERING_EFFECTS
    )


def _host_ports(pod: PodInfo) -> list[tuple[str, int, str]]:
    """Returns (protocol, port, host IP) of each host port of a pod, including those of sidecars."""
    spec = pod.pod.spec
    holders = [*spec.containers, *(c for c in spec.init_containers if c.restart_policy == "Always")]
    return [(p.protocol or "TCP", p.host_port, p.host_ip) for c in holders for p in c.ports if p.host_port > 0]


def _ports(pod: PodInfo, other: PodInfo, node: str) -> list[str]:
    """Returns a fault if two pods of a node use the same host port."""
    for protocol, number, address in _host_ports(pod):
        for protocol2, number2, address2 in _host_ports(other):
            same = address == address2 or address in _WILDCARDS or address2 in _WILDCARDS
            if (protocol, number) == (protocol2, number2) and same:
                return [f"{pod.key} and {other.key}: both use port {number}/{protocol} of node {node}"]
    return []


def _disks(pod: PodInfo, other: PodInfo, node: str) -> list[str]:
    """Returns a fault if two pods of a node mount an inline disk that they may not share."""
    for one in pod.pod.spec.volumes:
        for two in other.pod.spec.volumes:
            for kind, identity in (("gce_persistent_disk", "pd_name"), ("iscsi", "iqn")):
                mine, theirs = getattr(one, kind), getattr(two, kind)
                if mine is None or theirs is None or (mine.read_only and theirs.read_only):
                    continue
                if getattr(mine, identity) == getattr(theirs, identity):
                    return [f"{pod.key} and {other.key}: both mount disk {getattr(mine, identity)} on node {node}"]
            ours, their = one.aws_elastic_block_store, two.aws_elastic_block_store
            if ours is not None and their is not None and ours.volume_id == their.volume_id:
                return [f"{pod.key} and {other.key}: both mount disk {ours.volume_id} on node {node}"]
    return []


def _anti_affinity(pod: PodInfo, node: str, other: PodInfo, at: str, draft: Draft) -> list[str]:
    """Returns a fault if required anti-affinity of a pod (on `node`) excludes another pod (on `at`)."""
    affinity, labels = pod.pod.spec.affinity, other.pod.metadata.labels
    if affinity is None or affinity.pod_anti_affinity is None or not pod.ties:
        return []
    if not pod.ties.terms.audience.may_have(pod.namespace, other.namespace, labels):
        return []
    snapshot = draft.snapshot
    if at not in snapshot.index:
        return []
    here, there = (snapshot.nodes[snapshot.index[name]].labels for name in (node, at))
    for term in affinity.pod_anti_affinity.required:
        place = here.get(term.topology_key)
        if place is None or place != there.get(term.topology_key):
            continue
        if _term_matches(term, pod.namespace, other, snapshot.namespaces):
            return [f"{pod.key} on {node}: its anti-affinity excludes {other.key} on {at} ({term.topology_key})"]
    return []


def _label(node: str, key: str, draft: Draft) -> str | None:
    """Returns the value of a node's label; None if the node is unknown or has no such label."""
    at = draft.snapshot.index.get(node)
    return None if at is None else draft.snapshot.nodes[at].labels.get(key)


def _term_matches(
    term: PodAffinityTerm, owner: str, other: PodInfo, namespaces: Mapping[str, Mapping[str, str]]
) -> bool:
    """Returns True if a term of a pod in namespace `owner` matches another pod."""
    if term.namespaces or term.namespace_selector is not None:
        labels = namespaces.get(other.namespace, {})
        inside = other.namespace in term.namespaces or selector_matches(term.namespace_selector, labels)
    else:
        inside = owner == other.namespace
    return inside and selector_matches(term.label_selector, other.pod.metadata.labels)
