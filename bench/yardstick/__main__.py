# SPDX-License-Identifier: Apache-2.0
"""`make yardstick`: koordpy beside kube-scheduler, row by row, in turns, in one run; one table in Markdown.

    python -m bench.yardstick [--nodes 1000] [--rounds 1] [--only ROW ...] [--output FILE]

Progress goes to stderr, the table to stdout and, after every row, to the file. The exit status is 1 when a goal is
missed; goals are judged at 1,000 nodes only. docs/benchmarks-live.md says what each row means.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.live.cluster import live_cluster
from bench.live.schedulers import Koordpy, KubeScheduler
from bench.yardstick.rows import TABLE_NODES, rows
from bench.yardstick.session import Session
from tests.e2e.assets import REPOSITORY, AssetsMissing, BuildFailed, find_assets

OUTPUT = REPOSITORY / "bench" / "results" / "yardstick.md"


async def run(nodes: int, *, rounds: int, only: list[str], output: Path) -> bool:
    """Measures and writes the table; whether all goals were met."""
    task = asyncio.current_task()
    assert task is not None
    # Ctrl-C does this by itself: what was started ends with the block below
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    chosen = [row for row in rows(nodes) if row.key in only or not (only or row.extra)]
    began = time.monotonic()

    def say(text: str) -> None:
        seconds = int(time.monotonic() - began)
        print(f"{seconds // 60:3d}:{seconds % 60:02d}  {text}", file=sys.stderr, flush=True)

    def write(text: str) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)

    assets = find_assets()
    other = KubeScheduler(assets / "kube-scheduler")
    async with live_cluster(assets, nodes, upstream_gangs=True) as cluster:
        judged = nodes == TABLE_NODES
        session = Session(cluster, Koordpy(), other, _version(other.program), rounds, judged, say)
        for row in chosen:
            await session.measure(row)
            write(session.report())
    print(session.report())
    say(f"the table is in {output}")
    return session.missed == 0


def _version(program: Path) -> str:
    """`kube-scheduler 1.36.3`."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    return f"{program.name} {said.split()[-1].removeprefix('v')}"


def main() -> int:
    """The command."""
    keys = [row.key for row in rows(TABLE_NODES)]
    parser = argparse.ArgumentParser(prog="python -m bench.yardstick", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=TABLE_NODES, help="counts of pods follow in proportion (1000)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each scheduler in each row: medians count (1)")
    parser.add_argument("--only", nargs="+", choices=keys, default=[], metavar="ROW", help=f"of {', '.join(keys)}")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of the table (bench/results/yardstick.md)")
    args = parser.parse_args()
    if args.nodes < 20 or args.rounds < 1:
        parser.error("at least 20 nodes and one round")
    try:
        met = asyncio.run(run(args.nodes, rounds=args.rounds, only=args.only, output=args.output))
    except (AssetsMissing, BuildFailed, FileNotFoundError) as error:
        sys.exit(str(error))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
