# SPDX-License-Identifier: Apache-2.0
"""What commands say on the standard error, for tests that compare all of it."""


def warnings_of(err: str) -> str:
    """All lines but that of the configuration, which stands below every table."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("configuration: "))
