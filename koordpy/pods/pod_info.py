# SPDX-License-Identifier: Apache-2.0
"""Defines `PodInfo`, a pod as the planner uses it: requests, node, gang, rank index, owner and shape.

`pod_info` parses each version of a pod once. It reads all labels, annotations and fields that later steps need, so that
a round does not parse pods.
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.bounded_memory import cached
from koordpy.api.field_faults import UnreadableError
from koordpy.api.natural_order import natural_key
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
from koordpy.pods.device_asks import NO_ASKS, AskReaders, Asks
from koordpy.pods.gang_refs import GangRef, GangSource, GroupKey, gang_ref, gpu_group, rank_index, upstream_key
from koordpy.pods.pod_owners import controller_of
from koordpy.pods.pod_ties import NO_TIES, Ties, host_ports, looked_at, selected_keys, ties_of
from koordpy.pods.resource_amounts import NOTHING_CLAIMED, Amounts, ClaimedAmounts, add_amounts, asked_by, sum_of

SUCCEEDED, FAILED = FINISHED = ("Succeeded", "Failed")


class Owner(NamedTuple):
    """The namespace, quota and user to which a pod is charged, as the pod states them (quota-fairness.md 1 and 5). Pods
    with equal values share one object."""

    namespace: str
    quota: str
    """Value of the pod's quota label; empty if the pod has none."""
    queue: str
    """Quota that the pod's Volcano PodGroup names; empty if it names none."""
    user: str
    """Value of the pod's user label; empty if the pod has none, or if such labels are ignored in its namespace."""
    rigid: bool
    """True if the pod is non-preemptible."""


class PodInfo(msgspec.Struct, frozen=True):
    """One pod, immutable. `node`: name of its node, empty while it has none; an assumed pod has a node already."""

    pod: Pod
    key: str
    """`namespace/name` of the pod."""
    requests: Amounts
    score_requests: tuple[int, int]
    """(millicores of cpu, bytes of memory) as scores count them."""
    node: str
    pending: bool
    """True if the pod must be placed: unbound, ungated, not ending, and with one of our scheduler names."""
    gang: GangRef | None
    """Gang of the pod; None for a pod without a gang."""
    index: int | None
    """Rank index of the pod in its gang; None if the pod has none."""
    created: float
    """Creation time in seconds since 1970."""
    owner: Owner
    """Namespace, quota and user to which the pod is charged."""
    shape: bytes
    """Equivalence class: equal for pods that every filter and score treats alike; empty if the pod is not pending."""
    ties: Ties = NO_TIES
    """Host ports, affinity terms and volumes: the parts of the pod that constrain other pods."""
    group_priority: int | None = None
    """Priority of the pod's upstream PodGroup, which replaces the pod's (kube-parity.md 6); None without one."""
    group_policy: str = ""
    """preemptionPolicy of the pod's upstream PodGroup, which replaces that of the pod; empty without one."""
    made_group: str = ""
    """`namespace/name` of the upstream PodGroup that the pod's controller created by default, if the pod is in another
    gang."""
    extended: bool = False
    """True if the pod requests an extended resource or devices of a family; families ignore all other pods."""
    lost: bool = False
    """True for a gang's pod on a failed or deleted node: not counted as a member or in quotas (repair.md 4.1)."""
    asks: Asks = msgspec.field(default_factory=lambda: NO_ASKS)
    """Device family -> ask of the pod (`device_asks.py`); empty for most pods."""
    claimed: ClaimedAmounts = NOTHING_CLAIMED
    """Devices of resource claims that quotas count for the pod, by resource; empty for most pods."""

    @property
    def charged(self) -> Amounts:
        """Amounts that quotas count for the pod: requests and devices of claims (dra.md 11). Must not be changed."""
        return sum_of(self.requests, self.claimed.total) if self.claimed.total else self.requests

    @property
    def demanded(self) -> Amounts:
        """The part of `charged` that counts as demand. A claim of several pending pods counts for one of them."""
        after = self.claimed.after_others
        return sum_of(self.charged, after, -1) if after else self.charged

    @property
    def charged_alone(self) -> Amounts:
        """The part of `charged` that is equal for pods of one shape: without claims that other pods name."""
        others = self.claimed.with_others
        return sum_of(self.charged, others, -1) if others else self.charged

    @property
    def controller(self) -> str:
        """uid of the controlling owner; empty without one."""
        owner = self.pod.metadata.controller
        return owner.uid if owner is not None else ""

    @property
    def order(self) -> tuple[tuple[int, int], object]:
        """Sort key among the pods of one gang: index, then name in natural order (gang-network.md 2.5)."""
        return (0, self.index) if self.index is not None else (1, 0), natural_key(self.name)

    @property
    def group(self) -> GroupKey | None:
        """GPU group of the pod (gpu-topology.md 5); None without one."""
        return gpu_group(self.pod)

    def ask(self, family: str) -> Any:
        """Returns the pod's ask of one device family; None without one."""
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
        """Priority of the pod's upstream PodGroup if it has one, else of the pod; 0 by default."""
        return (self.pod.spec.priority or 0) if self.group_priority is None else self.group_priority

    @property
    def preemption_policy(self) -> str:
        """`Never` or `PreemptLowerPriority`."""
        return self.group_policy or preemption_policy(self.pod)

    @property
    def finished(self) -> bool:
        """True if the phase is Succeeded or Failed."""
        return self.pod.status.phase in FINISHED

    @property
    def succeeded(self) -> bool:
        """True if the pod has completed its work, as far as the pod alone shows (gang-network.md 2.4)."""
        return is_success(self.pod)

    @property
    def bound(self) -> bool:
        """True if the pod is on a node and has not ended: it uses capacity, and is a member of its gang."""
        return bool(self.node) and not self.finished

    @property
    def nominated_node(self) -> str:
        """Node on which capacity is reserved for the unbound pod; empty without one (kube-parity.md 2.2)."""
        if self.node or self.finished or self.pod.spec.scheduling_gates or self.pod.metadata.deletion_timestamp:
            return ""
        return self.pod.status.nominated_node_name

    @property
    def selector(self) -> str:
        """Value of the annotation network-topology-selector; empty without it."""
        return self.pod.metadata.annotations.get(keys.TOPOLOGY_SELECTOR, "")


def stays(info: PodInfo) -> bool:
    """Returns True for a DaemonSet or mirror pod: its eviction frees nothing, because it is recreated on its node."""
    meta = info.pod.metadata
    return keys.MIRROR in meta.annotations or any(o.kind == "DaemonSet" and o.controller for o in meta.owner_references)


@cached(1 << 14)
def _owner(namespace: str, quota: str, queue: str, user: str, rigid: bool) -> Owner:
    return Owner(namespace, quota, queue, user, rigid)


def preemption_policy(pod: Pod) -> str:
    """Returns `Never` or `PreemptLowerPriority`, the default of the API server."""
    return pod.spec.preemption_policy or keys.PREEMPT_LOWER_PRIORITY


def non_preemptible(pod: Pod) -> bool:
    """Returns True if labels forbid evictions of the pod; it must then fit its quota's min (quota-fairness.md 5)."""
    labels = pod.metadata.labels
    return labels.get(keys.QUOTA_PREEMPTIBLE) == "false" or labels.get(keys.DISABLE_PREEMPTIBLE) == "true"


def owner_in(pod: Pod, *, counts: bool = True, queue: str = "") -> Owner:
    """Returns the owner of a pod. counts: False if user and non-preemptible labels are ignored in its namespace. queue:
    an existing quota that its Volcano PodGroup names, used if the pod has no quota label."""
    labels = pod.metadata.labels
    quota, user = labels.get(keys.QUOTA_NAME, ""), labels.get(keys.QUOTA_USER, "") if counts else ""
    return _owner(pod.metadata.namespace, quota, queue, user, counts and non_preemptible(pod))


def in_group(info: PodInfo, priority: int | None, policy: str = "") -> PodInfo:
    """Returns the pod with the priority and preemptionPolicy of its upstream PodGroup; None and "" mean its own."""
    if policy != info.group_policy:
        info = replace(info, group_policy=policy)
    if priority == info.group_priority:
        return info
    shape = info.shape.partition(_PRIORITY)[0]
    if shape and priority is not None:
        shape += _PRIORITY + str(priority).encode()
    return replace(info, group_priority=priority, shape=shape)


_PRIORITY = b"\nof the group: "
"""Separator between the pod's own shape and the priority of its group. Nominated pods only reserve capacity against
pods of lower priority, so shapes must differ by priority. Encoded JSON contains no newline, so the separator is
unambiguous."""


def total_charges(pods: Iterable[PodInfo]) -> Amounts:
    """Returns the sum of the amounts that quotas count for pods (`PodInfo.charged`)."""
    total: Amounts = {}
    for pod in pods:
        add_amounts(total, pod.charged)
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
    """Returns the equivalence class of a pod: everything that a filter or a score may read, except the name.

    Pods of one template share it. Volumes that do not tie the pod to a node are left out, because their generated names
    differ. Labels are left out unless a selector reads them (`looked_for`, or the pod's own selectors), because labels
    such as indexes differ in every pod. scored: cpu and memory as scores count them, which may differ for equal
    requests if a container has none. owned: True if pods without spread constraints are spread by controller. devices:
    result of `AskReaders.shape`. queue: as in `owner_in`.
    """
    return _bounded_shape(_encoded(pod, requests, scored, looked_for, owned=owned, devices=devices, queue=queue))


_LONG_SHAPE = 1 << 10
"""Maximum length of a shape in bytes. A longer shape is replaced by its digest, to limit memory."""


def _bounded_shape(shape: bytes) -> bytes:
    return sha256(shape).digest() if len(shape) > _LONG_SHAPE else shape


def _encoded(
    pod: Pod,
    requests: Amounts,
    scored: tuple[int, int],
    looked_for: Collection[str],
    *,
    owned: bool,
    devices: Sequence[object],
    queue: str,
) -> bytes:
    """Returns the equivalence class of a pod as JSON; arguments as in `shape_of`."""
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
            [(c.image, c.restart_policy_rules) for c in (*spec.init_containers, *spec.containers)],
            (spec.priority or 0, spec.host_network and spec.host_users),
            selected,
            pod.metadata.annotations.get(keys.TOPOLOGY_SELECTOR, ""),
            owner and (owner.api_version, owner.kind, owner.name),
            devices,
            (labels.get(keys.QUOTA_NAME, ""), queue, non_preemptible(pod)),
        )
    )


def _above_limits(pod: Pod) -> str:
    """Returns the reading limit that a pending pod exceeds; empty if it exceeds none. Parses no quantity."""
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
        if fault := too_many(size, TIES_BYTES, "bytes of pod affinity and topology spread constraints"):
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
    """Reads one pod. looked_for, owned: as in `shape_of`. labels_count, queue: as `counts` and `queue` in `owner_in`.
    volcano: as in `gang_ref`. follows: (gang, rank index) of the pod's previous version. An unfinished pod that names
    no gang keeps them, if they were derived from its workload.

    Raises `UnreadableError` for an invalid quantity, or for a pending pod that exceeds a reading limit.
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
    shape = _encoded(pod, requests, scored, looked_for, owned=owned, devices=devices, queue=queue) if pending else b""
    if fault := too_many(len(shape), SPEC_BYTES, "bytes of placement constraints"):
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
        shape=_bounded_shape(shape),
        ties=ties_of(pod),
        extended=bool(asks) or any(map(is_extended, requests)),
        asks=asks,
    )
