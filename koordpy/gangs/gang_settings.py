# SPDX-License-Identifier: Apache-2.0
"""Defines `Gang`: pods that start together or not at all, with settings from a PodGroup, a workload or the oldest pod.

`gang_reading.py` reads the settings and creates the `Gang`. This module has the data, the names of a gang in messages,
and the texts of its gates.

Source: gang-network.md 2.1, 2.4, 2.9 and 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.cache.gang_members import Members
from koordpy.cache.snapshot import Snapshot
from koordpy.config.gang_topology import TopologyWish
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts
from koordpy.workloads.workload_gangs import WorkloadGang
from koordpy.workloads.workload_model import SharedDomain

DEFAULT_WAITING_SECONDS = 600.0
"""Default of `Gang.waiting_seconds` (gang-network.md 2.9)."""


@dataclass(frozen=True, kw_only=True)
class Gang(Members):
    """A gang with its pods and settings. Numbers in parentheses are sections of docs/rules/gang-network.md."""

    ref: GangRef
    """Name, namespace and source of the gang."""
    exists: bool = True
    """False if pods name a PodGroup that does not exist."""
    min_member: int = 0
    """minMember: number of members that must start together; 0 if any number may start."""
    match_policy: str = ""
    """Which members count for minMember (2.4): `only-waiting`, `waiting-and-running`, or any other text for
    once-satisfied."""
    strict: bool = True
    """False if the annotation `mode` is NonStrict: then the gang is never evicted as stale."""
    waiting_seconds: float = DEFAULT_WAITING_SECONDS
    """Waiting time in seconds (2.9): time limit for the Bindings of a plan, and time after which a gang that never
    fitted reports a timeout."""
    links: tuple[str, ...] = ()
    """`namespace/name` of the gangs in its `groups` annotation, including invalid links (`gang_links.py`)."""
    wish: TopologyWish = field(default_factory=TopologyWish)
    """The network locality that the gang requests; without gather rules if it requests none."""
    has_wish: bool = False
    """True if the gang has a setting of network locality, even one that requests none. If False, a configured default
    may apply."""
    hard_keys: tuple[str, ...] = ()
    """Node labels of upstream topology constraints. For each, all members must be on nodes with the same value."""
    min_resources: Amounts = field(default_factory=dict)
    """minResources: amounts that must be free before any member starts; empty if not set."""
    fault: str = ""
    """Text about an invalid setting (2.3), without the gang's name; empty if all settings are valid."""
    shared_domains: tuple[SharedDomain, ...] = ()
    """Domains that a part of the gang's pods must share (`gathered_parts.py`), each with the name of its layer."""
    one_victim: bool = False
    """True if the disruptionMode of an upstream PodGroup requires that all members are evicted together."""
    unsupported_field: str = ""
    """Unsupported field of the upstream PodGroup that prevents the placement of the gang's pending pods; else empty."""
    stale_minimum: int = 0
    """Number of pending members that must start together, because with fewer the gang would be evicted as stale
    (`stale_grace.py`); 0 without such a limit."""
    announced_members: int | None = None
    """Total number of members that its owner has announced, for messages only; None if not announced."""
    doubts: tuple[str, ...] = ()
    """Warnings about invalid settings that have no effect."""
    workload_gang: WorkloadGang | None = None
    """The data from the workload or labels that the gang was derived from; None if a pod or a PodGroup names the
    gang."""
    later: str = ""
    """Reason why missing members may be created later, for messages only; empty if there is none."""

    @property
    def has_parts(self) -> bool:
        """True if a part of the gang's pods must share a domain (`gathered_parts.py`)."""
        return bool(self.shared_domains) or any(rule.scope != "group" for rule in self.wish.gather)

    @property
    def by_workload(self) -> bool:
        """True if the size of the gang is the number of pods that a controller keeps running."""
        return self.workload_gang is not None and self.workload_gang.by_workload

    @property
    def had_success(self) -> bool:
        """True if a pod of the workload's current run has Succeeded. Always False without a workload."""
        return self.workload_gang is not None and self.workload_gang.succeeded

    @property
    def origin(self) -> str:
        """Text that explains why the pods are a gang."""
        return origin_of(self.ref, self.workload_gang, self.pods)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.ref.key

    @property
    def whole(self) -> bool:
        """True if at least minMember members run (`Members.runs`)."""
        return self.runs(self.min_member)

    @property
    def has_object(self) -> bool:
        """True if a PodGroup has the gang's settings, even if it does not exist. False if its oldest pod or its
        workload has them."""
        return self.ref.source in (GangSource.GROUP, GangSource.UPSTREAM)

    @property
    def subject(self) -> str:
        """The object with the settings of the gang, for warnings, as `Kind namespace/name` or `Kind/namespace/name`."""
        if self.workload_gang is not None and self.workload_gang.title is not None:
            return f"{self.workload_gang.title.kind} {self.ref.namespace}/{self.workload_gang.title.name}"
        if self.workload_gang is not None and not self.workload_gang.by_workload and self.exists:
            return f"PodGroup {self.ref.namespace}/{self.workload_gang.meta.name}"
        return f"PodGroup/{self.key}" if self.has_object else f"Pod/{self.oldest.key}"

    @property
    def oldest(self) -> PodInfo:
        """The oldest of its pods; the gang must have one."""
        return oldest_pod(self.pods)

    def waits_for_members(self, have: int) -> str:
        """Returns the text of the gate for too few members (2.3). have: number of members that exist or have
        Succeeded."""
        text = f"gang {self.key}: waiting for members, {have} of minMember"
        expected = f", {self.announced_members} are expected" if self.announced_members is not None else ""
        return f"{text} {self.min_member} exist{expected}{self.later}"

    def waits_for_pending(self, ended: int) -> str:
        """Returns the text of the gate for fewer pending members than must start together (2.4). ended: number of
        Succeeded members that count.

        Members that are being deleted exist, but count for no minimum: their controller creates others in their place.
        """
        waiting = f"gang {self.key}: waiting for members,"
        if self.match_policy == "only-waiting":
            have = len(self.pending) + ended
            return f"{waiting} {have} of minMember {self.min_member} wait or have Succeeded (only-waiting)"
        have, leaving = len(self.pending) + len(self.live) + ended, len(self.bound) - len(self.live)
        deleted = f"{leaving} more {'is' if leaving == 1 else 'are'} being deleted"
        return f"{waiting} {have} of minMember {self.min_member} exist, {deleted}{self.later}"


def origin_of(ref: GangRef, derived: WorkloadGang | None, pods: Sequence[PodInfo]) -> str:
    """Returns a text on why pods are a gang (workloads.md 10.5). derived: the derived gang; None if a pod or a PodGroup
    names the gang."""
    if derived is not None:
        return derived.origin
    if ref.source is GangSource.NAMED and pods:
        oldest = oldest_pod(pods)
        by = "labels" if is_labelled(oldest.pod.metadata) else "annotations"
        return f"{by} of pod {oldest.name}"
    return f"PodGroup {ref.name}{' of scheduling.k8s.io' if ref.source is GangSource.UPSTREAM else ''}"


def names_of(derived: WorkloadGang | None) -> dict[str, str] | None:
    """Returns the workload and role for reports (workloads.md 10.5); None for a gang without a workload."""
    if derived is None or (title := derived.title) is None:
        return None
    return {"kind": title.kind, "namespace": title.namespace, "name": title.name, "role": derived.role}


def with_device_rules(wish: TopologyWish, said: Callable[[str], str | None], snapshot: Snapshot) -> TopologyWish:
    """Returns a requested locality together with gather rules from annotations of device families, such as for NPU
    super nodes. said: returns the value of an annotation; None if it is absent."""
    rules = snapshot.readers.gather_rules(said, snapshot.tree.layers)
    return replace(wish, gather=(*wish.gather, *rules)) if rules else wish


def oldest_pod(pods: Sequence[PodInfo]) -> PodInfo:
    """Returns the oldest pod; of several equally old pods the first in natural order of names. pods: at least one."""
    return min(pods, key=lambda pod: (pod.created, natural_key(pod.name)))


def is_labelled(meta: ObjectMeta) -> bool:
    """Returns True if a pod names its gang in labels, which have precedence over annotations."""
    return bool(meta.labels.get(keys.LABEL_GANG_NAME)) and keys.LABEL_GANG_MIN in meta.labels
