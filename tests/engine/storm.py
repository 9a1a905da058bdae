"""Random schedules in bad weather: users, kubelets and other schedulers act while the API server fails, connections
break, and leaders lose their lease or are killed anywhere. What must hold is in tests.engine.invariants.

`python -m tests.engine.storm --seeds 0-20000` runs many; one that fails is told by its seed, which repeats it.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from koordpy.api import keys
from koordpy.engine.client import ApiClient
from koordpy.engine.credentials import ClusterAccess
from koordpy.engine.queue import State
from koordpy.engine.scheduler import Scheduler
from koordpy.sim.shelf import Change
from tests.engine.invariants import (
    BUDGETS,
    DEVICES,
    GPU,
    GROUPS,
    KINDS,
    QUOTAS,
    TOPOLOGIES,
    Watchman,
    nominated_node,
)
from tests.engine.live import QUICK, QUICK_LEASE, Live, Planner, gang, small
from tests.engine.storage import HOST, LOCAL, MADE, Storage, pod_with
from tests.engine.test_reservations import claim, claiming, offer
from tests.engine.virtual import (
    EPOCH_SECONDS,
    LATEST_SECONDS,
    VirtualLoop,
    Wire,
    one_after_the_other,
    run,
    virtual_server,
)

ROUTES = (
    ("POST", "*/binding"),
    ("POST", "*/binding"),
    ("POST", "*/eviction"),
    ("DELETE", "*/pods/*"),
    ("PATCH", "*/pods/*/status"),
    ("PATCH", "*/podgroups/*"),
    ("PATCH", "*/persistentvolume*"),
    ("PATCH", "*/resourceclaims/*"),
    ("PUT", "*/leases/*"),
    ("GET", "/api/v1/namespaces/*/pods/*"),
    ("GET", "*/resourceclaims/*"),
    ("GET", "/api/v1/pods"),
    ("WATCH", "/api/v1/pods"),
    ("WATCH", "*.k8s.io/*"),
)
EFFECTS = (429, 429, 500, 500, 503, 504, 409, "drop", "timeout")
NODES = ("n1", "n2", "n3")
GPUS_A_NODE = 4
CLASSES = {"middle": 100, "high": 1000}
BLOCK = "example.com/block"
TRAITS = {
    "devices": 0.5,
    "quotas": 0.4,
    "budget": 0.3,
    "topology": 0.4,
    "volumes": 0.3,
    "claims": 0.3,
    "priorities": 0.6,
    "foreign": 0.3,
    "replicas": 0.25,
    "kills": 0.5,
    "cuts": 0.3,
}
"""What there is in a schedule, and how often."""
SETTINGS = replace(
    QUICK,
    event_qps=0.0,
    max_binds_in_flight=8,
    group_status_seconds=0.25,
    unconfirmed_seconds=0.8,
    wobble_hold_seconds=1.0,
)
BUSY = (State.ACTIVE, State.BACKOFF, State.IN_FLIGHT)
Manifest = dict[str, Any]
Connect = Callable[[], ApiClient]


def device(name: str) -> Manifest:
    """Four GPUs, linked in two pairs."""
    matrix = [["X" if i == j else ("NV4" if i // 2 == j // 2 else "SYS") for j in range(4)] for i in range(4)]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {
            "devices": [{"type": "gpu", "minor": i, "id": f"{name}-{i}", "health": True} for i in range(GPUS_A_NODE)],
            "topologies": {"gpu": [{"name": "links", "topology": json.dumps(matrix)}]},
        },
    }


def blocks() -> Manifest:
    """A topology of one layer over the nodes."""
    layers = [
        {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": keys.CLUSTER_LAYER},
        {"layerName": keys.NODE_LAYER, "parentTopologyLayer": "blockLayer"},
    ]
    return {"metadata": {"name": keys.TOPOLOGY_OBJECT}, "spec": {"hierarchy": layers}}


@dataclass
class Replica:
    """A process that schedules, and that is started again when it ends."""

    cluster: Live
    connect: Connect
    wall: Callable[[], float]
    elects: bool
    watchman: Watchman
    name: str = "one"
    client: ApiClient | None = None
    scheduler: Scheduler | None = None
    stopping: bool = False
    starts: int = 0
    _task: asyncio.Task[int] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping:
            self.client = self.connect()
            self.starts += 1
            settings = replace(SETTINGS, lease=replace(QUICK_LEASE, retry_seconds=0.2) if self.elects else None)
            self.scheduler = Scheduler(self.client, Planner(), settings=settings, clock=loop.time, wall_clock=self.wall)
            if self.scheduler.elector is not None:
                self.scheduler.elector.identity = f"{self.name}-{self.starts}"
            self.scheduler.binder._settle_seconds = 2.5 * LATEST_SECONDS
            self.scheduler.reserver._settle_seconds = 2.5 * LATEST_SECONDS
            self.scheduler.releaser._sweep_seconds = 0.3
            self.watchman.listen(self.scheduler)
            self._task = asyncio.create_task(self.scheduler.run())
            await asyncio.gather(self._task, return_exceptions=True)
            await self.client.close()
            # what it sent last has arrived when the next one begins
            await asyncio.sleep(3 * LATEST_SECONDS)

    def kill(self) -> None:
        """It ends where it stands; what it has sent still arrives."""
        if isinstance(self.client, Wire):
            self.client.dead = True
        if self.scheduler is not None:
            self.scheduler.leading.clear()
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """It ends in order and is not started again."""
        self.stopping = True
        if self.scheduler is not None:
            self.scheduler.stop()


@dataclass
class Storm:
    """One schedule."""

    cluster: Live
    dice: random.Random
    connect: Connect
    wall: Callable[[], float]
    trace: ClassVar[bool] = False
    made: int = 0
    history: list[tuple[Any, ...]] = field(default_factory=list)
    """In virtual time: every request and every write."""
    replicas: list[Replica] = field(default_factory=list)
    _others: int = 0

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        server = self.cluster.server
        self.storage = Storage(server)
        self.watchman = Watchman(server, loop.time, self.wall, lambda: bool(self._others), self._knows)
        self.traits = frozenset(trait for trait, chance in TRAITS.items() if self.dice.random() < chance)

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

    def prepare(self) -> None:
        """The cluster as it is before anybody schedules."""
        store = self.cluster.server.store
        if self.trace:
            print("traits", *sorted(self.traits))
            store.listeners.append(self._print)
        with self.by_others():
            for name, value in CLASSES.items():
                store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
            labels = dict(zip(NODES, ("b0", "b0", "b1"), strict=True))
            self.cluster.nodes(
                *(small(name, gpus=GPUS_A_NODE, labels={HOST: name, BLOCK: labels[name]}) for name in NODES)
            )
            if "topology" in self.traits:
                store.create(TOPOLOGIES, blocks())
            if "devices" in self.traits:
                for name in NODES:
                    store.create(DEVICES, device(name))
            if "quotas" in self.traits:
                for name, least, most in (("a", 8, 12), ("b", 4, 7)):
                    spec = {"min": {GPU: str(least)}, "max": {GPU: str(most)}}
                    store.create(QUOTAS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
            if "budget" in self.traits:
                spec = {"minAvailable": 2, "selector": {"matchLabels": {"guarded": "yes"}}}
                store.create(BUDGETS, {"metadata": {"name": "some", "namespace": "default"}, "spec": spec})
            if "volumes" in self.traits:
                self.storage.classes()
                for name in NODES:
                    for i in range(2):
                        self.storage.volume(f"v-{name}-{i}", name)
            if "claims" in self.traits:
                for name in NODES:
                    offer(self.cluster, name, *(f"{name}-{i}" for i in range(2)))

    # -- what happens -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def by_others(self) -> Iterator[None]:
        """Writes of anybody but the scheduler."""
        self._others += 1
        try:
            yield
        finally:
            self._others -= 1

    def weather(self) -> None:
        """Some faults that last until they are cleared."""
        faults, dice = self.cluster.server.faults, self.dice
        faults.seed(dice.randrange(1 << 30))
        for _ in range(dice.randrange(0, 5)):
            method, path = dice.choice(ROUTES)
            effect: Any = dice.choice(EFFECTS)
            if effect == 409 and method in ("GET", "WATCH"):
                effect = 410 if path == "/api/v1/pods" or method == "WATCH" else 503
            after = effect in (500, 504, "drop", "timeout") and method != "WATCH" and dice.random() < 0.5
            share = dice.choice([0.1, 0.3, 0.6])
            faults.fail(effect, method=method, path=path, share=share, after=after, retry_after=0)

    def act(self) -> None:
        """One thing that users, other schedulers or the network do."""
        dice, cluster = self.dice, self.cluster
        self.made += 1
        name = f"p{self.made}"
        chances = {
            "gpus": 6, "cpu": 2, "gang": 4, "delete": 3, "again": 1, "watch": 1, "cordon": 0.5,
            "volume": 3 if "volumes" in self.traits else 0,
            "device": 3 if "claims" in self.traits else 0,
            "both": 2 if {"volumes", "claims"} <= self.traits else 0,
            "foreign": 2 if "foreign" in self.traits else 0,
            "kill": 1 if "kills" in self.traits else 0,
            "cut": 1 if "cuts" in self.traits else 0,
        }  # fmt: skip
        with self.by_others():
            match dice.choices(list(chances), list(chances.values()))[0]:
                case "gpus":
                    (pod,) = gang(name, 1, gpus=dice.choice([1, 1, 2, 4]))[1:]
                    pod["metadata"]["labels"].clear()
                    self._submit(pod)
                case "cpu":
                    cluster.pod(name, cpu=str(dice.choice([1, 2])))
                case "gang":
                    self._gang(f"g{self.made}")
                case "volume":
                    self.storage.claim(f"c{self.made}", dice.choice([LOCAL, MADE]))
                    self._submit(pod_with(name, f"c{self.made}", cpu="0"))
                case "device":
                    claim(cluster, f"d{self.made}", dice.choice([1, 2]))
                    self._submit(claiming(name, f"d{self.made}", cpu="0"))
                    if dice.random() < 0.4:
                        self._submit(claiming(f"{name}-too", f"d{self.made}", cpu="0"))
                case "both":
                    self.storage.claim(f"c{self.made}")
                    claim(cluster, f"d{self.made}")
                    manifest = pod_with(name, f"c{self.made}", cpu="0")
                    manifest["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{self.made}"}]
                    self._submit(manifest)
                case "delete":
                    if names := sorted(cluster.pods()):
                        cluster.delete(dice.choice(names))
                case "again":
                    self._make_anew()
                case "foreign":
                    cluster.pod(name, cpu="1", scheduler_name="another")
                    cluster.bind(name, dice.choice(NODES))
                case "cordon":
                    node, closed = dice.choice(NODES), dice.random() < 0.5
                    store = cluster.server.store
                    store.update("nodes", node, lambda obj: {**obj, "spec": {"unschedulable": True} if closed else {}})
                case "watch":
                    if dice.random() < 0.5:
                        cluster.server.faults.expire_versions()
                    which = dice.choice([None, "pods", "pods", "nodes", GROUPS, QUOTAS])
                    cluster.server.faults.drop_watches(which, abort=dice.random() < 0.5)
                case "kill":
                    dice.choice(self.replicas).kill()
                case "cut":
                    self._cut(dice.choice(self.replicas))

    def _gang(self, name: str) -> None:
        dice = self.dice
        members = dice.randrange(2, 5)
        options: dict[str, Any] = {"gpus": dice.choice([1, 2])}
        if "topology" in self.traits and dice.random() < 0.7:
            rule = {
                "layer": dice.choice(["blockLayer", keys.NODE_LAYER]),
                "strategy": dice.choice(["MustGather", "PreferGather"]),
            }
            options["annotations"] = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [rule]})}
        group, *pods = gang(name, members, min_member=dice.choice([members, members, members - 1]), **options)
        self.cluster.create(group)
        rank, quota = self._rank(), dice.choice(["", "a", "b"])
        if "volumes" in self.traits and dice.random() < 0.3:
            for pod in pods:
                self.storage.claim(pod["metadata"]["name"])
                pod["spec"]["volumes"] = pod_with("x", pod["metadata"]["name"])["spec"]["volumes"]
        for pod in pods:
            self.cluster.create(self._dressed(pod, rank, quota))

    def _rank(self) -> str:
        return self.dice.choice(["", "", "middle", "high"]) if "priorities" in self.traits else ""

    def _submit(self, manifest: Manifest) -> None:
        self.cluster.create(self._dressed(manifest, self._rank(), self.dice.choice(["", "a", "b"])))

    def _dressed(self, manifest: Manifest, rank: str, quota: str) -> Manifest:
        spec, labels = manifest["spec"], manifest["metadata"].setdefault("labels", {})
        if rank:
            spec["priorityClassName"] = rank
        if quota and "quotas" in self.traits:
            labels[keys.QUOTA_NAME] = quota
        if self.dice.random() < 0.2:
            labels["guarded"] = "yes"
        spec["terminationGracePeriodSeconds"] = self.dice.choice([0, 1, 30])
        return manifest

    def _make_anew(self) -> None:
        """A controller makes a pod anew under its name."""
        if names := sorted(
            name for name, obj in self.cluster.pods().items() if obj["spec"]["schedulerName"] != "another"
        ):
            old = self.cluster.pods()[self.dice.choice(names)]
            self.cluster.delete(old["metadata"]["name"])
            meta = {k: v for k, v in old["metadata"].items() if k in ("name", "namespace", "labels")}
            spec = {k: v for k, v in old["spec"].items() if k not in ("nodeName", "priority")}
            self.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def _cut(self, replica: Replica) -> None:
        """The network between a replica and the API server is gone for a while."""
        client = replica.client
        if isinstance(client, Wire):
            client.cut = True
            asyncio.get_running_loop().call_later(self.dice.choice([0.1, 0.6, 3.0]), setattr, client, "cut", False)

    async def rage(self, steps: int) -> None:
        """Weather and acts, one after the other."""
        self.weather()
        for _ in range(steps):
            self.act()
            await asyncio.sleep(self.dice.random() * self.dice.choice([0.01, 0.03, 0.3]))

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
            with self.by_others():
                if "volumes" in self.traits:
                    self.storage.step()
                for name, obj in self.cluster.pods().items():
                    uid = obj["metadata"]["uid"]
                    if obj["metadata"].get("deletionTimestamp"):
                        if now >= due.setdefault(uid, now + dice.choice([0.0, 0.05, 0.3])):
                            del due[uid]
                            self.cluster.delete(name)
                    elif obj["spec"].get("nodeName") and obj.get("status", {}).get("phase") == "Pending":
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
        found = [one.scheduler for one in self.replicas if one.scheduler is not None and one.scheduler.may_write()]
        return found[0] if found else None

    def quiet(self) -> bool:
        """Whether everybody has nothing to do but wait."""
        scheduler = self.leader()
        if scheduler is None:
            return False
        committer, evictor = scheduler.committer, scheduler.evictor
        return not (
            any(isinstance(one.client, Wire) and one.client.busy for one in self.replicas)
            or committer.open
            or committer.aside
            or committer._releasing
            or scheduler.releaser._tasks
            or scheduler.reserver._asking
            or (evictor is not None and evictor.open)
            or any(entry.state in BUSY for entry in scheduler.queue.entries())
            or (scheduler.writers is not None and scheduler.writers.pods.waiting())
            or any(
                nominated_node(obj) or obj["metadata"].get("deletionTimestamp") for obj in self.cluster.pods().values()
            )
            or not self._knows(scheduler)
        )

    def _knows(self, scheduler: Scheduler) -> bool:
        """Whether every watch has brought all that there is; after bad weather they come back by and by."""
        feeds = scheduler.feeds.reflectors()
        for plural in KINDS:
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
        for patience in (0.0, 3.0, 35.0):
            await asyncio.sleep(patience)
            await self.settled()
            try:
                self.watchman.check_end()
                return
            except AssertionError:
                if patience == 35.0 or self.watchman.faults:
                    raise

    async def commit_and_die(self, at: int | None) -> range:
        """All that a commit may do, on a cluster that is half full; the process dies at a turn of the loop."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.prepare()
        (replica,) = self.replicas = [Replica(self.cluster, self.connect, self.wall, False, self.watchman)]
        tasks = [asyncio.create_task(replica.run()), asyncio.create_task(self.surroundings())]
        try:
            with self.by_others():
                self.cluster.create(*gang("low", 3, gpus=3))
            await self.come_to_rest()
            first = loop.steps
            loop.on_step = lambda step: replica.kill() if step == at else None
            with self.by_others():
                group, *pods = gang("whole", 2, gpus=1)
                self.cluster.create(group)
                for pod in pods:
                    name = pod["metadata"]["name"]
                    self.storage.claim(name, MADE)
                    pod["spec"]["volumes"] = pod_with("x", name)["spec"]["volumes"]
                    claim(self.cluster, name)
                    pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name}]
                    self.cluster.create(pod)
                group, *pods = gang("high", 2, gpus=3)
                self.cluster.create(group, *(self._dressed(pod, "high", "") for pod in pods))
            while len(self.cluster.places()) < 4 or not self.cluster.bound("whole-0", "whole-1", "high-0", "high-1"):
                assert loop.time() < 300.0, f"not all are bound: {self.cluster.places()}"
                await asyncio.sleep(0.02)
            last = loop.steps
            await self.come_to_rest()
            assert at is None or replica.starts == 2
        finally:
            replica.stop()
            await tasks[0]
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)
        return range(first + 1, last)

    async def blow(self) -> None:
        """The whole schedule, and what must hold after it."""
        self.prepare()
        elects = "replicas" in self.traits
        self.replicas = [
            Replica(self.cluster, self.connect, self.wall, elects, self.watchman, name)
            for name in ("one", "other")[: 1 + elects]
        ]
        tasks = [asyncio.create_task(one.run()) for one in self.replicas]
        tasks.append(asyncio.create_task(self.surroundings()))
        try:
            await self.rage(self.dice.choice((3, 5, 8, 10, 20)))
            self.cluster.server.faults.clear()
            await self.come_to_rest()
        finally:
            for one in self.replicas:
                one.stop()
            await asyncio.gather(*tasks[:-1])
            tasks[-1].cancel()
            await asyncio.gather(tasks[-1], return_exceptions=True)


async def _in_virtual_time(loop: VirtualLoop, seed: int) -> Storm:
    async with virtual_server(seed) as server:
        storm = Storm(Live(server), random.Random(seed), lambda: Wire(server), loop.wall)
        storm.history = loop.history
        await storm.blow()
        return storm


def through_a_storm(seed: int) -> Storm:
    """Runs one schedule in virtual time and checks its end; AssertionError where something must not be."""
    return run(lambda loop: _in_virtual_time(loop, seed), seed)


async def _killed(loop: VirtualLoop, at: int | None) -> range:
    async with virtual_server(1) as server:
        storm = Storm(Live(server), random.Random(1), lambda: Wire(server), loop.wall)
        storm.traits = frozenset({"devices", "volumes", "claims", "priorities"})
        return await storm.commit_and_die(at)


def killed_in_a_commit(at: int | None) -> range:
    """A gang with volumes and claims is bound and another evicts for its room, while the process is killed at turn `at`
    of the event loop. Returns the turns from the plan to the end; AssertionError where the end is not right."""
    return run(lambda loop: _killed(loop, at), 1)


async def through_a_real_storm(cluster: Live, seed: int) -> Storm:
    """The same over sockets, in real time."""
    connect = lambda: ApiClient(ClusterAccess(cluster.server.url), qps=0, timeout_seconds=2.0)  # noqa: E731
    storm = Storm(cluster, random.Random(seed), connect, time.time)
    await storm.blow()
    return storm


def main() -> int:
    parser = argparse.ArgumentParser(description="Random schedules; prints those that fail")
    parser.add_argument("--seeds", default="0-2000", help="FIRST-LAST, LAST left out, or one seed")
    parser.add_argument("--log", default="CRITICAL", help="level of the scheduler's log")
    parser.add_argument("--trace", action="store_true", help="print every write")
    options = parser.parse_args()
    logging.basicConfig(level=options.log, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    Storm.trace = options.trace
    first, _, last = options.seeds.partition("-")
    failed, began, count = 0, time.process_time(), 0
    evicted = bound = 0
    told = hashlib.sha256()
    with one_after_the_other():
        for seed in range(int(first), int(last or int(first) + 1)):
            count += 1
            try:
                storm = through_a_storm(seed)
                evicted, bound = evicted + storm.watchman.evicted, bound + len(storm.watchman.seen)
                told.update(repr(storm.history).encode())
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: {str(error).splitlines()[0] if str(error) else 'assertion'}", flush=True)
            except Exception as error:
                failed += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    seconds = time.process_time() - began
    print(f"{count} schedules, {bound} pods bound, {evicted} evicted, {failed} failed, {seconds:.1f} s of CPU")
    print(f"history {told.hexdigest()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
