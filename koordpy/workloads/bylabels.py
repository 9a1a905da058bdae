"""Gangs of pods whose workload cannot be read: what the pods say themselves, and Kueue's pod groups.

Sources: workloads.md 2 (8) and 3 (labels).
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence

from koordpy.api import keys
from koordpy.api.counted import counted
from koordpy.api.faults import literal
from koordpy.api.objects import Pod
from koordpy.api.settings import whole_number
from koordpy.workloads.gangs import AUTO, Derived
from koordpy.workloads.kinds.leaderworkersets import PREFIX as LWS
from koordpy.workloads.kinds.leaderworkersets import WORKERS
from koordpy.workloads.kinds.registry import GANG_KINDS
from koordpy.workloads.known import Title, controller
from koordpy.workloads.runs import WorkloadPod
from koordpy.workloads.source import index_of
from koordpy.workloads.unread import ASKED_BY_TEMPLATE

KUEUE = "kueue.x-k8s.io/pod-group-name"
KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_FREE = ("kueue.x-k8s.io/pod-group-fast-admission", "kueue.x-k8s.io/pod-group-serving")
KUEUE_INDEX = "kueue.x-k8s.io/pod-group-pod-index"
JOB_NAME = "training.kubeflow.org/job-name"
NNODES = "PET_NNODES"
_RANGE = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,9})", re.ASCII)


def kueue_index(pod: Pod) -> int | None:
    """Rank index in a pod group of Kueue."""
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    return index_of(labels.get(KUEUE_INDEX) or labels.get(notes.get(KUEUE_INDEX + "-label", ""), ""))


def _nnodes(pod: Pod) -> tuple[int, int] | None:
    """(least, most) of PET_NNODES in a container."""
    for container in pod.spec.containers:
        for one in container.env:
            if one.name == NNODES and (match := _RANGE.fullmatch(one.value)):
                return int(match[1] or match[2]), int(match[2])
    return None


def _group(pod: Pod) -> tuple[str, str, str] | None:
    """(what makes it, name, uid of the owner): equal for pods of one gang."""
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    owner = controller(pod)
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
"""Kinds whose pods are in no gang but by its name (workloads.md 3)."""


def _is_below_a_group(one: WorkloadPod) -> bool:
    """Whether all that is known of a pod is the StatefulSet of a LeaderWorkerSet, or that of workers whose leader is
    gone."""
    if one.place is None or (owner := one.place.chain[-1].head.owner) is None:
        return False
    return owner.kind == "LeaderWorkerSet" or (owner.kind == "Pod" and LWS + "name" in one.pod.metadata.labels)


def label_group(one: WorkloadPod, how: str, kinds: Container[str]) -> tuple[str, ...] | None:
    """Equal for pods of one gang; None for those of none. how: how gangs are found in its namespace; kinds: those
    whose pods may be gangs."""
    meta = one.pod.metadata
    if how == "off" or meta.annotations.get(AUTO) == "off":
        return None
    is_known = one.place is not None and how == "workloads" and not _is_below_a_group(one)
    if not is_known and (found := _group(one.pod)) is not None:
        owner = controller(one.pod)
        kind = "LeaderWorkerSet" if found[0] == "lws" else owner.kind if owner is not None else ""
        if kind not in GANG_KINDS or kind in kinds or kind in ASKED_BY_TEMPLATE:
            return (meta.namespace, *found)
    name = meta.labels.get(KUEUE)
    return (meta.namespace, "kueue", name, "") if name else None


def by_labels(group: tuple[str, ...], members: Iterable[WorkloadPod], *, young: bool = False) -> Iterator[Derived]:
    """The gangs of the pods of one `label_group`. young: whether a leader's workers are still to be seen."""
    namespace, how, name, uid = group
    pods = sorted(members, key=lambda one: (one.created, one.pod.metadata.name))
    if how == "lws":
        yield from _leader_workers(namespace, name, uid, pods, young=young)
    elif how == "kueue":
        yield _kueue(namespace, name, pods)
    else:
        yield (_elastic if how == "pet" else _owned)(namespace, name, uid, pods)


def _keys(pods: Sequence[WorkloadPod]) -> tuple[str, ...]:
    return tuple(one.key for one in pods if not one.succeeded)


def _title(pods: Sequence[WorkloadPod]) -> Title | None:
    """The workload that is named, where its kind may be a gang's."""
    owner = controller(pods[0].pod)
    if owner is None or not (owner.kind in GANG_KINDS or owner.kind in ASKED_BY_TEMPLATE):
        return None
    return Title(owner.kind, pods[0].pod.metadata.namespace, owner.name, owner.api_version, owner.uid)


def _maker(pods: Sequence[WorkloadPod]) -> str:
    owner = controller(pods[0].pod)
    return f"{owner.kind} {owner.name}" if owner is not None else f"the owner of {pods[0].pod.metadata.name}"


def _elastic(namespace: str, name: str, uid: str, pods: Sequence[WorkloadPod]) -> Derived:
    least, most = _nnodes(pods[0].pod) or (0, 0)
    by = f", at least {least} by {NNODES}" if least < most else ""
    return Derived(
        namespace=namespace,
        name=name,
        pods=_keys(pods),
        min_member=max(0, min(least, most - sum(one.succeeded for one in pods))),
        origin=f"{counted(most, 'member')} by {NNODES} of job {name}{by}",
        meta=pods[0].pod.metadata,
        run=("pet", namespace, name, uid),
        source="labels",
        title=_title(pods),
        maker=_maker(pods),
    )


def _owned(namespace: str, name: str, uid: str, pods: Sequence[WorkloadPod]) -> Derived:
    notes = pods[0].pod.metadata.annotations
    owner = controller(pods[0].pod)
    number = whole_number(notes[keys.GANG_MIN])
    fault = ""
    if number is None:
        fault = f"annotation {keys.GANG_MIN} cannot be read: {literal(notes[keys.GANG_MIN])} is no whole number"
    alive = sum(one.alive for one in pods)
    by = f", at least {number} by {keys.GANG_MIN}" if number is not None and number < alive else ""
    return Derived(
        namespace=namespace,
        name=name,
        pods=_keys(pods),
        min_member=max(0, number or 0),
        origin=f"{counted(alive, 'member')} of {owner.kind if owner else ''} {name}{by}",
        meta=pods[0].pod.metadata,
        fault=fault,
        run=("owner", namespace, name, uid),
        source="labels",
        title=_title(pods),
        maker=_maker(pods),
    )


def _leader_workers(
    namespace: str, name: str, uid: str, pods: Sequence[WorkloadPod], *, young: bool
) -> Iterator[Derived]:
    """A group of a LeaderWorkerSet: its leader, and its workers once they exist."""
    size = index_of(pods[0].pod.metadata.annotations[LWS + "size"]) or 1
    if size == 1:
        return  # nobody to wait for
    title, _, group = name.rpartition("-")
    split: dict[str, list[WorkloadPod]] = {"leader": [], WORKERS: []}
    for one in pods:
        split["leader" if one.pod.metadata.labels.get(LWS + "worker-index") == "0" else WORKERS].append(one)
    for role, found in split.items():
        least = 1 if role == "leader" else size - 1
        waits = young and role == "leader" and not split[WORKERS]
        whose = f"LeaderWorkerSet {title}, group {group}, role {role} (size {size})"
        if found:
            yield Derived(
                namespace=namespace,
                name=f"{name}:{role}",
                pods=_keys(found),
                min_member=size if waits else least,
                origin=f"{counted(least, 'member')} of {whose}",
                meta=found[0].pod.metadata,
                run=("lws", namespace, name, uid),
                source="labels",
                title=Title("LeaderWorkerSet", namespace, title),
                role=role,
            )


def _kueue(namespace: str, name: str, pods: Sequence[WorkloadPod]) -> Derived:
    notes = pods[0].pod.metadata.annotations
    text = notes.get(KUEUE_TOTAL, "")
    number, fault = whole_number(text), ""
    if any(notes.get(key) == "true" for key in KUEUE_FREE):
        number = 0
    elif number is None:
        fault = f"annotation {KUEUE_TOTAL} cannot be read: {literal(text)} is no whole number"
    return Derived(
        namespace=namespace,
        name=name,
        pods=_keys(pods),
        min_member=max(0, (number or 0) - sum(one.succeeded for one in pods)),
        origin=f"{counted(whole_number(text) or len(pods), 'member')} of pod group {name} (Kueue)",
        meta=pods[0].pod.metadata,
        fault=fault,
        run=("kueue", namespace, name),
        source="kueue",
        maker=f"pod group {name}",
    )
