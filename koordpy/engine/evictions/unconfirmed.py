"""Queueing hint: wakes units that found no victims because pods were still assumed.

An assumed pod is never a victim. It may be one once the watch has confirmed its Binding, and no other event tells that:
a quota that borrows more is no capacity. Units refused on a snapshot with such pods are therefore tried again, by
priority, by quota owner and by whether the confirmed pods hold accelerators. A gang that has its minimum again has
surplus members, which may be less important than the member that was confirmed.
"""

from collections.abc import Callable, Iterable

from koordpy.cluster.belonging import Owner
from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.cluster.quotas import card_hundredths
from koordpy.cluster.state import ClusterState
from koordpy.engine.queue import Entry, UnitQueue

_Kind = tuple[int, Owner, bool]
"""What tells victims apart: priority, owner, whether it holds accelerators."""


class UnconfirmedHint:
    """Units that were refused, as long as pods that are bound later may be their victims."""

    def __init__(self, state: ClusterState, queue: UnitQueue, *, owners_matter: Callable[[], bool]) -> None:
        """`owners_matter`: whether quotas or users may take back from one another."""
        self._state, self._queue, self._owners_matter = state, queue, owners_matter
        self._assumed: list[PodInfo] = []
        self._shielded: dict[str, frozenset[_Kind]] = {}
        """Unit -> the kinds of its pods."""
        self._heard: set[_Kind] = set()
        """Kinds that everybody whom they concern has heard of."""
        self._least: dict[GangRef, _Kind] = {}
        """Gang -> the kind of its least important member, as it was found in this round."""

    def snapshot_taken(self) -> None:
        """A round begins: the pods that are assumed now are no victims in it."""
        self._assumed = self._state.assumed_pods()
        self._least.clear()

    def refused(self, entries: Iterable[Entry]) -> None:
        """These units found no room in that round."""
        if len(self._shielded) > 2 * len(self._queue) + 100:
            waiting = {entry.unit for entry in self._queue.entries()}
            self._shielded = {unit: mine for unit, mine in self._shielded.items() if unit in waiting}
        kinds: dict[_Kind, bool] = {}
        for info in self._assumed:
            still = self._state.assumed_node(info.key) is not None
            for kind in self._kinds(info):
                kinds[kind] = kinds.get(kind, False) or still
        for entry in entries:
            pods = (self._state.pod(key) for key in entry.pods)
            mine = frozenset(_kind(pod) for pod in pods if pod is not None)
            waits = [still for kind, still in kinds.items() if self._may_take(mine, kind)]
            if waits and not any(waits):
                self._queue.touch(entry.unit, "LesserBound")
            else:
                self._shielded[entry.unit] = mine
                self._heard.clear()

    def confirmed(self, info: PodInfo) -> None:
        """The watch shows a pod on its node that was assumed there."""
        for kind in self._kinds(info):
            if kind in self._heard:
                continue
            self._heard.add(kind)
            for unit, mine in list(self._shielded.items()):
                if self._may_take(mine, kind):
                    del self._shielded[unit]
                    self._queue.touch(unit, "LesserBound")

    def _kinds(self, info: PodInfo) -> tuple[_Kind, ...]:
        """What may be a victim once a pod is: itself, and who its gang can spare then."""
        own = _kind(info)
        if info.gang is None:
            return (own,)
        least = self._least.get(info.gang)
        if least is None:
            one = min(self._state.members(info.gang), key=lambda member: member.priority, default=info)
            least = self._least[info.gang] = _kind(one)
        return (own,) if least == own else (own, least)

    def _may_take(self, mine: Iterable[_Kind], theirs: _Kind) -> bool:
        """By priority, or as the owner of accelerators that others borrowed."""
        owners_matter = theirs[2] and self._owners_matter()
        return any(
            priority > theirs[0] or (owners_matter and devices and owner != theirs[1])
            for priority, owner, devices in mine
        )


def _kind(info: PodInfo) -> _Kind:
    return info.priority, info.owner, card_hundredths(info.requests) > 0
