# SPDX-License-Identifier: Apache-2.0
"""Both event loops that koordpy runs on: uvloop in the image and under `koordpy run`, asyncio's own elsewhere.

A folder of tests whose code serves connections imports `pytest_asyncio_loop_factories` in its conftest.py. Each of its
async tests then runs once on each loop.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS
