# SPDX-License-Identifier: Apache-2.0
"""The picture of the demo: how a film is written, and that the committed one shows what the planner does today."""

from xml.etree import ElementTree

from rich.text import Text

from koordpy.demo.acts import Forecaster, read_acts
from koordpy.demo.demo_reasons import domain_of
from tests.docs.film import Frame, film, frame_of
from tests.docs.worked import ROOT

SVG = "{http://www.w3.org/2000/svg}"
HEADINGS = ("gang", "bound", "state", "domain", "proof", "why")
PICTURE = ROOT / "docs" / "demo.svg"


def frame(*lines: str) -> Frame:
    return frame_of(Text("\n".join(lines)), width=20)


def written(frames: list[Frame]) -> dict[str, list[str]]:
    """Class of a group -> its texts."""
    root = ElementTree.fromstring(film(frames, title="<a & b>", width=20, seconds=1, last_seconds=2))
    return {
        group.get("class", ""): ["".join(text.itertext()) for text in group.iter(f"{SVG}text")]
        for group in root.iter(f"{SVG}g")
    }


def test_a_line_is_written_once_for_as_long_as_it_stands() -> None:
    assert written([frame("stays", "one"), frame("stays", "two"), frame("stays", "two")]) == {
        "f0-3 last": ["stays"],
        "f0-1": ["one"],
        "f1-3 last": ["two"],
    }


def test_a_line_that_comes_again_is_another_one_and_one_that_ends_is_not_in_the_last_frame() -> None:
    assert written([frame("a", "x"), frame("b"), frame("a")]) == {
        "f0-1": ["a", "x"],
        "f1-2": ["b"],
        "f2-3 last": ["a"],
    }


def test_gaps_are_places_and_not_characters() -> None:
    root = ElementTree.fromstring(film([frame("  a b   c")], title="", width=20, seconds=1, last_seconds=1))
    texts = [("".join(text.itertext()), float(text.get("x", 0))) for text in root.iter(f"{SVG}text")]
    (first, left), (second, right) = texts
    assert (first, second) == ("a b", "c")
    assert round((right - left) / 7.8) == len("a b   ")


def test_text_is_escaped_and_colours_are_kept() -> None:
    shown = frame_of(Text("<&>", style="bold black on bright_red"), width=20)
    text = film([shown], title="t", width=20, seconds=1, last_seconds=1)
    assert "&lt;&amp;&gt;" in text
    root = ElementTree.fromstring(text)
    (word,) = root.iter(f"{SVG}text")
    (_, behind) = root.iter(f"{SVG}rect")
    assert word.get("class") == "b"
    assert behind.get("fill") != word.get("fill")


def test_the_picture_of_the_demo_is_small_and_shows_every_gang_where_the_planner_puts_it() -> None:
    assert PICTURE.stat().st_size < 150_000
    root = ElementTree.parse(PICTURE).getroot()
    shown = [
        ["".join(text.itertext()) for text in group.iter(f"{SVG}text")]
        for group in root.iter(f"{SVG}g")
        if "last" in group.get("class", "").split()
    ]
    words = [word for group in shown for word in group]
    forecaster = Forecaster()
    evicted = set[str]()
    gangs = []
    for act in read_acts():
        forecast = forecaster.forecast(act)
        evicted.update(forecast.evicted)
        gangs += forecast.gangs
    for gang in gangs:
        name = gang.name.removeprefix("default/")
        place = domain_of(forecaster.state.nodes.tree, [n for key, n in gang.nodes.items() if key not in evicted])
        row = words[words.index(name) :][: len(HEADINGS)]
        assert gang.proof in row
        assert place.rpartition(" ")[2].rpartition("/")[2] in (*row, "")
