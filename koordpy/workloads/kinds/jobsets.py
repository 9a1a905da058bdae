# SPDX-License-Identifier: Apache-2.0
"""Reads a JobSet, which creates Jobs, which create pods. Each replicatedJob is a role, and each of its Jobs a part.

A JobSet is read together with its existing Jobs, because their status says which pods have Succeeded. dependsOn (the
order of roles) and exclusive topology are also read. With exclusive topology, each Job has a domain alone: the
controller creates the first pod of a Job, and the other pods only after it is placed. So such a role is split into
leaders (the first pods) and followers.

Sources: workloads.md 4, 5, 6 and 10.2.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha1
from typing import Any

from msgspec.structs import replace as changed

from koordpy.api.field_faults import UnreadableError, literal
from koordpy.api.keys import JOB_COMPLETION_INDEX
from koordpy.api.objects import Pod
from koordpy.api.uids import made_up_uid
from koordpy.decoding.annotation_settings import index_of
from koordpy.workloads.kinds.batch_jobs import JOB_NAME, JOB_TOTALS, deadline, job_part, job_slot, sizes
from koordpy.workloads.workload_manifest import Head, ReadFields, Source, can_make, controlling, index_in, note_of
from koordpy.workloads.workload_model import (
    Filling,
    JobPart,
    PodPosition,
    Role,
    Slot,
    SlotClaim,
    StepCondition,
    Template,
    Workload,
    claim_templates,
)

JOBSET = "JobSet"
PREFIX = "jobset.sigs.k8s.io/"
"""Prefix of the labels and annotations that the JobSet controller writes."""
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""Annotation with the key of a node label: each Job has a domain of this label alone."""
NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
"""Annotation: an administrator has labelled the nodes for the Jobs, so that no affinity terms are needed."""
LEADERS, FOLLOWERS = "-leaders", "-followers"
"""Suffixes of the two roles of a split replicatedJob: pods with index 0, and the other pods."""
JobStates = Mapping[tuple[str, str], Workload]
"""(namespace, name) of an existing Job -> the Job as a workload."""


class _Listed:
    """Properties of the whole JobSet, computed once, because there may be thousands of replicatedJobs.

    `total` and `of_group` count the Jobs of the JobSet and of each group of Jobs. `before`, `group_before` and
    `replicas` are about the replicatedJobs that have been read so far, in order.
    """

    def __init__(self, source: Source, head: Head) -> None:
        self.jobs = source.at("spec").list("replicatedJobs")
        self.claims = tuple(_shared_claims(source.at("spec"), head))
        self.status: dict[str, Source] = {}
        for one in source.at("status").list("replicatedJobsStatus"):
            self.status.setdefault(one.text("name"), one)
        self.restarts = str(source.at("status").count("restarts"))
        self.total, self.of_group = 0, Counter[str]()
        for one in self.jobs:
            self.total += one.count("replicas", 1)
            self.of_group[one.text("groupName", "default")] += one.count("replicas", 1)
        self.before, self.group_before = 0, Counter[str]()
        """Number of Jobs of the replicatedJobs before the present one: of all groups, and by group."""
        self.replicas: dict[str, int] = {}
        """Name of a replicatedJob before the present one -> its replicas."""

    def status_of(self, name: str) -> Source:
        """Returns the status of a replicatedJob; an empty mapping if the JobSet has none."""
        return self.status.get(name) or Source({})


def _shared_claims(spec: Source, head: Head) -> Iterator[SlotClaim]:
    """Yields the claims of volumeClaimPolicies, named `TEMPLATE-JOBSET`. All pods that mount such a claim share it.

    By default a claim is deleted with the JobSet, so it has an ownerReference to the JobSet.
    """
    for policy in spec.list("volumeClaimPolicies"):
        kept = policy.at("retentionPolicy").word("whenDeleted", "Delete", "Retain") == "Retain"
        for one in claim_templates(policy, "templates"):
            name, owners = one.metadata.name, [] if kept else [head.reference]
            template = changed(one, metadata=changed(one.metadata, owner_references=owners))
            yield SlotClaim(name, f"{name}-{head.name}", template)


def _mounts(template: Source) -> set[str]:
    """Returns the names of the volumes that containers of a pod template mount."""
    spec = Source(template.raw).at("spec")
    containers = [*spec.list("containers"), *spec.list("initContainers")]
    return {mount.text("name") for one in containers for mount in one.list("volumeMounts")}


class _ReplicatedJob:
    """One replicatedJob of a JobSet: `replicas` equal Jobs with `each` pods."""

    def __init__(self, source: Source, listed: _Listed, head: Head, note: str, first: int) -> None:
        """listed: state after the replicatedJobs before this one. note: note of the JobSet. first: number of pods of
        the replicatedJobs before this one, which is the rank of this one's first pod.
        """
        self._head, self._note, self.first, self._job = head, note, first, source.at("template")
        self.name, self.replicas = source.text("name"), source.count("replicas", 1)
        over = listed.status_of(self.name)
        self._over = over.count("succeeded") + over.count("failed")  # number of finished Jobs
        group = source.text("groupName", "default")
        self._labels = {
            "jobset-name": head.name,
            "jobset-uid": head.uid,
            "replicatedjob-name": self.name,
            "replicatedjob-replicas": str(self.replicas),
            "global-replicas": str(listed.total),
            "restart-attempt": listed.restarts,
            "group-name": group,
            "group-replicas": str(listed.of_group[group]),
        }
        self._before, self._group_before = listed.before, listed.group_before[group]
        listed.before += self.replicas
        listed.group_before[group] += self.replicas
        parallelism, completions = sizes(self._job.at("spec"))
        self.each = parallelism if completions is None else min(parallelism, completions)  # pods of one Job
        notes = {**head.annotations, **self._job.at("metadata").strings("annotations")}
        # key of the node label of exclusive domains; empty without them, and if an administrator labels the nodes
        # instead
        self._key = notes.get(EXCLUSIVE, "") if NODE_SELECTOR not in notes else ""
        mode = self._job.at("spec").word("completionMode", "Indexed", "NonIndexed")
        mounted = _mounts(self._job.at("spec", "template")) if listed.claims else ()
        self._claims = tuple(one for one in listed.claims if one.volume in mounted)
        # the first pod of each Job is placed alone, before its other pods are created
        self.is_split = bool(self._key) and self.each > 1 and mode == "Indexed"

    def position(self, index: int | None, job: int | None, part: str, run: str) -> PodPosition:
        """Returns the position of a pod. index: completion index; None if unknown. job: number of the Job in this
        replicatedJob; None if unknown. part: name of the Job. run: restart attempt."""
        rank = None if index is None or job is None else self.first + job * self.each + index
        half = (LEADERS if index == 0 else FOLLOWERS) if self.is_split else ""
        return PodPosition(self.name + half, rank, part, run=run)

    def roles(self, after: tuple[StepCondition, ...], jobs: JobStates) -> Iterator[Role]:
        """Yields the role, or its two halves (leaders, followers). after: conditions under which its Jobs are created.
        jobs: existing Jobs."""
        parts = list(self._parts(jobs))
        make = partial(
            Role,
            template=Template.read(self._job.at("spec", "template")),
            above=self._job.at("metadata").strings("annotations"),
            deadline=deadline(self._job.at("spec")),
            detail=f"{self.replicas} Job{'s' if self.replicas != 1 else ''} of {self.each}",
        )
        if not self.is_split:
            yield make(name=self.name, parts=tuple(parts), after=after)
            return
        placed = StepCondition(self.name + LEADERS, "scheduled", "leader scheduled")
        for half, before in ((LEADERS, after), (FOLLOWERS, (*after, placed))):
            halves = tuple(_half(part, leader=half == LEADERS) for part in parts)
            yield make(name=self.name + half, parts=halves, after=before, half_of=self.name)

    def _parts(self, jobs: JobStates) -> Iterator[JobPart]:
        """Yields the part of each Job. For a Job that exists, its manifest and status are used.

        For the other Jobs, the JobSet's status says how many are finished; the first ones are assumed to be finished.
        """
        head, over = self._head, self._over  # number of finished Jobs in the status
        alike = job_part(self._job, "", "", of_jobset=True, note=self._note)
        """Part of the Jobs that do not exist."""
        for j in range(self.replicas):
            name = f"{head.name}-{self.name}-{j}"
            exists = jobs.get((head.namespace, name))
            if exists is not None and exists.part is not None:
                uid, part = exists.head.uid, exists.part
                ended = part.over or bool(self._note)
            else:
                uid, part = made_up_uid("Job", head.uid, name), alike
                ended, over = part.over or over > 0, over - 1
            make = partial(self._slot, j, name, uid, part.filling is Filling.INDEX)
            owner = controlling("batch/v1", "Job", name, uid)
            rank = self.first + j * self.each
            yield replace(part, key=name, over=ended, owner=owner, slot=make, first_rank=rank)

    def _slot(self, j: int, name: str, uid: str, indexed: bool, i: int) -> Slot:
        """Returns the pod to create for an index of a Job. j: number of the Job in this replicatedJob. i: index.

        If an exclusive domain is requested, the pod with index 0 chooses it, and the other pods must follow that pod.
        """
        slot = job_slot(name, uid, indexed, i)
        job_key = sha1(f"{self._head.namespace}/{name}".encode(), usedforsecurity=False).hexdigest()
        own = {
            "job-index": str(j),
            "job-global-index": str(self._before + j),
            "job-key": job_key,
            "job-group-index": str(self._group_before + j),
        }
        marks = {PREFIX + key: value for key, value in {**self._labels, **own}.items()}
        return Slot(
            slot.name,
            {**slot.labels, **marks},
            {**slot.annotations, **marks},
            exclusive_domain=(self._key, PREFIX + "job-key", job_key, True) if self._key and not i else None,
            follows=self._key if i else "",
            claims=self._claims,
        )


def _half(part: JobPart, *, leader: bool) -> JobPart:
    """Returns the first pod of a Job (the leader), or all other pods, as a separate part."""

    def share(number: int, first: int = 1) -> int:
        """Returns the part of a number of pods that belongs to this half; `first` (0 or 1) of them is the leader."""
        return min(first, number) if leader else max(0, number - first)

    return replace(
        part,
        span=part.indexes[:1] if leader else part.indexes[1:],
        number=share(part.number),
        succeeded=share(part.succeeded, int(0 in part.closed)),
        total=None if part.total is None else share(part.total),
    )


def _conditions(source: Source, listed: _Listed, *, in_order: bool) -> Iterator[StepCondition]:
    """Yields the conditions for which a replicatedJob waits: its dependsOn, and the previous replicatedJob if the
    JobSet starts its replicatedJobs in order. listed: state after the replicatedJobs before this one."""
    before = listed.replicas

    def condition(name: str, state: str) -> StepCondition:
        """Returns the condition that an earlier replicatedJob has a state, and whether the status shows it."""
        counts = listed.status_of(name)
        # Jobs that have ended were Ready before, so they count for both states; failed Jobs are never Complete
        fields = ("succeeded",) if state == "Complete" else ("failed", "ready", "succeeded")
        met = sum(counts.count(field) for field in fields) == before[name]
        return StepCondition(name, state, f"role {name} {state}", met)

    for depends in source.list("dependsOn"):
        name, state = depends.text("name"), depends.text("status", "Ready")
        if state not in ("Ready", "Complete"):
            depends.fault("status", f"{literal(state)} is neither Ready nor Complete")
        elif name not in before:
            depends.fault("name", f'no replicatedJob "{name}" before it')
        else:
            yield condition(name, state)
    if in_order and before:
        yield condition(next(reversed(before)), "Ready")


def read_jobset(source: Source, head: Head, jobs: JobStates | None = None) -> Workload:
    """Reads a JobSet. jobs: existing Jobs of it; None if there are none."""
    spec = source.at("spec")
    note = note_of(source, "Completed", spec)
    named: dict[str, _ReplicatedJob] = {}
    roles: list[Role] = []
    number, listed = 0, _Listed(source, head)
    in_order = spec.at("startupPolicy").word("startupPolicyOrder", "AnyOrder", "InOrder") == "InOrder"
    for one in listed.jobs:
        name = one.text("name")
        if name in named:
            one.fault("name", f'"{name}" is given twice')
        read = named[name] = _ReplicatedJob(one, listed, head, note, number)
        after = tuple(_conditions(one, listed, in_order=in_order))
        listed.replicas.pop(name, None)  # the last replicatedJob of a name must be last in the order
        listed.replicas[name] = read.replicas
        number += read.each * read.replicas
        if can_make(spec, "replicatedJobs", number, listed.before, "Jobs"):
            roles += read.roles(after, jobs or {})
    attempt, prefix = listed.restarts, f"{head.name}-"

    def position(pod: Pod) -> PodPosition | None:
        """Returns the position of a pod by labels of the JobSet controller, else by the name of its Job."""
        labels = pod.metadata.labels
        if head.has_uid and labels.get(PREFIX + "jobset-uid", head.uid) != head.uid:
            return None  # a pod of an earlier JobSet with this name
        owner = pod.metadata.controller
        job = labels.get(JOB_NAME) or (owner.name if owner is not None and owner.kind == "Job" else "")
        stem, _, end = job.rpartition("-")
        own = stem.removeprefix(prefix) if stem.startswith(prefix) else ""  # replicatedJob by the name of the Job
        role = named.get(labels.get(PREFIX + "replicatedjob-name") or own)
        if role is None:
            return None
        number = labels.get(PREFIX + "job-index") or end
        run = labels.get(PREFIX + "restart-attempt", attempt)
        part = job or f"{head.name}-{role.name}-{number}"
        return role.position(index_in(pod.metadata, JOB_COMPLETION_INDEX), index_of(number), part, run)

    return Workload(
        head=head,
        source=source,
        roles=tuple(roles),
        position=position,
        by_default=True,
        children=tuple(dict.fromkeys(("Job", part.key) for role in roles for part in role.parts)),
        marks=((PREFIX + "jobset-name", head.name),),
        run=attempt,
        total_keys=JOB_TOTALS[:1],
        sized_by="replicatedJobs",
        note=note,
    )


def jobset_by_jobs(jobs: JobStates) -> Workload | None:
    """Reconstructs a JobSet from the labels and specs of its Jobs, for clusters in which JobSets are not watched.

    Returns None if no Job has the labels, or if the JobSet has too many Jobs or pods. jobs: at least one. The result
    has no role for a replicatedJob without existing Jobs, and no conditions for which a role waits.
    """
    first = next(iter(jobs.values())).head
    roles: dict[str, dict[str, Any]] = {}
    attempt = 0
    sources = [job.source for job in jobs.values() if job.source is not None]
    for job in sources:
        meta = job.at("metadata")
        labels = meta.strings("labels")
        name = labels.get(PREFIX + "replicatedjob-name", "")
        replicas = index_of(labels.get(PREFIX + "replicatedjob-replicas", ""))
        template = {"metadata": meta.raw, "spec": job.at("spec").raw}
        if name:
            roles[name] = {"name": name, "replicas": 1 if replicas is None else replicas, "template": template}
        attempt = max(attempt, index_of(labels.get(PREFIX + "restart-attempt", "")) or 0)
    if not roles or first.owner is None:
        return None
    raw = {"spec": {"replicatedJobs": list(roles.values())}, "status": {"restarts": attempt}}
    makes_pods = any(job.read_fields is not None for job in sources)
    source = Source(raw, read_fields=ReadFields() if makes_pods else None)
    head = replace(first, **{name: getattr(first.owner, name) for name in ("api_version", "kind", "name", "uid")})
    try:
        return replace(read_jobset(source, replace(head, labels={}, annotations={}, owner=None), jobs), source=None)
    except UnreadableError:
        return None
