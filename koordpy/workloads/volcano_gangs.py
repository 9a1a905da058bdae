# SPDX-License-Identifier: Apache-2.0
"""Reads Volcano's PodGroups, so that workloads written for Volcano run as gangs without changes.

An annotation of a pod names its PodGroup. If the PodGroup has minimums for tasks (minTaskMember), each task is one
gang, and the gangs are planned together. Otherwise the PodGroup is one gang. Source: workloads.md 9.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from koordpy.api import keys
from koordpy.api.field_faults import FieldWalk
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import LabelSelector, ObjectMeta, Pod
from koordpy.api.pod_endings import failed_since
from koordpy.decoding.annotation_settings import forgotten_annotations
from koordpy.decoding.leaf_readers import quantity_values
from koordpy.decoding.strict_decoding import decode
from koordpy.workloads.gang_minimum import MinimumSetting
from koordpy.workloads.workload_gangs import WorkloadGang
from koordpy.workloads.workload_manifest import Head, Source
from koordpy.workloads.workload_model import SharedDomain
from koordpy.workloads.workload_runs import WorkloadPod, by_age

GROUP = "scheduling.volcano.sh"
# annotations or labels of pods: the task, and the index in the task
TASK = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
SOURCE = "volcano"
"""`WorkloadGang.source` of these gangs."""
_GROUP, _OWN_GROUP = keys.VOLCANO_GROUPS
Matches = Callable[[LabelSelector | None, Mapping[str, str]], bool]
"""Returns True if a selector matches labels."""


@dataclass(frozen=True, slots=True)
class SubGroupPolicy:
    """Pods that a selector matches, divided into subgroups by the values of their labels (`keys`). The pods of each
    subgroup share one domain."""

    selector: LabelSelector | None
    """None if the policy has no labelSelector."""
    keys: tuple[str, ...]
    """Keys of labels: pods with equal values of all of them are one subgroup."""
    domain: SharedDomain | None
    """None if the policy has no networkTopology."""


def _resources(asked: Source) -> dict[str, str]:
    """Returns resource -> amount as text. Unreadable amounts are included; they are faults and block the gang."""
    walk = FieldWalk(unknown=False, faults=asked.faults)
    quantity_values(asked.raw, asked.path, walk)
    return {name: str(value) for name, value in asked.raw.items() if value is not None}


@dataclass(frozen=True, slots=True)
class VolcanoGroup:
    """A PodGroup of Volcano."""

    head: Head
    min_member: int
    """The larger of minMember and the number of members that the minimums of its subgroups need."""
    tasks: Mapping[str, int]
    """Task -> minimum number of its members; empty if the PodGroup has no minimums for tasks."""
    domain: SharedDomain | None
    """The domain that all pods share; None if the PodGroup has no networkTopology."""
    resources: Mapping[str, str]
    """minResources: resource -> amount as text."""
    minimum: MinimumSetting | None = None
    """The setting spec.minMember; None if subgroups or tasks have minimums, too, so that lowering it may change
    nothing."""
    queue: str = ""
    """Name of the quota for pods that name no quota themselves; empty for none."""
    policies: tuple[SubGroupPolicy, ...] = ()

    @classmethod
    def read(cls, source: Source, head: Head) -> "VolcanoGroup":
        """Reads a PodGroup; records the faults of its fields in the source."""
        spec = source.at("spec")
        tasks = spec.at("minTaskMember")
        stated = spec.count("minMember")
        policies, needed = [], 0
        for policy in spec.list("subGroupPolicy"):
            needed = max(needed, policy.count("minSubGroups") * policy.count("subGroupSize"))
            selector = decode(policy.at("labelSelector").raw, LabelSelector)
            for fault in selector.faults:
                policy.fault(f"labelSelector.{fault.path}", fault.text)
            chosen = selector.value if policy.has("labelSelector") else None
            policies.append(SubGroupPolicy(chosen, policy.texts("matchLabelKeys"), _domain(policy)))
        counts = {task: tasks.count(task) for task in tasks.raw}
        resources, queue = _resources(spec.at("minResources")), spec.text("queue")
        only = None if needed or counts else MinimumSetting("minMember", stated, ())
        return cls(head, max(stated, needed), counts, _domain(spec), resources, only, queue, tuple(policies))

    def domains(self, pods: Sequence[WorkloadPod], matches: Matches) -> Iterator[SharedDomain]:
        """Yields the domains that pods share: one for all pods of the group, and one for each subgroup."""
        if self.domain is not None:
            yield self.domain
        for i, policy in enumerate(self.policies):
            if policy.domain is None or not policy.domain.must:
                continue
            found: dict[str, list[str]] = {}
            for one in pods:
                labels = one.pod.metadata.labels
                if matches(policy.selector, labels):
                    name = "/".join((str(i), *(labels.get(key, "") for key in policy.keys)))
                    found.setdefault(name, []).append(one.key)
            yield from (replace(policy.domain, part=name, pods=frozenset(keys)) for name, keys in found.items())


def _domain(source: Source) -> SharedDomain | None:
    """Returns the domain in networkTopology of a PodGroup or of a policy; None if it has none."""
    network = source.at("networkTopology")
    if not network.raw:
        return None
    layer, tier = network.text("highestTierName"), network.count("highestTierAllowed", 1)
    # an invalid mode counts as hard, because it may have been meant so
    return SharedDomain(layer=layer, tier=tier, must=network.word("mode", "hard", "soft") != "soft")


def group_of_pod(pod: Pod) -> str:
    """Returns the name of the PodGroup of Volcano that a pod names; empty for none."""
    said = pod.metadata.annotations
    return (said.get(_GROUP) or said.get(_OWN_GROUP) or "") if said else ""


def volcano_gangs(
    key: str, group: VolcanoGroup | None, members: Collection[WorkloadPod], matches: Matches
) -> Iterator[WorkloadGang]:
    """Yields the gangs of a PodGroup of Volcano: one for each task, or a single one if it has no tasks.

    key: `namespace/name` of the group. group: None if it does not exist. members: pods that name it. matches: returns
    True if a selector matches labels.
    """
    namespace, _, name = key.partition("/")
    pods = by_age(one for one in members if not one.failed)
    # case 1: the PodGroup does not exist; `missing` blocks the pods
    make = partial(
        WorkloadGang,
        namespace=namespace,
        name=name,
        pods=tuple(one.key for one in pods),
        min_member=0,
        origin=f"PodGroup {name} of Volcano",
        run=(SOURCE, namespace, name),
        source=SOURCE,
        failed_since=failed_since((one.pod for one in members if one.failed), (one.pod for one in pods if one.bound)),
    )
    if group is None:
        yield make(meta=ObjectMeta(namespace=namespace, name=name), missing=True)
        return
    doubts = forgotten_annotations(group.head.annotations_given)
    soft = any(one.domain is not None and not one.domain.must for one in group.policies)
    make = partial(
        make,
        meta=ObjectMeta(namespace=namespace, name=name, annotations=dict(group.head.annotations)),
        domains=tuple(group.domains(pods, matches)),
        doubts=(*doubts, "spec.subGroupPolicy: networkTopology with mode soft is ignored") if soft else doubts,
    )
    # case 2: one gang; case 3: one gang for each task, also for tasks of pods that the PodGroup does not list
    if not group.tasks:
        yield make(min_member=group.min_member, resources=group.resources, minimum_setting=group.minimum)
        return
    by_task: dict[str, list[WorkloadPod]] = {task: [] for task in group.tasks}
    for one in pods:
        meta = one.pod.metadata
        by_task.setdefault(meta.annotations.get(TASK) or meta.labels.get(TASK, ""), []).append(one)
    left, resources = group.min_member - sum(group.tasks.values()), group.resources
    for task in sorted(by_task, key=natural_key):
        found, least = by_task[task], group.tasks.get(task, 0)
        # if the group needs more members than the minimums of its tasks, the rest is assigned to tasks in natural order
        there = sum(one.alive and (one.bound or one.is_placeable) for one in found)
        more = max(0, min(left, there - least))
        left -= more
        yield make(
            name=f"{name}:{task}",
            pods=tuple(one.key for one in found),
            min_member=least + more,
            origin=f"PodGroup {name} of Volcano, task {task}",
            total_minimum=(key, group.min_member),
            resources=resources,
        )
        resources = {}  # only the first gang has the resource request of the group
