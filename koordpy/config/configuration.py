# SPDX-License-Identifier: Apache-2.0
"""KoordpyConfiguration: all settings of the file for `--config`, with their defaults.

docs/configuration.md explains each setting, and `configuration_file.py` reads the file. After reading, durations are in
seconds. Sections are frozen, because equal plans require an equal configuration. Sources: kube-parity.md section 5 for
the process, filters and scores; preemption.md 1, quota-fairness.md 1, gpu-topology.md 12, ascend.md 6 and
gang-network.md 4 for the sections of these subjects.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from koordpy.api.field_faults import key_path
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME, GPU_RESOURCES, HOSTNAME
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
    Section,
    Size,
    SolverTime,
    Span,
    WallTime,
)
from koordpy.config.dra_settings import Dra
from koordpy.config.gang_topology import GatherRule
from koordpy.config.node_failures import Autoscaling, Repair
from koordpy.config.numa_settings import NumaSettings
from koordpy.config.part_names import FAMILIES


class ClientConnection(Section, frozen=True):
    kubeconfig: str = ""
    qps: NotNegative = 200.0
    """Requests per second; 0 for no limit."""
    burst: Size = 400  # requests that may exceed `qps` for a short time
    max_binds_in_flight: Annotated[int, Meta(ge=1, le=64)] = 64  # concurrent Bindings


RETRY_JITTER = 1.2
"""Maximum pause between attempts to get the Lease, as a multiple of retryPeriod; the same as in client-go."""


class LeaderElection(Section, frozen=True):
    """The Lease that only one replica has; names and meanings of the fields are those of kube-scheduler."""

    leader_elect: bool = True
    resource_name: ObjectName = "koordpy"
    resource_namespace: NamespaceName = "kube-system"
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Span = 2.0


class NodeAffinityArgs(Section, frozen=True):
    added_affinity: NodeAffinity | None = None  # added to the node affinity of every pod


class NodeResourcesFitArgs(Section, frozen=True):
    """Extended resources that the filter ignores."""

    ignored_resources: tuple[ResourceName, ...] = ()
    ignored_resource_groups: tuple[ResourceGroup, ...] = ()


SYSTEM_SPREAD = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable="ScheduleAnyway"),
    TopologySpreadConstraint(
        max_skew=5, topology_key="topology.kubernetes.io/zone", when_unsatisfiable="ScheduleAnyway"
    ),
)
"""kube-scheduler's default constraints."""


class PodTopologySpreadArgs(Section, frozen=True):
    """Topology spread of pods that have no constraint: none, `SYSTEM_SPREAD`, or `default_constraints` (List)."""

    defaulting_type: Literal["None", "System", "List"] = "None"
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()

    @property
    def constraints(self) -> tuple[TopologySpreadConstraint, ...]:
        """The default constraints. Without a selector, a constraint counts pods of the same services and owner."""
        return SYSTEM_SPREAD if self.defaulting_type == "System" else self.default_constraints

    @property
    def reads_owners(self) -> bool:
        """True if the filter needs services and controllers, because a constraint has no selector."""
        return any(constraint.label_selector is None for constraint in self.constraints)


class InterPodAffinityArgs(Section, frozen=True):
    hard_pod_affinity_weight: Annotated[int, Meta(ge=0, le=100)] = 1  # of required terms of existing pods, in the score
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
    """One point of RequestedToCapacityRatio: utilization 0 to 100, score 0 to 10."""

    utilization: Annotated[int, Meta(ge=0, le=100)] = 0
    score: Annotated[int, Meta(ge=0, le=10)] = 0


class NodeResourcesFitScore(Section, frozen=True):
    """Scores nodes by their usage. shape: points of RequestedToCapacityRatio; empty: 0 at 0, and 10 at 100."""

    strategy: Literal["MostAllocated", "LeastAllocated", "RequestedToCapacityRatio"] = "MostAllocated"
    resources: tuple[ResourceWeight, ...] = (
        ResourceWeight(name="cpu", weight=1),
        ResourceWeight(name="memory", weight=1),
        *(ResourceWeight(name=name, weight=5) for name in GPU_RESOURCES),
    )
    shape: tuple[UtilizationPoint, ...] = ()


class ScarceResourceAvoidanceScore(Section, frozen=True):
    resources: tuple[ResourceName, ...] = ()
    """Resources that nodes reserve for pods that request them. Empty: the GPU and NPU resources."""


class Scores(Section, frozen=True):
    """Score plugins. `weights` has the weights in the file; `weight` returns the effective weight."""

    weights: dict[ScorePlugin, Count] = msgspec.field(default_factory=dict)
    node_resources_fit: NodeResourcesFitScore = NodeResourcesFitScore()
    scarce_resource_avoidance: ScarceResourceAvoidanceScore = ScarceResourceAvoidanceScore()

    def weight(self, plugin: str) -> int:
        """Returns the weight of a score plugin in the file, or the default."""
        given: Mapping[Any, int] = self.weights
        return given.get(plugin, DEFAULT_WEIGHTS[plugin])


class Solver(Section, frozen=True):
    """Time limits of CP-SAT. `deterministic_time` is in the solver's own units of work, so plans do not depend on the
    machine's speed. `wall_time_watchdog`, in seconds, only stops a solve that the units of work fail to limit."""

    deterministic_time: SolverTime = 2.0
    wall_time_watchdog: Span = 10.0


class GatherEntry(Section, frozen=True):
    """One rule on the locality of gangs, as in gatherStrategy of the annotation networkTopologyAware."""

    layer: LayerName
    strategy: Literal["PreferGather", "MustGather"]
    pod_count_multiple: Count = 0
    scope: Literal["group", "gang", "replica"] = "group"

    @property
    def rule(self) -> GatherRule:
        """The entry in the form in which the annotation's entries are read."""
        return GatherRule(self.layer, self.strategy == "MustGather", self.pod_count_multiple, self.scope)


class GangDefaults(Section, frozen=True):
    gather: tuple[GatherEntry, ...] = ()  # locality of gangs that set none


Auto = Literal["workloads", "labels", "off"]
"""How gangs are derived for pods that name no gang: from workloads and labels, only from labels of pods, or not."""


class GangNamespace(Section, frozen=True):
    auto: Auto | None = None  # None: `gangs.auto`
    gather: tuple[GatherEntry, ...] | None = None  # None: `gangs.defaults.gather`; empty: no rules


class Gangs(Section, frozen=True):
    """Defaults for gangs that do not state a setting themselves. Fields of a namespace replace the general defaults."""

    auto: Auto = "workloads"
    kinds: tuple[GangKind, ...] = GANG_KINDS
    defaults: GangDefaults = GangDefaults()
    namespaces: dict[NamespaceName, GangNamespace] = msgspec.field(default_factory=dict)
    volcano: Literal["read", "take", "off"] = "read"
    """PodGroups of Volcano. `read`: they define gangs. `take`: koordpy also admits PodGroups without pods, for which
    some controllers wait. `off`: they are ignored."""

    @property
    def watched(self) -> tuple[str, ...]:
        """Kinds of workloads that are watched; empty if no namespace derives gangs from workloads."""
        used = "workloads" in (self.auto, *(one.auto for one in self.namespaces.values()))
        return self.kinds if used else ()

    def auto_of(self, namespace: str) -> str:
        """Returns how gangs are derived in a namespace for pods that name none."""
        return self.namespaces.get(namespace, GangNamespace()).auto or self.auto

    def gather(self, namespace: str) -> tuple[tuple[str, GatherRule], ...]:
        """Returns (path, rule) of each gather entry that applies in a namespace."""
        own = self.namespaces.get(namespace, GangNamespace()).gather
        where = "gangs.defaults" if own is None else key_path("gangs.namespaces", namespace)
        return tuple(
            (f"{where}.gather[{i}]", one.rule) for i, one in enumerate(self.defaults.gather if own is None else own)
        )


class Planning(Section, frozen=True):
    """Time limits of live rounds and searches."""

    round_seconds: WallTime = 0.5
    """Maximum seconds of one search; the unit in progress may exceed it. Also the maximum seconds of search by which
    one tenant may be ahead of another."""
    search_seconds: WallTime = 2.0
    """Seconds that a unit waits for its search until its pods report that victims are being searched."""
    share_by: Literal["namespace", "quota"] = "namespace"
    """Tenants that share planning time: namespaces, or quotas. With `quota`, the namespaces that one ElasticQuota lists
    share one part."""


class Queue(Section, frozen=True):
    backfill: bool = False


class Preemption(Section, frozen=True):
    enabled: bool = True
    across_quotas: Literal["overMin", "any", "never"] = "overMin"
    across_users: Literal["overShare", "any", "never"] = "overShare"
    """Pods of another user or queue that the rule `priority` may evict: usage above its fair share, any, or none."""
    surplus_victims: Literal["pods", "any"] = "pods"
    """What pending members above minMember may evict or move: only single pods (`pods`), or any unit (`any`)."""
    time_limit: SolverTime = 2.0
    """Time limit in the solver's deterministic units."""


class Consolidation(Section, frozen=True):
    enabled: bool = False


Factor = NotNegative | None
"""A number of at least 0; None for no limit."""


class MaxHarm(Section, frozen=True):
    """Maximum harm of a plan by rule: the resources of its victims, as a multiple of the resources that it places."""

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
    mode: Literal["gpu-count", "exact", "kai", "off"] = "gpu-count"  # order of the queue
    reclaim: Literal["off", "quotas", "all"] = "quotas"  # evicts for quotas below min; all: also for fair shares
    weights: dict[str, NotNegative] = msgspec.field(default_factory=dict)
    """User or queue -> weight; 1 if absent."""
    starvation_after: Seconds = 3600.0
    """Seconds that a unit must be pending to count as starving; 0 turns the starvation guard off."""


class Quota(Section, frozen=True):
    enable_runtime_quota: bool = True  # unrequested capacity is lent; False: max is the limit
    enable_min_quota_scale: bool = True  # mins above the total are scaled down in proportion
    guarantee_usage: bool = False  # usage is guaranteed, and nothing is lent
    monitor_all_quotas: bool = False  # quotas above their runtime give capacity back
    delay_evict_time: Seconds = 120.0  # time above the runtime before pods are evicted
    namespaces: tuple[NamespaceName, ...] = ()
    """Namespaces with ElasticQuotas that count. If two quotas have one name, the namespace listed first has precedence.
    Empty: all namespaces."""
    trusted_namespaces: tuple[NamespaceName, ...] = ()
    """Namespaces with ElasticQuotas that may be at the top, have any parent, and list any namespace. Empty: all
    namespaces."""
    pod_labels: Literal["any", "listed"] = "any"
    """Which pods may name a quota: pods of any namespace (`any`), or only pods of the quota's namespace and of the
    namespaces that the quota lists (`listed`)."""
    label_namespaces: tuple[NamespaceName, ...] = ()
    """Namespaces with pods that may name their user and may forbid their eviction. Empty: all namespaces."""
    no_quota_yields: Literal["lowerPriority", "always", "never"] = "lowerPriority"
    """Units for which pods of the built-in quotas may be evicted if a runtime refuses them.

    `lowerPriority`: units of higher priority; `always`: also units within their min, which evict only pods of the
    default quota; `never`: none."""

    def trusts_labels_of(self, namespace: str) -> bool:
        """Returns whether pods of a namespace may name their user, and forbid their eviction."""
        return not self.label_namespaces or namespace in self.label_namespaces


class GpuParts(Section, frozen=True):
    """How requests for parts of devices are read (gpu-topology.md 1)."""

    aliases: tuple[PartFamily, ...] = FAMILIES
    """Families with names and annotations that mean parts, in addition to Koordinator's; names of other families are
    counted by number."""
    by_number: tuple[ResourceName, ...] = ()
    """Resource names of parts that are counted by number."""


class Gpu(Section, frozen=True):
    objective: Literal["bottleneck", "sum", "partition"] = "bottleneck"  # of a set of GPUs: slowest pair, sum of pairs
    asymmetry: Literal["min", "mean"] = "min"  # bandwidth of a link that differs by direction
    class_gap: NotNegative = 0.08
    """Minimum gap between two bandwidth classes, relative to the lower bandwidth."""
    class_width: NotNegative = 0.25
    """Maximum width of a bandwidth class, relative to its lowest bandwidth."""
    link_bandwidth: dict[LinkClass, NotNegative] = msgspec.field(default_factory=dict)
    """Link class -> GB/s, replacing the assumed bandwidth."""
    resources: tuple[ExtendedResourceName, ...] = GPU_RESOURCES
    annotation_style: Literal["koordinator", "gpushare"] = "koordinator"  # annotations that a Binding writes
    group_visibility: Literal["group", "own"] = "group"  # GPUs that members of a GPU group see
    parts: GpuParts = GpuParts()
    delivery: Literal["foreign", "env", "device-plugin"] = "foreign"
    """How the containers get the chosen GPUs. `dra` is reserved (gpu-topology.md 10) and rejected until it has an
    effect."""


class Ascend(Section, frozen=True):
    nslb_version: Literal["1.0", "2.0"] = "1.0"  # rules of switch affinity
    shared_tor_num: Literal[1, 2] = 2  # shared switches of a job
    super_pod_size: int = 48
    """Nodes of a SuperPoD. If below 1, jobs that request SuperPoDs are invalid; other jobs are not affected (ascend.md
    5)."""
    reserve_nodes: Count = 2  # nodes of each SuperPoD that are left free if other nodes suffice
    super_pod_order: Literal["seed"] = "seed"
    """Order in which SuperPoDs provide blocks (docs/rules/ascend.md 5.1); there is only one value."""


DebugAccess = Literal["loopback", "token", "open"]
"""Clients that are allowed: `loopback` only clients on this interface; `token` also permitted tokens; `open` all."""


class KoordpyConfiguration(Section, frozen=True):
    """The whole file. `KoordpyConfiguration()` has the defaults."""

    api_version: Literal["koordpy.io/v1alpha1"] = "koordpy.io/v1alpha1"
    kind: Literal["KoordpyConfiguration"] = "KoordpyConfiguration"
    scheduler_names: Annotated[tuple[SchedulerName, ...], Meta(min_length=1)] = (DEFAULT_SCHEDULER_NAME,)
    client_connection: ClientConnection = ClientConnection()
    leader_election: LeaderElection = LeaderElection()
    bind_address: ListenAddress = ":10259"
    debug_access: DebugAccess = "loopback"
    """Clients that may read /debug and /configz, which show the workloads of all tenants."""
    pod_initial_backoff: Span = 1.0  # pause after the first unsuccessful attempt
    pod_max_backoff: Seconds = 10.0
    pod_max_in_unschedulable: Span = 300.0  # a pending pod is tried again after this time, even without an event
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
    autoscaling: Autoscaling = Autoscaling()
    repair: Repair = Repair()
    fairness: Fairness = Fairness()
    quota: Quota = Quota()
    gpu: Gpu = Gpu()
    numa: NumaSettings = NumaSettings()
    ascend: Ascend = Ascend()
    dra: Dra = Dra()
