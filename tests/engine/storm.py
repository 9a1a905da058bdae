"""Random schedules in bad weather: pods, gangs, claims and deletes while the API server fails, and leaders that die.

What must hold at the end, whatever happened: no pod changed its node, nothing is given out twice, a gang that is half
bound says so, and nothing is pending that a planner with a fresh eye would place.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import convert

from koordpy.api.dra import DeviceClass, ResourceClaim, ResourceSlice
from koordpy.api.groups import PodGroup
from koordpy.api.objects import Node, Pod
from koordpy.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordpy.cluster.state import ClusterState
from koordpy.engine.queue import State
from koordpy.engine.scheduler import Scheduler
from koordpy.planning.plan import RoundPlan
from koordpy.planning.round import plan_round
from tests.engine.live import Live, gang, small, until
from tests.engine.storage import HOST, LOCAL, MADE, Storage, pod_with
from tests.engine.test_reservations import CLAIMS_OF_DEVICES, claim, claiming, offer

KINDS: dict[str, Any] = {
    "nodes": Node,
    "podgroups.scheduling.sigs.k8s.io": PodGroup,
    "persistentvolumes": PersistentVolume,
    "persistentvolumeclaims": PersistentVolumeClaim,
    "storageclasses.storage.k8s.io": StorageClass,
    CLAIMS_OF_DEVICES: ResourceClaim,
    "resourceslices.resource.k8s.io": ResourceSlice,
    "deviceclasses.resource.k8s.io": DeviceClass,
    "pods": Pod,
}
ROUTES = (
    ("POST", "*/binding"),
    ("POST", "*/binding"),
    ("PATCH", "*/pods/*/status"),
    ("PATCH", "*/podgroups/*"),
    ("PATCH", "*/persistentvolume*"),
    ("PATCH", "*/resourceclaims/*"),
    ("GET", "/api/v1/namespaces/*/pods/*"),
    ("GET", "*/resourceclaims/*"),
)
NODES = ("n1", "n2", "n3")


def weather(cluster: Live, dice: random.Random) -> None:
    """Some faults that last until they are cleared."""
    faults = cluster.server.faults
    faults.seed(dice.randrange(1 << 30))
    for _ in range(dice.randrange(1, 5)):
        method, path = dice.choice(ROUTES)
        effect: Any = dice.choice([429, 429, 500, 500, 503, 504, 409, "drop"])
        after = effect in (500, 504, "drop") and dice.random() < 0.5
        if effect == 409 and method == "GET":
            effect = 503
        faults.fail(effect, method=method, path=path, share=dice.choice([0.1, 0.3, 0.6]), after=after, retry_after=0)


@dataclass
class Storm:
    """One schedule."""

    cluster: Live
    dice: random.Random
    storage: Storage
    seen: dict[str, str] = field(default_factory=dict)
    """uid -> node, of every pod that was ever seen bound."""
    made: int = 0

    def prepare(self) -> None:
        self.cluster.nodes(*(small(name, labels={HOST: name}) for name in NODES))
        self.storage.classes()
        for name in NODES:
            offer(self.cluster, name, *(f"{name}-{i}" for i in range(2)))
            for i in range(2):
                self.storage.volume(f"v-{name}-{i}", name)

    def act(self) -> None:
        """One thing that users, other schedulers or the network do."""
        dice, cluster = self.dice, self.cluster
        self.made += 1
        name = f"p{self.made}"
        match dice.choices(
            ["pod", "gang", "volume", "device", "both", "delete", "foreign", "watch"], (6, 3, 2, 2, 1, 4, 1, 1)
        )[0]:
            case "pod":
                cluster.pod(name, cpu=str(dice.choice([1, 2])))
            case "gang":
                cluster.create(*gang(f"g{self.made}", dice.randrange(2, 6), gpus=dice.choice([1, 2])))
            case "volume":
                self.storage.claim(f"c{self.made}", dice.choice([LOCAL, MADE]))
                cluster.create(pod_with(name, f"c{self.made}", cpu="0"))
            case "device":
                claim(cluster, f"d{self.made}", dice.choice([1, 2]))
                cluster.create(claiming(name, f"d{self.made}", cpu="0"))
                if dice.random() < 0.4:
                    cluster.create(claiming(f"{name}-too", f"d{self.made}", cpu="0"))
            case "both":
                self.storage.claim(f"c{self.made}")
                claim(cluster, f"d{self.made}")
                manifest = pod_with(name, f"c{self.made}", cpu="0")
                manifest["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{self.made}"}]
                cluster.create(manifest)
            case "delete":
                if pods := sorted(cluster.pods()):
                    cluster.delete(dice.choice(pods))
            case "foreign":
                cluster.pod(name, cpu="1", scheduler_name="another")
                cluster.bind(name, dice.choice(NODES))
            case "watch":
                if dice.random() < 0.5:
                    cluster.server.faults.expire_versions()
                cluster.server.faults.drop_watches(abort=dice.random() < 0.5)
        self.look()

    def look(self) -> None:
        """No pod ever changes its node."""
        for obj in self.cluster.pods().values():
            if node := obj["spec"].get("nodeName"):
                assert self.seen.setdefault(obj["metadata"]["uid"], node) == node

    async def rage(self, steps: int) -> None:
        """Weather and acts, one after the other."""
        weather(self.cluster, self.dice)
        for _ in range(steps):
            self.act()
            await asyncio.sleep(self.dice.random() * 0.03)

    # -- at the end ---------------------------------------------------------------------------------------------------

    async def settled(self, scheduler: Scheduler) -> None:
        """Waits until the scheduler has nothing to do but wait."""
        busy = (State.ACTIVE, State.BACKOFF, State.IN_FLIGHT)

        def idle() -> bool:
            committer = scheduler.committer
            return not (
                committer.open
                or committer.aside
                or committer._releasing
                or scheduler.releaser._tasks
                or any(entry.state in busy for entry in scheduler.queue.entries())
                or (scheduler.pod_status is not None and scheduler.pod_status.waiting())
            )

        for _ in range(4):
            await until(lambda: self._is_known(scheduler), 20)
            await until(idle, 20)
            await asyncio.sleep(0.15)
        await until(idle, 20)
        self.look()

    def _is_known(self, scheduler: Scheduler) -> bool:
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

    def plan_afresh(self) -> RoundPlan:
        """What a planner does that knows nothing but the API server's objects."""
        state = ClusterState(storage=True, devices=True)
        for plural, kind in KINDS.items():
            for obj in self.cluster.server.store.list(plural):
                state.upsert(convert(obj, kind, strict=False))
        return plan_round(state.snapshot(0.0))

    def check(self) -> None:
        """Everything that must hold once all is quiet."""
        self._check_room()
        self._check_devices()
        self._check_volumes()
        self._check_gangs()
        plan = self.plan_afresh()
        assert plan.placements == (), "something is pending that fits"

    def _check_room(self) -> None:
        """Our pods alone never ask for more than a node has; another scheduler may win a race for a node."""
        room = {
            obj["metadata"]["name"]: obj["status"]["allocatable"] for obj in self.cluster.server.store.list("nodes")
        }
        for name in NODES:
            for resource in ("cpu", "nvidia.com/gpu"):
                used = sum(
                    int(obj["spec"]["containers"][0]["resources"]["requests"].get(resource, 0))
                    for obj in self.cluster.pods().values()
                    if obj["spec"].get("nodeName") == name and obj["spec"]["schedulerName"] != "another"
                )
                assert used <= int(room[name][resource]), f"{name} is overbooked by us"

    def _check_devices(self) -> None:
        pods = {obj["metadata"]["uid"]: obj for obj in self.cluster.pods().values()}
        given: list[tuple[str, str]] = []
        reserved: dict[str, set[str]] = {}
        for one in self.cluster.server.store.list(CLAIMS_OF_DEVICES):
            found = one.get("status", {})
            results = found.get("allocation", {}).get("devices", {}).get("results", [])
            given += [(result["pool"], result["device"]) for result in results]
            users = {user["uid"] for user in found.get("reservedFor", [])}
            reserved[one["metadata"]["name"]] = users
            for uid in users:
                if uid in pods and (node := pods[uid]["spec"].get("nodeName")):
                    assert {result["pool"] for result in results} == {node}
        assert len(given) == len(set(given)), "a device is given out twice"
        for uid, obj in pods.items():
            for wanted in obj["spec"].get("resourceClaims", []):
                if obj["spec"].get("nodeName"):
                    assert uid in reserved[wanted["resourceClaimName"]], "bound without its claim"

    def _check_volumes(self) -> None:
        for obj in self.cluster.pods().values():
            node = obj["spec"].get("nodeName")
            for volume in obj["spec"].get("volumes", []) if node else ():
                if "persistentVolumeClaim" not in volume:
                    continue
                bound = self.storage.get_claim(volume["persistentVolumeClaim"]["claimName"])["spec"]["volumeName"]
                affinity = self.storage.get_volume(bound)["spec"]["nodeAffinity"]
                (term,) = affinity["required"]["nodeSelectorTerms"]
                assert node in term["matchExpressions"][0]["values"], "bound where its volume is not"

    def _check_gangs(self) -> None:
        """A gang with fewer members bound than its minimum says so in its own status."""
        for group in self.cluster.server.store.list("podgroups.scheduling.sigs.k8s.io"):
            name, need = group["metadata"]["name"], group["spec"]["minMember"]
            bound = [key for key in self.cluster.places() if key.startswith(f"{name}-")]
            if 0 < len(bound) < need:
                status = self.cluster.group(name)
                assert status["scheduled"] == len(bound)
                said = {condition["type"]: condition for condition in status.get("conditions", [])}
                assert "Scheduled" in said, "a half bound gang says nothing"


async def through_a_storm(cluster: Live, seed: int) -> Storm:
    """Runs one schedule and checks its end."""
    dice = random.Random(seed)
    storm = Storm(cluster, dice, Storage(cluster.server))
    storm.prepare()
    async with storm.storage.controller():
        for _ in range(dice.choice([0, 0, 1])):
            async with cluster.running() as first:
                first.binder._settle_seconds = 0.05
                await storm.rage(dice.randrange(5, 15))
                # it dies: whatever it has begun stays as it is
                first.leading.clear()
        async with cluster.running() as scheduler:
            scheduler.binder._settle_seconds = 0.05
            await storm.rage(dice.randrange(10, 25))
            cluster.server.faults.clear()
            with suppress(TimeoutError):
                await storm.settled(scheduler)
            storm.check()
    return storm
