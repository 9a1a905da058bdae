# SPDX-License-Identifier: Apache-2.0
"""How fast pods are bound without the real API server in the way: `koordpy run` against the embedded one.

`python -m bench.binds [NODES]`. Pods wait first, then the scheduler starts; everything shares the machine's cores. The
same against a real API server, beside kube-scheduler: `bench.yardstick`.
"""

import sys

from bench.live.embedded import embedded_cluster
from bench.live.schedulers import Koordpy
from bench.timing import Row
from bench.yardstick import waiting
from bench.yardstick.figures import Run

NODES = 1000


def _row(what: str, run: Run) -> Row:
    found = {key: value for key, value in run.figures.items() if value is not None}
    if not found:
        return (f"binds: {what}", "-", ", ".join(run.notes))
    note = f"start to last bind {found['last_s']:.2f} s, scheduler's CPU {found['cpu_ms']:.2f} ms a pod, start included"
    return (f"binds: {what}", f"{found['rate']:.0f}/s", note)


async def _run(nodes: int) -> list[Row]:
    async with embedded_cluster(nodes) as cluster:
        koordpy = Koordpy()
        plain = await waiting.plain(cluster, koordpy, count=3 * nodes)
        rows = [_row(f"{3 * nodes} plain pods", plain)]
        for gangs, size, gpus in ((nodes // 50, 100, 1), (1, nodes // 2, 8)):
            run = await waiting.gangs(cluster, koordpy, gangs=gangs, size=size, gpus=gpus)
            rows.append(_row(f"gangs: {gangs} of {size} pods of {gpus} GPUs", run))
        return rows


def run(nodes: int = NODES) -> list[Row]:
    """Rows of (what, figure, note)."""
    import uvloop

    return uvloop.run(_run(nodes))


if __name__ == "__main__":
    for row in run(*map(int, sys.argv[1:])):
        print("{:<52}{:>16}  {}".format(*row))
