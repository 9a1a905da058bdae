# SPDX-License-Identifier: Apache-2.0
"""The versions of Kubernetes that koordpy supports: those that the folder controlplane/ can build for tests.

The range is defined only here. `kubeVersion` of the chart and docs/compatibility.md repeat it, and a test compares
them. koordpy decides by the APIs that the server serves, never by its version; the range is only for a message at the
start.
"""

import re

Minor = tuple[int, int]

OLDEST: Minor = (1, 34)
NEWEST: Minor = (1, 37)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def minor_version(text: str) -> Minor | None:
    """Returns (1, 37) for `v1.37.2`, `1.37` or `v1.37.2-gke.100`; None if the text is no version."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found is not None else None


def supported_range() -> str:
    """Returns `1.34 to 1.37`."""
    return f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"


def version_warning(text: str) -> str:
    """Returns the requirement, for a message, if an API server of this version is outside the supported range.

    Empty if the version is inside the range, or if the text is not a version.
    """
    minor = minor_version(text)
    if minor is None or OLDEST <= minor <= NEWEST:
        return ""
    if minor < OLDEST:
        wrong, needed = "older", f"upgrade the API server to {_dotted(OLDEST)} or newer"
    else:
        wrong, needed = "newer", "upgrade koordpy to a release that supports this version"
    return f"Kubernetes {text.removeprefix('v')} is {wrong} than koordpy supports ({supported_range()}): {needed}"


def _dotted(minor: Minor) -> str:
    return ".".join(map(str, minor))
