"""Which kinds of workloads are known, and what reads each.

Source: workloads.md 4 and 10.1.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from koordpy.api import config
from koordpy.workloads.kinds.jobs import read_job
from koordpy.workloads.kinds.jobsets import read_jobset
from koordpy.workloads.kinds.leaderworkersets import read_leader_worker_set
from koordpy.workloads.kinds.operators import training_job
from koordpy.workloads.kinds.ray import read_ray_cluster
from koordpy.workloads.kinds.sets import read_daemon_set, read_pod_gang, read_replica_set, read_stateful_set
from koordpy.workloads.model import Workload
from koordpy.workloads.source import Head, Source

Reader = Callable[[Source, Head], Workload]


class Child(NamedTuple):
    """The one object that another makes, under its own name, which makes the pods."""

    api_version: str
    kind: str
    spec: tuple[str, ...]
    """Where its spec stands; of a TrainJob in its runtime (`trainer`)."""
    meta: tuple[str, ...] = ("metadata",)
    """Where its labels and annotations stand."""


class WorkloadKind(NamedTuple):
    """A kind of workload."""

    group: str
    kind: str
    read: Reader | None
    """None of one that makes another."""
    versions: tuple[str, ...] = ()
    """Those that are read of the API server, the newest first; none where it is read offline alone."""
    below: tuple[str, ...] = ()
    """Kinds that stand between an object of it and its pods."""
    child: Child | None = None

    @property
    def plural(self) -> str:
        """Its name in paths of the API server."""
        return f"{self.kind.lower()}s"


OF_RUNTIME = Child("jobset.x-k8s.io/v1alpha2", "JobSet", ("spec", "template", "spec"), ("spec", "template", "metadata"))
OF_CRON_JOB = Child("batch/v1", "Job", ("spec", "jobTemplate", "spec"), ("spec", "jobTemplate", "metadata"))
TRAIN_JOB = ("trainer.kubeflow.org", "TrainJob")
WORKLOAD_KINDS = (
    WorkloadKind("batch", "Job", read_job, ("v1",)),
    WorkloadKind("jobset.x-k8s.io", "JobSet", read_jobset, ("v1alpha2",), ("Job",)),
    WorkloadKind(
        "leaderworkerset.x-k8s.io", "LeaderWorkerSet", read_leader_worker_set, ("v1", "v1beta1"), ("StatefulSet",)
    ),
    WorkloadKind("kubeflow.org", "PyTorchJob", training_job("pytorchReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "TFJob", training_job("tfReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "XGBoostJob", training_job("xgbReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "PaddleJob", training_job("paddleReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "JAXJob", training_job("jaxReplicaSpecs"), ("v1",)),
    WorkloadKind("kubeflow.org", "MPIJob", training_job("mpiReplicaSpecs"), ("v2beta1", "v1"), ("Job",)),
    WorkloadKind(*TRAIN_JOB, None, ("v1alpha1",), ("JobSet", "Job"), OF_RUNTIME),
    WorkloadKind("ray.io", "RayCluster", read_ray_cluster, ("v1",)),
    WorkloadKind("scheduler.grove.io", "PodGang", read_pod_gang, ("v1alpha1",)),
    WorkloadKind("apps", "StatefulSet", read_stateful_set, ("v1",)),
    WorkloadKind("apps", "ReplicaSet", read_replica_set),
    WorkloadKind("", "ReplicationController", read_replica_set),
    WorkloadKind("apps", "DaemonSet", read_daemon_set),
    WorkloadKind("apps", "Deployment", None, child=Child("apps/v1", "ReplicaSet", ("spec",))),
    WorkloadKind("batch", "CronJob", None, child=OF_CRON_JOB),
    WorkloadKind("ray.io", "RayJob", None, child=Child("ray.io/v1", "RayCluster", ("spec", "rayClusterSpec"))),
    WorkloadKind("ray.io", "RayService", None, child=Child("ray.io/v1", "RayCluster", ("spec", "rayClusterConfig"))),
)
"""One line a kind."""
BY_KEY: Mapping[tuple[str, str], WorkloadKind] = MappingProxyType(
    {(one.group, one.kind): one for one in WORKLOAD_KINDS}
)
"""(API group, kind) -> itself."""
_WATCHED = {one.kind: one for one in WORKLOAD_KINDS if one.versions}
RUNTIMES = (("trainer.kubeflow.org", "TrainingRuntime"), ("trainer.kubeflow.org", "ClusterTrainingRuntime"))
VOLCANO_GROUP = ("scheduling.volcano.sh", "PodGroup")
KINDS = frozenset({*BY_KEY, *RUNTIMES, VOLCANO_GROUP})
ASKED_BY_TEMPLATE = ("ReplicaSet", "ReplicationController")
"""Kinds whose pods are a gang by min-available on the pod template, and by nothing else."""
GANG_KINDS = frozenset((*config.GANG_KINDS, *ASKED_BY_TEMPLATE))
"""Kinds whose pods may be gangs."""


def kind_of(head: Head) -> WorkloadKind | None:
    """The kind of an object; None where it is none of workloads."""
    return BY_KEY.get((head.api_version.rpartition("/")[0], head.kind))


def watched(kinds: Iterable[str]) -> tuple[WorkloadKind, ...]:
    """What is watched where pods of these kinds may be gangs."""
    given = [_WATCHED[kind] for kind in kinds if kind in _WATCHED]
    return tuple(_WATCHED[kind] for kind in dict.fromkeys(kind for one in given for kind in (one.kind, *one.below)))


def workload_of(source: Source, head: Head) -> Workload:
    """An object as a workload; of one that makes another, which makes the pods, no more than who it is."""
    kind = kind_of(head)
    if kind is None or kind.read is None:
        return Workload(head=head, is_kind=head.kind in GANG_KINDS)
    return kind.read(source, head)
