# SPDX-License-Identifier: Apache-2.0
"""Proposes a higher priority for a unit, so that it may evict pods, or is planned before other units.

The proposal is the lowest PriorityClass in the cluster that helps. If no class is high enough, the proposal is a
number. The system's PriorityClasses are never proposed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from koordpy.api import keys
from koordpy.api.objects import Pod, PriorityClass
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import read_again, with_pods
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World
from koordpy.explain.advice.reductions import lowest
from koordpy.pods.gang_refs import GangSource
from koordpy.pods.pod_info import PodInfo, in_group

_HIGHEST = 1_000_000_000
"""Highest value that Kubernetes allows for a PriorityClass of a user."""
NEVER = "Never"
"""`preemptionPolicy` of pods and PriorityClasses that never preempt."""
_LAST = 9
"""`ClusterChange.size` of a priority number without a class: it is tried after changes of quotas and shares, which have
the same effort."""


def priority_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields the lowest PriorityClass that helps of those that preempt, the lowest of those that do not preempt, and
    the lowest number above all classes that helps.

    Yields nothing if no other pod has the unit's priority or a higher one, because a higher priority would then change
    nothing. If the unit's preemptionPolicy is Never, pods of lower priority count as well. A number without a class is
    a change of the cluster, because an administrator must create the class.
    """
    own = case.unit.priority
    never = any(pod.preemption_policy == NEVER for pod in case.unit.pending)
    if any(_is_own_policy(pod, case) for pod in case.unit.pending):
        yield _of_policy(case)
    keys_of_unit = {pod.key for pod in case.unit.members}
    others = {
        pod.priority
        for pod in case.snapshot.pods.values()
        if (pod.bound or pod.pending)
        and pod.key not in keys_of_unit
        and (never or own <= pod.priority)
        and pod.priority < _HIGHEST
    }
    if not others:
        return
    known = [one for one in case.snapshot.priority_classes if own <= one.value <= _HIGHEST]
    preempting = [one for one in known if one.preemption_policy != NEVER]
    for some in (preempting, [one for one in known if one not in preempting]):
        if classes := _useful(some, sorted(others)):
            yield _lowest([partial(_of_class, case, one) for one in classes])
    most = max((one.value for one in known), default=own)
    numbers = [number + 1 for number in sorted(others) if number >= max(most, own)]
    if numbers:
        yield _lowest([partial(_of_number, case, number) for number in numbers])


def _useful(classes: Sequence[PriorityClass], others: Sequence[int]) -> list[PriorityClass]:
    """Returns, in ascending order, the lowest class above each priority of another pod.

    A further class between two such priorities would have the same effect as the lowest one there.
    """
    out: list[PriorityClass] = []
    for one in sorted(classes, key=lambda found: (found.value, found.metadata.name)):
        below = sum(priority < one.value for priority in others)
        if below > (sum(priority < out[-1].value for priority in others) if out else 0):
            out.append(one)
    return out


def _lowest(steps: Sequence[Callable[[], ClusterChange]]) -> ClusterChange:
    """Returns a change that a trial reduces to the first step that helps. steps: functions that return a change, from
    the lowest priority to the highest."""
    changes = [step() for step in steps]

    def reduced(helps: Callable[[ClusterChange], bool]) -> ClusterChange:
        return changes[lowest(-1, len(changes) - 1, lambda place: helps(changes[place]))]

    return replace(changes[-1], reduce=reduced)


def _of_class(case: Case, priority_class: PriorityClass) -> ClusterChange:
    """Returns the change to a PriorityClass."""
    name, value = priority_class.metadata.name, priority_class.value
    text = f"its PriorityClass were {name} with priority {value} (its priority is {case.unit.priority})"
    if priority_class.preemption_policy != NEVER and any(_is_own_policy(pod, case) for pod in case.unit.pending):
        text += f" and its preemptionPolicy were {keys.PREEMPT_LOWER_PRIORITY}"
    policy = priority_class.preemption_policy or keys.PREEMPT_LOWER_PRIORITY
    return _change(case, text, Effort.PRIORITY, value, lambda *_: (name, policy))


def _is_own_policy(pod: PodInfo, case: Case) -> bool:
    """Returns True if a pod's spec has `preemptionPolicy: Never` although its PriorityClass has not.

    The API server rejects a pod with such a spec and a PriorityClass that preempts.
    """
    if pod.pod.spec.preemption_policy != NEVER or pod.group_policy:
        return False
    name = pod.pod.spec.priority_class_name
    classes = case.snapshot.priority_classes
    found = [one for one in classes if one.metadata.name == name or (not name and one.global_default)]
    return all(one.preemption_policy != NEVER for one in found)


def _of_policy(case: Case) -> ClusterChange:
    """Returns the change of only the preemptionPolicy in the spec; the priority stays the same."""
    text = f"its preemptionPolicy were {keys.PREEMPT_LOWER_PRIORITY} (it is {NEVER})"
    value = case.unit.priority
    return _change(case, text, Effort.PRIORITY, value, lambda name, _: (name, keys.PREEMPT_LOWER_PRIORITY))


def _of_number(case: Case, value: int) -> ClusterChange:
    """Returns the change to a priority number, for which no PriorityClass exists yet."""
    text = f"its priority were {value} (it is {case.unit.priority}, and no PriorityClass is high enough)"
    return _change(case, text, Effort.LIMIT, value, lambda name, policy: (name, policy))


def _change(
    case: Case, text: str, effort: Effort, value: int, named: Callable[[str, str], tuple[str, str]]
) -> ClusterChange:
    """Returns the change to priority `value`. named: function from a pod's class and preemptionPolicy to its class and
    preemptionPolicy after the change."""

    def respec(info: PodInfo, snapshot: Snapshot, config: KoordpyConfiguration) -> PodInfo:
        pod: Pod = info.pod
        name, policy = named(pod.spec.priority_class_name, pod.spec.preemption_policy)
        spec = structs.replace(pod.spec, priority=value, priority_class_name=name, preemption_policy=policy)
        found = read_again(info, structs.replace(pod, spec=spec), snapshot, config)
        return found if info.group_priority is None else in_group(found, value, info.group_policy and policy)

    def make(world: World) -> World:
        snapshot = world.snapshot
        pods = [respec(snapshot.pods[pod.key], snapshot, world.config) for pod in case.unit.pending]
        groups = dict(snapshot.upstream_groups)
        for gang in case.unit.gangs:
            group = groups.get(gang.ref.key) if gang.ref.source is GangSource.UPSTREAM else None
            if group is not None and group.spec.priority is not None:
                groups[gang.ref.key] = structs.replace(group, spec=structs.replace(group.spec, priority=value))
        return replace(world, snapshot=with_pods(replace(snapshot, upstream_groups=groups), pods))

    return ClusterChange(text, effort, make, _LAST if effort is Effort.LIMIT else 0, "priority")
