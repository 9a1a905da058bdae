# SPDX-License-Identifier: Apache-2.0
"""docs/extending.md holds: its modules and lines of registration, in a copy of the source, do what the page prints."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.worked import ROOT, Block, added, blocks_of, matches, patched
from tests.said import warnings_of

PAGE = ROOT / "docs" / "extending.md"
BLOCKS = blocks_of(PAGE)
BESIDE = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
COMMANDS = [block for block in BLOCKS if block.language == "console"]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with everything on the page in it, and the page's inputs beside it."""
    top = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "koordpy", top / "koordpy", ignore=shutil.ignore_patterns("__pycache__"))
    for block in BLOCKS:
        if block.language == "python":
            assert not (top / block.path).exists(), f"{block.path} is there already"
            (top / block.path).write_text(block.text, encoding="utf-8")
        elif block.language == "diff":
            text = patched((top / block.path).read_text(encoding="utf-8"), block.text)
            (top / block.path).write_text(text, encoding="utf-8")
        elif block.language == "yaml":
            (top / block.path).write_text(block.text, encoding="utf-8")
    return top


ANSWERS = """
import contextlib, io, json, sys
from koordpy.cli.main import main

answers = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(words)
    assert status == 0, (words, status, err.getvalue())
    answers.append([out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(extended: Path) -> dict[str, tuple[str, str]]:
    """Command line -> stdout and stderr of the extended koordpy. One process gives all, because each compiles it."""
    lines = [block.text.partition("\n")[0] for block in COMMANDS]
    commands = [shlex.split(line.removeprefix("$ ")) for line in lines]
    assert {words[0] for words in commands} == {"koordpy"}
    given = json.dumps([words[1:] for words in commands])
    told = json.loads(told_by(ANSWERS, extended, given, COLUMNS="120"))
    return {line: (out, err) for line, (out, err) in zip(lines, told, strict=True)}


def told_by(program: str, extended: Path, given: str = "", **environment: str) -> str:
    """What a program prints that imports the extended koordpy."""
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=extended,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(extended), *BESIDE]),
            "PYTHONUTF8": "1",
            **environment,
        },
        input=given,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("block", COMMANDS, ids=[block.text.partition("\n")[0] for block in COMMANDS])
def test_the_page_prints_what_the_commands_print(block: Block, answers: dict[str, tuple[str, str]]) -> None:
    command, _, wanted = block.text.partition("\n")
    out, err = answers[command]
    assert warnings_of(err) == ""
    assert matches(out, wanted), out


GIVEN_TWICE = """
from dataclasses import replace
from koordpy.cli.main import main
from koordpy.devices.fpgas import Fpgas

rightly = Fpgas.allocate
Fpgas.allocate = lambda *of: replace(found := rightly(*of), devices=dict.fromkeys(found.devices, (4, 5, 6)))
main(["simulate", "-f", "fpgas.yaml", "-o", "yaml"])
"""


def test_the_check_of_a_family_catches_a_part_that_is_given_twice(extended: Path) -> None:
    text = " ".join(told_by(GIVEN_TWICE, extended).split())
    assert "reason: SchedulerError" in text, text
    assert "default/pair-1: regions [4, 5, 6] have another holder" in text
    assert "bindings: []" in text and "evictions: []" in text


def test_each_kind_of_extension_is_one_module_and_one_line_and_its_name() -> None:
    modules = [block.path for block in BLOCKS if block.language == "python"]
    diffs = [block for block in BLOCKS if block.language == "diff"]
    assert len(modules) == 7
    assert all(len(added(block.text)) == 1 for block in diffs)
    names = (
        "koordpy/config/configuration.py",
        "koordpy/config/config_values.py",
        "koordpy/preemption/selection/preemption_names.py",
    )
    registries = [block.path for block in diffs if block.path not in names]
    assert len(registries) == len(set(registries)) == 7


@pytest.mark.parametrize(
    ("diff", "why"), [(" one\n+two\n", "2 places"), (" none\n+two\n", "0 places")], ids=["ambiguous", "stale"]
)
def test_a_hunk_fits_one_place(diff: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        patched("one\nthree\none\n", diff)


@pytest.mark.parametrize(
    ("wanted", "does"),
    [
        ("a\nb\nc\n", True),
        ("a\n...\n", True),
        ("...\nb\n...\n", True),
        ("...\nc\n", True),
        ("a\nb\n", False),
        ("b\nc\n", False),
        ("...\nb\n", False),
        ("...\nc\n...\nb\n...\n", False),
    ],
)
def test_dots_on_a_line_of_their_own_stand_for_any_lines(wanted: str, does: bool) -> None:
    assert matches("a\nb\nc\n", wanted) is does
