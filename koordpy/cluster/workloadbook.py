"""Workloads that are known, and the gangs that follow from them and from pods.

Source: workloads.md 2.
"""

from collections.abc import Iterable, Mapping, Sequence

from koordpy.api.groups import PodGroup
from koordpy.api.objects import Pod
from koordpy.cluster.pods import GangRef, GangSource, PodInfo, rank_index
from koordpy.cluster.selectors import selector_matches
from koordpy.workloads.bylabels import by_labels, kueue_index
from koordpy.workloads.gangs import Derived, DerivedGangs, Settings, derive
from koordpy.workloads.kinds.registry import TRAIN_JOB
from koordpy.workloads.known import Known
from koordpy.workloads.runs import WorkloadPod
from koordpy.workloads.volcano import group_of_pod, task_index, volcano_gangs


class WorkloadBook:
    """What pods belong to; gangs are derived anew where something of it changed."""

    def __init__(self, settings: Settings, *, volcano: bool = False) -> None:
        """volcano: whether its PodGroups are read."""
        self._settings, self.volcano = settings, volcano
        self.passed_over: dict[GangRef, str] = {}
        """PodGroups that are not used, and why."""
        self.unknown_steps: frozenset[GangRef] = frozenset()
        """PodGroups of TrainJobs whose steps are not known."""
        self.known = Known()
        self._members: dict[str, WorkloadPod] = {}
        self._refs: dict[str, GangRef] = {}
        self._gangs: DerivedGangs | None = None

    def know(self, known: Known) -> None:
        """Takes all workloads at once. Pods come after them."""
        self.known, self._gangs = known, None

    def put_pod(self, info: PodInfo) -> GangRef | None:
        """Takes a pod; the gang that followed for it so far."""
        pod, known = info.pod, self._members.get(info.key)
        self.known.owned_by(pod)
        if known is not None and known.pod.metadata.uid == pod.metadata.uid:
            place = known.place
        else:
            place = self.known.place(pod)
            self._refs.pop(info.key, None)
        self._members[info.key] = WorkloadPod(pod, bool(info.node), info.created, place)
        self._gangs = None
        return self._refs.get(info.key)

    def queue_of(self, pod: Pod) -> str:
        """Name of the quota that a pod's PodGroup of Volcano names; empty for none."""
        group = self.known.groups.get(f"{pod.metadata.namespace}/{group_of_pod(pod)}") if self.volcano else None
        return group.queue if group is not None else ""

    def drop_pod(self, key: str) -> None:
        """Forgets a pod."""
        if self._members.pop(key, None) is not None:
            self._gangs = None
        self._refs.pop(key, None)

    def gangs(self, named: Iterable[GangRef], plain: Iterable[PodInfo]) -> tuple[DerivedGangs, bool]:
        """(what follows now, whether that is anew). named: gangs that pods name; plain: pods that name none."""
        if self._gangs is not None:
            return self._gangs, False
        members = [self._members[info.key] for info in plain]
        refs = {info.key for info in plain}
        # who has ended is not kept among the pods, and counts here
        ended = [one for key, one in self._members.items() if key not in refs and one.pod.status.phase == "Succeeded"]

        def more(rest: Sequence[WorkloadPod]) -> Iterable[Derived]:
            return by_labels(rest, [self._settings.auto(one.pod.metadata.namespace) for one in rest])

        spoken = {
            (one.place.workload.head.uid, one.place.seat.group, one.place.seat.role)
            for key, one in self._members.items()
            if one.place is not None and key not in refs and one.alive
        }
        every = [*members, *ended]
        first = volcano_gangs(self.known.groups, every, selector_matches) if self.volcano else ()
        found = derive(self.known, every, self._settings, (ref.key for ref in named), more, first, spoken)
        self._gangs = found
        self._refs = {key: ref_of(found.gangs[gang]) for key, gang in found.of_pod.items()}
        return found, True

    def pass_over(self, groups: Mapping[str, PodGroup]) -> Mapping[GangRef, str]:
        """PodGroups of TrainJobs that want the pods of all steps at once, which never live together; why not."""
        found, unknown = {}, set()
        for group in groups.values():
            meta = group.metadata
            owner = next((one for one in meta.owner_references if one.controller), None)
            if owner is None or owner.kind != TRAIN_JOB[1]:
                continue
            steps = self.known.steps(meta.namespace, owner.name)
            if not steps:
                unknown.add(GangRef(meta.namespace, meta.name))
            if steps and group.spec.min_member > max(steps):
                text = f"minMember {group.spec.min_member} can never exist at once, TrainJob {owner.name} has steps of"
                listed = f"{', '.join(map(str, steps[:-1]))} and {steps[-1]}" if len(steps) > 1 else str(steps[0])
                found[GangRef(meta.namespace, meta.name)] = f"{text} {listed}: each step is its own gang"
        self.unknown_steps = frozenset(unknown)
        if found != self.passed_over:
            self.passed_over, self._gangs = found, None
        return self.passed_over

    def ref(self, key: str) -> GangRef | None:
        """The gang that follows for a pod."""
        return self._refs.get(key)

    def index(self, info: PodInfo, found: DerivedGangs) -> int | None:
        """Rank index of a pod in a gang."""
        place = self._members[info.key].place
        own = found.index.get(info.key, place.seat.index if place is not None else None)
        said = (own, kueue_index(info.pod), task_index(info.pod))
        return rank_index(info.pod, next((index for index in said if index is not None), None))


def ref_of(gang: Derived) -> GangRef:
    """Identity of a gang that follows."""
    return GangRef(gang.namespace, gang.name, GangSource.WORKLOAD)
