# SPDX-License-Identifier: Apache-2.0
"""The words of the scheduler's own sentences, gathered from its string constants: koordpy/view/words.txt.

    python -m tests.view.vocabulary      # writes the file

A name of another tenant that is one of these words stays in a sentence, unless a noun such as `quota` stands before it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.structure.rooms import PACKAGE, SAYING

FILE = PACKAGE / "view" / "words.txt"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z]")


def sentences(path: Path) -> Iterator[str]:
    """String constants of a module, parts of f-strings included, documentation left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in documentation:
            yield one.value


def words() -> list[str]:
    """Every word of a constant that is a sentence, in lower case."""
    found: set[str] = set()
    for room in SAYING:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for text in sentences(path):
                if " " in text:
                    found.update(word.lower() for word in _WORD.findall(text))
    return sorted(found)


if __name__ == "__main__":
    FILE.write_text("\n".join(words()) + "\n", encoding="utf-8")
