"""What must hold at every write to a cluster that koordpy schedules, and once all is quiet, whatever went wrong before.

At every write: no pod changes its node, no node and no quota is over-booked by us, no GPU and no device is given out
twice, nobody is bound without what he claims, nobody is evicted for nobody. At the end nothing waits that fits or that
may make its room, no nomination and no reservation is left over, and a gang that is half bound says so.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import convert

from koordpy.api import keys
from koordpy.api.custom import ClusterNetworkTopology, Device, ElasticQuota
from koordpy.api.dra import DeviceClass, ResourceClaim, ResourceSlice
from koordpy.api.groups import PodGroup
from koordpy.api.objects import Node, Pod, PodDisruptionBudget
from koordpy.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordpy.cluster.state import ClusterState
from koordpy.engine.evictor import EvictionPlan
from koordpy.engine.patches import rfc3339
from koordpy.engine.scheduler import Scheduler
from koordpy.planning.plan import RoundPlan
from koordpy.planning.round import plan_round
from koordpy.sim.server import ApiServer
from koordpy.sim.shelf import Change

Manifest = dict[str, Any]
GPU = "nvidia.com/gpu"
GROUPS, DEVICES = "podgroups.scheduling.sigs.k8s.io", "devices.scheduling.koordinator.sh"
QUOTAS, BUDGETS = "elasticquotas.scheduling.sigs.k8s.io", "poddisruptionbudgets.policy"
TOPOLOGIES = "clusternetworktopologies.scheduling.koordinator.sh"
CLAIMS_OF_DEVICES = "resourceclaims.resource.k8s.io"
KINDS: dict[str, Any] = {
    TOPOLOGIES: ClusterNetworkTopology,
    "nodes": Node,
    DEVICES: Device,
    QUOTAS: ElasticQuota,
    BUDGETS: PodDisruptionBudget,
    GROUPS: PodGroup,
    "persistentvolumes": PersistentVolume,
    "persistentvolumeclaims": PersistentVolumeClaim,
    "storageclasses.storage.k8s.io": StorageClass,
    CLAIMS_OF_DEVICES: ResourceClaim,
    "resourceslices.resource.k8s.io": ResourceSlice,
    "deviceclasses.resource.k8s.io": DeviceClass,
    "pods": Pod,
}
OURS = keys.DEFAULT_SCHEDULER_NAME
FRESH_SECONDS = 1.0
"""Room that came this lately may be unknown to a plan that is being carried out."""


def minors(obj: Manifest) -> list[int]:
    """The GPUs written on a pod."""
    text = obj["metadata"].get("annotations", {}).get(keys.GPU_ALLOCATION)
    lists = json.loads(text)["allocatedGPUs"].values() if text else ()
    return [int(one) for each in lists for one in each]


def asked(obj: Manifest, resource: str) -> int:
    return int(obj["spec"]["containers"][0]["resources"]["requests"].get(resource, 0))


def live_on_node(obj: Manifest) -> bool:
    return bool(obj["spec"].get("nodeName")) and obj.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def nominated_node(obj: Manifest) -> str:
    return "" if obj["spec"].get("nodeName") else obj.get("status", {}).get("nominatedNodeName") or ""


@dataclass
class _Plan:
    """What a unit evicted, and for whom: uids."""

    unit: str
    members: frozenset[str]
    nodes: frozenset[str]
    priority: int
    victims: dict[str, str]
    informed: bool
    """Whether all that its scheduler knew when it began was what there was: nothing more, as Bindings and
    plans that are not written yet, and nothing less."""


@dataclass
class Watchman:
    """Looks at every write. `by_others`: whether the write under way is a user's, a controller's or a kubelet's."""

    server: ApiServer
    time: Callable[[], float]
    wall: Callable[[], float]
    by_others: Callable[[], bool]
    informed: Callable[[Scheduler], bool]
    seen: dict[str, str] = field(default_factory=dict)
    """uid -> node, of every pod that was ever seen bound."""
    evicted: int = 0
    faults: list[str] = field(default_factory=list)
    """What was seen that must never be."""
    _room_came: float = -FRESH_SECONDS
    _waiter_left: float = -FRESH_SECONDS
    _plans: list[_Plan] = field(default_factory=list)
    _lawful: set[str] = field(default_factory=set)
    """uids of victims that go for nobody's sake: gangs that stay half bound, quotas beyond their runtime."""

    def __post_init__(self) -> None:
        self.server.store.listeners.append(self._written)

    def pods(self) -> dict[str, Manifest]:
        return {obj["metadata"]["name"]: obj for obj in self.server.store.list("pods")}

    # -- at every write -----------------------------------------------------------------------------------------------

    def _written(self, shelf: str, change: Change) -> None:
        if shelf == CLAIMS_OF_DEVICES and change.kind != "DELETED":
            self._check_devices()
        if shelf != "pods":
            return
        obj, before = change.entry.obj, change.before.obj if change.before is not None else None
        now = self.time()
        fresh = now - self._room_came < FRESH_SECONDS
        if before is not None and nominated_node(before) and (change.kind == "DELETED" or not nominated_node(obj)):
            self._waiter_left = self._room_came = now
        if change.kind == "DELETED":
            self._room_came = now
            if not self.by_others():
                self._check_eviction(obj, fresh=fresh)
            return
        if node := obj["spec"].get("nodeName"):
            if self.seen.setdefault(obj["metadata"]["uid"], node) != node:
                self.faults.append(f"{obj['metadata']['name']} changed its node")
            if before is not None and not before["spec"].get("nodeName") and obj["spec"]["schedulerName"] == OURS:
                self._check_bound(obj, node)
        ends = before is not None and obj["metadata"].get("deletionTimestamp")
        if ends and before is not None and not before["metadata"].get("deletionTimestamp") and not self.by_others():
            self._check_eviction(obj, fresh=fresh)

    def _check_bound(self, obj: Manifest, node: str) -> None:
        name = obj["metadata"]["name"]
        self.check_node(node)
        self._check_quotas()
        if self.server.store.list(DEVICES) and len(minors(obj)) != asked(obj, GPU):
            self.faults.append(f"{name} is bound to {node} without its GPUs: {minors(obj)}")
        for wanted in obj["spec"].get("resourceClaims", []):
            status = self._claim(wanted["resourceClaimName"]).get("status", {})
            if obj["metadata"]["uid"] not in {user["uid"] for user in status.get("reservedFor", [])}:
                self.faults.append(f"{name} is bound without its claim {wanted['resourceClaimName']}")
            results = status.get("allocation", {}).get("devices", {}).get("results", [])
            if {result["pool"] for result in results} != {node}:
                self.faults.append(f"{name} is bound to {node}, its devices are elsewhere")
        for volume in obj["spec"].get("volumes", []):
            if "persistentVolumeClaim" in volume:
                self._check_volume(name, node, volume["persistentVolumeClaim"]["claimName"])

    def _check_volume(self, name: str, node: str, claim: str) -> None:
        store = self.server.store
        bound = store.get("persistentvolumeclaims", claim, "default")["spec"].get("volumeName")
        if not bound:
            self.faults.append(f"{name} is bound before its volume")
            return
        (term,) = store.get("persistentvolumes", bound)["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        if node not in term["matchExpressions"][0]["values"]:
            self.faults.append(f"{name} is bound to {node}, where its volume is not")

    def check_node(self, node: str) -> None:
        """Our pods alone never ask for more than a node has; another scheduler may win a race for a node."""
        there = [obj for obj in self.pods().values() if live_on_node(obj) and obj["spec"]["nodeName"] == node]
        ours = [obj for obj in there if obj["spec"]["schedulerName"] == OURS]
        named = [minor for obj in there for minor in minors(obj)]
        if len(named) != len(set(named)):
            told = {obj["metadata"]["name"]: minors(obj) for obj in there}
            self.faults.append(f"a GPU of {node} is given out twice: {told}")
        room = self.server.store.get("nodes", node)["status"]["allocatable"]
        for resource in ("cpu", GPU):
            if sum(asked(obj, resource) for obj in ours) > int(room[resource]):
                held = {obj["metadata"]["name"]: asked(obj, resource) for obj in ours}
                self.faults.append(f"{node} is overbooked by us: {resource} {held}")

    def _check_quotas(self) -> None:
        for quota in self.server.store.list(QUOTAS):
            name, most = quota["metadata"]["name"], int(quota["spec"]["max"][GPU])
            used = sum(
                asked(obj, GPU)
                for obj in self.pods().values()
                if live_on_node(obj) and obj["metadata"].get("labels", {}).get(keys.QUOTA_NAME) == name
            )
            if used > most:
                self.faults.append(f"quota {name} holds {used} GPUs, its max is {most}")

    def _claim(self, name: str) -> Manifest:
        return self.server.store.get(CLAIMS_OF_DEVICES, name, "default")

    def _check_devices(self) -> None:
        given: list[tuple[str, str]] = []
        for one in self.server.store.list(CLAIMS_OF_DEVICES):
            results = one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            given += [(result["pool"], result["device"]) for result in results]
        if len(given) != len(set(given)):
            self.faults.append(f"a device is given out twice: {sorted(given)}")

    # -- evictions ----------------------------------------------------------------------------------------------------

    def _check_eviction(self, victim: Manifest, *, fresh: bool) -> None:
        """Whoever is evicted goes for somebody who waits, and who has no room without."""
        self.evicted += 1
        name, uid = victim["metadata"]["name"], victim["metadata"]["uid"]
        if uid in self._lawful:
            return
        waiting = {key: obj for key, obj in self.pods().items() if nominated_node(obj)}
        if not waiting and self.time() - self._waiter_left > FRESH_SECONDS:
            self.faults.append(f"{name} is evicted for nobody")
            return
        if fresh or not all(plan.informed for plan in self._plans if uid in plan.victims):
            return
        uids = {obj["metadata"]["uid"] for obj in waiting.values()}
        if any(plan.members & uids for plan in self._plans if uid not in plan.victims):
            # another unit's victims have begun to go: in its room, which it will take, everybody fits
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
            begun = self._begun(plan, scheduler)

            def ended(plan: EvictionPlan, why: str) -> None:
                if why:
                    # dropped: the unit begins anew
                    self._plans.remove(begun)
                done(plan, why)

            submit(plan, ended)

        evictor.submit = heard  # type: ignore[method-assign]

    def _begun(self, plan: EvictionPlan, scheduler: Scheduler) -> _Plan:
        for victim in plan.evictions:
            if victim.rule == "stale-gang" and self._is_stale(victim.pod_key):
                self._lawful.add(victim.uid)
        there = {obj["metadata"]["uid"]: obj for obj in self.pods().values()}
        members = frozenset(one.uid for one in plan.nominations)
        for old in self._plans:
            kept = all(uid in there and nominated_node(there[uid]) for uid in old.members)
            gone = {uid for uid, obj in there.items() if obj["metadata"].get("deletionTimestamp")}
            ending = [name for uid, name in old.victims.items() if uid in gone]
            if any(info.node in old.nodes and info.priority > old.priority for info in scheduler.state.assumed_pods()):
                # who is more important has taken the room that was made
                continue
            new = [victim.pod_key for victim in plan.evictions if victim.uid not in old.victims]
            if old.unit == plan.unit and old.members == members and kept and ending and new:
                self.faults.append(f"{plan.unit} takes {new} while {ending} are ending for it")
        infos = [info for one in plan.nominations if (info := scheduler.state.pod(one.pod_key)) is not None]
        begun = _Plan(
            plan.unit,
            members,
            frozenset(one.node for one in plan.nominations),
            min((info.priority for info in infos), default=0),
            {victim.uid: victim.pod_key for victim in plan.evictions},
            self.informed(scheduler)
            and not scheduler.state.assumed_pods()
            and (scheduler.evictor is None or not scheduler.evictor.open),
        )
        self._plans.append(begun)
        return begun

    def _is_stale(self, key: str) -> bool:
        """Whether a pod is of a gang that has fewer members bound than its minimum."""
        pods = self.pods()
        name = pods[key.partition("/")[2]]["metadata"]["labels"][keys.LABEL_POD_GROUP]
        groups = {group["metadata"]["name"]: group["spec"]["minMember"] for group in self.server.store.list(GROUPS)}
        members = [obj for obj in pods.values() if obj["metadata"].get("labels", {}).get(keys.LABEL_POD_GROUP) == name]
        return sum(map(live_on_node, members)) < groups.get(name, 0)

    # -- at the end ---------------------------------------------------------------------------------------------------

    def plan_afresh(self, *, evict: bool, still_there: Manifest | None = None) -> RoundPlan:
        """What a planner does that knows nothing but the API server's objects; still_there: a pod that stays."""
        state = ClusterState(storage=True, devices=True)
        for plural, kind in KINDS.items():
            for obj in self.server.store.list(plural):
                state.upsert(convert(obj, kind, strict=False))
        if still_there is not None:
            # who was chosen for others goes, though the API server may not have been told yet
            uid = still_there["metadata"]["uid"]
            chosen = {one for plan in self._plans for one in plan.victims if uid not in plan.victims}
            for info in [info for info in state.pods() if info.uid in chosen and info.bound]:
                state.foresee_end(info.key, rfc3339(datetime.fromtimestamp(self.wall(), UTC)))
            meta = {key: value for key, value in still_there["metadata"].items() if key != "deletionTimestamp"}
            state.upsert(convert({**still_there, "metadata": meta}, Pod, strict=False))
        return plan_round(state.snapshot(self.wall()), evict=evict)

    def check_end(self) -> None:
        """Everything that must hold once all is quiet."""
        pods = self.pods()
        for node in self.server.store.list("nodes"):
            self.check_node(node["metadata"]["name"])
        assert not self.faults, "; ".join(self.faults)
        left = {name: nominated_node(obj) for name, obj in pods.items() if nominated_node(obj)}
        assert not left, f"nominations are left over: {left}"
        uids = {obj["metadata"]["uid"] for obj in pods.values()}
        for claim in self.server.store.list(CLAIMS_OF_DEVICES):
            users = {user["uid"]: user["name"] for user in claim.get("status", {}).get("reservedFor", [])}
            gone = sorted(name for uid, name in users.items() if uid not in uids)
            assert not gone, f"claim {claim['metadata']['name']} is reserved for {gone}, that are gone"
        self._check_gangs(pods)
        plan = self.plan_afresh(evict=True)
        assert plan.placements == (), f"something is pending that fits: {[one.pod_key for one in plan.placements]}"
        assert plan.evictions == (), f"something waits that may make its room: {plan.evictions}"

    def _check_gangs(self, pods: dict[str, Manifest]) -> None:
        """A gang with fewer members bound than its minimum says so in its own status."""
        for group in self.server.store.list(GROUPS):
            name, need = group["metadata"]["name"], group["spec"]["minMember"]
            bound = [key for key, obj in pods.items() if key.startswith(f"{name}-") and obj["spec"].get("nodeName")]
            if 0 < len(bound) < need:
                status = group.get("status", {})
                said = {condition["type"] for condition in status.get("conditions", [])}
                assert "Scheduled" in said, f"half bound {name} says nothing"
                assert status.get("scheduled") == len(bound), f"half bound {name}: {status}, bound are {bound}"
