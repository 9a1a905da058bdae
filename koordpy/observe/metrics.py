# SPDX-License-Identifier: Apache-2.0
"""Defines every metric. A metric with the meaning of a kube-scheduler metric has its name (kube-parity.md 5).

Metrics of the process and of API requests have the names of Go clients. No label has the name of a pod, node or gang,
with two exceptions: a bounded number of degraded gangs, and of the units that wait longest (`bounded_labels.py`).
Gauges of the present state are computed when metrics are scraped.
"""

import platform
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from koordpy import __version__
from koordpy.observe.repair_metrics import RepairMetrics
from koordpy.plan.round_plan import GangStatus, Proof, RoundPlan
from koordpy.preemption.selection.preemption_names import WITHHOLDING, RuleName
from koordpy.verify.plan_fault import Check

# otherwise each counter has a second, unused series with its creation time
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FINE = tuple(0.001 * 2**i for i in range(15))
FIRST_CONFLICTS = ("bound_elsewhere", "overtaken_pod", "overtaken_node", "overtaken_room", "overtaken_victim")
"""Kinds of conflicts with series that exist from the start with 0; series of other kinds begin with a conflict."""
LOSSES = ("queue_full", "too_many", "failed")
"""Reasons for which an Event is not sent."""
LONGEST_NAMED = 10
"""Maximum number of pending units that are label values at a time."""
RESULTS = ("scheduled", "unschedulable", "error")
_WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


M = TypeVar("M", Counter, Histogram)


class Metrics:
    """The metrics of one scheduler, with their registry."""

    def __init__(self, profiles: Iterable[str] = (), outcomes: Iterable[str] = ()) -> None:
        """profiles: served scheduler names; outcomes: possible outcomes of a Binding."""
        registry = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        ProcessCollector(registry=registry)
        self.build = Info("koordpy_build", "Version of koordpy and of Python.", registry=registry)
        self.build.info({"version": __version__, "python": platform.python_version()})
        self.requests = counter(
            "rest_client_requests_total",
            "Requests to the API server; code <error> without an answer.",
            ["code", "method", "host"],
        )
        self.request_seconds = histogram(
            "rest_client_request_duration_seconds",
            "Seconds until the API server's answer begins.",
            ["verb", "host"],
            buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60),
        )
        self.attempts = counter(
            "scheduler_schedule_attempts_total", "Attempts to schedule pods.", ["result", "profile"]
        )
        self.attempt_seconds = histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Seconds of an attempt, planning and binding.",
            ["result", "profile"],
            buckets=_FINE,
        )
        self.pending = gauge(
            "scheduler_pending_pods", "Pending pods by queue: active, backoff, unschedulable, gated.", ["queue"]
        )
        self.incoming = counter(
            "scheduler_queue_incoming_pods_total",
            "Pods that entered a queue, by event.",
            ["queue", "event"],
        )
        self.pod_attempts = histogram(
            "scheduler_pod_scheduling_attempts", "Attempts until a pod was bound.", buckets=(1, 2, 4, 8, 16)
        )
        self.sli_seconds = histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Seconds from a pod's entry into the queue until it was bound.",
            ["attempts"],
            buckets=_WAITS,
        )
        self.extension_seconds = histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Seconds of the stages of scheduling.",
            ["extension_point", "status", "profile"],
            buckets=_FINE,
        )
        self.unschedulable = gauge(
            "scheduler_unschedulable_pods", "Pending pods by the filter that rejected nodes.", ["plugin", "profile"]
        )
        self.cache_size = gauge("scheduler_cache_size", "Objects in the cache.", ["type"])
        self.podgroup_attempts = counter(
            "scheduler_podgroup_schedule_attempts_total", "Attempts to schedule gangs.", ["result", "profile"]
        )
        self.preemption_attempts = counter(
            "scheduler_preemption_attempts_total", "Plans with victims that were carried out."
        )
        self.preemption_victims = histogram(
            "scheduler_preemption_victims", "Pods evicted for one plan.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 512)
        )
        self.victims = counter("koordpy_victims_total", "Pods evicted by rule.", ["rule"])
        self.evictions_withheld = counter(
            "koordpy_evictions_withheld_total",
            "Units of a round that would have a plan with victims without this limit.",
            ["reason"],
        )
        self.gangs = gauge("koordpy_gangs", "Gangs with a pending or running member, by status.", ["status"])
        self.gangs_half_bound = gauge(
            "koordpy_gangs_half_bound",
            "Gangs with some members bound, but fewer than their minimum bound or Succeeded.",
        )
        self.repair = RepairMetrics(registry)
        self.gangs_by_origin = gauge(
            "koordpy_gangs_by_origin", "Gangs with a pending or running member, by what makes them gangs.", ["origin"]
        )
        self.gang_gated = gauge("koordpy_gang_gated", "Gangs that neither run nor are tried, by the reason.", ["why"])
        self.workload_kinds = gauge(
            "koordpy_workload_kinds",
            "Kinds of workloads that form gangs: 1 for the current state of each kind.",
            ["kind", "state"],
        )
        self.pending_units_never_fit = gauge(
            "koordpy_pending_units_never_fit",
            "Pending gangs, and pods outside gangs, that would not fit the empty cluster.",
        )
        self.gang_wait_seconds = histogram(
            "koordpy_gang_wait_seconds", "Seconds from a gang's first try until its plan was bound.", buckets=_WAITS
        )
        self.gang_members_bound = counter("koordpy_gang_members_bound_total", "Gang members bound.")
        self.gang_layer = counter(
            "koordpy_gang_layer_total", "Plans of gangs with a gather goal by lowest common layer.", ["layer"]
        )
        self.pp_crossings = counter(
            "koordpy_gang_pp_groups_crossing_total",
            "Pipeline groups by lowest common layer.",
            ["layer"],
        )
        self.ring_crossings = histogram(
            "koordpy_ring_crossings",
            "Consecutive ranks of a plan on different nodes, the last and the first rank included.",
            buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
        )
        self.gpu_bottleneck = histogram(
            "koordpy_gpu_bottleneck_gbps",
            "GB/s of the slowest link among the GPUs of a pod with several GPUs.",
            buckets=(5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 450, 600, 900),
        )
        self.solver_seconds = histogram(
            "koordpy_solver_seconds", "Deterministic time of the solver.", ["stage"], buckets=_FINE
        )
        self.planning_seconds = histogram(
            "koordpy_planning_seconds",
            "Seconds of planning a unit, by the method that decided.",
            ["method"],
            buckets=_FINE,
        )
        self.solver_status = counter("koordpy_solver_status_total", "Results of the solver.", ["status"])
        self.rejected_plans = counter(
            "koordpy_rejected_plans_total", "Plans of units that an independent check rejected, by check.", ["check"]
        )
        self.plans_not_minimal = counter(
            "koordpy_plans_not_minimal_total",
            "Plans that evict a unit which could have stayed, with the members on the same nodes. A lower bound: few "
            "victim units of a plan are tried, one at a time, and members are not tried on other nodes.",
        )
        self.plan_seconds = histogram("koordpy_plan_seconds", "Seconds of planning a round.", buckets=_FINE)
        self.snapshot_age = histogram(
            "koordpy_snapshot_age_seconds", "Age of the snapshot when its plan was committed.", buckets=_FINE
        )
        self.bind_seconds = histogram("koordpy_bind_seconds", "Seconds of a Binding.", buckets=_FINE)
        self.binds = counter("koordpy_binds_total", "Bindings by outcome.", ["outcome"])
        self.foreign_binds = counter(
            "koordpy_foreign_binds_total",
            "Pods with a served scheduler name that another process bound while this one was the leader.",
            ["profile"],
        )
        self.conflicts = counter(
            "koordpy_conflicts_total", "Plans and Bindings that conflicted with other changes.", ["kind"]
        )
        self.claims = counter("koordpy_claims_total", "Writes of resource claims by outcome.", ["outcome"])
        self.rejections = counter(
            "koordpy_rejections_total",
            "Pods that kubelets rejected although they fit the totals of their nodes, by reason.",
            ["reason"],
        )
        self.provisioning_requests = gauge(
            "koordpy_provisioning_requests", "Gangs that ask for nodes by a ProvisioningRequest, by state.", ["state"]
        )
        self.provisioning = counter(
            "koordpy_provisioning_total", "ProvisioningRequests that ended, by outcome.", ["outcome"]
        )
        self.nodes_backed_off = gauge(
            "koordpy_nodes_backed_off",
            "Nodes that take no pods of shapes that they rejected (shape), or no other pods either (node).",
            ["scope"],
        )
        self.numa_nodes = gauge("koordpy_numa_nodes", "Nodes with NUMA data, by policy.", ["policy"])
        self.numa_reports = gauge(
            "koordpy_numa_reports",
            "Nodes with NUMA data, by whether their report shows exactly the pods on them (exact, behind, none).",
            ["state"],
        )
        self.numa_mispredicted = counter(
            "koordpy_numa_mispredicted_total", "Pods that a node with NUMA data rejected with TopologyAffinityError."
        )
        self.watch_lag = histogram(
            "koordpy_watch_lag_seconds",
            "Seconds from the arrival of watch events until they were applied.",
            ["resource"],
            buckets=_FINE,
        )
        self.quota = gauge(
            "koordpy_quota",
            "Amounts of ElasticQuotas: min, max, runtime, used, request.",
            ["quota", "resource", "kind"],
        )
        self.share = gauge(
            "koordpy_share",
            "Fair share of users or queues in accelerators (fair), and usage (used).",
            ["queue", "kind"],
        )
        self.leader = gauge(
            "koordpy_leader",
            "1 while this process is the leader; lease: namespace/name, empty without leader election.",
            ["lease"],
        )
        self.pending_oldest_seconds = gauge(
            "koordpy_pending_oldest_seconds", "Age of the oldest pending pod that is not gated."
        )
        self.pending_by_reason = gauge(
            "koordpy_pending_pods", "Pending pods by the reason of their condition PodScheduled.", ["reason"]
        )
        self.unit_pending_seconds = gauge(
            "koordpy_unit_pending_seconds",
            f"Age of the {LONGEST_NAMED} units (gangs or plain pods) that wait longest.",
            ["unit"],
        )
        self.accelerators = gauge(
            "koordpy_accelerators", "Accelerators of all nodes, by state: used or free.", ["resource", "state"]
        )
        self.topology_faults = gauge(
            "koordpy_topology_faults", "Faults of the ClusterNetworkTopology; 0 if it is valid or there is none."
        )
        self.topology_unlabelled = gauge(
            "koordpy_topology_unlabelled_nodes",
            "Nodes without the label of a layer: nodes with accelerators, or all workers if no node has accelerators.",
            ["layer"],
        )
        self.topology_split = gauge(
            "koordpy_topology_split_domains", "Names of domains of a layer that are below several parents.", ["layer"]
        )
        self.unreadable_objects = gauge(
            "koordpy_unreadable_objects", "Objects that cannot be read and are handled with caution.", ["kind"]
        )
        self.refused_inputs = counter(
            "koordpy_refused_inputs_total",
            "Rejected inputs of objects, by the reason of the Event or of the webhook's answer.",
            ["kind", "reason"],
        )
        self.tenant_questions = counter(
            "koordpy_tenant_questions_total", "Requests of tenants, by resource and status.", ["resource", "code"]
        )
        self.quotas_invalid = gauge("koordpy_quotas_invalid", "ElasticQuotas that do not apply as written.")
        self.events_dropped = counter(
            "koordpy_events_dropped_total", "Events that were not sent: queue_full, too_many, failed.", ["reason"]
        )
        self.refresh: Callable[[], None] = lambda: None
        """Function that sets gauges, called before each rendering."""
        self._children: dict[tuple[Counter | Histogram, tuple[str, ...]], Counter | Histogram] = {}
        self._begin(profiles, outcomes)

    def _begin(self, profiles: Iterable[str], outcomes: Iterable[str]) -> None:
        """Creates the series with known labels at 0.

        To Prometheus, a series that begins at 1 shows no increase, so a dashboard would miss the first eviction.
        """
        known: tuple[tuple[Counter | Gauge, Iterable[str]], ...] = (
            (self.gangs, GangStatus),
            (self.victims, RuleName),
            (self.evictions_withheld, WITHHOLDING),
            (self.solver_status, Proof),
            (self.rejected_plans, Check),
            (self.binds, outcomes),
            (self.conflicts, FIRST_CONFLICTS),
            (self.events_dropped, LOSSES),
        )
        for metric, values in known:
            for value in values:
                metric.labels(str(value))
        for profile in profiles:
            self.foreign_binds.labels(profile)
            for result in RESULTS:
                self.attempts.labels(result, profile)
                if result != "error":
                    self.podgroup_attempts.labels(result, profile)
        self.sli_seconds.labels("1")

    def has_layers(self, names: Iterable[str]) -> None:
        """Creates the series of the topology's layers at 0."""
        for name in names:
            self.gang_layer.labels(name)
            self.pp_crossings.labels(name)

    def set_gauge(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Sets a labelled gauge to exactly these values; keys are label values in the gauge's order."""
        gauge.clear()
        for labels, value in values.items():
            gauge.labels(*labels).set(value)

    def planned(self, plan: RoundPlan, *, seconds: float) -> None:
        """Counts the decisions of one round. seconds: duration of planning."""
        self.plan_seconds.observe(seconds)
        for rejected in plan.rejected:
            for check in rejected.checks:
                self.rejected_plans.labels(check).inc()
        self.plans_not_minimal.inc(len(plan.not_minimal))
        for unit in plan.units:
            for reason in unit.withheld:
                self.evictions_withheld.labels(reason).inc()
            if unit.placed and unit.layer is not None:
                self.gang_layer.labels(unit.layer).inc()
            for layer, count in (unit.pipeline_crossings or {}).items():
                self.pp_crossings.labels(layer).inc(count)
            if unit.ring_crossings is not None:
                self.ring_crossings.observe(unit.ring_crossings)
            for gbps in unit.gpu_bottlenecks_gbps:
                self.gpu_bottleneck.observe(gbps)
            if unit.method and unit.seconds is not None:
                self.planning_seconds.labels(unit.method).observe(unit.seconds)
            for run in unit.solver:
                self.solver_seconds.labels(run.stage).observe(run.deterministic_time)
                self.solver_status.labels(run.status.value).inc()

    def child(self, metric: M, *labels: str) -> M:
        """Returns the child of a metric with these labels, from a cache, because a look-up takes longer than counting.

        The number of label values must be bounded.
        """
        found = self._children.get((metric, labels))
        if found is None:
            found = self._children[metric, labels] = metric.labels(*labels)
        return cast(M, found)

    def pod_bound(self, profile: str, *, attempts: int, sent: float, attempt: float, waited: float) -> None:
        """Counts a bound pod.

        sent: seconds that its Binding took. attempt: seconds of the last attempt. waited: seconds in the queue.
        """
        self.child(self.binds, "bound").inc()
        self.bind_seconds.observe(sent)
        self.child(self.extension_seconds, "Bind", "Success", profile).observe(sent)
        self.child(self.attempts, "scheduled", profile).inc()
        self.child(self.attempt_seconds, "scheduled", profile).observe(attempt)
        self.pod_attempts.observe(attempts)
        self.child(self.sli_seconds, str(attempts) if attempts < 16 else "16+").observe(waited)

    def requested(self, host: str, method: str, code: str, seconds: float) -> None:
        """Counts a request to the API server."""
        self.child(self.requests, code, method, host).inc()
        self.child(self.request_seconds, method, host).observe(seconds)

    def render(self) -> bytes:
        """Returns all metrics in the Prometheus text format."""
        self.refresh()
        return generate_latest(self.registry)
