# SPDX-License-Identifier: Apache-2.0
"""Reads jobs of training-operator v1 (PyTorchJob, TFJob and so on), and MPIJobs.

Each replica type, such as Worker, is a role. Sources: workloads.md 4, 5.1, 5.2 and 10.2.
"""

from collections.abc import Callable, Collection
from functools import partial

from koordpy.api.objects import Pod
from koordpy.workloads.rank_indexes import position_by_labels, starts_of, with_first_ranks
from koordpy.workloads.workload_manifest import Head, Source, note_of
from koordpy.workloads.workload_model import (
    Filling,
    JobPart,
    Role,
    Slot,
    StepCondition,
    Template,
    Workload,
)

PREFIX = "training.kubeflow.org/"
TYPES = ("Master", "Chief", "PS", "Worker", "Evaluator")
"""Names of roles in the spec (case is ignored), in the order of roles."""
MPI_TYPES = ("Launcher", "Worker")
"""Names of the roles of an MPIJob, in the order of roles."""
# fields with a minimum over all roles, for messages
MIN_AVAILABLE = "spec.runPolicy.schedulingPolicy.minAvailable"
ELASTIC = "spec.elasticPolicy.minReplicas"


def _slot(head: Head, role: str, works: bool, i: int) -> Slot:
    """Returns the pod to create for index `i` of a role.

    works: True if the launcher of an MPIJob is also its first worker: then it has index 0, and the indexes of the
    workers begin at 1. Otherwise a launcher has no index.
    """
    labels = {PREFIX + "job-name": head.name, PREFIX + "replica-type": role}
    if head.kind == "MPIJob" or role in ("master", "chief"):
        labels[PREFIX + "job-role"] = role if head.kind == "MPIJob" else "master"
    is_launcher = head.kind == "MPIJob" and role == "launcher"
    if works or not is_launcher:
        labels[PREFIX + "replica-index"] = str(i + (works and not is_launcher))
    return Slot(f"{head.name}-launcher" if is_launcher else f"{head.name}-{role}-{i}", labels)


def _role_of(head: Head, roles: Collection[str], pod: Pod) -> str:
    """Returns the role of a pod by its labels, else by its name; empty if it has none."""
    said = (pod.metadata.labels.get(PREFIX + key, "").lower() for key in ("replica-type", "job-role"))
    stem = pod.metadata.name.removeprefix(f"{head.name}-")
    named = (role for role in roles if stem == role or stem.startswith(f"{role}-"))
    return next((role for role in said if role in roles), "") or next(named, "")


def _read(field: str, source: Source, head: Head) -> Workload:
    """Reads a training job. field: name of the field with its replica specs, such as `pytorchReplicaSpecs`."""
    spec, states = source.at("spec"), source.at("status", "replicaStatuses")
    specs, is_mpi = spec.at(field), head.kind == "MPIJob"
    note = note_of(source, "Succeeded", spec.at("runPolicy"))
    types = MPI_TYPES if is_mpi else TYPES
    specs.knows(*types)
    # role -> its name in the spec; training-operator ignores the case of names, MPIJob does not
    given = {name.lower(): name for name in specs.raw if not is_mpi or (name in types and specs.has(name))}
    # once the launcher of an MPIJob has Succeeded, no workers are wanted
    ended = is_mpi and bool(states.at("Launcher").count("succeeded"))
    works = is_mpi and spec.flag("runLauncherAsWorker")  # the launcher is also the first worker
    waits = is_mpi and spec.word("launcherCreationPolicy", "AtStartup", "WaitForWorkersReady") == "WaitForWorkersReady"
    roles: list[Role] = []
    for name in (one.lower() for one in types if one.lower() in given):
        one, launches = specs.at(given[name]), is_mpi and name == "launcher"
        number = one.count("replicas", 0 if is_mpi and not launches else 1)
        part = JobPart(
            number=number,
            slot=partial(_slot, head, name, works),
            filling=Filling.COUNT if launches else Filling.NAME,  # a Job creates the launcher and names its pod
            total=number,
            succeeded=states.at(given[name]).count("succeeded"),
            over=bool(note) or (ended and not launches),
        )
        after = (StepCondition("worker", "Ready", "workers Ready"),) if launches and waits else ()
        roles.append(Role(name=name, parts=(part,), template=Template.read(one.at("template")), after=after))
    starts = starts_of(roles)
    firsts = dict.fromkeys(starts, 0) if is_mpi else starts  # an MPIJob's index labels count the workers alone
    last = {
        "launcher": sum(role.number for role in roles)
    }  # rank index of the launcher of an MPIJob, if it has no index label
    role_of, index = partial(_role_of, head, starts), PREFIX + "replica-index"
    policy, elastic = spec.at("runPolicy", "schedulingPolicy"), spec.at("elasticPolicy")
    elastic.knows("maxReplicas")
    least = elastic.maybe("minReplicas") if head.kind == "PyTorchJob" else None
    return Workload(
        head=head,
        roles=with_first_ranks(roles, {**firsts, **last} if is_mpi else firsts),
        position=position_by_labels(firsts, role_of, index, last),
        by_default=True,
        sized_by=field,
        ends_with="launcher" if is_mpi else "",
        children=(("Job", f"{head.name}-launcher"),) if is_mpi else (),
        marks=((PREFIX + "job-name", head.name),),
        totals=((MIN_AVAILABLE, policy.raw["minAvailable"]),) if policy.has("minAvailable") else (),
        total_least=(ELASTIC, least) if least is not None else None,
        note=note,
    )


def training_job(field: str) -> Callable[[Source, Head], Workload]:
    """Returns the reader of a kind of training job. field: name of the field with its replica specs."""
    return partial(_read, field)
