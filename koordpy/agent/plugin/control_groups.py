# SPDX-License-Identifier: Apache-2.0
"""Finds out whether processes of a pod still run on the node, from the control groups that the kubelet creates for
pods.

The device plugin needs it for force-deleted pods. Such a pod disappears from the API server and from the kubelet's list
at once. Its containers may still run and use GPUs, because the container runtime ends them later. Until then their
processes stay in the control group (cgroup) of the pod.

The kubelet creates the group of a pod below a parent group for all pods. The parent is `kubepods` with driver cgroupfs,
`kubepods.slice` with driver systemd, possibly with a prefix. The name of a pod's group contains the uid of the pod. Two
versions of control groups are read: `cgroup.events` in version 2, and `pids.current` of the hierarchy `pids` in version
1. Both count processes of every PID namespace. Nothing can be found if the kubelet runs with `cgroupsPerQOS: false`.
"""

import errno
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Default mount point of the control groups."""
PODS = ("kubepods", "kubepods.slice")
"""Ends of the name of the parent group of all pods."""
DEPTH = 3
"""Number of levels below the mount point on which the parent group is searched. By default it is on the first level;
with the kubelet's flag --cgroup-root it is deeper."""
_REMOVED = (errno.ENOENT, errno.ENODEV)
"""Errors of reading a group that was removed after it was listed."""


class ControlGroups:
    """The control groups of the node."""

    def __init__(self, root: Path = ROOT) -> None:
        """root: mount point of the control groups."""
        self._root = root

    def has_processes(self, uid: str) -> bool | None:
        """Returns whether a process of a pod (uid) exists; None if control groups do not show it.

        False also for a pod without a group, because the kubelet removes the group of a pod that has ended. None if the
        parent group is not found, or if a group cannot be read.
        """
        unified = (self._root / "cgroup.controllers").exists()
        top = self._root if unified else self._root / "pids"
        try:
            pods = list(_groups_of_pods(top, DEPTH))
            found = [group for one in pods for group in _groups_of(one, uid)]
            return any(_is_populated(group, unified=unified) for group in found) if pods else None
        except (OSError, ValueError, KeyError):
            return None


def _groups_of_pods(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the parent groups of all pods, at most `depth` levels below a folder."""
    for one in _folders(folder):
        if one.name.endswith(PODS):
            yield one
        elif depth > 1:
            yield from _groups_of_pods(one, depth - 1)


def _groups_of(pods: Path, uid: str) -> Iterator[Path]:
    """Yields the groups of a pod below the parent group `pods`.

    A pod's group is directly in `pods`, or one level deeper, in the group of its QoS class.
    """
    names = f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"
    for one in _folders(pods):
        if one.name.endswith(names):
            yield one
        else:
            yield from (inner for inner in _folders(one) if inner.name.endswith(names))


def _is_populated(group: Path, *, unified: bool) -> bool:
    """Returns whether a group has processes; False for a group that is being removed. Raises OSError.

    unified: True for control groups of version 2.
    """
    try:
        if unified:
            events = dict(line.split() for line in (group / "cgroup.events").read_text().splitlines())
            return events["populated"] != "0"
        return int((group / "pids.current").read_text()) > 0
    except OSError as fault:
        if fault.errno in _REMOVED:
            return False
        raise


def _folders(folder: Path) -> list[Path]:
    """Returns the subfolders of a folder; empty if the folder is being removed. Raises OSError."""
    try:
        return [one for one in folder.iterdir() if one.is_dir()]
    except OSError as fault:
        if fault.errno in _REMOVED:
            return []
        raise
