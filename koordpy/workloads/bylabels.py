"""Gangs of pods whose workload cannot be read: what the pods say themselves, and Kueue's pod groups.

Sources: workloads.md 2 (8) and 3 (labels).
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial

from koordpy.api import keys
from koordpy.api.counted import counted
from koordpy.api.faults import literal
from koordpy.api.objects import Pod
from koordpy.api.settings import whole_number
from koordpy.workloads.gangs import AUTO, Derived
from koordpy.workloads.kinds.leaderworkersets import LEADER, WORKERS
from koordpy.workloads.kinds.leaderworkersets import PREFIX as LWS
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
    if one.place is None or (owner := one.place.lineage.missing) is None:
        return False
    return owner.kind == "LeaderWorkerSet" or LWS + "name" in one.pod.metadata.labels


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
    alive, succeeded = sum(one.alive for one in pods), sum(one.succeeded for one in pods)
    owner, notes = controller(pods[0].pod), pods[0].pod.metadata.annotations
    known = owner is not None and owner.kind in GANG_KINDS
    make = partial(
        Derived,
        namespace=namespace,
        name=name,
        pods=_keys(pods),
        meta=pods[0].pod.metadata,
        run=(how, namespace, name, uid),
        source="labels",
        title=Title(owner.kind, namespace, owner.name, owner.api_version, owner.uid) if owner and known else None,
        maker=f"{owner.kind} {owner.name}" if owner is not None else f"the owner of {pods[0].pod.metadata.name}",
    )
    if how == "lws":
        yield from _leader_workers(make, pods, young=young)
    elif how == "pet":
        least, most = _nnodes(pods[0].pod) or (0, 0)
        by = f", at least {least} by {NNODES}" if least < most else ""
        origin = f"{counted(most, 'member')} by {NNODES} of job {name}{by}"
        yield make(min_member=max(0, min(least, most - succeeded)), origin=origin)
    elif how == "kueue":
        number, fault = _number(notes, KUEUE_TOTAL)
        size = counted(number or len(pods), "member")
        if any(notes.get(key) == "true" for key in KUEUE_FREE):
            number, fault = 0, ""
        yield make(
            min_member=max(0, (number or 0) - succeeded),
            origin=f"{size} of pod group {name} (Kueue)",
            fault=fault,
            source="kueue",
            title=None,
            maker=f"pod group {name}",
        )
    else:
        number, fault = _number(notes, keys.GANG_MIN)
        by = f", at least {number} by {keys.GANG_MIN}" if number is not None and number < alive else ""
        origin = f"{counted(alive, 'member')} of {owner.kind if owner else ''} {name}{by}"
        yield make(min_member=max(0, number or 0), origin=origin, fault=fault)


def _keys(pods: Sequence[WorkloadPod]) -> tuple[str, ...]:
    return tuple(one.key for one in pods if not one.succeeded)


def _number(notes: Mapping[str, str], key: str) -> tuple[int | None, str]:
    """(what an annotation says; why it cannot be read)."""
    text = notes.get(key, "")
    number = whole_number(text)
    return number, f"annotation {key} cannot be read: {literal(text)} is no whole number" if number is None else ""


def _leader_workers(make: "partial[Derived]", pods: Sequence[WorkloadPod], *, young: bool) -> Iterator[Derived]:
    """A group of a LeaderWorkerSet: its leader, and its workers once they exist."""
    namespace, name = make.keywords["namespace"], make.keywords["name"]
    size = index_of(pods[0].pod.metadata.annotations[LWS + "size"]) or 1
    if size == 1:
        return  # nobody to wait for
    title, _, group = name.rpartition("-")
    whose = f"LeaderWorkerSet {title}, group {group}"
    leaders, workers = (
        [one for one in pods if (one.pod.metadata.labels.get(LWS + "worker-index") == "0") is leads]
        for leads in (True, False)
    )
    for role, found, least in ((LEADER, leaders, 1), (WORKERS, workers, size - 1)):
        if found:
            yield make(
                name=f"{name}:{role}",
                pods=_keys(found),
                min_member=size if young and found is leaders and not workers else least,
                origin=f"{counted(least, 'member')} of {whose}, role {role} (size {size})",
                meta=found[0].pod.metadata,
                title=Title("LeaderWorkerSet", namespace, title),
                role=role,
                maker="",
            )
