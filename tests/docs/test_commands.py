# SPDX-License-Identifier: Apache-2.0
"""Commands that pages show can be given as they stand, and print what the pages say they print."""

import contextlib
import io
import itertools
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from koordpy.cli.main import main
from tests.docs.worked import ROOT, matches
from tests.said import warnings_of

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OFFLINE = ("simulate", "explain", "fairshare", "topology", "config")
_SHOWN = re.compile(r"^    (\$ )?((?:\.venv/bin/)?koordpy .*?)\s*(?:# .*)?$")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


@dataclass(frozen=True)
class Shown:
    """A command on a page; `prints` is empty where the page does not say."""

    page: str
    words: tuple[str, ...]
    prints: str

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def shown(page: Path) -> list[Shown]:
    """The offline commands of a page's indented blocks."""
    lines = _FENCED.sub("", page.read_text(encoding="utf-8")).splitlines()
    found = []
    for i, line in enumerate(lines):
        command = _SHOWN.match(line)
        if command is None:
            continue
        words = tuple(shlex.split(command[2])[1:])
        block: list[str] = []
        if command[1]:
            for below in lines[i + 1 :]:
                if (below.strip() and not below.startswith("    ")) or below.startswith("    $ "):
                    break
                block.append(below[4:] if below.strip() != "..." else "...")
        if words[0] in OFFLINE:
            found.append(Shown(str(page.relative_to(ROOT)), words, "\n".join(block).rstrip()))
    return found


def files(words: tuple[str, ...]) -> list[str]:
    return [word for before, word in itertools.pairwise(words) if before in ("-f", "--config")]


def is_here(one: Shown) -> bool:
    """All its files are in the repository; the others stand for the reader's own."""
    named = files(one.words)
    return bool(named) and all((ROOT / name).exists() for name in named)


EVERYTHING = [one for page in PAGES for one in shown(page)]
HERE = [one for one in EVERYTHING if is_here(one)]


def printed(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(ROOT)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    assert (status, warnings_of(err.getvalue())) == (0, "")
    return out.getvalue()


@pytest.mark.parametrize("one", HERE, ids=str)
def test_it_works_and_prints_what_the_page_says(one: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    said = printed(one.words, monkeypatch)
    assert said
    if one.prints:
        assert matches(said, one.prints), said


def test_the_pages_show_commands_of_every_kind() -> None:
    assert {one.words[0] for one in HERE} == {"simulate", "explain", "fairshare", "topology"}
    assert len([one for one in HERE if one.prints]) >= 4


def test_files_that_are_not_here_are_the_readers_own() -> None:
    """Not examples that have moved."""
    strange = {name for one in EVERYTHING if not is_here(one) for name in files(one.words) if "/" in name}
    assert strange == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_files_are_that_are_not_here(page: Path) -> None:
    """A block of the page has the name, a command writes the file, or a sentence before the command names it."""
    text = page.read_text(encoding="utf-8")
    strange = set()
    for one in shown(page):
        for name in files(one.words):
            before = text.partition(f" {name}")[0]
            made = re.search(rf"^```\w+ {re.escape(name)}$", text, re.M) or f"> {name}\n" in text
            if not made and f"`{name}`" not in before and not (ROOT / name).exists():
                strange.add(name)
    assert strange == set()


@pytest.mark.parametrize("page", ["README.md", "docs/explain-a-pending-gang.md"])
def test_the_message_of_the_gang_that_does_not_fit_is_the_planners(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("simulate", "-f", "examples/cluster", "-f", "examples/does-not-fit.yaml", "-o", "json")
    (message,) = {one["message"] for one in json.loads(printed(words, monkeypatch))["pending"]}
    assert message in " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("command", ["", *OFFLINE, "run", "agent", "demo"])
def test_help_is_there(command: str) -> None:
    words = [sys.executable, "-m", "koordpy", *([command] if command else []), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert "usage: koordpy" in done.stdout
    undocumented = re.findall(r"^  (-\S+)(?: [A-Z/]+)?$(?!\n {10})", done.stdout, re.M)
    assert undocumented == []
