# SPDX-License-Identifier: Apache-2.0
"""A scheduler running against the embedded API server, and what must hold whatever goes wrong."""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.queue_entry import State
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import PlannerCache, plan_round
from tests import clusters
from tests.clusters import node, pod
from tests.engine.scripted import until
from tests.engine.tuning import LONG_LEASE, QUICK, QUICK_LEASE, tuned
from tests.engine.virtual import VirtualLoop, Wire, run, virtual_server
from tests.faults import FaultyServer

P = ParamSpec("P")
_BUSY = (State.ACTIVE, State.BACKOFF, State.IN_FLIGHT)


def gang(name: str, members: int, *, cpu: str = "0", **options: Any) -> list[dict[str, Any]]:
    """A PodGroup and its pods, that ask for GPUs and, unless `cpu` says so, little else."""
    group, *pods = clusters.gang(name, members, **options)
    for member in pods:
        for amounts in member["spec"]["containers"][0]["resources"].values():
            amounts |= {"cpu": cpu, "memory": "1Mi"}
    return [group, *pods]


@dataclass
class Planner:
    """The real planner, that a test can hold in the middle of a round, or make fail."""

    rounds: list[frozenset[str]] = field(default_factory=list)
    hold: threading.Event | None = None
    search_hold: threading.Event | None = None
    """The same for searches; `hold` is for ordinary rounds."""
    failing: Callable[[frozenset[str]], bool] = lambda only: False
    beside: Callable[[RoundPlan], RoundPlan] = lambda plan: plan
    """What a test adds to a plan."""
    hurried: Callable[[PlanningBudget], PlanningBudget] = lambda budget: budget
    """What a test does to the bound of a round."""
    caches: dict[bool, PlannerCache] = field(default_factory=lambda: {False: PlannerCache(), True: PlannerCache()})
    config: KoordpyConfiguration = field(default_factory=KoordpyConfiguration)
    loop: VirtualLoop | None = None
    """Whose thread it is, in virtual time."""

    def __call__(self, snapshot: Snapshot, only: frozenset[str], budget: PlanningBudget) -> RoundPlan:
        hold = (
            self.search_hold if budget.searches else self.hold
        )  # before it is said that the round has begun: a test that has waited for that may change it
        self.rounds.append(only)
        cache = self.caches[budget.searches]
        plan = plan_round(snapshot, self.config, only=only, planner_cache=cache, budget=self.hurried(budget))
        if self.loop is not None:
            self.loop.withhold = hold
        elif hold is not None:
            assert hold.wait(60)
        if self.failing(only):
            raise RuntimeError("on purpose")
        return self.beside(plan)

    def tried(self, unit: str) -> int:
        return sum(unit in only for only in self.rounds)


@dataclass
class Live:
    """One API server; `running()` starts a scheduler on it."""

    server: ApiServer
    planner: Planner = field(default_factory=Planner)
    ahead_seconds: float = 0.0
    """How far the schedulers' clocks are ahead: a test adds what it would else wait for."""

    def nodes(self, *manifests: dict[str, Any]) -> None:
        for manifest in manifests:
            self.server.store.create("nodes", manifest)

    def create(self, *manifests: dict[str, Any]) -> None:
        for manifest in manifests:
            plural = {"Pod": "pods", "PodGroup": "podgroups.scheduling.sigs.k8s.io", "Node": "nodes"}[manifest["kind"]]
            self.server.store.create(plural, manifest)

    def pod(self, name: str, **options: Any) -> None:
        self.create(pod(name, **{"gpus": 0, "cpu": "1", "memory": "1Gi", **options}))

    def delete(self, name: str) -> None:
        self.server.store.remove("pods", name, "default")

    def bind(self, name: str, to: str, annotations: dict[str, str] | None = None) -> None:
        """What another scheduler does; annotations: of its Binding."""
        resource = self.server.store.resource("pods")
        obj = self.server.store.get("pods", name, "default")
        notes = {**obj["metadata"].get("annotations", {}), **(annotations or {})}
        new = {**obj, "metadata": {**obj["metadata"], "annotations": notes}, "spec": {**obj["spec"], "nodeName": to}}
        self.server.store.replace(resource, ("default", name), new)

    def pods(self) -> dict[str, dict[str, Any]]:
        return {obj["metadata"]["name"]: obj for obj in self.server.store.list("pods")}

    def places(self) -> dict[str, str]:
        """Name -> node, of the bound pods."""
        return {name: obj["spec"]["nodeName"] for name, obj in self.pods().items() if obj["spec"].get("nodeName")}

    def bound(self, *names: str) -> bool:
        return set(names) <= set(self.places())

    def condition(self, name: str) -> dict[str, Any]:
        conditions = self.pods()[name].get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled"), {})

    def give_lease_to(self, holder: str) -> None:
        """What another candidate does who believes that the lease has run out; nobody: as its holder gives it back."""

        def change(obj: dict[str, Any]) -> dict[str, Any]:
            return {**obj, "spec": {**obj["spec"], "holderIdentity": holder}}

        self.server.store.update("leases.coordination.k8s.io", "koordpy", change, namespace="kube-system")

    def group(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.server.store.get("podgroups.scheduling.sigs.k8s.io", name, "default").get(
            "status", {}
        )
        return status

    def events(self) -> list[dict[str, Any]]:
        return self.server.store.list("events.events.k8s.io")

    def assert_no_node_is_overbooked(self) -> None:
        room = {obj["metadata"]["name"]: obj["status"]["allocatable"] for obj in self.server.store.list("nodes")}
        used: dict[tuple[str, str], int] = {}
        for obj in self.pods().values():
            if node_name := obj["spec"].get("nodeName"):
                for name, text in obj["spec"]["containers"][0]["resources"]["requests"].items():
                    if name in ("cpu", "nvidia.com/gpu"):
                        used[node_name, name] = used.get((node_name, name), 0) + int(text)
        over = {at: amount for at, amount in used.items() if at[0] in room and amount > int(room[at[0]].get(at[1], 0))}
        assert not over

    def is_known_to(self, scheduler: Scheduler, *plurals: str) -> bool:
        """Whether it has seen all that is stored of these resources."""
        feeds = scheduler.feeds.reflectors
        for plural in plurals:
            stored = {
                obj["metadata"]["uid"]: obj["metadata"]["resourceVersion"] for obj in self.server.store.list(plural)
            }
            if {uid: obj.metadata.resource_version for uid, obj in feeds[plural].objects.items()} != stored:
                return False
        return True

    async def at_rest(self, scheduler: Scheduler, *plurals: str) -> None:
        """Waits until it knows all that is stored of these resources and has nothing to do but wait."""

        def idle() -> bool:
            committer, queue = scheduler.committer, scheduler.queue
            # what was broadcast is heeded with the next poll
            return self.is_known_to(scheduler, *plurals) and not (
                committer.open
                or committer.waiting_for_claims
                or queue._wakes
                or any(one.state in _BUSY for one in queue.entries.values())
            )

        await until(idle)

    @asynccontextmanager
    async def running(
        self, settings: EngineSettings = QUICK, *, client: ApiClient | None = None, **changes: Any
    ) -> AsyncIterator[Scheduler]:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            own, clock, wall = client or Wire(self.server), loop.time, loop.wall
            self.planner.loop = loop
        else:
            own = client or ApiClient(ClusterAccess(self.server.url), qps=0, timeout_seconds=2.0)
            clock, wall = time.monotonic, time.time
        scheduler = Scheduler(
            own,
            self.planner,
            settings=tuned(settings, **changes),
            clock=lambda: clock() + self.ahead_seconds,
            wall_clock=lambda: wall() + self.ahead_seconds,
        )
        task = asyncio.create_task(scheduler.run())
        try:
            await asyncio.wait_for(scheduler.synced.wait(), 60)
            yield scheduler
        finally:
            for hold in (self.planner.hold, self.planner.search_hold):
                if hold is not None:
                    hold.set()
            scheduler.stop()
            await asyncio.wait_for(task, 60)
            await own.close()


@asynccontextmanager
async def live(nodes: Iterable[dict[str, Any]] = ()) -> AsyncIterator[Live]:
    virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    async with virtual_server(1) if virtual else FaultyServer() as server:
        cluster = Live(server)
        cluster.nodes(*nodes)
        yield cluster


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test whose time passes only when nobody has anything to do: what it sleeps for has come when it wakes."""

    @functools.wraps(test)
    def whole(*args: P.args, **options: P.kwargs) -> None:
        run(lambda loop: test(*args, **options), seed=1)

    return whole


def small(name: str, **options: Any) -> dict[str, Any]:
    """A node of 4 cores and 4 GPUs."""
    return node(name, **{"gpus": 4, "cpu": 4, "memory_gib": 64, **options})


__all__ = [
    "LONG_LEASE",
    "QUICK",
    "QUICK_LEASE",
    "Live",
    "Planner",
    "gang",
    "in_virtual_time",
    "live",
    "pod",
    "small",
    "until",
]
