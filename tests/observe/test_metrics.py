# SPDX-License-Identifier: Apache-2.0
"""What is exported, and what a round adds to it."""

from koordpy import __version__
from koordpy.observe.gauges import accelerator_gauges
from koordpy.observe.metrics import Metrics
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import (
    GangReport,
    GangStatus,
    Method,
    PendingPod,
    Placement,
    Proof,
    RoundPlan,
    SolverRun,
    UnitReport,
)


def plan(message: str = "") -> RoundPlan:
    unit = "gang:default/g"
    placements = () if message else (Placement("default/g-0", "u", "n1", unit),)
    pending = (PendingPod("default/g-0", unit, "default/g", Reason.UNSCHEDULABLE, message),) if message else ()
    status = GangStatus.UNSCHEDULABLE if message else GangStatus.SCHEDULED
    return RoundPlan(
        placements=placements,
        evictions=(),
        pending=pending,
        gangs=(GangReport("default/g", 1, 1, 0 if message else 1, status, None, Proof.OPTIMAL, message),),
        units=(
            UnitReport(
                unit, ("default/g-0",), len(placements), Proof.OPTIMAL, None if message else "blockLayer",
                solver=(SolverRun("goal1", Proof.OPTIMAL, 0.01),), pipeline_crossings={"blockLayer": 2},
                ring_crossings=3, gpu_bottlenecks_gbps=(45.0, 200.0), method=Method.SOLVER, seconds=0.25,
            ),
        ),
    )  # fmt: skip


def test_metrics_of_a_round() -> None:
    metrics = Metrics()
    metrics.planned(plan(), seconds=0.1)
    metrics.planned(plan("no place"), seconds=0.1)
    metrics.gangs.labels(GangStatus.UNSCHEDULABLE).set(1)
    metrics.gangs_half_bound.set(2)
    text = metrics.render().decode()
    for line in (
        'koordpy_gangs{status="Unschedulable"} 1.0',
        'koordpy_gangs{status="Scheduled"} 0.0',
        'koordpy_gang_layer_total{layer="blockLayer"} 1.0',
        'koordpy_gang_pp_groups_crossing_total{layer="blockLayer"} 4.0',
        'koordpy_solver_status_total{status="optimal"} 2.0',
        'koordpy_planning_seconds_sum{method="cp-sat"} 0.5',
        "koordpy_gangs_half_bound 2.0",
        'koordpy_gpu_bottleneck_gbps_bucket{le="50.0"} 2.0',
        "koordpy_gpu_bottleneck_gbps_sum 490.0",
    ):
        assert line in text.splitlines()


def test_the_process_and_its_version_are_exported_and_no_time_of_creation() -> None:
    names = {line.split(" ")[0].split("{")[0] for line in Metrics().render().decode().splitlines() if line[:1] != "#"}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"} <= names
    assert f'version="{__version__}"' in Metrics().render().decode()
    assert not [name for name in names if name.endswith("_created")]


def test_requests_to_the_api_server_are_counted_as_every_go_client_does() -> None:
    metrics = Metrics()
    for code in ("200", "200", "<error>"):
        metrics.requested("api:6443", "GET", code, 0.02)
    lines = metrics.render().decode().splitlines()
    for line in (
        'rest_client_requests_total{code="200",host="api:6443",method="GET"} 2.0',
        'rest_client_requests_total{code="<error>",host="api:6443",method="GET"} 1.0',
        'rest_client_request_duration_seconds_bucket{host="api:6443",le="0.025",verb="GET"} 3.0',
    ):
        assert line in lines


def test_accelerators_are_counted_by_resource_in_whole_devices() -> None:
    nodes = [
        ({"cpu": 64000, "nvidia.com/gpu": 8}, {"nvidia.com/gpu": 6}),
        ({"nvidia.com/gpu": 4, "koordinator.sh/gpu": 400}, {"nvidia.com/gpu": 5, "koordinator.sh/gpu": 150}),
        ({"cpu": 64000}, {}),
    ]
    assert accelerator_gauges(nodes) == {
        ("nvidia.com/gpu", "used"): 11,
        ("nvidia.com/gpu", "free"): 2,
        ("koordinator.sh/gpu", "used"): 1.5,
        ("koordinator.sh/gpu", "free"): 2.5,
    }


UNITS = ("_seconds", "_bytes", "_gbps", "_fds")
COUNTS = {
    "scheduler_pod_scheduling_attempts",
    "scheduler_preemption_victims",
    "koordpy_ring_crossings",
}
"""Histograms of things that are counted."""
BOUNDED = {
    "attempts", "check", "code", "event", "extension_point", "kind", "layer", "lease", "method", "origin", "outcome",
    "plugin", "policy", "profile", "python", "queue", "quota", "reason", "resource", "result", "rule", "scope", "stage",
    "state", "status", "type", "verb", "version", "why", "host",
}  # fmt: skip
"""Labels whose values are few, however many pods, nodes and gangs there are: `quota` and `queue` are as many as an
administrator makes."""


FEW = {
    "koordpy_gang_degraded": {"gang", "workload"},
    "koordpy_gang_degraded_accelerators": {"gang"},
    "koordpy_gang_degraded_seconds": {"gang"},
    "koordpy_unit_pending_seconds": {"unit"},
}
"""Metrics that carry names, of a bounded number of objects at a time."""


def test_names_end_in_their_units_and_labels_are_of_a_bounded_number() -> None:
    registry = Metrics().registry
    for family in registry.collect():
        if family.type == "histogram":
            assert family.name.endswith(UNITS) or family.name in COUNTS, family.name
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        collector = registry._names_to_collectors.get(family.name)
        allowed = BOUNDED | FEW.get(family.name, set())
        assert labels | set(getattr(collector, "_labelnames", ())) <= allowed, family.name


def test_series_of_known_labels_begin_at_0() -> None:
    """Else no increase is seen of the first of each."""
    metrics = Metrics(["ours"], ["refused"])
    metrics.has_layers(["blockLayer"])
    lines = metrics.render().decode().splitlines()
    for series in (
        'koordpy_victims_total{rule="priority"}',
        'koordpy_solver_status_total{status="unknown"}',
        'koordpy_rejected_plans_total{check="gpus"}',
        'koordpy_binds_total{outcome="refused"}',
        'koordpy_conflicts_total{kind="bound_elsewhere"}',
        'koordpy_events_dropped_total{reason="queue_full"}',
        'koordpy_repairs_total{outcome="replaced"}',
        'scheduler_schedule_attempts_total{profile="ours",result="error"}',
        'scheduler_podgroup_schedule_attempts_total{profile="ours",result="scheduled"}',
        'koordpy_gang_layer_total{layer="blockLayer"}',
        'koordpy_gang_pp_groups_crossing_total{layer="blockLayer"}',
    ):
        assert f"{series} 0.0" in lines
