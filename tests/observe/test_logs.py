"""Log lines, the decision log and the health endpoints' verdicts."""

import io
import json
import logging

import pytest

from koordpy.observe import logs
from koordpy.observe.decisions import DecisionLog
from koordpy.observe.health import split_address
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


@pytest.fixture
def restored() -> object:
    root, ours = logging.getLogger(), logging.getLogger("koordpy")
    kept = root.handlers[:], root.level, ours.level
    yield None
    root.handlers[:], root.level, ours.level = kept[0], kept[1], kept[2]
    root.manager._clear_cache()
    return None


def test_json_lines_carry_what_extra_names_and_the_exception(restored: object) -> None:
    stream = io.StringIO()
    logs.configure(level="info", format="json", stream=stream)
    try:
        raise ValueError("on purpose")
    except ValueError:
        logging.getLogger("koordpy.test").exception("it %s", "failed", extra={"pod": "default/p"})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["msg"], line["pod"]) == ("error", "it failed", "default/p")
    assert "on purpose" in line["exception"]
    assert line["ts"].endswith("Z")


@pytest.mark.parametrize(("level", "lines"), [("debug", 2), ("info", 1), ("error", 0)])
def test_the_level_counts_for_our_own_lines(restored: object, level: str, lines: int) -> None:
    stream = io.StringIO()
    logs.configure(level=level, stream=stream)
    logging.getLogger("koordpy.test").debug("a")
    logging.getLogger("koordpy.test").info("b")
    assert len(stream.getvalue().splitlines()) == lines


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        logs.configure(level="loud")


@pytest.mark.parametrize(
    ("text", "address"),
    [(":10259", (None, 10259)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("host:1", ("host", 1))],
)
def test_bind_addresses(text: str, address: tuple[str | None, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "10259", "host:", ":70000", ":-1", ":x"])
def test_what_is_no_bind_address(text: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        split_address(text)


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


def test_a_decision_says_where_and_why_and_repeats_itself_quietly(caplog: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog()
    with caplog.at_level(logging.INFO, logger="koordpy.observe.decisions"):
        for number in range(3):
            decisions.record(plan(f"{number} of 9 members are here"), number=number, at=0.0)
        decisions.record(plan(), number=3, at=0.0)
    assert [record.getMessage() for record in caplog.records] == [
        "gang:default/g: 0 of 9 members are here (optimal)",
        "gang:default/g: 1 of 1 pods on n1 in blockLayer (optimal)",
    ]
    assert decisions.recent()[0]["placed"] == 1
    assert len(decisions.recent()) == 4


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
