"""The gang that a pod names: by labels, annotations or its scheduling group."""

from enum import Enum

import msgspec

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.api.reading_limits import (
    NAME_BYTES,
    too_long,
)

GroupKey = tuple[str, str, str]
"""Namespace, name and replica of a GPU group (gpu-topology.md 5)."""


class GangSource(Enum):
    """How a pod names its gang (gang-network.md 2.1, in the order of precedence)."""

    GROUP = "group"
    """By a label; the settings are those of a PodGroup object of either CRD group."""
    UPSTREAM = "upstream"
    """By spec.schedulingGroup; the settings are those of a scheduling.k8s.io PodGroup."""
    NAMED = "named"
    """By labels or annotations of its own; the oldest pod decides the settings."""
    WORKLOAD = "workload"
    """By nothing: it follows from the workload that the pod belongs to, or from what pods of one owner say."""
    GPUS = "gpus"
    """By nothing: the pods of one GPU group outside any gang, which are planned together without a minimum."""

    __hash__ = object.__hash__
    """Members are single objects; Enum's own hash, of the name, is slow where gangs are keys."""


class GangRef(msgspec.Struct, frozen=True):
    """Identity of a gang."""

    namespace: str
    name: str
    source: GangSource = GangSource.GROUP

    @staticmethod
    def of(key: str, source: GangSource = GangSource.GROUP) -> "GangRef":
        """The gang of a `namespace/name`."""
        namespace, _, name = key.partition("/")
        return GangRef(namespace, name, source)

    @property
    def key(self) -> str:
        """`namespace/name`, as users write it."""
        return f"{self.namespace}/{self.name}"

    @property
    def id(self) -> str:
        """The key, told apart from gangs of the same name that another kind of group makes."""
        return self.key if self.source is GangSource.GROUP else f"{self.key}@{self.source.value}"


def upstream_key(pod: Pod) -> str:
    """`namespace/name` of the PodGroup of scheduling.k8s.io that a pod names; empty for none."""
    group = pod.spec.scheduling_group
    name = group.pod_group_name if group is not None else ""
    return f"{pod.metadata.namespace}/{name}" if name else ""


def gpu_group(pod: Pod) -> GroupKey | None:
    """The GPU group of a pod; a pod with one of the labels only has none."""
    labels = pod.metadata.labels
    name, replica = labels.get(keys.GPU_GROUP_NAME), labels.get(keys.GPU_GROUP_REPLICA)
    if not name or replica is None:
        return None
    return pod.metadata.namespace, name, replica


def gang_ref(pod: Pod, *, volcano: bool = False, upstream: bool = True) -> GangRef | None:
    """The gang a pod names; the first hit wins (gang-network.md 2.1). volcano: one of Volcano's follows (workloads.md
    2), whatever else it names after these. upstream: whether its PodGroup of scheduling.k8s.io counts."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    group = pod.spec.scheduling_group
    if not labels and not annotations and group is None:
        return None
    namespace = pod.metadata.namespace
    name = labels.get(keys.LABEL_POD_GROUP) or labels.get(keys.LABEL_POD_GROUP_X)
    if name:
        return GangRef(namespace, name)
    if upstream and group is not None and group.pod_group_name:
        return GangRef(namespace, group.pod_group_name, GangSource.UPSTREAM)
    if volcano and any(annotations.get(key) for key in keys.VOLCANO_GROUPS):
        return None
    if labels.get(keys.LABEL_GANG_NAME) and keys.LABEL_GANG_MIN in labels:
        return GangRef(namespace, labels[keys.LABEL_GANG_NAME], GangSource.NAMED)
    name = annotations.get(keys.GANG_NAME)
    if name and keys.GANG_MIN in annotations and not too_long(name, NAME_BYTES):
        return GangRef(namespace, name, GangSource.NAMED)
    return None
