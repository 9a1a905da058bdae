# SPDX-License-Identifier: Apache-2.0
"""Docstrings of the packages: complete, and true to the code (`koordpy/**/__init__.py`)."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.worked import ROOT
from tests.structure.rooms import PACKAGE

ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))
ROOM_NAMES = {room.name for room in ROOMS}
QUOTED = re.compile(r"`([^`]+)`")
PAIR = re.compile(r"`(\w+)` \(`([\w/]+\.py)`\)")


@cache
def definitions(path: Path) -> frozenset[str]:
    """Names of the classes, functions and constants at the top of a module."""
    out: set[str] = set()
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            out.add(one.name)
        elif isinstance(one, ast.Assign):
            out |= {target.id for target in one.targets if isinstance(target, ast.Name)}
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            out.add(one.target.id)
    return frozenset(out)


@cache
def all_definitions() -> frozenset[str]:
    return frozenset().union(*(definitions(path) for path in PACKAGE.rglob("*.py")))


def files_named(room: Path, name: str) -> list[Path]:
    """Files of that name below the room; a name with folders is a path in the repository or in the package."""
    if "/" in name:
        return [base / name for base in (ROOT, PACKAGE) if (base / name).is_file()]
    return list(room.rglob(name))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_the_docstring_of_a_room_is_complete_and_true(room: Path) -> None:
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    text = " ".join(text.split())
    assert text
    for phrase in ("Main types: ", "Must not ", "Start reading at "):
        assert text.count(phrase) == 1, phrase
    pairs = PAIR.findall(text)
    assert len(pairs) >= 3, "three main types, each with its module"
    for name, file in pairs:
        assert any(name in definitions(path) for path in files_named(room, file)), f"{name} is not defined in {file}"
    for quoted in QUOTED.findall(text):
        if quoted.endswith(".py"):
            assert files_named(room, quoted), f"{quoted} does not exist below the room"
        elif re.fullmatch(r"[A-Za-z_]\w+", quoted) and quoted != "in":
            assert quoted in all_definitions() | ROOM_NAMES, f"{quoted} is not defined in koordpy"
