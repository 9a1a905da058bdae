"""A gang with its settings: those of its PodGroup, or of its oldest pod.

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
from koordpy.workloads.workload_gangs import Derived
from koordpy.workloads.workload_model import SharedDomain

DEFAULT_WAITING_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Gang(Members):
    """One gang with the settings of its PodGroup, or of its oldest pod."""

    ref: GangRef
    exists: bool = True
    """False where pods name a PodGroup that is not there."""
    min_member: int = 0
    match_policy: str = ""
    strict: bool = True
    waiting_seconds: float = DEFAULT_WAITING_SECONDS
    links: tuple[str, ...] = ()
    """`namespace/name` of the gangs in its `groups` annotation, whether or not the link holds (`planning.links`)."""
    wish: TopologyWish = field(default_factory=TopologyWish)
    has_wish: bool = False
    """Whether it says itself what it asks of the network, be it nothing; else a configured default may hold."""
    hard_keys: tuple[str, ...] = ()
    """Node labels of upstream's topology constraints: a hard domain each."""
    min_resources: Amounts = field(default_factory=dict)
    fault: str = ""
    """An unreadable setting: text as gang-network.md 2.3 words it, without the gang's name."""
    parted: tuple[SharedDomain, ...] = ()
    """Where pods of it lie together by themselves; layers by their names."""
    one_victim: bool = False
    """Upstream's disruptionMode: whoever evicts one member evicts all."""
    unsupported: str = ""
    """Field of an upstream PodGroup that is not served yet: none of its pending pods is placed."""
    owed: int = 0
    """Pending members that must come together lest it is evicted as stale (`planning.grace`)."""
    expected: int | None = None
    """How many members its owner says there will be, for messages alone."""
    doubts: tuple[str, ...] = ()
    """Settings that cannot be read and decide nothing."""
    derived: Derived | None = None
    """What it follows from, where nobody names it."""
    later: str = ""
    """Why members that it lacks may come later, for messages alone."""

    @property
    def has_parts(self) -> bool:
        """Whether some of its pods are to lie in one domain by themselves (`planning.parts`)."""
        return bool(self.parted) or any(rule.scope != "group" for rule in self.wish.gather)

    @property
    def by_workload(self) -> bool:
        """Whether its size is what a controller keeps alive now."""
        return self.derived is not None and self.derived.by_workload

    @property
    def had_success(self) -> bool:
        """Whether a pod of its run has Succeeded, though its size follows a controller that counts it no more."""
        return self.derived is not None and self.derived.succeeded

    @property
    def origin(self) -> str:
        """Why it is a gang."""
        return origin_of(self.ref, self.derived, self.pods)

    @property
    def key(self) -> str:
        return self.ref.key

    @property
    def whole(self) -> bool:
        """Whether it runs with its minimum."""
        return self.runs(self.min_member)

    @property
    def has_object(self) -> bool:
        """Whether an object carries its settings; else its oldest pod does."""
        return self.ref.source in (GangSource.GROUP, GangSource.UPSTREAM)

    @property
    def subject(self) -> str:
        """The object that its settings stand on."""
        if self.derived is not None and self.derived.title is not None:
            return f"{self.derived.title.kind} {self.ref.namespace}/{self.derived.title.name}"
        if self.derived is not None and not self.derived.by_workload and self.exists:
            return f"PodGroup {self.ref.namespace}/{self.derived.meta.name}"
        return f"PodGroup/{self.key}" if self.has_object else f"Pod/{self.oldest.key}"

    @property
    def oldest(self) -> PodInfo:
        """The oldest of its pods, of which there is at least one."""
        return oldest_pod(self.pods)

    def waits_for_members(self, have: int) -> str:
        """What is said while fewer members exist, or have Succeeded, than its minimum (2.3)."""
        text = f"gang {self.key}: waiting for members, {have} of minMember"
        expected = f", {self.expected} are expected" if self.expected is not None else ""
        return f"{text} {self.min_member} exist{expected}{self.later}"

    def waits_for_pending(self) -> str:
        """The same where match-policy only-waiting asks for more members that wait."""
        text = f"gang {self.key}: waiting for members, {len(self.pending) + self.done} of minMember"
        return f"{text} {self.min_member} wait or have Succeeded (only-waiting)"


def origin_of(ref: GangRef, derived: Derived | None, pods: Sequence[PodInfo]) -> str:
    """Why pods are a gang (workloads.md 10.5). derived: what it follows from, where nobody names it."""
    if derived is not None:
        return derived.origin
    if ref.source is GangSource.NAMED and pods:
        oldest = oldest_pod(pods)
        by = "labels" if is_labelled(oldest.pod.metadata) else "annotations"
        return f"{by} of pod {oldest.name}"
    return f"PodGroup {ref.name}{' of scheduling.k8s.io' if ref.source is GangSource.UPSTREAM else ''}"


def names_of(derived: Derived | None) -> dict[str, str] | None:
    """The workload and its role, as reports have them (workloads.md 10.5); None for what does not follow from one."""
    if derived is None or (title := derived.title) is None:
        return None
    return {"kind": title.kind, "namespace": title.namespace, "name": title.name, "role": derived.role}


def with_device_rules(wish: TopologyWish, said: Callable[[str], str | None], snapshot: Snapshot) -> TopologyWish:
    """Returns a wish with the gather rules that the gang asks for in annotations of device families."""
    rules = snapshot.readers.gather_rules(said, snapshot.tree.layers)
    return replace(wish, gather=(*wish.gather, *rules)) if rules else wish


def oldest_pod(pods: Sequence[PodInfo]) -> PodInfo:
    return min(pods, key=lambda pod: (pod.created, natural_key(pod.name)))


def is_labelled(meta: ObjectMeta) -> bool:
    """Whether a pod names its gang by labels."""
    return bool(meta.labels.get(keys.LABEL_GANG_NAME)) and keys.LABEL_GANG_MIN in meta.labels
