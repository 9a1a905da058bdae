# SPDX-License-Identifier: Apache-2.0
"""Whether memory that is free is given back, and nothing is tried where that cannot be."""

import asyncio
import subprocess
import sys

import pytest

from koordpy.operator import heap

FREED = """
import os
from bench.live.usage import usage_of
from koordpy.operator.heap import _trim
trim = _trim()
if trim is None:
    raise SystemExit(77)
held = [bytes(1000) for _ in range(100_000)]
last = bytes(1000)
high = usage_of(os.getpid()).resident_bytes
held.clear()
trim()
print(high - usage_of(os.getpid()).resident_bytes)
"""


async def test_memory_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "PAUSE_SECONDS", 0.001)
    times = 0
    enough = asyncio.Event()

    def trim() -> None:
        nonlocal times
        times += 1
        if times == 3:
            loop.call_soon_threadsafe(enough.set)

    loop = asyncio.get_running_loop()
    forgotten: list[int] = []

    def forget() -> bool:
        forgotten.append(times)
        return False

    task = asyncio.create_task(heap.give_back(forget, trim))
    await asyncio.wait_for(enough.wait(), 30)
    task.cancel()
    assert forgotten[:3] == [0, 1, 2]


async def test_a_library_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(heap, "_trim", lambda: None)
    collected = asyncio.Event()
    monkeypatch.setattr(heap.gc, "collect", collected.set)
    task = asyncio.create_task(heap.give_back(lambda: True))
    await asyncio.wait_for(collected.wait(), 30)
    task.cancel()


def test_what_lies_below_something_in_use_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("the C library has no malloc_trim")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80_000_000
