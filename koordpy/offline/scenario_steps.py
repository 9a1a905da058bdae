# SPDX-License-Identifier: Apache-2.0
"""Scenario steps of a simulation: each changes the objects at the end of a run, and gives the input of the next run.

A step begins when the run before it is stable. Bound pods stay bound, and pending pods stay pending. Objects that a
step adds are newer than all others. `simulate -o manifests` prints the objects at the end of the last run as manifests.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import timedelta
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from koordpy.api.claim_objects import ResourceClaim, ResourceSlice
from koordpy.api.custom_objects import Device
from koordpy.api.field_faults import InputFaultsError
from koordpy.api.keys import HOSTNAME
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import KubernetesObject, Node, Pod
from koordpy.api.spelling import hint
from koordpy.api.storage_objects import CSINode, PersistentVolume, PersistentVolumeClaim
from koordpy.api.times import exact_time
from koordpy.offline.loaded_manifests import DocumentPlace, Loaded, Manifest, identity_of
from koordpy.offline.manifests import laid_over, load_manifests
from koordpy.offline.preparing import FilledInput, Offline, assembled
from koordpy.offline.read_kinds import find_kind
from koordpy.pods.daemon_pods import copied_daemon
from koordpy.pods.object_book import object_key
from koordpy.simulation.claim_controllers import ClaimControllers
from koordpy.simulation.result_fields import object_order
from koordpy.simulation.simulated_rounds import made_again

Evicted = Literal["recreate", "drop"]
CORDON_TAINTS = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets on nodes."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod, which a kubelet runs from a local file."""
_OF_RUNS: dict[type[KubernetesObject], tuple[str, str]] = {
    Pod: ("v1", "Pod"),
    PersistentVolumeClaim: ("v1", "PersistentVolumeClaim"),
    ResourceClaim: ("resource.k8s.io/v1", "ResourceClaim"),
}
"""Type of the objects that runs create -> (apiVersion, kind)."""
_CHANGED_BY_RUNS: tuple[type[KubernetesObject], ...] = (PersistentVolumeClaim, PersistentVolume, ResourceClaim)


@dataclass(slots=True)
class Step:
    """One step as given on the command line."""

    kind: Literal["then", "drain", "fail-node", "add-nodes"]
    value: str
    """The file of the step `then`, the number of `add-nodes`, or the node of any other step."""
    like: str = ""
    """Node that `add-nodes` copies; empty for other steps."""

    @property
    def text(self) -> str:
        """The step's options, as on the command line."""
        more = f" --like {self.like}" if self.like else ""
        return f"--{self.kind} {self.value}{more}"


@dataclass(slots=True)
class Stepped:
    """The input of the next run, after a step was applied."""

    ready: Offline
    later: int
    """Number of objects that were created after `now` so far."""
    gone: list[str] = field(default_factory=list)
    """`namespace/name` of the pods that the step removed from their nodes."""


def load_steps(steps: Sequence[Step], first: Loaded) -> list[Loaded | None]:
    """Reads the manifests of each step; None for a step without manifests. Raises InputFaultsError with all faults."""
    found: list[Loaded | None] = []
    order, generated = first.order, first.generated
    faults: list[str] = []
    for step in steps:
        loaded = None
        if step.kind == "then":
            loaded = load_manifests([step.value], Loaded(order=order, generated=generated), nodes=False)
            order, generated = loaded.order, loaded.generated
            faults += loaded.fault_lines
        elif step.kind == "add-nodes" and not step.like:
            faults.append(f"--add-nodes {step.value}: --like NODE is missing")
        found.append(loaded)
    if faults:
        raise InputFaultsError(faults)
    return found


# -- objects at the end of a run --------------------------------------------------------------------------------------


def objects_left(ready: Offline) -> Loaded:
    """Returns the objects at the end of a run: those of the input with the run's changes, and those that it created."""
    loaded, state = ready.input.loaded, ready.state
    manifests: list[Manifest] = []
    known: set[tuple[type[KubernetesObject], str]] = set()
    failed = [one.name for one in loaded.manifests if isinstance(one.obj, Node) and state.nodes.get(one.name) is None]
    for manifest, obj in zip(loaded.manifests, ready.input.objects, strict=True):
        left: KubernetesObject | None = obj
        known.add((type(obj), object_key(obj)))
        if isinstance(obj, Pod):
            info = state.pod(obj.key)
            finished = obj.status.phase in ("Succeeded", "Failed")
            left = info.pod if info is not None else obj if finished else None
        elif isinstance(obj, _CHANGED_BY_RUNS):
            left = state.get(type(obj), object_key(obj))
        if any((isinstance(obj, Node) and obj.metadata.name == name) or _of_node(obj, name) for name in failed):
            continue
        if left is not None:
            manifests.append(changed(manifest, obj=left, raw=_raw_left(manifest, obj, left)))
    order = loaded.order
    for made in _made(ready, known):
        order += 1
        api_version, name = _OF_RUNS[type(made)]
        kind = find_kind(api_version, name)
        assert kind is not None
        meta = made.metadata
        title = f"{kind.name} {object_key(made)}"
        place = DocumentPlace("the run", title)
        manifests.append(
            Manifest(
                place, title, meta.namespace, meta.name, _raw_of(made, api_version, name), order, kind=kind, obj=made
            )
        )
    births = ready.input.births
    workloads = [changed(one, raw=_dated(one.raw, exact_time(births[one.order]))) for one in loaded.workloads]
    return Loaded(
        manifests=manifests,
        makers=list(loaded.makers),
        strangers=list(loaded.strangers),
        workloads=workloads,
        kinds_seen=set(loaded.kinds_seen),
        order=order,
        generated=loaded.generated,
        lenient=loaded.lenient,
    )


def _made(ready: Offline, known: set[tuple[type[KubernetesObject], str]]) -> Iterator[KubernetesObject]:
    """Yields pods and claims that the run created, in natural order."""
    snapshot = ready.state.snapshot(ready.now.timestamp())
    there: list[tuple[type[KubernetesObject], Iterable[KubernetesObject]]] = [
        (PersistentVolumeClaim, snapshot.storage.claims.values()),
        (ResourceClaim, ready.state.objects_of(ResourceClaim).values()),
        (Pod, (info.pod for info in ready.state.pods())),
    ]
    for kind, objects in there:
        made = [one for one in objects if (kind, object_key(one)) not in known]
        yield from sorted(made, key=lambda one: natural_key(object_key(one)))


def _raw_of(obj: KubernetesObject, api_version: str, kind: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, **_plain(obj)}


def _plain(obj: KubernetesObject) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(obj))
    return found


def _raw_left(manifest: Manifest, before: KubernetesObject, left: KubernetesObject) -> dict[str, Any]:
    """Returns the original manifest with the changes that the run and the API server's defaults made."""
    raw = manifest.raw
    if left is not before:
        whole = _plain(left)
        spec = {**raw.get("spec", {}), **_added(whole.get("spec", {}), _plain(before).get("spec", {}))}
        raw = {**raw, "spec": spec} if spec else dict(raw)
        if isinstance(left, Pod) and not left.spec.node_name:
            raw["spec"] = {key: value for key, value in raw["spec"].items() if key != "nodeName"}
        meta = {key: value for key, value in raw.get("metadata", {}).items() if key not in ("annotations", "uid")}
        meta |= {key: whole["metadata"][key] for key in ("annotations", "uid") if key in whole["metadata"]}
        raw = {**raw, "metadata": meta, "status": whole.get("status", {})}
        if not raw["status"]:
            del raw["status"]
    created = left.metadata.creation_timestamp
    return _dated(raw, created, again=left is not before) if created else raw


def _added(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in now.items() if before.get(key) != value}


def _dated(raw: dict[str, Any], created: str, *, again: bool = False) -> dict[str, Any]:
    """Returns the manifest with a creationTimestamp, for the order of creation. again: True to replace one."""
    meta = raw.get("metadata") or {}
    if meta.get("creationTimestamp") and not again:
        return raw
    return {**raw, "metadata": {**meta, "creationTimestamp": created}}


def manifests_left(ready: Offline) -> list[dict[str, Any]]:
    """Returns the objects at the end as documents for `simulate -f`: in the order of the input, created objects
    last."""
    left = objects_left(ready)
    found: dict[int, dict[str, Any]] = {one.order: one.raw for one in (*left.manifests, *left.rests)}
    for other in (*left.workloads, *left.makers, *left.strangers):
        found.setdefault(other.order, other.raw)
    return [found[order] for order in sorted(found)]


# -- the next run -----------------------------------------------------------------------------------------------------


def take_step(ready: Offline, step: Step, given: Loaded | None, *, evicted: Evicted, later: int) -> Stepped:
    """Applies a step to the objects at the end of a run. Raises InputFaultsError.

    given: manifests of the step; None if it has none. evicted: `recreate` or `drop`, for pods that the step removes
    from their nodes. later: number of objects created after `now` so far.
    """
    gone: list[str] = []
    if step.kind in ("drain", "fail-node"):
        _node_of(ready.input.loaded, step)
        fails = step.kind == "fail-node"
        later, gone = _empty_node(ready, step.value, fails=fails, evicted=evicted, later=later)
    left = objects_left(ready)
    changed_roles: frozenset[str] = frozenset()
    births: dict[int, Any] = {}
    if given is not None:
        known = {identity_of(one) for one in (*left.manifests, *left.workloads)}
        orders = [one.order for one in (*given.manifests, *given.workloads)]
        for order in sorted(set(orders)):
            later += 1
            births[order] = ready.now + timedelta(milliseconds=later)
        changed_roles = frozenset(
            f"{one.raw['kind']}/{one.namespace}/{one.name}" for one in given.workloads if identity_of(one) in known
        )
        left = laid_over(left, given)
    else:
        node = _node_of(left, step)
        if step.kind == "add-nodes":
            later = _add_nodes(left, step, node, ready, later)
        elif step.kind == "drain":
            _cordon(left, node)
        else:
            _without_node(left, node)
    done = frozenset(key for key in ready.growth.done() if not _is_changed(ready, key[0], changed_roles))
    filled = FilledInput(left, ready.now, births)
    after = assembled(filled, ready.config, ready.started, configuration=ready.configuration, done=done, later=later)
    after.state.preemption_history = ready.state.preemption_history
    return Stepped(after, later, gone)


def _is_changed(ready: Offline, uid: str, changed_roles: frozenset[str]) -> bool:
    found = ready.input.read.known.get(uid)
    return found is not None and f"{found.head.kind}/{found.head.key}" in changed_roles


def _node_of(left: Loaded, step: Step) -> Manifest:
    name = step.like or step.value
    nodes = {one.name: one for one in left.manifests if isinstance(one.obj, Node)}
    if name not in nodes:
        raise InputFaultsError([f"{step.text}: no node {name} at this step{hint(name, nodes)}"])
    if step.kind == "fail-node" and len(nodes) == 1:
        raise InputFaultsError([f"{step.text}: no node would be left"])
    return nodes[name]


def _empty_node(ready: Offline, name: str, *, fails: bool, evicted: Evicted, later: int) -> tuple[int, list[str]]:
    """Removes the pods from a node, and recreates them if `evicted` is `recreate`.

    Returns the number of objects created after `now` so far, and the keys of the removed pods. On a drained node, pods
    of DaemonSets and mirror pods remain. On a failed node (`fails`) they are deleted and not recreated.
    """
    state, controllers = ready.state, ClaimControllers(ready.state)
    there = sorted((one for one in state.pods() if one.node == name), key=lambda one: object_order(one.key))
    gone = [info.pod for info in there if not _stays_with_node(info.pod)]
    for info in there:
        if fails or not _stays_with_node(info.pod):
            state.delete(Pod, info.key)
            controllers.release(info.pod)
    if evicted == "recreate":
        for pod in gone:
            later += 1
            state.upsert(controllers.served(made_again(pod, later, ready.now)))
    return later, [pod.key for pod in gone]


def _without_node(left: Loaded, node: Manifest) -> None:
    left.manifests = [one for one in left.manifests if one is not node and not _of_node(one.obj, node.name)]


def _cordon(left: Loaded, node: Manifest) -> None:
    assert isinstance(node.obj, Node)
    obj = replace(node.obj, spec=replace(node.obj.spec, unschedulable=True))
    raw = {**node.raw, "spec": {**(node.raw.get("spec") or {}), "unschedulable": True}}
    left.manifests = [changed(one, obj=obj, raw=raw) if one is node else one for one in left.manifests]


def _stays_with_node(pod: Pod) -> bool:
    owner = pod.metadata.controller
    return (owner is not None and owner.kind == "DaemonSet") or MIRROR in pod.metadata.annotations


def _of_node(obj: KubernetesObject, name: str) -> bool:
    """Returns True if an object belongs to one node, and is deleted with the node."""
    if isinstance(obj, Device | CSINode):
        return obj.metadata.name == name
    return isinstance(obj, ResourceSlice) and obj.spec.node_name == name


def _add_nodes(left: Loaded, step: Step, node: Manifest, ready: Offline, later: int) -> int:
    """Adds copies of a node, with its Device, CSINode, ResourceSlices, and its bound DaemonSet and mirror pods.

    The copies have no other pods and are not cordoned. Returns the number of objects created after `now` so far.
    """
    taken = {one.name for one in left.manifests if isinstance(one.obj, Node)}
    own = [one for one in left.manifests if one is not node and _goes_with_node(one.obj, node.name)]
    number = 0
    for _ in range(int(step.value)):
        number += 1
        while f"{node.name}-copy-{number}" in taken:
            number += 1
        name = f"{node.name}-copy-{number}"
        later += 1
        created = exact_time(ready.now + timedelta(milliseconds=later))
        for one in (node, *own):
            left.order += 1
            obj = _copied(one.obj, node.name, name, created)
            title = f"{one.kind.name}/{obj.metadata.name}"
            raw = _raw_of(obj, str(one.raw.get("apiVersion") or "v1"), str(one.raw["kind"]))
            left.manifests.append(changed(one, title=title, name=obj.metadata.name, raw=raw, order=left.order, obj=obj))
    return later


def _goes_with_node(obj: KubernetesObject, name: str) -> bool:
    """Returns True if a copy of the node `name` gets a copy of this object."""
    if isinstance(obj, Pod):
        ended = obj.status.phase in ("Succeeded", "Failed") or obj.metadata.deletion_timestamp is not None
        return obj.spec.node_name == name and _stays_with_node(obj) and not ended
    return _of_node(obj, name)


def _copied(obj: KubernetesObject, old: str, new: str, created: str) -> KubernetesObject:
    meta = obj.metadata
    if isinstance(obj, Pod):
        pod = copied_daemon(obj, old, new)
        return replace(pod, metadata=replace(pod.metadata, uid="", creation_timestamp=created))
    name = new if meta.name == old else f"{meta.name}-{new}"
    labels = {**meta.labels, **({HOSTNAME: new} if HOSTNAME in meta.labels else {})}
    meta = replace(
        meta, name=name, uid="", creation_timestamp=created, deletion_timestamp=None, labels=labels, owner_references=[]
    )
    if isinstance(obj, Node):
        taints = [one for one in obj.spec.taints if not one.key.startswith(CORDON_TAINTS)]
        return replace(obj, metadata=meta, spec=replace(obj.spec, unschedulable=False, taints=taints))
    if isinstance(obj, Device):
        devices = [replace(one, id=f"{one.id}-{new}") if one.id else one for one in obj.spec.devices]
        return replace(obj, metadata=meta, spec=replace(obj.spec, devices=devices))
    if isinstance(obj, ResourceSlice):
        pool = replace(obj.spec.pool, name=new) if obj.spec.pool.name == old else obj.spec.pool
        return replace(obj, metadata=meta, spec=replace(obj.spec, node_name=new, pool=pool))
    return replace(obj, metadata=meta)
