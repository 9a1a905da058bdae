# SPDX-License-Identifier: Apache-2.0
"""Acts of workloads, played side by side: each in a namespace with nodes of its own, and the same becomes of koordpy in
the middle of all of them (workloads.md 5, 6 and 11).

An act says what its middle is: `amid(deed)` waits until each of the others has come to one, too, or has ended. Then
the deeds are done, and at once koordpy is left alone, killed, or its leader changes, while controllers make what
follows from the deeds. So one death serves every act, and no act is written twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Json
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import Kubelets, kubelets
from tests.e2e.process import Process, eventually
from tests.e2e.test_job_lives import World
from tests.e2e.test_preemption import EVENTS
from tests.e2e.test_scheduler import start

LEFT_ALONE, KILLED, LEADER_CHANGED = "left alone", "killed", "leader changed"
ONE_GPU = {"cpu": "8", "memory": "32Gi", "pods": "20", "nvidia.com/gpu": "1"}
LEASE = "leaderElection: {leaseDuration: 5s, renewDeadline: 4s, retryPeriod: 500ms}\n"
ACT = "tests/act"
"""Label of the nodes of an act; each of its pods goes to these alone."""
_numbers = itertools.count(1)


class Koordpy:
    """One that leads, and where the leader is to change another that stands by."""

    def __init__(self, plane: ControlPlane, folder: Path, interruption: str, config: str = "") -> None:
        """config: further sections of the configuration file."""
        self.interruption = interruption
        self._plane, self._folder = plane, folder
        self._config = folder / "koordpy.yaml"
        self._config.write_text(LEASE + config)
        self._made: list[Process] = []
        self._standby: Process | None = None
        self._changes = 0
        self.leader = self._start()

    def _start(self) -> Process:
        elects = str(self.interruption == LEADER_CHANGED).lower()
        flags = (f"--leader-elect={elects}", f"--config={self._config}")
        self._made.append(start(self._plane, self._folder, f"koordpy-{len(self._made)}", *flags))
        return self._made[-1].start()

    async def ready(self) -> None:
        """Waits until it leads, and another stands by where the leader is to change."""
        if self.interruption == LEADER_CHANGED:
            await said(self.leader, "became leader")
            self._standby = self._standby or self._start()
            await said(self._standby, "waiting for lease")

    async def strike(self) -> None:
        """A leader that goes is killed one time, and ends in order the next."""
        if self.interruption == KILLED:
            await asyncio.to_thread(self.leader.kill)
            self.leader.start()
        elif self._standby is not None:
            old, self.leader = self.leader, self._standby
            if self._changes % 2:
                assert await asyncio.to_thread(old.stop) == 0
            else:
                await asyncio.to_thread(old.kill)
            self._changes += 1
            await said(self.leader, "became leader")
            self._standby = self._start()

    async def stop(self) -> None:
        for process in self._made:
            await asyncio.to_thread(process.stop)


async def said(process: Process, text: str) -> None:
    """Waits until this is in its log."""
    await eventually(lambda: text in process.log.read_text(), what=text, processes=[process])


class Act(World):
    """One namespace, its nodes (NAMESPACE-0 and so on, of one GPU) and what happens there."""

    def __init__(self, api: Client, nodes: Kubelets, play: Play, namespace: str) -> None:
        super().__init__(api, play.koordpy.leader, nodes, namespace)
        self._play = play

    async def amid(self, deed: Awaitable[object] | None = None) -> None:
        """Comes to a middle, in which this is done: koordpy is struck right behind."""
        await self._play.middle(deed)

    async def make_nodes(
        self,
        count: int,
        *,
        start: int = 0,
        room: Mapping[str, str] = ONE_GPU,
        labels: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> None:
        await self.api.make_nodes(
            count,
            name=lambda i: self.node(start + i),
            labels=lambda i: {**labels(i), ACT: self.namespace},
            allocatable=room,
        )

    def node(self, number: int) -> str:
        return f"{self.namespace}-{number}"

    async def cordon_all(self, *numbers: int, cordoned: bool) -> None:
        """These of its nodes."""
        for number in numbers:
            await self.cordon(self.node(number), cordoned=cordoned)

    async def create(self, path: str, body: Json) -> None:
        await self.api.create(self.here(path), self._placed(body))

    async def patch(self, path: str, **spec: Any) -> None:
        await self.api.patch(self.here(path), {"spec": self._placed(spec)})

    async def remove(self, path: str) -> None:
        await self.api.call("DELETE", f"{self.here(path)}?propagationPolicy=Background")

    def _placed(self, part: Any) -> Any:
        """The same with all pods on the nodes of this act."""
        if isinstance(part, list):
            return [self._placed(one) for one in part]
        if not isinstance(part, dict):
            return part
        found = {key: self._placed(value) for key, value in part.items()}
        return {**found, "nodeSelector": {ACT: self.namespace}} if "containers" in part else found

    async def told(self, kind: str, name: str, reason: str) -> list[str]:
        """Notes of the events on an object."""
        return [
            event["note"]
            for event in await self.api.items(self.here(EVENTS))
            if (event["regarding"].get("kind"), event["regarding"].get("name"), event["reason"]) == (kind, name, reason)
        ]


Deeds = Callable[[Act], Awaitable[None]]


class Play:
    """The acts of a test, and koordpy."""

    def __init__(self, api: Client, nodes: Kubelets, koordpy: Koordpy) -> None:
        self.api, self.koordpy = api, koordpy
        self._nodes = nodes
        self.acts: list[Act] = []
        self._playing = 0
        self._waiting: list[tuple[Awaitable[object] | None, asyncio.Future[None]]] = []
        self._struck: asyncio.Task[None] | None = None

    async def act(self, name: str, count: int, **of_nodes: Any) -> Act:
        """A new one."""
        namespace = await self.api.make_namespace(f"{name}-{next(_numbers)}")
        self.acts.append(Act(self.api, self._nodes, self, namespace))
        await self.acts[-1].make_nodes(count, **of_nodes)
        return self.acts[-1]

    async def run(self, deeds: Mapping[str, tuple[int, Deeds]]) -> None:
        """Plays all of them at once, each by its name and with so many nodes; the first failure ends the others. Nobody
        is evicted in any, and nothing is told of gangs of nobody."""
        self._playing = len(deeds)
        tasks = [
            asyncio.create_task(self._played(await self.act(name, count), do)) for name, (count, do) in deeds.items()
        ]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()
        for act in self.acts:
            events = await self.api.items(act.here(EVENTS))
            odd = [one["note"] for one in events if one["reason"] == "GangEvicted" or " 0 members" in f" {one['note']}"]
            assert not odd, f"{act.namespace}: {odd}"

    async def _played(self, act: Act, do: Deeds) -> None:
        await do(act)
        self._playing -= 1
        self._perhaps_strike()

    async def middle(self, deed: Awaitable[object] | None) -> None:
        """Returns when the interruption has struck."""
        passed = asyncio.get_running_loop().create_future()
        self._waiting.append((deed, passed))
        self._perhaps_strike()
        await passed

    def _perhaps_strike(self) -> None:
        if self._waiting and len(self._waiting) >= self._playing:
            waiting, self._waiting = self._waiting, []
            self._struck = asyncio.create_task(self._strike(waiting))

    async def _strike(self, waiting: list[tuple[Awaitable[object] | None, asyncio.Future[None]]]) -> None:
        try:
            await self.koordpy.ready()
            await asyncio.gather(*(deed for deed, _ in waiting if deed is not None))
            await self.koordpy.strike()
        except Exception as error:
            for _, passed in waiting:
                passed.set_exception(error)
            return
        for act in self.acts:
            act.process = self.koordpy.leader
        for _, passed in waiting:
            passed.set_result(None)


@pytest.fixture
async def play(request: pytest.FixtureRequest, api: Client, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Play]:
    """Parameter: what becomes of koordpy in each middle."""
    await api.apply_crds(CRDS)
    koordpy = Koordpy(plane, tmp_path, request.param)
    try:
        async with kubelets(api) as nodes:
            found = Play(api, nodes, koordpy)
            yield found
            for act in found.acts:
                await api.delete(f"/api/v1/namespaces/{act.namespace}")
    finally:
        await koordpy.stop()


def played(*interruptions: str) -> pytest.MarkDecorator:
    """A test of acts; with each interruption where none is given."""
    return pytest.mark.parametrize("play", interruptions or (LEFT_ALONE, KILLED, LEADER_CHANGED), indirect=True)
