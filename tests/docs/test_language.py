"""Pages use plain engineering English: words that hide the subject of a sentence are banned."""

import re
from pathlib import Path

import pytest

from tests.docs.worked import ROOT

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        ROOT / "examples" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
BANNED = re.compile(
    r"\b(who|whom|whose|whoever|nobody|somebody|anybody|everybody|anew|in vain|meanwhile"
    r"|(?:is|are|was|were|be) told|of (?:its|their|his) own(?! \w)|(?:stand|stands) (?:in|on|for|beside))\b",
    re.I,
)
LITERAL = re.compile(r"^( *)```.*?^\1```$|^ {4,}[^\n]*$|`[^`]*`|\]\([^)]*\)", re.M | re.S)
"""Output, commands, code and addresses of links: not the page's own words."""
LEFT: dict[str, int] = {
    "CHANGELOG.md": 1,
}
"""Page -> occurrences that are left; a page that is rewritten leaves this table. It may only shrink."""


def banned(page: Path) -> list[str]:
    """The banned words of a page's prose, in order."""
    return [found.group(0) for found in BANNED.finditer(LITERAL.sub(" ", page.read_text(encoding="utf-8")))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_names_its_subjects(page: Path) -> None:
    found = banned(page)
    assert len(found) <= LEFT.get(name(page), 0), found


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
def test_words_are_found(text: str, words: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert banned(page) == words
