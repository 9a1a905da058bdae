"""The honest tenant, what is measured of him, and the hostile one's rights."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any

import orjson

from bench.live.cluster import NOBODY, LiveCluster, node_name
from bench.live.usage import cpu_seconds, usage_of
from bench.live.watching import PodWatch
from koordpy.api import keys
from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually

Json = dict[str, Any]
HONEST, EVIL, QUOTAS = "honest", "evil", "quotas"
SIGS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BAR = 10.0
"""Times the calm latency."""
MEMORY_BAR = 1.1
"""Times the memory of before, when everything is gone."""
CALM_PODS = 10
PODS_AN_ATTACK = 3
GIVE_UP_S = 10.0
LASTING_S = 20.0
"""An attack makes nothing more after so long."""
TENANT_RIGHTS = (
    ("", ("pods", "persistentvolumeclaims")),
    ("batch", ("jobs",)),
    ("scheduling.sigs.k8s.io", ("podgroups", "elasticquotas")),
)
"""What tenants may make in their namespace; quotas in some clusters only."""
KINDS = (pods_path(EVIL), f"{SIGS}/{EVIL}/podgroups", f"{SIGS}/{EVIL}/elasticquotas")
CLAIMS = f"/api/v1/namespaces/{EVIL}/persistentvolumeclaims"
SERVING = re.compile(r"health and metrics on port (\d+)")


@dataclass(frozen=True)
class Mark:
    """What koordpy has used until now: of a core, of memory, of its log."""

    at: float
    cpu: float
    resident: int
    logged: int


@dataclass(frozen=True)
class Wait:
    """How long a pod of the honest tenant took."""

    name: str
    whole: float
    """Seconds until its Binding was seen."""
    alone: float
    """Of a pod beside it that this client bound: what the server and this client take by themselves."""


@dataclass
class Arena:
    """A cluster with koordpy, an honest tenant and a hostile one. broken: bars that were broken so far."""

    cluster: LiveCluster
    process: Process
    broken: int = 0
    evil: Client = field(init=False)
    """With the hostile tenant's own credentials."""
    port: int = 0
    """Of koordpy's health and metrics."""
    _watch: PodWatch = field(init=False)
    _calm: float = 0.0
    _before: int = 0
    _number: int = 0
    _until: float = 0.0
    """When the attack ends."""
    _made: dict[str, float] = field(default_factory=dict)
    """Pod of the honest tenant -> when the server had made it, seconds since the epoch."""
    _shares: dict[str, float] = field(default_factory=dict)
    """The same -> seconds from then until koordpy's Binding reached the server."""
    _read: int = 0
    """Bytes read of the audit log."""

    @property
    def plane(self) -> ControlPlane:
        """With its audit log."""
        assert isinstance(self.cluster.plane, ControlPlane)
        return self.cluster.plane

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Arena]:
        """Makes the two tenants, and waits for koordpy."""
        api = self.cluster.api
        for name in (HONEST, EVIL, QUOTAS):
            await api.make_namespace(name)
        rules = [{"apiGroups": [group], "resources": list(kinds), "verbs": ["*"]} for group, kinds in TENANT_RIGHTS]
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "tenant"}}
        await api.create(f"{RBAC}/namespaces/{EVIL}/roles", {**role, "kind": "Role", "rules": rules})
        bound = {
            "kind": "RoleBinding",
            "subjects": [{"kind": "User", "name": EVIL, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"},
        }
        await api.create(f"{RBAC}/namespaces/{EVIL}/rolebindings", {**role, **bound})
        await self._make_honest(api)
        async with self.plane.client() as evil, PodWatch(api).running() as watch:
            evil.http.headers["Impersonate-User"] = EVIL
            self.evil, self._watch = evil, watch
            self.port = int(await eventually(self._serves, what="koordpy serves", within_s=30))
            yield self

    async def _make_honest(self, api: Client) -> None:
        """A gang whose members come one by one, and the tenant's quota, which administrators keep."""
        group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "metadata": {"name": "train"}}
        await api.create(f"{SIGS}/{HONEST}/podgroups", {**group, "kind": "PodGroup", "spec": {"minMember": 1}})
        room = {"max": {"cpu": "4000"}, "min": {"cpu": "400"}}
        meta = {"name": "teamx", "annotations": {keys.QUOTA_NAMESPACES: text([HONEST])}}
        quota = {**group, "kind": "ElasticQuota", "metadata": meta, "spec": room}
        await api.create(f"{SIGS}/{QUOTAS}/elasticquotas", quota)

    def _serves(self) -> str:
        found = SERVING.search(self.process.log.read_text())
        return found[1] if found else ""

    # -- the honest tenant --------------------------------------------------------------------------------------------

    async def _pod(self) -> Wait:
        """Makes a pod of one CPU, in turns alone, in the gang, in the quota, and beside it one that we bind."""
        self._number += 1
        name = f"pod-{self._number}"
        labels = [{}, {keys.LABEL_POD_GROUP: "train"}, {keys.QUOTA_NAME: "teamx"}][self._number % 3]
        whole, alone = await asyncio.gather(
            self._until_bound(name, keys.DEFAULT_SCHEDULER_NAME, labels),
            self._until_bound(f"own-{self._number}", NOBODY, {}),
        )
        return Wait(name, whole, alone)

    async def _until_bound(self, name: str, scheduler: str, labels: Json) -> float:
        manifest = pod_manifest(name, scheduler=scheduler, requests={"cpu": "1"}, labels=labels)
        made = await self.cluster.api.create(pods_path(HONEST), manifest)
        uid, created, watch = made["metadata"]["uid"], time.monotonic(), self._watch
        if scheduler == NOBODY:
            await watch.until(lambda: uid in watch.pods, within_s=GIVE_UP_S)
            await self.cluster.api.bind(made, node_name(0))
        await watch.until(lambda: uid in watch.bound_at, within_s=GIVE_UP_S)
        return max(0.0, watch.bound_at.get(uid, created + GIVE_UP_S) - created)

    async def _pods(self, count: int, enough: Callable[[], bool] = lambda: True) -> list[Wait]:
        """A pod a second, so many and more until it is enough."""
        waits: list[asyncio.Task[Wait]] = []
        async with asyncio.TaskGroup() as group:
            while len(waits) < count or not enough():
                waits.append(group.create_task(self._pod()))
                await asyncio.sleep(1.0)
        return [wait.result() for wait in waits]

    def _share(self, wait: Wait) -> float:
        """koordpy's own part of a pod's time, by the server's clock: from when it had made the pod until it was sent
        the Binding. What the server takes to tell of the pod is in it."""
        with self.plane.audit.open() as log:
            log.seek(self._read)
            for line in iter(log.readline, ""):
                event = orjson.loads(line)
                about = event["objectRef"]
                if about.get("subresource") != "binding":
                    self._made[about.get("name", "")] = _seconds(event["stageTimestamp"])
                elif (name := about["name"]) in self._made:
                    self._shares.setdefault(name, _seconds(event["requestReceivedTimestamp"]) - self._made[name])
            self._read = log.tell()
        return max(0.0, self._shares.get(wait.name, GIVE_UP_S))

    async def calm(self) -> None:
        """What a Binding takes, and how much memory koordpy has, while nobody attacks."""
        await self._pods(3)
        mark = self._mark()
        waits = await self._pods(CALM_PODS)
        self._before = self._resident()
        self._calm = max(wait.whole for wait in waits)
        print(
            f"{'attack':<14}{'bind':>8}{'worst':>9}{'own':>9}{'bar':>9}{'server':>9}{'core':>8}{'memory':>17}{'log':>10}"
        )
        self._row("(calm)", waits, mark)

    # -- the hostile one ----------------------------------------------------------------------------------------------

    async def attack(self, name: str, attacks: Sequence[Attack]) -> None:
        """Attacks while the honest tenant goes on, then takes all that was made away."""
        mark = self._mark()
        self._until = time.monotonic() + LASTING_S
        running = [asyncio.create_task(self._one(attack)) for attack in attacks]
        last = asyncio.create_task(asyncio.wait(running))
        waits = await self._pods(PODS_AN_ATTACK, last.done)
        waits += await self._pods(1)
        for task in running:
            task.result()
        await self._clean()
        self._row(name, waits, mark)

    async def _one(self, attack: Attack) -> None:
        try:
            await attack(self)
        except* Refused:
            pass  # by a policy: that was it

    def _row(self, name: str, waits: Sequence[Wait], before: Mark) -> None:
        shares, whole = [self._share(wait) for wait in waits], [wait.whole for wait in waits]
        bar = BAR * self._calm
        broken = max(shares) > bar
        self.broken += broken
        memory = f"{before.resident >> 20} to {self._resident() >> 20} MB"
        now = self._mark()
        busy = (now.cpu - before.cpu) / (now.at - before.at)
        lines = (now.logged - before.logged) >> 10
        alone = max(wait.alone for wait in waits)
        times = "".join(f"{each:>8.3f}s" for each in (max(whole), max(shares), bar, alone))
        line = f"{name:<14}{median(whole):>7.3f}s{times}{busy:>8.0%}{memory:>17}{lines:>7} kB"
        print(f"{line}{'   BROKEN' if broken else ''}", flush=True)

    async def memory(self) -> None:
        """Whether what the attacks took came back."""
        mark = replace(self._mark(), resident=self._before)
        self._row("(after)", await self._pods(3), mark)
        if self._resident() > MEMORY_BAR * self._before:
            self.broken += 1
            print(f"memory stayed: more than {MEMORY_BAR} times that of before   BROKEN")

    def _mark(self) -> Mark:
        pid = self.process.pid
        return Mark(time.monotonic(), cpu_seconds(pid), self._resident(), self.process.log.stat().st_size)

    def _resident(self) -> int:
        return usage_of(self.process.pid).resident_bytes

    async def _clean(self) -> None:
        api = self.cluster.api
        for kind in (*KINDS, CLAIMS):
            items = await api.items(kind)

            async def remove(one: Json, kind: str = kind) -> None:
                path = f"{kind}/{one['metadata']['name']}"
                if one["metadata"].get("finalizers"):
                    await api.patch(path, {"metadata": {"finalizers": None}})
                await api.delete(path)

            await api.each(items, remove)
        await api.each(await api.items(pods_path(HONEST)), lambda pod: self._end(pod["metadata"]["name"]))

    async def _end(self, name: str) -> None:
        await self.cluster.api.delete(f"{pods_path(HONEST)}/{name}")

    # -- what attacks use ---------------------------------------------------------------------------------------------

    async def many(self, count: int, make: Callable[[int], Awaitable[object]]) -> None:
        """Makes so many, and no more when the time of the attack is over."""
        numbers = (number for number in range(count) if time.monotonic() < self._until)
        await self.evil.each(numbers, make, in_flight=16)

    async def group(self, name: str, *, least: int = 1, notes: Json | None = None) -> None:
        """Makes a PodGroup of the hostile tenant."""
        meta = {"name": name, "annotations": notes or {}}
        body = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
        await self.evil.create(KINDS[1], {**body, "spec": {"minMember": least}})

    async def rewrite(self, name: str, notes: Json) -> None:
        """Changes annotations of one of his PodGroups."""
        await self.evil.patch(f"{KINDS[1]}/{name}", {"metadata": {"annotations": notes}})

    async def pod(self, name: str, **own: Any) -> None:
        """Makes a pod of the hostile tenant; own: arguments of pod_manifest."""
        await self.evil.create(KINDS[0], pod_manifest(name, scheduler=keys.DEFAULT_SCHEDULER_NAME, **own))

    async def member(self, gang: str, number: int = 0, **own: Any) -> None:
        """Makes a pod of one of his gangs that fits nowhere."""
        own = {"requests": {"cpu": "500"}, **own, "labels": {keys.LABEL_POD_GROUP: gang}}
        await self.pod(f"{gang}-{number}", **own)

    async def quota(self, name: str, *, notes: Json | None = None, labels: Json | None = None, **spec: Any) -> None:
        """Makes an ElasticQuota of the hostile tenant."""
        meta = {"name": name, "annotations": notes or {}, "labels": labels or {}}
        body = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": meta}
        await self.evil.create(KINDS[2], {**body, "spec": spec})


Attack = Callable[[Arena], Awaitable[None]]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def text(value: object) -> str:
    """JSON as an annotation holds it."""
    return orjson.dumps(value).decode()
