# SPDX-License-Identifier: Apache-2.0
"""Returns free memory to the operating system.

glibc does not return free memory that is below memory in use, and the interpreter keeps freed small objects for reuse.
After many objects were deleted, 40 MB of 200 MB were free but still counted as memory of the process. `malloc_trim`
returns every free page, in milliseconds and without the interpreter's lock.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable

PAUSE_SECONDS = 10.0
"""Seconds between two attempts."""


async def give_back(forget: Callable[[], bool], trim: Callable[[], object] | None = None) -> None:
    """Returns memory every `PAUSE_SECONDS` until it is cancelled.

    forget: drops data that is no longer needed; returns True if it dropped much. trim: returns free pages to the
    operating system; None for the C library's function, if the library has one.
    """
    trim = trim or _trim()
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        if forget():
            gc.collect()  # also frees the interpreter's free lists
        if trim is not None:
            await asyncio.to_thread(trim)


def _trim() -> Callable[[], object] | None:
    try:
        call = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: call(0)
