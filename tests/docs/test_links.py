# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation lead somewhere: the files, headings and commands that they name exist."""

import re
from glob import glob
from pathlib import Path

import pytest

from koordpy.cli.main import COMMANDS
from tests.docs.worked import ROOT

EXAMPLES = ROOT / "examples"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        EXAMPLES / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "rules").glob("*.md"),
        *(ROOT / "docs" / "reference").glob("*.md"),
    ]
)
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.M)
_COMMAND = re.compile(r"(?:^ {4}(?:\$ )?|^\$ |`)koordpy ([a-z]+)\b", re.M)
_TARGET = re.compile(r"(?:^ *|`)make ([a-z0-9-]+)", re.M)


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    titles = (re.sub(r"[`*]", "", title).strip().lower() for title in _HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_commands_and_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(_TARGET.findall(text)) <= targets
    assert set(_COMMAND.findall(text)) <= {*COMMANDS, "help"}


def test_every_page_is_reached_from_the_readme() -> None:
    seen, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in _LINK.findall(prose(page)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                todo.append(target)
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page not in seen] == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title`, and more\n[a](#a-title-and-more) ```x```\n")
    assert anchors(page) == {"a-title-and-more"}


def test_every_example_is_listed() -> None:
    listed = {
        (EXAMPLES / link).resolve() for link in _LINK.findall((EXAMPLES / "README.md").read_text(encoding="utf-8"))
    }
    assert set(EXAMPLES.rglob("*.yaml")) - listed == set()


def test_every_page_is_in_the_table_of_contents() -> None:
    docs = ROOT / "docs"
    entries = re.findall(r"^[./*\w-]+$", (docs / "index.md").read_text(encoding="utf-8"), re.M)
    listed = {Path(page).resolve() for entry in entries for page in glob(f"{docs}/{entry}.md")}
    assert {page for page in PAGES if page != docs / "index.md"} == listed
