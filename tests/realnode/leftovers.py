# SPDX-License-Identifier: Apache-2.0
"""Each cluster of real nodes has a name that tells its driver, so that what a driver that was killed left can be found.

Processes, namespaces and mounts end with the driver (see namespaces.py, and --kill-child of unshare); folders and
control groups stay.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from tests.realnode import cgroups

PREFIX = "koordpy-realnode"
GROUPS = "groups"
"""File in a cluster's folder with its control groups, one a line, written before they are made."""
KEPT = "kept"
"""File in the folder of a cluster that was left running on purpose: what `up` printed."""
_ENDING_S = 120.0


def new_folder() -> Path:
    """For a cluster that this process drives."""
    folder = Path(tempfile.gettempdir(), f"{PREFIX}-{os.getpid()}-{_begun(os.getpid())}")
    folder.mkdir(mode=0o755)
    return folder


def _begun(pid: int) -> str | None:
    """When a process began, in ticks, which tells apart who had its number before. None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def driver_of(folder: Path) -> int | None:
    """The process that drives a cluster, None when it is gone."""
    pid, begun = folder.name.removeprefix(f"{PREFIX}-").split("-")
    return int(pid) if _begun(int(pid)) == begun else None


def folders() -> list[Path]:
    return sorted(one for one in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*-*") if one.is_dir())


def kept() -> list[Path]:
    """Folders of clusters that were left running on purpose, and run."""
    return [folder for folder in folders() if (folder / KEPT).exists() and driver_of(folder)]


def sweep() -> list[Path]:
    """Removes what is left of clusters whose driver is gone; their folders."""
    dead = [folder for folder in folders() if driver_of(folder) is None]
    for folder in dead:
        clear(folder)
    return dead


def clear(folder: Path) -> None:
    """Removes a cluster's control groups, with what still runs in them, and its folder."""
    groups = folder / GROUPS
    if groups.exists():
        for group in groups.read_text().split("\n"):
            if group:
                cgroups.remove(Path(group))
    shutil.rmtree(folder, ignore_errors=True)


def end_kept() -> list[Path]:
    """Ends clusters that were left running, and removes them; their folders."""
    ended = kept()
    for folder in ended:
        deadline = time.monotonic() + _ENDING_S
        if driver := driver_of(folder):
            os.kill(driver, signal.SIGTERM)
        while driver := driver_of(folder):
            if time.monotonic() > deadline:
                os.kill(driver, signal.SIGKILL)
            time.sleep(0.1)
    return ended
