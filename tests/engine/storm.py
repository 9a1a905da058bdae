# SPDX-License-Identifier: Apache-2.0
"""Random schedules in bad weather: users, kubelets and other schedulers act while the API server fails, connections
break, and leaders lose their lease or are killed anywhere. What must hold is in tests.engine.watchman.

`python -m tests.engine.storm --seeds 0-20000` runs many; one that fails is told by its seed, which repeats it.
"""

import argparse
import asyncio
import contextlib
import hashlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from koordpy.api import keys
from koordpy.apiserver.resource_shelf import Change
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.queue_entry import State
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import RoundPlan
from tests.engine.acts import TRAITS, Acts
from tests.engine.evictions import kinds_of
from tests.engine.failures import Failures
from tests.engine.live import Live
from tests.engine.manifests import Manifest, nominated_node
from tests.engine.mishaps import Mishaps
from tests.engine.repairs import RepairWatch
from tests.engine.replica import Connect, Replica
from tests.engine.stage import Stage
from tests.engine.storage import Storage
from tests.engine.unrest import Unrest
from tests.engine.virtual import (
    EPOCH_SECONDS,
    LATEST_SECONDS,
    VirtualLoop,
    Wire,
    one_after_the_other,
    run,
    virtual_server,
)
from tests.engine.watchman import Watchman
from tests.engine.weather import Weather

BUSY = (State.ACTIVE, State.BACKOFF, State.IN_FLIGHT)
UNREST = 0.35
"""In so many schedules others change under way what has been planned on."""
SLOW_SECONDS = 1.0
"""Of a slow network. A Binding is then 0.3 s on its way, which must be less than what the lease leaves for it."""


CALM_SECONDS = 0.3
"""In which the first gangs start, where they are repaired."""
LULLS = 0.3
"""In so many schedules with repairs all is looked at once before the end."""
KNOWN_SECONDS = 0.8
"""After this long without a change everything is known and written, if nothing fails."""


@dataclass
class Storm:
    """One schedule."""

    cluster: Live
    dice: random.Random
    connect: Connect
    wall: Callable[[], float]
    trace: ClassVar[bool] = False
    history: list[tuple[Any, ...]] = field(default_factory=list)
    """In virtual time: every request and every write."""
    replicas: list[Replica] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    """How often which knob was turned."""
    linger_seconds: float = 0.0
    """What pods take longer than usual to end."""
    unrest: Unrest | None = None
    """What others change under way, where anybody does."""
    also: frozenset[str] = frozenset()
    """Traits besides those that the dice say."""
    _others: int = 0

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        server = self.cluster.server
        self.storage = Storage(server)
        self.weather = Weather(server.faults, self.dice, self.tally)
        self.watchman = Watchman(
            server, loop.time, self.leaders_wall, self.one_clock, lambda: bool(self._others), self._known, self.informed
        )
        self.stage(frozenset(trait for trait, chance in TRAITS.items() if self.dice.random() < chance) | self.also)

    def stage(self, traits: frozenset[str]) -> None:
        """What there is to be in the schedule."""
        self.traits = traits
        self.scene = Stage(self.cluster, self.dice, traits, self.storage, self.tally)
        self.failures = Failures(self.scene, self.wall, self.by_others)
        self.watchman.configure(self.failures.config, self.tally if "repairs" in traits else None)
        self.acts = Acts(self.scene, self.replicas, self.failures)
        self.mishaps = Mishaps(self.scene, self.acts.machines, self.replicas, self.watchman.evictions.acted)

    def prepare(self) -> None:
        """The cluster as it is before anybody schedules."""
        if self.trace:
            print("traits", *sorted(self.traits))
            self.cluster.server.store.listeners.append(self._print)
        with self.by_others():
            self.scene.prepare()
            self.acts.prepare()
            if self.unrest is not None:
                self.unrest.prepare()

    def stir(self) -> None:
        """Others are to change what has been planned on."""
        self.unrest = Unrest(self.scene, self.acts.machines, self.acts.network, self.replicas, self.by_others)

    def _print(self, shelf: str, change: Change) -> None:
        if shelf not in ("leases.coordination.k8s.io", "events.events.k8s.io"):
            obj = change.entry.obj
            meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
            told = [f"{change.kind} {shelf} {meta['name']}"]
            told += [f"{key}={spec[key]}" for key in ("nodeName", "priorityClassName", "unschedulable") if key in spec]
            told += [f"quota={meta['labels'][keys.QUOTA_NAME]}"] if keys.QUOTA_NAME in meta.get("labels", {}) else []
            told += ["ending"] if meta.get("deletionTimestamp") else []
            told += [f"nominated={status['nominatedNodeName']}"] if status.get("nominatedNodeName") else []
            told += [
                c["message"] for c in status.get("conditions", []) if c["type"] == "PodScheduled" and "message" in c
            ]
            print(f"{self.wall() - EPOCH_SECONDS:8.3f} {'others' if self._others else 'koordpy'}:", *told)

    # -- what happens -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def by_others(self) -> Iterator[None]:
        """Writes of anybody but the scheduler."""
        self._others += 1
        try:
            yield
        finally:
            self._others -= 1

    def clear_up(self) -> None:
        """The weather is good from now on, and nobody acts any more."""
        self.weather.clears()
        self.acts.network.stand_down()
        if "zones" in self.traits:
            with self.by_others():
                self.acts.zones.over()
        self.mishaps.over()
        if self.unrest is not None:
            self.unrest.over()

    def sent(self, wire: Wire, method: str, path: str, data: bytes | None) -> None:
        """A request leaves a scheduler (virtual time only)."""
        if (scheduler := self._sender(wire)) is not None:
            self.watchman.knowledge.sent(scheduler, method, path, data)
            if path.endswith("/binding"):
                self.watchman.sent(path)

    def replied(self, wire: Wire, method: str, path: str, status: int, body: bytes) -> None:
        """A scheduler is answered (virtual time only)."""
        if (scheduler := self._sender(wire)) is not None:
            self.watchman.knowledge.replied(scheduler, method, path, status, body)

    def _sender(self, wire: Wire) -> Scheduler | None:
        return next((one.scheduler for one in self.replicas if one.client is wire), None)

    def requested(self, wire: Wire, method: str, path: str, moment: str) -> None:
        """A request is at the API server (virtual time only)."""
        replica = next((one for one in self.replicas if one.client is wire), None)
        with self.by_others():
            self.acts.network.requested(wire, method, path, moment)
            if replica is not None:
                self.mishaps.requested(replica, method, path, moment)

    def planned(self, result: Any) -> float:
        """The planner has found something (virtual time only); seconds that its answer takes longer."""
        with self.by_others():
            return self.mishaps.planned(result.placements) if isinstance(result, RoundPlan) else 0.0

    async def rage(self, steps: int) -> None:
        """Weather and acts, one after the other."""
        if "repairs" in self.traits:
            await asyncio.sleep(CALM_SECONDS)
        self.weather.comes()
        # long enough for a lease to run out
        pauses = [0.01, 0.03, 0.3, 1.0] if "replicas" in self.traits else [0.01, 0.03, 0.3]
        for step in range(steps):
            self.watchman.evictions.acted()
            with self.by_others():
                self.acts.act()
            await asyncio.sleep(self.dice.random() * self.dice.choice(pauses))
            if self.watchman.repairs is not None and step == steps // 2 and self.dice.random() < LULLS:
                await self._lull(self.watchman.repairs)

    async def _lull(self, repairs: RepairWatch) -> None:
        """The weather is good for a while: once all is known, gangs must say what they lack."""
        self.weather.clears()
        await asyncio.sleep(KNOWN_SECONDS)
        await self.settled()
        if self.quiet() and asyncio.get_running_loop().time() - repairs.changed > KNOWN_SECONDS:
            self.tally["lulls"] += 1
            repairs.check_end(self.cluster.pods())
        self.weather.comes()

    async def surroundings(self) -> None:
        """Kubelets: pods on nodes run, those that are deleted take their time to end. And controllers of volumes."""
        due: dict[str, float] = {}
        dice, loop = random.Random(self.dice.randrange(1 << 30)), asyncio.get_running_loop()
        changed = asyncio.Event()
        self.cluster.server.store.listeners.append(lambda shelf, change: changed.set())
        while True:
            await changed.wait()
            await asyncio.sleep(0.02)
            changed.clear()
            now = loop.time()
            nodes = {obj["metadata"]["name"] for obj in self.cluster.server.store.list("nodes")}
            with self.by_others():
                if "volumes" in self.traits:
                    self.storage.step()
                for name, obj in self.cluster.pods().items():
                    uid = obj["metadata"]["uid"]
                    node = obj["spec"].get("nodeName")
                    if obj["metadata"].get("deletionTimestamp") or (node and node not in nodes):
                        if now >= due.setdefault(uid, now + dice.choice([0.0, 0.05, 0.3]) + self.linger_seconds):
                            del due[uid]
                            self.cluster.delete(name)
                    elif node and obj.get("status", {}).get("phase") == "Pending":
                        self._start(name)
                there = {obj["metadata"]["uid"] for obj in self.cluster.pods().values()}
                due = {uid: at for uid, at in due.items() if uid in there}
            if due:
                loop.call_at(min(due.values()), changed.set)

    def _start(self, name: str) -> None:
        def running(old: Manifest) -> Manifest:
            ready = {"type": "Ready", "status": "True"}
            kept = [c for c in old["status"].get("conditions", []) if c["type"] != "Ready"]
            return {**old, "status": {**old["status"], "phase": "Running", "conditions": [*kept, ready]}}

        self.cluster.server.store.update("pods", name, running, namespace="default", status=True)

    # -- the end ------------------------------------------------------------------------------------------------------

    def leader(self) -> Scheduler | None:
        """The scheduler that may write now."""
        return next((one.scheduler for one in self.replicas if one.leads), None)

    def leaders_wall(self) -> float:
        """Epoch seconds, as the leader counts them: a process that begins with a wrong clock goes by it."""
        scheduler = self.leader()
        return scheduler._loop._now() if scheduler is not None else self.wall()

    def one_clock(self) -> bool:
        """Whether every process has begun with the right time of day: then no jump may show in what is done."""
        return all(one.starts == 1 or not one.ahead_seconds for one in self.replicas)

    def quiet(self) -> bool:
        """Whether everybody has nothing to do but wait."""
        scheduler = self.leader()
        if scheduler is None:
            return False
        committer, evictor = scheduler.committer, scheduler.evictor
        return not (
            any(isinstance(one.client, Wire) and one.client.busy for one in self.replicas)
            or committer.open
            or committer.waiting_for_claims
            or committer._releasing
            or scheduler.releaser._tasks
            or scheduler.reserver._asking
            or scheduler._loop._reservations.returning
            or (evictor is not None and evictor.open)
            or any(entry.state in BUSY for entry in scheduler.queue.entries.values())
            or (scheduler.writers is not None and scheduler.writers.pods._verdicts)
            or any(
                nominated_node(obj) or obj["metadata"].get("deletionTimestamp") for obj in self.cluster.pods().values()
            )
            or not self.informed(scheduler)
        )

    def informed(self, scheduler: Scheduler) -> bool:
        """Whether every watch has brought all that there is; after bad weather they come back by and by."""
        return self._knows(scheduler, tuple(kinds_of(self.cluster.server.store)))

    def _known(self, plurals: tuple[str, ...]) -> bool:
        scheduler = self.leader()
        return scheduler is not None and self._knows(scheduler, plurals)

    def _knows(self, scheduler: Scheduler, plurals: tuple[str, ...]) -> bool:
        feeds = scheduler.feeds.reflectors
        for plural in plurals:
            there = {
                obj["metadata"]["uid"]: obj["metadata"]["resourceVersion"]
                for obj in self.cluster.server.store.list(plural)
            }
            if {uid: obj.metadata.resource_version for uid, obj in feeds[plural].objects.items()} != there:
                return False
        return True

    async def settled(self) -> None:
        """Waits until all has been quiet for a while."""
        loop = asyncio.get_running_loop()
        until, quiet = loop.time() + 60.0, 0
        while quiet < 4 and loop.time() < until:
            await asyncio.sleep(0.11)
            quiet = quiet + 1 if self.quiet() else 0

    async def come_to_rest(self) -> None:
        """Waits until all is as it must be at the end; what is held back on purpose may come late."""
        await self._stand_the_check()
        for _ in range(3):
            if not self.watchman.seats_end:
                return
            self.tally["seats at the end"] += 1
            # until their time is over, and those that wait for them have started
            await asyncio.sleep(max(0.0, self.watchman.seats_end - self.leaders_wall()) + 0.1)
            await self._stand_the_check()
        assert not self.watchman.seats_end, "seats do not end"

    async def _stand_the_check(self) -> None:
        for patience in (0.0, 3.0, 35.0):
            await asyncio.sleep(patience)
            await self.settled()
            try:
                self.watchman.check_end()
                return
            except AssertionError:
                if patience == 35.0 or self.watchman.faults:
                    raise

    def replica(self, name: str, *, elects: bool) -> Replica:
        """A process that is not started yet."""
        latest = SLOW_SECONDS if "slow" in self.traits else LATEST_SECONDS

        def connect() -> ApiClient:
            client = self.connect()
            if isinstance(client, Wire):
                client.latest_seconds = latest
            return client

        return Replica(connect, self.wall, elects, self.watchman, name, latest, config=self.failures.config)

    async def blow(self) -> None:
        """The whole schedule, and what must hold after it."""
        self.prepare()
        elects = "replicas" in self.traits
        self.replicas += [self.replica(name, elects=elects) for name in ("one", "other")[: 1 + elects]]
        tasks = [asyncio.create_task(one.run()) for one in self.replicas]
        beside = [asyncio.create_task(self.surroundings()), asyncio.create_task(self.mishaps.suspend())]
        beside += [asyncio.create_task(self.unrest.run())] if self.unrest is not None else []
        try:
            await self.rage(self.dice.choice((3, 5, 8) if "repairs" in self.traits else (3, 5, 8, 10, 20)))
            self.clear_up()
            await self.come_to_rest()
        finally:
            for one in self.replicas:
                self.tally["leaders lost"] += one.ends if elects else 0
                one.stop()
            await asyncio.gather(*tasks)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self.tally["evicted"] += self.watchman.evictions.count
            self.tally["bound"] += len(self.watchman.seen)


async def _in_virtual_time(
    loop: VirtualLoop, seed: int, unrest: bool, traits: frozenset[str] | None, also: frozenset[str]
) -> Storm:
    async with virtual_server(seed) as server:
        storm = Storm(Live(server), random.Random(seed), lambda: Wire(server), loop.wall, also=also)
        storm.history = loop.history
        if traits is not None:
            storm.stage(traits)
        loop.on_request, loop.on_send, loop.on_result = storm.requested, storm.sent, storm.planned
        loop.on_reply = storm.replied
        if unrest:
            storm.stir()
        await storm.blow()
        return storm


def through_a_storm(
    seed: int,
    *,
    unrest: bool | None = None,
    traits: frozenset[str] | None = None,
    also: frozenset[str] = frozenset(),
) -> Storm:
    """Runs one schedule in virtual time and checks its end; AssertionError where something must not be.

    unrest: whether others change under way what has been planned on; None: the seed says. traits: what there is in the
    schedule; None: the seed says. also: traits besides those that the seed says.
    """
    stirred = random.Random(f"unrest {seed}").random() < UNREST if unrest is None else unrest
    return run(lambda loop: _in_virtual_time(loop, seed, stirred, traits, also), seed)


async def through_a_real_storm(cluster: Live, seed: int) -> Storm:
    """The same over sockets, in real time."""
    connect = lambda: ApiClient(ClusterAccess(cluster.server.url), qps=0, timeout_seconds=2.0)  # noqa: E731
    storm = Storm(cluster, random.Random(seed), connect, time.time)
    await storm.blow()
    return storm


def main() -> int:
    parser = argparse.ArgumentParser(description="Random schedules; prints those that fail")
    parser.add_argument("--seeds", default="0-2000", help="FIRST-LAST, LAST left out, or one seed")
    parser.add_argument("--unrest", action=argparse.BooleanOptionalAction, help="in every schedule, or in none")
    parser.add_argument("--log", default="CRITICAL", help="level of the scheduler's log")
    parser.add_argument("--trace", action="store_true", help="print every write")
    parser.add_argument("--tally", action="store_true", help="print how often which knob was turned")
    parser.add_argument("--also", default="", help="traits that every schedule has, with commas between them")
    options = parser.parse_args()
    also = frozenset(filter(None, options.also.split(",")))
    logging.basicConfig(level=options.log, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    Storm.trace = options.trace
    first, _, last = options.seeds.partition("-")
    failed, began, count = 0, time.process_time(), 0
    tally: Counter[str] = Counter()
    told = hashlib.sha256()
    with one_after_the_other():
        for seed in range(int(first), int(last or int(first) + 1)):
            count += 1
            try:
                storm = through_a_storm(seed, unrest=options.unrest, also=also)
                tally += storm.tally
                told.update(repr(storm.history).encode())
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: {str(error).splitlines()[0] if str(error) else 'assertion'}", flush=True)
            except Exception as error:
                failed += 1
                if options.trace:
                    raise
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    seconds = time.process_time() - began
    bound, evicted = tally.pop("bound", 0), tally.pop("evicted", 0)
    if options.tally:
        for name, times in sorted(tally.items()):
            print(f"{times:8d} {name}")
    print(f"{count} schedules, {bound} pods bound, {evicted} evicted, {failed} failed, {seconds:.1f} s of CPU")
    print(f"history {told.hexdigest()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
