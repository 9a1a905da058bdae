# SPDX-License-Identifier: Apache-2.0
"""Maps pods and gangs to the ids of their units, so that a watch event finds its unit in the scheduling queue.

The ids must be equal to those that the planner uses. Gangs can be linked by the annotation `groups`: a GangGroup of
linked gangs is one unit. A gang without links is a unit alone, so its id follows from its name. Links are rare. Once
any object has a link, the ids are read from a snapshot before each round, by the planner's rule (gang-network.md 2.2).
"""

from collections.abc import Iterable

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta
from koordpy.cache.snapshot import Snapshot
from koordpy.gangs.gang_links import Links
from koordpy.gangs.queue_units import Groups, group_unit_id
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.workload_gangs import WorkloadGang


class UnitNames:
    """Unit ids by pod and by gang."""

    def __init__(self) -> None:
        self.linked = False
        """True if an object with the annotation `groups` was ever seen, or a workload with several linked gangs."""
        self.stale = False
        """True if a linked gang or its PodGroup changed since the last `refresh`."""
        self._links: Links | None = None
        """The links as of the last `refresh`; None before the first."""
        self._ids: dict[GangRef, str] = {}
        """Gang that is linked with others -> id of its unit. Other gangs have no entry."""
        self._named: dict[GangRef, tuple[str, ...]] = {}
        """Gang -> names of the gangs that it links to, as of the last `refresh`."""
        self._named_by: dict[str, set[GangRef]] = {}
        """`namespace/name` of a gang -> gangs that link to it."""
        self._concerned: frozenset[str] = frozenset()
        """`namespace/name` of all gangs at either end of a link. If one of them is created or deleted, ids of units may
        change."""

    def saw(self, ref: GangRef, meta: ObjectMeta) -> None:
        """Records that a PodGroup or a pod of a gang was created, changed or deleted. meta: metadata of that object."""
        if keys.GANG_GROUPS in meta.annotations:
            self.linked = self.stale = True
        self.moved(ref)

    def moved(self, ref: GangRef) -> None:
        """Records that a gang may have been created or deleted."""
        self.stale = self.stale or ref.key in self._concerned

    def follow(self, gangs: Iterable[WorkloadGang]) -> None:
        """Records the gangs that are derived from workloads. Some workloads have several gangs that must start
        together; they count as linked."""
        runs: set[tuple[str, ...]] = set()
        for one in gangs:
            if one.is_planned_jointly and one.run in runs:
                self.linked = True
                break
            runs.add(one.run)
        self.stale = self.stale or self.linked

    def of_gang(self, ref: GangRef) -> str:
        """Returns the id of the unit that a gang is planned in."""
        return self._ids.get(ref) or f"gang:{ref.id}"

    def concerned(self, ref: GangRef) -> set[str]:
        """Returns ids of the units that a gang's object may affect: its own, and those of gangs that link to it."""
        return {self.of_gang(one) for one in (ref, *self._named_by.get(ref.key, ()))}

    def of_pod(self, pod: PodInfo) -> str:
        """Returns the id of the unit that a pod is planned in: the id of its gang's unit, of its GPU group, or the
        pod's key."""
        if pod.gang is not None:
            return self.of_gang(pod.gang)
        group = pod.group
        return pod.key if group is None else group_unit_id(group)

    def refresh(self, snapshot: Snapshot) -> bool:
        """Reads the unit ids from a snapshot if they are stale. Returns True if an id changed.

        If the ids are not stale, the known links are stored in the snapshot (`memo`), so that the planner need not
        compute them again.
        """
        if not self.stale:
            if self._links is not None:
                snapshot.memo[Links] = self._links
            return False
        self.stale = False
        groups = Groups(snapshot)
        self._links = groups.links
        # the index of links is updated only where a gang links to other names than before
        ids = {ref: groups.id_of(ref) for ref in groups.links.groups}
        named = {ref: groups.named_by(ref).every for ref in snapshot.linkers}
        if named != self._named:
            for ref in named.keys() | self._named.keys():
                before, after = self._named.get(ref, ()), named.get(ref, ())
                for name in before if before is not after else ():
                    self._named_by[name].discard(ref)
                for name in after if before is not after else ():
                    self._named_by.setdefault(name, set()).add(ref)
            self._named = named
            self._named_by = {name: refs for name, refs in self._named_by.items() if refs}
            self._concerned = frozenset((*self._named_by, *(ref.key for ref in named)))
        changed = ids != self._ids
        self._ids = ids
        return changed
