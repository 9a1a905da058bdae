# SPDX-License-Identifier: Apache-2.0
"""Nothing is left of a cluster: not when it is ended, and not when its driver is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.e2e.assets import REPOSITORY
from tests.e2e.process import Process, wait_until
from tests.realnode import leftovers
from tests.realnode.images import BUSYBOX
from tests.realnode.machine import OWN, TUNED

SYSCTLS = (*TUNED, "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding")
# What a node mounts and makes in its own file systems. A machine has more of both, which others change meanwhile.
MOUNTS = {"/etc", "/var", "/proc", "/sys", "/sys/fs/cgroup", "/run"} | {f"/proc/sys/{key}" for key in TUNED}
MOUNTED_BELOW = ("/var/lib/kubelet/", "/run/containerd/", "/run/netns/", "/var/lib/containerd/")
MADE = [
    *(*OWN, "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/etc/cni", "/etc/cdi"),
    *("/opt/containerd", "/opt/cni", "/run/containerd", "/run/netns", "/var/local/held"),
]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "runs"},
    "spec": {"containers": [{"name": "main", "image": BUSYBOX, "command": ["sleep", "3600"]}]},
}


def network_of(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


@contextlib.contextmanager
def networks_of(pids: Iterable[str]) -> Iterator[set[str]]:
    """Of processes. Held open, for another cluster's could else be given the name of one that is gone."""
    held: dict[str, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
                known = held.setdefault(os.readlink(f"/proc/self/fd/{network}"), network)
                if known != network:
                    os.close(network)
        yield set(held)
    finally:
        for network in held.values():
            os.close(network)


def everyone() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]


def state() -> dict[str, object]:
    """What of this machine a cluster could change, and nobody else does in the meantime."""
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "sysctls": {key: Path("/proc/sys", key).read_text() for key in SYSCTLS if Path("/proc/sys", key).exists()},
        "mounts": sorted(point for point in points if point in MOUNTS or point.startswith(MOUNTED_BELOW)),
        "links": [link["ifname"] for link in links if link["ifname"].startswith(("node", "eth", "veth"))],
        "folders": [folder for folder in MADE if Path(folder).exists()],
    }


@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_nothing_is_left(able: None, assets: Path, how: signal.Signals | None, tmp_path: Path) -> None:
    before = state()
    command = [sys.executable, "-m", "tests.realnode", "serve", "--nodes", "1"]
    # a ledger of its own, so that a cluster that somebody left running goes on
    env = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    driver = Process("driver", command, log=tmp_path / "driver.log", env=env)
    with driver, contextlib.ExitStack() as held:
        (folder,) = wait_until(
            lambda: [file.parent for file in tmp_path.glob(f"*/{leftovers.KEPT}")],
            what="the cluster runs",
            within_s=120,
            processes=[driver],
        )
        kubectl: list[str] = [
            f"--net=/proc/{driver.pid}/ns/net",
            str(assets / "kubectl"),
            f"--kubeconfig={folder}/plane/admin.kubeconfig",
        ]

        def made() -> bool:
            create = ["nsenter", *kubectl, "create", "-f", "-"]
            return not subprocess.run(create, input=json.dumps(POD), text=True, capture_output=True).returncode

        # refused until the namespace has its service account
        wait_until(made, what="the pod is made", within_s=60, every_s=0.5, processes=[driver])
        ready = ["wait", "--for=condition=Ready", "pod/runs", "--timeout=60s"]
        subprocess.run(["nsenter", *kubectl, *ready], check=True, capture_output=True)
        groups = [Path(line) for line in (folder / leftovers.GROUPS).read_text().splitlines()]
        assert all(group.is_dir() for group in groups)
        inside = {pid for group in groups for file in group.rglob("cgroup.procs") for pid in file.read_text().split()}
        networks = held.enter_context(networks_of({*inside, str(driver.pid)}))
        assert len(networks) == 3, "of the driver, the node and the pod"
        if how is not None:
            driver.signal(how)
            # before anything cleans up: no process survives its driver
            wait_until(lambda: not any(network_of(pid) in networks for pid in everyone()), what="all processes end")
            assert folder.exists()
        down = [sys.executable, "-m", "tests.realnode", "down"]
        done = subprocess.run(down, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=True)
        assert f"removed {folder.name}" in done.stdout
        assert not folder.exists()
        assert not [group for group in groups if group.exists()]
        assert not [pid for pid in everyone() if network_of(pid) in networks]
    for what, found in state().items():
        assert found == before[what], what
