# SPDX-License-Identifier: Apache-2.0
"""Reads a RayCluster, including those that a RayJob or RayService created. Roles: the head, and each group of workers.

Sources: workloads.md 4, 5.2, 10.1 and 10.2.
"""

from collections.abc import Mapping
from typing import Any

from koordpy.api.objects import Pod
from koordpy.workloads.rank_indexes import position_by_labels, starts_of, with_first_ranks
from koordpy.workloads.workload_manifest import Head, Source, note_of
from koordpy.workloads.workload_model import Filling, JobPart, Role, Slot, Template, Workload

PREFIX = "ray.io/"
HEAD = "headgroup"


def _with_autoscaler(source: Source, spec: Source) -> Source:
    """Returns the head's pod template with the autoscaler container that the operator adds to it.

    The requests of this container count. If no resources are configured for it, KubeRay's defaults apply.
    """
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
    return Source({**source.raw, "spec": inner}, source.path, source.faults, source.read_fields)


def read_ray_cluster(source: Source, head: Head) -> Workload:
    """Reads a RayCluster: its head, and its worker groups. With autoscaling, the minimum of a group is minReplicas."""
    spec = source.at("spec")
    scaled, note = spec.flag("enableInTreeAutoscaling"), note_of(source, "Succeeded", spec)

    def role(name: str, number: int, template: Source, least: int | None = None) -> Role:
        """Returns the role of the head or of a worker group. least: minimum of an elastic group; None if not
        elastic."""
        is_head = name == HEAD
        labels = {
            "cluster": head.name,
            "node-type": "head" if is_head else "worker",
            "group": name,
            "is-ray-node": "yes",
        }
        marks = {PREFIX + key: value for key, value in labels.items()}

        def slot(i: int) -> Slot:
            return Slot(f"{head.name}-head" if is_head else f"{head.name}-{name}-worker-{i}", marks)

        part = JobPart(number=number, slot=slot, filling=Filling.COUNT, over=bool(note))
        return Role(name=name, parts=(part,), template=Template.read(template), least=least)

    template = spec.at("headGroupSpec", "template")
    roles = {HEAD: role(HEAD, 1, _with_autoscaler(template, spec) if scaled else template)}
    for group in spec.list("workerGroupSpecs"):
        name = group.text("groupName")
        if name in roles:
            group.fault("groupName", f'"{name}" is given twice')
        least, most = group.count("minReplicas"), group.maybe("maxReplicas")
        if most is not None and least > most:
            group.fault("minReplicas", f"{least} is more than maxReplicas {most}")
        replicas = max(least, group.count("replicas", 0))
        hosts = group.count("numOfHosts", 1)  # pods of one replica
        number = 0 if group.flag("suspend") else (replicas if most is None else min(replicas, most)) * hosts
        roles[name] = role(name, number, group.at("template"), least * hosts if scaled else None)

    def role_of(pod: Pod) -> str:
        """Returns the role of a pod by its labels; empty if it has none."""
        labels = pod.metadata.labels
        return HEAD if labels.get(PREFIX + "node-type") == "head" else labels.get(PREFIX + "group", "")

    starts = {name: i for i, name in enumerate(roles)}  # pods of a role are ranked in natural order
    return Workload(
        head=head,
        roles=with_first_ranks(roles.values(), starts_of([*roles.values()])),
        position=position_by_labels(starts, role_of, "", dict.fromkeys(roles, 0)),
        by_default=True,
        marks=((PREFIX + "cluster", head.name),),
        sized_by="workerGroupSpecs",
        note=note,
    )
