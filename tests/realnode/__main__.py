# SPDX-License-Identifier: Apache-2.0
"""`make realnode` and `make realnode-down`: a cluster of real nodes that goes on, for people.

`check` ends with 69, and says why, where real nodes cannot be run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.assets import REPOSITORY, AssetsMissing, BuildFailed, find_assets
from tests.e2e.process import ProcessDied, WaitedInVain
from tests.image.archive import ARCHIVE
from tests.realnode import leftovers
from tests.realnode.cgroups import Unsupported
from tests.realnode.cluster import NODES, RealCluster
from tests.realnode.needs import install_commands, lacking_packages, obstacle

_WATCH_S = 2.0
UNAVAILABLE = 69


def up(nodes: int, *, install: bool) -> None:
    """Starts a cluster that goes on after this process, and prints how to reach it."""
    if install and (packages := lacking_packages()):
        get(packages)
    if (reason := obstacle()) is not None:
        sys.exit(reason)
    if there := leftovers.kept():
        print(f"one is running already; make realnode-down ends it\n{(there[0] / leftovers.KEPT).read_text()}", end="")
        return
    find_assets()
    command = [sys.executable, "-m", "tests.realnode", "serve", "--nodes", str(nodes)]
    command += [f"--image={ARCHIVE}"] if ARCHIVE.exists() else []
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=REPOSITORY)
    assert driver.stdout is not None
    told = driver.stdout.read()
    print(told, end="")
    if not told:
        sys.exit(driver.wait())


def get(packages: list[str]) -> None:
    """Installs Debian's packages, or ends with what failed."""
    for command in install_commands(packages):
        try:
            subprocess.run(command, check=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            sys.exit(f"{', '.join(packages)} cannot be installed: {error}")


def serve(nodes: int, image: Path | None) -> None:
    """Drives a cluster until SIGTERM, with an image on its nodes; closes stdout when it is ready."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with RealCluster(find_assets(), nodes=nodes) as cluster:
            kubeconfig = cluster.plane.kubeconfig()
            kubectl = f"{cluster.assets}/kubectl --kubeconfig={kubeconfig}"
            told = (
                f"kubeconfig  {kubeconfig}\n"
                f"logs        {cluster.folder}/*/*.log\n"
                f"use it      nsenter --net=/proc/{os.getpid()}/ns/net {kubectl} get nodes\n"
            )
            if image is not None:
                cluster.import_image(image)
                told += f"koordpy     the image of {image.name} is on every node, as the chart names it\n"
            (cluster.folder / leftovers.KEPT).write_text(told)
            print(told, end="", flush=True)
            # Else whoever reads what `up` says, as tee does, waits until the cluster ends.
            log = os.open(cluster.folder / "driver.log", os.O_WRONLY | os.O_CREAT)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log, stream.fileno())
            while True:
                time.sleep(_WATCH_S)
                cluster.plane.must_run()
    except (AssetsMissing, BuildFailed, ProcessDied, Unsupported, WaitedInVain, FileNotFoundError) as error:
        sys.exit(str(error))


def down() -> None:
    """Ends and removes clusters that were left running, and what is left of killed ones."""
    for folder in leftovers.end_kept() + leftovers.sweep():
        print(f"removed {folder.name}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.realnode", description=__doc__)
    parser.add_argument("what", choices=("up", "serve", "down", "check"))
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--image", type=Path, help="an archive")
    parser.add_argument("--install", action="store_true", help="install with apt-get what is missing")
    arguments = parser.parse_args()
    if arguments.what == "check":
        if (reason := obstacle()) is not None:
            print(reason)
            sys.exit(UNAVAILABLE)
    elif arguments.what == "down":
        down()
    elif arguments.what == "up":
        up(arguments.nodes, install=arguments.install)
    else:
        serve(arguments.nodes, arguments.image)


if __name__ == "__main__":
    main()
