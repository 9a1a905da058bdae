# SPDX-License-Identifier: Apache-2.0
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


def degraded(namespace: str, workload: str = "Job/train") -> str:
    return f'koordpy_gang_degraded{{gang="{namespace}/train",workload="{workload}"}}'


def unlabelled(layer: str) -> str:
    return f'koordpy_topology_unlabelled_nodes{{layer="{layer}"}}'


def split(layer: str) -> str:
    return f'koordpy_topology_split_domains{{layer="{layer}"}}'


FOREIGN = "koordpy_foreign_binds_total"
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
    "KoordpyForeignBindings": Case(
        6, {f'{FOREIGN}{{profile="koord-scheduler"}}': "0 1+1x60"}, {f'{FOREIGN}{{profile="koord-scheduler"}}': "9x60"}
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
    "KoordpyTopologyDegraded": Case(
        15,
        {unlabelled("rackLayer"): "0x60", split("rackLayer"): "1x60", unlabelled("blockLayer"): "0x60"},
        {unlabelled("rackLayer"): "0x60", split("rackLayer"): "0x60"},
        {unlabelled("rackLayer"): "5x13 0x60", split("rackLayer"): "0x60"},
    ),
    "KoordpyQuotasInvalid": gauge("koordpy_quotas_invalid", minutes=15),
    "KoordpyObjectsUnreadable": gauge('koordpy_unreadable_objects{kind="Node"}', minutes=5),
    "KoordpyGangDegraded": gauge(degraded("a"), minutes=5),
    "KoordpyGangNotRepaired": gauge('koordpy_gang_degraded_seconds{gang="a/train"}', minutes=5, limit=3600, usual=1800),
    "KoordpyMoreGangsDegraded": gauge("koordpy_gangs_degraded_unnamed", minutes=5),
    "KoordpyPodsPendingLong": gauge(
        'koordpy_unit_pending_seconds{unit="a/train"}', minutes=15, limit=86400, usual=80000
    ),
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


def held(namespace: str) -> str:
    return f'koordpy_gang_degraded_accelerators{{gang="{namespace}/train"}}'


def waits(unit: str) -> str:
    return f'koordpy_unit_pending_seconds{{unit="{unit}"}}'


TEXTS: tuple[tuple[str, Mapping[str, str], tuple[tuple[Mapping[str, str], str, str], ...]], ...] = (
    (
        "KoordpyGangDegraded",
        {
            degraded("a"): "1x60",
            held("a"): "56x60",
            degraded("b", ""): "3x60",
            held("b"): "0x60",
            # the same gang by another replica is one alert
            f'{degraded("a")[:-1]},instance="b"}}': "1x60",
        },
        (
            (
                {"gang": "a/train", "workload": "Job/train"},
                "Gang a/train has had fewer members than its minimum for five minutes",
                "Members missing: 1. Accelerators in use: 56 (Job/train creates the pods) until it is whole. "
                "Run: kubectl koordpy why a/train",
            ),
            (
                {"gang": "b/train"},
                "Gang b/train has had fewer members than its minimum for five minutes",
                "Members missing: 3. Accelerators in use: 0 until it is whole. Run: kubectl koordpy why b/train",
            ),
        ),
    ),
    (
        "KoordpyMoreGangsDegraded",
        {"koordpy_gangs_degraded_unnamed": "7x60"},
        (
            (
                {},
                "7 more gangs have fewer members than their minimum than KoordpyGangDegraded names",
                "Run: kubectl get podgroups -A, and kubectl get events -A --field-selector reason=GangDegraded",
            ),
        ),
    ),
    (
        "KoordpyTopologyDegraded",
        {unlabelled("rackLayer"): "3x60", split("rackLayer"): "2x60", unlabelled("blockLayer"): "0x60"},
        (
            (
                {"layer": "rackLayer"},
                "Layer rackLayer of the network has gaps: nodes without its label, or domains in two parents",
                "Gangs find less room in one domain, or none. The condition Degraded names the nodes. "
                "Run: kubectl describe clusternetworktopology default",
            ),
        ),
    ),
    (
        "KoordpyForeignBindings",
        {f'{FOREIGN}{{profile="ours"}}': "0+1x60", f'{FOREIGN}{{profile="other"}}': "0x60"},
        (
            (
                {"profile": "ours"},
                "Another process binds pods of scheduler ours",
                "Two leaders on different Leases plan for one name and give away the same room. "
                "The event names the other Lease. Run: kubectl get events -A --field-selector reason=ForeignBinding",
            ),
        ),
    ),
    (
        "KoordpyPodsPendingLong",
        {waits("a/train"): "90000x60", waits("b/one"): "100x60"},
        (
            (
                {"unit": "a/train"},
                "a/train has been pending for 1d 1h 0m 0s",
                "It is one of the units that wait longest. Run: kubectl koordpy why a/train; "
                "all that wait: kubectl koordpy queue",
            ),
        ),
    ),
)
"""(alert, series, (labels, summary, description) of each that fires)."""


def worded(name: str, given: Mapping[str, str], wanted: tuple[tuple[Mapping[str, str], str, str], ...]) -> Json:
    """A test of promtool of the words of an alert."""
    (rule,) = (one for one in rules() if one["alert"] == name)
    common = {"namespace": NAMESPACE, "job": JOB, **rule["labels"]}
    runbook = rule["annotations"]["runbook_url"].replace("RUNBOOKS", "https://example.com/alerts")
    alerts = [
        {
            "exp_labels": {**common, **labels},
            "exp_annotations": {"summary": summary, "description": description, "runbook_url": runbook},
        }
        for labels, summary, description in wanted
    ]
    test = {"eval_time": "55m", "alertname": name, "exp_alerts": alerts}
    return {"interval": "1m", "input_series": series(given), "alert_rule_test": [test]}


def test_alerts_name_the_gang_and_the_command(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    file = tmp_path / "tests.yaml"
    found = [worded(*one) for one in TEXTS]
    given = {"rule_files": [str(write_rules(tmp_path))], "evaluation_interval": "1m", "tests": found}
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    promtool(request, "test", "rules", str(file))


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
