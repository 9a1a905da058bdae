# SPDX-License-Identifier: Apache-2.0
"""Random lives of gangs, quotas and claims with one change of the leader: at rest, every reason is still right.

No condition is Unschedulable for a unit that a gate, a missing object or a quota stops (repair.md 1.2), no gang is
partly bound without the condition Degraded, and no unit waits for a round that does not come.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.queue_entry import State
from koordpy.engine.scheduler import Scheduler
from koordpy.fairness.least_requests import least_requests
from koordpy.gangs.queue_units import Groups
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus
from koordpy.planner.planning_round import plan_round
from tests.engine.live import Live, Planner, live, pod, small
from tests.engine.manifests import GROUPS, QUOTAS, Manifest, gang_of
from tests.engine.storage import MADE, Storage
from tests.engine.test_quotas import manifest
from tests.engine.virtual import run

CLAIMS, CLASSES = "persistentvolumeclaims", "priorityclasses.scheduling.k8s.io"
BATCH, BATCHES = 10, 2
ACTS = (
    "pod", "pod", "gang", "gang", "gang", "member", "delete", "delete_slowly", "ungroup", "group_again", "minimum",
    "quota", "node", "foreign", "end", "claim",
)  # fmt: skip


@dataclass
class Life:
    """Each method of `ACTS` is something that users, controllers or nodes do."""

    cluster: Live
    dice: random.Random
    made: int = 0

    def __post_init__(self) -> None:
        self.store, self.storage = self.cluster.server.store, Storage(self.cluster.server)
        self.storage.classes()
        self.store.create(CLASSES, {"metadata": {"name": "high"}, "value": 5})
        for name, above in (("top", ""), ("a", "top"), ("b", "top")):
            labels = {keys.QUOTA_PARENT: above} if above else {keys.QUOTA_IS_PARENT: "true"}
            self.store.create(QUOTAS, manifest(name, {}, {"cpu": str(self.dice.randint(2, 8))}, labels=labels))

    def act(self) -> None:
        getattr(self, self.dice.choice(ACTS))()

    def name(self) -> str:
        self.made += 1
        return f"x{self.made}"

    def groups(self) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.store.list(GROUPS))

    def create(self, name: str, gang: str = "", scheduler: str = "", cores: int = 1, claim: str = "") -> None:
        """A pod of some quota and priority."""
        made = pod(name, gpus=0, cpu=str(cores), memory="1Mi")
        team = self.dice.choice(("", "a", "a", "b"))
        made["metadata"].setdefault("labels", {}).update({keys.QUOTA_NAME: team} if team else {})
        made["metadata"]["labels"].update({keys.LABEL_POD_GROUP: gang} if gang else {})
        spec = made["spec"]
        spec.update({"schedulerName": scheduler} if scheduler else {})
        spec.update({"priorityClassName": "high"} if self.dice.random() < 0.3 else {})
        spec.update({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]} if claim else {})
        self.store.create("pods", made)

    def create_group(self, name: str, least: int, notes: dict[str, str]) -> None:
        meta = {"name": name, "namespace": "default", "annotations": notes}
        kind = {"apiVersion": f"{keys.GROUP_SIGS}/v1alpha1", "kind": "PodGroup"}
        self.store.create(GROUPS, {**kind, "metadata": meta, "spec": {"minMember": least}})

    # -- acts ---------------------------------------------------------------------------------------------------------

    def pod(self) -> None:
        self.create(self.name(), cores=self.dice.choice((1, 2, 9)), claim=self.dice.choice(("", "", "c0", "c1")))

    def gang(self) -> None:
        name, size = self.name(), self.dice.randint(1, 4)
        settings = {
            keys.GANG_MATCH_POLICY: ("", "", "waiting-and-running", "only-waiting"),
            keys.GANG_STALE_GRACE: ("", "", "0s", "3s", "-1"),
            keys.GANG_REPAIR: ("", "replace", "regather", "wait"),
            keys.GANG_GROUPS: ("", "", "", *(json.dumps([f"default/{other}"]) for other in self.groups()[:1])),
        }
        chosen = {key: self.dice.choice(values) for key, values in settings.items()}
        least = self.dice.randint(1, size + self.dice.choice((0, 0, 1)))
        self.create_group(name, least, {key: text for key, text in chosen.items() if text})
        cores, claim = self.dice.choice((1, 2, 3)), self.dice.choice(("", "", "c1"))
        for i in range(size):
            self.create(f"{name}-{i}", name, cores=cores, claim=claim if i == 0 else "")

    def member(self) -> None:
        for name in self.dice.sample(self.groups(), min(1, len(self.groups()))):
            self.create(f"{name}-{self.name()}", name)

    def delete(self) -> None:
        for name in self.some(self.cluster.pods()):
            self.cluster.delete(name)

    def delete_slowly(self) -> None:
        for name in self.some(self.cluster.pods()):
            options = {"gracePeriodSeconds": self.dice.choice((3, 600))}
            self.store.delete("pods", name, namespace="default", options=options)

    def ungroup(self) -> None:
        for name in self.some(self.groups()):
            self.store.remove(GROUPS, name, "default")

    def group_again(self) -> None:
        for name in self.some({gang_of(obj) for obj in self.cluster.pods().values()} - {"", *self.groups()}):
            self.create_group(name, self.dice.randint(1, 4), {})

    def minimum(self) -> None:
        spec = {"minMember": self.dice.randint(1, 4)}
        for name in self.some(self.groups()):
            self.store.update(GROUPS, name, lambda obj: {**obj, "spec": spec}, namespace="default")

    def quota(self) -> None:
        most = {"cpu": str(self.dice.randint(1, 8))}
        change = lambda obj: {**obj, "spec": {**obj["spec"], "max": most}}  # noqa: E731
        self.store.update(QUOTAS, self.dice.choice(("top", "a", "b")), change, namespace="default")

    def node(self) -> None:
        names = {obj["metadata"]["name"] for obj in self.store.list("nodes")}
        if len(names) > 2 and self.dice.random() < 0.5:
            self.store.remove("nodes", *self.some(names))
        else:
            self.cluster.create(small(f"n{self.name()}"))

    def foreign(self) -> None:
        name = self.name()
        self.create(name, scheduler="other")
        self.cluster.bind(name, *self.some({obj["metadata"]["name"] for obj in self.store.list("nodes")}))

    def end(self) -> None:
        status = {"phase": self.dice.choice(("Succeeded", "Failed"))}
        change = lambda obj: {**obj, "status": {**obj["status"], **status}}  # noqa: E731
        for name in self.some(self.cluster.places()):
            self.store.update("pods", name, change, namespace="default", status=True)

    def claim(self) -> None:
        name = self.dice.choice(("c0", "c1"))
        if any(obj["metadata"]["name"] == name for obj in self.store.list(CLAIMS)):
            self.store.remove(CLAIMS, name, "default")
        else:
            self.storage.claim(name, MADE)

    def some(self, names: Any) -> list[str]:
        """One of the names; none of an empty collection."""
        return self.dice.sample(sorted(names), min(1, len(names)))


def faults(cluster: Live, scheduler: Scheduler, now: float) -> Iterator[str]:
    """What is wrong at rest, by a plan of all units and by the sums of the quotas."""
    snapshot = scheduler.feeds.state.snapshot(now)
    plan, pods = plan_round(snapshot, KoordpyConfiguration()), cluster.pods()
    groups = {obj["metadata"]["name"] for obj in cluster.server.store.list(GROUPS)}
    yield from (f"{entry.unit} waits" for entry in scheduler.queue.entries.values() if entry.state is State.ACTIVE)
    quotas = snapshot.quotas
    told = {name: cluster.condition(name).get("reason") for name in pods}
    for one in plan.pending:
        name = one.pod_key.partition("/")[2]
        if told[name] is None and not plan.evictions:
            yield f"{name} has no condition, but {one.reason}: {one.message}"
        if told[name] == Reason.UNSCHEDULABLE and one.reason is Reason.NOT_READY:
            yield f"{name} is Unschedulable, but {one.message}"
    for unit in Groups(snapshot).units():
        free = {
            need: quotas.tree.quotas[need.quota].max[need.resource] - quotas.used.get(need.quota, {}).get("cpu", 0)
            for need in least_requests(unit, quotas)
            if not need.rigid
        }
        if any(need.amount > max(0, left) for need, left in free.items()):
            buys = [one.name for one in unit.pending if told[one.name] == Reason.UNSCHEDULABLE]
            yield from (f"{name} is Unschedulable, but its quota is used up" for name in buys)
    for report in plan.gangs:
        name = report.name.partition("/")[2]
        if report.status is GangStatus.DEGRADED and name in groups and any(_runs(pods, name)):
            conditions = {one["type"]: one["status"] for one in cluster.group(name).get("conditions", [])}
            if conditions.get("Degraded") != "True":
                yield f"gang {name} is not Degraded: {report.message}"


def _runs(pods: dict[str, Manifest], name: str) -> list[bool]:
    """For each member on a node that is not finished: whether it is not being deleted."""
    own = [obj for obj in pods.values() if gang_of(obj) == name and obj["spec"].get("nodeName")]
    own = [obj for obj in own if obj["status"].get("phase") not in ("Succeeded", "Failed")]
    return ["deletionTimestamp" not in obj["metadata"] for obj in own]


async def lived(seed: int) -> list[str]:
    """Plays one life with two leaders, and returns what is wrong after each."""
    dice, found = random.Random(seed), list[str]()
    async with live([small("n1"), small("n2")]) as cluster:
        life = Life(cluster, dice)
        for _ in range(2):
            cluster.planner = Planner(config=KoordpyConfiguration())
            async with cluster.running() as scheduler:
                for _ in range(7):
                    for _ in range(dice.randint(1, 4)):
                        life.act()
                        await asyncio.sleep(dice.choice((0.0, 0.01, 0.5)))
                    await asyncio.sleep(dice.choice((1.0, 14.0)))
                await asyncio.sleep(25)
                now = asyncio.get_running_loop().wall()  # type: ignore[attr-defined]
                found += faults(cluster, scheduler, now)
    return found


@pytest.mark.parametrize("first", range(0, BATCH * BATCHES, BATCH))
def test_no_reason_outlives_what_it_says(first: int) -> None:
    wrong = {seed: run(lambda _, seed=seed: lived(seed), seed=seed) for seed in range(first, first + BATCH)}
    assert {seed: found for seed, found in wrong.items() if found} == {}
