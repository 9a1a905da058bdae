# SPDX-License-Identifier: Apache-2.0
"""Derives gangs from labels, annotations and environment variables of pods, if their workload is not read.

There are four sources: labels of a LeaderWorkerSet (`lws`), PET_NNODES of torchrun (`pet`), min-available without a
gang name (`owner`), and pod groups of Kueue (`kueue`). `label_group` finds the source of a pod. `run_by_labels` builds
a `Workload` from the pods, so that gangs are derived from it as from workloads that are read. Sources: workloads.md 2
and 3 (labels).
"""

import re
from collections.abc import Container, Iterable
from functools import partial
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.decoding.annotation_settings import index_of, whole_number
from koordpy.workloads.deployment_rollouts import ROLLED
from koordpy.workloads.kinds.kind_registry import GANG_KINDS
from koordpy.workloads.kinds.leaderworkersets import LEADER, WORKERS
from koordpy.workloads.kinds.leaderworkersets import PREFIX as LWS
from koordpy.workloads.known_workloads import Lineage
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import NO_TEMPLATE, JobPart, PodPosition, Role, StepCondition, Workload
from koordpy.workloads.workload_runs import WorkloadPod, WorkloadRun, by_age

# labels and annotations of Kueue's pod groups
KUEUE = "kueue.x-k8s.io/pod-group-name"
KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_FREE = ("kueue.x-k8s.io/pod-group-fast-admission", "kueue.x-k8s.io/pod-group-serving")
"""Annotations with value "true" on groups without a minimum. The pods of such a group start one by one."""
KUEUE_INDEX = "kueue.x-k8s.io/pod-group-pod-index"
JOB_NAME = "training.kubeflow.org/job-name"
NNODES = "PET_NNODES"
"""Environment variable of torchrun: number of pods (`4`), or minimum and maximum (`2:8`)."""
_RANGE = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,9})", re.ASCII)


def kueue_index(pod: Pod) -> int | None:
    """Returns the rank index in a pod group of Kueue; None if the pod has none."""
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    return index_of(labels.get(KUEUE_INDEX) or labels.get(notes.get(KUEUE_INDEX + "-label", ""), ""))


def _nnodes(pod: Pod) -> tuple[int, int] | None:
    """Returns (least, most) from PET_NNODES of a container; None if no container has a valid value."""
    for container in pod.spec.containers:
        for one in container.env:
            if one.name == NNODES and (match := _RANGE.fullmatch(one.value)):
                return int(match[1] or match[2]), int(match[2])
    return None


def _group(pod: Pod) -> tuple[str, str, str] | None:
    """Returns (source of the gang, name, uid of the owner), which is equal for pods of one gang.

    None if none of the sources `lws`, `pet` and `owner` applies; the caller handles Kueue's pod groups.

    For a LeaderWorkerSet, the revision and the group key replace the uid, because a leader and its workers have
    different owners.
    """
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    owner = pod.metadata.controller
    if LWS + "size" in notes and LWS + "name" in labels:
        group = labels.get(LWS + "group-index", "")
        uid = labels.get(LWS + "template-revision-hash", "") + labels.get(LWS + "group-key", "")
        return "lws", f"{labels[LWS + 'name']}-{group}", uid
    if _nnodes(pod) is not None and (labels.get(JOB_NAME) or owner is not None):
        return "pet", labels.get(JOB_NAME) or (owner.name if owner is not None else ""), owner.uid if owner else ""
    asks = keys.GANG_MIN in notes and keys.GANG_NAME not in notes
    if owner is not None and asks and owner.kind not in NEVER:
        return "owner", owner.name, owner.uid
    return None


NEVER = frozenset({"DaemonSet", "Workflow", "SparkApplication", "RayJob", "Pod"})
"""Kinds with pods that are in no gang by min-available alone (source `owner`; workloads.md 3)."""


def _is_below_a_group(one: WorkloadPod) -> bool:
    """Returns True if a pod belongs to an unknown LeaderWorkerSet.

    That is so if the chain of known owners ends below a LeaderWorkerSet that is not read, or if an owner further down
    is missing, such as the leader pod that owns the workers' StatefulSet.
    """
    owner = one.lineage.missing
    return owner is not None and (owner.kind == "LeaderWorkerSet" or LWS + "name" in one.pod.metadata.labels)


def label_group(one: WorkloadPod, how: str, kinds: Container[str]) -> tuple[str, ...] | None:
    """Returns a key that is equal for all pods of the gang that a pod's labels state; None if they state none.

    The key is (namespace, source, name, uid). how: setting `gangs.auto` of the namespace. kinds: kinds from which gangs
    may be derived (`gangs.kinds`).
    """
    meta, chain = one.pod.metadata, one.lineage.chain if how == "workloads" else ()
    said = (meta.annotations, *(above.head.annotations for above in chain))
    if how == "off" or next((notes[keys.GANG_AUTO] for notes in said if keys.GANG_AUTO in notes), "") == "off":
        return None
    # labels count if no workload of the pod was read, if `how` is not "workloads", or if a LeaderWorkerSet above the
    # pod is unknown; Kueue's pod groups always count
    is_known = bool(one.lineage.workload.roles) and how == "workloads" and not _is_below_a_group(one)
    if not is_known and (found := _group(one.pod)) is not None:
        owner = one.pod.metadata.controller
        kind = "LeaderWorkerSet" if found[0] == "lws" else owner.kind if owner is not None else ""
        if kind not in GANG_KINDS or kind in kinds or kind in ROLLED:
            return (meta.namespace, *found)
    name = meta.labels.get(KUEUE)
    return (meta.namespace, "kueue", name, "") if name else None


def run_by_labels(group: tuple[str, ...], members: Iterable[WorkloadPod], *, young: bool = False) -> WorkloadRun:
    """Returns the pods of one `label_group` as the run of a workload that the labels describe.

    young: True if a pod still waits for its owner, or a leader for its workers: then the gang needs all its roles.
    False: the gang starts without roles that have no pod.
    """
    pods = by_age(members)
    namespace, source, name, uid = group
    pod = pods[0].pod
    notes, owner = pod.metadata.annotations, pod.metadata.controller
    head = Head(owner.api_version if owner else "", owner.kind if owner else "job", namespace, name, uid)
    if source == "lws":
        workload = _leader_workers(head, index_of(notes[LWS + "size"]) or 1, young=young)
    elif source == "pet":
        least, most = _nnodes(pod) or (0, 0)  # minimum and maximum number of pods
        elastic = (NNODES, least) if least < most else None
        workload = _one_role(head, most, said=f"by {NNODES} of job {name}", total_least=elastic)
    elif source == "kueue":
        head, number = Head("", "pod group", namespace, name, ""), whole_number(notes.get(KUEUE_TOTAL, ""))
        free = any(notes.get(key) == "true" for key in KUEUE_FREE)
        workload = _one_role(
            head,
            number or 0,
            counted=number is not None,
            said=f"of pod group {name} (Kueue)",
            origin="kueue",
            totals=() if free else ((f"annotation {KUEUE_TOTAL}", notes.get(KUEUE_TOTAL, "")),),
            total_least=("", 0) if free else None,
        )
    else:
        workload = _one_role(head, 0, counted=False)

    def placed(one: WorkloadPod) -> WorkloadPod:
        position = PodPosition(
            _role_of(one.pod) if source == "lws" else "", group=workload.roles[0].group, run="/".join(group)
        )
        return WorkloadPod(one.key, one.pod, one.bound, one.created, Lineage((workload,), None, workload, position))

    return WorkloadRun.from_pods(list(map(placed, pods)))


def _role_of(pod: Pod) -> str:
    return LEADER if pod.metadata.labels.get(LWS + "worker-index") == "0" else WORKERS


def _one_role(head: Head, number: int, *, origin: str = "labels", **more: Any) -> Workload:
    """Returns a workload with one role. number: number of its pods. more: other fields of `Workload`."""
    part = JobPart(number=number, total=number)
    role = Role(name="", parts=(part,), template=NO_TEMPLATE)
    return Workload(head=head, roles=(role,), by_default=True, origin=origin, **more)


def _leader_workers(head: Head, size: int, *, young: bool) -> Workload:
    """Returns the workload of one group of a LeaderWorkerSet: its leader and its workers.

    Unless `young`, each role counts only once it has a pod.
    """
    name, _, group = head.name.rpartition("-")
    seen = () if young else (StepCondition("", "seen", "its pods seen"),)
    make = partial(Role, template=NO_TEMPLATE, group=group, after=seen, detail=f"size {size}")
    sizes = {LEADER: 1, WORKERS: size - 1}
    roles = tuple(make(name=role, parts=(JobPart(number=number),)) for role, number in sizes.items())
    head = Head("", "LeaderWorkerSet", head.namespace, name, "")
    return Workload(head=head, roles=roles, by_default=True, origin="labels")
