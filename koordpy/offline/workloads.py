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
from koordpy.offline.kinds import group_of
from koordpy.sim.filling import Priorities, filled_pod, made_up_uid, with_identity
from koordpy.workloads.kinds.jobsets import JOBSET
from koordpy.workloads.kinds.registry import CHILDREN, RUNTIMES, TRAIN_JOB, VOLCANO_GROUP, child_of, workload_of
from koordpy.workloads.kinds.trainer import checked_runtime, jobset_of, runtime_key
from koordpy.workloads.known import Known
from koordpy.workloads.making import (
    Expansion,
    RoleKey,
    Top,
    with_ended,
)
from koordpy.workloads.model import Workload
from koordpy.workloads.podspecs import daemon_tolerations
from koordpy.workloads.source import AskedFields, Head, Source, can_make, head_of
from koordpy.workloads.volcano import VolcanoGroup

if TYPE_CHECKING:
    from koordpy.offline.manifests import InputObject, Loaded

RUNTIME_KINDS = {kind for _, kind in RUNTIMES}
SIZES = {
    "Job": "parallelism",
    "CronJob": "jobTemplate.spec.parallelism",
    "JobSet": "replicatedJobs",
    "TrainJob": "trainer.numNodes",
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "RayCluster": "workerGroupSpecs",
    "RayJob": "rayClusterSpec.workerGroupSpecs",
    "RayService": "rayClusterConfig.workerGroupSpecs",
}
"""Kind -> the field that is named where it makes too many pods; replicas of the others."""


Put = Callable[[KubernetesObject], None]
"""Takes an object into a state."""


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """A manifest that decides what pods are made."""

    maker: "InputObject"
    head: Head
    sources: tuple[tuple[Source, str], ...]
    """(what was read of it, where that stands in it)."""
    workload: Workload | None = None
    """With the pod templates that stand in it."""
    path: str = ""
    """Where the workload stands in it."""


def moved(path: str, into: str) -> str:
    """A path of the object that another makes, in that other one. into: where its spec stands there."""
    return into + path.removeprefix("spec") if into and path.startswith("spec") else path


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
        self.known = Known(pods.get)
        self.tops: list[Top] = []
        self.warnings: list[str] = []
        self.parts: list[WorkloadManifest] = []
        self._makers: dict[str, InputObject] = {}
        self._heads: list[tuple[InputObject, Source, Head]] = []
        self._sources: dict[str, Source] = {}
        self._runtimes: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        self._faulty: set[tuple[str, str, str]] = set()
        """Runtimes that are not used."""
        self.groups: dict[str, VolcanoGroup] = {}
        for maker in loaded.workloads:
            kind = str(maker.raw.get("kind"))
            if kind in RUNTIME_KINDS:
                runtime = Source(maker.raw, asked=AskedFields())
                self.parts.append(WorkloadManifest(maker, replaced(head_of(runtime), maker), ((runtime, ""),)))
                self._runtimes[kind, maker.namespace, maker.name] = checked_runtime(runtime)
                if runtime.faults:
                    self._faulty.add((kind, maker.namespace, maker.name))
                for fault in runtime.faults:
                    self._loaded.fault_of(maker, fault)
                continue
            if (group_of(str(maker.raw.get("apiVersion"))), kind) == VOLCANO_GROUP:
                found = Source(maker.raw)
                group = VolcanoGroup.of(found, replaced(head_of(found), maker))
                self.groups[group.head.key] = group
                for fault in found.faults:
                    self._loaded.fault_of(maker, fault)
                continue
            if group_of(str(maker.raw.get("apiVersion"))) in ("", "apps") and _is_bare(kind, maker.raw):
                loaded.makers.append(maker)
                continue
            source = Source(maker.raw, asked=AskedFields())
            uid = made_up_uid(kind, maker.namespace, maker.name)
            head = replaced(head_of(source, uid=uid, created=exact_time(created(maker.order))), maker)
            self._heads.append((maker, source, head))
            self._sources[head.uid] = source
        by_uid = {head.uid: head for _, _, head in self._heads}
        by_name = {(head.kind, head.key): head for _, _, head in self._heads if not head.has_uid}
        self._heads = [(maker, source, _owned(head, by_uid, by_name)) for maker, source, head in self._heads]
        for _, source, head in self._heads:
            self.known.put(workload_of(source, head))
        by_jobs: dict[str, list[tuple[InputObject, Head]]] = {}
        for maker, source, head in self._heads:
            above = self.known.above(head)
            if _is_unread(above):
                by_jobs.setdefault(above[0].head.uid, []).append((maker, head))
            self._read(maker, source, head, above)
        for uid, jobs in by_jobs.items():
            jobset = self.known.get(uid)
            assert jobset is not None
            self._add(jobs[0][0], Top(jobset.head, jobset, jobs={head.name: head for _, head in jobs}))
        for maker, source, _ in self._heads:
            for fault in source.faults:
                self._loaded.fault_of(maker, fault)

    def _read(self, maker: "InputObject", source: Source, head: Head, above: Sequence[Workload]) -> None:
        """above: the objects of the input that control it."""
        if (group_of(head.api_version), head.kind) in CHILDREN:
            self._read_parent(maker, source, head)
            return
        workload = self.known.get(head.uid)
        assert workload is not None
        makes = not above or (group_of(above[0].head.api_version), above[0].head.kind) in CHILDREN
        if not makes and not _is_unread(above):
            return  # the one above makes these pods
        self.parts.append(WorkloadManifest(maker, head, ((source, ""),), workload))
        if makes:
            top = above[-1].head if above else head
            held = top is not head and self._sources[top.uid].at("spec").flag("suspend")
            self._add(maker, Top(top, workload, "suspended" if held else ""))

    def _read_parent(self, maker: "InputObject", source: Source, head: Head) -> None:
        """An object that makes another, which makes the pods: in the input that stands for it."""
        group = group_of(head.api_version)
        child = CHILDREN[group, head.kind]
        below = map(self.known.get, self.known.below(head.uid))
        there = any(one is not None and one.head.kind == child.kind for one in below)
        if there:
            return
        ended = source.at("status").text("jobDeploymentStatus") in ("Complete", "Failed")
        if head.kind == "RayJob" and ended:
            self.tops.append(Top(head, None, "finished"))
            return
        if source.at("spec").has("clusterSelector"):
            self.warnings.append(f"RayJob {head.key}: uses a cluster that exists: no pods")
            self.tops.append(Top(head, None))
            return
        if (group, head.kind) == TRAIN_JOB:
            key = runtime_key(source, head.namespace)
            runtime = self._runtimes.get(key)
            if runtime is None:
                source.at("spec").fault("runtimeRef", f'{key[0]} "{key[2]}" is not in the input')
                return
            if key in self._faulty:
                return
            raw = jobset_of(source, head, runtime)
        else:
            raw = child_of(group, source, head)
        inner = Source(raw, asked=AskedFields())
        made = changed(replaced(head_of(inner, created=head.created), maker), has_uid=head.has_uid)
        workload = workload_of(inner, made)
        path = ".".join(child.path)
        for fault in inner.faults:
            self._loaded.fault_of(maker, Fault(moved(fault.path, path), fault.text))
        own = path != ""  # what a runtime says is told there
        sources = ((source, ""), (inner, path)) if own else ((source, ""),)
        self.parts.append(WorkloadManifest(maker, head, sources, workload if own else None, path))
        self.known.put(workload)
        self._add(maker, Top(head, workload, workload.note))

    def _add(self, maker: "InputObject", top: Top) -> None:
        workload = top.workload
        assert workload is not None
        self.tops.append(top)
        self._makers[workload.head.uid] = maker
        number = sum(role.number for role in workload.roles)
        spec = Source({}, "spec")
        can_make(spec, SIZES.get(top.head.kind, "replicas"), number)
        for fault in spec.faults:
            self._loaded.fault_of(maker, fault)

    def check(self, priorities: Priorities) -> None:
        """Takes down which templates name a PriorityClass that is not there."""
        for top in self.tops:
            if top.workload is None:
                continue
            maker = self._makers[top.workload.head.uid]
            for template in top.workload.templates():
                pod = template.pod
                if pod is not None and priorities.of_pod(pod.spec) is None:
                    name = pod.spec.priority_class_name
                    if not self._loaded.is_faulty("PriorityClass", name):
                        text = f"no PriorityClass {name} in the input{hint(name, priorities.classes)}"
                        self._loaded.fault_of(maker, Fault(f"{template.path}.spec.priorityClassName", text))

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


def _is_unread(above: Sequence[Workload]) -> bool:
    """Whether it stands below a JobSet that is not in the input, and is known by its Jobs."""
    return bool(above) and above[0].head.kind == JOBSET and above[0].source is None


def replaced(head: Head, maker: "InputObject") -> Head:
    """The head with the namespace that holds where none is given."""
    return changed(head, namespace=maker.namespace, name=maker.name)


def _is_bare(kind: str, raw: Mapping[str, Any]) -> bool:
    """Whether only its selector is given, as for spreading."""
    spec = raw.get("spec")
    selects = kind in ("StatefulSet", "ReplicaSet", "ReplicationController")
    return selects and not (isinstance(spec, Mapping) and "template" in spec)


class Growth:
    """Pods of workloads as a simulation makes them: those of the first steps, and later ones as they begin."""

    def __init__(
        self,
        expansion: Expansion,
        priorities: Priorities,
        state: ClusterState,
        put: Put,
        now: datetime,
    ) -> None:
        self._expansion, self._priorities, self._state, self._put = expansion, priorities, state, put
        self._now, self._later = now, 0

    def begin(self, *, later: bool = True) -> list[str]:
        """Makes the pods that begin now, as an API server would have them; their keys."""
        batch = self._expansion.make(self._node_of, self._label_of)
        for claim in batch.claims:
            found = decode(claim, PersistentVolumeClaim).value
            if found is not None:
                self._put(with_identity(found, kind="PersistentVolumeClaim", created=self._now))
        for pod in batch.pods:
            if later:
                self._later += 1
                created = exact_time(self._now + timedelta(milliseconds=self._later))
                pod = replace(pod, metadata=replace(pod.metadata, creation_timestamp=created))
            filled = filled_pod(pod, self._priorities)
            assert filled is not None  # Read.check has looked at its class
            self._put(filled)
        return [pod.key for pod in batch.pods]

    def document(self) -> list[dict[str, Any]]:
        """`workloads` of the output, in its order: what became of each workload of the input."""
        found = self._expansion.document(self._node_of)
        return sorted(found, key=lambda one: (natural_key(one["namespace"]), natural_key(one["name"]), one["kind"]))

    def _node_of(self, key: str) -> str:
        info = self._state.pod(key)
        return info.node if info is not None else ""

    def _label_of(self, key: str, label: str) -> str:
        node = self._state.node(self._node_of(key))
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
