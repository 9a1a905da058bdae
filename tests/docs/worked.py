# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a page of docs/, and how they are put into a copy of the source.

A block's first line says what it is: ```python PATH is a new module, ```diff PATH a change of one that is there,
```yaml NAME an input of the user's, ```console a command and what it prints.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One code block: language, path (empty for none), text."""

    language: str
    path: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Every code block of a page, in order."""
    return [Block(m[1], m[2] or "", m[3]) for m in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def patched(text: str, diff: str) -> str:
    """A text with a diff applied: hunks parted by `@@`, lines that stay, `-` and `+`; each hunk fits one place only."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        if text.count(before) != 1:
            raise ValueError(f"{text.count(before)} places look like:\n{before}")
        text = text.replace(before, after)
    return text


def added(diff: str) -> list[str]:
    """Lines that a diff adds, imports left out."""
    lines = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
    return [line for line in lines if not line.startswith(("from ", "import "))]


def matches(printed: str, wanted: str) -> bool:
    """Whether a command printed what a page says; `...` on a line of its own stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in wanted.rstrip().splitlines()
    )
    return re.fullmatch(pattern, printed.rstrip() + "\n") is not None
