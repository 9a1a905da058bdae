"""The Ascend examples say in their comments what `koordpy simulate` answers; here it is asked."""

import json
from pathlib import Path

import pytest

from koordpy.api import keys
from koordpy.cli.demo_acts import examples_folder
from koordpy.cli.main import main

FOLDER = examples_folder() / "ascend"
JOBS = sorted(FOLDER.glob("*-job.yaml"))


def said(path: Path) -> list[str]:
    """The indented lines of the comment below `comes out as`."""
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("# comes out as"))
    return [line.removeprefix("#     ") for line in lines[start:] if line.startswith("#     ")]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_comment_tells_what_comes_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [FOLDER / "cluster.yaml", FOLDER / "switches.yaml", path]
    assert main(["simulate", "-o", "json", *(word for one in inputs for word in ("-f", str(one)))]) == 0
    out, err = capsys.readouterr()
    assert err == ""
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


def test_every_kind_of_job_has_an_example() -> None:
    assert [path.stem for path in JOBS] == ["module-job", "superpod-job", "switch-job"]
