# SPDX-License-Identifier: Apache-2.0
"""Defines the Kubernetes events of the scheduler, and finds the objects that they are about (kube-parity.md 4.6).

`EVENTS` has the type and action for each reason of an event. `Announcer` records events. `References` finds the object
that an event is about (kind, name and uid) for a pod, a gang or a name. `event_recorder.py` sends the events.
"""

from collections.abc import Callable, Mapping
from typing import Any

from koordpy.api.custom_objects import Device, NodeResourceTopology
from koordpy.api.natural_order import natural_key
from koordpy.engine.client.api_resources import (
    DEVICES,
    HYPERNODES,
    NODE_TOPOLOGIES,
    NODES,
    UPSTREAM_POD_GROUPS,
    VOLCANO_GROUPS,
    Resource,
)
from koordpy.engine.status.event_recorder import EventRecorder, EventType, ObjectReference, of_object, of_pod
from koordpy.engine.watching.feeds import Feeds
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.workload_manifest import Head

# reasons of events
GANG_SCHEDULED, GANG_UNSCHEDULABLE, GANG_EVICTED = "GangScheduled", "GangUnschedulable", "GangEvicted"
GANG_DEGRADED, GANG_REPAIRED = "GangDegraded", "GangRepaired"
TOPOLOGY_DEGRADED, TOPOLOGY_REPAIRED = "TopologyDegraded", "TopologyRepaired"
SCHEDULED, FAILED = "Scheduled", "FailedScheduling"
NODE_BACKED_OFF, NODE_GIVEN_BACK = "NodeBackedOff", "NodeGivenBack"
PROVISIONING_REQUESTED, PROVISIONED, PROVISIONING_FAILED = "ProvisioningRequested", "Provisioned", "ProvisioningFailed"
FOREIGN = "ForeignBinding"
"""Reason of an event about the Lease: another process binds pods of our scheduler names."""
ROOM_MADE, LEADS, UNREADABLE, INVALID = "RoomMade", "LeaderElection", "UnreadableObject", "InvalidAnnotation"
# ROOM_MADE: the victims of a plan are evicted; LEADS: this process became leader; INVALID: a setting has no effect
INVALID_SPEC = "InvalidSpec"
"""Reason of an event about an ElasticQuota that contradicts itself, such as min above max."""
CONDITIONS_PENDING = "BindingConditionsPending"
"""Reason of an event about a pod: the devices of its claims are allocated, but not ready yet."""
FEATURE_DISABLED = "FeatureDisabled"
"""Reason of an event about a resource claim: the API server dropped one of its fields, because a gate is off."""
EVENTS: Mapping[str, tuple[EventType, str]] = {
    SCHEDULED: ("Normal", "Binding"),
    FAILED: ("Warning", "Scheduling"),
    "Preempted": ("Normal", "Preempting"),
    GANG_SCHEDULED: ("Normal", "Scheduling"),
    GANG_UNSCHEDULABLE: ("Warning", "Scheduling"),
    GANG_EVICTED: ("Warning", "Preempting"),
    GANG_DEGRADED: ("Warning", "Repairing"),
    GANG_REPAIRED: ("Normal", "Repairing"),
    TOPOLOGY_DEGRADED: ("Warning", "Validating"),
    TOPOLOGY_REPAIRED: ("Normal", "Validating"),
    NODE_BACKED_OFF: ("Warning", "Repairing"),
    NODE_GIVEN_BACK: ("Normal", "Repairing"),
    PROVISIONING_REQUESTED: ("Normal", "Scheduling"),
    PROVISIONED: ("Normal", "Scheduling"),
    PROVISIONING_FAILED: ("Warning", "Scheduling"),
    ROOM_MADE: ("Normal", "Preempting"),
    LEADS: ("Normal", "LeaderElection"),
    FOREIGN: ("Warning", "LeaderElection"),
    UNREADABLE: ("Warning", "Validating"),
    INVALID: ("Warning", "Validating"),
    INVALID_SPEC: ("Warning", "Validating"),
    CONDITIONS_PENDING: ("Normal", "Scheduling"),
    FEATURE_DISABLED: ("Warning", "Validating"),
}
"""Reason of an event -> (type, action)."""
RECLAIMED: tuple[EventType, str] = "Normal", "Reclaiming"
"""Type and action of events with a reason that is not in `EVENTS`: evictions by a rule other than `priority`."""


class Announcer:
    """Passes events to the recorder of their scheduler name. With `--dry-run` there are no recorders, and only invalid
    objects are counted.

    An event about a pod is reported under the pod's scheduler name, any other event under the first one.
    """

    def __init__(self, recorders: Mapping[str, EventRecorder], on_refused: Callable[[str, str], None]) -> None:
        """recorders: one per scheduler name. on_refused: called with the kind of an object that has an invalid setting,
        and the reason of its event."""
        self._recorders, self._on_refused = recorders, on_refused
        self._default = next(iter(recorders.values()), None)

    def tell_wrong(self, about: ObjectReference, text: str) -> None:
        """Reports a setting that is invalid or has no effect. text: key or field, and what is wrong with it."""
        of_spec = about.kind == "ElasticQuota" and text.startswith("spec.")
        self.tell(INVALID_SPEC if of_spec else INVALID, about, text)

    def tell(
        self, reason: str, about: ObjectReference | PodInfo, note: str, related: ObjectReference | None = None
    ) -> None:
        """Records an event about an object. reason: key of `EVENTS`, or the reason of an eviction. note: its message.
        related: another object that the event concerns; None for none."""
        recorder = self._default
        if isinstance(about, PodInfo):
            recorder, about = self._recorders.get(about.pod.spec.scheduler_name, recorder), of_pod(about)
        if reason in (UNREADABLE, INVALID, INVALID_SPEC):
            self._on_refused(about.kind, reason)
        if recorder is not None:
            type, action = EVENTS.get(reason, RECLAIMED)
            recorder.record(about, type=type, reason=reason, action=action, note=note, related=related)


def _known(resource: Resource | None, obj: Any) -> ObjectReference | None:
    """Returns the reference of an object; None if the object does not exist, or if its resource is not served."""
    return of_object(resource, obj.metadata) if obj is not None and resource is not None else None


def _titled(title: Head | None) -> ObjectReference | None:
    """Returns the reference of a workload. None if there is no workload, or if only its name is known."""
    if title is None or not title.uid:
        return None
    return ObjectReference(title.api_version, title.kind, title.name, title.namespace, title.uid)


class References:
    """Finds references to existing objects by name."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds, self._state = feeds, feeds.state
        self._titled: tuple[object, dict[tuple[str, str], Head]] = None, {}
        """Cache: the gangs that were derived from workloads when it was filled, and their workloads by kind and
        `namespace/name`."""

    def pod_group(self, key: str) -> ObjectReference | None:
        """Returns a PodGroup of coscheduling by `namespace/name`; None if it does not exist."""
        return _known(self._feeds.groups.resources.get(key), self._state.gangs.groups.get(key))

    def upstream_group(self, key: str) -> ObjectReference | None:
        """Returns a PodGroup of scheduling.k8s.io by `namespace/name`; None if it does not exist."""
        return _known(self._feeds.served.get(UPSTREAM_POD_GROUPS), self._state.gangs.upstream.get(key))

    def named_gang(self, key: str, source: GangSource) -> ObjectReference | None:
        """Returns the object that events of a gang without a PodGroup are about: its topmost workload, else the
        controller of its pods, else its oldest pod.

        None if the gang has none of these. key: `namespace/name`. source: how the pods name the gang.
        """
        ref = GangRef.from_key(key, source)
        derived = self._state.gangs.derived.get(ref)
        workload = _titled(derived.title) if derived is not None else None
        return workload or self.owner(ref) or next((of_pod(pod) for pod in self._oldest_first(ref)), None)

    def workload_of(self, ref: GangRef) -> ObjectReference | None:
        """Returns the topmost workload of a gang's pods, else their controller; None if no pod has a controller.

        The gang may have any source.
        """
        derived, book = self._state.gangs.derived.get(ref), self._state.workloads
        if derived is not None and (title := _titled(derived.title)) is not None:
            return title
        for pod in self._oldest_first(ref):
            if pod.pod.metadata.controller is not None:
                return _titled(book.top_of(pod.key)) or self.owner(ref)
        return None

    def owner(self, ref: GangRef) -> ObjectReference | None:
        """Returns the controller, such as a Job, of the gang's oldest pod that has a controller; None if no pod has
        one."""
        owners = (pod.pod.metadata.controller for pod in self._oldest_first(ref))
        found = next(filter(None, owners), None)
        if found is None:
            return None
        return ObjectReference(found.api_version, found.kind, found.name, ref.namespace, found.uid)

    def _oldest_first(self, ref: GangRef) -> list[PodInfo]:
        """Returns the members of a gang, oldest first; without members all its pods, such as those of an earlier
        Job."""
        gang = self._state.gangs.gang(ref)
        return sorted(gang.members or gang.pods, key=lambda pod: (pod.created, natural_key(pod.name)))

    def beneficiary(self, name: str) -> ObjectReference | None:
        """Returns the object for which pods are evicted, by name: a plain pod, a PodGroup, or else the workload or
        oldest pod of a gang."""
        info = self._state.pod(name)
        if info is not None:
            return of_pod(info)
        found = self.pod_group(name) or self.upstream_group(name)
        return found or self.named_gang(name, GangSource.WORKLOAD) or self.named_gang(name, GangSource.NAMED)

    def warned(self, name: str) -> ObjectReference | None:
        """Returns the object of a plan's warning; None if it does not exist.

        name: `Pod/namespace/name`, the same for PodGroup, ElasticQuota and workloads, or `Device/name`,
        `HyperNode/name`, `NodeResourceTopology/name`, `Node/name`.
        """
        kind, _, key = name.replace(" ", "/", 1).partition("/")
        state, feeds = self._state, self._feeds
        match kind:
            case "PodGroup":
                volcano = _known(feeds.served.get(VOLCANO_GROUPS), feeds.volcano.groups.get(key))
                return self.pod_group(key) or self.upstream_group(key) or volcano
            case "ElasticQuota":
                return _known(feeds.quotas.resources.get(key), state.quotas.objects.get(key))
            case "Device":
                return _known(DEVICES, state.get(Device, key))
            case "HyperNode":
                return _known(feeds.served.get(HYPERNODES), state.nodes.hypernodes.get(key))
            case "NodeResourceTopology":
                return _known(feeds.served.get(NODE_TOPOLOGIES), state.get(NodeResourceTopology, key))
            case "Node":
                return _known(NODES, info.node if (info := state.nodes.get(key)) is not None else None)
            case "Pod":
                return of_pod(pod) if (pod := state.pod(key)) is not None else None
        return self.workload(kind, key)

    def workload(self, kind: str, key: str) -> ObjectReference | None:
        """Returns a workload by its kind and `namespace/name`; None if no gang is derived from it."""
        gangs = self._state.gangs.derived
        if self._titled[0] is not gangs:  # cached, because one round may have many warnings
            titles = [gang.title for gang in gangs.values() if gang.title is not None]
            self._titled = gangs, {(one.kind, one.key): one for one in titles}
        return _titled(self._titled[1].get((kind, key)))
