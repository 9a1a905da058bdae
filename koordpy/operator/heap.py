"""Memory that is free goes back to the machine: glibc keeps what lies below anything that is still in use, and the
interpreter keeps thousands of small objects that nobody uses for the next who asks for such ones.

After a flood of objects that are gone, 40 MB of 200 were free and still counted as the process's. `malloc_trim` gives
back every whole page that is free, in milliseconds and without the interpreter's lock.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable

PAUSE_SECONDS = 10.0


async def give_back(forget: Callable[[], bool], trim: Callable[[], object] | None = None) -> None:
    """Gives memory back until it is cancelled; where the C library has no such call, only what `forget`, which is
    called before each time and tells whether it was much, lets go."""
    trim = trim or _trim()
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        if forget():
            gc.collect()  # also lets go of what the interpreter keeps for itself
        if trim is not None:
            await asyncio.to_thread(trim)


def _trim() -> Callable[[], object] | None:
    try:
        call = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: call(0)
