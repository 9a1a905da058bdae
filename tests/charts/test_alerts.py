"""Each alert fires on what it is about and stays quiet on what is usual, as promtool computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.prometheus import JOB, LEASE, NAMESPACE, promtool, write_rules
from tests.charts.test_dashboards import rules

Json = dict[str, Any]
OF_REPLICA = {"namespace": NAMESPACE, "job": JOB, "instance": "a"}
BUILD = 'koordpy_build_info{version="1"}'


@dataclass(frozen=True)
class Case:
    """Series -> values a minute, in promtool's notation: `0+5x60` goes up by 5 for an hour. minutes: until it fires.

    fires, quiet: the same with what is wrong, and in an ordinary cluster. too_short: what is wrong, and soon over.
    """

    minutes: int
    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    too_short: Mapping[str, str] | None = None


def gauge(name: str, *, minutes: int, limit: float = 0, usual: float = 0) -> Case:
    """A gauge that is above its limit; as long as it must last but a minute it is quiet."""
    return Case(
        minutes,
        {name: f"{limit + 1}x60"},
        {name: f"{usual}x60"},
        {name: f"{limit + 1}x{minutes - 2} {usual}x60"},
    )


def requests(code: str) -> str:
    return f'rest_client_requests_total{{code="{code}",method="GET",host="h"}}'


def leader(lease: str = LEASE, **labels: str) -> str:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f'koordpy_leader{{lease="{lease}"{more}}}'


def lag(seconds: str) -> str:
    return f'koordpy_watch_lag_seconds_bucket{{resource="pods",le="{seconds}"}}'


FULL, LOST = 'koordpy_events_dropped_total{reason="queue_full"}', 'koordpy_events_dropped_total{reason="failed"}'
BOUND, REFUSED = 'koordpy_binds_total{outcome="bound"}', 'koordpy_binds_total{outcome="refused"}'
CASES: dict[str, Case] = {
    "KoordpyHasNoLeader": Case(
        2,
        {leader(): "0x60", leader("other/koordpy"): "1x60"},
        {leader(): "1x60", leader(instance="b"): "0x60"},
        {leader(): "1x10 0 1x60"},
    ),
    "KoordpyHasTwoLeaders": Case(
        1,
        {leader(): "1x60", leader(instance="b"): "1x60"},
        # without leader election each is alone with its lease
        {leader(): "1x60", leader(""): "1x60", leader("", instance="b"): "1x60", leader("other/koordpy"): "1x60"},
    ),
    "KoordpyRefused": Case(
        25,
        {requests("403"): "0+1x60", BUILD: "1x60"},
        {requests("404"): "0+9x60", requests("200"): "0+9x60", BUILD: "1x60"},
        {requests("403"): "0 1x60", BUILD: "1x60"},
    ),
    "KoordpyApiErrors": Case(
        25,
        {requests("503"): "0+6x60", requests("<error>"): "0+1x60", requests("200"): "0+90x60", BUILD: "1x60"},
        {requests("503"): "0+4x60", requests("200"): "0+96x60", requests("404"): "0+50x60", BUILD: "1x60"},
    ),
    "KoordpyTopologyInvalid": gauge("koordpy_topology_faults", minutes=5),
    "KoordpyQuotasInvalid": gauge("koordpy_quotas_invalid", minutes=15),
    "KoordpyObjectsUnreadable": gauge('koordpy_unreadable_objects{kind="Node"}', minutes=5),
    "KoordpyGangsHalfBound": gauge("koordpy_gangs_half_bound", minutes=5),
    "KoordpyPodsPendingLong": gauge("koordpy_pending_oldest_seconds", minutes=15, limit=86400, usual=80000),
    "KoordpyWatchLag": Case(
        11,
        {lag("4.096"): "0+8x60", lag("16.384"): "0+10x60", lag("+Inf"): "0+10x60"},
        {lag("4.096"): "0+1000x60", lag("16.384"): "0+1001x60", lag("+Inf"): "0+1001x60"},
    ),
    "KoordpyBindingsFail": Case(
        25,
        {BOUND: "0+80x60", REFUSED: "0+20x60"},
        # pods that are deleted meanwhile are nobody's fault
        {BOUND: "0+80x60", REFUSED: "0+2x60", 'koordpy_binds_total{outcome="gone"}': "0+40x60"},
    ),
    "KoordpySolverUndecided": Case(
        45,
        {'koordpy_solver_status_total{status="unknown"}': "0+1x90"},
        {
            'koordpy_solver_status_total{status="unknown"}': "3x90",
            'koordpy_solver_status_total{status="optimal"}': "0+9x90",
        },
        {'koordpy_solver_status_total{status="unknown"}': "0 1x90"},
    ),
    "KoordpyEventsDropped": Case(
        30, {FULL: "0+2x60", LOST: "0x60"}, {FULL: "0 4x60", LOST: "0x60"}, {FULL: "0x5 20x60"}
    ),
}


def firing(name: str, minutes: int, count: int) -> Json:
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    return {"expr": query, "eval_time": f"{minutes}m", "exp_samples": [{"labels": "{}", "value": count}]}


def series(given: Mapping[str, str]) -> list[Json]:
    """With the labels that Prometheus adds to every series of a replica, unless they are given."""
    out = []
    for name, values in given.items():
        metric, _, labels = name.rstrip("}").partition("{")
        more = [f'{label}="{value}"' for label, value in OF_REPLICA.items() if f"{label}=" not in labels]
        out.append({"series": f"{metric}{{{','.join(filter(None, (labels, *more)))}}}", "values": values})
    return out


def tried(name: str, case: Case) -> list[Json]:
    """Fires when its time is up and not before; never fires otherwise."""
    head = {"interval": "1m"}
    soon = firing(name, case.minutes - 1 if case.minutes > 1 else 0, 0)
    begins = [] if case.minutes > 15 else [soon]
    found = [
        {**head, "input_series": series(case.fires), "promql_expr_test": [*begins, firing(name, case.minutes + 2, 1)]}
    ]
    for given in (case.quiet, case.too_short):
        if given is not None:
            never = [firing(name, minute, 0) for minute in (case.minutes, case.minutes + 2, 55)]
            found.append({**head, "input_series": series(given), "promql_expr_test": never})
    return found


def test_every_alert_is_tried() -> None:
    assert [rule["alert"] for rule in rules()] == list(CASES)


def test_alerts_fire_in_their_time_and_stay_quiet_otherwise(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = [one for name, case in CASES.items() for one in tried(name, case)]
    # nothing at all is scraped
    found.append({"interval": "1m", "input_series": [], "promql_expr_test": [firing("KoordpyHasNoLeader", 4, 1)]})
    file = tmp_path / "tests.yaml"
    given = {"rule_files": [str(write_rules(tmp_path))], "evaluation_interval": "1m", "tests": found}
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    promtool(request, "test", "rules", str(file))


def test_promtool_has_nothing_against_the_rules(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    said = promtool(request, "check", "rules", "--lint=all", "--lint-fatal", str(write_rules(tmp_path)))
    assert f"SUCCESS: {len(CASES)} rules found" in said
