# SPDX-License-Identifier: Apache-2.0
"""Reserves new nodes for the gang that requested them with a ProvisioningRequest (docs/rules/repair.md 3.4).

While the request of a unit is open or provisioned, some nodes are closed to other units: nodes that were created after
the request and that could take a member. The oldest nodes come first, until they have slots for all pending members. As
with a nomination, units of strictly higher priority may use these nodes. Each round computes them again. O(nodes) for
each request.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from koordpy.api.counted_nouns import count_noun
from koordpy.api.natural_order import natural_key
from koordpy.api.times import seconds
from koordpy.attempts.unit_outcome import PlacedUnit, UnitOutcome, WaitingUnit
from koordpy.cache.reservations import ClosedTo, Reservation, withheld
from koordpy.cache.snapshot import Ints
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.planner.queue.queue_policy import QueuePolicy
from koordpy.pods.pod_info import PodInfo
from koordpy.provisioning.asking_units import Asking
from koordpy.provisioning.request_states import RequestPhase, state_of

CHECK_ONLY = "check-capacity.autoscaling.x-k8s.io"
"""Class of requests that create no nodes."""
_CLOSING = (RequestPhase.OPEN, RequestPhase.PROVISIONED)
"""States of a request in which new nodes are reserved for its unit."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """The new nodes that are reserved for one unit."""

    unit: Unit
    nodes: tuple[int, ...]
    """Positions of the nodes."""
    priority: int
    """Lowest priority of the unit's pending pods."""


class NewNodes(QueuePolicy):
    """Reserves new nodes in one round."""

    binds_loans = True

    def __init__(self, round_state: RoundState) -> None:
        self._round_state = round_state
        self._holds = tuple(self._find()) if round_state.snapshot.provisioning_requests else ()
        self._placed: set[str] = set()
        """Ids of units with new nodes that the round has placed."""

    @property
    def is_idle(self) -> bool:
        """True if no node is reserved."""
        return not self._holds

    def _find(self) -> Iterator[_Hold]:
        """Yields the new nodes of each unit with a request, starting with the oldest request."""
        snapshot, settings = self._round_state.snapshot, self._round_state.config.autoscaling.provisioning
        groups = self._round_state.groups
        asking, found = Asking(snapshot, settings), []
        for title, requests in asking.requests.items():
            request, ref = requests[0], groups.find(title.partition(",")[0])
            unit = groups.unit(ref) if ref is not None else None
            wanted = asking.request_of(unit).wanted if unit is not None and unit.group_id == title else None
            if unit is None or wanted is None or request.spec.provisioning_class_name == CHECK_ONLY:
                continue
            if state_of(wanted, asking.requests_of(unit), settings, snapshot.now).phase in _CLOSING:
                found.append((seconds(request.metadata.creation_timestamp), title, unit))
        taken: set[int] = set()
        for since, _, unit in sorted(found, key=lambda one: one[:2]):
            nodes = self._nodes_of(unit, since, taken)
            if nodes:
                taken |= {*nodes}
                yield _Hold(unit, nodes, min(pod.priority for pod in unit.pending))

    def _nodes_of(self, unit: Unit, since: float, taken: set[int]) -> tuple[int, ...]:
        """Returns new nodes with slots for all pending members of a unit.

        since: creation time of the request. taken: nodes of units with older requests.
        """
        nodes = self._round_state.snapshot.nodes
        born = [seconds(node.node.metadata.creation_timestamp) for node in nodes]
        new = [i for i, at in enumerate(born) if at and at >= since and i not in taken]
        new.sort(key=lambda i: (born[i], natural_key(nodes[i].name)))
        kinds = unit.kinds if new else ()
        slots, left = [self._round_state.of(pod).slots for pod, _ in kinds], [count for _, count in kinds]
        out: list[int] = []
        for i in new:
            kind = next((k for k, count in enumerate(left) if count and slots[k][i] > 0), None)
            if kind is not None:
                left[kind] = max(0, left[kind] - int(slots[kind][i]))
                out.append(i)
        return tuple(out)

    def _closed(self, unit: Unit, pods: Sequence[PodInfo]) -> list[_Hold]:
        """Returns the reservations (`_Hold`) that pods of a unit must respect."""
        lowest = min(pod.priority for pod in pods)
        return [
            hold
            for hold in self._holds
            if hold.unit.id != unit.id and hold.unit.id not in self._placed and lowest <= hold.priority
        ]

    def _reservation(self, holds: Sequence[_Hold]) -> Reservation | None:
        """Returns all free capacity of the nodes of the given holds; None if there are no holds."""
        if not holds:
            return None
        draft = self._round_state.draft
        free, amounts = np.maximum(draft.free(), 0), np.zeros_like(draft.used)
        for hold in holds:
            amounts[[*hold.nodes]] = free[[*hold.nodes]]
        return withheld(holds[0].unit.title, ClosedTo.BEHIND, amounts)

    @property
    def withheld(self) -> Reservation | None:
        """The capacity of all new nodes that are reserved."""
        return self._reservation([hold for hold in self._holds if hold.unit.id not in self._placed])

    def closing(self, unit: Unit, pods: Sequence[PodInfo]) -> AbstractContextManager[None]:
        """Within the context, new nodes of other units are closed on the draft to pods of a unit."""
        return self._round_state.draft.with_withheld(self._reservation(self._closed(unit, pods)))

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Extends the key of a unit: equal keys only for units to which the same nodes are closed."""
        return key, tuple(hold.unit.id for hold in self._closed(unit, unit.pending))

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Tries a unit on the nodes except new nodes of other units."""
        closed = self._closed(unit, unit.pending)
        with self._round_state.draft.with_withheld(self._reservation(closed)):
            outcome = attempt(unit)
            slots = self._slots(unit) if closed and isinstance(outcome, WaitingUnit) else []
        if isinstance(outcome, PlacedUnit):
            self._placed.add(unit.id)
        if not slots or not isinstance(outcome, WaitingUnit) or not outcome.lacks_capacity:
            return outcome
        texts = [text for hold in closed if (text := self._text(unit, hold, slots))]
        return outcome.note_capacity(promise="; ".join(texts), beside_promise=True) if texts else outcome

    def _slots(self, unit: Unit) -> list[Ints]:
        """Returns for each shape of the unit [nodes]: the number of slots on the draft."""
        return [self._round_state.of(pod).slots.copy() for pod, _ in unit.kinds]

    def _text(self, unit: Unit, hold: _Hold, slots: Sequence[Ints]) -> str:
        """Returns the sentence on nodes where a unit has fewer slots because of a hold; empty if there are no such
        nodes.

        slots: the result of `_slots` while the new nodes are closed.
        """
        smaller = [free > before for free, before in zip(self._slots(unit), slots, strict=True)]
        count = int(np.logical_or.reduce(smaller)[[*hold.nodes]].sum())
        if not count:
            return ""
        return f"room on {count_noun(count, 'node')} is held for {hold.unit.title}, provisioned for it"
