"""Which unit a pod belongs to, between rounds: the planner's own ids, kept at hand for single events.

A gang without `groups` links is a unit by itself, so its id follows from the pod alone. Links are rare; once any
object has one, the ids are read from a snapshot before each round by the planner's own rule (gang-network.md 2.2).
"""

from collections.abc import Iterable

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta
from koordpy.cache.snapshot import Snapshot
from koordpy.gangs.gang_links import Links
from koordpy.gangs.queue_units import Groups, group_unit_id
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.workload_gangs import Derived


class UnitNames:
    """Unit ids by pod and by gang."""

    def __init__(self) -> None:
        self.linked = False
        """Whether any object has been seen that links gangs."""
        self.stale = False
        """Whether a gang or a PodGroup that links concern changed since the last `refresh`."""
        self._links: Links | None = None
        """As of the last `refresh`, as long as they are not stale."""
        self._ids: dict[GangRef, str] = {}
        self._named: dict[GangRef, tuple[str, ...]] = {}
        """Gang -> those that its links name, as of the last `refresh`."""
        self._named_by: dict[str, set[GangRef]] = {}
        """The same the other way round."""
        self._concerned: frozenset[str] = frozenset()
        """`namespace/name` of the gangs that name others, or are named."""

    def saw(self, ref: GangRef, meta: ObjectMeta) -> None:
        """Takes note of a PodGroup or a gang's pod that came, changed or went."""
        if keys.GANG_GROUPS in meta.annotations:
            self.linked = self.stale = True
        self.moved(ref)

    def moved(self, ref: GangRef) -> None:
        """Takes note of a gang that came or went, or may have."""
        self.stale = self.stale or ref.key in self._concerned

    def follow(self, gangs: Iterable[Derived]) -> None:
        """Takes note of the gangs that follow from workloads: those of one run are planned together."""
        runs: set[tuple[str, ...]] = set()
        for one in gangs:
            if one.joined and one.run in runs:
                self.linked = True
                break
            runs.add(one.run)
        self.stale = self.stale or self.linked

    def of_gang(self, ref: GangRef) -> str:
        """Id of the unit that a gang is planned in."""
        return self._ids.get(ref) or f"gang:{ref.id}"

    def concerned(self, ref: GangRef) -> set[str]:
        """Ids of the units that what a gang's object says may concern: its own, and those of gangs that name it."""
        return {self.of_gang(one) for one in (ref, *self._named_by.get(ref.key, ()))}

    def of_pod(self, pod: PodInfo) -> str:
        if pod.gang is not None:
            return self.of_gang(pod.gang)
        group = pod.group
        return pod.key if group is None else group_unit_id(group)

    def refresh(self, snapshot: Snapshot) -> bool:
        """Reads the groups of a snapshot anew where gangs are linked, or tells it of those that still hold; True when
        an id changed."""
        if not self.stale:
            if self._links is not None:
                snapshot.memo[Links] = self._links
            return False
        self.stale = False
        groups = Groups(snapshot)
        self._links = groups.links
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
