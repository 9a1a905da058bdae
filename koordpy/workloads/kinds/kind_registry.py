# SPDX-License-Identifier: Apache-2.0
"""Registry of the kinds of workloads: the kinds that koordpy knows, those that it watches, and the reader of each kind.

A new kind needs a reader in this folder and one entry in `WORKLOAD_KINDS`. Source: workloads.md 4 and 10.1.
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
"""Function from (manifest, identity of the object) to a workload."""


class Child(NamedTuple):
    """A workload that another object creates, such as the Job of a CronJob.

    The controller of the child creates the pods. Offline, the child gets the name of the object that creates it.
    """

    api_version: str
    kind: str
    spec: tuple[str, ...]
    """Path of the child's spec in the creating object; for a TrainJob, in its TrainingRuntime."""
    meta: tuple[str, ...] = ("metadata",)
    """Path of the child's labels and annotations in the creating object."""


class WorkloadKind(NamedTuple):
    """A kind of workload: its reader, API versions and child object."""

    group: str
    kind: str
    read: Reader | None
    """Reader of a manifest; None for a kind that only creates another workload."""
    versions: tuple[str, ...] = ()
    """API versions that are watched, the newest first; empty if the kind is read offline only."""
    below: tuple[str, ...] = ()
    """Kinds of the objects between the workload and its pods."""
    child: Child | None = None
    """The workload that the object creates; None if its controller creates the pods, or objects of the kinds in
    `below`."""
    controllers: tuple[str, ...] = ()
    """Values of managedBy that name the default controller; empty if the kind has no such field."""
    managed_at: tuple[str, ...] = ("spec",)
    """Path of the mapping that has the field managedBy."""

    @property
    def plural(self) -> str:
        """Name of the kind in paths of the API server."""
        return f"{self.kind.lower()}s"


# children of kinds that only create another workload
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
    """Returns the kind of a training-operator job, or of an MPIJob.

    field: name of the field with its replica specs. controllers: values of managedBy that mean the default controller,
    in addition to training-operator's.
    """
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
"""All kinds, one entry each. Kinds without a reader only create a workload of another kind."""
BY_KEY: Mapping[tuple[str, str], WorkloadKind] = MappingProxyType(
    {(one.group, one.kind): one for one in WORKLOAD_KINDS}
)
"""(API group, kind) -> workload kind."""
_WATCHED = {one.kind: one for one in WORKLOAD_KINDS if one.versions}
"""Kind -> its entry; only kinds that are watched."""
# objects that are read but are not workloads: templates of TrainJobs, and Volcano's PodGroups
RUNTIMES = (("trainer.kubeflow.org", "TrainingRuntime"), ("trainer.kubeflow.org", "ClusterTrainingRuntime"))
VOLCANO_GROUP = ("scheduling.volcano.sh", "PodGroup")
KINDS = frozenset({*BY_KEY, *RUNTIMES, VOLCANO_GROUP})
"""(API group, kind) of all objects that state which pods run together."""
GANG_KINDS = frozenset((*config_values.GANG_KINDS, *ROLLED))
"""Kinds of workloads from which gangs may be derived."""


def kind_of(head: Head) -> WorkloadKind | None:
    """Returns the kind of an object; None if the object is not a workload."""
    return BY_KEY.get((head.api_version.rpartition("/")[0], head.kind))


def watched(kinds: Iterable[str]) -> tuple[WorkloadKind, ...]:
    """Returns the kinds to watch so that gangs can be derived from `kinds`; empty if `kinds` is empty.

    ReplicaSets and ReplicationControllers are then always included, because `gangs.kinds` cannot name them.
    """
    names = list(kinds)
    given = [_WATCHED[kind] for kind in (*names, *sorted(ROLLED)) if kind in _WATCHED] if names else []
    return tuple(_WATCHED[kind] for kind in dict.fromkeys(kind for one in given for kind in (one.kind, *one.below)))


def workload_of(source: Source, head: Head) -> Workload:
    """Reads an object as a workload. If the object only creates another workload, the result has no roles."""
    kind = kind_of(head)
    if kind is None or kind.read is None:
        return Workload(head=head, is_kind=head.kind in GANG_KINDS)
    return kind.read(source, head)


def other_manager(source: Source, head: Head) -> str:
    """Returns the controller that managedBy of an object names, such as kueue.x-k8s.io/multikueue; empty for none.

    That controller creates the pods elsewhere. Also empty if managedBy names the default controller.
    """
    kind = kind_of(head)
    found = source.at(*kind.managed_at).text("managedBy") if kind is not None and kind.controllers else ""
    return "" if kind is None or found in kind.controllers else found
