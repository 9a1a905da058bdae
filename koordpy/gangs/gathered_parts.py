"""Parts of a unit that are gathered by themselves: each gang, or each replica, in one domain of a layer.

Source: gang-network.md 4 (scope). A replica is what its controller makes and restarts as one: pods that share
the labels of the first kind that a pod has.
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
    """Members, bound ones among them, that lie in one domain of a layer, or on nodes of one value of a label."""

    scope: str
    members: tuple[PodInfo, ...]
    level: int = 0
    label: str = ""

    def domains(self, snapshot: Snapshot) -> Ints:
        """[nodes] number of the domain, -1 without the label."""
        if not self.label:
            return np.asarray(snapshot.tree.domain_of[self.level], dtype=np.int64)
        values: dict[str, int] = {"": -1}
        found = (node.labels.get(self.label, "") for node in snapshot.nodes)
        return np.array([values.setdefault(value, len(values) - 1) for value in found], dtype=np.int64)


def replica_of(pod: PodInfo) -> Hashable:
    """Equal for pods of one replica; None for a pod of none."""
    labels = pod.pod.metadata.labels
    own = next((own for own in REPLICA_LABELS if all(key in labels for key in own)), None)
    return (pod.namespace, *(labels[key] for key in own)) if own is not None else None


def has_parts(unit: Unit) -> bool:
    """Whether any gang gathers parts of itself."""
    return any(gang.has_parts for gang in unit.gangs)


def without_parts(unit: Unit) -> Unit:
    """The unit with what it asks of all its members together alone."""
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
    """The parts of each rule, by layer and scope; gangs of layers that the tree lacks are held (`planning.gates`)."""
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
