"""Jobs of training-operator v1, and MPIJob.

Sources: workloads.md 4, 5.1, 5.2 and 10.2.
"""

from collections.abc import Callable, Iterator

from koordpy.api.objects import Pod
from koordpy.workloads.model import Ends, Filling, JobPart, PodSeat, Role, Slot, StepCondition, Template, Workload
from koordpy.workloads.source import Head, Source, conditions, index_of

PREFIX = "training.kubeflow.org/"
ORDER = ("master", "chief", "ps", "worker", "evaluator")
TYPES = {"master": "Master", "chief": "Chief", "ps": "PS", "worker": "Worker", "evaluator": "Evaluator"}
MIN_AVAILABLE = "runPolicy.schedulingPolicy.minAvailable"
ELASTIC = "elasticPolicy.minReplicas"


def _replicas(head: Head, source: Source, one: Source, type_name: str, name: str, default: int, over: bool) -> JobPart:
    number = one.count("replicas", default)
    kind = name.lower()
    succeeded = source.at("status", "replicaStatuses", type_name).count("succeeded")

    alone = head.kind == "MPIJob" and kind == "launcher"
    # an MPIJob whose launcher works, too, counts it as the first; else it has no index
    launched = int(source.at("spec").flag("runLauncherAsWorker")) if head.kind == "MPIJob" else None

    def slots() -> Iterator[Slot]:
        for i in range(number):
            labels = {PREFIX + "job-name": head.name, PREFIX + "replica-type": kind, PREFIX + "replica-index": str(i)}
            if launched is not None:
                labels |= {PREFIX + "replica-index": str(i + launched)} if kind == "worker" else {}
                if kind == "launcher" and not launched:
                    del labels[PREFIX + "replica-index"]
            if kind in ("master", "chief"):
                labels[PREFIX + "job-role"] = "master"
            if head.kind == "MPIJob":
                labels[PREFIX + "job-role"] = kind
            yield Slot(f"{head.name}-launcher" if alone else f"{head.name}-{kind}-{i}", labels)

    filling = Filling.COUNT if alone else Filling.NAME  # a launcher is made by a Job, which names it
    return JobPart(
        number=number, slots=slots, key=kind, ends=Ends.DONE, filling=filling, succeeded=succeeded, over=over
    )


def _note(source: Source) -> str:
    if conditions(source, "Succeeded", "Failed"):
        return "finished"
    return "suspended" if source.at("spec", "runPolicy").flag("suspend") else ""


def _workload(source: Source, head: Head, roles: list[Role], note: str, last: str = "") -> Workload:
    offsets: dict[str, int] = {}
    before = 0
    for role in roles:
        offsets[role.name] = before
        before += role.number

    def seat(pod: Pod) -> PodSeat | None:
        labels = pod.metadata.labels
        kind = labels.get(PREFIX + "replica-type", "").lower()
        if kind not in offsets:
            kind = labels.get(PREFIX + "job-role", "").lower()
        if kind not in offsets:
            stem = pod.metadata.name.removeprefix(f"{head.name}-")
            kind = next((name for name in offsets if stem == name or stem.startswith(f"{name}-")), "")
        if not kind:
            return None
        index = index_of(labels.get(PREFIX + "replica-index", ""))
        if kind == last:
            return PodSeat(kind, before if index is None else index, kind)
        return PodSeat(kind, None if index is None else index + (0 if last else offsets[kind]), kind)

    spec = source.at("spec")
    policy = spec.at("runPolicy", "schedulingPolicy")
    totals = ((MIN_AVAILABLE, policy.raw["minAvailable"]),) if policy.has("minAvailable") else ()
    spec.at("elasticPolicy").knows("maxReplicas")
    elastic = spec.at("elasticPolicy").maybe("minReplicas") if head.kind == "PyTorchJob" else None
    return Workload(
        head=head,
        roles=tuple(roles),
        seat=seat,
        by_default=True,
        ends_with=last,
        children=(("Job", f"{head.name}-launcher"),) if last else (),
        marks=((PREFIX + "job-name", head.name),),
        totals=totals,
        total_least=(ELASTIC, elastic) if elastic is not None else None,
        note=note,
        source=source,
    )


def training_job(field: str) -> Callable[[Source, Head], Workload]:
    """Reads a job of training-operator v1. field: where its replicas stand."""

    def read(source: Source, head: Head) -> Workload:
        specs = source.at("spec", field)
        note = _note(source)
        roles = []
        named = {name.lower(): name for name in specs.raw}
        specs.knows(*(TYPES[name] for name in ORDER))
        for name in ORDER:
            if name in named:
                one = specs.at(named[name])
                part = _replicas(head, source, one, named[name], name, 1, bool(note))
                roles.append(Role(name=name, parts=(part,), template=Template.of(one.at("template"))))
        return _workload(source, head, roles, note)

    return read


def read_mpi_job(source: Source, head: Head) -> Workload:
    """An MPIJob: workers, and the launcher that starts them."""
    spec = source.at("spec")
    specs = spec.at("mpiReplicaSpecs")
    note = _note(source)
    ended = bool(source.at("status", "replicaStatuses", "Launcher").count("succeeded"))
    waits = spec.word("launcherCreationPolicy", "AtStartup", "WaitForWorkersReady") == "WaitForWorkersReady"
    roles = []
    if specs.has("Launcher"):
        one = specs.at("Launcher")
        part = _replicas(head, source, one, "Launcher", "launcher", 1, bool(note))
        after = (StepCondition("worker", "Ready", "workers Ready"),) if waits else ()
        roles.append(Role(name="launcher", parts=(part,), template=Template.of(one.at("template")), after=after))
    if specs.has("Worker"):
        one = specs.at("Worker")
        part = _replicas(head, source, one, "Worker", "worker", 0, bool(note) or ended)
        roles.append(Role(name="worker", parts=(part,), template=Template.of(one.at("template"))))
    return _workload(source, head, roles, note, last="launcher")
