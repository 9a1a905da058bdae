# SPDX-License-Identifier: Apache-2.0
"""Whether a scheduler acts against what it knows: when it decides to bind, and when a request leaves it.

What its watches have brought by then is read from their mirrors, what it was answered when it deleted pods from the
answers, and nothing is asked of those that decide. So no check here allows for time: what is known must be heeded at
once, what is not known cannot be.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import Node, Pod
from koordpy.api.times import seconds
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import Placement
from tests.engine.failures import BROKEN, UNREACHABLE
from tests.engine.manifests import BLOCK, DEVICES, GPU, GROUPS, NPU, TOPOLOGIES

HTTP_OK, HTTP_NOT_FOUND = 200, 404
JUST_LOST_SECONDS = 0.2
"""A node may have been lost so lately that the plan that is being carried out took it for sound."""


@dataclass
class Knowledge:
    """Looks at every decision and every Binding. `faults` gets what must never be."""

    faults: list[str]
    lost_after: float = 0.0
    """`repair.lostAfter`, in seconds."""
    _answered: dict[Scheduler, set[str]] = field(default_factory=dict)
    """uids of pods that a scheduler was told to be gone: when it deleted them, or read them after a Binding failed."""
    _sent: dict[Scheduler, dict[str, str]] = field(default_factory=dict)
    """Path of a pod -> uid in the last Binding that a scheduler sent for it."""

    def listen(self, scheduler: Scheduler) -> None:
        """Hears of every unit that a scheduler decides to bind."""
        submit = scheduler.committer.submit

        def heard(unit: str, placements: Sequence[Placement], **options: Any) -> Any:
            for one in placements:
                self._check_decided(scheduler, one)
            self._check_gathered(scheduler, unit, placements)
            return submit(unit, placements, **options)

        scheduler.committer.submit = heard  # type: ignore[method-assign]

    def sent(self, scheduler: Scheduler, method: str, path: str, data: bytes | None) -> None:
        """A request leaves a scheduler."""
        if method == "GET" or "/leases" in path or "/events" in path:
            return
        elector = scheduler.elector
        if elector is not None and elector._clock() - elector._renewed_at >= elector._renew_seconds:
            self.faults.append(f"{method} {path} is sent, and the lease was not renewed in time")
        if path.endswith("/binding"):
            body = json.loads(data or b"{}")
            minors = _minors(body["metadata"].get("annotations", {}))
            name, uid, node = path.split("/")[-2], body["metadata"]["uid"], body["target"]["name"]
            self._check(scheduler, f"default/{name}", uid, node, minors, "is sent to")
            self._sent.setdefault(scheduler, {})[path.removesuffix("/binding")] = uid

    def replied(self, scheduler: Scheduler, method: str, path: str, status: int, body: bytes) -> None:
        """A request of a scheduler is answered."""
        if not body.startswith(b"{"):
            return
        if method == "DELETE" and path.split("/")[-2] == "pods" and status == HTTP_OK:
            meta = json.loads(body)["metadata"]
            if meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"):
                self._answered.setdefault(scheduler, set()).add(meta["uid"])
        uid = self._sent.get(scheduler, {}).get(path, "") if method == "GET" else ""
        if uid and (status == HTTP_NOT_FOUND or (status == HTTP_OK and json.loads(body)["metadata"]["uid"] != uid)):
            self._answered.setdefault(scheduler, set()).add(uid)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_decided(self, scheduler: Scheduler, placed: Placement) -> None:
        there = self._check(
            scheduler, placed.pod_key, placed.uid, placed.node, _minors(placed.annotations), "is decided for"
        )
        if there is not None and there.spec.unschedulable:
            self.faults.append(f"{placed.pod_key} is decided for {placed.node}, which is known to be cordoned")
        if there is not None and self._is_lost(there, scheduler._loop._now() - JUST_LOST_SECONDS):
            self.faults.append(f"{placed.pod_key} is decided for {placed.node}, which is known to be lost")

    def _is_lost(self, node: Node, now: float) -> bool:
        since = [one.time_added for one in node.spec.taints if one.key == UNREACHABLE]
        since += [
            one.last_transition_time for one in node.status.conditions if (one.type, one.status) == (BROKEN, "True")
        ]
        return any(seconds(at) + self.lost_after <= now for at in since)

    def _check(self, scheduler: Scheduler, key: str, uid: str, node: str, minors: set[int], what: str) -> Node | None:
        """The node, where it is known."""
        gone = self._answered.get(scheduler, set())
        known: dict[str, Pod] = scheduler.feeds.reflectors["pods"].objects
        pods = {one: pod for one, pod in known.items() if one not in gone}
        pod = pods.get(uid)
        if pod is None or pod.metadata.deletion_timestamp or pod.spec.node_name not in ("", node):
            self.faults.append(f"{key} {what} {node}, and is known to be gone, ending or elsewhere")
            return None
        there = _named(scheduler, "nodes", node)
        if there is None:
            self.faults.append(f"{key} {what} {node}, which is known not to be there")
            return None
        beside = [one for one in pods.values() if one.spec.node_name == node and one.metadata.uid != uid]
        self._check_room(f"{key} {what} {node}", pod, there, beside)
        held = {minor for one in beside for minor in _minors(one.metadata.annotations)}
        if held & minors:
            self.faults.append(f"{key} {what} {node} with GPUs that are known to be others': {sorted(held & minors)}")
        device = _named(scheduler, DEVICES, node)
        sick = {one.minor for one in device.spec.devices if not one.health} if device is not None else set()
        if sick & minors:
            self.faults.append(f"{key} {what} {node} with GPUs that are known to be sick: {sorted(sick & minors)}")
        return there

    def _check_room(self, what: str, pod: Pod, node: Node, beside: Iterable[Pod]) -> None:
        held = list(beside)
        for resource in ("cpu", GPU, NPU):
            asked, has = _asked(pod, resource), int(str(node.status.allocatable.get(resource, 0)))
            used = sum(_asked(one, resource) for one in held)
            if asked and used + asked > has:
                self.faults.append(f"{what}, where {resource} is known to be short: {used} + {asked} of {has}")

    def _check_gathered(self, scheduler: Scheduler, unit: str, placements: Sequence[Placement]) -> None:
        """Members that are placed together go into one domain, as the tree is known."""
        if not scheduler.feeds.reflectors[TOPOLOGIES].objects:
            return
        domains: dict[str, set[str]] = {}
        pods: dict[str, Pod] = scheduler.feeds.reflectors["pods"].objects
        for one in placements:
            node, pod = _named(scheduler, "nodes", one.node), pods.get(one.uid)
            if node is not None and pod is not None and (group := pod.metadata.labels.get(keys.LABEL_POD_GROUP)):
                layer = _must_gather(_named(scheduler, GROUPS, group))
                if layer:
                    where = one.node if layer == keys.NODE_LAYER else node.metadata.labels[BLOCK]
                    domains.setdefault(group, set()).add(where)
        self.faults += [
            f"{unit} is decided for {sorted(where)}, and {group} must gather in one"
            for group, where in domains.items()
            if len(where) > 1
        ]


def _named(scheduler: Scheduler, kind: str, name: str) -> Any:
    """An object as a watch has brought it last; None where it is gone, or has not come."""
    known = scheduler.feeds.reflectors[kind].objects.values()
    return next((one for one in known if one.metadata.name == name), None)


def _must_gather(group: Any) -> str:
    text = group.metadata.annotations.get(keys.GANG_TOPOLOGY) if group is not None else None
    if not text:
        return ""
    (rule,) = json.loads(text)["gatherStrategy"]
    return str(rule["layer"]) if rule["strategy"] == "MustGather" else ""


def _minors(notes: Any) -> set[int]:
    text = notes.get(keys.GPU_ALLOCATION)
    return {int(one) for each in json.loads(text)["allocatedGPUs"].values() for one in each} if text else set()


def _asked(pod: Pod, resource: str) -> int:
    if pod.status.phase in ("Succeeded", "Failed"):
        return 0
    return int(str(pod.spec.containers[0].resources.requests.get(resource, 0)))
