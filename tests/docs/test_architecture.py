# SPDX-License-Identifier: Apache-2.0
"""The page on the architecture names packages, modules and types as they are in the code."""

import re
import tomllib
from pathlib import Path

import pytest

from koordpy.planner.actions.action_registry import ACTIONS
from tests.docs.worked import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`(koordpy/[\w/.]+)`", PAGE)))
PICTURE = PAGE.partition("```text\ncli ")[2].partition("```")[0]
LINES = [re.sub(r"\{[^}]*\}", "", re.split(r" {3,}", line)[0]).split(", ") for line in f"cli {PICTURE}".splitlines()]
"""Packages of each line of the picture, from the top."""
TYPES = re.findall(r"^\| `(\w+)` \| (?:`(koordpy/\S+)`|(\w+)) \|", PAGE.partition("## Ten main types")[2], re.M)
MODULES = {path.stem for path in (ROOT / "koordpy").rglob("*.py")}


def packages() -> set[str]:
    return {path.parent.name for path in (ROOT / "koordpy").glob("*/__init__.py")}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_picture_has_every_package_once() -> None:
    assert sorted(name.strip() for line in LINES for name in line) == sorted(packages())


def test_inner_packages_of_the_picture_exist() -> None:
    for outer, inner in re.findall(r"([a-z]+) \{([a-z, ]+)\}", PICTURE):
        for name in inner.split(", "):
            assert (ROOT / "koordpy" / outer / name).is_dir(), (outer, name)


def test_there_are_ten_types_and_each_is_where_the_page_says() -> None:
    assert len(TYPES) == 10
    for name, path, package in TYPES:
        files = [ROOT / path] if path else sorted((ROOT / "koordpy" / package).rglob("*.py"))
        pattern = rf"^(class {name}\b|{name}\b.* = )"
        assert any(re.search(pattern, file.read_text(encoding="utf-8"), re.M) for file in files), name


def test_modules_of_the_walks_exist() -> None:
    walks = PAGE.partition("## Five walks")[2].partition("## A round")[0]
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", walks)) - {"plan_round", "place_pod", "place_unit"}
    assert named - MODULES == set()


def test_the_table_of_actions_is_the_registry_in_order() -> None:
    table = PAGE.partition("| action | effect |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [action.run.__name__ for action in ACTIONS]


def test_the_lines_are_the_layers_of_the_import_linter_in_order() -> None:
    """A package with subpackages in several layers is on the line of its highest one."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in tools if one.get("containers") == ["koordpy"])
    highest: dict[str, int] = {}
    for number, layer in enumerate(layers):
        for room in re.findall(r"[\w.]+", layer):
            highest.setdefault(room.partition(".")[0], number)
    drawn = [sorted({highest[name.strip()] for name in line}) for line in LINES]
    assert set(highest) == packages()
    split = {highest["devices"], highest["preemption"]}
    assert [numbers for numbers in drawn if len(set(numbers) - split) > 1] == []
    firsts = [max(numbers) for numbers in drawn]
    assert firsts == sorted(firsts)


def test_the_page_is_short() -> None:
    assert len(Path(ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()) < 200
