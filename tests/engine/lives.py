# SPDX-License-Identifier: Apache-2.0
"""Random lives of gangs in virtual time: their pods succeed, fail, are deleted, are made again and scaled.

Jobs, kubelets and people are played here; the scheduler, its client and the API server are the real ones. What must be
true in the end is computed from what was played alone, not from the scheduler's state: whoever could run by the rules
runs, nobody was evicted, no run began without its minimum, and each PodGroup says what is.

`python -m tests.engine.lives --seeds 0-2000` runs many; one that fails is told by its seed, which repeats it.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from koordpy.api import keys
from koordpy.apiserver.status_errors import StatusError
from koordpy.engine.scheduler import Scheduler
from tests.engine.live import Live, pod, small
from tests.engine.manifests import GROUPS, Manifest
from tests.engine.replica import Replica
from tests.engine.virtual import VirtualLoop, Wire, one_after_the_other, run, virtual_server

NODES = ("n1", "n2", "n3")
SLOTS = 2
"""Members a node has room for."""
ACTS = {
    "succeed": 5.0, "fail": 3.0, "clean": 3.0, "delete": 2.0, "drain": 1.0, "uncordon": 1.0, "parallelism": 1.5,
    "minimum": 1.5, "suspend": 0.7, "resume": 1.0, "remake": 1.2, "retire": 0.6, "kill": 0.4, "wait": 3.0,
}  # fmt: skip
DRIVER = "driver-"
"""How the names of drivers and their pods begin."""
POLICIES = ("", "", "", "once-satisfied", "waiting-and-running", "only-waiting")
KNOWN_SECONDS = 1.5
"""What the scheduler has seen for so long is in the statuses of PodGroups, too."""
RECENT_SECONDS = 1.0
"""A plan may have been made on what was true so long ago."""


def phase_of(obj: Manifest) -> str:
    return str(obj.get("status", {}).get("phase") or "Pending")


def ending(obj: Manifest) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def drives(obj: Manifest) -> bool:
    return str(obj["metadata"]["name"]).startswith(DRIVER)


def on_node(obj: Manifest) -> bool:
    return bool(obj["spec"].get("nodeName")) and phase_of(obj) not in ("Succeeded", "Failed")


class Nobody:
    """Looks at no scheduler: what must hold is computed from what was played."""

    def listen(self, scheduler: Scheduler) -> None:
        """A scheduler starts."""


@dataclass
class Job:
    """A Job, or pods that somebody makes by hand (`owned` False), under one PodGroup; or two Jobs (`driven`): workers,
    and one driver, which is not suspended with them."""

    group: str
    parallelism: int
    completions: int
    owned: bool
    run: int = 0
    suspended: bool = False
    made: int = 0
    succeeded: set[str] = field(default_factory=set)
    """uids of the pods of this run that have Succeeded, whether or not they are there."""
    began: bool = False
    """Whether a member of this run was bound."""
    driven: bool = False
    drove: bool = False
    """Whether the driver has Succeeded."""
    beside_at: float | None = None
    """Since when driver and workers of this run have been bound at one time."""

    @property
    def uid(self) -> str:
        return f"{self.group}-run-{self.run}"

    @property
    def wanted(self) -> int:
        """Workers."""
        return 0 if self.suspended else min(self.parallelism, self.completions - len(self.succeeded) + self.drove)

    def member(self, name: str) -> Manifest:
        labels = {keys.LABEL_POD_GROUP: self.group, "run": self.uid}
        made = pod(name, gpus=4 // SLOTS, cpu="0", memory="1Mi", labels=labels)
        if self.owned:
            part = DRIVER if name.startswith(DRIVER) else ""
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": part + self.group, "uid": part + self.uid}
            owner["controller"] = True
            made["metadata"]["ownerReferences"] = [owner]
        made["spec"]["terminationGracePeriodSeconds"] = 1
        return made


@dataclass
class Lives:
    """One history."""

    cluster: Live
    loop: VirtualLoop
    dice: random.Random
    driven: bool = False
    """Whether its Jobs have drivers."""
    trace: ClassVar[bool] = False
    jobs: list[Job] = field(default_factory=list)
    policies: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    _least: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """PodGroup -> (until when, minMember) of what it was."""
    _counts: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    _ended_at: float = 0.0
    """When a member last Succeeded, or its pod was deleted after that."""

    def __post_init__(self) -> None:
        server = self.cluster.server
        self.replica = Replica(lambda: Wire(server), self.loop.wall, False, Nobody())
        server.store.listeners.append(self._changed)
        self.loop.on_send = self._sent

    # -- what is looked at --------------------------------------------------------------------------------------------

    def pods_of(self, job: Job) -> list[Manifest]:
        """Pods of the present run."""
        return [obj for obj in self.cluster.pods().values() if obj["metadata"]["labels"].get("run") == job.uid]

    def of_group(self, job: Job) -> list[Manifest]:
        """Pods of every run."""
        label = keys.LABEL_POD_GROUP
        return [obj for obj in self.cluster.pods().values() if obj["metadata"]["labels"].get(label) == job.group]

    def least(self, job: Job) -> int:
        found: int = self.cluster.server.store.get(GROUPS, job.group, "default")["spec"]["minMember"]
        return found

    def _lately(self, job: Job, kept: dict[str, list[tuple[float, int]]], now: int) -> list[int]:
        """Values of the last moment."""
        since = self.loop.time() - RECENT_SECONDS
        return [now, *(value for until, value in kept.get(job.group, ()) if until >= since)]

    def _sent(self, wire: Wire, method: str, path: str, data: bytes | None) -> None:
        if (method == "DELETE" and "/pods/" in path) or path.endswith("/eviction"):
            self.faults.append(f"{self.loop.time():.2f}: the scheduler sent {method} {path}")

    def _changed(self, shelf: str, change: Any) -> None:
        obj = change.entry.obj
        if self.trace and shelf in ("pods", GROUPS, "nodes"):
            self._print(shelf, change.kind, obj)
        if shelf != "pods":
            return
        job = next((one for one in self.jobs if obj["metadata"]["labels"].get("run") == one.uid), None)
        if job is None:
            return
        self._keep(job, self._counts, self._alive(job) + (change.kind == "DELETED"))
        if phase_of(obj) == "Succeeded":
            self._ended_at = self.loop.time()
        elif change.kind != "DELETED" and on_node(obj):
            if not job.began:
                self._begins(job)
            if job.beside_at is None and {drives(o) for o in self.pods_of(job) if on_node(o)} == {True, False}:
                job.beside_at = self.loop.time()

    def _begins(self, job: Job) -> None:
        """The first member of a run is bound: its minimum must be there, unless others of the gang stand."""
        job.began = True
        others = [o for o in self.of_group(job) if o["metadata"]["labels"]["run"] != job.uid]
        if any(on_node(obj) and not ending(obj) for obj in others) or (not job.owned and job.run):
            return
        have = self._lately(job, self._counts, self._alive(job))
        if max(have) + len(job.succeeded) < min(self._lately(job, self._least, self.least(job))):
            self.faults.append(f"{self.loop.time():.2f}: {job.uid} began with {max(have)} of {self.least(job)} pods")

    def _alive(self, job: Job) -> int:
        return sum(phase_of(obj) in ("Pending", "Running") for obj in self.pods_of(job))

    def _print(self, shelf: str, kind: str, obj: Manifest) -> None:
        meta, spec, status = obj["metadata"], obj["spec"], obj.get("status", {})
        told = [f"{self.loop.time():8.3f} {kind} {shelf} {meta['name']}", status.get("phase", "")]
        told += [f"on {spec['nodeName']}"] if spec.get("nodeName") else []
        told += ["ending"] if ending(obj) else []
        told += [f"minMember={spec['minMember']}"] if "minMember" in spec else []
        told += [f"{c['type']}={c['status']}: {c.get('message', '')}" for c in status.get("conditions") or []]
        print(*told)

    # -- what is played -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Machines, and one or two Jobs."""
        self.cluster.nodes(*(small(name, gpus=4) for name in NODES))
        for name in ("a", "b")[: self.dice.choice((1, 1, 2))]:
            size = self.dice.randint(1, 4)
            job = Job(name, size, size + self.dice.choice((0, 0, 2, 5)), owned=self.dice.random() < 0.85)
            job.driven = self.driven
            job.owned |= job.driven
            size += job.driven
            self.jobs.append(job)
            self.policies[name] = self.dice.choice(POLICIES)
            notes = {keys.GANG_MATCH_POLICY: self.policies[name]} if self.policies[name] else {}
            meta = {"name": name, "namespace": "default", "annotations": notes}
            least = self.dice.choice((size, size, max(1, size - 1)))
            self.cluster.server.store.create(GROUPS, {"metadata": meta, "spec": {"minMember": least}})

    async def controllers(self) -> None:
        """Job controllers make and delete pods; kubelets start and end them."""
        while True:
            for job in self.jobs:
                self._reconcile(job)
            for name, obj in self.cluster.pods().items():
                if ending(obj):
                    self.cluster.delete(name)
                elif on_node(obj) and phase_of(obj) == "Pending":
                    self._phase(name, "Running")
            await asyncio.sleep(self.dice.choice((0.05, 0.2, 0.6)))

    def _reconcile(self, job: Job) -> None:
        there = [obj for obj in self.pods_of(job) if not drives(obj)]
        self._drive(job)
        active = [obj for obj in there if phase_of(obj) in ("Pending", "Running") and not ending(obj)]
        for _ in range(job.wanted - len(active)):
            job.made += 1
            # of a Job each pod has a name of its own; by hand the same names are taken again
            taken = {obj["metadata"]["name"] for obj in self.of_group(job)}
            free = (f"{job.group}-{i}" for i in range(100) if f"{job.group}-{i}" not in taken)
            name = f"{job.group}-{job.run}-{job.made}" if job.owned else next(free)
            self.cluster.create(job.member(name))
        for obj in sorted(active, key=on_node)[: max(0, len(active) - job.wanted)]:
            self._end(obj)

    def _drive(self, job: Job) -> None:
        """Makes the driver's pod, again where it has Failed or is gone."""
        active = ("Pending", "Running")
        alive = any(drives(o) and phase_of(o) in active and not ending(o) for o in self.pods_of(job))
        if job.driven and not job.drove and not alive:
            job.made += 1
            self.cluster.create(job.member(f"{DRIVER}{job.group}-{job.run}-{job.made}"))

    def _known(self, since: float | None) -> bool:
        return since is not None and self.loop.time() - since >= KNOWN_SECONDS

    def _keep(self, job: Job, kept: dict[str, list[tuple[float, int]]], value: int) -> None:
        kept.setdefault(job.group, []).append((self.loop.time(), value))
        del kept[job.group][:-8]

    def _phase(self, name: str, phase: str) -> None:
        def change(old: Manifest) -> Manifest:
            at = self.cluster.server.store.now()
            state = {"terminated": {"exitCode": 0, "finishedAt": at}} if phase != "Running" else {"running": {}}
            return {
                **old,
                "status": {**old["status"], "phase": phase, "containerStatuses": [{"name": "main", "state": state}]},
            }

        self.cluster.server.store.update("pods", name, change, namespace="default", status=True)

    def _end(self, obj: Manifest) -> None:
        """As kubectl delete does: pods on nodes are given a moment, others are gone at once."""
        self.cluster.server.store.delete("pods", obj["metadata"]["name"], namespace="default")

    def act(self) -> None:
        """One act of somebody."""
        name = self.dice.choices(list(ACTS), list(ACTS.values()))[0]
        job = self.dice.choice(self.jobs)
        does: Callable[[Job], bool | None] = getattr(self, f"do_{name}")
        if does(job) is not False:
            self.tally[name] += 1
            if self.trace:
                print(f"{self.loop.time():8.3f} -- {name} {job.group}")

    def _one(self, job: Job, *phases: str) -> Manifest | None:
        found = [obj for obj in self.of_group(job) if phase_of(obj) in phases and not ending(obj)]
        return self.dice.choice(found) if found else None

    def do_wait(self, job: Job) -> None:
        """Nothing happens."""

    def do_succeed(self, job: Job) -> bool | None:
        if (obj := self._one(job, "Running")) is None or (job.driven and not self._known(job.beside_at)):
            return False
        if obj["metadata"]["labels"]["run"] == job.uid:
            job.succeeded.add(obj["metadata"]["uid"])
            job.drove |= drives(obj)
        self._phase(obj["metadata"]["name"], "Succeeded")
        return None

    def do_fail(self, job: Job) -> bool | None:
        if (obj := self._one(job, "Running")) is None:
            return False
        self._phase(obj["metadata"]["name"], "Failed")
        return None

    def do_clean(self, job: Job) -> bool | None:
        """A finished pod is deleted, as by garbage collection."""
        if self.driven and not self._known(self._ended_at):
            return False  # nobody may know a member that ended and went while no scheduler ran
        if (obj := self._one(job, "Succeeded", "Succeeded", "Failed")) is None:
            return False
        self._end(obj)
        return None

    def do_delete(self, job: Job) -> bool | None:
        if (obj := self._one(job, "Pending", "Running")) is None:
            return False
        self._end(obj)
        return None

    def do_drain(self, job: Job) -> None:
        node = self.dice.choice(NODES)
        self._cordon(node, cordoned=True)
        for obj in self.cluster.pods().values():
            if obj["spec"].get("nodeName") == node and not ending(obj):
                self._end(obj)

    def do_uncordon(self, job: Job) -> None:
        for node in NODES:
            self._cordon(node, cordoned=False)

    def _cordon(self, node: str, *, cordoned: bool) -> None:
        def change(old: Manifest) -> Manifest:
            return {**old, "spec": {**old["spec"], "unschedulable": cordoned}}

        self.cluster.server.store.update("nodes", node, change)

    def do_parallelism(self, job: Job) -> None:
        job.parallelism = self.dice.randint(1, 5)
        job.completions = max(job.completions, job.parallelism + len(job.succeeded) - 1)

    def do_minimum(self, job: Job) -> None:
        least = self.dice.randint(1, 5)
        self._keep(job, self._least, self.least(job))

        def change(old: Manifest) -> Manifest:
            return {**old, "spec": {**old["spec"], "minMember": least}}

        self.cluster.server.store.update(GROUPS, job.group, change, namespace="default")

    def do_suspend(self, job: Job) -> None:
        job.suspended = True

    def do_resume(self, job: Job) -> None:
        for one in self.jobs:
            one.suspended = False

    def do_remake(self, job: Job) -> None:
        """The Job is deleted, its pods go by and by, and it is made again at once."""
        for obj in self.of_group(job):
            if not ending(obj):
                self._end(obj)
        job.run += 1
        job.succeeded, job.began, job.made = set(), False, 0
        job.drove, job.beside_at = False, None
        self._counts.pop(job.group, None)

    def do_retire(self, job: Job) -> None:
        """The scheduler is stopped in order and started again."""
        self.replica.retire()

    def do_kill(self, job: Job) -> bool | None:
        """The scheduler is killed, but not before it could write what it has seen."""
        if not all(map(self._known, (self._ended_at, *(job.beside_at for job in self.jobs if job.beside_at)))):
            return False
        self.replica.kill()
        return None

    # -- the end ------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """The whole history, and what must hold after it."""
        self.prepare()
        tasks = [asyncio.create_task(self.replica.run()), asyncio.create_task(self.controllers())]
        try:
            for _ in range(self.dice.choice((4, 8, 12, 20))):
                self.act()
                await asyncio.sleep(self.dice.random() * self.dice.choice((0.1, 0.5, 2.0)))
            self.do_uncordon(self.jobs[0])
            self.do_resume(self.jobs[0])
            for patience in (5.0, 10.0, 60.0):
                await asyncio.sleep(patience)
                wrong = self.wrong()
                if not wrong:
                    break
            assert not (self.faults or wrong), "; ".join((*self.faults, *wrong))
        finally:
            self.replica.stop()
            await tasks[0]
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wrong(self) -> list[str]:
        """What is not as it must be once all is quiet."""
        used = sum(on_node(obj) for obj in self.cluster.pods().values())
        free = len(NODES) * SLOTS - used
        out = []
        for job in self.jobs:
            out += self._could_run(job, free)
            out += self._says(job)
        return out

    def _could_run(self, job: Job, free: int) -> list[str]:
        pods, least = self.of_group(job), self.least(job)
        own = [obj for obj in pods if obj["metadata"]["labels"]["run"] == job.uid]
        waiting = [obj for obj in own if phase_of(obj) == "Pending" and not on_node(obj)]
        if not waiting:
            return []
        bound = [obj for obj in pods if on_node(obj)]
        standing = sum(not ending(obj) for obj in bound)
        # pods without an owner say by themselves alone what has become of them
        there = sum(phase_of(obj) == "Succeeded" for obj in (own if job.owned else pods))
        done = len(job.succeeded) if job.owned else there
        if len(bound) + len(waiting) + done < least:
            return []
        need = {
            "only-waiting": max(0, least - done),
            "waiting-and-running": max(0, least - standing - done),
        }.get(self.policies[job.group], 0 if standing or done else least)
        if len(waiting) < need or free < max(1, need):
            return []
        told = [c["message"] for c in waiting[0]["status"].get("conditions", []) if "message" in c]
        return [f"{job.uid}: {len(waiting)} pods wait, {need} needed, {free} slots are free: {told}"]

    def _says(self, job: Job) -> list[str]:
        status = self.cluster.group(job.group)
        own, least = self.pods_of(job), max(1, self.least(job))
        if not job.owned or len(own) != len(self.of_group(job)) or not own:
            return []  # of runs that overlap, and of pods that nobody owns, it is not told what has Succeeded
        bound, done = sum(map(on_node, own)), len(job.succeeded)
        out = []
        if status.get("scheduled") != bound + done or status.get("succeeded") != done:
            counts = {name: status.get(name) for name in ("scheduled", "succeeded")}
            out.append(f"{job.uid}: {bound} bound, {done} Succeeded, its PodGroup says {counts}")
        said = {c["type"]: c["status"] for c in status.get("conditions", [])}
        met = bound + done >= least
        if said.get("Scheduled", "False") != str(met):
            out.append(f"{job.uid}: {bound} + {done} of {least}, its PodGroup says {status.get('conditions')}")
        if said.get("Stale", "False") == "True" and met:
            out.append(f"{job.uid}: it has its minimum and is called stale")
        alive = self._alive(job)
        if (status.get("phase") == "Finished") != (done >= least and not alive):
            out.append(f"{job.uid}: {done} Succeeded, {alive} alive of {least}: {status.get('phase')}")
        if status.get("phase") == "Failed" and alive + done >= least:
            out.append(f"{job.uid}: {alive} alive, {done} Succeeded of {least} and called Failed")
        return out


async def _in_virtual_time(loop: VirtualLoop, seed: int, driven: bool) -> Lives:
    async with virtual_server(seed) as server:
        lives = Lives(Live(server), loop, random.Random(seed), driven)
        await lives.live()
        return lives


def live_through(seed: int, *, driven: bool = False) -> Lives:
    """One history in virtual time; AssertionError where something must not be. driven: of gangs of two Jobs."""
    return run(lambda loop: _in_virtual_time(loop, seed, driven), seed)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random lives of gangs; prints those that go wrong")
    parser.add_argument("--seeds", default="0-2000", help="FIRST-LAST, LAST left out, or one seed")
    parser.add_argument("--driven", action="store_true", help="gangs of two Jobs: a driver and workers")
    parser.add_argument("--trace", action="store_true", help="print every write")
    options = parser.parse_args()
    Lives.trace = options.trace
    first, _, last = options.seeds.partition("-")
    tally: Counter[str] = Counter()
    failed = 0
    with one_after_the_other():
        for seed in range(int(first), int(last or int(first) + 1)):
            try:
                tally += live_through(seed, driven=options.driven).tally
            except (AssertionError, StatusError) as error:
                failed += 1
                print(f"seed {seed}: {error}", flush=True)
    print(dict(tally), f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
