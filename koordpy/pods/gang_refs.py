# SPDX-License-Identifier: Apache-2.0
"""Reads the gang that a pod names in its labels, its annotations or `spec.schedulingGroup`.

A gang is a set of pods that start together. `GangRef` is its identity. Other modules read its settings and members.
"""

import re
from enum import Enum

import msgspec

from koordpy.api import keys
from koordpy.api.natural_order import number
from koordpy.api.objects import Pod
from koordpy.api.reading_limits import (
    NAME_BYTES,
    too_long,
)
from koordpy.decoding.annotation_settings import index_of

_TRAILING = re.compile(r"([0-9]+)$", re.ASCII)
GroupKey = tuple[str, str, str]
"""Namespace, name and replica of a GPU group: pods of one job replica that are planned together (gpu-topology.md 5)."""


class GangSource(Enum):
    """How a pod names its gang (gang-network.md 2.1), in the order of precedence."""

    GROUP = "group"
    """A label names a PodGroup object of either CRD group, which has the settings."""
    UPSTREAM = "upstream"
    """spec.schedulingGroup names a PodGroup of scheduling.k8s.io, which has the settings."""
    NAMED = "named"
    """Labels or annotations of the pod name the gang; the oldest pod decides the settings."""
    WORKLOAD = "workload"
    """The pod names no gang; the gang is derived from the pod's workload, or from pods of the same owner."""
    GPUS = "gpus"
    """The pod names no gang; the pods of one GPU group are planned together, without a minimum."""

    __hash__ = object.__hash__
    """Members are singletons, so identity is a sufficient hash; the hash of Enum is slow in dicts keyed by gangs."""


class GangRef(msgspec.Struct, frozen=True):
    """Identity of a gang: namespace, name, and the way in which pods name it."""

    namespace: str
    name: str
    source: GangSource = GangSource.GROUP

    @staticmethod
    def from_key(key: str, source: GangSource = GangSource.GROUP) -> "GangRef":
        """Returns the gang with a key `namespace/name`."""
        namespace, _, name = key.partition("/")
        return GangRef(namespace, name, source)

    @property
    def key(self) -> str:
        """`namespace/name` of the gang, as users write it."""
        return f"{self.namespace}/{self.name}"

    @property
    def id(self) -> str:
        """Unique id of the gang. (`key` is not unique, because gangs from different sources may have the same name.)"""
        return self.key if self.source is GangSource.GROUP else f"{self.key}@{self.source.value}"


def upstream_key(pod: Pod) -> str:
    """Returns `namespace/name` of the PodGroup of scheduling.k8s.io that a pod names; empty for none."""
    group = pod.spec.scheduling_group
    name = group.pod_group_name if group is not None else ""
    return f"{pod.metadata.namespace}/{name}" if name else ""


def gpu_group(pod: Pod) -> GroupKey | None:
    """Returns the GPU group of a pod; None if one of its two labels is missing."""
    labels = pod.metadata.labels
    name, replica = labels.get(keys.GPU_GROUP_NAME), labels.get(keys.GPU_GROUP_REPLICA)
    if not name or replica is None:
        return None
    return pod.metadata.namespace, name, replica


def gang_ref(pod: Pod, *, volcano: bool = False, upstream: bool = True) -> GangRef | None:
    """Returns the gang that a pod names, by the first source that applies (gang-network.md 2.1); None if it names none.

    volcano: True if other code reads Volcano's annotations (workloads.md 2); then a pod with such annotations and
    without a PodGroup gets None. upstream: False if PodGroups of scheduling.k8s.io are ignored.
    """
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


def rank_index(pod: Pod, by_workload: int | None = None, *, by_name: bool = True) -> int | None:
    """Returns the index of a pod in its gang (gang-network.md 2.5); None if it has none. by_workload: the index that
    its workload gives it; None without one. by_name: True if digits at the end of the pod's name count as index."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    for text in (
        labels.get(keys.RANK_INDEX_LABEL),
        annotations.get(keys.RANK_INDEX_ANNOTATION) or annotations.get(keys.RANK_INDEX_ANNOTATION_LONG),
        str(by_workload) if by_workload is not None else "",
        labels.get(keys.JOB_COMPLETION_INDEX),
        annotations.get(keys.JOB_COMPLETION_INDEX),
    ):
        if text and (index := index_of(text)) is not None:
            return index
    match = _TRAILING.search(pod.metadata.name) if by_name else None
    return number(match[1]) if match else None
