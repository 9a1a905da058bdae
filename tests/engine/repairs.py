# SPDX-License-Identifier: Apache-2.0
"""What must hold of gangs that have lost members, whatever else happens (docs/rules/repair.md 4).

In every plan: seats are on free room, no more of them than members are missing, none beyond the time of seats, and no
pod that may not use them is placed where a missing member would fit. At the end a gang with fewer live members than its
minimum says so in the condition Degraded, and no other gang does.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from koordpy.api import keys
from koordpy.api.objects import condition_of
from koordpy.api.pod_groups import PodGroup
from koordpy.api.times import seconds
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.resource_shelf import Change
from koordpy.cache.snapshot import Snapshot
from koordpy.config.node_failures import Repair
from koordpy.engine.dispatch import RoundInput
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import RoundPlan
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from tests.engine.failures import marks
from tests.engine.manifests import DEVICES, GROUPS, Manifest, gang_of, live_on_node, minors

HOLDS = {"0s": 0.0, "2s": 2.0}
"""Readable values of the annotation seat-hold, in seconds."""
GRACES = {"0s": 0.0, "2s": 2.0, "-1": inf}
"""Values of the annotation stale-grace, in seconds; inf: never."""
ROUNDED_SECONDS = 1.0
"""Times of conditions are whole seconds."""
LATE_SECONDS = 5.0
"""Whoever evicts may be so late to know that a GPU is well again."""


@dataclass
class RepairWatch:
    """Looks at every plan and every eviction for the sake of repair. `faults` gets what must never be."""

    server: ApiServer
    time: Callable[[], float]
    wall: Callable[[], float]
    one_clock: Callable[[], bool]
    settings: Repair
    faults: list[str]
    tally: Counter[str]
    """How often there was what is looked at."""
    changed: float = 0.0
    """When a node, a pod or a group was written last, by `time`."""
    _regrouped: set[str] = field(default_factory=set)
    """PodGroups whose minimum or members others have changed: what they have lost is not known."""
    _sick: dict[tuple[str, int], float] = field(default_factory=dict)
    """(node, minor) of a GPU that was ever sick -> until when, in seconds since 1970."""

    def __post_init__(self) -> None:
        self.server.store.listeners.append(self._written)

    def listen(self, scheduler: Scheduler) -> None:
        """Hears of every plan."""
        dispatcher = scheduler._loop._dispatcher
        apply = dispatcher.apply

        def heard(plan: RoundPlan, begun: RoundInput, **options: Any) -> None:
            self._check(plan, begun.snapshot)
            apply(plan, begun, **options)

        dispatcher.apply = heard  # type: ignore[method-assign]

    def _written(self, shelf: str, change: Change) -> None:
        obj, before = change.entry.obj, change.before.obj if change.before is not None else None
        if shelf in ("nodes", "pods", GROUPS):
            self.changed = self.time()
        if shelf == GROUPS and change.kind == "MODIFIED" and before is not None:
            if obj["spec"].get("minMember") != before["spec"].get("minMember"):
                self._regrouped.add(obj["metadata"]["name"])
        elif shelf == GROUPS and change.kind == "DELETED":
            self._regrouped.add(obj["metadata"]["name"])
        elif shelf == "pods" and before is not None and gang_of(before) != gang_of(obj):
            self._regrouped |= {gang_of(before), gang_of(obj)}
        elif shelf == DEVICES:
            for gpu in before["spec"]["devices"] if before is not None else ():
                if not gpu.get("health"):
                    self._sick[obj["metadata"]["name"], gpu["minor"]] = self.wall()
            for gpu in obj["spec"]["devices"] if change.kind != "DELETED" else ():
                if not gpu.get("health"):
                    self._sick[obj["metadata"]["name"], gpu["minor"]] = inf

    # -- seats --------------------------------------------------------------------------------------------------------

    def _check(self, plan: RoundPlan, snapshot: Snapshot) -> None:
        broken, ending, favoured = {}, set(), set()
        placed = {one.pod_key: one.node for one in plan.placements}
        evicted = {one.pod_key for one in plan.evictions}
        for key, group in snapshot.pod_groups.items():
            members = snapshot.members.get(GangRef.from_key(key), ())
            live = [pod for pod in members if pod.bound and not pod.lost]
            if live and len(live) < group.spec.min_member:
                # with the gangs that it is planned with
                favoured |= {key, *json.loads(group.metadata.annotations.get(keys.GANG_GROUPS, "[]"))}
            missing = group.spec.min_member - len(live) - sum(pod.key in placed for pod in members)
            if any(pod.key in evicted or pod.pod.metadata.deletion_timestamp for pod in live):
                # it is given up, or moves: its seats matter no more
                ending.add(key)
            elif live and missing > 0:
                broken[key] = (group, members, live, missing)
        free = self._free(snapshot, placed, evicted)
        used = np.zeros_like(free, dtype=bool)  # what seats need: others may be overbooked by another scheduler
        for key, kept in plan.seats.items():
            number = sum(kept.nodes.values())
            self.tally["seats"] += number
            if key in ending:
                continue
            if key not in broken:
                self.faults.append(f"{key} is not broken and has seats on {dict(kept.nodes)}")
                continue
            group, members, live, missing = broken[key]
            if number > missing:
                self.faults.append(f"{key} lacks {missing} members and has seats on {dict(kept.nodes)}")
            self._check_time(key, group, kept.until, snapshot)
            least = np.min([snapshot.requests_of([pod]) for pod in members], axis=0)
            for node, count in kept.nodes.items():
                free[snapshot.index[node]] -= count * least
                used[snapshot.index[node]] |= least > 0
        seated = {node for key, kept in plan.seats.items() if key in broken for node in kept.nodes}
        for node in sorted(seated):
            row = snapshot.index[node]
            if (used[row] & (free[row] < 0)).any():
                kept_there = {key: kept.nodes[node] for key, kept in plan.seats.items() if node in kept.nodes}
                placed_there = [key for key, at in placed.items() if at == node]
                self.faults.append(f"{node} has no room for seats {kept_there} beside {placed_there}")
        self._check_evictions(plan, snapshot, {*broken, *ending})
        for key, (group, members, live, missing) in broken.items():
            lacks = missing - sum(plan.seats[key].nodes.values() if key in plan.seats else ())
            known = self.one_clock() and group.metadata.name not in self._regrouped
            if lacks > 0 and known and self._until(group, snapshot) > snapshot.now + ROUNDED_SECONDS:
                self._check_fillers(key, group, members, live, free, placed, favoured, snapshot)

    def _free(self, snapshot: Snapshot, placed: dict[str, str], evicted: set[str]) -> Any:
        """[nodes, resources] what is free once the evicted pods are gone and the placed ones are there."""
        free = snapshot.allocatable - snapshot.used
        for key in evicted:
            free[snapshot.index[snapshot.pods[key].node]] += snapshot.requests_of([snapshot.pods[key]])
        for key, node in placed.items():
            free[snapshot.index[node]] -= snapshot.requests_of([snapshot.pods[key]])
        return free

    def _until(self, group: Any, snapshot: Snapshot) -> float:
        """When the seats of a gang end: as late as possible where its condition does not say yet."""
        said = condition_of(group.status.conditions, "Degraded")
        known = said is not None and said.status == "True" and said.last_transition_time
        text = group.metadata.annotations.get(keys.GANG_SEAT_HOLD, "")
        hold = HOLDS.get(text, self.settings.seat_hold)
        stale = condition_of(group.status.conditions, "Stale")
        if not known and stale is not None and stale.status == "True":
            known, said = True, stale
        ref = GangRef(group.metadata.namespace, group.metadata.name)
        first = snapshot.broken_since.get(ref, snapshot.now)
        return hold + (seconds(said.last_transition_time) if known and said is not None else first)

    def _check_time(self, key: str, group: Any, until: float, snapshot: Snapshot) -> None:
        if until <= snapshot.now:
            self.faults.append(f"{key} has seats whose time is over")
        if self.one_clock() and until > self._until(group, snapshot) + ROUNDED_SECONDS:
            self.faults.append(f"{key} has seats for {until - snapshot.now:g} s")

    def _check_fillers(
        self,
        key: str,
        group: Any,
        members: Iterable[PodInfo],
        live: list[PodInfo],
        free: Any,
        placed: dict[str, str],
        favoured: set[str],
        snapshot: Snapshot,
    ) -> None:
        """No pod is placed where a member would fit that has no seat; only for gangs without rules about places."""
        notes = group.metadata.annotations
        if keys.GANG_TOPOLOGY in notes or keys.GANG_GROUPS in notes:
            return
        specs = [pod.pod.spec for pod in members]
        if any(one.volumes or one.resource_claims for one in specs) or any(pod.owner.quota for pod in members):
            return
        most = np.max([snapshot.requests_of([pod]) for pod in members], axis=0)
        rank = min(pod.priority for pod in live)
        promised = {one.node for one in snapshot.reservations.values()}
        for other, node in placed.items():
            pod = snapshot.pods[other]
            row = snapshot.index[node]
            info = snapshot.nodes[row]
            if pod.priority > rank or (pod.gang and pod.gang.key in favoured):
                continue
            sick = any(at == node and until + LATE_SECONDS > self.wall() for (at, _), until in self._sick.items())
            if info.unschedulable or info.taints or node in snapshot.lost_nodes or sick:
                continue
            before, without = snapshot.allocatable[row] - snapshot.used[row], free[row] + snapshot.requests_of([pod])
            takes = (np.minimum(before, without) >= most).all() and not (free[row] >= most).all()
            if takes and node not in promised:
                self.faults.append(f"{other} is placed on {node}, where a member of {key} would fit that has no seat")

    # -- evictions ----------------------------------------------------------------------------------------------------

    def _check_evictions(self, plan: RoundPlan, snapshot: Snapshot, broken: Collection[str]) -> None:
        """Nothing goes for a gang that is to wait; gangs move as their policy says, and members whose GPUs are sick."""
        for victim in plan.evictions:
            self.tally[f"goes by {victim.rule}"] += 1
            pod = snapshot.pods[victim.pod_key]
            group = snapshot.pod_groups.get(victim.beneficiary or "")
            if group is None:
                continue
            notes, policy = group.metadata.annotations, self._policy(group)
            joint = keys.GANG_GROUPS in notes
            if victim.rule == "stale-gang":
                grace = GRACES.get(notes.get(keys.GANG_STALE_GRACE, ""), inf)
                if self._stale_since(group, snapshot) + grace > snapshot.now and not joint and self.one_clock():
                    self.faults.append(f"{victim.pod_key} is given up, and its gang has a grace of {grace:g} s")
            elif policy == "wait" and not joint and (victim.beneficiary in broken or victim.rule == "repair"):
                self.faults.append(f"{victim.pod_key} goes for {victim.beneficiary}, which is to wait")
            elif victim.rule == "repair" and not joint and self._is_well(pod):
                have = sum(one.bound and not one.lost for one in snapshot.members[pod.gang]) if pod.gang else 0
                if policy != "regather" or have >= group.spec.min_member:
                    self.faults.append(f"{victim.pod_key} moves, and its GPUs are well")

    def _stale_since(self, group: PodGroup, snapshot: Snapshot) -> float:
        stale = condition_of(group.status.conditions, "Stale")
        known = stale is not None and stale.status == "True"
        return seconds(stale.last_transition_time) if stale is not None and known else snapshot.now

    def _is_well(self, pod: PodInfo) -> bool:
        """Whether no GPU that a pod holds is or was sick lately."""
        until = [
            self._sick.get((pod.node, minor), 0.0)
            for minor in minors({"metadata": {"annotations": pod.pod.metadata.annotations}})
        ]
        return max(until, default=0.0) + LATE_SECONDS < self.wall() or self.settings.sick_devices == "tell"

    def _policy(self, group: PodGroup) -> str:
        said = group.metadata.annotations.get(keys.GANG_REPAIR, "")
        return said if said in ("replace", "regather", "wait") else self.settings.policy

    # -- the end ------------------------------------------------------------------------------------------------------

    def live(self, group: Manifest, pods: dict[str, Manifest]) -> list[Manifest]:
        """Bound members that are not lost with their nodes."""
        return self.sound(self._present(group, pods))

    def sound(self, pods: Iterable[Manifest]) -> list[Manifest]:
        """Pods that are on a node that is not lost."""
        nodes = {one["metadata"]["name"]: one for one in self.server.store.list("nodes")}
        return [obj for obj in pods if not self._is_lost(nodes.get(obj["spec"].get("nodeName", "")))]

    def _present(self, group: Manifest, pods: dict[str, Manifest]) -> list[Manifest]:
        members = [obj for obj in pods.values() if gang_of(obj) == group["metadata"]["name"]]
        return [obj for obj in members if live_on_node(obj)]

    def _is_lost(self, node: Manifest | None) -> bool:
        if node is None:
            return True
        return any(seconds(at or None) + self.settings.lost_after <= self.wall() for _, at in marks(node))

    def check_end(self, pods: dict[str, Manifest]) -> None:
        """Who has fewer live members than its minimum says so, and nobody else does."""
        for group in self.server.store.list(GROUPS):
            name, need = group["metadata"]["name"], group["spec"]["minMember"]
            live = len(self.live(group, pods))
            said = {one["type"]: one for one in group.get("status", {}).get("conditions", [])}.get("Degraded", {})
            if name in self._regrouped:
                continue
            if 0 < live < need:
                self.tally["degraded at the end"] += 1
                assert said.get("status") == "True", f"{name} has {live} of {need} members and is not Degraded: {said}"
                assert said["message"].startswith(f"{live} of {need} members"), f"{name} has {live} of {need}: {said}"
            else:
                assert said.get("status") != "True", f"{name} has {live} of {need} members and is Degraded: {said}"
