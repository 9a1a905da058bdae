"""Which kinds of workloads are known, and what reads each.

Source: workloads.md 4 and 10.1.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from koordpy.workloads.kinds.jobs import read_job
from koordpy.workloads.kinds.jobsets import read_jobset
from koordpy.workloads.kinds.leaderworkersets import read_leader_worker_set
from koordpy.workloads.kinds.operators import training_job
from koordpy.workloads.kinds.ray import read_ray_cluster
from koordpy.workloads.kinds.sets import read_daemon_set, read_pod_gang, read_replica_set, read_stateful_set
from koordpy.workloads.model import Workload
from koordpy.workloads.source import Head, Source, owned_object

Reader = Callable[[Source, Head], Workload]


class WorkloadKind(NamedTuple):
    """A kind of workload."""

    group: str
    kind: str
    read: Reader
    versions: tuple[str, ...] = ()
    """Those that are read of the API server, the newest first; none where it is read offline alone."""

    @property
    def plural(self) -> str:
        """Its name in paths of the API server."""
        return f"{self.kind.lower()}s"


TRAIN_JOB = ("trainer.kubeflow.org", "TrainJob")
WORKLOAD_KINDS = (
    WorkloadKind("batch", "Job", read_job, ("v1",)),
    WorkloadKind("jobset.x-k8s.io", "JobSet", read_jobset, ("v1alpha2",)),
    WorkloadKind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", read_leader_worker_set, ("v1", "v1beta1")),
    WorkloadKind("kubeflow.org", "PyTorchJob", training_job("pytorchReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "TFJob", training_job("tfReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "XGBoostJob", training_job("xgbReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "PaddleJob", training_job("paddleReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "JAXJob", training_job("jaxReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "MPIJob", training_job("mpiReplicaSpecs"), ("v2beta1", "v1")),
    WorkloadKind("ray.io", "RayCluster", read_ray_cluster, ("v1",)),
    WorkloadKind("scheduler.grove.io", "PodGang", read_pod_gang, ("v1alpha1",)),
    WorkloadKind("apps", "StatefulSet", read_stateful_set, ("v1",)),
    WorkloadKind("apps", "ReplicaSet", read_replica_set),
    WorkloadKind("", "ReplicationController", read_replica_set),
    WorkloadKind("apps", "DaemonSet", read_daemon_set),
)
"""One line a kind."""
READERS: Mapping[tuple[str, str], Reader] = MappingProxyType(
    {(one.group, one.kind): one.read for one in WORKLOAD_KINDS}
)
"""(API group, kind) -> what reads an object of it."""
_TRAIN_JOBS = WorkloadKind(*TRAIN_JOB, lambda _, head: Workload(head=head), ("v1alpha1",))
_WATCHED = {one.kind: one for one in (*WORKLOAD_KINDS, _TRAIN_JOBS) if one.versions}
_BETWEEN = MappingProxyType(
    {
        "JobSet": ("Job",),
        "TrainJob": ("JobSet", "Job"),
        "MPIJob": ("Job",),
        "LeaderWorkerSet": ("StatefulSet",),
    }
)
"""Kind -> those that stand between an object of it and its pods."""


def watched(kinds: Iterable[str]) -> tuple[WorkloadKind, ...]:
    """What is watched where pods of these kinds may be gangs."""
    found = dict.fromkeys(one for kind in kinds for one in (kind, *_BETWEEN.get(kind, ())))
    return tuple(_WATCHED[kind] for kind in found if kind in _WATCHED)


def workload_of(source: Source, head: Head) -> Workload:
    """An object as a workload; of one that makes another, which makes the pods, no more than who it is."""
    read = READERS.get((head.api_version.rpartition("/")[0], head.kind))
    return read(source, head) if read is not None else Workload(head=head, is_kind=head.kind == TRAIN_JOB[1])


class Child(NamedTuple):
    """The one object that another makes, which makes the pods."""

    api_version: str
    kind: str
    path: tuple[str, ...]
    """Where its spec stands."""


CHILDREN: Mapping[tuple[str, str], Child] = MappingProxyType(
    {
        ("apps", "Deployment"): Child("apps/v1", "ReplicaSet", ("spec",)),
        ("batch", "CronJob"): Child("batch/v1", "Job", ("spec", "jobTemplate", "spec")),
        ("ray.io", "RayJob"): Child("ray.io/v1", "RayCluster", ("spec", "rayClusterSpec")),
        ("ray.io", "RayService"): Child("ray.io/v1", "RayCluster", ("spec", "rayClusterConfig")),
        TRAIN_JOB: Child("jobset.x-k8s.io/v1alpha2", "JobSet", ()),
    }
)
"""(API group, kind) -> what an object of it makes, under its own name."""
RUNTIMES = (("trainer.kubeflow.org", "TrainingRuntime"), ("trainer.kubeflow.org", "ClusterTrainingRuntime"))
VOLCANO_GROUP = ("scheduling.volcano.sh", "PodGroup")
KINDS = frozenset({*READERS, *CHILDREN, *RUNTIMES, VOLCANO_GROUP})
GANG_KINDS = frozenset({kind for _, kind in READERS} - {"DaemonSet"} | {TRAIN_JOB[1]})
"""Kinds whose pods may be gangs (section 4 of the page)."""


def child_of(group: str, source: Source, head: Head) -> dict[str, Any]:
    """What an object of CHILDREN makes; of a TrainJob see `trainer`."""
    child = CHILDREN[group, head.kind]
    inner = source.at(*child.path[:-1])
    spec = dict(source.at(*child.path).raw)
    if head.kind == "Deployment":
        source.at("spec").knows("replicas", "template", "selector")
        spec = {name: spec[name] for name in ("replicas", "template", "selector") if name in spec}
    if source.at("spec").flag("suspend"):
        spec["suspend"] = True
    meta = inner.at("metadata") if head.kind == "CronJob" else source.at("metadata")
    return owned_object(head, child.api_version, child.kind, meta, spec)
