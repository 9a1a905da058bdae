# SPDX-License-Identifier: Apache-2.0
"""`make attack`: what hostile tenants cost an honest one, on a real control plane, each attack beside the bar.

    python -m bench.attack [ATTACK ...] [--each] [--nodes 100] [--policies off|on|both]

All attacks come at once; --each adds one after the other before that. The honest tenant makes a pod of one CPU every
second, and beside it one that a bare client binds as soon as it is told of it. By the server's clock, from when it had
made a pod: until it was bound; until the bare client sent its Binding, which the server and a busy machine take by
themselves; by how much koordpy's Binding came later, which is its own part. The bar for that is ten times what pods
take until they are bound while nobody attacks, or the bare client's worst where that is longer. koordpy has the memory
allocator that the image gives it. What it holds when everything is gone counts beside what it held when 2,000
ordinary pods had come and gone. The exit status is 1 where a pod took longer, or where more than a tenth stayed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from bench.attack.session import HONEST, QUOTAS, Arena
from bench.attack.tenants import ATTACKS, SEVERAL
from bench.live.cluster import LiveCluster, live_cluster
from tests.e2e.assets import REPOSITORY, find_assets
from tests.e2e.chart import find_helm
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import installer
from tests.e2e.process import Process, koordpy_run

SYSTEM = "koordpy-system"
OWNERS = {
    "quota": {
        "namespaces": [QUOTAS],
        "trustedNamespaces": [QUOTAS],
        "podLabels": "listed",
        "labelNamespaces": [HONEST],
    }
}
"""Of the configuration: whose quotas and labels count, as SECURITY.md advises."""
ALONE = {"apiVersion": "koordpy.io/v1alpha1", "kind": "KoordpyConfiguration", **OWNERS}
IMAGE = dict(
    setting.split("=", 1)
    for line in (REPOSITORY / "Dockerfile").read_text().splitlines()
    if line.startswith("ENV ")
    for setting in line.split()[1:]
    if "MALLOC" in setting.upper()
)
"""What the image says of memory."""
FLAGS = ("--bind-address", "127.0.0.1:0", "--leader-elect=false")


@contextlib.asynccontextmanager
async def scheduler(cluster: LiveCluster, *, policies: bool) -> AsyncIterator[Process]:
    """koordpy under the chart's policies and with its configuration and rights, or alone with every right."""
    plane = cluster.plane
    assert isinstance(plane, ControlPlane)
    async with contextlib.AsyncExitStack() as stack:
        if policies:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordpy-helm-")))
            helm = find_helm(find_assets(), home)
            if helm is None:
                sys.exit("no helm: it is neither beside the control plane nor on PATH")
            await cluster.api.make_namespace(SYSTEM)
            install = await stack.enter_async_context(installer(cluster.api, plane, helm, SYSTEM))
            installed = await install({"config": OWNERS})
            kubeconfig = plane.kubeconfig("koordpy", token=installed.token)
            process = installed.run(kubeconfig, cluster.folder, IMAGE)
        else:
            file = cluster.folder / "config.yaml"
            file.write_text(json.dumps(ALONE))
            flags = ("--config", str(file), *FLAGS)
            process = koordpy_run(*flags, kubeconfig=plane.kubeconfig(), folder=cluster.folder, env=IMAGE)
        try:
            yield process.start()
        finally:
            await asyncio.to_thread(process.stop)


async def run(names: list[str], *, nodes: int, policies: bool, each: bool) -> int:
    """The attacks, one by one where that is asked for, and then all at once; how many broke the bar."""
    async with live_cluster(find_assets(), nodes, audited=HONEST) as cluster:
        async with scheduler(cluster, policies=policies) as process, Arena(cluster, process).open() as arena:
            print(f"\npolicies of the chart {'on' if policies else 'off'}")
            await arena.calm()
            for name in names if each else ():
                await arena.attack(name, [ATTACKS[name]])
            if len(names) > 1:
                await arena.attack(SEVERAL, [ATTACKS[name] for name in names])
            await arena.memory()
        return arena.broken


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {', '.join(ATTACKS)}; all without a name")
    parser.add_argument("--each", action="store_true", help="every attack by itself, too")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--policies", choices=("off", "on", "both"), default=os.environ.get("POLICIES") or "both")
    args = parser.parse_args()
    if unknown := [name for name in args.attacks if name not in ATTACKS]:
        parser.error(f"no attack {', '.join(unknown)}")
    names = args.attacks or list(ATTACKS)
    turns = {"off": (False,), "on": (True,), "both": (False, True)}[args.policies]
    each = args.each or len(names) == 1
    broken = sum(asyncio.run(run(names, nodes=args.nodes, policies=policies, each=each)) for policies in turns)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
