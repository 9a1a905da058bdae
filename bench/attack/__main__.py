"""`make attack`: what hostile tenants cost an honest one, on a real control plane, each attack beside the bar.

    python -m bench.attack [ATTACK ...] [--nodes 100] [--policies off|on|both]

The honest tenant makes a pod of one CPU every second; the bar is ten times the time that its Bindings take while nobody
attacks. Everything shares the machine, so what counts is the ratio. The exit status is 1 where a pod took longer, or
where memory stayed after everything was gone.
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
from tests.e2e.assets import find_assets
from tests.e2e.chart import find_helm
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
FLAGS = ("--bind-address", "127.0.0.1:0", "--leader-elect=false")


@contextlib.asynccontextmanager
async def scheduler(cluster: LiveCluster, *, policies: bool) -> AsyncIterator[Process]:
    """koordpy under the chart's policies and with its configuration and rights, or alone with every right."""
    async with contextlib.AsyncExitStack() as stack:
        if policies:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordpy-helm-")))
            helm = find_helm(find_assets(), home)
            if helm is None:
                sys.exit("no helm: it is neither beside the control plane nor on PATH")
            await cluster.api.make_namespace(SYSTEM)
            install = await stack.enter_async_context(installer(cluster.api, cluster.plane, helm, SYSTEM))
            installed = await install({"config": OWNERS})
            kubeconfig = cluster.plane.kubeconfig("koordpy", token=installed.token)
            process = installed.run(kubeconfig, cluster.folder)
        else:
            file = cluster.folder / "config.yaml"
            file.write_text(json.dumps(ALONE))
            process = koordpy_run(
                "--config", str(file), *FLAGS, kubeconfig=cluster.plane.kubeconfig(), folder=cluster.folder
            )
        try:
            yield process.start()
        finally:
            await asyncio.to_thread(process.stop)


async def run(names: list[str], *, nodes: int, policies: bool, singly: bool) -> int:
    """The attacks, one by one where that is asked for, and then all at once; how many broke the bar."""
    async with live_cluster(find_assets(), nodes) as cluster, scheduler(cluster, policies=policies) as process:
        async with Arena(cluster, process).open() as arena:
            print(f"\npolicies of the chart {'on' if policies else 'off'}")
            await arena.calm()
            for name in names if singly else ():
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
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--policies", choices=("off", "on", "both"), default=os.environ.get("POLICIES") or "both")
    args = parser.parse_args()
    if unknown := [name for name in args.attacks if name not in ATTACKS]:
        parser.error(f"no attack {', '.join(unknown)}")
    names = args.attacks or list(ATTACKS)
    turns = {"off": (False,), "on": (True,), "both": (False, True)}[args.policies]
    broken = sum(
        # what the policies refuse costs no more than what they let through: they are tried with all at once
        asyncio.run(run(names, nodes=args.nodes, policies=policies, singly=policies is turns[0]))
        for policies in turns
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
