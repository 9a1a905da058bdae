"""Workloads of the input: read, told apart, and their pods made.

Source: workloads.md 10.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordpy.api.faults import Fault
from koordpy.api.natural import natural_key
from koordpy.api.objects import KubernetesObject, Node, Pod
from koordpy.api.spelling import hint
from koordpy.api.storage import PersistentVolumeClaim
from koordpy.api.strict import decode
from koordpy.api.times import exact_time
from koordpy.cluster.state import ClusterState
from koordpy.offline.children import child_of, jobset_of, runtime_key
from koordpy.offline.kinds import group_of
from koordpy.offline.owners import KnownByName
from koordpy.sim.filling import Priorities, filled_pod, made_up_uid, with_identity
from koordpy.sim.making import (
    Expansion,
    RoleKey,
    Top,
    with_ended,
)
from koordpy.sim.podspecs import daemon_tolerations
from koordpy.workloads.kinds.jobsets import JOBSET
from koordpy.workloads.kinds.registry import (
    RUNTIMES,
    TRAIN_JOB,
    VOLCANO_GROUP,
    Child,
    kind_of,
    workload_of,
)
from koordpy.workloads.model import Workload
from koordpy.workloads.source import AskedFields, Head, Source, can_make, head_of
from koordpy.workloads.volcano import VolcanoGroup

if TYPE_CHECKING:
    from koordpy.offline.manifests import InputObject, Loaded


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """A manifest that decides what pods are made."""

    maker: "InputObject"
    head: Head
    source: Source
    workload: Workload | None = None
    """With the pod templates that stand in it."""


class Read:
    """The workloads of the input."""

    def __init__(self, loaded: "Loaded", created: Callable[[int], datetime]) -> None:
        """created: order in the input -> made-up time."""
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
        """(a TrainJob, its runtime, the JobSet that it makes)."""
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
        source, kind = Source(maker.raw, asked=AskedFields()), str(maker.raw.get("kind"))
        group = group_of(str(maker.raw.get("apiVersion")))
        if group in ("", "apps") and _is_bare(kind, maker.raw):
            self._loaded.makers.append(maker)
            return
        uid = made_up_uid(kind, maker.namespace, maker.name)
        read = head_of(source, uid=uid, created=exact_time(created(maker.order)))
        # with the namespace that holds where none is given
        found = WorkloadManifest(maker, changed(read, namespace=maker.namespace, name=maker.name), source)
        if (group, kind) in RUNTIMES:
            self._runtimes[kind, maker.namespace, maker.name] = found
        elif (group, kind) == VOLCANO_GROUP:
            self.groups[found.head.key] = VolcanoGroup.of(source, found.head)
            self.parts.append(found)
            self._tell(found)
        else:
            self._given.append(found)
            self._sources[found.head.uid] = source

    def _tell(self, given: WorkloadManifest) -> None:
        for fault in dict.fromkeys(given.source.faults):
            self._loaded.fault_of(given.maker, fault)

    def _read(self, given: WorkloadManifest, above: Sequence[Workload]) -> None:
        """above: the objects of the input that control it."""
        head = given.head
        if _child(head) is not None:
            self._read_parent(given)
            return
        workload = self.known.get(head.uid)
        assert workload is not None
        makes = not above or _child(above[0].head) is not None
        if not makes and not _is_unread(above):
            return  # the one above makes these pods
        self.parts.append(changed(given, workload=workload))
        if makes:
            top = above[-1].head if above else head
            # a CronJob that is suspended starts no more of its Jobs, and leaves those that have begun alone
            held = top.kind != "CronJob" and top is not head and self._sources[top.uid].at("spec").flag("suspend")
            self._add(given.source, Top(top, workload, "suspended" if held else ""))

    def _read_parent(self, given: WorkloadManifest) -> None:
        """An object that makes another, which makes the pods: in the input that stands for it."""
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
        self._add(inner, Top(head, workload, workload.note))

    def _add(self, source: Source, top: Top) -> None:
        workload = top.workload
        assert workload is not None
        self.tops.append(top)
        can_make(source.at("spec"), workload.sized_by, sum(role.number for role in workload.roles))

    def check(self, priorities: Priorities) -> None:
        """Tells what is wrong with workloads, and which templates name a PriorityClass that is not there. What a
        TrainJob alone makes wrong of a runtime is told of it."""
        for part in (*self.parts, *(jobset for _, _, jobset in self._trained)):
            for template in part.workload.templates() if part.workload is not None else ():
                if template.pod is not None and priorities.of_pod(template.pod.spec) is None:
                    name = template.pod.spec.priority_class_name
                    text = f"no PriorityClass {name} in the input{hint(name, priorities.classes)}"
                    if not self._loaded.is_faulty("PriorityClass", name):
                        part.source.faults.append(Fault(f"{template.path}.spec.priorityClassName", text))
        for given, runtime, jobset in self._trained:
            spec = given.source.at("spec")
            field = "runtimePatches" if spec.has("runtimePatches") else "trainer"
            for fault in () if given.source.faults or runtime.faults else jobset.source.faults:
                spec.fault(field, f"{fault.path} of its JobSet: {fault.text}")
        for one in (*self._given, *self._runtimes.values()):
            self._tell(one)

    def started(self, given: Sequence[str], faults: list[str]) -> frozenset[RoleKey]:
        """What `--started` names."""
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
    """The head with the uid of its owner as the input has it, by name where that has none; made up where it has no such
    object."""
    owner = head.owner
    if owner is None or owner.uid in by_uid:
        return head
    known = by_name.get((owner.kind, f"{head.namespace}/{owner.name}"))
    uid = known.uid if known is not None else owner.uid or made_up_uid(owner.kind, head.namespace, owner.name)
    return changed(head, owner=replace(owner, uid=uid))


def _child(head: Head) -> Child | None:
    kind = kind_of(head)
    return kind.child if kind is not None else None


def _is_unread(above: Sequence[Workload]) -> bool:
    """Whether it stands below a JobSet that is not in the input, and is known by its Jobs."""
    return bool(above) and above[0].head.kind == JOBSET and above[0].source is None


def _is_bare(kind: str, raw: Mapping[str, Any]) -> bool:
    """Whether only its selector is given, as for spreading."""
    spec = raw.get("spec")
    selects = kind in ("StatefulSet", "ReplicaSet", "ReplicationController")
    return selects and not (isinstance(spec, Mapping) and "template" in spec)


class Growth(Expansion):
    """Pods of workloads as a simulation makes them: those of the first steps, and later ones as they begin."""

    def __init__(
        self,
        read: Read,
        objects: Sequence[KubernetesObject],
        started: frozenset[RoleKey],
        priorities: Priorities,
        state: ClusterState,
        put: Callable[[KubernetesObject], None],
        now: datetime,
    ) -> None:
        """objects: of the input; put: takes one into the state."""
        self._priorities, self._state, self._take, self._now = priorities, state, put, now
        self._later = -1
        """Pods that were made after those of the first steps."""
        nodes = [obj for obj in objects if isinstance(obj, Node)]
        claims = [obj.metadata for obj in objects if isinstance(obj, PersistentVolumeClaim)]
        super().__init__(
            read.known,
            read.tops,
            [obj for obj in objects if isinstance(obj, Pod)],
            self._node_in,
            self._label_in,
            claims=[f"{meta.namespace}/{meta.name}" for meta in claims],
            daemons=lambda pod: daemon_nodes(nodes, pod),
            started=started,
        )

    def begin(self) -> list[str]:
        """Makes the pods that begin now, as an API server would have them; their keys."""
        pods, claims = self.make()
        for claim in claims:
            found = decode(claim, PersistentVolumeClaim).value
            if found is not None:
                self._take(with_identity(found, kind="PersistentVolumeClaim", created=self._now))
        for pod in pods:
            if self._later >= 0:
                self._later += 1
                created = exact_time(self._now + timedelta(milliseconds=self._later))
                pod = replace(pod, metadata=replace(pod.metadata, creation_timestamp=created))
            filled = filled_pod(pod, self._priorities)
            assert filled is not None  # Read.check has looked at its class
            self._take(filled)
        self._later = max(self._later, 0)
        return [pod.key for pod in pods]

    def _node_in(self, key: str) -> str:
        info = self._state.pod(key)
        return info.node if info is not None else ""

    def _label_in(self, key: str, label: str) -> str:
        node = self._state.nodes.get(self._node_in(key))
        return node.labels.get(label, "") if node is not None else ""


def daemon_nodes(nodes: Sequence[Node], pod: Pod) -> list[str]:
    """Names of the nodes that a DaemonSet's pod is for: by labels, required affinity and taints."""
    from koordpy.cluster.selectors import term_matches
    from koordpy.planning.filters.node import repels

    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    out = []
    for node in nodes:
        name, labels = node.metadata.name, node.metadata.labels
        if not pod.spec.node_selector.items() <= labels.items():
            continue
        if required is not None and not any(term_matches(one, name, labels) for one in required.node_selector_terms):
            continue
        if not any(repels(taint, daemon_tolerations(pod.spec)) for taint in node.spec.taints):
            out.append(name)
    return sorted(out, key=natural_key)
