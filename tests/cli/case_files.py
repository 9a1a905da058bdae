# SPDX-License-Identifier: Apache-2.0
"""Case files of a folder: the cluster that `koordpy simulate` leaves of each case, as manifests to explain.

A case file is a YAML list of cases in a short form. The script `run_cases.py` beside the folder expands the short form.
"""

import contextlib
import importlib.util
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from koordpy.cli.main import main as koordpy
from tests.cli.random_manifests import GANG, GANG_NOTE, Cluster

Document = dict[str, Any]
STATUS_OPTIONS = ("--fail-pending", "--fail-refused")
"""Options of `koordpy simulate` that change its exit status only, and that `koordpy explain` lacks."""
SIMULATED = ("simulate", "explain")
"""Commands of the cases whose input is manifests of a cluster."""


@dataclass(frozen=True)
class CaseFile:
    """A case that is expanded into files."""

    name: str
    manifests: str
    """The manifests as a YAML stream."""
    config: Document
    arguments: list[str]
    """Further arguments of `koordpy simulate`."""


def cases(folder: Path, text: str = "") -> Iterator[CaseFile]:
    """Returns the cases of a folder that simulate manifests alone, and whose name contains a text."""
    runner = _expander(folder.resolve().parent / "run_cases.py")
    for name, case in runner.read([folder]):
        words = [str(word) for word in case.get("args") or [] if word not in STATUS_OPTIONS]
        others = case.get("files") or case.get("before") or case["expect"].get("exit")
        if text not in name or case.get("cmd", "simulate") not in SIMULATED or others or "-f" in words:
            continue
        yield CaseFile(name, yaml.safe_dump_all(runner.expand(case), sort_keys=False), case.get("config") or {}, words)


def _expander(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("case_expander", path)
    assert spec and spec.loader, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(manifests: str, config: Document, folder: Path) -> list[str]:
    """Writes manifests and a configuration into a folder. Returns the options that name the files."""
    (folder / "case.yaml").write_text(manifests)
    (folder / "case-config.yaml").write_text(yaml.safe_dump(config))
    return ["-f", str(folder / "case.yaml"), "--config", str(folder / "case-config.yaml")]


def left_by(options: Sequence[str], config: Document) -> Cluster:
    """Returns the cluster at the end of a simulation.

    Later simulations of the cluster keep only the option `--evicted`.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = koordpy(["simulate", *options, "-o", "manifests"])
    assert status == 0, err.getvalue()
    documents = [one for one in yaml.load_all(out.getvalue(), yaml.CSafeLoader) if one]
    for one in documents:
        if one["kind"] in ("Node", "Pod"):
            one["metadata"]["labels"] = one["metadata"].get("labels") or {}
            one["spec"] = one.get("spec") or {}
    arguments = ["--evicted", "drop"] if "drop" in options else []
    return Cluster(json.loads(json.dumps(documents, default=str)), config, arguments)


def note_gangs(one: Cluster, pods: dict[str, str]) -> None:
    """Writes the gang of each pod that has no gang label into an annotation, for the reading of suggestions.

    pods: `namespace/name` of the pod -> `namespace/name` of the gang.
    """
    for pod in one.of("Pod").values():
        meta = pod["metadata"]
        gang = pods.get(f"{meta.get('namespace', 'default')}/{meta['name']}", "")
        if gang and GANG not in meta["labels"]:
            meta["annotations"] = {**(meta.get("annotations") or {}), GANG_NOTE: gang.rpartition("/")[2]}
