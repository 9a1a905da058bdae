# SPDX-License-Identifier: Apache-2.0
"""One meaning a name: no two classes of the package are called alike."""

import ast
from collections import defaultdict

from tests.docs.worked import ROOT


def test_no_class_name_stands_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "koordpy").rglob("*.py")):
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(one, ast.ClassDef):
                found[one.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 700
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
