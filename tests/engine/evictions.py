# SPDX-License-Identifier: Apache-2.0
"""Whether whoever is evicted goes for somebody who waits, who had no room without, and who gets it in the end."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import convert

from koordpy.api import keys
from koordpy.api.claim_objects import DeviceClass, ResourceClaim, ResourceSlice
from koordpy.api.custom_objects import ClusterNetworkTopology, Device, ElasticQuota
from koordpy.api.objects import Node, Pod, PodDisruptionBudget
from koordpy.api.pod_groups import PodGroup
from koordpy.api.storage_objects import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordpy.api.times import rfc3339
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import Change
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.engine.dispatch import RoundInput
from koordpy.engine.evictions.evictor import EvictionPlan
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_info import PodInfo
from tests.engine import zone_scenes
from tests.engine.failures import NO_SEATS
from tests.engine.manifests import (
    BUDGETS,
    CLAIMS_OF_DEVICES,
    DEVICES,
    FRESH_SECONDS,
    GROUPS,
    QUOTAS,
    TOPOLOGIES,
    Manifest,
    annotations_of,
    gang_of,
    live_on_node,
    nominated_node,
)

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


def kinds_of(store: Store) -> dict[str, Any]:
    """What planners read of a server."""
    return {**KINDS, **zone_scenes.KINDS} if zone_scenes.serves_reports(store) else KINDS


LEAST_GRACE_SECONDS = 50.0
"""A stale gang has a minute (preemption.md 7); schedules begin with none."""


@dataclass
class _Plan:
    """What a unit evicted, and for whom: uids."""

    unit: str
    members: frozenset[str]
    nodes: frozenset[str]
    priority: int
    victims: dict[str, str]
    aware: bool
    """Whether its scheduler knew all there was when it began."""
    informed: bool
    """Whether it knew nothing more either, as Bindings and plans that are not written yet."""
    at: float
    coming: frozenset[str]
    """uids of all that were nominated then."""
    there: frozenset[str]
    """uids of all pods that there were then."""


@dataclass
class EvictionWatch:
    """Hears of every plan with victims, and looks at every pod that goes. `faults` gets what must never be."""

    server: ApiServer
    time: Callable[[], float]
    wall: Callable[[], float]
    """Epoch seconds, as whoever leads has them."""
    one_clock: Callable[[], bool]
    """Whether all that was ever written is by processes whose time of day has not jumped."""
    informed: Callable[[Scheduler], bool]
    faults: list[str]
    pods: Callable[[], dict[str, Manifest]]
    config: KoordpyConfiguration = NO_SEATS
    """The schedulers'."""
    count: int = 0
    _room_came: float = -FRESH_SECONDS
    _waiter_left: float = -FRESH_SECONDS
    _disturbed: float = -FRESH_SECONDS
    _plans: list[_Plan] = field(default_factory=list)
    _chosen: set[str] = field(default_factory=set)
    """uids of all that were ever chosen as victims."""
    _broken: dict[str, float] = field(default_factory=dict)
    """Gang -> when a member of it was chosen last."""
    _unquoted: dict[str, float] = field(default_factory=dict)
    """uids of pods without a quota -> when they were bound."""
    _planned_on: dict[Scheduler, frozenset[str]] = field(default_factory=dict)
    """uids of the pods that the last plan of a scheduler was made on."""
    _lawful: set[str] = field(default_factory=set)
    """uids of victims that go for nobody's sake: gangs that stay half bound, quotas beyond their runtime."""
    _known: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(uid, resourceVersion) -> the object as planners read it."""

    # -- what happens -------------------------------------------------------------------------------------------------

    def disturbed(self) -> None:
        """Others changed nodes, devices, quotas, budgets, groups or the topology."""
        self._room_came = self._waiter_left = self._disturbed = self.time()

    def acted(self) -> None:
        """Users did something."""
        self._disturbed = self.time()

    def written(self, change: Change, *, by_others: bool) -> None:
        """A pod was written."""
        obj, before = change.entry.obj, change.before.obj if change.before is not None else None
        now = self.time()
        fresh = now - self._room_came < FRESH_SECONDS
        if before is not None and nominated_node(before) and (change.kind == "DELETED" or not nominated_node(obj)):
            self._waiter_left = self._room_came = now
        if live_on_node(obj) and not (before is not None and live_on_node(before)) and not self._quota(obj):
            self._unquoted[obj["metadata"]["uid"]] = now
        if change.kind == "DELETED":
            self._room_came = now
            if not by_others:
                self._check_eviction(obj, fresh=fresh)
            return
        ends = before is not None and obj["metadata"].get("deletionTimestamp")
        if ends and before is not None and not before["metadata"].get("deletionTimestamp") and not by_others:
            self._check_eviction(obj, fresh=fresh)

    def _check_eviction(self, victim: Manifest, *, fresh: bool) -> None:
        """Whoever is evicted goes for somebody who waits, and who has no room without."""
        self.count += 1
        name, uid = victim["metadata"]["name"], victim["metadata"]["uid"]
        if uid not in self._chosen:
            self.faults.append(f"{name} is evicted, and no plan has chosen it")
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
        placed = {one.pod_key.partition("/")[2] for one in self.plan_afresh(evict=False, still_there=victim).placements}
        for plan in self._plans:
            # a gang's minimum may fit without, though more of it were to come when its victims were chosen
            gain = {key for key, obj in waiting.items() if obj["metadata"]["uid"] in plan.members}
            if uid in plan.victims and gain and gain <= placed:
                self.faults.append(f"{name} is evicted, and {sorted(gain)} fit without")

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
        dispatcher = scheduler._loop._dispatcher
        apply = dispatcher.apply

        def handed_on(plan: RoundPlan, begun: RoundInput, **options: Any) -> None:
            self._planned_on[scheduler] = frozenset(info.uid for info in begun.snapshot.pods.values())
            apply(plan, begun, **options)

        dispatcher.apply = handed_on  # type: ignore[method-assign]

    def _begun(self, plan: EvictionPlan, scheduler: Scheduler) -> _Plan:
        for victim in plan.evictions:
            self._chosen.add(victim.uid)
            if victim.rule == "repair":
                # its own gang is what it goes for
                self._lawful.add(victim.uid)
            if (info := scheduler.state.pod(victim.pod_key)) is not None and info.gang is not None:
                self._broken[info.gang.key] = self.time()
            if victim.rule == "stale-gang" and self._is_stale(victim.pod_key):
                self._lawful.add(victim.uid)
                if self.time() < LEAST_GRACE_SECONDS and self.one_clock() and not self._has_grace(victim.pod_key):
                    self.faults.append(f"{victim.pod_key} is given up before its gang has had its grace")
        there = {obj["metadata"]["uid"]: obj for obj in self.pods().values()}
        members = frozenset(one.uid for one in plan.nominations)
        for old in self._plans:
            kept = all(uid in there and nominated_node(there[uid]) for uid in old.members)
            gone = {uid for uid, obj in there.items() if obj["metadata"].get("deletionTimestamp")}
            ending = [name for uid, name in old.victims.items() if uid in gone]
            if any(info.node in old.nodes and info.priority > old.priority for info in scheduler.state.assumed_pods()):
                # who is more important has taken the room that was made
                continue
            if self._disturbed > old.at or not self.one_clock():
                # the room may not come any more, or seems not to: what ends too long ago is stuck (preemption.md 4)
                continue
            if self._is_tied(old, there):
                continue
            new = [victim.pod_key for victim in plan.evictions if victim.uid not in old.victims]
            if old.unit == plan.unit and old.members == members and kept and ending and new:
                self.faults.append(f"{plan.unit} takes {new} while {ending} are ending for it")
        infos = [info for one in plan.nominations if (info := scheduler.state.pod(one.pod_key)) is not None]
        # a pod that came while the plan was made may want what its quota lends, and was not counted
        aware = self.informed(scheduler) and set(there) <= self._planned_on[scheduler]
        begun = _Plan(
            plan.unit,
            members,
            frozenset(one.node for one in plan.nominations),
            min((info.priority for info in infos), default=0),
            {victim.uid: victim.pod_key for victim in plan.evictions},
            aware,
            aware and not scheduler.state.assumed_pods() and (scheduler.evictor is None or not scheduler.evictor.open),
            self.time(),
            frozenset(info.uid for info in scheduler.state.nominated()),
            frozenset(there),
        )
        self._plans.append(begun)
        return begun

    def _is_tied(self, plan: _Plan, there: dict[str, Manifest]) -> bool:
        """Whether a claim of the victims is also reserved for a deleted pod: a pod that is neither a victim nor
        finished keeps the devices (dra.md 10), until the reservation is released."""
        for claim in self.server.store.list(CLAIMS_OF_DEVICES):
            users = {user["uid"] for user in claim.get("status", {}).get("reservedFor", [])}
            if users & plan.victims.keys() and users - there.keys():
                return True
        return False

    def _quota(self, obj: Manifest) -> str:
        """The quota that a pod counts in; empty for none of its own."""
        name: str = obj["metadata"].get("labels", {}).get(keys.QUOTA_NAME, "")
        return name if any(one["metadata"]["name"] == name for one in self.server.store.list(QUOTAS)) else ""

    def _is_stale(self, key: str) -> bool:
        """Whether a pod's gang, or another gang of its GangGroup, has fewer members bound than its minimum. All of them
        go together (repair.md 4.3)."""
        pods = self.pods()
        name = pods[key.partition("/")[2]]["metadata"]["labels"][keys.LABEL_POD_GROUP]
        groups = {group["metadata"]["name"]: group for group in self.server.store.list(GROUPS)}
        if name not in groups:
            return False
        joint = json.loads(annotations_of(groups[name]).get(keys.GANG_GROUPS, "[]"))
        names = {name, *(one.partition("/")[2] for one in joint)} & groups.keys()
        bound = Counter(gang_of(obj) for obj in pods.values() if live_on_node(obj))
        return any(bound[one] < groups[one]["spec"]["minMember"] for one in names)

    def _has_grace(self, key: str) -> bool:
        """Whether a pod's gang says itself how long it has before it is given up."""
        name = self.pods()[key.partition("/")[2]]["metadata"]["labels"][keys.LABEL_POD_GROUP]
        (group,) = [one for one in self.server.store.list(GROUPS) if one["metadata"]["name"] == name]
        return keys.GANG_STALE_GRACE in annotations_of(group)

    # -- what would be best -------------------------------------------------------------------------------------------

    def known_state(self) -> ClusterState:
        """What the API server's objects say."""
        state: ClusterState = make_state(live=True, repair=self.config.repair)
        for plural, kind in kinds_of(self.server.store).items():
            for obj in self.server.store.list(plural):
                state.upsert(self._converted(obj, kind))
        return state

    def _converted(self, obj: Manifest, kind: Any) -> Any:
        """The object as planners read it; remembered, because few have changed when it is asked for again."""
        seen = (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
        if seen not in self._known:
            self._known[seen] = convert(obj, kind, strict=False)
        return self._known[seen]

    def plan_afresh(self, *, evict: bool, still_there: Manifest | None = None) -> RoundPlan:
        """What a planner does that knows nothing but the API server's objects; still_there: a pod that stays."""
        state = self.known_state()
        if still_there is not None:
            # who was chosen for others goes, though the API server may not have been told yet
            uid = still_there["metadata"]["uid"]
            chosen = {one for plan in self._plans for one in plan.victims if uid not in plan.victims}
            for info in [info for info in state.pods() if info.uid in chosen and info.bound]:
                state.foresee_end(info.key, rfc3339(datetime.fromtimestamp(self.wall(), UTC)))
            meta = {key: value for key, value in still_there["metadata"].items() if key != "deletionTimestamp"}
            state.upsert(convert({**still_there, "metadata": meta}, Pod, strict=False))
        return plan_round(state.snapshot(self.wall()), self.config, evict=evict)

    def check_end(self) -> None:
        """Whoever others went for since users did anything is bound, unless somebody more important took the room, or a
        member of a lower rank that came later."""
        pods = {obj["metadata"]["uid"]: obj for obj in self.pods().values()}
        for plan in self._plans:
            if not plan.aware or plan.at <= self._disturbed or not plan.members <= set(pods):
                continue
            if any(self._quota(pods[uid]) for uid in plan.members) and any(
                at >= plan.at and uid not in plan.coming for uid, at in self._unquoted.items()
            ):
                # what others use without a quota is taken off what quotas share; limits are those of a round's begin
                continue
            labels = (pods[uid]["metadata"].get("labels", {}) for uid in plan.members)
            gangs = (f"default/{one[keys.LABEL_POD_GROUP]}" for one in labels if keys.LABEL_POD_GROUP in one)
            if any(self._broken.get(gang, plan.at) > plan.at for gang in gangs):
                # its own gang went for others
                continue
            left = [pods[uid] for uid in plan.members if not live_on_node(pods[uid])]
            # a member that ran is gone with its node
            waiting = sorted(obj["metadata"]["name"] for obj in left if "waiting for members" not in _told(obj))
            there = [obj for obj in pods.values() if live_on_node(obj) and obj["spec"]["nodeName"] in plan.nodes]
            over = any(obj["spec"].get("priority", 0) > plan.priority for obj in there)
            if waiting and not over:
                infos = {info.uid: info for info in self.known_state().pods()}
                late = [infos[uid] for obj in there if (uid := obj["metadata"]["uid"]) not in plan.there]
                over = are_overtaken([infos[uid] for uid in plan.members if infos[uid].name in waiting], late)
            assert over or not waiting, f"{list(plan.victims.values())} went for {waiting}, that wait all the same"


def are_overtaken(waiting: Iterable[PodInfo], late: Iterable[PodInfo]) -> bool:
    """Whether each that waits has one of its own gang, of a lower rank, among those that came late and have room: the
    lowest ranks start first (gang-network.md 2.6), also in room that was made for higher ones."""
    left = list(late)
    for one in sorted(waiting, key=lambda info: info.order):
        before = [other for other in left if one.gang and other.gang == one.gang and other.order < one.order]
        if not before:
            return False
        left.remove(before[0])
    return True


def _told(obj: Manifest) -> str:
    """What a pod is told of why it waits."""
    return "; ".join(one.get("message", "") for one in obj.get("status", {}).get("conditions", ()))
