"""KoordpyConfiguration: everything `--config` may say, with its defaults; `configfile` reads it.

Sources: kube-parity.md section 5 for the process, filters and scores; preemption.md 1, quota-fairness.md 1,
gpu-topology.md 12, ascend.md 6 and gang-network.md 4 for their sections. Durations are seconds once read. Frozen: a
configuration is part of what makes a plan reproducible.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from koordpy.api.field_faults import key_path
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME, GPU_RESOURCES
from koordpy.api.object_names import (
    ExtendedResourceName,
    LayerName,
    LinkClass,
    ListenAddress,
    NamespaceName,
    ObjectName,
    ResourceGroup,
    ResourceName,
    SchedulerName,
)
from koordpy.api.objects import NodeAffinity, TopologySpreadConstraint
from koordpy.config.config_values import (
    DEFAULT_WEIGHTS,
    GANG_KINDS,
    Count,
    GangKind,
    NotNegative,
    PartFamily,
    ScorePlugin,
    Seconds,
    Size,
    SolverTime,
    Span,
    WallTime,
)
from koordpy.config.gang_topology import GatherRule
from koordpy.config.part_names import FAMILIES


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the configuration's sections: camel case in the file."""


class ClientConnection(Section, frozen=True):
    kubeconfig: str = ""
    qps: NotNegative = 200.0
    """0: no limit."""
    burst: Size = 400
    max_binds_in_flight: Annotated[int, Meta(ge=1, le=64)] = 64


RETRY_JITTER = 1.2
"""A pause between tries for the Lease is up to so many times retryPeriod, as client-go's are."""


class LeaderElection(Section, frozen=True):
    leader_elect: bool = True
    resource_name: ObjectName = "koordpy"
    resource_namespace: NamespaceName = "kube-system"
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Span = 2.0


class NodeAffinityArgs(Section, frozen=True):
    added_affinity: NodeAffinity | None = None


class NodeResourcesFitArgs(Section, frozen=True):
    """What the filter leaves out; extended resources only."""

    ignored_resources: tuple[ResourceName, ...] = ()
    ignored_resource_groups: tuple[ResourceGroup, ...] = ()


SYSTEM_SPREAD = (
    TopologySpreadConstraint(max_skew=3, topology_key="kubernetes.io/hostname", when_unsatisfiable="ScheduleAnyway"),
    TopologySpreadConstraint(
        max_skew=5, topology_key="topology.kubernetes.io/zone", when_unsatisfiable="ScheduleAnyway"
    ),
)
"""kube-scheduler's own defaults."""


class PodTopologySpreadArgs(Section, frozen=True):
    defaulting_type: Literal["None", "System", "List"] = "None"
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()

    @property
    def constraints(self) -> tuple[TopologySpreadConstraint, ...]:
        """The default constraints; without a selector of their own they take that of a pod's services and owner."""
        return SYSTEM_SPREAD if self.defaulting_type == "System" else self.default_constraints

    @property
    def reads_owners(self) -> bool:
        """Whether services and controllers have to be known."""
        return any(constraint.label_selector is None for constraint in self.constraints)


class InterPodAffinityArgs(Section, frozen=True):
    hard_pod_affinity_weight: Annotated[int, Meta(ge=0, le=100)] = 1
    ignore_preferred_terms_of_existing_pods: bool = False


class VolumeBindingArgs(Section, frozen=True):
    bind_timeout: Seconds = 600.0


class Filters(Section, frozen=True):
    node_affinity: NodeAffinityArgs = NodeAffinityArgs()
    node_resources_fit: NodeResourcesFitArgs = NodeResourcesFitArgs()
    pod_topology_spread: PodTopologySpreadArgs = PodTopologySpreadArgs()
    inter_pod_affinity: InterPodAffinityArgs = InterPodAffinityArgs()
    volume_binding: VolumeBindingArgs = VolumeBindingArgs()


class ResourceWeight(Section, frozen=True):
    name: ResourceName
    weight: Size = 1


class UtilizationPoint(Section, frozen=True):
    """One point of RequestedToCapacityRatio: utilization 0..100, score 0..10."""

    utilization: Annotated[int, Meta(ge=0, le=100)] = 0
    score: Annotated[int, Meta(ge=0, le=10)] = 0


class NodeResourcesFitScore(Section, frozen=True):
    strategy: Literal["MostAllocated", "LeastAllocated", "RequestedToCapacityRatio"] = "MostAllocated"
    resources: tuple[ResourceWeight, ...] = (
        ResourceWeight(name="cpu", weight=1),
        ResourceWeight(name="memory", weight=1),
        *(ResourceWeight(name=name, weight=5) for name in GPU_RESOURCES),
    )
    shape: tuple[UtilizationPoint, ...] = ()


class ScarceResourceAvoidanceScore(Section, frozen=True):
    resources: tuple[ResourceName, ...] = ()
    """Resources that are kept for pods that ask for them. Empty: the GPU resources and the NPU resources."""


class Scores(Section, frozen=True):
    """`weights` holds what the file says; `weight` gives what counts."""

    weights: dict[ScorePlugin, Count] = {}
    node_resources_fit: NodeResourcesFitScore = NodeResourcesFitScore()
    scarce_resource_avoidance: ScarceResourceAvoidanceScore = ScarceResourceAvoidanceScore()

    def weight(self, plugin: str) -> int:
        """Weight of a score plugin: the file's, else the default."""
        given: Mapping[Any, int] = self.weights
        return given.get(plugin, DEFAULT_WEIGHTS[plugin])


class Solver(Section, frozen=True):
    """`deterministic_time` in the solver's own units, never of the wall; the watchdog, of the wall, only ends a solve
    that those units do not bound."""

    deterministic_time: SolverTime = 2.0
    wall_time_watchdog: Span = 10.0


class GatherEntry(Section, frozen=True):
    """As in the gatherStrategy of the annotation networkTopologyAware."""

    layer: LayerName
    strategy: Literal["PreferGather", "MustGather"]
    pod_count_multiple: Count = 0
    scope: Literal["group", "gang", "replica"] = "group"

    @property
    def rule(self) -> GatherRule:
        return GatherRule(self.layer, self.strategy == "MustGather", self.pod_count_multiple, self.scope)


class GangDefaults(Section, frozen=True):
    gather: tuple[GatherEntry, ...] = ()


Auto = Literal["workloads", "labels", "off"]


class GangNamespace(Section, frozen=True):
    auto: Auto | None = None
    gather: tuple[GatherEntry, ...] | None = None
    """None: that of `gangs.defaults`."""


class Gangs(Section, frozen=True):
    """What holds for gangs that say nothing themselves; a field that is given for a namespace replaces the default."""

    auto: Auto = "workloads"
    kinds: tuple[GangKind, ...] = GANG_KINDS
    defaults: GangDefaults = GangDefaults()
    namespaces: dict[NamespaceName, GangNamespace] = {}
    volcano: Literal["read", "take", "off"] = "read"

    @property
    def watched(self) -> tuple[str, ...]:
        """The kinds of workloads that are watched: none where no namespace's gangs follow from them."""
        used = "workloads" in (self.auto, *(one.auto for one in self.namespaces.values()))
        return self.kinds if used else ()

    def auto_of(self, namespace: str) -> str:
        """How gangs are found that nobody names."""
        return self.namespaces.get(namespace, GangNamespace()).auto or self.auto

    def gather(self, namespace: str) -> tuple[tuple[str, GatherRule], ...]:
        """(path, rule) of each entry that holds in a namespace."""
        own = self.namespaces.get(namespace, GangNamespace()).gather
        where = "gangs.defaults" if own is None else key_path("gangs.namespaces", namespace)
        return tuple(
            (f"{where}.gather[{i}]", one.rule) for i, one in enumerate(self.defaults.gather if own is None else own)
        )


class Planning(Section, frozen=True):
    """The bounds of live rounds and searches."""

    round_seconds: WallTime = 0.5
    """Time of one search, but for the unit under way; by so much search time one tenant may be ahead of another."""
    search_seconds: WallTime = 2.0
    """How long a unit waits for its search until its pods are told that victims are looked for."""
    share_by: Literal["namespace", "quota"] = "namespace"
    """Among whom planning time is shared; quota: namespaces that one ElasticQuota lists have one part."""


class Queue(Section, frozen=True):
    backfill: bool = False


class Preemption(Section, frozen=True):
    enabled: bool = True
    across_quotas: Literal["overMin", "any", "never"] = "overMin"
    across_users: Literal["overShare", "any", "never"] = "overShare"
    """What rule `priority` may take of another user or queue: use above its fair share, anything, nothing."""
    surplus_victims: Literal["pods", "any"] = "pods"
    """What members above minMember may evict or move: single pods, or gangs too."""
    time_limit: SolverTime = 2.0
    """In the solver's deterministic units."""


class Consolidation(Section, frozen=True):
    enabled: bool = False


Factor = NotNegative | None
"""A number of 0 or more; None: no limit."""


class MaxHarm(Section, frozen=True):
    """Per rule: what a plan may evict or move, as a multiple of what it places."""

    priority: Factor = None
    quota: Factor = None
    fair_share: Factor = None
    consolidation: Factor = 1.0


class Protection(Section, frozen=True):
    max_harm: MaxHarm = MaxHarm()


class StaleGangs(Section, frozen=True):
    enabled: bool = False
    grace: Seconds = 60.0


class Fairness(Section, frozen=True):
    mode: Literal["gpu-count", "exact", "kai", "off"] = "gpu-count"
    reclaim: Literal["off", "quotas", "all"] = "quotas"
    weights: dict[str, NotNegative] = {}
    """User or queue -> weight; 1 where absent."""
    starvation_after: Seconds = 3600.0
    """0 switches the guard off."""


class Quota(Section, frozen=True):
    enable_runtime_quota: bool = True
    enable_min_quota_scale: bool = True
    guarantee_usage: bool = False
    monitor_all_quotas: bool = False
    delay_evict_time: Seconds = 120.0
    namespaces: tuple[NamespaceName, ...] = ()
    """Whose ElasticQuotas count, the first before the others where two have one name. Empty: all."""
    trusted_namespaces: tuple[NamespaceName, ...] = ()
    """Whose ElasticQuotas may be at the top, below any parent, and list any namespace. Empty: all."""
    pod_labels: Literal["any", "listed"] = "any"
    """Whose pods may name a quota: anybody's, or those of its own namespace and of those that it lists."""
    label_namespaces: tuple[NamespaceName, ...] = ()
    """Whose pods may name their user, and say that nobody evicts them. Empty: all."""
    no_quota_yields: Literal["lowerPriority", "always", "never"] = "lowerPriority"
    """Which units of quotas the pods of the built-in quotas yield to, where a runtime refuses the unit: those of
    higher priority, also those within their min (only pods of the default quota), or none."""

    def labels_count(self, namespace: str) -> bool:
        """Whether pods of a namespace may name their user, and say that nobody evicts them."""
        return not self.label_namespaces or namespace in self.label_namespaces


class GpuParts(Section, frozen=True):
    """How asks for parts of devices are read (gpu-topology.md 1)."""

    aliases: tuple[PartFamily, ...] = FAMILIES
    """Whose names and annotations mean parts beside Koordinator's; those of the others are counted by number."""
    by_number: tuple[ResourceName, ...] = ()
    """Names that mean parts and are counted by number all the same."""


class Gpu(Section, frozen=True):
    objective: Literal["bottleneck", "sum", "partition"] = "bottleneck"
    asymmetry: Literal["min", "mean"] = "min"
    class_gap: NotNegative = 0.08
    """A new bandwidth class starts this much (as a share) above the value before it."""
    class_width: NotNegative = 0.25
    """A bandwidth class is at most this much (as a share) wide."""
    link_bandwidth: dict[LinkClass, NotNegative] = {}
    """Link class -> GB/s, in place of the assumed figures."""
    resources: tuple[ExtendedResourceName, ...] = GPU_RESOURCES
    annotation_style: Literal["koordinator", "gpushare"] = "koordinator"
    group_visibility: Literal["group", "own"] = "group"
    parts: GpuParts = GpuParts()
    delivery: Literal["foreign", "env", "device-plugin"] = "foreign"
    """`dra` is reserved (gpu-topology.md 10): as long as nothing acts on it, it is refused."""


class Ascend(Section, frozen=True):
    nslb_version: Literal["1.0", "2.0"] = "1.0"
    shared_tor_num: Literal[1, 2] = 2
    super_pod_size: int = 48
    """Nodes of a SuperPoD; below 1 the jobs that ask for SuperPoDs are illegal, nobody else (ascend.md 5)."""
    reserve_nodes: Count = 2
    super_pod_order: Literal["seed"] = "seed"
    """The order in which SuperPoDs give blocks (docs/rules/ascend.md 5.1); it has one value."""


DebugAccess = Literal["loopback", "token", "open"]


class KoordpyConfiguration(Section, frozen=True):
    """The whole file. `KoordpyConfiguration()` is what holds without one."""

    api_version: Literal["koordpy.io/v1alpha1"] = "koordpy.io/v1alpha1"
    kind: Literal["KoordpyConfiguration"] = "KoordpyConfiguration"
    scheduler_names: Annotated[tuple[SchedulerName, ...], Meta(min_length=1)] = (DEFAULT_SCHEDULER_NAME,)
    client_connection: ClientConnection = ClientConnection()
    leader_election: LeaderElection = LeaderElection()
    bind_address: ListenAddress = ":10259"
    debug_access: DebugAccess = "loopback"
    """Who sees /debug and /configz, which show what all tenants run."""
    pod_initial_backoff: Span = 1.0
    pod_max_backoff: Seconds = 10.0
    pod_max_in_unschedulable: Span = 300.0
    filters: Filters = Filters()
    scores: Scores = Scores()
    solver: Solver = Solver()
    planning: Planning = Planning()
    gangs: Gangs = Gangs()
    queue: Queue = Queue()
    preemption: Preemption = Preemption()
    consolidation: Consolidation = Consolidation()
    protection: Protection = Protection()
    stale_gangs: StaleGangs = StaleGangs()
    fairness: Fairness = Fairness()
    quota: Quota = Quota()
    gpu: Gpu = Gpu()
    ascend: Ascend = Ascend()
