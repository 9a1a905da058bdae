# SPDX-License-Identifier: Apache-2.0
"""What must hold at every write to a cluster that koordpy schedules, and once all is quiet, whatever went wrong before.

At every write: no pod changes its node; by our Bindings no node and no quota is over-booked, no GPU, NPU or device is
given out twice or sick; nobody is bound without what he claims, away from his gang's domain, or by a leader whose term
is over. At the end nothing waits that fits or that may make its room, no nomination and no reservation is left over, a
gang that is half bound says so, and nothing was told twice. For evictions see tests.engine.evictions, for what whoever
binds has known tests.engine.knowledge.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from koordpy.api import keys
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.resource_shelf import Change
from koordpy.apiserver.status_errors import StatusError
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.scheduler import Scheduler
from tests.engine.card_scenes import CARD
from tests.engine.evictions import EvictionWatch
from tests.engine.knowledge import Knowledge
from tests.engine.manifests import (
    BLOCK,
    BUDGETS,
    CLAIMS_OF_DEVICES,
    DEVICES,
    EVENTS,
    FRESH_SECONDS,
    GPU,
    GROUPS,
    NPU,
    OURS,
    QUOTAS,
    TOPOLOGIES,
    Manifest,
    annotations_of,
    asked,
    chips,
    gang_of,
    live_on_node,
    minors,
    nominated_node,
)
from tests.engine.repairs import RepairWatch
from tests.engine.wanted_nodes import check_wanted, said_unschedulable
from tests.engine.zone_scenes import ZoneWatch, serves_reports

BUGS = ("internal error: a plan failed koordpy's own check and was not carried out", "planning failed")
STRUCTURE = ("nodes", DEVICES, QUOTAS, TOPOLOGIES, BUDGETS, GROUPS)
"""What plans are made on besides pods."""


LATE_SECONDS = 5.0
"""Whoever binds may be so late to know that others have resized or relabelled a pod."""


@dataclass
class Watchman:
    """Looks at every write. `by_others`: whether the write under way is a user's, a controller's or a kubelet's.
    `wall`: epoch seconds, as whoever leads has them; `one_clock`: whether no process began after a clock was set;
    `known(plurals)`: whether whoever may bind now has seen all there is of them; `informed`: the same of everything."""

    server: ApiServer
    time: Callable[[], float]
    wall: Callable[[], float]
    one_clock: Callable[[], bool]
    by_others: Callable[[], bool]
    known: Callable[[tuple[str, ...]], bool]
    informed: Callable[[Scheduler], bool]
    seen: dict[str, str] = field(default_factory=dict)
    """uid -> node, of every pod that was ever seen bound."""
    faults: list[str] = field(default_factory=list)
    """What was seen that must never be."""
    _changed: dict[str, float] = field(default_factory=dict)
    """Kind -> when others changed it last."""
    _unknown: dict[str, set[str]] = field(default_factory=dict)
    """Name of a pod -> kinds of which not everything was known when its last Binding was sent."""
    _bound_at: dict[str, float] = field(default_factory=dict)
    _epoch: int = -1

    def __post_init__(self) -> None:
        self.evictions = EvictionWatch(
            self.server, self.time, self.wall, self.one_clock, self.informed, self.faults, self.pods
        )
        self.knowledge = Knowledge(self.faults)
        self.repairs: RepairWatch | None = None
        self.seats_end = 0.0
        """When the seats end that there were at the last check, in seconds since 1970; 0 without."""
        self.server.store.listeners.append(self._written)

    def pods(self) -> dict[str, Manifest]:
        return {obj["metadata"]["name"]: obj for obj in self.server.store.list("pods")}

    def listen(self, scheduler: Scheduler) -> None:
        """A scheduler starts."""
        self.evictions.listen(scheduler)
        self.knowledge.listen(scheduler)
        if self.repairs is not None:
            self.repairs.listen(scheduler)

    def configure(self, config: KoordpyConfiguration, repairs: Counter[str] | None) -> None:
        """The schedulers have this configuration. repairs: counts what is seen of repairs; None: there are none."""
        self.evictions.config, self.knowledge.lost_after = config, config.repair.lost_after
        if repairs is not None:
            self.repairs = RepairWatch(
                self.server, self.time, self.wall, self.one_clock, config.repair, self.faults, repairs
            )

    # -- at every write -----------------------------------------------------------------------------------------------

    def _written(self, shelf: str, change: Change) -> None:
        if shelf == CLAIMS_OF_DEVICES and change.kind != "DELETED":
            self._check_devices()
        if shelf in STRUCTURE and self.by_others():
            self._changed[shelf] = self.time()
            self.evictions.disturbed()
        if shelf != "pods":
            return
        obj, before = change.entry.obj, change.before.obj if change.before is not None else None
        self._check_said(obj)
        self.evictions.written(change, by_others=self.by_others())
        if change.kind == "DELETED":
            return
        if before is not None and self.by_others() and _asks(obj) != _asks(before):
            self._changed["pods"] = self.time()
            self.evictions.disturbed()
        if node := obj["spec"].get("nodeName"):
            if self.seen.setdefault(obj["metadata"]["uid"], node) != node:
                self.faults.append(f"{obj['metadata']['name']} changed its node")
            if before is not None and not before["spec"].get("nodeName") and obj["spec"]["schedulerName"] == OURS:
                self._check_bound(obj, node)
        elif keys.BOUND_EPOCH in annotations_of(obj) or minors(obj) or chips(obj):
            self.faults.append(f"{obj['metadata']['name']} is not bound, and says who bound it and what it was given")

    def _check_said(self, obj: Manifest) -> None:
        """A plan that does not stand its check, or that fails, is a bug."""
        for said in obj.get("status", {}).get("conditions", []):
            if said["type"] == "PodScheduled" and said.get("message", "").startswith(BUGS):
                self.faults.append(f"{obj['metadata']['name']}: {said['message']}")

    def sent(self, path: str) -> None:
        """A Binding leaves whoever sends it: what they know by then is what they can be held to."""
        changed = [kind for kind in STRUCTURE if kind in self._changed]
        self._unknown[path.split("/")[-2]] = {kind for kind in changed if not self.known((kind,))}

    def _unsure(self, name: str, *plurals: str) -> bool:
        """Whether who bound a pod just now may not have known what there is."""
        now = self.time()
        if any(now - self._changed.get(plural, -FRESH_SECONDS) < FRESH_SECONDS for plural in plurals):
            return True
        if now - self._changed.get("pods", -LATE_SECONDS) < LATE_SECONDS:
            return True
        return not self._unknown.get(name, set()).isdisjoint(plurals) or not self.known(plurals)

    def _check_bound(self, obj: Manifest, node: str) -> None:
        name = obj["metadata"]["name"]
        self._bound_at[obj["metadata"]["uid"]] = self.time()
        self._check_term(obj)
        self._check_chips(node)
        if not self._unsure(name, "nodes"):
            self._check_room(node, [one for one in ("cpu", GPU, NPU) if asked(obj, one)])
        self._check_quota(obj)
        if self._has_device(node) and len(minors(obj)) != asked(obj, GPU) and not self._unsure(name, DEVICES):
            self.faults.append(f"{name} is bound to {node} without its GPUs: {minors(obj)}")
        if len(chips(obj)) != asked(obj, NPU):
            self.faults.append(f"{name} is bound to {node} without its NPUs: {chips(obj)}")
        self._check_health(obj, node)
        self._check_gathered(obj)
        for wanted in obj["spec"].get("resourceClaims", []):
            self._check_claim(obj, node, wanted["resourceClaimName"])
        if asked(obj, CARD):
            named = obj.get("status", {}).get("extendedResourceClaimStatus", {}).get("resourceClaimName", "")
            if named in {one["metadata"]["name"] for one in self.server.store.list(CLAIMS_OF_DEVICES)}:
                self._check_claim(obj, node, named)
            else:
                self.faults.append(f"{name} is bound without the claim for its cards: {named}")
        if serves_reports(self.server.store) and not self._unsure(name):
            ZoneWatch(self.server, self.faults).check_bound(obj, node)
        for volume in obj["spec"].get("volumes", []):
            if "persistentVolumeClaim" in volume:
                self._check_volume(name, node, volume["persistentVolumeClaim"]["claimName"])

    def _has_device(self, node: str) -> bool:
        return any(one["metadata"]["name"] == node for one in self.server.store.list(DEVICES))

    def _check_term(self, obj: Manifest) -> None:
        """No Binding of a leader comes after one of the leader after him."""
        epoch = int(annotations_of(obj).get(keys.BOUND_EPOCH, "-1"))
        if epoch < max(self._epoch, 0):
            self.faults.append(f"{obj['metadata']['name']} is bound in term {epoch}, after one in term {self._epoch}")
        self._epoch = max(self._epoch, epoch)

    def _check_claim(self, obj: Manifest, node: str, claim: str) -> None:
        name = obj["metadata"]["name"]
        status = self.server.store.get(CLAIMS_OF_DEVICES, claim, "default").get("status", {})
        if obj["metadata"]["uid"] not in {user["uid"] for user in status.get("reservedFor", [])}:
            self.faults.append(f"{name} is bound without its claim {claim}")
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        if {result["pool"] for result in results} != {node}:
            self.faults.append(f"{name} is bound to {node}, its devices are elsewhere")

    def _check_volume(self, name: str, node: str, claim: str) -> None:
        store = self.server.store
        bound = store.get("persistentvolumeclaims", claim, "default")["spec"].get("volumeName")
        if not bound:
            self.faults.append(f"{name} is bound before its volume")
            return
        (term,) = store.get("persistentvolumes", bound)["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        if node not in term["matchExpressions"][0]["values"]:
            self.faults.append(f"{name} is bound to {node}, where its volume is not")

    def _on(self, node: str) -> list[Manifest]:
        return [obj for obj in self.pods().values() if live_on_node(obj) and obj["spec"]["nodeName"] == node]

    def _check_chips(self, node: str) -> None:
        # another scheduler may win a race for a node
        there = [obj for obj in self._on(node) if obj["spec"]["schedulerName"] == OURS]
        for what, read in (("GPU", minors), ("NPU", chips)):
            named = [chip for obj in there for chip in read(obj)]
            if len(named) != len(set(named)):
                told = {obj["metadata"]["name"]: read(obj) for obj in there}
                self.faults.append(f"{what}s of {node} are given out twice: {told}")

    def _check_room(self, node: str, resources: list[str]) -> None:
        """Our pods alone never ask for more than a node has; another scheduler may win a race for a node."""
        ours = [obj for obj in self._on(node) if obj["spec"]["schedulerName"] == OURS]
        try:
            room = self.server.store.get("nodes", node)["status"]["allocatable"]
        except StatusError:
            self.faults.append(f"{ours[-1]['metadata']['name']} is bound to {node}, which is not there")
            return
        for resource in resources:
            if sum(asked(obj, resource) for obj in ours) > int(room.get(resource, 0)):
                held = {obj["metadata"]["name"]: asked(obj, resource) for obj in ours}
                self.faults.append(f"{node} is overbooked by us: {resource} {held}")

    def _check_quota(self, obj: Manifest) -> None:
        mine = obj["metadata"].get("labels", {}).get(keys.QUOTA_NAME)
        quotas = {quota["metadata"]["name"]: quota for quota in self.server.store.list(QUOTAS)}
        lost = ("nodes",) if self.repairs is not None else ()
        if mine not in quotas or not asked(obj, GPU) or self._unsure(obj["metadata"]["name"], QUOTAS, *lost):
            return
        most = int(quotas[mine]["spec"]["max"][GPU])
        members = [
            one for one in self.pods().values() if one["metadata"].get("labels", {}).get(keys.QUOTA_NAME) == mine
        ]
        if self.repairs is not None:
            # what is lost with its node counts in no quota (repair.md 4.1)
            members = self.repairs.sound(members)
        used = sum(asked(one, GPU) for one in members if live_on_node(one))
        if used > most:
            self.faults.append(f"quota {mine} holds {used} GPUs, its max is {most}")

    def _check_health(self, obj: Manifest, node: str) -> None:
        if not minors(obj) or self._unsure(obj["metadata"]["name"], DEVICES):
            return
        for one in self.server.store.list(DEVICES):
            sick = {gpu["minor"] for gpu in one["spec"]["devices"] if not gpu.get("health")}
            if one["metadata"]["name"] == node and sick & set(minors(obj)):
                self.faults.append(f"{obj['metadata']['name']} is bound to {node} with sick GPUs {minors(obj)}")

    def _check_gathered(self, obj: Manifest) -> None:
        group = obj["metadata"].get("labels", {}).get(keys.LABEL_POD_GROUP)
        if group and not self._unsure(obj["metadata"]["name"], "nodes", TOPOLOGIES, GROUPS):
            self._check_domain(group)

    def _check_domain(self, group: str) -> None:
        """Whoever of a gang was bound since the tree changed last is in one domain of the layer it must gather in."""
        layer = self._layer(group)
        changed = max(self._changed.get(kind, -1.0) for kind in ("nodes", TOPOLOGIES, GROUPS, "pods"))
        members = [
            one for one in self.pods().values() if one["metadata"].get("labels", {}).get(keys.LABEL_POD_GROUP) == group
        ]
        there = [one for one in members if live_on_node(one)]
        if self.repairs is not None:
            # who is lost with its node is no sibling (repair.md 4.1)
            there = self.repairs.sound(there)
        if not layer or any(self._bound_at.get(one["metadata"]["uid"], -1.0) <= changed for one in there):
            return
        labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in self.server.store.list("nodes")}
        nodes = {one["spec"]["nodeName"] for one in there}
        domains = {labels[node][BLOCK] if layer == "blockLayer" else node for node in nodes if node in labels}
        if len(domains) > 1:
            self.faults.append(f"gang {group} must gather in one {layer} and is in {sorted(domains)}")

    def _layer(self, group: str) -> str:
        for obj in self.server.store.list(GROUPS):
            if obj["metadata"]["name"] == group and (text := annotations_of(obj).get(keys.GANG_TOPOLOGY)):
                (rule,) = json.loads(text)["gatherStrategy"]
                return str(rule["layer"]) if rule["strategy"] == "MustGather" else ""
        return ""

    def _check_devices(self) -> None:
        given: list[tuple[str, str]] = []
        for one in self.server.store.list(CLAIMS_OF_DEVICES):
            results = one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            given += [(result["pool"], result["device"]) for result in results]
        if len(given) != len(set(given)):
            self.faults.append(f"a device is given out twice: {sorted(given)}")

    # -- at the end ---------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Everything that must hold once all is quiet."""
        pods = self.pods()
        for node in self.server.store.list("nodes"):
            self._check_chips(node["metadata"]["name"])
            if "nodes" not in self._changed:
                self._check_room(node["metadata"]["name"], ["cpu", GPU, NPU])
        for group in self.server.store.list(GROUPS):
            self._check_domain(group["metadata"]["name"])
        self._check_told()
        assert not self.faults, "; ".join(self.faults)
        left = {name: nominated_node(obj) for name, obj in pods.items() if nominated_node(obj)}
        assert not left, f"nominations are left over: {left}"
        uids = {obj["metadata"]["uid"] for obj in pods.values()}
        self._check_card_claims({obj["metadata"]["uid"] for obj in pods.values() if obj["spec"].get("nodeName")})
        for claim in self.server.store.list(CLAIMS_OF_DEVICES):
            users = {user["uid"]: user["name"] for user in claim.get("status", {}).get("reservedFor", [])}
            gone = sorted(name for uid, name in users.items() if uid not in uids)
            assert not gone, f"claim {claim['metadata']['name']} is reserved for {gone}, that are gone"
        self._check_gangs(pods)
        if self.repairs is not None:
            self.repairs.check_end(pods)
        plan = self.evictions.plan_afresh(evict=True)
        assert plan.placements == (), f"something is pending that fits: {[one.pod_key for one in plan.placements]}"
        assert plan.evictions == (), f"something waits that may make its room: {plan.evictions}"
        self.evictions.check_end()
        if self.repairs is not None and (told := said_unschedulable(pods.values())):
            check_wanted(self.evictions.known_state(), plan, told, self.evictions.config, self.wall())
        self.seats_end = max((kept.until for kept in plan.seats.values()), default=0.0)

    def _check_card_claims(self, bound: set[str]) -> None:
        """Claims for extended resources belong to bound pods."""
        for claim in self.server.store.list(CLAIMS_OF_DEVICES):
            owners = {one["uid"] for one in claim["metadata"].get("ownerReferences", [])}
            if "resource.kubernetes.io/extended-resource-claim" in claim["metadata"].get("annotations", {}):
                assert owners <= bound, f"claim {claim['metadata']['name']} is left of a pod that is not bound"

    def _check_told(self) -> None:
        """That a pod was scheduled, or evicted, is told once, and the truth."""
        told: Counter[tuple[str, str, str]] = Counter()
        for event in self.server.store.list(EVENTS):
            about = event["involvedObject"]
            if event["reason"] in ("Scheduled", "Preempted", "Reclaimed"):
                told[event["reason"], about["name"], about["uid"]] += event.get("series", {}).get("count", 1)
            if event["reason"] == "Scheduled" and not event["message"].endswith(f" to {self.seen.get(about['uid'])}"):
                self.faults.append(
                    f"{about['name']} is on {self.seen.get(about['uid'])}, and told is: {event['message']}"
                )
        self.faults += [f"{what} is told {count} times" for what, count in told.items() if count > 1]

    def _check_gangs(self, pods: dict[str, Manifest]) -> None:
        """A gang with fewer members bound than its minimum says so in its own status."""
        for group in self.server.store.list(GROUPS):
            name, need = group["metadata"]["name"], group["spec"]["minMember"]
            bound = [key for key, obj in pods.items() if obj["spec"].get("nodeName") and gang_of(obj) == name]
            if self.repairs is not None:
                bound = [obj["metadata"]["name"] for obj in self.repairs.live(group, pods)]
            if 0 < len(bound) < need:
                status = group.get("status", {})
                said = {condition["type"] for condition in status.get("conditions", [])}
                assert "Scheduled" in said, f"half bound {name} says nothing"
                assert status.get("scheduled") == len(bound), f"half bound {name}: {status}, bound are {bound}"


def _asks(obj: Manifest) -> tuple[object, ...]:
    """What others may change of a pod and plans are made on."""
    spec = obj["spec"]
    return obj["metadata"].get("labels"), spec["containers"][0].get("resources"), spec.get("schedulingGates")
