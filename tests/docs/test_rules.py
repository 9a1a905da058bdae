# SPDX-License-Identifier: Apache-2.0
"""The rules that comments cite are in docs/rules: each page and section that the code names is there."""

import re
from pathlib import Path

import pytest

from tests.docs.worked import ROOT

RULES = ROOT / "docs" / "rules"
SOURCES = [
    path
    for folder in ("koordpy", "tests", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.parent != ROOT / "tests" / "docs"
]
_HEADING = re.compile(r"^#+ (\d+(?:\.\d+)*)\.? ", re.M)
_NUMBERS = r"\d+(?:\.\d+)*(?:(?:,| and|, and| to) \d+(?:\.\d+)*)*"
_BREAK = re.compile(r"\n *(?:# ?)?")


def sections() -> dict[str, set[str]]:
    """Page -> numbers of its headings."""
    return {page.stem: set(_HEADING.findall(page.read_text(encoding="utf-8"))) for page in RULES.glob("[a-z]*.md")}


def citations(text: str, pages: list[str]) -> list[tuple[str, list[str]]]:
    """(page, sections) of each citation, also where a line ends within it; of a page as a whole none."""
    found = re.finditer(rf"(?<![\w/-])({'|'.join(pages)})\.md(?: (?:sections? )?({_NUMBERS}))?", _BREAK.sub(" ", text))
    return [(one[1], re.findall(r"\d+(?:\.\d+)*", one[2] or "")) for one in found]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_citation_names_a_page_and_a_section_that_are_there(source: Path) -> None:
    known = sections()
    pages = sorted({*known, "workloads", "repair", "numa", "balanced", "defrag", "gpu-parts", "time", "dra"})
    for page, numbers in citations(source.read_text(encoding="utf-8"), pages):
        assert numbers, f"{page}.md is cited without a section"
        assert set(numbers) <= known.get(page, set()), f"{page}.md {numbers}"


def test_each_topic_has_its_page() -> None:
    topics = {
        "kube-parity",
        "gang-network",
        "gpu-topology",
        "quota-fairness",
        "preemption",
        "ascend",
        "dra",
        "simulate",
        "vocabulary",
        "workloads",
        "repair",
        "numa",
    }
    assert sections().keys() - {"index"} == topics
    assert all(len(found) > 5 or page in ("repair", "numa") for page, found in sections().items() if page != "index")


def test_a_citation_is_found_however_it_is_written() -> None:
    text = "(gang-network.md sections 2, 5 and\n    # 7.1 hold), docs/gang-network.md, gang-network.md"
    assert citations(text, ["gang-network"]) == [("gang-network", ["2", "5", "7.1"]), ("gang-network", [])]
