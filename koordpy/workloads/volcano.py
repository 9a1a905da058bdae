"""Volcano's PodGroups: gangs by an annotation of the pods, with a minimum of each task.

Source: workloads.md 9.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.natural import natural_key
from koordpy.api.objects import ObjectMeta, Pod
from koordpy.workloads.gangs import Derived
from koordpy.workloads.runs import WorkloadPod
from koordpy.workloads.source import Head, Source, index_of

GROUP = "scheduling.volcano.sh"
TASK = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
SOURCE = "volcano"


@dataclass(frozen=True, slots=True)
class VolcanoGroup:
    """A PodGroup of Volcano."""

    head: Head
    min_member: int
    tasks: Mapping[str, int]
    """Task -> how many of it."""
    tier: tuple[str, int, bool] | None
    """(name of a layer, else its number above the nodes, whether it must hold)."""
    resources: Mapping[str, object]

    @classmethod
    def of(cls, source: Source, head: Head) -> "VolcanoGroup":
        """Takes down faults of its fields."""
        spec = source.at("spec")
        tasks = spec.at("minTaskMember")
        least = spec.count("minMember")
        for policy in spec.list("subGroupPolicy"):
            least = max(least, policy.count("minSubGroups") * policy.count("subGroupSize"))
        network = spec.at("networkTopology")
        tier = None
        if network.raw:
            must = network.text("mode", "hard") == "hard"
            tier = network.text("highestTierName"), network.count("highestTierAllowed", 1), must
        counts = {task: tasks.count(task) for task in tasks.raw}
        return cls(head, least, counts, tier, spec.at("minResources").raw)


def group_of_pod(pod: Pod) -> str:
    """Name of the PodGroup of Volcano that a pod names; empty for none."""
    return next((name for key in keys.VOLCANO_GROUPS if (name := pod.metadata.annotations.get(key))), "")


def task_index(pod: Pod) -> int | None:
    """Rank index in a job of Volcano."""
    return index_of(pod.metadata.labels.get(TASK_INDEX) or pod.metadata.annotations.get(TASK_INDEX, ""))


def _task(pod: Pod) -> str:
    return pod.metadata.annotations.get(TASK) or pod.metadata.labels.get(TASK, "")


def volcano_gangs(groups: Mapping[str, VolcanoGroup], members: Sequence[WorkloadPod]) -> Iterator[Derived]:
    """The gangs of Volcano's PodGroups that pods name, or that are there."""
    found: dict[str, list[WorkloadPod]] = {key: [] for key in groups}
    for one in members:
        if name := group_of_pod(one.pod):
            found.setdefault(f"{one.pod.metadata.namespace}/{name}", []).append(one)
    for key, pods in found.items():
        pods.sort(key=lambda one: (one.created, natural_key(one.pod.metadata.name)))
        yield from _gangs(key, groups.get(key), pods)


def _gangs(key: str, group: VolcanoGroup | None, pods: Sequence[WorkloadPod]) -> Iterator[Derived]:
    namespace, _, name = key.partition("/")
    notes = group.head.annotations if group is not None else {}
    meta = ObjectMeta(namespace=namespace, name=name, annotations=dict(notes))
    origin = f"PodGroup {name} of Volcano"
    run = (SOURCE, namespace, name)
    if group is None or not group.tasks:
        yield Derived(
            namespace=namespace,
            name=name,
            pods=tuple(one.pod.key for one in pods),
            min_member=group.min_member if group is not None else 0,
            origin=origin,
            meta=meta,
            run=run,
            source=SOURCE,
            missing=group is None,
            tier=group.tier if group is not None else None,
            resources=group.resources if group is not None else {},
        )
        return
    by_task: dict[str, list[WorkloadPod]] = {task: [] for task in group.tasks}
    for one in pods:
        by_task.setdefault(_task(one.pod), []).append(one)
    left = group.min_member - sum(group.tasks.values())
    for task in sorted(by_task, key=natural_key):
        members = by_task[task]
        least = group.tasks.get(task, 0)
        # what the group needs above the minima of its tasks comes from those in natural order
        more = max(0, min(left, len(members) - least))
        left -= more
        yield Derived(
            namespace=namespace,
            name=f"{name}:{task}",
            pods=tuple(one.pod.key for one in members),
            min_member=least + more,
            origin=f"{origin}, task {task}",
            meta=meta,
            run=run,
            source=SOURCE,
            whole=(key, group.min_member),
            tier=group.tier,
        )
