# SPDX-License-Identifier: Apache-2.0
"""A slow hand, a slow scheduler, a slow API server: what a test must not count on shows within one run.

A test that writes two objects in a row and expects the scheduler to see both at once, or that expects a scheduler to
have done something by the time of its next request, passes on a fast machine and fails one day. With
KOORDPY_HESITATION=SECONDS each write of a test's own client waits up to so long, one time in three, and each scheduler
that a test starts is stopped (SIGSTOP) for up to so long, again and again, and so are etcd and the API server. Without
it nothing waits. Not seeded: what it finds is a fault of a test or of the scheduler at any time.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from typing import Protocol

LONGEST_S = float(os.environ.get("KOORDPY_HESITATION", "0") or "0")
_ONE_IN = 3


class Stoppable(Protocol):
    @property
    def running(self) -> bool: ...
    def signal(self, number: int) -> None: ...


async def hesitate() -> None:
    """Now and then waits up to LONGEST_S seconds."""
    if LONGEST_S and random.randrange(_ONE_IN) == 0:
        await asyncio.sleep(random.uniform(0, LONGEST_S))


def stumble(process: Stoppable) -> None:
    """Stops and continues a process, whenever it runs, until these tests end."""
    if LONGEST_S:
        threading.Thread(target=_stumble, args=(process,), daemon=True).start()


def _stumble(process: Stoppable) -> None:
    while True:
        time.sleep(random.uniform(0, 4 * LONGEST_S))
        if process.running:
            process.signal(signal.SIGSTOP)
            time.sleep(random.uniform(0, LONGEST_S))
            process.signal(signal.SIGCONT)
