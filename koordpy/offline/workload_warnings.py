"""What of the workloads of the input is readable and still not what its author meant.

None of it is a fault (workloads.md 10.6): unknown fields may be another version's. But whoever tries a manifest
before submitting it wants to hear of it now.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from koordpy.api import keys
from koordpy.api.configfile import KUBE_SCHEDULER_NAME
from koordpy.api.counted import counted, named
from koordpy.api.limits import some
from koordpy.api.objects import Pod
from koordpy.api.strict import decode
from koordpy.cluster.pods import GangSource, PodInfo
from koordpy.offline.workloads import moved
from koordpy.workloads.kinds.registry import GANG_KINDS
from koordpy.workloads.known import controller
from koordpy.workloads.making import templates_of
from koordpy.workloads.model import Role, Template, Workload
from koordpy.workloads.unread import ASKED_BY_TEMPLATE, unread_of

if TYPE_CHECKING:
    from koordpy.cluster.state import ClusterState
    from koordpy.offline.workloads import Read, WorkloadManifest


def of_manifests(read: "Read") -> Iterator[str]:
    """Of what stands in the manifests: fields, keys and values."""
    for part in read.parts:
        yield from (f"{part.maker}: {text}" for text in (*some(_of_fields(part)), *some(_of_keys(part))))


def _of_fields(part: "WorkloadManifest") -> Iterator[str]:
    told: dict[str, None] = {}
    for source, path in part.sources:
        for fault in source.asked.doubts() if source.asked is not None else ():
            told[f"{moved(fault.path, path)}: {fault.text}"] = None
    for template in _templates(part.workload):
        pod = {name: template.raw[name] for name in ("metadata", "spec") if template.raw.get(name) is not None}
        for fault in decode(pod, Pod).doubts:
            told[f"{moved(f'{template.path}.{fault.path}', part.path)}: {fault.text}"] = None
    yield from told


def _templates(workload: Workload | None) -> list[Template]:
    """The pod templates, each once: groups of a LeaderWorkerSet share theirs."""
    found = templates_of(workload) if workload is not None else ()
    return list({template.path: template for template in found if template.raw}.values())


def _of_keys(part: "WorkloadManifest") -> Iterator[str]:
    templates = [replace(one, path=moved(one.path, part.path)) for one in _templates(part.workload)]
    return unread_of(part.head, templates)


def of_schedulers(read: "Read", served: Collection[str]) -> Iterator[str]:
    """Workloads of which some roles are koordpy's and some are not, so that they do not start together."""
    for top in read.tops:
        roles: tuple[Role, ...] = top.workload.roles if top.workload is not None else ()
        found: dict[str, str] = {}
        for role in roles:
            for template in (role.template, *role.templates):
                if template.raw:
                    name = role.name or template.path.rpartition(".")[2]
                    found.setdefault(name, template.scheduler or KUBE_SCHEDULER_NAME)
        if len({name in served for name in found.values()}) > 1:
            said = ", ".join(f"{role} is {scheduler}'s" for role, scheduler in found.items())
            yield f"{top.head.kind} {top.head.key}: {said}: they do not start together"


def of_ordered(read: "Read", state: "ClusterState") -> Iterator[str]:
    """StatefulSets whose pods come one by one, and name a gang that waits for more than one."""
    assert state.workloads is not None
    ordered = {one.head.uid: one for one in read.workloads if one.ordered}
    told: dict[str, None] = {}
    minima = {key: group.spec.min_member for key, group in state.gangs.groups.items()}
    for info in state.pods() if ordered else ():
        owner = controller(info.pod)
        workload = ordered.get(owner.uid) if owner is not None else None
        if workload is None or info.gang is None or info.bound:
            continue
        least = minima.get(info.gang.key) or _asked(info)
        if least > 1:
            told[
                f"StatefulSet {workload.head.key}: podManagementPolicy OrderedReady makes pods one by one: gang "
                f"{info.gang.key} waits for {least} for ever (podManagementPolicy: Parallel makes them together)"
            ] = None
    yield from told


def _asked(info: PodInfo) -> int:
    meta = info.pod.metadata
    if keys.GANG_NAME not in meta.annotations and keys.LABEL_GANG_NAME not in meta.labels:
        return 0
    text = meta.annotations.get(keys.GANG_MIN) or meta.labels.get(keys.LABEL_GANG_MIN) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def of_namesakes(read: "Read", state: "ClusterState") -> Iterator[str]:
    """PodGroups that no pod names, beside a workload of the name whose pods are a gang of their own."""
    used = {info.gang.key for info in state.pods() if info.gang is not None and info.gang.source is GangSource.GROUP}
    groups = state.gangs.groups.keys() - used
    for top in read.tops:
        if top.head.key in groups and top.workload is not None:
            yield (
                f"PodGroup {top.head.key}: no pod names it: the pods of {top.head.title} would be in it by the label "
                f"{keys.LABEL_POD_GROUP}: {top.head.name} of their template"
            )


def of_owners(read: "Read", state: "ClusterState", served: Collection[str]) -> Iterator[str]:
    """Workloads that own pods and are not in the input, though gangs follow from them."""
    known = read.known(())
    kinds = GANG_KINDS - {*ASKED_BY_TEMPLATE, "StatefulSet"}
    lost: dict[str, dict[str, None]] = {}
    for info in state.pods():
        owner, meta = controller(info.pod), info.pod.metadata
        if info.gang is not None or owner is None or owner.kind not in kinds:
            continue
        if owner.kind == "Job" and keys.JOB_COMPLETION_INDEX not in (*meta.labels, *meta.annotations):
            continue
        if info.pod.spec.scheduler_name in served and known.find(owner, meta.namespace) is None:
            lost.setdefault(owner.kind, {})[f"{meta.namespace}/{owner.name}"] = None
    for kind, names in sorted(lost.items()):
        there = "is" if len(names) == 1 else "are"
        yield (
            f"{counted(len(names), kind)} that pods belong to {there} not in the input: {named(list(names))}: "
            f"their pods count as plain ones (of a dump: ask kubectl get for {kind.lower()}s, too)"
        )
