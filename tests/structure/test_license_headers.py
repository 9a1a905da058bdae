# SPDX-License-Identifier: Apache-2.0
"""Every source file names its license in its first line (license_headers.py)."""

from pathlib import Path

import pytest

from tests.structure.license_headers import (
    HASH,
    MARKUP,
    ROOT,
    TEMPLATE,
    comment_of,
    source_files,
    with_header,
    without_header,
)

LINE = "# SPDX-License-Identifier: Apache-2.0\n"


def test_every_source_file_has_the_license_header() -> None:
    lacking = [str(path.relative_to(ROOT)) for path in without_header()]
    assert not lacking, "`make format` adds the license header to these files"


def test_the_sources_are_found() -> None:
    found = {str(path.relative_to(ROOT)) for path in source_files()}
    assert found >= {"koordpy/__init__.py", "Makefile", "Dockerfile", ".ci/run", "image/build.sh", "docs/conf.py"}
    assert found >= {"charts/koordpy/templates/NOTES.txt", ".github/workflows/test.yml", "tests/structure/rooms.py"}
    assert not [one for one in found if one.startswith((".venv/", "build/", "crds/", "examples/"))]


@pytest.mark.parametrize(
    ("text", "comment", "expected"),
    [
        ("", HASH, LINE),
        ("a\n", HASH, LINE + "a\n"),
        (LINE + "a\n", HASH, LINE + "a\n"),
        ("#!/bin/sh\na\n", HASH, "#!/bin/sh\n" + LINE + "a\n"),
        ("#!/bin/sh\n" + LINE, HASH, "#!/bin/sh\n" + LINE),
        ("# syntax=docker/dockerfile:1\nFROM a\n", HASH, "# syntax=docker/dockerfile:1\n" + LINE + "FROM a\n"),
        ("<!DOCTYPE html>\n", MARKUP, "<!DOCTYPE html>\n<!-- SPDX-License-Identifier: Apache-2.0 -->\n"),
        ("a: b\n", TEMPLATE, "{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}\na: b\n"),
        ("# SPDX-License-Identifier: MIT\n", HASH, LINE + "# SPDX-License-Identifier: MIT\n"),
    ],
)
def test_the_header_is_the_first_line_that_may_be_one(text: str, comment: tuple[str, str], expected: str) -> None:
    assert with_header(text, comment) == expected


@pytest.mark.parametrize(
    "path", ["examples/urgent.yaml", "docs/index.md", "crds/devices.yaml", "LICENSE", "koordpy/py.typed"]
)
def test_data_and_text_need_no_header(path: str) -> None:
    assert (ROOT / path).is_file() and comment_of(Path(path)) is None
