# SPDX-License-Identifier: Apache-2.0
"""Records of controllers: how many pods have Succeeded according to the controller's status, such as a Job's.

A Job's status lists completed indexes even after their pods are deleted, and across restarts of the scheduler. So it
shows Succeeded members of a gang that have no pod any more (gang-network.md 2.4). A record is found in two ways: by the
uid of the controller of a gang's pods, or by the gang that the controller's pod template names, because a complete Job
may have no pods.
"""

from collections.abc import Collection

from koordpy.api.objects import ObjectMeta, Pod, PodSpec, SchedulingGroup
from koordpy.pods.gang_refs import GangRef, gang_ref
from koordpy.workloads.known_workloads import unfile
from koordpy.workloads.workload_model import NO_RECORD, Record, Template, Workload


class RecordBook:
    """Records by uid of the controller. A controller has a record only if at least one of its pods has Succeeded."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        """uid of a controller -> its record."""
        self._gangs: dict[str, frozenset[GangRef]] = {}
        """uid of a controller -> gangs that its pod templates name."""
        self._naming: dict[GangRef, dict[str, None]] = {}
        """Gang -> uids of controllers with pod templates that name it."""
        self.changed: dict[str, frozenset[GangRef]] = {}
        """uid of a controller with a changed record -> gangs that its pod templates name now, or named before. The
        reader replaces this dict by an empty one."""

    def of(self, uid: str) -> Record:
        """Returns the record of a controller by its uid; an empty record if there is none."""
        return self._records.get(uid, NO_RECORD)

    def naming(self, ref: GangRef) -> Collection[str]:
        """Returns the uids of controllers with a record and pod templates that name a gang."""
        return self._naming.get(ref, ())

    def put(self, workload: Workload) -> None:
        """Stores the record of a workload."""
        record = workload.record
        templates = [one for role in workload.roles for one in role.templates] if record.number else []
        self._take(workload.head.uid, record, frozenset(filter(None, (_named(workload, one) for one in templates))))

    def drop(self, uid: str) -> None:
        """Removes the record of a workload."""
        self._take(uid, NO_RECORD, frozenset())

    def _take(self, uid: str, record: Record, gangs: frozenset[GangRef]) -> None:
        """Replaces the record of a controller, and the gangs that its pod templates name."""
        before = self._gangs.get(uid, frozenset[GangRef]())
        if record == self.of(uid) and gangs == before:
            return
        for ref in before:
            unfile(self._naming, ref, uid)
        for ref in gangs:
            self._naming.setdefault(ref, {})[uid] = None
        self._records.pop(uid, None)
        self._gangs.pop(uid, None)
        if record.number:
            self._records[uid], self._gangs[uid] = record, gangs
        self.changed[uid] = self.changed.get(uid, frozenset[GangRef]()) | before | gangs


def _named(workload: Workload, template: Template) -> GangRef | None:
    """Returns the gang that pods of a template name themselves; None if they name none, and for derived gangs."""
    spec = template.raw.get("spec")
    group = spec.get("schedulingGroup") if isinstance(spec, dict) else None
    name = group.get("podGroupName") if isinstance(group, dict) else None
    meta = ObjectMeta(
        namespace=workload.head.namespace, labels=dict(template.labels), annotations=dict(template.annotations)
    )
    named = SchedulingGroup(pod_group_name=name) if isinstance(name, str) else None
    return gang_ref(Pod(metadata=meta, spec=PodSpec(scheduling_group=named)), volcano=True)
