# SPDX-License-Identifier: Apache-2.0
"""`python -m release.set_version 0.2.0`: writes a new version into every file that names the current one.

The version is `__version__` of koordpy/__init__.py. Other files need it as plain text: Helm reads Chart.yaml from the
repository, and pages show commands with it. A test finds files that name the version and are not in FILES.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from release.checkout import version_of

ROOT = Path(__file__).parents[1]
FILES = (
    "koordpy/__init__.py",
    "charts/koordpy/Chart.yaml",
    "Dockerfile",
    "README.md",
    "CONTRIBUTING.md",
    "docs/install.md",
)
VERSION = re.compile(r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?")


def occurrences(version: str) -> re.Pattern[str]:
    """Matches a version, but not a part of another one."""
    return re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.-]*\d)")


def set_version(root: Path, new: str) -> list[str]:
    """Replaces the current version; the names of the changed files."""
    old, changed = version_of(root), []
    for name in FILES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        replaced = occurrences(old).sub(new, text)
        if replaced != text:
            path.write_text(replaced, encoding="utf-8")
            changed.append(name)
    return changed


def main(words: Sequence[str]) -> int:
    """Returns the exit status: 2 unless the only word is a version."""
    if len(words) != 1 or not VERSION.fullmatch(words[0]):
        print("usage: python -m release.set_version MAJOR.MINOR.PATCH[-rc.N]", file=sys.stderr)
        return 2
    print("\n".join(set_version(ROOT, words[0])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
