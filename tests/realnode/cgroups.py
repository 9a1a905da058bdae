# SPDX-License-Identifier: Apache-2.0
"""Control groups of a node: groups below the caller's own, which the node sees as the root of each hierarchy.

Version 1 and hybrid: one group in each hierarchy of version 1 beside its siblings. Version 2: a group with processes
hands no controllers down, and the caller's own has processes; so the nearest group above that hands them down already
is taken, and nothing that exists is changed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NEEDED = frozenset({"cpu", "memory", "pids"})
MACHINE = "machine"
"""Version 2: the group of the node's own programs, since a root that hands controllers down holds no process."""
_REMOVAL_S = 20.0


class Unsupported(Exception):
    """No group can be made here; the text says why."""


@dataclass(frozen=True)
class Hierarchy:
    """Where new groups go in one hierarchy."""

    controllers: str
    """As in /proc/PID/cgroup: "cpu,cpuacct", "name=systemd"; empty for version 2."""
    parent: Path


@dataclass(frozen=True)
class _Mount:
    root: str
    point: Path
    options: frozenset[str]


def hierarchies(process: Path = Path("/proc/self")) -> list[Hierarchy]:
    """Those of a process. Raises Unsupported."""
    groups = [line.split(":", 2)[1:] for line in (process / "cgroup").read_text().splitlines()]
    mounts = {kind: _mounts(process / "mountinfo", kind) for kind in ("cgroup", "cgroup2")}
    found: list[Hierarchy] = []
    for controllers, path in groups:
        for mount in mounts["cgroup"] if controllers else ():
            if set(controllers.split(",")) <= mount.options:
                found.append(Hierarchy(controllers, _in_mount(mount, path)))
                break
    if not (lacking := NEEDED - {name for one in found for name in one.controllers.split(",")}):
        return found
    if lacking != NEEDED or not mounts["cgroup2"]:
        raise Unsupported(f"controllers that are not mounted: {', '.join(sorted(lacking))}")
    ((_, path),) = [group for group in groups if not group[0]]
    mount = mounts["cgroup2"][0]
    return [Hierarchy("", _handing_down(_in_mount(mount, path), mount.point))]


def _mounts(mountinfo: Path, wanted: str) -> list[_Mount]:
    """The mounts of a kind of file system."""
    found: list[_Mount] = []
    for line in mountinfo.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, point = fields.split()[3:5]
        kind, _, options = rest.split(" ", 2)
        if kind == wanted:
            found.append(_Mount(root, Path(point), frozenset(options.split(","))))
    return found


def _in_mount(mount: _Mount, path: str) -> Path:
    """Where a group lies below the mount point of its hierarchy."""
    if mount.root != "/" and f"{path}/".startswith(f"{mount.root}/"):
        path = path.removeprefix(mount.root)
    return mount.point / path.strip("/")


def _handing_down(own: Path, top: Path) -> Path:
    """The nearest group from own up to top whose children have the controllers that are needed."""
    for group in (own, *own.parents):
        if set((group / "cgroup.subtree_control").read_text().split()) >= NEEDED:
            return group
        if group == top:
            break
    raise Unsupported(f"no control group from {own} up hands {', '.join(sorted(NEEDED))} down (cgroup.subtree_control)")


def make(parents: Iterable[Hierarchy], name: str) -> list[Path]:
    """A group of this name in each hierarchy (`/` goes deeper); the folders."""
    made: list[Path] = []
    parts = name.split("/")
    for one in parents:
        folder = one.parent
        for part in parts:
            above, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            if "cpuset" in one.controllers.split(","):
                # A new group of version 1 has no processors and no memory until they are named.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((above / file).read_text())
            if not one.controllers and part != parts[-1]:
                wanted = " ".join(f"+{each}" for each in (folder / "cgroup.controllers").read_text().split())
                (folder / "cgroup.subtree_control").write_text(wanted)
        made.append(folder)
    return made


def remove(folder: Path) -> None:
    """Ends what still runs in a group and those below it, and removes them all."""
    deadline = time.monotonic() + _REMOVAL_S
    while folder.exists():
        for group, _, _ in os.walk(folder, topdown=False):
            try:
                for pid in (Path(group) / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            except (ProcessLookupError, FileNotFoundError):
                pass
            try:
                os.rmdir(group)
            except FileNotFoundError:
                pass
            except OSError:
                # What was ended takes a moment to leave.
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.05)
