"""Gangs that follow from workloads and from pods, as the books of pods know gangs.

Source: workloads.md 2.
"""

from collections.abc import Container, Iterable, Mapping

from koordpy.api.config import Gangs
from koordpy.api.groups import PodGroup
from koordpy.api.objects import Pod
from koordpy.cluster.pods import GangRef, GangSource, PodInfo, rank_index
from koordpy.cluster.selectors import selector_matches
from koordpy.workloads.book import DerivedBook
from koordpy.workloads.bylabels import kueue_index
from koordpy.workloads.gangs import Derived
from koordpy.workloads.kinds.registry import TRAIN_JOB
from koordpy.workloads.model import Workload
from koordpy.workloads.runs import WorkloadPod
from koordpy.workloads.source import index_in
from koordpy.workloads.volcano import TASK_INDEX, VolcanoGroup, group_of_pod


class WorkloadBook(DerivedBook):
    """What pods belong to."""

    def __init__(self, config: Gangs, schedulers: Container[str]) -> None:
        """schedulers: names of ours."""
        super().__init__(config, schedulers, selector_matches)
        self.passed_over: dict[GangRef, str] = {}
        """PodGroups that are not used, and why."""
        self.unknown_steps: frozenset[GangRef] = frozenset()
        """PodGroups of TrainJobs whose steps are not known."""
        self._refs: dict[str, GangRef] = {}
        """`namespace/name` of each gang that follows -> its identity, one object for all its pods."""
        self.derived: Mapping[GangRef, Derived] = {}
        """All that follows, as of the last `regroup`."""

    def put_pod(self, info: PodInfo) -> None:
        self.put(info.key, info.pod, bound=info.bound, created=info.created, free=self._is_free(info.gang))

    def volcano_group(self, key: str) -> tuple[VolcanoGroup, list[WorkloadPod]] | None:
        """A PodGroup of Volcano by `namespace/name`, and the pods that name it; None where it is not there."""
        group = self.groups.get(key)
        return (group, list(self.of_group(key).values())) if group is not None else None

    def queue_of(self, pod: Pod) -> str:
        """Name of the quota that a pod's PodGroup of Volcano names; empty for none."""
        name = group_of_pod(pod) if self.volcano else ""
        group = self.groups.get(f"{pod.metadata.namespace}/{name}") if name else None
        return group.queue if group is not None else ""

    def regroup(self, named: Iterable[GangRef], now: float) -> set[str]:
        """Finds what follows now (seconds since the epoch); the pods whose gang may be another. named: gangs that pods
        name."""
        known = self.gangs
        pods = self.update([ref.key for ref in named if ref not in self.passed_over], now)
        if self.gangs is not known:
            follows = GangSource.WORKLOAD
            self._refs = {key: self._refs.get(key) or GangRef.of(key, follows) for key in self.gangs}
            self.derived = {self._refs[key]: gang for key, gang in self.gangs.items()}
        elif self.fresh:
            self.derived = {**self.derived, **{self._refs[key]: self.gangs[key] for key in self.fresh}}
        self.fresh.clear()
        return pods

    def take_altered(self) -> list[GangRef]:
        """Gangs of which anything but their pods changed since this was last asked."""
        found, self.altered = self.altered, set()
        return [self._refs[key] for key in found if key in self._refs]

    def pass_over(self, groups: Mapping[str, PodGroup]) -> set[GangRef]:
        """Looks for PodGroups of TrainJobs that want the pods of all steps at once, which never live together. Those
        of which it is said for the first time, or no more."""
        found, unknown = {}, set()
        for group in groups.values():
            meta = group.metadata
            owner = meta.controller
            if owner is None or owner.kind != TRAIN_JOB[1]:
                continue
            known = self.known.find(owner, meta.namespace)
            below = map(self.known.get, self.known.below(owner.uid if known is None else known.head.uid))
            steps = next((_steps(one) for one in below if one is not None and one.roles), [])
            if not steps:
                unknown.add(GangRef(meta.namespace, meta.name))
            if steps and group.spec.min_member > max(steps):
                text = f"minMember {group.spec.min_member} can never exist at once, TrainJob {owner.name} has steps of"
                listed = f"{', '.join(map(str, steps[:-1]))} and {steps[-1]}" if len(steps) > 1 else str(steps[0])
                found[GangRef(meta.namespace, meta.name)] = f"{text} {listed}: each step is its own gang"
        self.unknown_steps = frozenset(unknown)
        changed = found.keys() ^ self.passed_over.keys()
        self.passed_over = found
        return changed

    def _is_free(self, gang: GangRef | None) -> bool:
        return gang is None or gang.source is GangSource.WORKLOAD or gang in self.passed_over

    def filed(self, info: PodInfo) -> tuple[GangRef | None, int | None]:
        """(gang, rank index) of a pod that is known."""
        known = self._pods[info.key]
        gang = self._refs.get(known.gang) if self._is_free(info.gang) else info.gang
        if gang is None:
            return None, rank_index(info.pod) if info.group is not None else None
        index = known.seat.index
        if index is None:
            index = kueue_index(info.pod)
        return gang, rank_index(info.pod, index_in(info.pod.metadata, TASK_INDEX) if index is None else index)


def _steps(workload: Workload) -> list[int]:
    """Pods by level: the most Complete edges on a way to a role."""
    sizes: dict[int, int] = {}
    levels: dict[str, int] = {}
    for role in workload.roles:
        before = (levels.get(one.role, 0) + (one.state == "Complete") for one in role.after)
        level = levels[role.name] = max(before, default=0)
        sizes[level] = sizes.get(level, 0) + role.number
    return [sizes[level] for level in sorted(sizes)]
