# SPDX-License-Identifier: Apache-2.0
"""Variants of a Snapshot for what-if questions, such as "would the gang fit with two more nodes?".

In a variant some pods are absent, nodes or pending pods are new or changed, or quotas are changed. Each function
returns the Snapshot after the change, with every dependent count updated; the original Snapshot does not change. Cost:
O(nodes) for nodes, O(pods) copies of references for pods. A function raises `VariantError` if it cannot compute the
result exactly: if devices of resource claims would be freed, if a bound pod is added or replaced that is not of a
DaemonSet or of a kubelet, and for new or relabelled nodes if HyperNodes define the tree.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from koordpy.api.keys import HOSTNAME
from koordpy.api.objects import Pod
from koordpy.api.quantity import MAX_SUM
from koordpy.cache.neighbour_counts import Neighbours
from koordpy.cache.snapshot import Ints, NodeInfo, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import Owner, PodInfo, in_group, pod_info
from koordpy.pods.resource_amounts import add_amounts, node_allocatable
from koordpy.pods.tally import Tally, counts_without
from koordpy.quota.quota_book import Quotas, card_hundredths, in_sums
from koordpy.quota.quota_tree import QuotaNode
from koordpy.topology.topology_tree import build_tree

K = TypeVar("K")
S = TypeVar("S")
_COUNTED = ("selectors", "classes", "terms", "ports", "claim_users", "disks")
"""Fields of a Snapshot that count bound pods."""
_versions = count(-2, -1)
"""`static_version` and `staying_version` of variants: negative, so that they never equal a number of ClusterState."""


class VariantError(Exception):
    """A variant cannot be computed exactly, so the what-if question has no answer."""


def without_pods(snapshot: Snapshot, gone: Iterable[PodInfo]) -> Snapshot:
    """Returns the snapshot without the given pods: the nodes of bound pods are freed; pending pods leave the demand of
    quotas."""
    pods = {pod.key: pod for pod in gone}
    bound = [pod for pod in pods.values() if pod.bound]
    if any(pod.pod.spec.resource_claims or _amends(pod, snapshot) for pod in bound):
        raise VariantError
    used, scored = snapshot.used.copy(), snapshot.score_used.copy()
    for pod in bound:
        _subtract(pod, snapshot, used, scored)
    # subtract the removed pods from the counts that filters read
    counts = _counts(snapshot, bound, -1)
    members = _filtered(snapshot.members, pods)
    return replace(
        snapshot,
        used=used,
        score_used=scored,
        pods={key: pod for key, pod in snapshot.pods.items() if key not in pods},
        pending=tuple(pod for pod in snapshot.pending if pod.key not in pods),
        members=members,
        quotas=_with_requests(snapshot.quotas, gone=pods.values()),
        **counts,
        reservations={key: one for key, one in snapshot.reservations.items() if key not in pods},
        families={family: view.without_pods(bound) for family, view in snapshot.families.items()},
        memo={},
    )


def with_succeeded(snapshot: Snapshot, ended: Iterable[PodInfo]) -> Snapshot:
    """Returns the snapshot after the given bound pods have Succeeded. Pods that name a gang remain its members."""
    pods = {pod.key: pod for pod in ended}
    done = {
        key: structs.replace(
            pod, pod=structs.replace(pod.pod, status=structs.replace(pod.pod.status, phase="Succeeded")), pending=False
        )
        for key, pod in pods.items()
        if pod.gang is not None
    }
    left = without_pods(snapshot, pods.values())
    members = dict(left.members)
    for ref in {pod.gang for pod in done.values() if pod.gang is not None}:
        every = snapshot.members.get(ref, ())
        members[ref] = tuple(done.get(pod.key, pod) for pod in every if pod.key in done or pod.key not in pods)
    return replace(left, pods={**left.pods, **done}, members=members, memo={})


def with_nodes(snapshot: Snapshot, nodes: Iterable[NodeInfo], like: Mapping[str, str] | None = None) -> Snapshot:
    """Returns the snapshot with new or changed nodes.

    nodes: the new states; a known name replaces that node. like: new node -> existing node with the same devices; a new
    node that is not in `like` has no devices.
    """
    layers, changed = snapshot.tree.layers, {node.name: node for node in nodes}
    known = {node.name: node for node in snapshot.nodes}
    infos = {**known, **changed}
    new = [name for name in changed if name not in known]
    if layers.places is not None and (new or any(known[n].labels != changed[n].labels for n in changed if n in known)):
        raise VariantError
    labels = {name: info.labels for name, info in infos.items()}
    tree = build_tree(layers, labels, has_object=snapshot.tree.has_object)
    # rows of known nodes move to their positions in the new tree
    shape = (len(infos), snapshot.allocatable.shape[1])
    allocatable, used, staying = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    scored = np.zeros((len(infos), snapshot.score_used.shape[1]), dtype=np.int64)
    for row, name in enumerate(tree.node_names):
        before = snapshot.index.get(name)
        if before is not None:
            allocatable[row], used[row] = snapshot.allocatable[before], snapshot.used[before]
            scored[row], staying[row] = snapshot.score_used[before], snapshot.unevictable_used[before]
        if name in changed:
            allocatable[row] = 0
            for resource, amount in changed[name].allocatable.items():
                allocatable[row, snapshot.columns[resource]] = amount
    total, cards = dict(snapshot.quotas.total), snapshot.quotas.cards
    for name, info in changed.items():
        for node, sign in ((known.get(name), -1), (info, 1)):
            if node is not None and not node.going:
                add_amounts(total, node.allocatable, sign)
                cards += sign * card_hundredths(node.allocatable)
    variant = replace(
        snapshot,
        nodes=tuple(infos[name] for name in tree.node_names),
        tree=tree,
        allocatable=allocatable,
        used=used,
        score_used=scored,
        unevictable_used=staying,
        quotas=replace(snapshot.quotas, total=total, cards=cards),
        static_version=next(_versions),
        capacity_version=snapshot.capacity_version - 1,
        memo={},
    )
    return _with_devices(variant, {name: (like or {}).get(name, "") for name in new})


def new_node(template: NodeInfo, name: str) -> NodeInfo:
    """Returns an empty node that equals an existing one except for its name."""
    labels = dict(template.labels)
    if HOSTNAME in labels:
        labels[HOSTNAME] = name
    meta = structs.replace(template.node.metadata, name=name, uid=name, labels=labels)
    return replace(template, name=name, labels=labels, node=structs.replace(template.node, metadata=meta))


def with_daemons(snapshot: Snapshot, pods: Iterable[PodInfo]) -> Snapshot:
    """Returns the snapshot with new bound pods of DaemonSets and kubelets, as they would run on new nodes.

    Raises `VariantError` for a pod with devices or resource claims, because it is unknown which devices it would get.
    """
    changed = {pod.key: pod for pod in pods}
    if not changed:
        return snapshot
    if any(not pod.bound or pod.extended or pod.asks or pod.pod.spec.resource_claims for pod in changed.values()):
        raise VariantError
    used, scored, staying = (one.copy() for one in (snapshot.used, snapshot.score_used, snapshot.unevictable_used))
    for pod in changed.values():
        node = snapshot.index[pod.node]
        for column, amount in snapshot.vector(pod.requests):
            used[node, column] += amount
            staying[node, column] += amount
        scored[node] += pod.score_requests
    counts = _counts(snapshot, changed.values(), 1)
    return replace(
        snapshot,
        used=used,
        score_used=scored,
        unevictable_used=staying,
        pods={**snapshot.pods, **changed},
        quotas=_with_requests(snapshot.quotas, come=changed.values()),
        **counts,
        staying_version=next(_versions),
        memo={},
    )


def with_pods(snapshot: Snapshot, pods: Iterable[PodInfo]) -> Snapshot:
    """Returns the snapshot with new or changed pending pods; a known key replaces that pod at its position in its
    gang."""
    changed = {pod.key: pod for pod in pods}
    before = [snapshot.pods[key] for key in changed if key in snapshot.pods]
    if any(pod.bound for pod in (*before, *changed.values())):
        raise VariantError
    # changed pods are removed from their gangs and added again, at their former positions
    members: dict[GangRef, tuple[PodInfo, ...]] = _filtered(snapshot.members, changed)
    order = {key: place for place, key in enumerate(snapshot.pods)}
    for pod in changed.values():
        if pod.gang is not None:
            members[pod.gang] = (*members.get(pod.gang, ()), pod)
    for ref in {pod.gang for pod in changed.values() if pod.gang is not None}:
        members[ref] = tuple(sorted(members[ref], key=lambda pod: order.get(pod.key, len(order))))
    waiting = {pod.key: changed.get(pod.key, pod) for pod in snapshot.pending}
    waiting |= changed
    return replace(
        snapshot,
        pods={**snapshot.pods, **changed},
        pending=tuple(pod for pod in waiting.values() if pod.pending),
        members=members,
        quotas=_with_requests(snapshot.quotas, gone=before, come=changed.values()),
        memo={},
    )


def read_again(info: PodInfo, pod: Pod, snapshot: Snapshot, config: KoordpyConfiguration) -> PodInfo:
    """Returns a pending pod with another specification, in the same gang and at the same rank. pod: the new object."""
    found = pod_info(
        pod,
        scheduler_names=snapshot.scheduler_names,
        looked_for=snapshot.looked_for,
        owned=config.filters.pod_topology_spread.reads_owners,
        readers=snapshot.readers,
        labels_count=config.quota.trusts_labels_of(pod.metadata.namespace),
        queue=info.owner.queue,
    )
    found = structs.replace(found, gang=info.gang, index=info.index, made_group=info.made_group, claimed=info.claimed)
    return in_group(found, info.group_priority, info.group_policy)


def with_quotas(snapshot: Snapshot, quotas: Iterable[QuotaNode]) -> Snapshot:
    """Returns the snapshot with changed quotas; each replaces the quota of its name."""
    tree = snapshot.quotas.tree
    changed = replace(tree, quotas={**tree.quotas, **{quota.name: quota for quota in quotas}})
    return replace(snapshot, quotas=replace(snapshot.quotas, tree=changed), memo={})


def _filtered(
    members: Mapping[GangRef, tuple[PodInfo, ...]], gone: Collection[str]
) -> dict[GangRef, tuple[PodInfo, ...]]:
    """Returns gang -> members without the given pods. gone: keys of these pods.

    An unchanged tuple is the same object as before, so that cached results about its gang stay valid.
    """
    out = {}
    for ref, pods in members.items():
        left = pods if all(pod.key not in gone for pod in pods) else tuple(p for p in pods if p.key not in gone)
        if left:
            out[ref] = left
    return out


def _subtract(pod: PodInfo, snapshot: Snapshot, used: Ints, scored: Ints) -> None:
    """Subtracts a bound pod from `used` and `scored` in place. Raises `VariantError` if a sum of its node is cut."""
    node = snapshot.index.get(pod.node)
    if node is None:
        return
    if (snapshot.used[node] >= MAX_SUM).any():
        raise VariantError
    for column, amount in snapshot.vector(pod.requests):
        used[node, column] -= amount
    scored[node] -= pod.score_requests


def _amends(pod: PodInfo, snapshot: Snapshot) -> bool:
    """Returns True if a device family has corrected the amounts of the pod's node because of devices in use there.

    Without the pod the correction might be different.
    """
    if pod.node not in snapshot.index or not any(view.amends(pod.node) for view in snapshot.families.values()):
        return False
    node = snapshot.nodes[snapshot.index[pod.node]]
    return node.allocatable != node_allocatable(node.node)


def _counts(snapshot: Snapshot, pods: Iterable[PodInfo], sign: int) -> dict[str, Any]:
    """Returns the counts of a snapshot by field, with bound pods added (sign 1) or removed (-1)."""
    book = Neighbours()
    book.look_for(snapshot.looked_for)
    for pod in pods:
        book.account(pod, -sign)
    return {name: counts_without(getattr(snapshot, name), getattr(book, name).frozen()) for name in _COUNTED}


def _with_requests(quotas: Quotas, *, gone: Iterable[PodInfo] = (), come: Iterable[PodInfo] = ()) -> Quotas:
    """Returns the quotas with the used and requested amounts after a change. gone: removed pods. come: added pods."""
    # amounts to subtract, by quota or user: of bound pods (`held`) and of pending pods (`waiting`)
    held, waiting = Tally[Owner, str](), Tally[Owner, str]()
    for pods, sign in ((gone, 1), (come, -1)):
        for pod in pods:
            if (pod.bound and not pod.lost) or pod.pending:
                amounts = in_sums(pod.charged if pod.bound else pod.demanded)
                (held if pod.bound else waiting).add_all(pod.owner, amounts, sign)
    return replace(
        quotas,
        usage=counts_without(quotas.usage, held.frozen()),
        demand=counts_without(quotas.demand, waiting.frozen()),
    )


def _with_devices(snapshot: Snapshot, like: Mapping[str, str]) -> Snapshot:
    """Returns the snapshot with the devices of new nodes. like: new node -> existing node with the same devices.

    An empty `like` changes nothing.
    """
    return replace(snapshot, families={family: view.with_nodes(like) for family, view in snapshot.families.items()})


Edit = Callable[[Snapshot], Snapshot]
"""A change of a Snapshot. Raises `VariantError` if it cannot be made exactly."""
