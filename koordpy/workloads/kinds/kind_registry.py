"""Which kinds of workloads are known, and what reads each.

Source: workloads.md 4 and 10.1.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from koordpy.config import config_values
from koordpy.workloads.deployment_rollouts import ROLLED
from koordpy.workloads.kinds.batch_jobs import read_job
from koordpy.workloads.kinds.jobsets import read_jobset
from koordpy.workloads.kinds.leaderworkersets import read_leader_worker_set
from koordpy.workloads.kinds.ray_clusters import read_ray_cluster
from koordpy.workloads.kinds.replica_sets import read_daemon_set, read_pod_gang, read_replica_set, read_stateful_set
from koordpy.workloads.kinds.training_operators import training_job
from koordpy.workloads.workload_manifest import Head, Source
from koordpy.workloads.workload_model import Workload

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
    controllers: tuple[str, ...] = ()
    """Values of managedBy that mean its own controller; none where it has no such field."""
    managed_at: tuple[str, ...] = ("spec",)
    """Where managedBy stands."""

    @property
    def plural(self) -> str:
        """Its name in paths of the API server."""
        return f"{self.kind.lower()}s"


OF_RUNTIME = Child("jobset.x-k8s.io/v1alpha2", "JobSet", ("spec", "template", "spec"), ("spec", "template", "metadata"))
OF_CRON_JOB = Child("batch/v1", "Job", ("spec", "jobTemplate", "spec"), ("spec", "jobTemplate", "metadata"))
TRAIN_JOB = ("trainer.kubeflow.org", "TrainJob")
KUBERAY = "ray.io/kuberay-operator"


def _ray_cluster(field: str) -> Child:
    return Child("ray.io/v1", "RayCluster", ("spec", field))


def _training_kind(
    kind: str,
    field: str,
    versions: tuple[str, ...],
    below: tuple[str, ...] = (),
    *controllers: str,
) -> WorkloadKind:
    """A job of Kubeflow v1, or an MPIJob. field: where its replicas stand."""
    at = ("spec", "runPolicy")
    own = (*controllers, "kubeflow.org/training-operator")
    return WorkloadKind("kubeflow.org", kind, training_job(field), versions, below, None, own, at)


WORKLOAD_KINDS = (
    WorkloadKind("batch", "Job", read_job, ("v1",), controllers=("kubernetes.io/job-controller",)),
    WorkloadKind(
        *("jobset.x-k8s.io", "JobSet", read_jobset, ("v1alpha2",), ("Job",)),
        controllers=("jobset.sigs.k8s.io/jobset-controller",),
    ),
    WorkloadKind(
        "leaderworkerset.x-k8s.io", "LeaderWorkerSet", read_leader_worker_set, ("v1", "v1beta1"), ("StatefulSet",)
    ),
    _training_kind("PyTorchJob", "pytorchReplicaSpecs", ("v1",)),
    _training_kind("TFJob", "tfReplicaSpecs", ("v1",)),
    _training_kind("XGBoostJob", "xgbReplicaSpecs", ("v1",)),
    _training_kind("PaddleJob", "paddleReplicaSpecs", ("v1",)),
    _training_kind("JAXJob", "jaxReplicaSpecs", ("v1",)),
    _training_kind("MPIJob", "mpiReplicaSpecs", ("v2beta1", "v1"), ("Job",), "kubeflow.org/mpi-operator"),
    WorkloadKind(
        *TRAIN_JOB, None, ("v1alpha1",), ("JobSet", "Job"), OF_RUNTIME, (f"{TRAIN_JOB[0]}/trainjob-controller",)
    ),
    WorkloadKind("ray.io", "RayCluster", read_ray_cluster, ("v1",), controllers=(KUBERAY,)),
    WorkloadKind("scheduler.grove.io", "PodGang", read_pod_gang, ("v1alpha1",)),
    WorkloadKind("apps", "StatefulSet", read_stateful_set, ("v1",)),
    WorkloadKind("apps", "ReplicaSet", read_replica_set, ("v1",)),
    WorkloadKind("", "ReplicationController", read_replica_set, ("v1",)),
    WorkloadKind("apps", "DaemonSet", read_daemon_set),
    WorkloadKind("apps", "Deployment", None, child=Child("apps/v1", "ReplicaSet", ("spec",))),
    WorkloadKind("batch", "CronJob", None, child=OF_CRON_JOB),
    WorkloadKind("ray.io", "RayJob", None, child=_ray_cluster("rayClusterSpec"), controllers=(KUBERAY,)),
    WorkloadKind("ray.io", "RayService", None, child=_ray_cluster("rayClusterConfig"), controllers=(KUBERAY,)),
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
GANG_KINDS = frozenset((*config_values.GANG_KINDS, *ROLLED))
"""Kinds whose pods may be gangs."""


def kind_of(head: Head) -> WorkloadKind | None:
    """The kind of an object; None where it is none of workloads."""
    return BY_KEY.get((head.api_version.rpartition("/")[0], head.kind))


def watched(kinds: Iterable[str]) -> tuple[WorkloadKind, ...]:
    """What is watched where pods of these kinds may be gangs; ReplicaSets always, since none of `gangs.kinds` means
    them. Nothing where no kinds are given."""
    names = list(kinds)
    given = [_WATCHED[kind] for kind in (*names, *sorted(ROLLED)) if kind in _WATCHED] if names else []
    return tuple(_WATCHED[kind] for kind in dict.fromkeys(kind for one in given for kind in (one.kind, *one.below)))


def workload_of(source: Source, head: Head) -> Workload:
    """An object as a workload; of one that makes another, which makes the pods, no more than who it is."""
    kind = kind_of(head)
    if kind is None or kind.read is None:
        return Workload(head=head, is_kind=head.kind in GANG_KINDS)
    return kind.read(source, head)


def other_manager(source: Source, head: Head) -> str:
    """The controller that managedBy of an object names in place of its own, such as kueue.x-k8s.io/multikueue; empty
    where its own one makes its pods."""
    kind = kind_of(head)
    found = source.at(*kind.managed_at).text("managedBy") if kind is not None and kind.controllers else ""
    return "" if kind is None or found in kind.controllers else found
