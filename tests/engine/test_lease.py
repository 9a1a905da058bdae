# SPDX-License-Identifier: Apache-2.0
"""Leader election on one Lease, with clocks that the tests turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from koordpy.config.configuration import LeaderElection
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.leader_lease import LeaderElector
from tests.engine.scripted import Handler, ScriptedServer, client_of, drop, scripted_server, status, until

COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = f"{COLLECTION}/koordpy"


class Clock:
    """A clock that stands still but for `turn`; sleepers wake when their time has come."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._sleepers.append((self.now + seconds, event))
        await event.wait()

    @property
    def sleeping(self) -> int:
        return len(self._sleepers)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        due = [entry for entry in self._sleepers if entry[0] <= self.now]
        self._sleepers = [entry for entry in self._sleepers if entry[0] > self.now]
        for _, event in due:
            event.set()


class LeaseShelf:
    """The one Lease as the API server keeps it: conflicts by resourceVersion."""

    def __init__(self, server: ScriptedServer) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.puts: list[Handler] = []
        """Replies to the next PUTs in place of the right one."""
        self.post: Handler | None = None
        """Reply to every POST in place of the right one."""
        server.on("GET", LEASE, self._get)
        server.on("POST", COLLECTION, self._post)
        server.on("PUT", LEASE, self._put)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    def store(self, lease: dict[str, Any]) -> None:
        self.version += 1
        self.lease = {**lease, "metadata": {**lease.get("metadata", {}), "resourceVersion": str(self.version)}}

    def hold(self, holder: str, *, transitions: int = 3, seconds: int = 15, renewed: str = "2000-01-01") -> None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": transitions}
        self.store({"metadata": {"name": "koordpy"}, "spec": {**spec, "renewTime": f"{renewed}T00:00:00.000000Z"}})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.lease) if self.lease else await status(404)(request)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if self.post is not None:
            return await self.post(request)
        if self.lease is not None:
            return await status(409, "AlreadyExists")(request)
        self.store(await request.json())
        return web.json_response(self.lease, status=201)

    async def _put(self, request: web.Request) -> web.StreamResponse:
        if self.puts:
            return await self.puts.pop(0)(request)
        return await self.right_put(request)

    async def right_put(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert self.lease is not None
        if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            return await status(409, "Conflict")(request)
        self.store(body)
        return web.json_response(self.lease)


class Scene:
    def __init__(self, shelf: LeaseShelf, client: ApiClient) -> None:
        self.shelf, self.client, self.clock = shelf, client, Clock()
        self.tasks: list[asyncio.Task[None]] = []

    def refuse_creation(self, refusal: Handler) -> None:
        self.shelf.post = refusal

    def candidate(self, name: str, *, retry_seconds: float = 2.0) -> LeaderElector:
        clock = self.clock
        election = LeaderElection(retry_period=retry_seconds)
        return LeaderElector(self.client, election, identity=name, clock=clock, sleep=clock.sleep)

    def start(self, elector: LeaderElector) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(elector.run()))
        return self.tasks[-1]

    def _at_rest(self) -> bool:
        running = sum(not task.done() for task in self.tasks)
        return self.clock.sleeping >= running or running < len(self.tasks)

    async def pass_time(self, seconds: float, *, step: float = 2.5) -> None:
        """Turns the clock in steps longer than a retry, letting each try come to its end."""
        while seconds > 0:
            await until(self._at_rest)
            self.clock.turn(min(step, seconds))
            seconds -= step
        await until(self._at_rest)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with scripted_server() as server, client_of(server) as client:
        made = Scene(LeaseShelf(server), client)
        try:
            yield made
        finally:
            for task in made.tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def test_the_first_candidate_makes_the_lease_and_leads() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        assert not elector.may_write() and elector.time_left() == 0
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        assert elector.may_write() and elector.epoch == 0 and elector.time_left() == 15
        assert s.shelf.spec["holderIdentity"] == "me" and s.shelf.spec["leaseDurationSeconds"] == 15
        assert s.shelf.spec["leaseTransitions"] == 0 and s.shelf.spec["renewTime"].endswith("Z")


async def test_the_lease_is_renewed_and_the_epoch_stays() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        began = s.shelf.spec["acquireTime"]
        await s.pass_time(60)
        assert elector.may_write() and elector.epoch == 0 and not elector.lost.is_set()
        assert s.shelf.version > 10 and s.shelf.spec["acquireTime"] == began


async def test_anothers_lease_is_honoured_for_its_length_since_it_was_seen_not_by_its_time_stamp() -> None:
    async with scene() as s:
        s.shelf.hold("other", seconds=15, renewed="1999-01-01")
        elector = s.candidate("me")
        s.start(elector)
        await s.pass_time(12.5)
        assert not elector.acquired.is_set(), "an old time stamp means nothing"
        s.shelf.hold("other", renewed="1999-01-02")
        await s.pass_time(12.5)
        assert not elector.acquired.is_set(), "it was renewed meanwhile"
        await s.pass_time(10)
        assert elector.acquired.is_set()
        assert s.shelf.spec["holderIdentity"] == "me" and s.shelf.spec["leaseTransitions"] == 4 == elector.epoch


async def test_a_candidate_tries_when_the_lease_that_it_waits_for_has_run_out() -> None:
    async with scene() as s:
        s.shelf.hold("other", seconds=15)
        elector = s.candidate("me", retry_seconds=8)
        s.start(elector)
        await s.pass_time(14.9, step=0.5)
        assert not elector.acquired.is_set()
        await s.pass_time(0.2)
        assert elector.acquired.is_set(), "and not at the next retry, at 16 s or later"
        assert elector.quiet_seconds == 5, "of the lease's 15 s a leader writes in the first 10"


async def test_a_released_lease_is_taken_at_once_and_counts_as_a_new_term() -> None:
    async with scene() as s:
        first, second = s.candidate("first"), s.candidate("second")
        task = s.start(first)
        await asyncio.wait_for(first.acquired.wait(), 60)
        s.start(second)
        await s.pass_time(5)
        assert not second.acquired.is_set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert first.lost.is_set() and not first.may_write()
        await first.release()
        assert s.shelf.spec["holderIdentity"] == ""
        s.tasks.remove(task)
        await s.pass_time(2.5)
        await asyncio.wait_for(second.acquired.wait(), 60)
        assert second.epoch == first.epoch + 1
        assert second.quiet_seconds == 0, "who gives it back may have written a moment ago"


async def test_of_two_candidates_one_leads() -> None:
    async with scene() as s:
        electors = [s.candidate("a"), s.candidate("b")]
        for elector in electors:
            s.start(elector)
        for _ in range(6):
            await s.pass_time(5)
            assert sum(elector.may_write() for elector in electors) == 1


async def test_a_stolen_lease_ends_leadership_at_the_next_try() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        task = s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.shelf.hold("thief", transitions=7)
        for _ in range(2):
            await s.pass_time(2.5)
        await asyncio.wait_for(task, 60)
        assert elector.lost.is_set() and not elector.may_write() and elector.time_left() == 0
        assert s.shelf.spec["holderIdentity"] == "thief", "it is not taken back"


REFUSALS: dict[str, Callable[[], Handler]] = {"500": lambda: status(500), "dropped": drop, "403": lambda: status(403)}


async def test_a_candidate_says_at_once_and_then_seldom_for_whom_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="koordpy.engine.client.leader_lease")
    async with scene() as s:
        for holder in ("one", "two"):
            s.shelf.hold(holder, seconds=3600)
            if not s.tasks:
                s.start(s.candidate("me"))
            await s.pass_time(700)
        said = [record.getMessage() for record in caplog.records]
    assert said == [f"waiting for lease kube-system/koordpy, held by {who}" for who in ("one", "one", "two", "two")]


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        pytest.param(status(500, "InternalError", "no"), "lease kube-system/koordpy: 500 InternalError: no", id="500"),
        pytest.param(
            status(422, "Invalid", "metadata.name: Invalid value"),
            "lease kube-system/koordpy: 422 Invalid: metadata.name: Invalid value;"
            " see leaderElection.resourceNamespace and resourceName",
            id="a name that cannot be",
        ),
        pytest.param(
            status(404, "NotFound", 'namespaces "kube-system" not found'),
            'lease kube-system/koordpy: 404 NotFound: namespaces "kube-system" not found; see'
            " leaderElection.resourceNamespace",
            id="a namespace that is not there",
        ),
    ],
)
async def test_what_keeps_a_candidate_from_the_lease_is_one_warning_of_its_kind(
    refusal: Handler, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="koordpy.engine.client.leader_lease")
    async with scene() as s:
        s.refuse_creation(refusal)
        s.start(s.candidate("me"))
        await s.pass_time(100)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", said)]


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_leader_that_cannot_renew_stops_before_the_lease_ends(refusal: Callable[[], Handler]) -> None:
    async with scene() as s:
        elector = s.candidate("me")
        task = s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.shelf.puts = [refusal()] * 100
        await s.pass_time(7.5)
        assert elector.may_write() and not task.done()
        await s.pass_time(5)
        assert not elector.may_write()
        await asyncio.wait_for(task, 60)
        assert elector.lost.is_set()


async def test_one_failed_renewal_is_made_up_for() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.shelf.puts = [status(500), status(409, "Conflict")]
        await s.pass_time(30)
        assert elector.may_write() and not s.shelf.puts and elector.epoch == 0


async def test_a_renewal_whose_reply_was_lost_does_not_end_the_term() -> None:
    async with scene() as s:

        async def put_and_drop(request: web.Request) -> web.StreamResponse:
            await s.shelf.right_put(request)
            return await drop()(request)

        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.shelf.puts = [put_and_drop, put_and_drop]
        await s.pass_time(30)
        assert elector.may_write() and elector.epoch == 0


async def test_a_clock_that_jumps_ends_the_right_to_write_before_any_task_has_run() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.clock.now += 11
        assert not elector.may_write() and 0 < elector.time_left() <= 4
        s.clock.now += 10
        assert elector.time_left() == 0


async def test_a_machine_that_slept_through_its_lease_does_not_renew_it() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        task = s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        await until(lambda: s.clock.sleeping == 1)
        before = s.shelf.version
        s.clock.turn(60)
        await asyncio.wait_for(task, 60)
        assert elector.lost.is_set() and s.shelf.version == before


async def test_the_time_of_a_renewal_counts_from_before_it_was_sent() -> None:
    async with scene() as s:

        async def slow_put(request: web.Request) -> web.StreamResponse:
            s.clock.now += 4
            return await s.shelf.right_put(request)

        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.shelf.puts = [slow_put]
        await s.pass_time(2.5)
        await until(lambda: not s.shelf.puts and s.clock.sleeping == 1)
        assert elector.time_left() == 11


async def test_a_lease_deleted_under_the_leader_is_made_anew_with_a_later_epoch() -> None:
    async with scene() as s:
        s.shelf.hold("", transitions=6)
        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        assert elector.epoch == 7
        s.shelf.lease = None
        await s.pass_time(7.5)
        assert elector.may_write() and elector.epoch == 8 == s.shelf.spec["leaseTransitions"]


async def test_fields_of_the_lease_that_we_do_not_know_stay() -> None:
    async with scene() as s:
        s.shelf.hold("")
        s.shelf.spec["strategy"] = "OldestEmulationVersion"
        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        assert s.shelf.spec["strategy"] == "OldestEmulationVersion"


async def test_release_leaves_anothers_lease_alone() -> None:
    async with scene() as s:
        elector = s.candidate("me")
        s.start(elector)
        await asyncio.wait_for(elector.acquired.wait(), 60)
        s.shelf.hold("thief")
        await elector.release()
        assert s.shelf.spec["holderIdentity"] == "thief"
