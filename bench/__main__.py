"""`make bench`: every benchmark, one table. `python -m bench planner reflector` picks some.

Figures of one machine say little alone: compare rows of one run.
"""

import importlib
import sys

PARTS = ("reflector", "intake", "planner", "workloads", "ascend", "victims", "shares", "binds", "view")


def main(wanted: list[str]) -> int:
    """Prints the rows of the chosen parts, all by default."""
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for part in wanted or PARTS:
        for what, figure, note in importlib.import_module(f"bench.{part}").run():
            print(f"{what:<66}{figure:>16}  {note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
