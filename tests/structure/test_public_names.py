# SPDX-License-Identifier: Apache-2.0
"""Public names of koordpy: none of a list of words that do not say what they name to a reader of other schedulers."""

import ast
from collections.abc import Iterator

from tests.docs.worked import ROOT
from tests.structure.rooms import PACKAGE

UNCLEAR = frozenset(
    word
    for line in (
        "among anew aside asked begun beside could emptied figures gainers given lending lent leaning law",
        "meanwhile overtaken owed parties party patience relief remembered room rooms standing taking told vain",
        "who whose worth yields",
    )
    for word in line.split()
)
"""Words that had several meanings in koordpy, or none outside it."""


def names(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, int]]:
    """Name and line of each class, function, method, constant and attribute; of an attribute where it is declared."""
    for one in ast.iter_child_nodes(tree):
        if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if inside != "function":
                yield one.name, one.lineno
            yield from names(one, "class" if isinstance(one, ast.ClassDef) else "function")
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            for target in (leaf for each in targets for leaf in ast.walk(each)):
                if isinstance(target, ast.Name) and inside != "function":
                    yield target.id, one.lineno
                elif isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                    yield target.attr, one.lineno
        elif not isinstance(one, ast.expr):
            yield from names(one, inside)


def unclear(text: str) -> list[tuple[str, int]]:
    return [(name, line) for name, line in names(ast.parse(text)) if name.lower() in UNCLEAR]


def test_no_public_name_is_an_unclear_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line in (*unclear(path.read_text(encoding="utf-8")), *((path.stem, 1),) * (path.stem in UNCLEAR))
    ]
    assert found == []


def test_an_unclear_name_is_found_wherever_it_is_declared() -> None:
    text = """
class Law:
    held: int
    room: int = 0
    def told(self):
        self.relief, local = 1, 2
        given = 3
        def vain(): pass
PARTY = 1
def standing(asked): ...
if True:
    figures = {}
"""
    assert [name for name, _ in unclear(text)] == ["Law", "room", "told", "relief", "PARTY", "standing", "figures"]
