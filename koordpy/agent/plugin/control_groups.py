"""Finds which pods still have processes on the node, from the control groups that the kubelet creates for them.

A force-deleted pod disappears from the API server and from the kubelet's list at once, but its processes stay in its
group until the runtime has ended them. The kubelet names the group of a pod after its uid, below a group named
`kubepods` (cgroupfs) or `kubepods.slice` (systemd), unless it runs with `cgroupsPerQOS: false`. The hierarchy `pids` is
read for cgroup v1, `cgroup.events` for v2; both count processes of every PID namespace.
"""

import errno
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PODS = ("kubepods", "kubepods.slice")
DEPTH = 3
"""Maximum depth below the root of the group of all pods (the kubelet's --cgroup-root)."""
_REMOVED = (errno.ENOENT, errno.ENODEV)
"""Errors when a group is read that was removed after it was listed."""


class ControlGroups:
    """The control groups of the node. root: their mount point."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def has_processes(self, uid: str) -> bool | None:
        """Returns whether a process of a pod exists; None if control groups do not show it."""
        unified = (self._root / "cgroup.controllers").exists()
        top = self._root if unified else self._root / "pids"
        try:
            pods = list(_groups_of_pods(top, DEPTH))
            found = [group for one in pods for group in _groups_of(one, uid)]
            return any(_is_populated(group, unified=unified) for group in found) if pods else None
        except (OSError, ValueError, KeyError):
            return None


def _groups_of_pods(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the groups below which the kubelet creates the groups of pods."""
    for one in _folders(folder):
        if one.name.endswith(PODS):
            yield one
        elif depth > 1:
            yield from _groups_of_pods(one, depth - 1)


def _groups_of(pods: Path, uid: str) -> Iterator[Path]:
    """Yields the groups of a pod: below the group of all pods, or below the group of a QoS class."""
    names = f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"
    for one in _folders(pods):
        if one.name.endswith(names):
            yield one
        else:
            yield from (inner for inner in _folders(one) if inner.name.endswith(names))


def _is_populated(group: Path, *, unified: bool) -> bool:
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
    """Returns the folders inside; none if the folder was removed after it was listed. Raises OSError."""
    try:
        return [one for one in folder.iterdir() if one.is_dir()]
    except OSError as fault:
        if fault.errno in _REMOVED:
            return []
        raise
