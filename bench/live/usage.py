# SPDX-License-Identifier: Apache-2.0
"""What a process has used, as the kernel counts it: /proc/PID/stat and /proc/PID/status (proc_pid_stat(5))."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_UTIME, _STIME = 11, 12
"""Fields 14 and 15 of stat; the two before the state are cut off, for the name may hold anything."""


@dataclass(frozen=True, slots=True)
class Usage:
    """User and system time; memory held now and at most. All threads of the process."""

    cpu_s: float
    resident_bytes: int
    peak_bytes: int


def cpu_ticks(stat: str) -> int:
    """User and system time in clock ticks, of the text of /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[_UTIME]) + int(fields[_STIME])


def memory_bytes(status: str) -> tuple[int, int]:
    """(VmRSS, VmHWM), of the text of /proc/PID/status. Raises ValueError where it has none, as for a dead process."""
    amounts = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("VmRSS:", "VmHWM:")))
    if len(amounts) < 2:
        raise ValueError("no VmRSS and VmHWM: the process has ended")
    resident, peak = (int(amounts[key].removesuffix("kB")) * 1024 for key in ("VmRSS", "VmHWM"))
    return resident, peak


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far. OSError when it is gone."""
    return cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) / os.sysconf("SC_CLK_TCK")


def usage_of(pid: int) -> Usage:
    """Usage of a running process. OSError or ValueError when it is gone."""
    resident, peak = memory_bytes(Path(f"/proc/{pid}/status").read_text())
    return Usage(cpu_seconds(pid), resident, peak)
