# SPDX-License-Identifier: Apache-2.0
"""An unsupported Python gets one line with the supported versions, from every entry point."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from koordpy.cli.python_version import NEWEST, OLDEST, unsupported_python
from tests.docs.worked import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SENTENCE = "is not supported: use Python 3.11, 3.12 or 3.13"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((3, 9), f"koordpy: Python 3.9 {SENTENCE}"),
        ((3, 10), f"koordpy: Python 3.10 {SENTENCE}"),
        ((3, 11), ""),
        ((3, 12), ""),
        ((3, 13), ""),
        ((3, 14), f"koordpy: Python 3.14 {SENTENCE}"),
        ((4, 0), f"koordpy: Python 4.0 {SENTENCE}"),
        ((2, 7), f"koordpy: Python 2.7 {SENTENCE}"),
    ],
)
def test_an_unsupported_version_is_named_with_the_supported_ones(version: tuple[int, int], expected: str) -> None:
    assert unsupported_python(version) == expected


def test_the_versions_are_those_of_the_package_and_of_the_makefile() -> None:
    assert PROJECT["requires-python"] == f">=3.{OLDEST},<3.{NEWEST + 1}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"(3, {OLDEST}) <= sys.version_info < (3, {NEWEST + 1})" in makefile
    assert f"koordpy runs on Python 3.{OLDEST} to 3.{NEWEST}" in makefile


@pytest.mark.parametrize("target", ["install", "dist"])
@pytest.mark.parametrize(
    ("python", "found"), [("false", "false"), ("python3.99", "python3.99"), ("", "none on the PATH")]
)
def test_make_declines_another_python(target: str, python: str, found: str, tmp_path: Path) -> None:
    command = ["make", target, f"PYTHON={python}", f"VENV={tmp_path}/venv", f"DIST_TOOLS={tmp_path}/tools"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    wanted = f"koordpy runs on Python 3.{OLDEST} to 3.{NEWEST}"
    example = f"name one, as in make {target} PYTHON=python3.12"
    assert [line for line in done.stderr.splitlines() if not line.startswith("make")] == [
        f"{wanted}, found '{found}': {example}"
    ]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("entry", sorted({point.partition(":")[0] for point in PROJECT["scripts"].values()}))
def test_an_entry_point_ends_with_that_line(entry: str) -> None:
    """The interpreter pretends to be an older one. A module that is imported before the check would fail otherwise."""
    program = f"import sys; sys.version_info = (3, 10, 4, 'final', 0); import {entry}; print('not reached')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"koordpy: Python 3.10 {SENTENCE}\n"


@pytest.mark.parametrize("path", ["__init__.py", "__main__.py", "cli/__init__.py", "cli/python_version.py"])
def test_what_runs_before_the_check_is_valid_in_older_versions(path: str) -> None:
    text = (ROOT / "koordpy" / path).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 6))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= {"sys", "koordpy.cli.main", "koordpy.cli.python_version"}
    assert not re.search(r"^\s*(match|case) ", text, re.M)
