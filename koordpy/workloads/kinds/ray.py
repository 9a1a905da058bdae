"""RayCluster, and the clusters of RayJob and RayService.

Sources: workloads.md 4, 5.2, 10.1 and 10.2.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordpy.api.objects import Pod
from koordpy.workloads.model import Filling, JobPart, PodSeat, Role, Slot, Template, Workload
from koordpy.workloads.source import Head, Source, conditions

PREFIX = "ray.io/"
HEAD = "headgroup"
MIN_REPLICAS = "minReplicas"


def _slots(head: Head, group: str, number: int) -> Iterator[Slot]:
    is_head = group == HEAD
    labels = {
        "cluster": head.name,
        "node-type": "head" if is_head else "worker",
        "group": group,
        "is-ray-node": "yes",
    }
    for i in range(number):
        name = f"{head.name}-head" if is_head else f"{head.name}-{group}-worker-{i}"
        yield Slot(name, {PREFIX + key: value for key, value in labels.items()})


def _part(head: Head, group: str, number: int, *, over: bool) -> JobPart:
    return JobPart(
        number=number, slots=lambda: _slots(head, group, number), key=group, filling=Filling.COUNT, over=over
    )


def _with_autoscaler(source: Source, spec: Source) -> Source:
    """The head's template with the container that its operator adds."""
    asked = spec.at("autoscalerOptions", "resources").raw
    amounts = {"cpu": "500m", "memory": "512Mi"}
    container: Mapping[str, Any] = {
        "name": "autoscaler",
        "image": "autoscaler",
        "resources": asked or {"requests": amounts, "limits": amounts},
    }
    inner = dict(source.at("spec").raw)
    containers = inner.get("containers")
    if isinstance(containers, list) and containers:
        inner["containers"] = [*containers, container]
    return Source({**source.raw, "spec": inner}, source.path, source.faults, source.asked)


def read_ray_cluster(source: Source, head: Head) -> Workload:
    """A RayCluster: its head, and groups of workers."""
    spec = source.at("spec")
    scaled = spec.flag("enableInTreeAutoscaling")
    note = "suspended" if spec.flag("suspend") else "finished" if conditions(source, "Succeeded", "Failed") else ""
    template = spec.at("headGroupSpec", "template")
    if scaled:
        template = _with_autoscaler(template, spec)
    roles = [Role(name=HEAD, parts=(_part(head, HEAD, 1, over=bool(note)),), template=Template.of(template))]
    seen: set[str] = set()
    for group in spec.list("workerGroupSpecs"):
        name = group.text("groupName")
        if name in seen:
            group.fault("groupName", f'"{name}" is given twice')
        seen.add(name)
        least, most = group.count("minReplicas"), group.maybe("maxReplicas")
        if most is not None and least > most:
            group.fault("minReplicas", f"{least} is more than maxReplicas {most}")
        replicas = max(least, group.count("replicas", 1))
        hosts = group.count("numOfHosts", 1)
        number = 0 if group.flag("suspend") else (replicas if most is None else min(replicas, most)) * hosts
        roles.append(
            Role(
                name=name,
                parts=(_part(head, name, number, over=bool(note)),),
                template=Template.of(group.at("template")),
                least=least * hosts if scaled else None,
                least_by=MIN_REPLICAS,
            )
        )
    order = {role.name: i for i, role in enumerate(roles)}  # of one role natural order decides

    def seat(pod: Pod) -> PodSeat | None:
        labels = pod.metadata.labels
        name = HEAD if labels.get(PREFIX + "node-type") == "head" else labels.get(PREFIX + "group", "")
        return PodSeat(name, order[name], name) if name in order else None

    return Workload(
        head=head,
        roles=tuple(roles),
        seat=seat,
        by_default=True,
        marks=((PREFIX + "cluster", head.name),),
        note=note,
        source=source,
    )
