# SPDX-License-Identifier: Apache-2.0
"""Random lives of workloads in virtual time: their controllers make, restart, scale and finish what they are told to.

Controllers of Jobs and JobSets, kubelets and people are played here; the scheduler, its client and the API server are
the real ones. Invariants: what a controller has made is bound once there is room; no role begins without the pods that
its controller wants; nobody is evicted.

`python -m tests.engine.workloadlives --seeds 0-2000` runs many; one that fails is told by its seed, which repeats it.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from koordpy.api import keys
from koordpy.apiserver.status_errors import StatusError
from koordpy.config.configuration import Gangs
from tests.engine.live import Live, pod, small
from tests.engine.lives import Nobody, ending, on_node, phase_of
from tests.engine.manifests import Manifest
from tests.engine.replica import SETTINGS, Replica
from tests.engine.virtual import VirtualLoop, Wire, one_after_the_other, run, virtual_server

JOBS, JOBSETS = "jobs.batch", "jobsets.jobset.x-k8s.io"
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
NODES = ("n1", "n2", "n3")
SLOTS = 2
INDEX = "batch.kubernetes.io/job-completion-index"
SET = "jobset.sigs.k8s.io/"
ACTS = {
    "succeed": 5.0, "fail": 3.0, "clean": 2.0, "delete": 2.0, "drain": 1.0, "uncordon": 1.0, "scale": 2.0,
    "suspend": 1.0, "resume": 1.5, "remake": 1.2, "restart": 1.5, "retire": 0.6, "kill": 0.6, "wait": 3.0,
}  # fmt: skip
SELDOM = replace(SETTINGS, group_status_seconds=3.0, sweep_seconds=5.0, unconfirmed_seconds=3.0)
"""What is written and looked at by time alone costs most of a history, and is told of elsewhere."""
RECENT_SECONDS = 1.0
"""A plan may have been made on what was true so long ago."""


def template() -> Manifest:
    return {"metadata": {}, "spec": {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "containers": [{"name": "main"}]}}


@dataclass
class Work:
    """A Job, or a JobSet of a driver and of workers in two Jobs."""

    name: str
    size: int
    """Parallelism of the Job, or of each Job of workers."""
    waves: int = 0
    """Completions above parallelism, of a Job that asks to be a gang."""
    of_set: bool = False
    stepwise: bool = False
    """Whether the workers are made once the driver is Ready."""
    attempt: int = 0
    suspended: bool = False
    uid: str = ""

    @property
    def jobs(self) -> dict[str, tuple[str, int, int]]:
        """Job -> (role, parallelism, completions)."""
        if not self.of_set:
            return {self.name: ("", self.size, self.size + self.waves)}
        made = {f"{self.name}-driver-0": ("driver", 1, 1)}
        return made | {f"{self.name}-workers-{i}": ("workers", self.size, self.size) for i in range(2)}


@dataclass
class WorkloadLives:
    """One history."""

    cluster: Live
    loop: VirtualLoop
    dice: random.Random
    trace: ClassVar[bool] = False
    acts: ClassVar[dict[str, float]] = ACTS
    kinds: ClassVar[tuple[str, ...]] = ("Job", "JobSet")
    more_nodes: ClassVar[int] = 6
    """That come at the end, so that there is room for everybody."""
    works: list[Work] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    _seen: dict[tuple[str, str], list[tuple[float, int, int]]] = field(default_factory=dict)
    """(run of a workload, role) -> (when, alive, wanted)."""
    _made: int = 0

    def __post_init__(self) -> None:
        server = self.cluster.server
        gangs = Gangs(kinds=self.kinds, volcano="off")
        self.replica = Replica(lambda: Wire(server), self.loop.wall, False, Nobody(), gangs=gangs, settings=SELDOM)
        server.store.listeners.append(self._changed)
        self.loop.on_send = self._sent

    # -- what is looked at --------------------------------------------------------------------------------------------

    def _sent(self, wire: Wire, method: str, path: str, data: bytes | None) -> None:
        if (method == "DELETE" and "/pods/" in path) or path.endswith("/eviction"):
            self.faults.append(f"{self.loop.time():.2f}: the scheduler sent {method} {path}")

    def _changed(self, shelf: str, change: Any) -> None:
        obj = change.entry.obj
        if self.trace and shelf.partition(".")[0] not in ("events", "leases"):
            self._print(shelf, change.kind, obj)
        if shelf != "pods" or change.kind == "DELETED" or not on_node(obj) or phase_of(obj) != "Pending" or ending(obj):
            return
        labels = obj["metadata"]["labels"]
        role = labels["run"], labels["role"]
        alive = [one for one in self._of(*role) if phase_of(one) in ("Pending", "Running") and not ending(one)]
        if sum(map(on_node, alive)) > 1:
            return
        since = self.loop.time() - RECENT_SECONDS
        seen = [(there, wanted) for at, there, wanted in self._seen.get(role, ()) if at >= since]
        if seen and all(there < wanted for there, wanted in seen):
            self.faults.append(f"{self.loop.time():.2f}: {role} began with (there, wanted) {seen[-1]}")

    def _of(self, of_run: str, role: str) -> list[Manifest]:
        return [
            one
            for one in self.cluster.pods().values()
            if (one["metadata"]["labels"]["run"], one["metadata"]["labels"]["role"]) == (of_run, role)
        ]

    def _print(self, shelf: str, kind: str, obj: Manifest) -> None:
        meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
        told = [f"{self.loop.time():8.3f} {kind} {shelf} {meta['name']}", status.get("phase", "")]
        told += [f"on {spec['nodeName']}"] if spec.get("nodeName") else []
        told += ["ending"] if ending(obj) else []
        told += [f"{name}={spec[name]}" for name in ("parallelism", "completions", "suspend") if name in spec]
        told += [f"{name}={status[name]}" for name in ("succeeded", "restarts") if name in status]
        told += [f"{c['type']}={c['status']}: {c.get('message', '')}" for c in status.get("conditions") or []]
        print(*told)

    # -- controllers --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Machines, the definition of JobSets, and one or two workloads."""
        self.serve("jobset.x-k8s.io", "v1alpha2", "JobSet")
        self.make_nodes()
        for name in ("a", "b")[: self.dice.choice((1, 2, 2))]:
            of_set = self.dice.random() < 0.5
            work = Work(name, self.dice.randint(1, 2) if of_set else self.dice.randint(2, 4), of_set=of_set)
            work.stepwise = of_set and self.dice.random() < 0.5
            work.waves = 0 if of_set else self.dice.choice((0, 0, 2))
            self.works.append(work)
            self._create(work)

    def serve(self, group: str, version: str, kind: str) -> None:
        """The definition of a kind."""
        plural = f"{kind.lower()}s"
        names = {"plural": plural, "kind": kind, "listKind": f"{kind}List", "singular": kind.lower()}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        served = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
        self.cluster.server.store.create(DEFINITIONS, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})

    def make_nodes(self) -> None:
        """Few enough that not everybody finds room."""
        self.cluster.nodes(*(small(name, gpus=4) for name in NODES))

    def _create(self, work: Work) -> None:
        meta: Manifest = {"name": work.name, "namespace": "default"}
        if work.of_set:
            job = {"completionMode": "Indexed", "template": template()}
            sizes = {"driver": (1, 1), "workers": (2, work.size)}
            listed: list[Manifest] = [
                {"name": role, "replicas": n, "template": {"spec": {**job, "parallelism": size, "completions": size}}}
                for role, (n, size) in sizes.items()
            ]
            if work.stepwise:
                listed[1]["dependsOn"] = [{"name": "driver", "status": "Ready"}]
            body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
            spec = {"replicatedJobs": listed, "suspend": work.suspended}
            made = self.cluster.server.store.create(JOBSETS, {**body, "spec": spec})
            work.uid = made["metadata"]["uid"]
        else:
            work.uid = self._create_job(work, work.name)["metadata"]["uid"]

    def _create_job(self, work: Work, name: str) -> Manifest:
        _, parallelism, completions = work.jobs[name]
        meta: Manifest = {"name": name, "namespace": "default"}
        if work.of_set:
            owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": work.name, "uid": work.uid}
            meta["ownerReferences"] = [{**owner, "controller": True}]
            meta["labels"] = self._labels(work, name)
        elif work.waves:
            meta["annotations"] = {keys.GANG_AUTO: "on"}
        spec = {
            "completionMode": "Indexed",
            "parallelism": parallelism,
            "completions": completions,
            "suspend": work.suspended,
            "template": template(),
        }
        made: Manifest = self.cluster.server.store.create(
            JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
        )
        return made

    @staticmethod
    def _labels(work: Work, job: str) -> dict[str, str]:
        role, _, _ = work.jobs[job]
        said = {"jobset-name": work.name, "jobset-uid": work.uid, "replicatedjob-name": role}
        said |= {"restart-attempt": str(work.attempt), "job-index": job.rpartition("-")[2]}
        said["replicatedjob-replicas"] = "1" if role == "driver" else "2"
        return {SET + key: value for key, value in said.items()}

    async def controllers(self) -> None:
        """Until cancelled."""
        while True:
            for work in self.works:
                self._reconcile(work)
            for name, obj in self.cluster.pods().items():
                if ending(obj):
                    self.cluster.delete(name)
                elif on_node(obj) and phase_of(obj) == "Pending":
                    self._phase(name, "Running")
            await asyncio.sleep(self.dice.choice((0.05, 0.2, 0.6, 1.5)))

    def _job(self, name: str) -> Manifest | None:
        return next((one for one in self.cluster.server.store.list(JOBS) if one["metadata"]["name"] == name), None)

    def _pods_of(self, job: Manifest) -> list[Manifest]:
        uid = job["metadata"]["uid"]
        return [one for one in self.cluster.pods().values() if one["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _reconcile(self, work: Work) -> None:
        for name, (role, _, _) in work.jobs.items():
            job = self._job(name)
            if job is None:
                if work.of_set and (role != "workers" or not work.stepwise or self._driver_is_ready(work)):
                    self._create_job(work, name)
                continue
            self._reconcile_job(work, role, job)
        self._look_at(work)

    def _look_at(self, work: Work) -> None:
        for role in sorted({role for role, _, _ in work.jobs.values()}):
            self._look(work, role)

    def _driver_is_ready(self, work: Work) -> bool:
        job = self._job(f"{work.name}-driver-0")
        return job is not None and any(phase_of(one) in ("Running", "Succeeded") for one in self._pods_of(job))

    def _wanted(self, job: Manifest) -> tuple[int, list[int]]:
        """(pods that are kept alive, indexes that are open)."""
        if job.get("status", {}).get("conditions"):
            return 0, []  # it is finished, whatever its spec says by now
        spec = job["spec"]
        done = {int(i) for i in (job.get("status", {}).get("completedIndexes") or "").split(",") if i}
        left = [i for i in range(spec["completions"]) if i not in done]
        return (0 if spec["suspend"] else min(spec["parallelism"], len(left))), left

    def _reconcile_job(self, work: Work, role: str, job: Manifest) -> None:
        name, pods = job["metadata"]["name"], self._pods_of(job)
        done = {int(i) for i in (job.get("status", {}).get("completedIndexes") or "").split(",") if i}
        now = done | {int(one["metadata"]["labels"][INDEX]) for one in pods if phase_of(one) == "Succeeded"}
        if now != done:
            self._status(name, now, job["spec"]["completions"])
            return  # the rest with the next turn
        wanted, left = self._wanted(job)
        active = [one for one in pods if phase_of(one) in ("Pending", "Running") and not ending(one)]
        taken = {int(one["metadata"]["labels"][INDEX]) for one in active}
        # a few at a time: who is made first must wait for the others
        number = min(max(0, wanted - len(active)), self.dice.choice((1, 1, 2, 9)))
        for index in [i for i in left if i not in taken][:number]:
            self._make(work, role, job, index)
        for one in sorted(active, key=lambda one: -int(one["metadata"]["labels"][INDEX]))[
            : max(0, len(active) - wanted)
        ]:
            self._end(one)

    def _look(self, work: Work, role: str) -> None:
        """What is there of a role, and what its controller wants."""
        run = f"{work.uid}/{work.attempt}"
        alive = [one for one in self._of(run, role) if phase_of(one) in ("Pending", "Running") and not ending(one)]
        wanted = 0
        for name, (other, parallelism, _) in work.jobs.items():
            if other == role:
                job = self._job(name)
                wanted += self._wanted(job)[0] if job is not None else 0 if work.suspended else parallelism
        self.saw((run, role), len(alive), wanted)

    def saw(self, role: tuple[str, str], alive: int, wanted: int) -> None:
        """Takes down what is there of a role (run, name) now, and what its controller wants."""
        seen = self._seen.setdefault(role, [])
        seen.append((self.loop.time(), alive, wanted))
        del seen[:-12]

    def _make(self, work: Work, role: str, job: Manifest, index: int) -> None:
        self._made += 1
        labels = {"run": f"{work.uid}/{work.attempt}", "role": role, INDEX: str(index)}
        if work.of_set:
            labels |= self._labels(work, job["metadata"]["name"])
        made = pod(
            f"{job['metadata']['name']}-{index}-{self._made}", gpus=4 // SLOTS, cpu="0", memory="1Mi", labels=labels
        )
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
        made["metadata"]["ownerReferences"] = [{**owner, **{name: job["metadata"][name] for name in ("name", "uid")}}]
        made["spec"]["terminationGracePeriodSeconds"] = 1
        self.cluster.create(made)

    def _status(self, name: str, done: set[int], completions: int) -> None:
        def change(old: Manifest) -> Manifest:
            over = [{"type": "Complete", "status": "True"}] if len(done) >= completions else []
            listed = ",".join(map(str, sorted(done)))
            return {**old, "status": {"succeeded": len(done), "completedIndexes": listed, "conditions": over}}

        self.cluster.server.store.update(JOBS, name, change, namespace="default", status=True)

    def _phase(self, name: str, phase: str) -> None:
        def change(old: Manifest) -> Manifest:
            return {**old, "status": {**old["status"], "phase": phase}}

        self.cluster.server.store.update("pods", name, change, namespace="default", status=True)

    def _end(self, obj: Manifest) -> None:
        self.cluster.server.store.delete("pods", obj["metadata"]["name"], namespace="default")

    # -- acts ---------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """One act of somebody."""
        name = self.dice.choices(list(self.acts), list(self.acts.values()))[0]
        work = self.dice.choice(self.works)
        does: Callable[[Work], bool | None] = getattr(self, f"do_{name}")
        if does(work) is not False:
            self.tally[name] += 1
            self._look_at(work)
            if self.trace:
                print(f"{self.loop.time():8.3f} -- {name} {work.name}")

    def _one(self, work: Work, *phases: str) -> Manifest | None:
        found = [
            one
            for one in self.cluster.pods().values()
            if one["metadata"]["labels"]["run"].startswith(f"{work.uid}/")
            and phase_of(one) in phases
            and not ending(one)
        ]
        return self.dice.choice(found) if found else None

    def do_wait(self, work: Work) -> None:
        """Nothing happens."""

    def _ends_as(self, work: Work, phase: str) -> bool:
        if (obj := self._one(work, "Running")) is None:
            return False
        self._phase(obj["metadata"]["name"], phase)
        return True

    def do_succeed(self, work: Work) -> bool:
        return self._ends_as(work, "Succeeded")

    def do_fail(self, work: Work) -> bool:
        return self._ends_as(work, "Failed")

    def do_clean(self, work: Work) -> bool:
        """A finished pod, of which its Job knows, is deleted."""
        if (obj := self._one(work, "Failed")) is None:
            return False
        self._end(obj)
        return True

    def do_delete(self, work: Work) -> bool:
        if (obj := self._one(work, "Pending", "Running")) is None:
            return False
        self._end(obj)
        return True

    def do_drain(self, work: Work) -> None:
        node = self.dice.choice(NODES)
        self._cordon(node, cordoned=True)
        for obj in self.cluster.pods().values():
            if obj["spec"].get("nodeName") == node and not ending(obj) and on_node(obj):
                self._end(obj)

    def do_uncordon(self, work: Work) -> None:
        for node in NODES:
            self._cordon(node, cordoned=False)

    def _cordon(self, node: str, *, cordoned: bool) -> None:
        def change(old: Manifest) -> Manifest:
            return {**old, "spec": {**old["spec"], "unschedulable": cordoned}}

        self.cluster.server.store.update("nodes", node, change)

    def do_scale(self, work: Work) -> bool:
        """An elastic Job: parallelism and completions change together."""
        if work.of_set or work.waves:
            return False
        work.size = self.dice.randint(1, 5)
        self._spec(JOBS, work.name, parallelism=work.size, completions=work.size)
        return True

    def _spec(self, shelf: str, name: str, **fields: object) -> None:
        def change(old: Manifest) -> Manifest:
            return {**old, "spec": {**old["spec"], **fields}}

        self.cluster.server.store.update(shelf, name, change, namespace="default")

    def _suspend(self, work: Work, suspended: bool) -> None:
        work.suspended = suspended
        if work.of_set:
            self._spec(JOBSETS, work.name, suspend=suspended)
        for name in work.jobs:
            if self._job(name) is not None:
                self._spec(JOBS, name, suspend=suspended)

    def do_suspend(self, work: Work) -> None:
        self._suspend(work, True)

    def do_resume(self, work: Work) -> None:
        for one in self.works:
            self._suspend(one, False)

    def _clear(self, work: Work) -> None:
        """The Jobs are deleted, and their pods go by and by."""
        for name in work.jobs:
            job = self._job(name)
            if job is not None:
                for obj in self._pods_of(job):
                    if not ending(obj):
                        self._end(obj)
                self.cluster.server.store.remove(JOBS, name, "default")

    def do_remake(self, work: Work) -> None:
        self._clear(work)
        if work.of_set:
            self.cluster.server.store.remove(JOBSETS, work.name, "default")
        work.attempt = 0
        self._create(work)

    def do_restart(self, work: Work) -> bool:
        """As the JobSet controller does when a Job has failed."""
        if not work.of_set:
            return False
        work.attempt += 1

        def change(old: Manifest) -> Manifest:
            return {**old, "status": {**old.get("status", {}), "restarts": work.attempt}}

        self.cluster.server.store.update(JOBSETS, work.name, change, namespace="default", status=True)
        self._clear(work)
        return True

    def do_retire(self, work: Work) -> None:
        """The scheduler is stopped in order and started again."""
        self.replica.retire()

    def do_kill(self, work: Work) -> None:
        """The scheduler dies where it stands."""
        self.replica.kill()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """The whole history, and what must hold after it."""
        self.prepare()
        tasks = [asyncio.create_task(self.replica.run()), asyncio.create_task(self.controllers())]
        try:
            for _ in range(self.dice.choice((3, 6, 9, 14))):
                self.act()
                await asyncio.sleep(self.dice.random() * self.dice.choice((0.1, 0.5, 2.0)))
            self.do_uncordon(self.works[0])
            self.do_resume(self.works[0])
            self.cluster.nodes(*(small(f"more{i}", gpus=4) for i in range(self.more_nodes)))
            wrong: list[str] = []
            for patience in (5.0, 15.0, 60.0):
                await asyncio.sleep(patience)
                wrong = self.wrong()
                if not wrong:
                    break
            assert not (self.faults or wrong), "; ".join((*self.faults[:3], *wrong))
        finally:
            self.replica.stop()
            await tasks[0]
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wrong(self) -> list[str]:
        """There is room for everybody: nobody waits, and all is there that controllers want."""
        out = []
        for name, obj in self.cluster.pods().items():
            if phase_of(obj) == "Pending" and not on_node(obj):
                out.append(f"{name} waits: {self.cluster.condition(name).get('message', '')}")
        for work in self.works:
            out += self._missing(work)
        return out

    def _missing(self, work: Work) -> list[str]:
        """What its controller wants and is not there."""
        out = []
        for job_name in work.jobs:
            job = self._job(job_name)
            if job is None:
                out.append(f"Job {job_name} is not made")
                continue
            runs = sum(phase_of(one) == "Running" and not ending(one) for one in self._pods_of(job))
            if runs != self._wanted(job)[0]:
                out.append(f"{job_name}: {runs} run, {self._wanted(job)[0]} wanted")
        return out


async def _in_virtual_time(loop: VirtualLoop, seed: int, lives_of: type[WorkloadLives]) -> WorkloadLives:
    async with virtual_server(seed) as server:
        lives = lives_of(Live(server), loop, random.Random(seed))
        await lives.live()
        return lives


def live_through(seed: int, lives_of: type[WorkloadLives] = WorkloadLives) -> WorkloadLives:
    """One history in virtual time; AssertionError where something must not be."""
    return run(lambda loop: _in_virtual_time(loop, seed, lives_of), seed)


def main(lives_of: type[WorkloadLives] = WorkloadLives) -> int:
    """Runs many histories of a kind."""
    parser = argparse.ArgumentParser(description="Random lives of workloads; prints those that go wrong")
    parser.add_argument("--seeds", default="0-2000", help="FIRST-LAST, LAST left out, or one seed")
    parser.add_argument("--trace", action="store_true", help="print every write")
    options = parser.parse_args()
    lives_of.trace = options.trace
    first, _, last = options.seeds.partition("-")
    tally: Counter[str] = Counter()
    failed = 0
    with one_after_the_other():
        for seed in range(int(first), int(last or int(first) + 1)):
            try:
                tally += live_through(seed, lives_of).tally
            except (AssertionError, StatusError) as error:
                failed += 1
                print(f"seed {seed}: {error}", flush=True)
    print(dict(tally), f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
