# SPDX-License-Identifier: Apache-2.0
"""The license header of source files: `python -m tests.structure.license_headers [--write]`.

Each source file names its license in its first line, or in the second where another line must stay first (`#!`, a
doctype, a parser directive of a Dockerfile). Sources are Python, shell, make, Docker, workflow, style, page and chart
template files. Data and text have no header: manifests, CRDs, fixtures, values, docs. LICENSE applies to all files.
Without --write the files that lack the header are printed, and the exit status is 1; with it, they get the header.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
IDENTIFIER = "SPDX-License-Identifier: Apache-2.0"
HASH, BLOCK, MARKUP, TEMPLATE = ("# ", ""), ("/* ", " */"), ("<!-- ", " -->"), ("{{- /* ", " */ -}}")
SUFFIXES = {
    ".py": HASH, ".sh": HASH, ".css": BLOCK, ".js": BLOCK, ".go": ("// ", ""), ".html": MARKUP, ".tpl": TEMPLATE,
}  # fmt: skip
"""Suffix of a source file -> start and end of a comment."""
NAMES = {"Makefile": HASH, "Dockerfile": HASH, ".ci/run": HASH}
"""Path from the root -> start and end of a comment."""
FOLDERS = {".github/workflows": HASH, "charts/koordpy/templates": TEMPLATE}
"""Folders in which every file is a source. A template's comment is not part of what it renders."""
FIRST = ("#!", "<!doctype", "# syntax=", "# escape=", "# check=")
"""Starts of lines that must be the first of their file."""
VISIBLE = {".ci", ".github"}
OUTPUTS = {"build", "dist"}


def source_files(root: Path = ROOT) -> Iterator[Path]:
    """The files below the root, without hidden folders and build outputs."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name != "__pycache__" and (name in VISIBLE or name[0] != ".") and not (here == root and name in OUTPUTS)
        )
        for name in sorted(names):
            if comment_of((here / name).relative_to(root)) is not None:
                yield here / name


def comment_of(path: Path) -> tuple[str, str] | None:
    """Start and end of a comment in a file, by its path from the root; None for a file that needs no header."""
    for folder, comment in FOLDERS.items():
        if path.is_relative_to(folder):
            return comment
    return NAMES.get(str(path)) or SUFFIXES.get(path.suffix)


def with_header(text: str, comment: tuple[str, str]) -> str:
    """The text with the header, which is unchanged if it has one."""
    lines = text.splitlines(keepends=True)
    start = int(bool(lines) and lines[0].lower().startswith(FIRST))
    header = f"{comment[0]}{IDENTIFIER}{comment[1]}\n"
    if lines[start : start + 1] == [header]:
        return text
    return "".join([*lines[:start], header, *lines[start:]])


def without_header(root: Path = ROOT) -> dict[Path, str]:
    """Path of each source file that lacks the header -> its text with the header."""
    out = {}
    for path in source_files(root):
        comment = comment_of(path.relative_to(root))
        assert comment is not None
        text = path.read_text(encoding="utf-8")
        if (complete := with_header(text, comment)) != text:
            out[path] = complete
    return out


def main(arguments: list[str]) -> int:
    """Prints or completes the files that lack the header; 1 if some still do."""
    found = without_header()
    for path, text in found.items():
        print(path.relative_to(ROOT))
        if "--write" in arguments:
            path.write_text(text, encoding="utf-8")
    return int(bool(found) and "--write" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
