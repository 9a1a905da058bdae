# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a process, read right."""

from __future__ import annotations

import os
import sys

import pytest

from bench.live.usage import cpu_ticks, memory_bytes, usage_of

STAT = "4242 (a (b) c) S 1 4242 4242 0 -1 4194560 900 0 0 0 {user} {system} 0 0 20 0 9 0 12345 1000000 2000 18446744073"
STATUS = "Name:\tkoordpy\nVmPeak:\t  999 kB\nVmHWM:\t   87492 kB\nVmRSS:\t   87000 kB\nThreads:\t9\n"


def test_cpu_is_user_and_system_time_whatever_the_name_holds() -> None:
    assert cpu_ticks(STAT.format(user=120, system=30)) == 150


def test_memory_held_and_at_most() -> None:
    assert memory_bytes(STATUS) == (87_000 * 1024, 87_492 * 1024)


def test_a_dead_process_holds_no_memory() -> None:
    with pytest.raises(ValueError, match="has ended"):
        memory_bytes("Name:\tkoordpy\nState:\tZ (zombie)\n")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_process_holds_what_it_takes() -> None:
    before = usage_of(os.getpid())
    held = b"x" * 50_000_000
    after = usage_of(os.getpid())
    assert after.peak_bytes >= before.resident_bytes + len(held) // 2
    assert after.cpu_s >= before.cpu_s > 0
    assert after.resident_bytes <= after.peak_bytes
