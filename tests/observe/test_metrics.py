"""What is exported, and what a round adds to it."""

from koordpy.observe.metrics import Metrics
from koordpy.planning.plan import (
    GangReport,
    GangStatus,
    PendingPod,
    Placement,
    Proof,
    Reason,
    RoundPlan,
    SolverRun,
    UnitReport,
)


def plan(message: str = "") -> RoundPlan:
    unit = "gang:default/g"
    placements = () if message else (Placement("default/g-0", "u", "n1", {}, unit),)
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
                ring_crossings=3, gpu_bottlenecks_gbps=(45.0, 200.0),
            ),
        ),
    )  # fmt: skip


def test_metrics_of_a_round() -> None:
    metrics = Metrics()
    metrics.planned(plan(), seconds=0.1)
    metrics.planned(plan("no place"), seconds=0.1)
    metrics.set_gangs({GangStatus.UNSCHEDULABLE: 1}, 2)
    text = metrics.render().decode()
    for line in (
        'koordpy_gangs{status="Unschedulable"} 1.0',
        'koordpy_gangs{status="Scheduled"} 0.0',
        'koordpy_gang_layer_total{layer="blockLayer"} 1.0',
        'koordpy_gang_pp_groups_crossing_total{layer="blockLayer"} 4.0',
        'koordpy_solver_status_total{status="optimal"} 2.0',
        "koordpy_gangs_half_bound 2.0",
        'koordpy_gpu_bottleneck_gbps_bucket{le="50.0"} 2.0',
        "koordpy_gpu_bottleneck_gbps_sum 490.0",
    ):
        assert line in text.splitlines()
