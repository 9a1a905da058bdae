"""Job.

Sources: workloads.md 4, 5.1, 10.1 and 10.2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from koordpy.api.keys import JOB_COMPLETION_INDEX as COMPLETION_INDEX
from koordpy.api.keys import MAX_RUNTIME
from koordpy.api.objects import Pod
from koordpy.workloads.model import Ends, Filling, JobPart, PodSeat, Role, Slot, Template, Workload
from koordpy.workloads.source import Head, Source, conditions, index_of

JOB_NAME = "batch.kubernetes.io/job-name"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_TOTALS = ("kai.scheduler/batch-min-member", "scheduling.volcano.sh/group-min-member")
PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"


def indexes(text: str) -> frozenset[int]:
    """The numbers of `0,2-4`, as a Job's status lists them."""
    found: set[int] = set()
    for span in text.split(",") if text else ():
        first, _, last = span.partition("-")
        low, high = index_of(first), index_of(last or first)
        if low is not None and high is not None:
            found.update(range(low, min(high, low + 1_000_000) + 1))
    return frozenset(found)


def index_in(meta_labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | None:
    """Completion index of a pod."""
    return index_of(meta_labels.get(COMPLETION_INDEX) or annotations.get(COMPLETION_INDEX) or "")


def is_indexed(spec: Source, default: str = "NonIndexed") -> bool:
    """Whether a Job's pods have indexes."""
    words = ("NonIndexed", "Indexed")
    return spec.word("completionMode", *(words if default == words[0] else words[::-1])) == "Indexed"


def sizes(spec: Source) -> tuple[int, int | None]:
    """(parallelism, completions or None) with the API server's defaults."""
    completions, parallelism = spec.maybe("completions"), spec.maybe("parallelism")
    if completions is None and parallelism is None:
        completions = 1
    return 1 if parallelism is None else parallelism, completions


def note_of(source: Source) -> str:
    """`suspended`, `finished` or nothing."""
    if conditions(source, "Complete", "Failed"):
        return "finished"
    return "suspended" if source.at("spec").flag("suspend") else ""


def job_part(source: Source, name: str, uid: str, *, default: str = "NonIndexed", note: str | None = None) -> JobPart:
    """The pods of a Job. source: the Job, or the template of one, which has no status."""
    spec, status = source.at("spec"), source.at("status")
    parallelism, completions = sizes(spec)
    indexed = is_indexed(spec, default)
    if indexed and completions is None and not spec.has("completions"):
        spec.fault("completions", "required where completionMode is Indexed")
    spec.at("template", "spec").word("restartPolicy", "Never", "OnFailure")
    failed = indexes(status.text("failedIndexes"))
    # an elastic Job that was scaled down has indexes that count no more, and its status says so late
    done = indexes(status.text("completedIndexes")) if indexed and status.has("completedIndexes") else None
    within = {i for i in done if completions is None or i < completions} if done is not None else None
    labels = {JOB_NAME: name, CONTROLLER_UID: uid, "job-name": name, "controller-uid": uid}
    note = note_of(source) if note is None else note

    def slots() -> Iterator[Slot]:
        for i in range(parallelism if completions is None else completions):
            marks = {COMPLETION_INDEX: str(i)} if indexed else {}
            yield Slot(f"{name}-{i}", {**labels, **marks}, marks, index=i if indexed else None)

    return JobPart(
        number=parallelism if completions is None else min(parallelism, completions),
        slots=slots,
        key=name,
        ends=Ends.QUEUE if completions is None else Ends.COUNTED,
        filling=Filling.INDEX if indexed else Filling.COUNT,
        total=max(0, (completions or 0) - len(failed)),
        succeeded=status.count("succeeded") if within is None else len(within),
        indexes=completions if indexed else None,
        closed=failed | indexes(status.text("completedIndexes")),
        over=bool(note),
        independent=not indexed or completions != parallelism,
        note=note,
    )


def deadline(spec: Source) -> Mapping[str, str]:
    """A Job's activeDeadlineSeconds, as the annotation that says how long it runs."""
    seconds = spec.maybe("activeDeadlineSeconds")
    return {MAX_RUNTIME: f"{seconds}s"} if seconds else {}


def read_job(source: Source, head: Head) -> Workload:
    """A Job of its own."""
    spec = source.at("spec")
    part = job_part(source, head.name, head.uid)
    parallelism, completions = sizes(spec)
    indexed = is_indexed(spec)
    detail = f"{'Indexed' if indexed else 'NonIndexed'}, parallelism {parallelism}"
    if completions not in (None, parallelism):
        detail += f", completions {completions}"

    def seat(pod: Pod) -> PodSeat:
        return PodSeat("", index_in(pod.metadata.labels, pod.metadata.annotations), head.name)

    role = Role(
        name="",
        parts=(replace(part, independent=False),),
        template=Template.of(spec.at("template")),
        above=(deadline(spec),),
        detail=detail,
    )
    return Workload(
        head=head,
        roles=(role,),
        seat=seat,
        by_default=indexed and completions == parallelism and parallelism > 1,
        marks=((JOB_NAME, head.name), ("job-name", head.name)),
        total_keys=(JOB_TOTALS[0], JOB_TOTALS[1], PARALLELISM),
        note=part.note,
        source=source,
    )
