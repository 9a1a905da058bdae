# SPDX-License-Identifier: Apache-2.0
"""Prose of pages and of code, and the banned words in it: `python -m tests.docs.prose koordpy/engine` lists them.

Prose of code is docstrings, comments, and strings that are sentences: messages, help, log lines. The standard behind
the list is in CONTRIBUTING.md: a sentence names its subject, and uses the terms of the field.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BANNED = re.compile(
    r"\b(who|whom|whose|whoever|nobody|somebody|anybody|everybody|anew|in vain|meanwhile|for good"
    r"|(?:is|are|was|were|be) told|of (?:its|their|his) own(?! \w)|(?:stand|stands) (?:in|on|for|beside))\b",
    re.I,
)
LITERAL = re.compile(r"^( *)```.*?^\1```$|^ {4,}[^\n]*$|`[^`]*`|\]\([^)]*\)", re.M | re.S)
"""Output, commands, code and addresses of links in a page: not the page's own words."""
QUOTED = re.compile(r"`[^`]*`")
SENTENCE = re.compile(r"[A-Za-z]+[ ,:;]+[A-Za-z]+[ ,:;]+[A-Za-z]+")
"""A string with three words in a row is read by people."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A banned word in a file."""

    path: Path
    line: int
    word: str
    text: str
    """The line or string that the word is in."""


def banned_in_page(text: str) -> list[str]:
    """Returns the banned words of a page's prose, in order."""
    return [found.group(0) for found in BANNED.finditer(LITERAL.sub(" ", text))]


def banned_in_code(path: Path) -> list[Finding]:
    """Returns the banned words in the prose of a module, in order."""
    source = path.read_text(encoding="utf-8")
    return [
        Finding(path, line, found.group(0), " ".join(text.split()))
        for line, text in sorted({*_comments(source), *_strings(source)})
        for found in BANNED.finditer(QUOTED.sub(" ", text))
    ]


def banned_in_yaml(text: str) -> list[str]:
    """Returns the banned words of a manifest's comments, and of its values that are sentences, in order."""
    lines = [line for line in text.splitlines() if "#" in line or SENTENCE.search(line)]
    return [found.group(0) for line in lines for found in BANNED.finditer(QUOTED.sub(" ", line))]


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _strings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SENTENCE.search(node.value):
            yield node.lineno, node.value


def main(paths: list[str]) -> int:
    """Prints the findings in modules and folders, and their number."""
    count = 0
    for start in map(Path, paths):
        for path in [start] if start.is_file() else sorted(start.rglob("*.py")):
            for one in banned_in_code(path):
                count += 1
                print(f"{one.path}:{one.line}: {one.word}: {one.text[:160]}")
    print(f"{count} banned words")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
