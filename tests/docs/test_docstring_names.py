# SPDX-License-Identifier: Apache-2.0
"""Names in backquotes in docstrings of the package exist: in its code, in its strings, or in `FOREIGN`."""

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.docs.worked import ROOT

QUOTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`")
"""A name in backquotes, with dots at most; a pattern such as `of_...` is not one."""
METHOD = re.compile(r"`([A-Z]\w*)\.(\w+)(?:\(\))?`")
EXAMPLE = re.compile(r"[a-z]+\d+")
"""Names such as `a10`: examples of object names."""
FOREIGN = {
    *("NewBoolVar", "ParseDuration", "enableMinQuotaScale", "kubeVersion", "omitempty"),
    *("intern", "pause_reading", "start_tls"),
}
"""Names of the standard library, OR-Tools, Go, Helm and Koordinator, which explain a choice."""
PLACEHOLDERS = {"FIELD", "NAME_command", "tierN"}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the package."""

    path: str
    lines: list[str]
    """Its source without docstrings."""
    docstrings: list[tuple[int, str]]
    """(line, text), also of attributes."""
    classes: list[ast.ClassDef]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the statements in a node. Expressions are not entered, because that takes most of the time."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, field, ())
        for one in inner if isinstance(inner, list) else ():
            yield one
            yield from statements(one)


@cache
def modules() -> list[Module]:
    """Returns the modules of the package."""
    out = []
    for path in sorted((ROOT / "koordpy").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        module = Module(str(path.relative_to(ROOT)), source.split("\n"), [], [])
        for node in statements(ast.parse(source)):
            match node:
                case ast.ClassDef():
                    module.classes.append(node)
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=first, end_lineno=int(last)):
                    module.docstrings.append((first, text))
                    module.lines[first - 1 : last] = [""] * (last - first + 1)
        out.append(module)
    return out


def words(text: str) -> list[str]:
    """Returns the words of a text, where a word is what may be an identifier."""
    return re.findall(r"\w+", text)


def snake(name: str) -> str:
    """Returns the attribute of a field of the configuration: `seat_hold` for `seatHold`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def test_names_in_docstrings_exist() -> None:
    known = {*dir(builtins), *FOREIGN, *PLACEHOLDERS}
    for module in modules():
        known.update(words(module.path), words("\n".join(module.lines)))
    unknown = [
        f"{module.path}:{line}: {found[1]}"
        for module in modules()
        for line, text in module.docstrings
        for found in QUOTED.finditer(text)
        if not EXAMPLE.fullmatch(found[1])
        if any(part not in known and snake(part) not in known for part in found[1].split("."))
    ]
    assert unknown == []


def test_methods_in_docstrings_are_methods_of_their_class() -> None:
    sources = {
        one.name: module.lines[one.lineno - 1 : one.end_lineno] for module in modules() for one in module.classes
    }
    bases = {one.name: words(" ".join(map(ast.unparse, one.bases))) for module in modules() for one in module.classes}
    own = {name: set(words("\n".join(lines))) for name, lines in sources.items()}

    def has(name: str, member: str) -> bool:
        return member in own[name] or any(has(base, member) for base in bases[name] if base in own and base != name)

    unknown = [
        f"{module.path}:{line}: {found[0]}"
        for module in modules()
        for line, text in module.docstrings
        for found in METHOD.finditer(text)
        if found[1] in own and not has(found[1], found[2])
    ]
    assert unknown == []
