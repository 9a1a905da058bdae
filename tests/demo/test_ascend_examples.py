# SPDX-License-Identifier: Apache-2.0
"""The Ascend examples say in their comments what `koordpy simulate` answers; here it is asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cli.main import main
from koordpy.demo.acts import EXAMPLES, Forecaster, read_acts
from koordpy.demo.programme import ASCEND
from tests.said import warnings_of

FOLDER = EXAMPLES / "ascend"
JOBS = sorted(FOLDER.glob("*-job.yaml"))


def said(path: Path) -> list[str]:
    """The indented lines of the comment below `comes out as`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("# comes out as"))
    return [line.removeprefix("#     ") for line in lines[start:] if line.startswith("#     ")]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_comment_tells_what_comes_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [FOLDER / "cluster.yaml", FOLDER / "switches.yaml", path]
    assert main(["simulate", "-o", "json", *(word for one in inputs for word in ("-f", str(one)))]) == 0
    out, err = capsys.readouterr()
    assert warnings_of(err) == ""
    answer = json.loads(out)
    assert answer["pending"] == []
    lines = []
    for binding in answer["bindings"]:
        notes = binding["annotations"]
        parts = [binding["pod"], binding["node"]]
        if keys.SUPER_POD_RANK in notes:
            parts.append(f"block {notes[keys.SUPER_POD_RANK]}")
        elif path.stem == "module-job":
            parts.append(notes[keys.NPU_RESOURCES[0]].replace("Ascend910-", ""))
        lines.append("  ".join(parts))
    assert lines == said(path)


def answer_to(capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, Any]:
    words = [word for name in ("cluster.yaml", *names) for word in ("-f", str(FOLDER / name))]
    assert main(["simulate", "-o", "json", "--evicted", "drop", *words]) == 0
    out, err = capsys.readouterr()
    assert warnings_of(err) == ""
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("name", ["background", "urgent"])
def test_the_comment_tells_where_whole_nodes_are_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_to(capsys, f"{name}.yaml")
    lines = [f"{binding['pod']}  {binding['node']}" for binding in answer["bindings"]]
    assert lines == said(FOLDER / f"{name}.yaml")


def test_the_comment_tells_why_a_job_is_illegal(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_to(capsys, "illegal.yaml")
    assert answer["bindings"] == []
    pod = answer["pending"][0]
    assert [f"{pod['pod']}  {pod['reason']}", pod["message"]] == said(FOLDER / "illegal.yaml")


def test_together_the_urgent_job_evicts_what_its_comment_says(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = [FOLDER / f"{name}.yaml" for name in ("cluster", "superpod-job", "background")]
    assert main(["simulate", "-o", "json", *(word for path in words for word in ("-f", str(path)))]) == 0
    running = {one["pod"]: one for one in json.loads(capsys.readouterr().out)["bindings"]}
    forecaster = Forecaster(cluster=ASCEND.cluster)
    for act in read_acts(["ascend/superpod-job", "ascend/background"]):
        assert forecaster.forecast(act).nodes.items() <= {f"default/{k}": v["node"] for k, v in running.items()}.items()
    found = forecaster.forecast(read_acts(["ascend/urgent"])[0])
    assert sorted(found.evicted) == ["default/background-1", "default/background-2"]
    assert {node[:3] for node in found.nodes.values()} == {"sp1"}


def test_every_kind_of_job_has_an_example() -> None:
    assert [path.stem for path in JOBS] == ["module-job", "superpod-job", "switch-job"]
