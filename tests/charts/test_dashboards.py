# SPDX-License-Identifier: Apache-2.0
"""Dashboards and alerts ask for metrics and labels that koordpy has, and the files are those of their table."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from koordpy.engine.binding.binder import BindResult
from koordpy.observe.metrics import Metrics
from koordpy.plan.round_plan import Proof
from tests.charts.dashboards import DASHBOARDS, FOLDER
from tests.docs.test_links import anchors
from tests.docs.worked import ROOT

RULES = FOLDER.parent / "alerts.yaml"
NAME = re.compile(r"\b(?:koordpy|scheduler|rest_client|process)_[a-z_]+")
OF_TARGET = {"job", "namespace", "instance"}
"""Labels that Prometheus gives to every series of a replica."""


def known() -> dict[str, set[str]]:
    """Series -> label names."""
    out: dict[str, set[str]] = {}
    for metric in Metrics().registry._collector_to_names:  # type: ignore[attr-defined]
        if not isinstance(metric, MetricWrapperBase):
            out |= {sample.name: set(sample.labels) for family in metric.collect() for sample in family.samples}
            continue
        labels = set(metric._labelnames)
        name = metric._name
        match metric._type:
            case "counter":
                out[f"{name}_total"] = labels
            case "histogram":
                out |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
            case "info":
                out[f"{name}_info"] = labels | set(metric._value)
            case _:
                out[name] = labels
    return out


SERIES = known()


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{name}: {panel['title']}", target["expr"]
    for rule in rules():
        yield f"alerts.yaml: {rule['alert']}", rule["expr"]


@pytest.mark.parametrize(("where", "query"), list(queries()), ids=lambda value: str(value)[:40])
def test_every_query_asks_for_series_and_labels_that_are_there(where: str, query: str) -> None:
    names = NAME.findall(query)
    assert names and set(names) <= set(SERIES), where
    by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")}
    assert by - OF_TARGET <= set().union(*(SERIES[name] for name in names)), where


VALUES = {"outcome": {one.value for one in BindResult}, "status": {one.value for one in Proof}}
"""Of labels whose values are a closed set."""


@pytest.mark.parametrize(("where", "query"), list(queries()), ids=lambda value: str(value)[:40])
def test_every_value_that_a_query_asks_for_is_one_that_its_label_has(where: str, query: str) -> None:
    for label, values in VALUES.items():
        for asked in re.findall(rf'\b{label}(?:=|!=|=~|!~)"([^"]*)"', query):
            assert set(asked.split("|")) <= values, where


def test_bindings_that_nobody_is_to_blame_for_are_no_failures() -> None:
    (rule,) = (rule for rule in rules() if rule["alert"] == "KoordpyBindingsFail")
    assert 'outcome=~"conflict|refused|unknown"' in rule["expr"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_files_are_those_of_the_table(name: str) -> None:
    written = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    assert written == DASHBOARDS[name], "run `python -m tests.charts.dashboards`"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_and_below_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    panels: list[dict[str, Any]] = DASHBOARDS[name]["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    anchor = rule["annotations"]["runbook_url"].removeprefix("RUNBOOKS#")
    assert anchor == rule["alert"].lower() and anchor in anchors(ROOT / "docs" / "alerts.md")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_of_one_release(rule: dict[str, Any]) -> None:
    """Else what two releases have together fires, or what one lacks is hidden by the other."""
    aggregates = re.findall(r"\b(?:sum|max|min|count|avg)\b([^(]*\([^)]*\))", rule["expr"])
    assert aggregates and all(by.startswith(" by (namespace, job") for by in aggregates)
    # others count requests under the same name
    if "rest_client_" in rule["expr"]:
        assert "and on (namespace, job, instance) koordpy_build_info" in rule["expr"]


def test_the_alerts_page_has_no_alert_that_is_gone() -> None:
    told = {anchor for anchor in anchors(ROOT / "docs" / "alerts.md") if anchor.startswith("koordpy")}
    assert told == {rule["alert"].lower() for rule in rules()}
