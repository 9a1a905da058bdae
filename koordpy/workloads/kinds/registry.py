"""Which kinds of workloads are known, and what reads each.

Source: workloads.md 4 and 10.1.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from koordpy.workloads.kinds.jobs import read_job
from koordpy.workloads.kinds.jobsets import read_jobset
from koordpy.workloads.kinds.leaderworkersets import read_leader_worker_set
from koordpy.workloads.kinds.operators import read_mpi_job, training_job
from koordpy.workloads.kinds.ray import read_ray_cluster
from koordpy.workloads.kinds.sets import read_daemon_set, read_pod_gang, read_replica_set, read_stateful_set
from koordpy.workloads.model import Workload
from koordpy.workloads.source import Head, Source, owned_object

Reader = Callable[[Source, Head], Workload]
READERS: Mapping[tuple[str, str], Reader] = MappingProxyType(
    {
        ("batch", "Job"): read_job,
        ("jobset.x-k8s.io", "JobSet"): read_jobset,
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): read_leader_worker_set,
        ("kubeflow.org", "PyTorchJob"): training_job("pytorchReplicaSpecs"),
        ("kubeflow.org", "TFJob"): training_job("tfReplicaSpecs"),
        ("kubeflow.org", "XGBoostJob"): training_job("xgbReplicaSpecs"),
        ("kubeflow.org", "PaddleJob"): training_job("paddleReplicaSpecs"),
        ("kubeflow.org", "JAXJob"): training_job("jaxReplicaSpecs"),
        ("kubeflow.org", "MPIJob"): read_mpi_job,
        ("ray.io", "RayCluster"): read_ray_cluster,
        ("scheduler.grove.io", "PodGang"): read_pod_gang,
        ("apps", "StatefulSet"): read_stateful_set,
        ("apps", "ReplicaSet"): read_replica_set,
        ("", "ReplicationController"): read_replica_set,
        ("apps", "DaemonSet"): read_daemon_set,
    }
)
"""(API group, kind) -> what reads an object of it."""


class Child(NamedTuple):
    """The one object that another makes, which makes the pods."""

    api_version: str
    kind: str
    path: tuple[str, ...]
    """Where its spec stands."""


TRAIN_JOB = ("trainer.kubeflow.org", "TrainJob")
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
        spec = {name: spec[name] for name in ("replicas", "template", "selector") if name in spec}
    if source.at("spec").flag("suspend"):
        spec["suspend"] = True
    meta = inner.at("metadata") if head.kind == "CronJob" else source.at("metadata")
    return owned_object(head, child.api_version, child.kind, meta, spec)
