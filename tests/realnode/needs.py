# SPDX-License-Identifier: Apache-2.0
"""What this computer lacks to run real nodes, and which Debian packages have it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.realnode.cgroups import Unsupported, hierarchies
from tests.realnode.images import static_busybox
from tests.realnode.settings import cni_folder

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
# Where a node has file systems of its own (machine.py), and would not see its folder.
OVERLAID = ("/etc", "/var", "/run", "/proc", "/sys")
# Programs of root are not on everybody's PATH. Another containerd, or runc, is found in the folder that is named.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
if own := os.environ.get("KOORDPY_REALNODE_PATH"):
    SYSTEM_PATH = f"{own}:{SYSTEM_PATH}"


def program(name: str) -> Path | None:
    found = shutil.which(name, path=SYSTEM_PATH)
    return Path(found) if found else None


def lacking_packages() -> list[str]:
    """By the names that Debian and Ubuntu give them."""
    lacking = {package for name, package in PACKAGES.items() if program(name) is None}
    if cni_folder() is None:
        lacking.add("containernetworking-plugins")
    if static_busybox() is None:
        lacking.add("busybox-static")
    return sorted(lacking)


def install_commands(packages: list[str]) -> list[list[str]]:
    """The lists come first: a fresh machine has none."""
    return [["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", *packages]]


def obstacle() -> str | None:
    """Why real nodes cannot be run here, and what to do about it; None where they can."""
    if sys.platform != "linux":
        return "real nodes need Linux"
    if os.geteuid() != 0:
        return "real nodes need root: they are namespaces, mounts and control groups"
    if packages := lacking_packages():
        commands = " && ".join(" ".join(command) for command in install_commands(packages))
        return f"{commands}    (or make realnode INSTALL=1)"
    if any(Path(tempfile.gettempdir()).resolve().is_relative_to(top) for top in OVERLAID):
        return (
            f"TMPDIR={tempfile.gettempdir()} cannot hold nodes: they have a file system of their own there; take /tmp"
        )
    with tempfile.TemporaryDirectory(prefix="koordpy-tried-") as folder:
        if (said := _tried("-t tmpfs tmpfs /run")) is not None:
            return f"namespaces cannot be made here: {said}"
        for name in ("upper", "work"):
            Path(folder, name).mkdir()
        if said := _tried(f"-t overlay -o lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work overlay /etc"):
            return f"TMPDIR={Path(folder).parent} cannot hold nodes, name another file system's folder: {said}"
    try:
        hierarchies()
    except Unsupported as unsupported:
        return str(unsupported)
    return None


def _tried(mount: str) -> str | None:
    """What is wrong with a mount in namespaces such as a node's."""
    namespaces = ["--net", "--mount", "--pid", "--cgroup", "--fork"]
    done = subprocess.run(
        ["unshare", *namespaces, "mount", *mount.split()], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stderr.strip().partition("\n")[0] if done.returncode else None


def containerd_major() -> int:
    """Of the containerd that is installed: 1 or 2."""
    command = [str(program("containerd")), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    found = re.search(r" v?(\d+)\.\d", told)
    return int(found[1]) if found else 1
