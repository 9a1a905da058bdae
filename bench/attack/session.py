# SPDX-License-Identifier: Apache-2.0
"""The honest tenant, what is measured of him, and the hostile one's rights."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import orjson

from bench.attack import beside
from bench.live.cluster import NOBODY, LiveCluster
from bench.live.usage import cpu_seconds, usage_of
from bench.live.watching import PodWatch
from koordpy.api import keys
from koordpy.engine.forgetting import AGAIN
from koordpy.operator import heap
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
ORDINARY_PODS = 2000
"""That come and go before memory is measured, as many as hostile ones do."""
FORGOTTEN_S = (AGAIN + 2) * heap.PAUSE_SECONDS
"""So long after the last of many pods is gone all that is remembered of them has been let go."""
ONE_CPU = {"cpu": "1"}
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
JOBS = f"/apis/batch/v1/namespaces/{EVIL}/jobs"
SERVING = re.compile(r"health checks and metrics are served on port (\d+)")


@dataclass(frozen=True)
class Mark:
    """What koordpy has used until now: of a core, of memory, of its log."""

    at: float
    cpu: float
    resident: int
    logged: int


@dataclass
class Times:
    """Of a pod of the honest tenant by the server's clock, seconds since the epoch; 0 where it has not come to that."""

    made: float = 0.0
    sent: float = 0.0
    """When the server was sent its Binding."""
    bound: float = 0.0

    @property
    def until_sent(self) -> float:
        return self.sent - self.made if self.sent else GIVE_UP_S

    @property
    def until_bound(self) -> float:
        return self.bound - self.made if self.bound else GIVE_UP_S


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
    _times: dict[str, Times] = field(default_factory=lambda: defaultdict(Times))
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
        command: list[str | Path] = [sys.executable, "-m", "bench.attack.beside", self.plane.url, self.plane.ca]
        log, token = self.cluster.folder / "beside.log", {beside.TOKEN: self.plane.admin_token}
        with Process("the bare client", command, log=log, env=token) as client:
            async with self._tenants():
                yield self
            client.must_run()

    @contextlib.asynccontextmanager
    async def _tenants(self) -> AsyncIterator[None]:
        async with self.plane.client() as evil, PodWatch(self.cluster.api).running() as watch:
            evil.http.headers["Impersonate-User"] = EVIL
            self.evil, self._watch = evil, watch
            self.port = int(await eventually(self._serves, what="koordpy serves", within_s=30))
            yield

    async def _make_honest(self, api: Client) -> None:
        """A gang whose members come one by one, and the tenant's quota, which administrators keep."""
        await api.create(f"{SIGS}/{HONEST}/podgroups", _group("train", 1))
        room = {"max": {"cpu": "4000"}, "min": {"cpu": "400"}}
        meta = {"name": "teamx", "annotations": {keys.QUOTA_NAMESPACES: text([HONEST])}}
        head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota"}
        quota = {**head, "metadata": meta, "spec": room}
        await api.create(f"{SIGS}/{QUOTAS}/elasticquotas", quota)

    def _serves(self) -> str:
        found = SERVING.search(self.process.log.read_text())
        return found[1] if found else ""

    # -- the honest tenant --------------------------------------------------------------------------------------------

    async def _pod(self) -> int:
        """Makes a pod of one CPU, in turns alone, in the gang, in the quota, and one that a bare client binds; its
        number, when both are bound or have waited too long."""
        self._number += 1
        number = self._number
        labels = [{}, {keys.LABEL_POD_GROUP: "train"}, {keys.QUOTA_NAME: "teamx"}][number % 3]
        await asyncio.gather(
            self._until_bound(f"pod-{number}", keys.DEFAULT_SCHEDULER_NAME, labels),
            self._until_bound(f"{beside.STEM}{number}", NOBODY, {}),
        )
        return number

    async def _until_bound(self, name: str, scheduler: str, labels: Json, requests: Json = ONE_CPU) -> None:
        manifest = pod_manifest(name, scheduler=scheduler, requests=requests, labels=labels)
        made = await self.cluster.api.create(pods_path(HONEST), manifest)
        uid, watch = made["metadata"]["uid"], self._watch
        await watch.until(lambda: uid in watch.bound_at, within_s=GIVE_UP_S)

    async def _pods(self, count: int, enough: Callable[[], bool] = lambda: True) -> list[int]:
        """A pod a second, so many and more until it is enough."""
        waits: list[asyncio.Task[int]] = []
        async with asyncio.TaskGroup() as group:
            while len(waits) < count or not enough():
                waits.append(group.create_task(self._pod()))
                await asyncio.sleep(1.0)
        return [wait.result() for wait in waits]

    def _timed(self, numbers: Sequence[int]) -> list[tuple[Times, Times]]:
        """Of the pods of these numbers, and of those beside them that the bare client bound."""
        with self.plane.audit.open() as log:
            log.seek(self._read)
            for line in iter(log.readline, ""):
                event = orjson.loads(line)
                times = self._times[event["objectRef"].get("name", "")]
                if event["objectRef"].get("subresource") != "binding":
                    times.made = _seconds(event["stageTimestamp"])
                elif not times.sent:
                    times.sent = _seconds(event["requestReceivedTimestamp"])
                    times.bound = _seconds(event["stageTimestamp"])
            self._read = log.tell()
        return [(self._times[f"pod-{number}"], self._times[f"{beside.STEM}{number}"]) for number in numbers]

    async def _use(self) -> None:
        """Has koordpy load what every scheduler needs sooner or later: the solver, for a gang of two kinds of pods, and
        what renders metrics."""
        await self.cluster.api.create(f"{SIGS}/{HONEST}/podgroups", _group("mixed", 4))
        labels = {keys.LABEL_POD_GROUP: "mixed"}
        own = [{"cpu": "1"}, {"cpu": "2"}] * 2
        await asyncio.gather(
            *(self._until_bound(f"mixed-{i}", keys.DEFAULT_SCHEDULER_NAME, labels, one) for i, one in enumerate(own))
        )
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
            await answer.read()

    async def calm(self) -> None:
        """What a Binding takes, and how much memory koordpy has, while nobody attacks."""
        await self._use()
        await self._pods(3)
        mark = self._mark()
        waits = await self._pods(CALM_PODS)
        fresh = self._resident() >> 20
        self._calm = max(pod.until_bound for pod, _ in self._timed(waits))
        print(f"{'':<14}{'bound within':>17}{'sent a bare':>9}{'own part':>16}")
        heads = "".join(f"{head:>9}" for head in ("worst", "client's", "median", "worst", "bar"))
        print(f"{'attack':<14}{'median':>8}{heads}{'core':>7}{'memory':>17}{'log':>10}")
        self._row("(calm)", waits, mark)
        await self._ordinary()
        print(f"(memory {fresh} MB, {self._before >> 20} MB when {ORDINARY_PODS} ordinary pods have come and gone)")

    async def _ordinary(self) -> None:
        """As many pods as hostile ones come, are bound and go."""
        api, watch, uids = self.cluster.api, self._watch, set[str]()

        async def make(i: int) -> None:
            manifest = pod_manifest(f"plain-{i}", scheduler=keys.DEFAULT_SCHEDULER_NAME, requests=ONE_CPU)
            uids.add((await api.create(pods_path(HONEST), manifest))["metadata"]["uid"])

        await api.each(range(ORDINARY_PODS), make)
        await watch.until(lambda: uids <= watch.bound_at.keys(), within_s=60.0)
        await api.each(range(ORDINARY_PODS), lambda i: self._end(f"plain-{i}"))
        await asyncio.sleep(FORGOTTEN_S)
        self._before = self._resident()

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

    def _row(self, name: str, numbers: Sequence[int], before: Mark) -> None:
        timed = self._timed(numbers)
        whole, alone = [pod.until_bound for pod, _ in timed], [own.until_sent for _, own in timed]
        parts = [max(0.0, pod.until_sent - own.until_sent) for pod, own in timed]
        bar = max(BAR * self._calm, max(alone))
        broken = max(parts) > bar
        self.broken += broken
        memory = f"{before.resident >> 20} to {self._resident() >> 20} MB"
        now = self._mark()
        busy = (now.cpu - before.cpu) / (now.at - before.at)
        lines = (now.logged - before.logged) >> 10
        times = "".join(f"{each:>8.3f}s" for each in (max(whole), max(alone), median(parts), max(parts), bar))
        line = f"{name:<14}{median(whole):>7.3f}s{times}{busy:>7.0%}{memory:>17}{lines:>7} kB"
        print(f"{line}{'   BROKEN' if broken else ''}", flush=True)

    async def memory(self) -> None:
        """Whether what the attacks took came back, once koordpy has given back what it does now and then."""
        await asyncio.sleep(FORGOTTEN_S)
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
        for kind in (*KINDS, CLAIMS, JOBS):
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
        await self.evil.create(KINDS[1], _group(name, least, notes))

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


def _group(name: str, least: int, notes: Json | None = None) -> Json:
    meta = {"name": name, "annotations": notes or {}}
    head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
    return {**head, "spec": {"minMember": least}}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def text(value: object) -> str:
    """JSON as an annotation holds it."""
    return orjson.dumps(value).decode()
