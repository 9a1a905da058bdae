# SPDX-License-Identifier: Apache-2.0
"""Lists the parts of a unit that must each be placed in one network domain, such as each replica below one switch.

A part is a gang, a replica, or a set of pods that a manifest names (`Gang.shared_domains`). A replica is a set of pods
that a controller creates and restarts together, such as one group of a LeaderWorkerSet. Two pods belong to one replica
if they have equal values for a set of `REPLICA_LABELS`: the first set with labels that are all on the pods.
Source: gang-network.md 4 (scope).
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.topology.topology_layers import Layers

_JOBSET, _LWS, _GROVE = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/", "grove.io/podcliquescalinggroup"
REPLICA_LABELS = (
    (_LWS + "group-key", _LWS + "subgroup-index"),
    (_JOBSET + "jobset-name", _JOBSET + "replicatedjob-name", _JOBSET + "job-index"),
    (_JOBSET + "jobset-uid", _JOBSET + "replicatedjob-name", _JOBSET + "job-index"),
    ("ray.io/worker-group-replica-name",),
    (_GROVE, _GROVE + "-replica-index"),
)
"""Sets of labels that controllers write: LeaderWorkerSet, JobSet (old and new), RayCluster, Grove. A pod with all
labels of a set belongs to a replica."""


@dataclass(frozen=True, slots=True)
class GatheredPart:
    """Members, including bound ones, that must share one domain of a layer, or one value of a node label."""

    scope: str
    """Kind of part: `gang` or `replica` (scope of a gather rule), `podgroup` (of Grove), `subgroup` (of Volcano)."""
    members: tuple[PodInfo, ...]
    level: int = 0
    """Level of the layer in the tree; 0 is the cluster. Ignored if `label` is set."""
    label: str = ""
    """Key of the node label; empty if the part must share a domain of a layer."""

    def domains(self, snapshot: Snapshot) -> Ints:
        """Returns [nodes] the index of each node's domain; -1 for nodes without the label."""
        if not self.label:
            return np.asarray(snapshot.tree.domain_of[self.level], dtype=np.int64)
        values: dict[str, int] = {"": -1}
        found = (node.labels.get(self.label, "") for node in snapshot.nodes)
        return np.array([values.setdefault(value, len(values) - 1) for value in found], dtype=np.int64)


def replica_of(pod: PodInfo) -> Hashable:
    """Returns a key that is equal for pods of one replica; None for a pod that belongs to no replica."""
    labels = pod.pod.metadata.labels
    own = next((own for own in REPLICA_LABELS if all(key in labels for key in own)), None)
    return (pod.namespace, *(labels[key] for key in own)) if own is not None else None


def has_parts(unit: Unit) -> bool:
    """Returns True if a gang of the unit has parts that must each share a domain."""
    return any(gang.has_parts for gang in unit.gangs)


def without_parts(unit: Unit) -> Unit:
    """Returns the unit without the gather rules of parts; rules for whole gangs remain."""
    gangs = (
        replace(
            gang,
            shared_domains=(),
            wish=replace(gang.wish, gather=tuple(rule for rule in gang.wish.gather if rule.scope == "group")),
        )
        for gang in unit.gangs
    )
    return Unit(id=unit.id, gangs=tuple(gangs)) if has_parts(unit) else unit


def parts_of(unit: Unit, layers: Layers) -> Iterator[GatheredPart]:
    """Yields the parts of all rules. A rule for a layer that the tree lacks is skipped: a gate blocks its gang
    (`unit_gates.py`)."""
    # gather rules with a scope; pods that belong to no replica form one part per gang
    rules = {
        (rule.layer, rule.scope): None for gang in unit.gangs for rule in gang.wish.gather if rule.scope != "group"
    }
    for layer, scope in rules:
        found: dict[Hashable, list[PodInfo]] = {}
        for gang in unit.gangs:
            if not any(rule.layer == layer and rule.scope == scope for rule in gang.wish.gather):
                continue
            for pod in gang.members:
                replica = replica_of(pod) if scope == "replica" else None
                found.setdefault(gang.ref if replica is None else replica, []).append(pod)
        level = layers.level(layer)
        if level:
            yield from (GatheredPart(scope, tuple(pods), level) for pods in found.values())
    # parts that manifests name: (node label, layer, name of the part) -> members, which may be of several gangs
    named: dict[tuple[str, str, str], list[PodInfo]] = {}
    for gang in unit.gangs:
        for one in gang.shared_domains:
            members = (pod for pod in gang.members if one.pods is None or pod.key in one.pods)
            named.setdefault((one.label, one.layer, one.part), []).extend(members)
    for (label, layer, _), pods in named.items():
        if label:
            yield GatheredPart("podgroup", tuple(pods), label=label)
        elif pods and (level := layers.level(layer)):
            yield GatheredPart("subgroup", tuple(pods), level)
