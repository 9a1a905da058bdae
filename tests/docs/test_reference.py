# SPDX-License-Identifier: Apache-2.0
"""The pages of reference are complete: options, fields of the configuration with their defaults, metrics."""

import argparse
import dataclasses
import importlib
import re
from collections.abc import Collection, Iterator
from inspect import getsource
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from koordpy.cli import kubectl
from koordpy.cli.main import COMMANDS
from koordpy.config.config_values import DEFAULT_WEIGHTS
from koordpy.config.configuration import GPU_RESOURCES, KoordpyConfiguration
from koordpy.engine.binding.binder import BindResult
from koordpy.engine.queue_entry import State
from koordpy.engine.status import scheduler_events
from koordpy.observe.decision_log import Decision
from koordpy.observe.metrics import Metrics
from koordpy.plan.round_plan import GangStatus, Method, Proof
from koordpy.preemption.selection.preemption_names import WITHHOLDING, RuleName, Way
from koordpy.report.eviction_words import _REASONS
from koordpy.verify.plan_fault import Check
from tests.charts.test_dashboards import NAME, OF_TARGET, SERIES, rules
from tests.docs.worked import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
FIELDS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
SHARED = ("simulate", "explain", "topology")
WORDED = {
    "apiVersion": "as above",
    "kind": "as above",
    "scores.nodeResourcesFit.resources": "cpu 1, memory 1, GPUs 5",
}
"""Defaults that the page tells in words."""


def options(command: str) -> set[str]:
    parser = argparse.ArgumentParser(prog=command, add_help=False)
    importlib.import_module(f"koordpy.cli.{command}_command").add_arguments(parser)
    return {name for action in parser._actions for name in action.option_strings}


def section(*, of: str) -> str:
    """The part of the page whose heading names a command."""
    parts = re.split(r"^## ", PAGE, flags=re.M)[1:]
    titles = [part.partition("\n")[0] for part in parts]
    (found,) = (part for part, title in zip(parts, titles, strict=True) if of in (title, *re.split(r", | ", title)))
    return found


def told(command: str) -> set[str]:
    """Options in the first column of a command's table."""
    found = set()
    for line in section(of=command).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        if command in SHARED and cells[1] != "all" and command not in cells[1].split(", "):
            continue
        if command == "fairshare" and not cells[0].startswith("`fairshare"):
            continue
        found |= set(_OPTION.findall(cells[0]))
    return found


@pytest.mark.parametrize("command", [*SHARED, "fairshare", "run", "agent", "demo", "view"])
def test_every_option_is_told_and_every_one_told_is_there(command: str) -> None:
    assert told(command) == options(command)


def test_every_view_and_option_of_the_plugin_is_told() -> None:
    parser = kubectl.parser()
    (views,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found = {name for one in (parser, *views.values()) for action in one._actions for name in action.option_strings}
    assert told("kubectl koordpy") == found - {"-h", "--help"}
    assert re.findall(r"^\| `([a-z]+)(?: NAME)?` \|", section(of="kubectl koordpy"), re.M) == list(kubectl.WORDS)


def test_every_command_is_told() -> None:
    assert [command for command in COMMANDS if command not in PAGE] == []


def fields(info: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of every field that is no section."""
    for field in info.fields:
        path = f"{at}{field.encode_name}"
        kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
        if isinstance(kind, inspect.StructType):
            yield from fields(kind, f"{path}.")
        else:
            duration = isinstance(field.type, inspect.Metadata) and (field.type.extra or {}).get("format") == "duration"
            default = {} if field.default is msgspec.NODEFAULT else field.default
            yield path, WORDED.get(path) or shown(default, duration=duration)


def shown(value: Any, *, duration: bool) -> str:
    """A default as the page writes it."""
    if duration:
        seconds = round(value)
        for unit, size in (("h", 3600), ("m", 60)):
            if seconds and seconds % size == 0:
                return f"`{seconds // size}{unit}`"
        return f"`{seconds}s`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    if value in ("", None):
        return "-"
    if isinstance(value, dict):
        return "`{}`"
    return f"`{round(value) if isinstance(value, float) and value == round(value) and value > 2 else value}`"


def test_every_field_is_told_with_its_default() -> None:
    rows = {}
    for line in FIELDS.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows |= dict.fromkeys(re.findall(r"`([\w.]+)`", cells[0]), cells[1])
    assert rows == dict(fields(inspect.type_info(KoordpyConfiguration)))


def test_the_weights_and_the_gpus_are_those_that_count() -> None:
    assert ", ".join(f"{name} {weight}" for name, weight in DEFAULT_WEIGHTS.items()) in FIELDS
    weighed = {one.name: one.weight for one in KoordpyConfiguration().scores.node_resources_fit.resources}
    assert weighed == {"cpu": 1, "memory": 1, **dict.fromkeys(GPU_RESOURCES, 5)}


METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
_SUFFIX = {"counter": "_total", "info": "_info"}
CLOSED: dict[str, Collection[str]] = {
    "scheduler_pending_pods": set(State) - {State.IN_FLIGHT},
    "koordpy_gangs": set(GangStatus),
    "koordpy_victims_total": set(RuleName),
    "koordpy_evictions_withheld_total": set(WITHHOLDING),
    "koordpy_rejected_plans_total": set(Check),
    "koordpy_solver_status_total": set(Proof),
    "koordpy_planning_seconds": {*Method, *(f"victims-{way}" for way in Way if way is not Way.NODE)},
    "koordpy_binds_total": set(BindResult),
}
"""Metrics with one label whose values are a closed set."""


def metric_rows() -> dict[str, list[str]]:
    """Name -> the other cells of its row in the table of all."""
    rows: dict[str, list[str]] = {}
    for line in METRICS.partition("## All metrics")[2].splitlines():
        names, *cells = [cell.strip() for cell in line.strip("|").split(" |")]
        if line.startswith("| `"):
            rows |= dict.fromkeys(re.findall(r"`(\w+)`", names), cells)
    return rows


def test_every_metric_is_told_with_its_type_and_labels() -> None:
    registered = {}
    for family in Metrics().registry.collect():
        name = family.name + _SUFFIX.get(family.type, "")
        bare = SERIES.get(name, SERIES.get(f"{name}_count"))
        assert bare is not None, name
        registered[name] = (family.type, bare)
    assert {name: (kind, set(re.findall(r"\w+", of))) for name, (kind, of, _, _) in metric_rows().items()} == registered


def test_who_should_worry_is_led_to_the_alerts_and_about_nearly_everything_something_is_said() -> None:
    rows = metric_rows()
    for rule in rules():
        names = {name.removesuffix("_bucket") for name in NAME.findall(rule["expr"])} - {"koordpy_build_info"}
        for name in names:
            assert f"[{rule['alert']}](alerts.md#{rule['alert'].lower()})" in rows[name][3], name
    assert {name for name, cells in rows.items() if not cells[3]} <= {"process_virtual_memory_bytes", "process_max_fds"}


@pytest.mark.parametrize("name", CLOSED)
def test_every_value_of_a_closed_label_is_told(name: str) -> None:
    assert set(re.findall(r"`([\w-]+)`", metric_rows()[name][2])) == {str(value) for value in CLOSED[name]}


def test_every_question_is_answered_by_series_and_labels_that_are_there() -> None:
    asked = [
        code
        for code in re.findall(r"`([^`]+)`", METRICS.partition("## All metrics")[0])
        if NAME.search(code) and not code.endswith("*")
    ]
    assert len(asked) > 10
    whole = {name.removesuffix("_count") for name in SERIES if name.endswith("_count")}
    for code in asked:
        names = set(NAME.findall(code))
        assert names <= set(SERIES) | whole, code
        by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", code) for label in found.split(",")}
        assert by - OF_TARGET <= set().union(*(SERIES.get(name, set()) for name in names)), code


DEBUGGING = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")


def told_in(heading: str) -> set[str]:
    """Names in the first column of the table below a heading of the page."""
    rows = re.findall(r"^\| ([^|]+) \|", DEBUGGING.partition(f"## {heading}\n")[2].partition("\n## ")[0], re.M)
    return {name for row in rows[1:] for name in re.findall(r"\w+", row)}


def test_every_field_of_a_decision_is_told() -> None:
    assert told_in("The last decisions") == {field.name for field in dataclasses.fields(Decision)}


def test_every_reason_of_an_event_is_told() -> None:
    of_pods = re.findall(r'reason="(\w+)"', getsource(scheduler_events))
    reasons = {*of_pods, *scheduler_events.EVENTS, *_REASONS.values()}
    assert told_in("Events") == reasons
    vocabulary = (ROOT / "docs" / "rules" / "vocabulary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:Normal|Warning)[^|]*\| ([^|]+) \|", vocabulary, re.M)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == reasons
