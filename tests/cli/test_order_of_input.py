# SPDX-License-Identifier: Apache-2.0
"""The answer depends on what is in the input, not on how it is written (simulate.md 1).

Each example of the repository is simulated as it is, then with keys and documents in another order, then with its
result fed back as the cluster's state: nothing more happens there, so whatever was written is also read.
"""

import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main

ROOT = Path(__file__).parents[2]
SEE_IT = re.compile(r"^# See it: +koordpy simulate (.*)$", re.MULTILINE)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def commands() -> list[str]:
    """Arguments of every `koordpy simulate` that an example's head shows."""
    found = {
        line.strip()
        for path in sorted((ROOT / "examples").rglob("*.yaml"))
        for line in SEE_IT.findall(path.read_text(encoding="utf-8"))
    }
    return sorted(found)


def documents(words: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The documents that `-f` names, in order, each with uid and creation time; the other arguments."""
    objects: list[dict[str, Any]] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word != "-f":
            others.append(str(ROOT / word) if word.startswith("examples/") else word)
            continue
        path = ROOT / next(rest)
        for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
            objects += [document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document]
    for at, document in enumerate(objects):
        born = NOW - timedelta(seconds=len(objects) - 1 - at)
        document["metadata"].setdefault("uid", f"u-{at:05}")
        document["metadata"].setdefault("creationTimestamp", born.strftime("%Y-%m-%dT%H:%M:%SZ"))
        for device in document["spec"].get("devices", ()) if document["kind"] == "Device" else ():
            device.setdefault("resources", {"kubernetes.io/gpu-memory": "80Gi", "kubernetes.io/gpu-core": "100"})
    return objects, others


def mixed(value: Any, order: random.Random) -> Any:
    """The value with the keys of every mapping in another order; lists as they are."""
    if isinstance(value, dict):
        names = list(value)
        order.shuffle(names)
        return {name: mixed(value[name], order) for name in names}
    return [mixed(item, order) for item in value] if isinstance(value, list) else value


class Simulations:
    """Runs the command on documents."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = folder / "input.json", capsys

    def __call__(self, objects: list[dict[str, Any]], others: list[str]) -> str:
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        assert main(["simulate", "-f", str(self._file), "-o", "json", *others]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulations:
    return Simulations(tmp_path, capsys)


def afterwards(objects: list[dict[str, Any]], result: dict[str, Any], *, dropped: bool) -> list[dict[str, Any]]:
    """The input as the simulation left it: bound pods run as their Bindings say, evicted ones wait or are gone."""
    bound = {(b["namespace"], b["pod"]): b for b in result["bindings"]}
    evicted = {(e["namespace"], e["pod"]) for e in result["evictions"]}
    left = []
    for item in json.loads(json.dumps(objects)):
        key = (item["metadata"].get("namespace", "default"), item["metadata"]["name"])
        if item["kind"] == "Pod" and key in bound:
            item["spec"]["nodeName"] = bound[key]["node"]
            item["metadata"].setdefault("annotations", {}).update(bound[key]["annotations"])
            item.setdefault("status", {})["phase"] = "Running"
        elif item["kind"] == "Pod" and key in evicted:
            if dropped:
                continue
            del item["spec"]["nodeName"]
            item.pop("status", None)
        left.append(item)
    return left


def test_examples_say_how_they_are_seen() -> None:
    assert len(commands()) >= 20


@pytest.mark.parametrize("command", commands())
def test_the_order_of_keys_and_documents_changes_no_byte(command: str, simulated: Simulations) -> None:
    objects, others = documents(command.split())
    expected = simulated(objects, others)
    order = random.Random(command)
    for _ in range(2):
        again = [mixed(item, order) for item in objects]
        order.shuffle(again)
        assert simulated(again, others) == expected


def of_pods_in_the_input() -> list[str]:
    """Those of which all pods stand in the files; what workloads make does not."""
    made = re.compile(r"examples/workloads/(?!spark)")
    return [command for command in commands() if not made.search(command)]


@pytest.mark.parametrize("command", of_pods_in_the_input())
def test_a_stable_result_fed_back_stays(command: str, simulated: Simulations) -> None:
    objects, others = documents(command.split())
    result = json.loads(simulated(objects, others))
    assert result["stable"]
    again = json.loads(simulated(afterwards(objects, result, dropped="drop" in others), others))
    assert (again["bindings"], again["evictions"]) == ([], [])
    assert again["final"] == result["final"]
