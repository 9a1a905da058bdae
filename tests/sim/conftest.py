# SPDX-License-Identifier: Apache-2.0
"""One embedded API server and one client for each test."""

from collections.abc import AsyncIterator

import pytest

from koordpy.apiserver.embedded_server import ApiServer
from tests.faults import FaultyServer
from tests.sim.client import Client


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with FaultyServer(bookmark_seconds=0.05) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    found = Client(server.url)
    yield found
    await found.close()
