# SPDX-License-Identifier: Apache-2.0
"""`make bench`: every benchmark but the longest, one table. `python -m bench planner reflector` picks some.

Figures of one machine say little alone: compare rows of one run.
"""

import importlib
import sys

PARTS = (
    "reflector",
    "intake",
    "planner",
    "workloads",
    "claims",
    "zones",
    "ascend",
    "victims",
    "reasons",
    "shares",
    "binds",
    "view",
)
BY_NAME = ("scale", "generators")
"""Parts that take minutes; the first one also gigabytes."""


def main(wanted: list[str]) -> int:
    """Prints the rows of the chosen parts, by default of all that take seconds."""
    known = (*PARTS, *BY_NAME)
    if unknown := [part for part in wanted if part not in known]:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for part in wanted or PARTS:
        for what, figure, note in importlib.import_module(f"bench.{part}").run():
            print(f"{what:<66}{figure:>16}  {note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
