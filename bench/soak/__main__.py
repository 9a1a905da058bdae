# SPDX-License-Identifier: Apache-2.0
"""`make soak`: the live scheduler against a real control plane, each figure beside the bar it has to pass.

    python -m bench.soak [PART ...] [--minutes 3] [--nodes 1000]

Parts: gangs, idle, lag, takeover, restart (all of them without a name). koordpy, the control plane and this client
share the machine. The exit status is 1 when a bar is missed. The bars are those of kube-parity.md section 8; what is
compared with another scheduler is in `bench.yardstick`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from bench.live.cluster import live_cluster
from bench.live.watching import PodWatch
from bench.soak.arrivals import gangs
from bench.soak.deaths import restart, takeover
from bench.soak.events import idle, lag
from bench.soak.session import Part, Soak
from tests.e2e.assets import find_assets

PARTS: dict[str, Part] = {part.__name__: part for part in (gangs, idle, lag, takeover, restart)}


async def run(parts: list[str], *, nodes: int, minutes: float) -> int:
    """Runs the parts on a control plane of their own; how many bars were missed."""
    async with live_cluster(find_assets(), nodes) as cluster, PodWatch(cluster.api).running() as watch:
        soak = Soak(cluster, watch, minutes)
        for part in parts:
            await PARTS[part](soak)
            await soak.clean()
    return soak.missed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 3))
    args = parser.parse_args()
    return 1 if asyncio.run(run(args.parts or list(PARTS), nodes=args.nodes, minutes=args.minutes)) else 0


if __name__ == "__main__":
    sys.exit(main())
