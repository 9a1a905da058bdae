# SPDX-License-Identifier: Apache-2.0
"""The pages as a site: where it begins, what its search finds, and that its tables and its code stay within a window of
1280 pixels."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.search.en import SearchEnglish

from tests.charts.test_dashboards import SERIES
from tests.docs.test_labels import known_keys
from tests.docs.worked import ROOT
from tests.view.browser import Browser
from tests.view.conftest import browser

__all__ = ["browser"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds: in the folder that KOORDPY_SITE names, if it has just been built there."""
    if built := os.environ.get("KOORDPY_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html", "-c", "docs", "."]
    done = subprocess.run([*words, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_its_root_leads_to_the_first_page(site: Path) -> None:
    (target,) = re.findall(r'<a href="([^"]+)">', (site / "index.html").read_text(encoding="utf-8"))
    assert f"url={target}" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / target).is_file()


def test_every_page_takes_the_rules_that_keep_tables_and_code_within_it(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page != site / "index.html"]
    assert len(pages) > 20
    for page in pages:
        styles = re.findall(r'<link rel="stylesheet" [^>]*href="([^"?]+)', page.read_text(encoding="utf-8"))
        (own,) = (name for name in styles if name.endswith("custom.css"))
        rules = (page.parent / own).read_text(encoding="utf-8")
        assert re.search(r"^pre \{[^}]*overflow-x: auto", rules, re.M)
        assert re.search(r"^article code[^{]*\{[^}]*overflow-wrap: break-word", rules, re.M)


def test_every_page_has_navigation_and_colours_for_night_and_its_contents_beside_it(site: Path) -> None:
    """The navigation is a drawer on a phone; a page with two headings below its title lists them."""
    pages = [page for page in (site / "docs").rglob("*.html") if page.name != "index.html"]
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        headings = len(re.findall(r"<h[23]>", text))
        assert 'class="sidebar-tree"' in text and 'for="__navigation"' in text, page
        assert "theme-toggle" in text, page
        assert headings < 2 or 'class="toc-tree"' in text, page


def test_the_first_page_names_every_page_but_the_rules_by_what_it_is_for(site: Path) -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    tables, _, tree = text.partition("```{toctree}")
    pages = {line.strip() for line in tree.splitlines() if re.fullmatch(r"[./A-Za-z_-]+", line.strip())}
    assert len(pages) > 20
    linked = {target.removesuffix(".md") for target in re.findall(r"\]\(([^)]+)\)", tables)}
    assert linked == pages - {"rules/*"}


COLUMN_AT_1280 = 62
"""Characters of a name that cannot be broken that the first column has room for; measured."""


def test_no_name_in_a_first_column_is_wider_than_it_may_be(site: Path) -> None:
    """A name that does not fit pushes its whole table out of the window."""
    cells = [
        (page.name, name)
        for page in site.rglob("*.html")
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page.read_text(encoding="utf-8"), re.S)
        for name in re.findall(r'<span class="pre">([^<]*)</span>', row.partition("</td>")[0])
    ]
    assert len(cells) > 100
    assert [cell for cell in cells if len(cell[1]) > COLUMN_AT_1280] == []


def found(index: dict[str, dict[str, int | list[int]]], name: str) -> set[int]:
    """Pages that hold every word of a name, as the site's search goes about it."""
    language = SearchEnglish({})
    pages: list[set[int]] = []
    for word in language.split(name):
        if word.lower() in language.stopwords or word.isdigit():
            continue
        stem = language.stem(word.lower())
        held = [where for words in (index["terms"], index["titleterms"]) if (where := words.get(stem)) is not None]
        pages.append({page for where in held for page in (where if isinstance(where, list) else [where])})
    return set.intersection(*pages)


def test_its_search_finds_every_label_annotation_and_metric(site: Path) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    whole = {re.sub("_(bucket|sum|count)$", "", name) for name in SERIES}
    names = [*known_keys(), *(key.rpartition("/")[2] for key in known_keys()), *whole]
    assert len(names) > 100
    assert [name for name in names if not found(index, name)] == []
    assert not found(index, "gang.scheduling.koordinator.sh/networkTopologyAwere")


# --- in a browser -----------------------------------------------------------------------------------------------------

SHOWN = ("docs/index", "docs/gangs", "docs/configuration", "docs/reference/custom-resources", "docs/rules/preemption")
"""A landing page, a page of prose, and pages with the widest tables."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("page", SHOWN)
def test_a_page_fits_the_window_in_light_and_dark(
    site: Path, browser: Browser, page: str, width: int, dark: bool
) -> None:
    browser.open(f"file://{site}/{page}.html", width=width, height=900, dark=dark)
    assert browser.js("document.documentElement.scrollWidth <= window.innerWidth")
    red, green, blue = re.findall(r"[0-9]+", browser.js("getComputedStyle(document.body).backgroundColor"))[:3]
    assert (int(red) + int(green) + int(blue) < 3 * 64) == dark
    wide = browser.js("getComputedStyle(document.querySelector('.toc-drawer')).visibility === 'visible'")
    assert wide or width < 1440, "a wide window shows the contents of the page"
    assert browser.errors == []


def test_each_card_of_the_landing_page_leads_to_a_page(site: Path, browser: Browser) -> None:
    browser.open(f"file://{site}/docs/index.html")
    targets = browser.js("[...document.querySelectorAll('.sd-card a')].map((one) => one.href)")
    assert len(targets) == 5
    for target in targets:
        browser.open(target)
        assert browser.text("h1")


def test_the_navigation_of_a_narrow_window_opens(site: Path, browser: Browser) -> None:
    browser.open(f"file://{site}/docs/gangs.html", width=390, height=900)
    place = "document.querySelector('.sidebar-drawer').getBoundingClientRect().x"
    assert browser.js(place) < 0
    browser.click_on(".mobile-header label[for='__navigation']")
    browser.until(f"{place} >= 0")


def test_the_search_finds_a_term(site: Path, browser: Browser) -> None:
    browser.open(f"file://{site}/search.html?q=MustGather")
    titles = "[...document.querySelectorAll('#search-results li a')].map((one) => one.innerText)"
    browser.until(f"{titles}.includes('Gangs')")
