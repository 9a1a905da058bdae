# SPDX-License-Identifier: Apache-2.0
"""Finds the subject of a question by name: a pod, a gang, or a workload of any known kind with all of its pods.

Names are looked up in one snapshot and one namespace. A prefix such as `job/` selects the kind. A name without a prefix
is looked up as a pod, then as a gang, then as a workload.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from koordpy.api.spelling import hint
from koordpy.cache.snapshot import Snapshot
from koordpy.gangs.queue_units import Groups
from koordpy.plan.limits import HINTED_NAMES
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.kinds.kind_registry import WORKLOAD_KINDS

POD, GANG, ANY = "Pod", "PodGroup", ""
KINDS = tuple(dict.fromkeys(one.kind for one in WORKLOAD_KINDS))
SHORT_NAMES = {
    "po": POD,
    "pg": GANG,
    "gang": GANG,
    "lws": "LeaderWorkerSet",
    "sts": "StatefulSet",
    "rs": "ReplicaSet",
    "rc": "ReplicationController",
    "ds": "DaemonSet",
    "deploy": "Deployment",
    "cj": "CronJob",
}
WORDS: Mapping[str, str] = MappingProxyType(
    {
        **{word: kind for kind in (POD, GANG, *KINDS) for word in (kind.lower(), f"{kind.lower()}s")},
        **SHORT_NAMES,
    }
)
"""Prefix of a name, in lower case and without the slash -> kind."""
NAME_LABELS = {
    "Job": ("batch.kubernetes.io/job-name", "job-name"),
    "JobSet": ("jobset.sigs.k8s.io/jobset-name",),
    "TrainJob": ("jobset.sigs.k8s.io/jobset-name",),
    "LeaderWorkerSet": ("leaderworkerset.sigs.k8s.io/name",),
    "RayCluster": ("ray.io/cluster",),
    **dict.fromkeys(
        ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob"), ("training.kubeflow.org/job-name",)
    ),
}
"""Kind -> labels of pods with the workload's name. Controllers set them even on pods of intermediate objects."""


MAKERS_ABOVE = {"ReplicaSet": "Deployment", "Job": "CronJob"}
"""Kind -> kind of its owner. In a cluster, the child's name is the owner's name, a dash and a suffix; offline both have
one name."""
TEMPLATE_HASH = "pod-template-hash"
"""Label of a Deployment's pods with the suffix of their ReplicaSet's name."""


class UnknownSubjectError(Exception):
    """There is no such pod, gang or workload; the message is one line."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A pod, gang or workload that was found by name."""

    kind: str
    """Pod, PodGroup (a gang), or the kind of a workload."""
    key: str
    """`namespace/name`."""
    pods: tuple[str, ...]
    """Keys of its pods."""
    gang: GangRef | None = None
    """The gang; None for a pod, and for a workload that is not exactly one gang."""


def parse(text: str, namespace: str) -> tuple[str, str]:
    """Parses `NAME`, `KIND/NAME`, `NAMESPACE/NAME` or `KIND/NAMESPACE/NAME` into (kind or ANY, `namespace/name`)."""
    first, slash, rest = text.partition("/")
    kind = WORDS.get(first.lower(), ANY) if slash else ANY
    name = rest if kind else text
    return kind, name if "/" in name else f"{namespace}/{name}"


Makers = Mapping[tuple[str, str], Sequence[PodInfo]]
"""(kind, name) of a workload in one namespace -> its pods, including pods of its children."""


def makers_of(pods: Iterable[PodInfo], snapshot: Snapshot) -> Makers:
    """Returns the workloads that own these pods of one namespace. O(pods)."""
    out: dict[tuple[str, str], list[PodInfo]] = {}
    for pod in pods:
        for maker in dict.fromkeys(_makers(pod, snapshot)):
            out.setdefault(maker, []).append(pod)
    return out


def find(snapshot: Snapshot, groups: Groups, kind: str, key: str, makers: Makers | None = None) -> Subject:
    """Returns the subject with this kind and name. For ANY, the first kind with the name is taken.

    makers: workloads of the namespace; None to compute them. Raises UnknownSubjectError.
    """
    if kind in (POD, ANY) and key in snapshot.pods:
        return Subject(POD, key, (key,))
    if kind in (GANG, ANY) and (gang := groups.find(key)) is not None:
        return Subject(GANG, key, tuple(one.key for one in groups.gang(gang).members), gang)
    namespace, _, name = key.partition("/")
    if makers is None:
        makers = makers_of((pod for pod in snapshot.pods.values() if pod.namespace == namespace), snapshot)
    found = [(each, pods) for each in KINDS if kind in (ANY, each) and (pods := makers.get((each, name)))]
    if found:
        each, pods = max(found, key=lambda one: len(one[1]))
        return Subject(each, key, tuple(pod.key for pod in pods), _only_gang(pods, groups))
    what = {ANY: "pod, gang or workload", GANG: "gang", POD: "pod"}.get(kind, kind)
    known = sorted(_names(makers, groups, kind, namespace))
    near = hint(key, known) if len(known) <= HINTED_NAMES else ""
    raise UnknownSubjectError(f"no pending or running {what} named {key}{near}")


def _makers(pod: PodInfo, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yields (kind, name) of each workload that owns a pod, directly or through other workloads."""
    meta = pod.pod.metadata
    derived = snapshot.workload_gangs.get(pod.gang) if pod.gang is not None else None
    if derived is not None and derived.title is not None:
        yield derived.title.kind, derived.title.name
    for kind, labels in NAME_LABELS.items():
        for label in labels:
            if (name := meta.labels.get(label)) is not None:
                yield kind, name
    if (owner := meta.controller) is not None:
        yield owner.kind, owner.name
        if (above := MAKERS_ABOVE.get(owner.kind)) is not None:
            stem, _, suffix = owner.name.rpartition("-")
            has_suffix = suffix == meta.labels.get(TEMPLATE_HASH) if owner.kind == "ReplicaSet" else suffix.isdigit()
            yield above, stem if has_suffix else owner.name


def _only_gang(pods: Sequence[PodInfo], groups: Groups) -> GangRef | None:
    """Returns the gang of these pods if they are all members of one gang; else None."""
    refs = {pod.gang for pod in pods}
    gang = next(iter(refs)) if len(refs) == 1 else None
    if gang is None:
        return None
    return gang if {one.key for one in groups.gang(gang).members} <= {pod.key for pod in pods} else None


def _names(makers: Makers, groups: Groups, kind: str, namespace: str) -> set[str]:
    """Returns the names that exist in a namespace, for a hint on spelling."""
    out = {f"{namespace}/{name}" for each, name in makers if kind in (ANY, each)}
    if kind in (POD, ANY):
        out.update(pod.key for pods in makers.values() for pod in pods)
        out.update(pod.key for pod in groups.snapshot.pending if pod.namespace == namespace)
    if kind in (GANG, ANY):
        out.update(one.key for one in groups.every() if one.namespace == namespace)
    return out
