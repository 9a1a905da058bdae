# SPDX-License-Identifier: Apache-2.0
"""Connects gangs that are derived from workloads (Job, JobSet, PyTorchJob and others) with the pods of the cache.

`DerivedBook` derives the gangs from workload objects and labels of pods. It identifies gangs by `namespace/name`, and
does not know `PodInfo`. `WorkloadBook` adds the identities (`GangRef`) that the cache uses, and says which gang a pod
is in. It also finds PodGroups that operators created and that can never start as a whole. Source: workloads.md 2.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from koordpy.api.label_selectors import selector_matches
from koordpy.api.objects import OwnerReference, Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.cache.outcome_records import RecordBook
from koordpy.config.configuration import Gangs
from koordpy.pods.gang_refs import GangRef, GangSource, gang_ref, rank_index
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.gang_derivation import DerivedBook
from koordpy.workloads.kinds.kind_registry import TRAIN_JOB
from koordpy.workloads.known_workloads import Known
from koordpy.workloads.labelled_gangs import kueue_index
from koordpy.workloads.volcano_gangs import TASK_INDEX, VolcanoGroup, group_of_pod
from koordpy.workloads.workload_gangs import WorkloadGang
from koordpy.workloads.workload_manifest import Head, index_in
from koordpy.workloads.workload_model import Role, StepCondition, Workload
from koordpy.workloads.workload_runs import WorkloadPod

_STEPPED = frozenset((TRAIN_JOB[1], "MPIJob"))
"""Kinds with an operator that creates one PodGroup for all pods of a workload, but creates some of these pods only
after others have started."""


class WorkloadBook(DerivedBook):
    """Derives the gang of each pod from its workload and labels."""

    def __init__(self, config: Gangs, schedulers: Container[str]) -> None:
        """schedulers: names of this scheduler."""
        super().__init__(config, schedulers, selector_matches)
        self.records = RecordBook()
        self.passed_over: dict[GangRef, str] = {}
        """PodGroup that is ignored -> the reason, for users."""
        self.unknown_steps: frozenset[GangRef] = frozenset()
        """PodGroups of TrainJobs with unknown steps; these PodGroups are not ignored."""
        self._refs: dict[str, GangRef] = {}
        """`namespace/name` of a derived gang -> its identity, one object for all its pods."""
        self.derived: Mapping[GangRef, WorkloadGang] = {}
        """All derived gangs, as of the last `regroup`."""

    def know(self, known: Known, groups: Mapping[str, VolcanoGroup]) -> None:
        """Replaces all workloads (`DerivedBook.know`) and their records."""
        super().know(known, groups)
        for workload in known.all():
            self.records.put(workload)

    def put_workload(self, workload: Workload) -> None:
        """Stores the current state of a workload, and its record."""
        super().put_workload(workload)
        self.records.put(workload)

    def drop_workload(self, uid: str) -> None:
        """Removes a workload, and its record."""
        super().drop_workload(uid)
        self.records.drop(uid)

    def put_pod(self, info: PodInfo) -> None:
        """Stores the current state of a pod, with the gang or PodGroup that it names, so that gangs are derived from
        it."""
        pod, named = info.pod, self._named_gang(info)
        upstream = named.key if named is not None and named.source is GangSource.UPSTREAM else ""
        self.put(
            info.key,
            pod,
            bound=info.bound and not info.lost,
            created=info.created,
            free=self._is_free(named),
            upstream=upstream,
            names_gang_too=bool(upstream) and gang_ref(pod, volcano=self.volcano, upstream=False) is not None,
        )

    def _named_gang(self, info: PodInfo) -> GangRef | None:
        """Returns the gang that a pod names by its labels, annotations or scheduling group; None if it names none.

        If a pod has no scheduling group, its derived gang in `info.gang` is returned.
        """
        if info.pod.spec.scheduling_group is None:
            return info.gang
        return gang_ref(info.pod, volcano=self.volcano)

    def volcano_group(self, key: str) -> tuple[VolcanoGroup, list[WorkloadPod]] | None:
        """Returns a PodGroup of Volcano by `namespace/name`, and the pods that name it; None if it does not exist."""
        group = self.groups.get(key)
        return (group, list(self.of_group(key).values())) if group is not None else None

    def top_of(self, key: str) -> Head | None:
        """Returns the topmost workload of a pod by `namespace/name`; None if the pod or its workloads are unknown."""
        known = self._pods.get(key)
        return known.lineage.top if known is not None and known.lineage.chain else None

    def queue_of(self, pod: Pod) -> str:
        """Returns the name of the quota in a pod's PodGroup of Volcano; empty for none."""
        name = group_of_pod(pod) if self.volcano else ""
        group = self.groups.get(f"{pod.metadata.namespace}/{name}") if name else None
        return group.queue if group is not None else ""

    def regroup(self, named: Iterable[GangRef], now: float) -> set[str]:
        """Derives the gangs of all changed workloads again. Returns the keys of pods that may have another gang now.

        named: gangs that pods name, so that no derived gang gets the same name. now: seconds since the epoch.
        """
        known = self.gangs
        by_default = {GangRef.from_key(key, GangSource.UPSTREAM) for key in self.made}
        pods = self.update([ref.key for ref in named if ref not in self.passed_over and ref not in by_default], now)
        if self.gangs is not known:
            follows = GangSource.WORKLOAD
            self._refs = {key: self._refs.get(key) or GangRef.from_key(key, follows) for key in self.gangs}
            self.derived = {self._refs[key]: gang for key, gang in self.gangs.items()}
        elif self.fresh:
            self.derived = {**self.derived, **{self._refs[key]: self.gangs[key] for key in self.fresh}}
        self.fresh.clear()
        return pods

    def take_altered(self) -> list[GangRef]:
        """Returns the gangs that changed in more than their pods since the last call, such as in minMember."""
        found, self.altered = self.altered, set()
        return [self._refs[key] for key in found if key in self._refs]

    def pass_over(self, groups: Mapping[str, PodGroup]) -> set[GangRef]:
        """Finds PodGroups that the operator of a TrainJob or MPIJob created and that can never reach their minMember.

        Their minMember counts all pods, but the operator creates some of these pods only after others have started.
        Such a PodGroup is ignored, and its pods get derived gangs instead. groups: PodGroups of coscheduling by
        `namespace/name`; PodGroups of Volcano are known already. Returns the PodGroups that are newly ignored, or no
        longer ignored.
        """
        # 1. PodGroups of coscheduling
        found, unknown = {}, set()
        for group in groups.values():
            meta, ref = group.metadata, GangRef(group.metadata.namespace, group.metadata.name)
            owner = meta.controller
            if owner is None or owner.kind not in _STEPPED:
                continue
            steps = self._steps_of(owner, meta.namespace)
            if not steps and owner.kind == TRAIN_JOB[1]:
                unknown.add(ref)
            if why := _never_met(group.spec.min_member, steps, owner):
                found[ref] = why
        # 2. PodGroups of Volcano
        unused = {}
        for key, one in self.groups.items():
            owner = one.head.owner
            if owner is None or owner.kind not in _STEPPED:
                continue
            if why := _never_met(one.min_member, self._steps_of(owner, one.head.namespace), owner):
                unused[key] = why
        self.leave_unused(unused)
        self.unknown_steps = frozenset(unknown)
        changed = found.keys() ^ self.passed_over.keys()
        self.passed_over = found
        return changed

    def _steps_of(self, owner: OwnerReference, namespace: str) -> list["_StepPods"]:
        """Returns the steps of the workload that controls a PodGroup; empty if unknown."""
        known = self.known.find(owner, namespace)
        uid = owner.uid if known is None else known.head.uid
        below = map(self.known.get, (uid, *self.known.below(uid)))
        return next((_steps(one) for one in below if one is not None and one.roles), [])

    def _is_free(self, gang: GangRef | None) -> bool:
        return gang is None or gang.source is GangSource.WORKLOAD or gang in self.passed_over

    def filed(self, info: PodInfo) -> tuple[GangRef | None, int | None, str]:
        """Returns (gang, rank index, PodGroup) of a known pod; None, None and an empty string for values that the pod
        lacks.

        The PodGroup is set if the pod's controller created it by default, and the pod is in another gang.
        """
        # A gang that the pod names has precedence over a derived gang, unless its PodGroup is ignored or created by
        # default.
        known, named, made = self._pods[info.key], self._named_gang(info), ""
        gang = self._refs.get(known.gang) if self._is_free(named) else named
        if known.passes:
            named_gang = gang_ref(info.pod, volcano=self.volcano, upstream=False)
            gang = named_gang or self._refs.get(known.gang) or named
            made = known.upstream if gang is not named else ""
        if gang is None:
            return None, rank_index(info.pod) if info.group is not None else None, ""
        index = known.position.index
        if index is None:
            index = kueue_index(info.pod)
        return gang, rank_index(info.pod, index_in(info.pod.metadata, TASK_INDEX) if index is None else index), made


@dataclass(frozen=True, slots=True)
class _StepPods:
    """A step of a workload: the roles with pods at the same time."""

    size: int
    """Number of pods of all roles of the step."""
    first: int
    """Number of pods that are created before any pod of the step is bound."""
    later: StepCondition | None
    """Condition after which the remaining pods are created, of the first role that has one; None if there is none."""
    role: str
    """Role that waits for the condition `later`; empty for none."""


def _steps(workload: Workload) -> list[_StepPods]:
    """Returns the steps of a workload in order.

    If a role waits until another role is Complete, it is in a later step, because the pods of the other role have ended
    by then. If it waits for another state, such as Ready, it is in the same step, but its pods are created later.
    """
    # levels: role -> its step, the largest number of Complete conditions on a path to it; below: step -> its roles
    levels: dict[str, int] = {}
    members: dict[int, list[Role]] = {}
    for role in workload.roles:
        before = (levels.get(one.role, 0) + (one.state == "Complete") for one in role.after)
        level = levels[role.name] = max(before, default=0)
        members.setdefault(level, []).append(role)
    steps = []
    for level, roles in sorted(members.items()):
        # roles of the step that wait for another role of the same step
        held = {
            role.name: one
            for role in roles
            for one in role.after
            if one.state != "Complete" and levels.get(one.role) == level
        }
        first = sum(role.number for role in roles if role.name not in held)
        name, condition = next(iter(held.items()), ("", None))
        steps.append(_StepPods(sum(role.number for role in roles), first, condition, name))
    return steps


def _never_met(least: int, steps: list[_StepPods], owner: OwnerReference) -> str:
    """Returns why a PodGroup over all steps of a workload can never reach its minMember; empty if it can.

    least: the minMember. steps: steps of the workload; empty if unknown, and then the result is empty. owner: the
    controller of the PodGroup. If the minMember of an MPIJob is above the number of pods of any step, the user has set
    it, and the PodGroup remains in use.
    """
    most, owner_text = max((step.size for step in steps), default=least), f"{owner.kind} {owner.name}"
    never = f"minMember {least} can never"
    if least > most:
        if owner.kind != TRAIN_JOB[1]:
            return ""
        sizes = [step.size for step in steps]
        listed = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
        return f"{never} exist at once, {owner_text} has steps of {listed}: each step is its own gang"
    late = next((step for step in steps if step.later is not None), None)
    if late is None or late.later is None or least <= max(step.first for step in steps):
        return ""
    text = f"{owner_text} creates role {late.role} when {late.later.text}"
    return f"{never} start together, {text}: each role is its own gang"
