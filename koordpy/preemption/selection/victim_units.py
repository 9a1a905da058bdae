# SPDX-License-Identifier: Apache-2.0
"""Victim units: which running pods are evicted together, and which pods are never evicted (docs/rules/preemption.md 2).

A pod without a gang is a unit. In a gang above its minMember, each surplus member is a unit that can be evicted alone.
All bound pods of a GangGroup together are one more unit, the core; its eviction ends the gangs. A gang below its
minMember is a unit by itself. So a surplus member is in two units, and at most one of them is evicted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby

import msgspec

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.times import seconds
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import card_hundredths


class UnitKind(Enum):
    """Why the pods of a unit are evicted together."""

    PLAIN = "plain"
    """One pod in no gang."""
    SURPLUS = "surplus"
    """One member of a gang that has more than minMember. The gang stays."""
    CORE = "core"
    """All bound pods of a GangGroup."""
    BROKEN = "broken"
    """All bound members of a gang that is below its minimum already."""


class VictimUnit(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Pods that are evicted together."""

    kind: UnitKind
    pods: tuple[PodInfo, ...]
    group: str = ""
    """Id of the pods' GangGroup; empty for a plain pod."""
    gang: GangRef | None = None
    """The gang of a surplus or broken unit; None for a plain pod and for a core, which may span gangs."""

    @cached_property
    def priority(self) -> int:
        """The highest priority of the unit's pods."""
        return self.pods[0].priority if len(self.pods) == 1 else max(pod.priority for pod in self.pods)

    @cached_property
    def start(self) -> float:
        """The earliest start of the unit's pods, in seconds since the epoch."""
        return start_time(self.pods[0]) if len(self.pods) == 1 else min(start_time(pod) for pod in self.pods)

    @cached_property
    def devices(self) -> int:
        """Accelerators that the unit's pods request, in hundredths of a device."""
        return sum([card_hundredths(pod.charged) for pod in self.pods])

    @cached_property
    def priorities(self) -> int:
        """Sum of the priorities of the unit's pods."""
        return self.priority if len(self.pods) == 1 else sum(pod.priority for pod in self.pods)

    @property
    def breaks(self) -> int:
        """Number of gangs that the eviction breaks.

        1 for the core of a GangGroup, else 0. It is 0 for a broken unit, because its gang is below its minimum already.
        """
        return int(self.kind is UnitKind.CORE)

    @cached_property
    def rank_key(self) -> tuple[int, float, tuple[int, int]]:
        """First part of `importance`: (-priority, start, lowest index of a pod). A smaller key is more important.

        The index of a pod is (0, number), or (1, 0) for a pod without an index.
        """
        return -self.priority, self.start, min(map(_index, self.pods))

    @property
    def names(self) -> tuple[object, ...]:
        """Second part of `importance`: the natural order of names, then the kind."""
        return min([(natural_key(pod.namespace), natural_key(pod.name)) for pod in self.pods]), self.kind.value

    @property
    def importance(self) -> tuple[object, ...]:
        """Sort key, the most important unit first: higher priority, earlier start, lower index, natural name."""
        return self.rank_key, self.names


def by_importance(units: Sequence[VictimUnit]) -> list[int]:
    """Returns positions in `units`, the most important unit first.

    Names are expensive to compare, so they are compared only for units with equal `rank_key`.
    """
    standing = [unit.rank_key for unit in units]
    order = sorted(range(len(units)), key=standing.__getitem__)
    if len(set(standing)) == len(order):
        return order
    alike = (list(some) for _, some in groupby(order, key=standing.__getitem__))
    return [i for some in alike for i in (sorted(some, key=lambda i: units[i].names) if len(some) > 1 else some)]


def _index(pod: PodInfo) -> tuple[int, int]:
    """Returns a sort key by the pod's index; pods without an index are last."""
    return (0, pod.index) if pod.index is not None else (1, 0)


def start_time(pod: PodInfo) -> float:
    """Returns the start of a pod in seconds since the epoch: status.startTime, else its creation."""
    return seconds(pod.pod.status.start_time) or pod.created


def terminating(pod: PodInfo) -> bool:
    """Returns True if the pod is on a node and being deleted."""
    return pod.bound and pod.pod.metadata.deletion_timestamp is not None


def protected(pod: PodInfo) -> bool:
    """Returns True if no rule may ever evict a pod: protected by label, a mirror pod, or a pod of a DaemonSet."""
    meta = pod.pod.metadata
    if pod.owner.rigid:
        return True
    return keys.MIRROR in meta.annotations or any(owner.kind == "DaemonSet" for owner in meta.owner_references)


def untouchable(pod: PodInfo) -> bool:
    """Returns True if no rule may evict a pod at the moment.

    Either the pod is `protected`, or it is terminating, or it has no node in the API yet because its Binding is not
    confirmed.
    """
    return bool(pod.pod.metadata.deletion_timestamp) or not pod.pod.spec.node_name or protected(pod)


@dataclass(frozen=True, eq=False)
class GangLimit:
    """Limits between the victim units of one gang: at most `most` surplus units, and no surplus unit together with the
    core.

    A gang below its minimum has the same form: its broken unit is the only unit in `surplus`, and `most` is 1.
    """

    unit: Unit
    """The queue unit (GangGroup) of the gang."""
    surplus: tuple[VictimUnit, ...]
    """Units that can be evicted one by one. A protected member has no unit, so there may be fewer units than `most`."""
    most: int
    """Number of members above minMember."""
    core: VictimUnit | None
    """The unit of all bound pods of the group. None if one of these pods is protected, or if no gang of the group has
    both a minMember above 0 and its minimum."""


def find_candidates(
    groups: Groups, pods: Iterable[PodInfo], *, gone: Collection[str], below: int | None
) -> tuple[list[VictimUnit], list[GangLimit]]:
    """Returns the victim units of the given bound pods, before any rule is applied, and the limits between units of one
    gang.

    gone: keys of evicted pods. below: plain pods of this priority or higher are left out; None for no such limit.
    """
    units: list[VictimUnit] = []
    gang_limits: list[GangLimit] = []
    seen: set[GangRef] = set()
    for pod in pods:
        if pod.pending or not pod.bound:
            continue
        if pod.gang is None:
            if (below is None or pod.priority < below) and pod.key not in gone and not untouchable(pod):
                units.append(VictimUnit(UnitKind.PLAIN, (pod,)))
        elif pod.gang not in seen:
            unit = groups.unit(pod.gang)
            seen.update(gang.ref for gang in unit.gangs)
            found, tied = _of_group(unit, gone)
            units += found
            gang_limits += tied
    return units, gang_limits


def _of_group(unit: Unit, gone: Collection[str]) -> tuple[list[VictimUnit], list[GangLimit]]:
    """Returns the victim units of one GangGroup, and the limits between them. gone: keys of evicted pods."""
    # bound members of each gang that are not evicted, and the gangs that are below their minimum
    staying = {
        gang.ref: tuple(pod for pod in gang.bound if pod.key not in gone and not terminating(pod))
        for gang in unit.gangs
    }
    below = {gang.ref for gang in unit.gangs if len(staying[gang.ref]) + gang.succeeded < gang.min_member}
    everyone = tuple(pod for gang in unit.gangs for pod in staying[gang.ref])
    # the core: only if some gang has its minimum, and if no pod of the group is protected
    core: VictimUnit | None = None
    whole = [gang for gang in unit.gangs if staying[gang.ref] and gang.ref not in below]
    held = any(gang.min_member > 0 or gang.one_victim for gang in whole)
    if held and not any(untouchable(pod) for pod in everyone):
        core = VictimUnit(UnitKind.CORE, everyone, unit.group_id)
    units: list[VictimUnit] = []
    gang_limits: list[GangLimit] = []
    # per gang: a broken unit if it is below its minimum, else its surplus members
    for gang in unit.gangs:
        bound = staying[gang.ref]
        if not bound:
            continue
        if gang.ref in below:
            if not any(untouchable(pod) for pod in bound):
                units.append(VictimUnit(UnitKind.BROKEN, bound, unit.group_id, gang.ref))
                if core is not None:
                    gang_limits.append(GangLimit(unit, (units[-1],), 1, core))
            continue
        # upstream's disruptionMode `all` leaves no surplus (kube-parity.md 6)
        most = 0 if gang.one_victim else max(0, len(bound) - max(0, gang.min_member))
        surplus: tuple[VictimUnit, ...] = ()
        if most:
            free = (pod for pod in bound if not untouchable(pod))
            surplus = tuple(VictimUnit(UnitKind.SURPLUS, (pod,), unit.group_id, gang.ref) for pod in free)
        if surplus or core is not None:
            gang_limits.append(GangLimit(unit, surplus, most, core))
        units += surplus
    if core is not None:
        units.append(core)
    return units, gang_limits
