# SPDX-License-Identifier: Apache-2.0
"""Reads the workloads of the input, and decides which of them create pods.

If another workload of the input controls a workload, the controller creates the pods. Rules: workloads.md 10.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordpy.api.field_faults import Fault, key_path
from koordpy.api.objects import Pod
from koordpy.api.spelling import hint
from koordpy.api.times import exact_time
from koordpy.api.uids import made_up_uid
from koordpy.offline.children import child_of, jobset_of, runtime_key
from koordpy.offline.named_owners import KnownByName
from koordpy.offline.read_kinds import group_of
from koordpy.offline.resource_validation import refused_resources
from koordpy.offline.runtime_patches import PATCHES
from koordpy.simulation.claim_controllers import volume_claim_faults
from koordpy.simulation.pod_making import (
    RoleKey,
    Top,
    with_ended,
)
from koordpy.simulation.server_defaults import Priorities
from koordpy.workloads.kinds.jobsets import JOBSET
from koordpy.workloads.kinds.kind_registry import (
    RUNTIMES,
    TRAIN_JOB,
    VOLCANO_GROUP,
    Child,
    kind_of,
    other_manager,
    workload_of,
)
from koordpy.workloads.volcano_gangs import VolcanoGroup
from koordpy.workloads.workload_manifest import Head, ReadFields, Source, can_make, head_of
from koordpy.workloads.workload_model import REQUIRED, Workload

if TYPE_CHECKING:
    from koordpy.offline.loaded_manifests import InputObject, Loaded


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """A manifest that determines which pods are created."""

    maker: "InputObject"
    head: Head
    source: Source
    workload: Workload | None = None
    """The decoded workload with its pod templates; None for a manifest without templates, such as a PodGroup."""


class Read:
    """The workloads of the input."""

    def __init__(self, loaded: "Loaded", created: Callable[[int], datetime]) -> None:
        """created: order of an object in the input -> creation time that is used if its manifest has none."""
        self._loaded = loaded
        pods = {
            f"{one.obj.metadata.namespace}/{one.obj.metadata.name}": one.obj
            for one in loaded.manifests
            if isinstance(one.obj, Pod)
        }
        self.known = KnownByName(pods.get)
        self.tops: list[Top] = []
        self.warnings: list[str] = []
        self.parts: list[WorkloadManifest] = []
        self._given: list[WorkloadManifest] = []
        self._sources: dict[str, Source] = {}
        self._trained: list[tuple[WorkloadManifest, Source, WorkloadManifest]] = []
        """(a TrainJob, its runtime, the JobSet that the TrainJob creates)."""
        self._runtimes: dict[tuple[str, str, str], WorkloadManifest] = {}
        self.groups: dict[str, VolcanoGroup] = {}
        for maker in loaded.workloads:
            self._take(maker, created)
        by_uid = {one.head.uid: one.head for one in self._given}
        by_name = {(head.kind, head.key): head for head in by_uid.values() if not head.has_uid}
        self._given = [changed(one, head=_owned(one.head, by_uid, by_name)) for one in self._given]
        for one in self._given:
            self.known.put(workload_of(one.source, one.head))
        by_jobs: dict[str, list[WorkloadManifest]] = {}
        for one in self._given:
            above = self.known.above(one.head)
            if _is_unread(above):
                by_jobs.setdefault(above[0].head.uid, []).append(one)
            self._read(one, above)
        for uid, jobs in by_jobs.items():
            jobset = self.known.get(uid)
            assert jobset is not None
            self._add(jobs[0].source, Top(jobset.head, jobset, jobs={one.head.name: one.head for one in jobs}))
        self.parts += self._runtimes.values()

    def _take(self, maker: "InputObject", created: Callable[[int], datetime]) -> None:
        source, kind = Source(maker.raw, read_fields=ReadFields()), str(maker.raw.get("kind"))
        group = group_of(str(maker.raw.get("apiVersion")))
        if group in ("", "apps") and _is_bare(kind, maker.raw):
            self._loaded.makers.append(maker)
            return
        uid = made_up_uid(kind, maker.namespace, maker.name)
        read = head_of(source, uid=uid, created=exact_time(created(maker.order)))
        # the manifest's namespace may be a default that the raw object lacks
        found = WorkloadManifest(maker, changed(read, namespace=maker.namespace, name=maker.name), source)
        if (group, kind) in RUNTIMES:
            self._runtimes[kind, maker.namespace, maker.name] = found
        elif (group, kind) == VOLCANO_GROUP:
            self.groups[found.head.key] = VolcanoGroup.read(source, found.head)
            self.parts.append(found)
            self._tell(found)
        else:
            self._given.append(found)
            self._sources[found.head.uid] = source

    def _tell(self, given: WorkloadManifest) -> None:
        """Records the faults of a workload. A missing field is reported with the misspelt field that may explain it."""
        asked, found = given.source.read_fields, dict.fromkeys(given.source.faults)
        slips = {fault: tuple(_slips((fault,), asked)) for fault in found}
        # if a misspelt name explains why a required field is missing, only the misspelling is reported
        left = (fault for fault in found if not any(MEANT in slip.text for slip in slips[fault]))
        for fault in dict.fromkeys((*chain.from_iterable(slips.values()), *left)):
            self._loaded.fault_of(given.maker, fault)

    def _read(self, given: WorkloadManifest, above: Sequence[Workload]) -> None:
        """Reads one workload. above: its owners in the input, from its controller up to the top."""
        head = given.head
        if _child(head) is not None:
            self._read_parent(given)
            return
        workload = self.known.get(head.uid)
        assert workload is not None
        makes = not above or _child(above[0].head) is not None
        if not makes and not _is_unread(above):
            return  # its owner creates these pods
        self.parts.append(changed(given, workload=workload))
        if makes:
            top = above[-1].head if above else head
            # a suspended CronJob creates no more Jobs, but does not suspend the Jobs that exist
            held = top.kind != "CronJob" and top is not head and self._sources[top.uid].at("spec").flag("suspend")
            note = self._managed(given.source, head) or ("suspended" if held else "")
            self._add(given.source, Top(top, workload, note))

    def _read_parent(self, given: WorkloadManifest) -> None:
        """Reads a workload if the controller of a child object creates its pods.

        A child that is in the input is used; otherwise a child is generated.
        """
        head, source, child = given.head, given.source, _child(given.head)
        assert child is not None
        below = map(self.known.get, self.known.below(head.uid))
        if any(one is not None and one.head.kind == child.kind for one in below):
            return
        if head.kind == "RayJob" and source.at("status").text("jobDeploymentStatus") in ("Complete", "Failed"):
            self.tops.append(Top(head, None, "finished"))
            return
        if source.at("spec").has("clusterSelector"):
            self.warnings.append(f"RayJob {head.key}: uses a cluster that exists: no pods")
            self.tops.append(Top(head, None))
            return
        if head.kind == TRAIN_JOB[1]:
            key = runtime_key(source, head.namespace)
            runtime = self._runtimes.get(key)
            if runtime is None:
                source.at("spec").fault("runtimeRef", f'{key[0]} "{key[2]}" is not in the input')
                return
            runtime = self._runtimes[key] = changed(
                runtime, workload=workload_of(*child_of(child, runtime.source, head))
            )
            inner, made = jobset_of(source, head, runtime.source)
            workload = workload_of(inner, made)
            self._trained.append((given, runtime.source, changed(given, source=inner, workload=workload)))
            self.parts.append(given)
        else:
            inner, made = child_of(child, source, head)
            workload = workload_of(inner, made)
            self.parts.append(changed(given, workload=workload))
        self.known.put(workload)
        note = self._managed(source, head) or self._managed(inner, made) or workload.note
        self._add(inner, Top(head, workload, note))
        if head.kind == "RayJob" and not note:
            self._tell_submitter(source, head)

    def _managed(self, source: Source, head: Head) -> str:
        """Returns a note, and records a warning, if another controller manages the workload; empty for other
        workloads."""
        manager = other_manager(source, head)
        if manager:
            text = f"managedBy {manager}: that controller creates its pods, koordpy does not"
            self.warnings.append(f"{head.kind} {head.key}: {text}")
        return f"managed by {manager}" if manager else ""

    def _tell_submitter(self, source: Source, head: Head) -> None:
        """Warns that the pod or container that submits a RayJob is not created."""
        spec = source.at("spec")
        spec.knows("submitterPodTemplate")
        mode = spec.word("submissionMode", "K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
        what = {"K8sJobMode": "the pod", "SidecarMode": "the container of its head"}.get(mode)
        if what is not None:
            self.warnings.append(f"RayJob {head.key}: {what} that submits it is not created (submissionMode {mode})")

    def _add(self, source: Source, top: Top) -> None:
        workload = top.workload
        assert workload is not None
        self.tops.append(top)
        can_make(source.at("spec"), workload.sized_by, sum(role.number for role in workload.roles))

    def check(self, priorities: Priorities) -> None:
        """Records the faults of workloads, including templates with an unknown PriorityClass.

        A fault in the runtime that only a TrainJob causes is reported at the TrainJob.
        """
        for part in (*self.parts, *(jobset for _, _, jobset in self._trained)):
            for template in part.workload.templates() if part.workload is not None else ():
                if template.pod is not None and priorities.of_pod(template.pod.spec) is None:
                    name = template.pod.spec.priority_class_name
                    text = f"no PriorityClass {name} in the input{hint(name, priorities.classes)}"
                    if not self._loaded.is_faulty("PriorityClass", name):
                        part.source.faults.append(Fault(f"{template.path}.spec.priorityClassName", text))
                if template.pod is None:
                    continue
                for fault in volume_claim_faults(template.pod.spec):
                    part.source.faults.append(Fault(f"{template.path}.{fault.path}", fault.text))
                refusals = part.source.read_fields.refused if part.source.read_fields is not None else {}
                for refused in refused_resources(template.pod.spec):
                    refusals[Fault(f"{template.path}.{refused.path}", refused.text)] = None
        for given, runtime, jobset in self._trained:
            spec = given.source.at("spec")
            field = next(filter(spec.has, PATCHES), "trainer")
            for fault in () if given.source.faults or runtime.faults else jobset.source.faults:
                spec.fault(field, f"{fault.path} of its JobSet: {fault.text}")
        for one in (*self._given, *self._runtimes.values()):
            self._tell(one)

    def started(self, given: Sequence[str], faults: list[str]) -> frozenset[RoleKey]:
        """Returns the roles that `--started` names, and marks the roles before them as ended.

        Appends a fault for each text that does not name a role.
        """
        found: set[RoleKey] = set()
        for text in given:
            namespace, slash, rest = text.partition("/")
            name, colon, role = (rest if slash else text).rpartition(":")
            here = {
                (top.workload.head.uid, one.group, one.name)
                for top in self.tops
                if top.workload is not None
                and (not slash or top.head.namespace == namespace)
                and (not colon or name in (top.head.name, top.workload.head.name))
                for one in top.workload.roles
                if role in (one.name, one.name.removesuffix("-leaders"), one.name.removesuffix("-followers"))
            }
            if not here:
                faults.append(f"--started {text}: no workload of the input has such a role")
            found |= here
        self.tops = [
            changed(top, workload=with_ended(top.workload, found)) if top.workload is not None else top
            for top in self.tops
        ]
        for top in self.tops:
            if top.workload is not None:
                self.known.replace(top.workload)
        return frozenset(found)


def _owned(head: Head, by_uid: Mapping[str, Head], by_name: Mapping[tuple[str, str], Head]) -> Head:
    """Returns the head with the uid of its owner.

    The uid is that of the owner in the input. If the ownerReference has no uid, the owner is found by name; if it is
    not in the input, the uid is generated.
    """
    owner = head.owner
    if owner is None or owner.uid in by_uid:
        return head
    known = by_name.get((owner.kind, f"{head.namespace}/{owner.name}"))
    uid = known.uid if known is not None else owner.uid or made_up_uid(owner.kind, head.namespace, owner.name)
    return changed(head, owner=replace(owner, uid=uid))


def _child(head: Head) -> Child | None:
    kind = kind_of(head)
    return kind.child if kind is not None else None


MEANT = "did you mean"
"""Part of a fault's text if the field is similar to a known field."""
_EVERYWHERE = ("apiVersion", "kind", "metadata", "status")


def _slips(faults: Iterable[Fault], asked: ReadFields | None) -> Iterator[Fault]:
    """Yields the unknown fields that are in the mapping in which a required field is missing."""
    parts = asked.names.items() if asked is not None else ()
    for fault in faults:
        for path, (raw, names) in parts if fault.text == REQUIRED else ():
            way = fault.path.removeprefix(f"{path}.") if path else fault.path
            if (path and way == fault.path) or way.partition(".")[0].partition("[")[0] in raw:
                continue
            known = (*names, *_EVERYWHERE)
            for key in raw:
                if isinstance(key, str) and key not in known:
                    near = hint(key, known, closed=True)
                    yield Fault(key_path(path, key), f"unknown field, not read{near}" if near else "not read")


def _is_unread(above: Sequence[Workload]) -> bool:
    """Returns True if the controller is a JobSet that is not in the input, so that it is known only from its Jobs."""
    return bool(above) and above[0].head.kind == JOBSET and above[0].source is None


def _is_bare(kind: str, raw: Mapping[str, Any]) -> bool:
    """Returns True if the manifest has no pod template but only a selector, which spreading needs."""
    spec = raw.get("spec")
    selects = kind in ("StatefulSet", "ReplicaSet", "ReplicationController")
    return selects and not (isinstance(spec, Mapping) and "template" in spec)
