# SPDX-License-Identifier: Apache-2.0
"""The process that becomes a node. Run as a program, by node.py:

    python -m tests.realnode.machine launch SPEC    goes into the node's groups and makes its namespaces
    python -m tests.realnode.machine setup SPEC     makes its file systems and is its first process from then on

SPEC is a file with a Spec in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.realnode.cgroups import MACHINE
from tests.realnode.namespaces import NEW_CGROUP, forward, unshare

# What a kubelet sets for the whole machine, and would set for this one: it finds files that have these values.
TUNED = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Folders that must be the node's own down to the file system: an overlay cannot carry another one.
OWN = ("/var/lib/containerd", "/var/lib/kubelet")
READY = "ready"


@dataclass(frozen=True)
class Spec:
    """A node as its first process is told of it."""

    name: str
    folder: str
    groups: dict[str, str]
    """Hierarchies as Hierarchy.controllers names them -> the node's group."""

    def write(self) -> Path:
        file = Path(self.folder) / "spec.json"
        file.write_text(json.dumps(asdict(self)))
        return file


def launch(spec: Spec, file: str) -> None:
    """Moves into the groups, makes them roots, and makes the other namespaces."""
    for controllers, group in spec.groups.items():
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        if not controllers:
            Path(group, MACHINE).mkdir(exist_ok=True)
    unshare(NEW_CGROUP)
    if "" in spec.groups:
        Path(spec.groups[""], MACHINE, "cgroup.procs").write_text(str(os.getpid()))
    kinds = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--propagation", "private"]
    os.execvp("unshare", ["unshare", *kinds, sys.executable, "-m", __spec__.name, "setup", file])


def setup(spec: Spec) -> None:
    """As process 1: file systems as on a machine of its own; then it waits for ever, and reaps what is orphaned."""
    folder = Path(spec.folder)
    # Folders that a node makes below these are made in the node's own.
    for top in ("/etc", "/var"):
        upper, work = folder / f"upper{top}", folder / f"work{top}"
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        _mount("overlay", top, "overlay", f"lowerdir={top},upperdir={upper},workdir={work}")
    for own in OWN:
        source = folder / f"own{own}"
        source.mkdir(parents=True, exist_ok=True)
        Path(own).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", source, own], check=True)
    _mount("proc", "/proc", "proc")
    for key, value in TUNED.items():
        stand_in = folder / key.replace("/", "-")
        stand_in.write_text(value + "\n")
        subprocess.run(["mount", "--bind", stand_in, f"/proc/sys/{key}"], check=True)
    _mount("sysfs", "/sys", "sysfs")
    if "" in spec.groups:
        _mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    else:
        _mount("tmpfs", "/sys/fs/cgroup", "tmpfs", "mode=755")
        for controllers in spec.groups:
            _mount_first_version(controllers)
    _mount("tmpfs", "/run", "tmpfs", "mode=755")
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    socket.sethostname(spec.name)
    forward()
    (folder / READY).touch()
    # Ignored, it has the kernel reap children at once, also after exec.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.execvp("sleep", ["sleep", "infinity"])


def _mount(source: str, target: str, kind: str, options: str = "") -> None:
    subprocess.run(["mount", "-t", kind, *(["-o", options] if options else []), source, target], check=True)


def _mount_first_version(controllers: str) -> None:
    """A hierarchy of version 1, each of its controllers by a name of its own."""
    name = controllers.removeprefix("name=")
    point = Path("/sys/fs/cgroup", name)
    point.mkdir()
    _mount("cgroup", str(point), "cgroup", f"none,{controllers}" if name != controllers else controllers)
    for one in name.split(","):
        if one != name:
            Path("/sys/fs/cgroup", one).symlink_to(name)


def main(what: str, file: str) -> None:
    spec = Spec(**json.loads(Path(file).read_text()))
    if what == "launch":
        launch(spec, file)
    else:
        setup(spec)


if __name__ == "__main__":
    main(*sys.argv[1:])
