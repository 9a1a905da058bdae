"""Random schedules where important work takes the room of less important work, in bad weather.

Watched at every write: no GPU is named by two pods, no node holds more than it has, nobody is evicted without somebody
waiting for the room who could not have gone elsewhere. At the end nothing waits that fits,
no nomination is left over, and a gang that is half bound says so.
"""

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

from msgspec import convert

from koordpy.api import keys
from koordpy.api.custom import Device, ElasticQuota
from koordpy.api.groups import PodGroup
from koordpy.api.objects import Node, Pod, PodDisruptionBudget
from koordpy.cluster.state import ClusterState
from koordpy.engine.evictor import EvictionPlan
from koordpy.engine.queue import State
from koordpy.engine.scheduler import Scheduler
from koordpy.planning.plan import RoundPlan
from koordpy.planning.round import plan_round
from koordpy.sim.shelf import Change
from tests.engine.live import Live, gang, small, until

GPU = "nvidia.com/gpu"
GROUPS, DEVICES = "podgroups.scheduling.sigs.k8s.io", "devices.scheduling.koordinator.sh"
QUOTAS, BUDGETS = "elasticquotas.scheduling.sigs.k8s.io", "poddisruptionbudgets.policy"
KINDS: dict[str, Any] = {
    "nodes": Node,
    DEVICES: Device,
    QUOTAS: ElasticQuota,
    BUDGETS: PodDisruptionBudget,
    GROUPS: PodGroup,
    "pods": Pod,
}
ROUTES = (
    ("POST", "*/binding"),
    ("POST", "*/eviction"),
    ("DELETE", "*/pods/*"),
    ("DELETE", "*/pods/*"),
    ("PATCH", "*/pods/*/status"),
    ("PATCH", "*/pods/*/status"),
    ("PATCH", "*/podgroups/*"),
    ("GET", "/api/v1/namespaces/*/pods/*"),
)
NODES = ("n1", "n2", "n3")
GPUS_A_NODE = 4
CLASSES = {"middle": 100, "high": 1000}
FRESH_SECONDS = 1.0
"""Room that came this lately may be unknown to a plan that is being carried out."""


def device(name: str) -> dict[str, Any]:
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


def minors(obj: dict[str, Any]) -> list[int]:
    """The GPUs written on a pod."""
    text = obj["metadata"].get("annotations", {}).get(keys.GPU_ALLOCATION)
    lists = json.loads(text)["allocatedGPUs"].values() if text else ()
    return [int(one) for each in lists for one in each]


def gpus_of(obj: dict[str, Any]) -> int:
    return int(obj["spec"]["containers"][0]["resources"]["requests"].get(GPU, 0))


def live_on_node(obj: dict[str, Any]) -> bool:
    return bool(obj["spec"].get("nodeName")) and obj.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def nominated_node(obj: dict[str, Any]) -> str:
    return "" if obj["spec"].get("nodeName") else obj.get("status", {}).get("nominatedNodeName") or ""


@dataclass
class _Plan:
    """What a unit evicted, and for whom: uids."""

    unit: str
    members: frozenset[str]
    victims: dict[str, str]


@dataclass
class EvictionStorm:
    """One schedule."""

    cluster: Live
    dice: random.Random
    seen: dict[str, str] = field(default_factory=dict)
    made: int = 0
    evicted: int = 0
    faults: list[str] = field(default_factory=list)
    """What was seen that must never be."""
    _ours: bool = False
    """Whether the write under way is a user's or a kubelet's."""
    _room_came: float = 0.0
    _waiter_left: float = 0.0
    _plans: list[_Plan] = field(default_factory=list)

    def prepare(self) -> None:
        store = self.cluster.server.store
        for name, value in CLASSES.items():
            meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            store.create("priorityclasses.scheduling.k8s.io", {**meta, "value": value})
        self.cluster.nodes(*(small(name, gpus=GPUS_A_NODE) for name in NODES))
        for name in NODES:
            store.create(DEVICES, device(name))
        if self.dice.random() < 0.5:
            for name, least in (("a", 8), ("b", 4)):
                spec = {"min": {GPU: str(least)}, "max": {GPU: "12"}}
                meta = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota"}
                store.create(QUOTAS, {**meta, "metadata": {"name": name, "namespace": "default"}, "spec": spec})
        if self.dice.random() < 0.4:
            spec = {"minAvailable": 2, "selector": {"matchLabels": {"guarded": "yes"}}}
            meta = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
            store.create(BUDGETS, {**meta, "metadata": {"name": "some", "namespace": "default"}, "spec": spec})
        store.listeners.append(self._written)

    # -- what happens -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _by_others(self) -> Any:
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def weather(self) -> None:
        faults, dice = self.cluster.server.faults, self.dice
        faults.seed(dice.randrange(1 << 30))
        for _ in range(dice.randrange(1, 5)):
            method, path = dice.choice(ROUTES)
            effect: Any = dice.choice([429, 500, 500, 503, 504, 409, "drop"])
            after = effect in (500, 504, "drop") and dice.random() < 0.5
            if effect == 409 and method == "GET":
                effect = 503
            faults.fail(
                effect, method=method, path=path, share=dice.choice([0.1, 0.3, 0.6]), after=after, retry_after=0
            )

    def _dressed(self, manifest: dict[str, Any], rank: str, quota: str) -> dict[str, Any]:
        spec, labels = manifest["spec"], manifest["metadata"].setdefault("labels", {})
        if rank:
            spec["priorityClassName"] = rank
        if quota and self.cluster.server.store.list(QUOTAS):
            labels[keys.QUOTA_NAME] = quota
        if self.dice.random() < 0.2:
            labels["guarded"] = "yes"
        spec["terminationGracePeriodSeconds"] = self.dice.choice([0, 1, 30])
        return manifest

    def act(self) -> None:
        """One thing that users or the network do."""
        dice, cluster = self.dice, self.cluster
        self.made += 1
        rank, quota = dice.choice(["", "", "middle", "high"]), dice.choice(["", "a", "b"])
        with self._by_others():
            match dice.choices(["pod", "gang", "delete", "again", "watch"], (6, 4, 3, 1, 1))[0]:
                case "pod":
                    (pod,) = (one for one in gang(f"p{self.made}", 1, gpus=dice.choice([1, 1, 2, 4]))[1:])
                    pod["metadata"].get("labels", {}).clear()
                    cluster.create(self._dressed(pod, rank, quota))
                case "gang":
                    members = dice.randrange(2, 5)
                    least = dice.choice([members, members, members - 1])
                    group, *pods = gang(f"g{self.made}", members, min_member=least, gpus=dice.choice([1, 2]))
                    cluster.create(group, *(self._dressed(pod, rank, quota) for pod in pods))
                case "delete":
                    if names := sorted(cluster.pods()):
                        cluster.delete(dice.choice(names))
                case "again":
                    # a controller makes the pod anew under its name
                    if names := sorted(cluster.pods()):
                        old = cluster.pods()[dice.choice(names)]
                        cluster.delete(old["metadata"]["name"])
                        meta = {k: v for k, v in old["metadata"].items() if k in ("name", "namespace", "labels")}
                        spec = {k: v for k, v in old["spec"].items() if k not in ("nodeName", "priority")}
                        cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
                case "watch":
                    if dice.random() < 0.5:
                        cluster.server.faults.expire_versions()
                    cluster.server.faults.drop_watches(abort=dice.random() < 0.5)

    async def rage(self, steps: int) -> None:
        """Weather and acts, one after the other."""
        self.weather()
        for _ in range(steps):
            self.act()
            await asyncio.sleep(self.dice.random() * 0.03)

    async def kubelets(self) -> None:
        """Pods on nodes run; those that are deleted take their time to end."""
        due: dict[str, float] = {}
        dice = random.Random(self.dice.randrange(1 << 30))
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            for name, obj in self.cluster.pods().items():
                uid = obj["metadata"]["uid"]
                if obj["metadata"].get("deletionTimestamp"):
                    if now >= due.setdefault(uid, now + dice.choice([0.0, 0.05, 0.3])):
                        with self._by_others():
                            self.cluster.delete(name)
                elif obj["spec"].get("nodeName") and obj.get("status", {}).get("phase") == "Pending":
                    with self._by_others():
                        self._start(name)

    def _start(self, name: str) -> None:
        def running(old: dict[str, Any]) -> dict[str, Any]:
            ready = {"type": "Ready", "status": "True"}
            kept = [c for c in old["status"].get("conditions", []) if c["type"] != "Ready"]
            return {**old, "status": {**old["status"], "phase": "Running", "conditions": [*kept, ready]}}

        self.cluster.server.store.update("pods", name, running, namespace="default", status=True)

    # -- at every write -----------------------------------------------------------------------------------------------

    def _written(self, shelf: str, change: Change) -> None:
        if shelf != "pods":
            return
        obj, before = change.entry.obj, change.before.obj if change.before is not None else None
        now = time.monotonic()
        fresh = now - self._room_came < FRESH_SECONDS
        if before is not None and nominated_node(before) and (change.kind == "DELETED" or not nominated_node(obj)):
            self._waiter_left = now
        if change.kind == "DELETED" or (before is not None and nominated_node(before) and not nominated_node(obj)):
            self._room_came = time.monotonic()
            if change.kind == "DELETED":
                if not self._ours:
                    self._check_eviction(obj, fresh=fresh)
                return
        if node := obj["spec"].get("nodeName"):
            if self.seen.setdefault(obj["metadata"]["uid"], node) != node:
                self.faults.append(f"{obj['metadata']['name']} changed its node")
            if before is not None and not before["spec"].get("nodeName"):
                self._check_node(node)
                if len(minors(obj)) != gpus_of(obj):
                    self.faults.append(f"{obj['metadata']['name']} is bound to {node} without its GPUs: {minors(obj)}")
        ends = before is not None and obj["metadata"].get("deletionTimestamp")
        if ends and before is not None and not before["metadata"].get("deletionTimestamp") and not self._ours:
            self._check_eviction(obj, fresh=fresh)

    def _check_node(self, node: str) -> None:
        there = [obj for obj in self.cluster.pods().values() if live_on_node(obj) and obj["spec"]["nodeName"] == node]
        named = [minor for obj in there for minor in minors(obj)]
        if len(named) != len(set(named)):
            told = {obj["metadata"]["name"]: minors(obj) for obj in there}
            self.faults.append(f"a GPU of {node} is given out twice: {told}")
        if sum(map(gpus_of, there)) > GPUS_A_NODE:
            self.faults.append(f"{node} is overbooked: {sorted(obj['metadata']['name'] for obj in there)}")

    def _check_eviction(self, victim: dict[str, Any], *, fresh: bool) -> None:
        """Whoever is evicted goes for somebody who waits, and who has no room without."""
        self.evicted += 1
        name = victim["metadata"]["name"]
        waiting = {key: obj for key, obj in self.cluster.pods().items() if nominated_node(obj)}
        if not waiting and time.monotonic() - self._waiter_left > FRESH_SECONDS:
            self.faults.append(f"{name} is evicted for nobody")
            return
        if fresh:
            return
        for placed in self.plan_afresh(evict=False, still_there=victim).placements:
            if placed.pod_key.partition("/")[2] in waiting:
                self.faults.append(f"{name} is evicted, and {placed.pod_key} fits without")

    def listen(self, scheduler: Scheduler) -> None:
        """Hears of every plan with victims that a scheduler begins."""
        evictor = scheduler.evictor
        assert evictor is not None
        submit = evictor.submit

        def heard(plan: EvictionPlan, done: Any) -> None:
            begun = self._begun(plan)

            def ended(plan: EvictionPlan, why: str) -> None:
                if why:
                    # dropped: the unit begins anew
                    self._plans.remove(begun)
                done(plan, why)

            submit(plan, ended)

        evictor.submit = heard  # type: ignore[method-assign]

    def _begun(self, plan: EvictionPlan) -> _Plan:
        there = {obj["metadata"]["uid"]: obj for obj in self.cluster.pods().values()}
        members = frozenset(one.uid for one in plan.nominations)
        for old in self._plans:
            kept = all(uid in there and nominated_node(there[uid]) for uid in old.members)
            gone = {uid for uid, obj in there.items() if obj["metadata"].get("deletionTimestamp")}
            ending = [name for uid, name in old.victims.items() if uid in gone]
            new = [victim.pod_key for victim in plan.evictions if victim.uid not in old.victims]
            if old.unit == plan.unit and old.members == members and kept and ending and new:
                self.faults.append(f"{plan.unit} takes {new} while {ending} are ending for it")
        victims = {victim.uid: victim.pod_key for victim in plan.evictions}
        begun = _Plan(plan.unit, members, victims)
        self._plans.append(begun)
        return begun

    # -- at the end ---------------------------------------------------------------------------------------------------

    async def settled(self, scheduler: Scheduler) -> None:
        """Waits until the scheduler has nothing to do but wait."""
        busy = (State.ACTIVE, State.BACKOFF, State.IN_FLIGHT)

        def idle() -> bool:
            evictor = scheduler.evictor
            return not (
                scheduler.committer.open
                or scheduler.committer.aside
                or (evictor is not None and evictor.open)
                or any(entry.state in busy for entry in scheduler.queue.entries())
                or any(
                    nominated_node(obj) or obj["metadata"].get("deletionTimestamp")
                    for obj in self.cluster.pods().values()
                )
            )

        quiet = 0
        while quiet < 4:
            await until(lambda: self._is_known(scheduler), 20)
            await until(idle, 20)
            await asyncio.sleep(0.1)
            quiet = quiet + 1 if idle() and self._is_known(scheduler) else 0

    def _is_known(self, scheduler: Scheduler) -> bool:
        feeds = scheduler.feeds.reflectors()
        for plural in ("pods", GROUPS):
            there = {
                obj["metadata"]["uid"]: obj["metadata"]["resourceVersion"]
                for obj in self.cluster.server.store.list(plural)
            }
            if {uid: obj.metadata.resource_version for uid, obj in feeds[plural].objects.items()} != there:
                return False
        return True

    def plan_afresh(self, *, evict: bool, still_there: dict[str, Any] | None = None) -> RoundPlan:
        """What a planner does that knows nothing but the API server's objects; still_there: a pod beside them."""
        state = ClusterState(storage=True, devices=True)
        for plural, kind in KINDS.items():
            for obj in self.cluster.server.store.list(plural):
                state.upsert(convert(obj, kind, strict=False))
        if still_there is not None:
            state.upsert(convert(still_there, Pod, strict=False))
        return plan_round(state.snapshot(time.time()), evict=evict)

    def check(self) -> None:
        """Everything that must hold once all is quiet."""
        assert not self.faults, "; ".join(self.faults)
        for name in NODES:
            self._check_node(name)
        assert not self.faults, "; ".join(self.faults)
        left = {name: nominated_node(obj) for name, obj in self.cluster.pods().items() if nominated_node(obj)}
        assert not left, f"nominations are left over: {left}"
        plan = self.plan_afresh(evict=True)
        assert plan.placements == (), f"something is pending that fits: {plan.placements}"
        assert plan.evictions == (), f"something waits that may make its room: {plan.evictions}"
        self._check_gangs()

    def _check_gangs(self) -> None:
        for group in self.cluster.server.store.list(GROUPS):
            name, need = group["metadata"]["name"], group["spec"]["minMember"]
            bound = [key for key in self.cluster.places() if key.startswith(f"{name}-")]
            if 0 < len(bound) < need:
                said = {condition["type"] for condition in self.cluster.group(name).get("conditions", [])}
                assert "Scheduled" in said, f"half bound {name} says nothing"


async def through_an_eviction_storm(cluster: Live, seed: int) -> EvictionStorm:
    """Runs one schedule and checks its end."""
    dice = random.Random(seed)
    storm = EvictionStorm(cluster, dice)
    storm.prepare()
    kubelets = asyncio.create_task(storm.kubelets())
    try:
        for _ in range(dice.choice([0, 1, 1])):
            async with cluster.running() as first:
                first.binder._settle_seconds = 0.05
                storm.listen(first)
                await storm.rage(dice.randrange(5, 15))
                # it dies: whatever it has begun stays as it is
                first.leading.clear()
        async with cluster.running() as scheduler:
            scheduler.binder._settle_seconds = 0.05
            storm.listen(scheduler)
            await storm.rage(dice.randrange(10, 25))
            cluster.server.faults.clear()
            with contextlib.suppress(TimeoutError):
                await storm.settled(scheduler)
            storm.check()
    finally:
        kubelets.cancel()
        await asyncio.gather(kubelets, return_exceptions=True)
    return storm
