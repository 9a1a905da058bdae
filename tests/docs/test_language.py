# SPDX-License-Identifier: Apache-2.0
"""Pages and code use plain engineering English: words that hide the subject of a sentence are banned.

Texts that a specification or another project fixes are in backticks, which are not looked at. No file is exempt.
"""

from pathlib import Path

import pytest

from tests.docs.prose import banned_in_code, banned_in_page, banned_in_yaml
from tests.docs.worked import ROOT

PAGES = sorted([*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")])
ROOMS = sorted(path for path in (ROOT / "koordpy").iterdir() if path.is_dir() and path.name != "__pycache__")
MANIFESTS = sorted(
    path for folder in ("crds", "charts/koordpy", "examples") for path in (ROOT / folder).rglob("*.yaml")
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_names_its_subjects(page: Path) -> None:
    assert banned_in_page(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=name)
def test_a_page_links_the_glossary(page: Path) -> None:
    assert page.stem == "glossary" or "glossary.md" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_code_and_messages_name_their_subjects(room: Path) -> None:
    found = [one for path in sorted(room.rglob("*.py")) for one in banned_in_code(path)]
    assert [f"{name(one.path)}:{one.line}: {one.word}" for one in found] == []


@pytest.mark.parametrize("path", MANIFESTS, ids=name)
def test_comments_and_descriptions_name_their_subjects(path: Path) -> None:
    assert banned_in_yaml(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nobody is evicted for who waits.", ["Nobody", "who"]),
        ("The pod is told so, anew.", ["is told", "anew"]),
        ("a node of its own", ["of its own"]),
        ("`who`, [a page](who.md#whom), and\n\n    who\n", []),
        ("Pods whose gang waits, and the whole gang.", ["whose"]),
    ],
)
def test_words_are_found_in_a_page(text: str, words: list[str]) -> None:
    assert banned_in_page(text) == words


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""Evicts whoever waits."""', ["whoever"]),
        ("x = 1  # for nobody", ["nobody"]),
        ('say("the pod is told so")', ["is told"]),
        ('name = "who"', []),
        ('"""The pod `who` waits."""', []),
        ("who = 1", []),
    ],
)
def test_words_are_found_in_code(source: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [one.word for one in banned_in_code(path)] == words


def test_words_are_found_in_manifests() -> None:
    text = "# for nobody\nkey: who\ndescription: pods whose node is gone\nother: >-\n  who waits here\n"
    assert banned_in_yaml(text) == ["nobody", "whose", "who"]
