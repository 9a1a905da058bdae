"""A pod as the planner sees it: its request, its place, its gang, its rank index."""

import re
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.bounded_memory import remembered
from koordpy.api.field_faults import UnreadableError
from koordpy.api.natural_order import natural_key, number
from koordpy.api.objects import Pod
from koordpy.api.pod_endings import is_success
from koordpy.api.quantity import is_extended
from koordpy.api.reading_limits import (
    CLAIMS,
    NAME_BYTES,
    PORTS,
    RESOURCES,
    SELECTOR_TERMS,
    SPEC_BYTES,
    TIES_BYTES,
    too_long,
    too_many,
)
from koordpy.api.times import seconds
from koordpy.decoding.annotation_settings import index_of
from koordpy.pods.device_asks import NO_ASKS, AskReaders, Asks
from koordpy.pods.gang_refs import GangRef, GangSource, GroupKey, gang_ref, gpu_group, upstream_key
from koordpy.pods.pod_owners import controller_of
from koordpy.pods.pod_ties import NO_TIES, Ties, host_ports, looked_at, selected_keys, ties_of
from koordpy.pods.resource_amounts import Amounts, add_amounts, asked_by

SUCCEEDED, FAILED = FINISHED = ("Succeeded", "Failed")


class Owner(NamedTuple):
    """What of a pod decides whose it is, as far as its own labels tell (quota-fairness.md 1 and 5). Pods of one
    namespace, quota and user share one."""

    namespace: str
    quota: str
    """Its quota label; empty for none."""
    queue: str
    """The quota that its group names; empty for none."""
    user: str
    """Its user label; empty for none that counts."""
    rigid: bool
    """Non-preemptible."""


class PodInfo(msgspec.Struct, frozen=True):
    """One pod. `node` is its node's name, empty while it is pending; an assumed pod has a node already."""

    pod: Pod
    key: str
    requests: Amounts
    score_requests: tuple[int, int]
    node: str
    pending: bool
    """Pending, ungated, not being deleted and for one of our scheduler names: to be placed."""
    gang: GangRef | None
    index: int | None
    created: float
    """Seconds since the epoch."""
    owner: Owner
    """Whose it is."""
    shape: bytes
    """Equal for pods that every filter and score treats alike; empty for pods that are not pending."""
    ties: Ties = NO_TIES
    """What of it concerns other pods."""
    group_priority: int | None = None
    """Priority of its upstream PodGroup, which counts instead of its own (kube-parity.md 6)."""
    group_policy: str = ""
    """The same of preemptionPolicy; empty where the group says none."""
    made_group: str = ""
    """`namespace/name` of its upstream PodGroup that its controller made by default, where another gang has it."""
    extended: bool = False
    """True if it asks for an extended resource or of a family of devices: no family has anything to say of any other
    pod."""
    asks: Asks = msgspec.field(default_factory=lambda: NO_ASKS)
    """Family of devices -> what it asks of it; empty for most pods."""

    @property
    def controller(self) -> str:
        """uid of its controlling owner; empty for none."""
        owner = self.pod.metadata.controller
        return owner.uid if owner is not None else ""

    @property
    def order(self) -> tuple[tuple[int, int], object]:
        """Its place among the pods of one gang: by index, then name in natural order (gang-network.md 2.5)."""
        return (0, self.index) if self.index is not None else (1, 0), natural_key(self.name)

    @property
    def group(self) -> GroupKey | None:
        """Its GPU group (gpu-topology.md 5)."""
        return gpu_group(self.pod)

    def ask(self, family: str) -> Any:
        """Returns what it asks of a family of devices; None for nothing."""
        return self.asks.get(family)

    @property
    def name(self) -> str:
        return self.pod.metadata.name

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def priority(self) -> int:
        return (self.pod.spec.priority or 0) if self.group_priority is None else self.group_priority

    @property
    def preemption_policy(self) -> str:
        """Never, or PreemptLowerPriority."""
        return self.group_policy or preemption_policy(self.pod)

    @property
    def finished(self) -> bool:
        return self.pod.status.phase in FINISHED

    @property
    def succeeded(self) -> bool:
        """True if it has done its part, as far as the pod itself tells (gang-network.md 2.4)."""
        return is_success(self.pod)

    @property
    def bound(self) -> bool:
        """On a node and still there: holds room, and is a member of its gang."""
        return bool(self.node) and not self.finished

    @property
    def nominated_node(self) -> str:
        """Node that room is kept on while the pod has none (kube-parity.md 2.2)."""
        if self.node or self.finished or self.pod.spec.scheduling_gates or self.pod.metadata.deletion_timestamp:
            return ""
        return self.pod.status.nominated_node_name

    @property
    def selector(self) -> str:
        """Value of the network-topology-selector; empty for none."""
        return self.pod.metadata.annotations.get(keys.TOPOLOGY_SELECTOR, "")


def stays(info: PodInfo) -> bool:
    """Whether a pod never makes room: one of a DaemonSet, or a mirror of a static one. Such pods come straight back."""
    meta = info.pod.metadata
    return keys.MIRROR in meta.annotations or any(o.kind == "DaemonSet" and o.controller for o in meta.owner_references)


@remembered(1 << 14)
def _owner(namespace: str, quota: str, queue: str, user: str, rigid: bool) -> Owner:
    return Owner(namespace, quota, queue, user, rigid)


def preemption_policy(pod: Pod) -> str:
    """Never, or PreemptLowerPriority, which an API server fills in."""
    return pod.spec.preemption_policy or keys.PREEMPT_LOWER_PRIORITY


def non_preemptible(pod: Pod) -> bool:
    """Whether the pod says that no rule may evict it: its quota's min has to hold it (quota-fairness.md 5)."""
    labels = pod.metadata.labels
    return labels.get(keys.QUOTA_PREEMPTIBLE) == "false" or labels.get(keys.DISABLE_PREEMPTIBLE) == "true"


def owner_in(pod: Pod, *, counts: bool = True, queue: str = "") -> Owner:
    """Whose a pod is; counts: whether what it says of its user and of evictions does; queue: its quota where it names
    none and there is one of that name."""
    labels = pod.metadata.labels
    quota, user = labels.get(keys.QUOTA_NAME, ""), labels.get(keys.QUOTA_USER, "") if counts else ""
    return _owner(pod.metadata.namespace, quota, queue, user, counts and non_preemptible(pod))


def in_group(info: PodInfo, priority: int | None, policy: str = "") -> PodInfo:
    """The pod with the priority and the preemptionPolicy of its upstream PodGroup, or with its own again."""
    if policy != info.group_policy:
        info = replace(info, group_policy=policy)
    if priority == info.group_priority:
        return info
    shape = info.shape.partition(_PRIORITY)[0]
    if shape and priority is not None:
        shape += _PRIORITY + str(priority).encode()
    return replace(info, group_priority=priority, shape=shape)


_PRIORITY = b"\nof the group: "
"""Nominated pods concern those of lower priority only, so the shape tells priorities apart; JSON holds no newline."""


_TRAILING = re.compile(r"([0-9]+)$", re.ASCII)


def rank_index(pod: Pod, by_workload: int | None = None) -> int | None:
    """Index of a pod within its gang (gang-network.md 2.5); None sorts last. by_workload: what its workload gives."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    for text in (
        labels.get(keys.RANK_INDEX_LABEL),
        annotations.get(keys.RANK_INDEX_ANNOTATION) or annotations.get(keys.RANK_INDEX_ANNOTATION_LONG),
        str(by_workload) if by_workload is not None else "",
        labels.get(keys.JOB_COMPLETION_INDEX),
        annotations.get(keys.JOB_COMPLETION_INDEX),
    ):
        if text and (index := index_of(text)) is not None:
            return index
    match = _TRAILING.search(pod.metadata.name)
    return number(match[1]) if match else None


def total_requests(pods: Iterable[PodInfo]) -> Amounts:
    total: Amounts = {}
    for pod in pods:
        add_amounts(total, pod.requests)
    return total


def shape_of(
    pod: Pod,
    requests: Amounts,
    scored: tuple[int, int],
    looked_for: Collection[str] = (),
    *,
    owned: bool = False,
    devices: Sequence[object] = (),
    queue: str = "",
) -> bytes:
    """Everything a filter or a score may look at, except the name; pods of one template share it.

    Volumes without a source that binds the pod to a node are left out: their generated names differ from pod to pod.
    Of the labels only those count that some selector looks for (`looked_for`, and the pod's own selectors): indexes
    and the like differ in every pod. `scored`: cpu and memory as scores count them, which differs for equal requests
    where a container has none. `owned`: pods without constraints of spread are spread by their controllers.
    `devices`: what families of devices tell it apart by (`AskReaders.shape`). `queue`: as in `owner_in`.
    """
    return _short(_said(pod, requests, scored, looked_for, owned=owned, devices=devices, queue=queue))


_LONG_SHAPE = 1 << 10
"""Bytes of a shape above which it is known by its digest: what keeps it may be many."""


def _short(shape: bytes) -> bytes:
    return sha256(shape).digest() if len(shape) > _LONG_SHAPE else shape


def _said(
    pod: Pod,
    requests: Amounts,
    scored: tuple[int, int],
    looked_for: Collection[str],
    *,
    owned: bool,
    devices: Sequence[object],
    queue: str,
) -> bytes:
    spec = pod.spec
    volumes = [volume for volume in spec.volumes if looked_at(volume)]
    own = selected_keys(pod) if spec.topology_spread_constraints or spec.affinity is not None else ()
    labels = pod.metadata.labels
    selected = sorted(item for item in labels.items() if item[0] in looked_for or item[0] in own)
    owner = controller_of(pod.metadata) if owned and not spec.topology_spread_constraints else None
    ephemeral = any(volume.ephemeral is not None for volume in volumes)
    return msgspec.json.encode(
        (
            pod.metadata.namespace,
            sorted(requests.items()),
            scored,
            spec.node_selector and sorted(spec.node_selector.items()),
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            sorted(host_ports(pod)),
            volumes,
            ephemeral and pod.metadata.name,
            spec.resource_claims and (spec.resource_claims, pod.status.resource_claim_statuses, upstream_key(pod)),
            [c.image for c in (*spec.init_containers, *spec.containers)],
            spec.priority or 0,
            selected,
            pod.metadata.annotations.get(keys.TOPOLOGY_SELECTOR, ""),
            owner and (owner.api_version, owner.kind, owner.name),
            devices,
            (labels.get(keys.QUOTA_NAME, ""), queue, non_preemptible(pod)),
        )
    )


def _above_limits(pod: Pod) -> str:
    """Which limit a pod to be placed breaks; empty for none. No quantity is read for that."""
    spec = pod.spec
    if fault := too_long(pod.metadata.annotations.get(keys.GANG_NAME, ""), NAME_BYTES):
        return f"metadata.annotations[{keys.GANG_NAME}]: {fault}"
    asked = [spec.resources, *(one.resources for one in (*spec.containers, *spec.init_containers))]
    names = {name for one in asked if one is not None for part in (one.requests, one.limits) for name in part}
    if fault := too_many(len(names), RESOURCES, "resources"):
        return f"spec.containers: {fault}"
    ports = sum(port.host_port > 0 for one in (*spec.containers, *spec.init_containers) for port in one.ports)
    if fault := too_many(ports, PORTS, "host ports"):
        return f"spec.containers: {fault}"
    claims = sum(bool(one.persistent_volume_claim or one.ephemeral is not None) for one in spec.volumes)
    if fault := too_many(claims, CLAIMS, "claims"):
        return f"spec.volumes: {fault}"
    if spec.topology_spread_constraints or spec.affinity is not None:
        near = spec.affinity and (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity)
        size = len(msgspec.json.encode((near, spec.topology_spread_constraints)))
        if fault := too_many(size, TIES_BYTES, "bytes that say beside which pods it may run"):
            return f"spec: {fault}"
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None:
        return ""
    terms = [*(affinity.required.node_selector_terms if affinity.required else ())]
    terms += [one.preference for one in affinity.preferred]
    entries = len(terms) + sum(len(term.match_expressions) for term in terms)
    fault = too_many(entries, SELECTOR_TERMS, "terms and expressions")
    return fault and f"spec.affinity.nodeAffinity: {fault}"


_NO_READERS = AskReaders()


def pod_info(
    pod: Pod,
    *,
    scheduler_names: frozenset[str],
    assumed_node: str = "",
    looked_for: Collection[str] = (),
    owned: bool = False,
    readers: AskReaders = _NO_READERS,
    labels_count: bool = True,
    volcano: bool = False,
    queue: str = "",
    follows: tuple[GangRef | None, int | None] = (None, None),
) -> PodInfo:
    """Reads one pod; looked_for, owned: as in `shape_of`; readers: of what it asks of devices; labels_count: as in
    `owner_in`; volcano: as in `gang_ref`; queue: as in `owner_in`; follows: (gang, rank index) so far: an unfinished
    pod that names no gang keeps them where they follow from workloads.

    Raises UnreadableError for an unreadable quantity, or a pod to be placed that asks for more than is read (`limits`).
    """
    spec, meta = pod.spec, pod.metadata
    node = spec.node_name or assumed_node
    pending = (
        not node
        and not spec.scheduling_gates
        and not meta.deletion_timestamp
        and pod.status.phase not in FINISHED
        and spec.scheduler_name in scheduler_names
    )
    if pending and (fault := _above_limits(pod)):
        raise UnreadableError(fault)
    requests, scored = asked_by(pod)
    gang, index = gang_ref(pod, volcano=volcano), None
    if gang is None and follows[0] is not None and follows[0].source is GangSource.WORKLOAD:
        gang, index = follows if pod.status.phase not in FINISHED else (None, None)
    elif gang is not None or gpu_group(pod) is not None:
        index = rank_index(pod)
    asks = readers.read(pod, requests, pending=pending)
    devices = readers.shape(pod, asks) if asks and pending else ()
    shape = _said(pod, requests, scored, looked_for, owned=owned, devices=devices, queue=queue) if pending else b""
    if fault := too_many(len(shape), SPEC_BYTES, "bytes that decide where it may go"):
        raise UnreadableError(f"spec: {fault}")
    return PodInfo(
        pod=pod,
        key=pod.key,
        requests=requests,
        score_requests=scored,
        node=node,
        pending=pending,
        gang=gang,
        index=index,
        created=seconds(meta.creation_timestamp),
        owner=owner_in(pod, counts=labels_count, queue=queue),
        shape=_short(shape),
        ties=ties_of(pod),
        extended=bool(asks) or any(map(is_extended, requests)),
        asks=asks,
    )
