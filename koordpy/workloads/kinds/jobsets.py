"""JobSet: a role for each replicatedJob, its Jobs' pods, dependsOn, and domains of their own.

Sources: workloads.md 4, 5, 6 and 10.2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha1
from itertools import islice
from typing import Any

from koordpy.api.faults import literal
from koordpy.api.keys import GANG_MIN
from koordpy.api.objects import Pod
from koordpy.workloads.kinds.jobs import JOB_TOTALS, deadline, index_in, is_indexed, job_part, sizes
from koordpy.workloads.model import JobPart, PodSeat, Role, Slot, StepCondition, Template, Workload
from koordpy.workloads.source import ControllingOwner, Head, Source, can_make, conditions, index_of

PREFIX = "jobset.sigs.k8s.io/"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
LEADERS, FOLLOWERS = "-leaders", "-followers"
JobStates = Mapping[tuple[str, str], Source]
"""(namespace, name) -> a Job that exists."""


def _status(source: Source, role: str) -> Source:
    return next(
        (one for one in source.at("status").list("replicatedJobsStatus") if one.text("name") == role), Source({})
    )


def _met(source: Source, role: str, state: str, replicas: int) -> bool:
    counts = _status(source, role)
    if not counts.raw:
        return False
    names = ("succeeded",) if state == "Complete" else ("failed", "ready", "succeeded")
    return sum(counts.count(name) for name in names) == replicas


def _conditions(
    source: Source, jobs: list[Source], i: int, replicas: Mapping[str, int], in_order: bool
) -> Iterator[StepCondition]:
    before = [one.text("name") for one in jobs[:i]]
    for depends in jobs[i].list("dependsOn"):
        name, state = depends.text("name"), depends.text("status", "Ready")
        if state not in ("Ready", "Complete"):
            depends.fault("status", f"{literal(state)} is neither Ready nor Complete")
        elif name not in before:
            depends.fault("name", f'no replicatedJob "{name}" before it')
        else:
            yield StepCondition(name, state, f"role {name} {state}", _met(source, name, state, replicas[name]))
    if in_order and i:
        yield StepCondition(
            before[-1], "Ready", f"role {before[-1]} Ready", _met(source, before[-1], "Ready", replicas[before[-1]])
        )


def _job_key(namespace: str, job: str) -> str:
    return sha1(f"{namespace}/{job}".encode(), usedforsecurity=False).hexdigest()


def _labelled(part: JobPart, labels: Mapping[str, str]) -> JobPart:
    def slots() -> Iterator[Slot]:
        for slot in part.slots():
            yield replace(slot, labels={**slot.labels, **labels}, annotations={**slot.annotations, **labels})

    return replace(part, slots=slots)


def _exclusive(part: JobPart, key: str, job_key: str) -> JobPart:
    """Its first pod seeks a domain of its own, the others follow it."""

    def slots() -> Iterator[Slot]:
        leader = ""
        for slot in part.slots():
            leader = leader or slot.name
            if slot.name == leader:
                yield replace(slot, apart=(key, PREFIX + "job-key", job_key, True))
            else:
                yield replace(slot, follows=key)

    return replace(part, slots=slots)


def _half(part: JobPart, *, leader: bool) -> JobPart:
    """The first pod of a Job, or all others, as a part of its own."""

    def slots() -> Iterator[Slot]:
        among = islice(part.slots(), 1) if leader else part.slots()
        return (slot for slot in among if (slot.index == 0) == leader)

    number = min(1, part.number) if leader else max(0, part.number - 1)
    over = 1 if 0 in part.closed else 0
    succeeded = min(over, part.succeeded) if leader else max(0, part.succeeded - over)
    total = min(1, part.total) if leader else max(0, part.total - 1)
    return replace(part, slots=slots, number=number, succeeded=succeeded, total=total)


def read_jobset(source: Source, head: Head, jobs: JobStates | None = None) -> Workload:
    """A JobSet. jobs: its Jobs that exist."""
    spec = source.at("spec")
    listed = spec.list("replicatedJobs")
    note = "finished" if conditions(source, "Completed", "Failed") else "suspended" if spec.flag("suspend") else ""
    in_order = spec.at("startupPolicy").word("startupPolicyOrder", "AnyOrder", "InOrder") == "InOrder"
    replicas = {one.text("name"): one.count("replicas", 1) for one in listed}
    attempt = str(source.at("status").count("restarts"))
    seen: set[str] = set()
    roles: list[Role] = []
    offsets: dict[str, int] = {}
    each: dict[str, int] = {}
    split: set[str] = set()
    before = jobs_before = 0
    for i, one in enumerate(listed):
        name = one.text("name")
        if name in seen:
            one.fault("name", f'"{name}" is given twice')
        seen.add(name)
        read = _Role(source, head, one, jobs or {}, attempt, note, jobs_before)
        after = tuple(_conditions(source, listed, i, replicas, in_order))
        offsets[name], each[name] = before, read.each
        before += read.each * read.replicas
        jobs_before += read.replicas
        if can_make(spec, "replicatedJobs", before):
            roles += read.roles(after)
        if read.is_split:
            split.add(name)

    def seat(pod: Pod) -> PodSeat | None:
        labels, notes = pod.metadata.labels, pod.metadata.annotations
        if head.has_uid and labels.get(PREFIX + "jobset-uid", head.uid) != head.uid:
            return None  # of an earlier JobSet of the name
        job = labels.get("batch.kubernetes.io/job-name") or next(
            (one.name for one in pod.metadata.owner_references if one.controller and one.kind == "Job"), ""
        )
        role = labels.get(PREFIX + "replicatedjob-name") or next(
            (name for name in replicas if job.rpartition("-")[0] == f"{head.name}-{name}"), ""
        )
        if role not in offsets:
            return None
        index = index_in(labels, notes)
        number = labels.get(PREFIX + "job-index") or job.rpartition("-")[2]
        at = index_of(number)
        rank = None if index is None or at is None else offsets[role] + at * each[role] + index
        shown = role + ((LEADERS if index == 0 else FOLLOWERS) if role in split else "")
        run = labels.get(PREFIX + "restart-attempt", attempt)
        return PodSeat(shown, rank, job or f"{head.name}-{role}-{number}", run=run)

    children = tuple(("Job", part.key) for role in roles for part in role.parts)
    return Workload(
        head=head,
        roles=tuple(roles),
        seat=seat,
        by_default=True,
        children=tuple(dict.fromkeys(children)),
        marks=((PREFIX + "jobset-name", head.name),),
        run=attempt,
        total_keys=JOB_TOTALS[:1],
        always_suffixed=bool(split),
        note=note,
        source=source,
    )


def jobset_by_jobs(owner: ControllingOwner, namespace: str, jobs: Sequence[Source]) -> dict[str, Any]:
    """What is known of a JobSet by the labels and specs of its Jobs, where it cannot be read itself.

    A role of which no Job exists is not there; what a role waited for is not known.
    """
    roles: dict[str, dict[str, Any]] = {}
    attempt = 0
    for job in jobs:
        labels = job.at("metadata").strings("labels")
        name = labels.get(PREFIX + "replicatedjob-name", "")
        replicas = index_of(labels.get(PREFIX + "replicatedjob-replicas", ""))
        template = {"metadata": job.at("metadata").raw, "spec": job.at("spec").raw}
        if name:
            roles[name] = {"name": name, "replicas": 1 if replicas is None else replicas, "template": template}
        attempt = max(attempt, index_of(labels.get(PREFIX + "restart-attempt", "")) or 0)
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "metadata": {"name": owner.name, "namespace": namespace, "uid": owner.uid},
        "spec": {"replicatedJobs": list(roles.values())},
        "status": {"restarts": attempt},
    }


class _Role:
    """One replicatedJob."""

    def __init__(
        self, source: Source, head: Head, one: Source, jobs: JobStates, attempt: str, note: str, jobs_before: int
    ) -> None:
        self._head, self._one, self._attempt, self._before = head, one, attempt, jobs_before
        listed = source.at("spec").list("replicatedJobs")
        self._all_jobs = sum(other.count("replicas", 1) for other in listed)
        self.name, self.replicas = one.text("name"), one.count("replicas", 1)
        self._group = one.text("groupName", "default")
        before = [other.text("name") for other in listed]
        of_group = [other for other in listed if other.text("groupName", "default") == self._group]
        self._group_jobs = sum(other.count("replicas", 1) for other in of_group)
        at = before.index(self.name)
        self._group_before = sum(
            other.count("replicas", 1) for other in listed[:at] if other.text("groupName", "default") == self._group
        )
        self._job = one.at("template")
        spec = self._job.at("spec")
        self.each = min(parallelism for parallelism in [sizes(spec)[0], sizes(spec)[1]] if parallelism is not None)
        notes = {**head.annotations, **self._job.at("metadata").strings("annotations")}
        self._key = notes.get(EXCLUSIVE, "")
        if NODE_SELECTOR in notes:
            self._key = ""
        self.is_split = bool(self._key) and self.each > 1 and is_indexed(spec, "Indexed")
        counts = _status(source, self.name)
        self._over = counts.count("succeeded") + counts.count("failed")
        self._note = note
        self._jobs = jobs

    def _part(self, j: int, over: int) -> tuple[JobPart, int]:
        """(pods of its j-th Job, how many of the Jobs that do not exist are still to be counted as over)."""
        head, name = self._head, f"{self._head.name}-{self.name}-{j}"
        exists = self._jobs.get((head.namespace, name))
        if exists is not None:
            found = job_part(exists, name, exists.at("metadata").text("uid"), default="Indexed")
            found = replace(found, over=found.over or bool(self._note))
        else:
            bare = Source({"spec": self._job.at("spec").raw}, self._job.path, self._job.faults, self._job.asked)
            found = job_part(bare, name, f"{head.uid}/{name}", default="Indexed", note=self._note)
            if over > 0:
                over, found = over - 1, replace(found, over=True)
        job_key = _job_key(head.namespace, name)
        labels = {
            "jobset-name": head.name,
            "jobset-uid": head.uid,
            "replicatedjob-name": self.name,
            "replicatedjob-replicas": str(self.replicas),
            "global-replicas": str(self._all_jobs),
            "restart-attempt": self._attempt,
            "job-index": str(j),
            "job-global-index": str(self._before + j),
            "job-key": job_key,
            "group-name": self._group,
            "group-replicas": str(self._group_jobs),
            "job-group-index": str(self._group_before + j),
        }
        found = _labelled(found, {PREFIX + key: value for key, value in labels.items()})
        if self._key:
            found = _exclusive(found, self._key, job_key)
        return found, over

    def roles(self, after: tuple[StepCondition, ...]) -> Iterator[Role]:
        over = self._over
        parts = []
        for j in range(self.replicas):
            part, over = self._part(j, over)
            parts.append(part)
        template = Template.of(self._job.at("spec", "template"))
        above = self._job.at("metadata").strings("annotations")
        make = partial(
            Role,
            template=template,
            above=({**deadline(self._job.at("spec")), **above},),
            asked=template.annotations.get(GANG_MIN, above.get(GANG_MIN)),
        )
        jobs = f"{self.replicas} Job{'s' if self.replicas != 1 else ''} of"
        if not self.is_split:
            yield make(name=self.name, parts=tuple(parts), after=after, detail=f"{jobs} {self.each}")
            return
        leaders = tuple(_half(part, leader=True) for part in parts)
        others = tuple(_half(part, leader=False) for part in parts)
        make = partial(make, half_of=self.name)
        yield make(name=self.name + LEADERS, parts=leaders, after=after, detail=f"{jobs} {self.each}")
        placed = StepCondition(self.name + LEADERS, "scheduled", "leader scheduled")
        yield make(name=self.name + FOLLOWERS, parts=others, after=(*after, placed), detail=f"{jobs} {self.each}")
