# SPDX-License-Identifier: Apache-2.0
"""Rejects versions of Python that koordpy does not support, with one line that names the supported versions.

The package `koordpy.cli` calls it before any other import, because other modules and the dependencies fail on such a
version with a traceback. Must be valid for Python 3.6, and must not import other modules of koordpy.
"""

import sys

OLDEST, NEWEST = 11, 13
"""Oldest and newest supported minor version of Python 3, as in `requires-python` of pyproject.toml."""
BAD_INPUT = 2


def unsupported_python(version: "tuple[int, int]") -> str:
    """Returns the line for an unsupported version (major, minor); empty if the version is supported."""
    if (3, OLDEST) <= version <= (3, NEWEST):
        return ""
    older = ", ".join(f"3.{minor}" for minor in range(OLDEST, NEWEST))
    return f"koordpy: Python {version[0]}.{version[1]} is not supported: use Python {older} or 3.{NEWEST}"


def require_supported_python() -> None:
    """Exits with status 2 and the line on stderr if this version of Python is not supported."""
    text = unsupported_python((sys.version_info[0], sys.version_info[1]))
    if text:
        print(text, file=sys.stderr)
        raise SystemExit(BAD_INPUT)
