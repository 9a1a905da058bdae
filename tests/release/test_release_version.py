# SPDX-License-Identifier: Apache-2.0
"""One command changes the version everywhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from koordpy import __version__
from release.set_version import FILES, main, occurrences, set_version
from tests.docs.worked import ROOT

HISTORY = {"CHANGELOG.md", "docs/compatibility.md", "docs/upgrading.md"}
"""Pages about versions of the past."""
OTHERS = ("controlplane/", "tests/", "requirements", "release/", "examples/", "bench/")
"""Versions of other software, and of examples."""


def test_every_file_with_the_version_gets_the_new_one(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert set_version(tmp_path, "7.8.9") == list(FILES)
    for name in FILES:
        text = (tmp_path / name).read_text()
        assert "7.8.9" in text and not occurrences(__version__).search(text)


def test_no_other_file_names_the_version() -> None:
    names = subprocess.run(["git", "grep", "-lF", __version__], cwd=ROOT, capture_output=True, text=True).stdout.split()
    found = {
        name
        for name in names
        if not name.startswith(OTHERS) and occurrences(__version__).search((ROOT / name).read_text(encoding="utf-8"))
    }
    assert found - HISTORY == set(FILES)


def test_no_test_writes_the_version_of_koordpy_out() -> None:
    """A test that does would fail after `make version`."""
    pattern = rf"koordpy[ :-]v?{re.escape(__version__)}"
    command = ["git", "grep", "-lE", pattern, "--", "tests", f":!tests/release/{Path(__file__).name}"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [("koordpy:0.1.0, also", True), ("10.1.0", False), ("0.1.0.2", False), ("0.1.01", False), ("v0.1.0.", True)],
)
def test_a_version_is_not_found_in_another_one(text: str, found: bool) -> None:
    assert bool(occurrences("0.1.0").search(text)) == found


@pytest.mark.parametrize("words", [[], ["v1.0.0"], ["1.0"], ["1.0.0", "2.0.0"], ["1.0.0-x"]])
def test_other_words_are_no_version(words: list[str]) -> None:
    assert main(words) == 2
