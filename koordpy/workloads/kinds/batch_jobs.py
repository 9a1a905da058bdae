# SPDX-License-Identifier: Apache-2.0
"""Reads a Job of the API group `batch`: how many pods its controller keeps alive, and whether the pods are a gang.

Job templates of JobSets are also read here, because they have the same fields. Sources: workloads.md 4, 5.1, 10.1 and
10.2.
"""

from collections.abc import Mapping
from functools import partial

from koordpy.api.keys import JOB_COMPLETION_INDEX, MAX_RUNTIME
from koordpy.api.times import seconds
from koordpy.workloads.pod_indexes import Indexes, indexes
from koordpy.workloads.workload_manifest import Head, Source, index_in, note_of
from koordpy.workloads.workload_model import Filling, JobPart, PodPosition, Role, Slot, Template, Workload

# labels that the Job controller writes on pods
JOB_NAME = "batch.kubernetes.io/job-name"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_TOTALS = ("kai.scheduler/batch-min-member", "scheduling.volcano.sh/group-min-member")
"""Annotations of other schedulers (KAI, Volcano) with the minimum number of pods of a Job."""
PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
"""Annotation of Kueue with the minimum number of pods of a Job."""


def sizes(spec: Source) -> tuple[int, int | None]:
    """Returns (parallelism, completions) with the API server's defaults.

    completions is None for a work queue: after one of its pods has Succeeded, no further pods are created.
    """
    completions, parallelism = spec.maybe("completions"), spec.maybe("parallelism")
    if completions is None and parallelism is None:
        completions = 1
    return 1 if parallelism is None else parallelism, completions


def job_part(source: Source, name: str, uid: str, *, of_jobset: bool = False, note: str | None = None) -> JobPart:
    """Returns the pods of a Job as a part of a role.

    source: the Job, or a Job template, which has no status. name, uid: of the Job, for the labels of its pods.
    of_jobset: True for a Job of a JobSet: it is Indexed by default, and its pods are independent unless completions =
    parallelism. note: replaces the note of the Job's status (`suspended`, `finished` or empty); None: the status
    counts.
    """
    spec, status = source.at("spec"), source.at("status")
    parallelism, completions = sizes(spec)
    modes = ("Indexed", "NonIndexed") if of_jobset else ("NonIndexed", "Indexed")
    indexed = spec.word("completionMode", *modes) == "Indexed"
    if indexed and completions is None and not spec.has("completions"):
        spec.fault("completions", "required where completionMode is Indexed")
    spec.at("template", "spec").word("restartPolicy", "Never", "OnFailure")
    failed, completed = (indexes(status.text(name)) for name in ("failedIndexes", "completedIndexes"))
    span = range(parallelism if completions is None else completions)
    # number of completed indexes that count; None if the Job's status lists no completed indexes.
    # After a Job was scaled down, its status still lists indexes above the span: these do not count.
    within = completed.below(span.stop) if indexed and status.has("completedIndexes") else None
    note = note_of(source, "Complete", spec) if note is None else note
    return JobPart(
        number=parallelism if completions is None else min(parallelism, completions),
        slot=partial(job_slot, name, uid, indexed),
        span=span,
        key=name,
        filling=Filling.INDEX if indexed else Filling.COUNT,
        total=None if completions is None else max(0, completions - len(failed)),
        queue=completions is None,
        succeeded=status.count("succeeded") if within is None else within,
        closed=Indexes([*failed.spans, *completed.spans]) if failed else completed,
        completed=completed if indexed else frozenset(),
        ended_at=seconds(status.text("completionTime")),
        over=bool(note),
        independent=of_jobset and not (indexed and completions == parallelism),
        note=note,
    )


def job_slot(name: str, uid: str, indexed: bool, i: int) -> Slot:
    """Returns the pod to create for a completion index; for a Job that is not Indexed, for a running number.

    name, uid: of the Job. i: index or number.
    """
    labels = {JOB_NAME: name, CONTROLLER_UID: uid, "job-name": name, "controller-uid": uid}
    marks = {JOB_COMPLETION_INDEX: str(i)} if indexed else {}
    return Slot(f"{name}-{i}", {**labels, **marks}, marks)


def deadline(spec: Source) -> Mapping[str, str]:
    """Returns a Job's activeDeadlineSeconds as the annotation for the maximum runtime; empty if the field is not
    set."""
    seconds = spec.maybe("activeDeadlineSeconds")
    return {MAX_RUNTIME: f"{seconds}s"} if seconds else {}


def _scheduling(source: Source) -> tuple[str, int | None, tuple[str, ...], bool]:
    """Returns (policy, minCount, node labels, True if all pods are evicted together) of spec.scheduling (workloads.md
    2).

    policy: `gang`, `basic` or empty. minCount: None if not set. node labels: labels with one value for the nodes of all
    pods.
    """
    policy = source.at("schedulingPolicy")
    word = "gang" if policy.has("gang") else "basic" if policy.has("basic") else ""
    least = policy.at("gang").maybe("minCount") if word == "gang" else None
    topology = source.at("schedulingConstraints").list("topology")
    hard = tuple(dict.fromkeys(filter(None, (one.text("key") for one in topology))))
    return word, least, hard, source.at("disruptionMode").has("all")


def read_job(source: Source, head: Head) -> Workload:
    """Reads a Job as a workload with one role.

    An Indexed Job with completions = parallelism > 1 is a gang by default, because all its pods run at one time, each
    with an index. Other Jobs are gangs only on request.
    """
    spec = source.at("spec")
    part = job_part(source, head.name, head.uid)
    parallelism, completions = sizes(spec)
    indexed = part.filling is Filling.INDEX
    detail = f"{'Indexed' if indexed else 'NonIndexed'}, parallelism {parallelism}"
    if completions not in (None, parallelism):
        detail += f", completions {completions}"
    template = Template.read(spec.at("template"))
    of_jobset = head.owner is not None and head.owner.kind == "JobSet"
    policy, least, hard, one_victim = _scheduling(spec.at("scheduling"))
    return Workload(
        head=head,
        roles=(Role(name="", parts=(part,), template=template, deadline=deadline(spec), detail=detail),),
        position=lambda pod: PodPosition("", index_in(pod.metadata, JOB_COMPLETION_INDEX), head.name),
        by_default=indexed and completions == parallelism and parallelism > 1,
        marks=((JOB_NAME, head.name), ("job-name", head.name)),
        total_keys=(*JOB_TOTALS, PARALLELISM),
        totals=(("spec.scheduling.schedulingPolicy.gang.minCount", least),) if least is not None else (),
        policy=policy,
        hard_keys=hard,
        one_victim=one_victim,
        sized_by="parallelism",
        note=part.note,
        # a Job of a JobSet is read again together with the JobSet
        source=source if of_jobset else None,
        part=job_part(source, head.name, head.uid, of_jobset=True) if of_jobset else None,
    )
