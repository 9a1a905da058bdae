"""Parts of a unit that are gathered separately: each gang, or each replica, in one domain of a layer.

Source: gang-network.md 4 (scope). A replica is a set of pods that a controller creates and restarts together: pods with
equal values of the first labels in `REPLICA_LABELS` that a pod has.
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


@dataclass(frozen=True, slots=True)
class GatheredPart:
    """Members, including bound ones, that share one domain of a layer, or one value of a node label."""

    scope: str
    members: tuple[PodInfo, ...]
    level: int = 0
    label: str = ""

    def domains(self, snapshot: Snapshot) -> Ints:
        """Returns [nodes], the number of each node's domain; -1 without the label."""
        if not self.label:
            return np.asarray(snapshot.tree.domain_of[self.level], dtype=np.int64)
        values: dict[str, int] = {"": -1}
        found = (node.labels.get(self.label, "") for node in snapshot.nodes)
        return np.array([values.setdefault(value, len(values) - 1) for value in found], dtype=np.int64)


def replica_of(pod: PodInfo) -> Hashable:
    """Returns a key that is equal for pods of one replica; None for a pod of none."""
    labels = pod.pod.metadata.labels
    own = next((own for own in REPLICA_LABELS if all(key in labels for key in own)), None)
    return (pod.namespace, *(labels[key] for key in own)) if own is not None else None


def has_parts(unit: Unit) -> bool:
    """Returns whether any gang gathers parts of itself."""
    return any(gang.has_parts for gang in unit.gangs)


def without_parts(unit: Unit) -> Unit:
    """Returns the unit without the gather rules of parts."""
    gangs = (
        replace(
            gang,
            parted=(),
            wish=replace(gang.wish, gather=tuple(rule for rule in gang.wish.gather if rule.scope == "group")),
        )
        for gang in unit.gangs
    )
    return Unit(id=unit.id, gangs=tuple(gangs)) if has_parts(unit) else unit


def parts_of(unit: Unit, layers: Layers) -> Iterator[GatheredPart]:
    """Yields the parts of each rule, by layer and scope. Layers that the tree lacks yield none: a gate blocks their
    gangs (`unit_gates.py`)."""
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
    named: dict[tuple[str, str, str], list[PodInfo]] = {}
    for gang in unit.gangs:
        for one in gang.parted:
            members = (pod for pod in gang.members if one.pods is None or pod.key in one.pods)
            named.setdefault((one.label, one.layer, one.part), []).extend(members)
    for (label, layer, _), pods in named.items():
        if label:
            yield GatheredPart("podgroup", tuple(pods), label=label)
        elif pods and (level := layers.level(layer)):
            yield GatheredPart("subgroup", tuple(pods), level)
