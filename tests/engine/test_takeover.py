# SPDX-License-Identifier: Apache-2.0
"""What a standby waits for once the lease is its own: the last Bindings of who gave it back, none when it ran out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordpy.engine.takeover import Takeover
from tests.engine.parts import a_context


class Elector:
    def __init__(self, quiet_seconds: float) -> None:
        self.quiet_seconds, self.acquired = quiet_seconds, asyncio.Event()


class Feeds:
    """A watch of pods that is at version 7 until it is asked the second time."""

    state = SimpleNamespace(gangs=SimpleNamespace(tallies=list))

    def __init__(self) -> None:
        self.versions = ["7", "9"]

    def regroup(self, now: float) -> None:
        pass

    def version(self, resource: object) -> str:
        return self.versions.pop(0)


class Server:
    """Its pods are at version 9."""

    def __init__(self) -> None:
        self.asked = 0

    async def list_page(self, path: str, **_: object) -> Any:
        self.asked += 1
        return SimpleNamespace(items=[b"{}"], metadata=SimpleNamespace(resource_version="9"))


@pytest.mark.parametrize(("quiet", "left"), [(0.0, []), (0.9, []), (5.0, ["7", "9"])])
async def test_the_watch_catches_up_unless_nobody_has_written_for_longer_than_it_is_given(
    quiet: float, left: list[str]
) -> None:
    elector, feeds, server = Elector(quiet), Feeds(), Server()
    takeover = Takeover(a_context(client=server, feeds=feeds), cast(Any, elector))
    await takeover.soon()
    elector.acquired.set()
    await takeover.led()
    assert (server.asked, feeds.versions) == (0 if left else 1, left)


async def test_lists_that_were_read_while_the_lease_was_its_own_miss_nothing() -> None:
    elector, feeds, server = Elector(0.0), Feeds(), Server()
    elector.acquired.set()
    takeover = Takeover(a_context(client=server, feeds=feeds), cast(Any, elector))
    await takeover.soon()
    await takeover.led()
    assert server.asked == 0
