# SPDX-License-Identifier: Apache-2.0
"""Derives the gangs of one bucket: a set of pods from which gangs are derived together (`pod_buckets.py`).

There is one function for each kind of bucket: pods of one run of a workload, pods with the same labels, and pods with
an owner that the watch has not delivered. `gang_derivation.py` decides which bucket is derived, and when.
"""

from collections.abc import Container, Iterable, Sequence

from koordpy.api.objects import ObjectMeta
from koordpy.config.configuration import Gangs
from koordpy.workloads.labelled_gangs import run_by_labels
from koordpy.workloads.pod_buckets import AWAITED, NO_GANGS, BucketGangs, BucketKey, PodBucket
from koordpy.workloads.workload_gangs import Derivation, WorkloadGang
from koordpy.workloads.workload_runs import WorkloadPod, WorkloadRun, by_age


def awaited_gang(bucket: BucketKey, pods: Iterable[WorkloadPod], *, gone: bool) -> WorkloadGang:
    """Returns a gang that keeps the pods of an unknown owner pending.

    gone: True if the owner was deleted; then the garbage collector deletes the pods. False if the owner may still be
    observed; then the gang lasts until that, or until the wait ends.
    """
    _, namespace, kind, name, uid = bucket
    return WorkloadGang(
        namespace=namespace,
        name=name,
        pods=tuple(sorted(one.key for one in pods)),
        min_member=0,
        origin=f"pods of {kind} {name}",
        meta=ObjectMeta(namespace=namespace, name=name),
        fault="" if gone else f"{kind} {name} is not known yet",
        halted=f"{kind} {name} is deleted" if gone else "",
        run=(AWAITED, uid),
        maker=f"{kind} {name}",
        is_awaited=not gone,
    )


def run_gangs(bucket: PodBucket, config: Gangs, schedulers: Container[str]) -> BucketGangs:
    """Returns the gangs of a run of a workload. The bucket stores the derivation and uses it again while it is valid.

    schedulers: names of this scheduler.
    """
    if bucket.moved:  # sorted only after a change of the members
        bucket.members = {one.key: one for one in by_age(bucket.members.values())}
    # pods that name a gang are no members; a role that has only such pods is left out of the run
    free = [one for one in bucket.members.values() if not one.named]
    if not free:
        return NO_GANGS
    run = WorkloadRun.from_pods(free)
    naming_roles = {one.position.role for one in bucket.members.values() if one.named}
    if bucket.derivation is None or not bucket.derivation.holds(run, naming_roles):
        bucket.derivation = Derivation(run, config, schedulers, naming_roles)
    derivation = bucket.derivation
    gangs = tuple(derivation.gangs(run))
    return BucketGangs(
        gangs,
        order=(run.workload.head.created, run.began),
        is_present=run.is_present,
        kind=derivation.top.kind.lower() if gangs or derivation.is_gang else "",
    )


def gangs_by_labels(
    labels: tuple[str, ...], pods: Sequence[WorkloadPod], config: Gangs, schedulers: Container[str], *, young: bool
) -> BucketGangs:
    """Returns the gangs of pods that share labels.

    labels: key of the bucket without its phase. young: True if a pod still waits until its owner or its workers are
    observed.
    """
    # the kind is used only to make the name unique if another gang has it, too
    owner = pods[0].pod.metadata.controller
    kind = owner.kind.lower() if owner is not None and labels[1] != "kueue" else "kueue"
    run = run_by_labels(labels, pods, young=young)
    gangs = tuple(Derivation(run, config, schedulers, ()).gangs(run))
    return BucketGangs(gangs, order=("", min(pod.created for pod in pods)), kind=kind)
