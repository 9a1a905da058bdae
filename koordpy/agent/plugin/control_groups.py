"""Which pods still have processes on the node, by the control groups that the kubelet makes for them.

A pod that was deleted by force is gone from the API server and from the kubelet's list at once, but its processes stay
in its group until the runtime has ended them. The kubelet names the group of a pod after its uid, below a group named
`kubepods` (cgroupfs) or `kubepods.slice` (systemd), unless it runs with `cgroupsPerQOS: false`. Of groups of version 1
the hierarchy `pids` is read, of version 2 `cgroup.events`: both count processes of every PID namespace.
"""

import errno
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PODS = ("kubepods", "kubepods.slice")
DEPTH = 3
"""Levels below the root at which the group of all pods may lie (the kubelet's --cgroup-root)."""
_REMOVED = (errno.ENOENT, errno.ENODEV)
"""What reading a group answers that was removed after it was listed."""


class ControlGroups:
    """root: where the node's control groups are mounted."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def has_processes(self, uid: str) -> bool | None:
        """Whether a process of a pod exists; None where control groups do not tell."""
        unified = (self._root / "cgroup.controllers").exists()
        top = self._root if unified else self._root / "pids"
        try:
            pods = list(_groups_of_pods(top, DEPTH))
            found = [group for one in pods for group in _groups_of(one, uid)]
            return any(_is_populated(group, unified=unified) for group in found) if pods else None
        except (OSError, ValueError, KeyError):
            return None


def _groups_of_pods(folder: Path, depth: int) -> Iterator[Path]:
    """The groups below which the kubelet makes those of pods."""
    for one in _folders(folder):
        if one.name.endswith(PODS):
            yield one
        elif depth > 1:
            yield from _groups_of_pods(one, depth - 1)


def _groups_of(pods: Path, uid: str) -> Iterator[Path]:
    """Groups of a pod: below the group of all pods, or of a class of service."""
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
    """Folders inside; none where it was removed after it was listed. Raises OSError."""
    try:
        return [one for one in folder.iterdir() if one.is_dir()]
    except OSError as fault:
        if fault.errno in _REMOVED:
            return []
        raise
