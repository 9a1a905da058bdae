# SPDX-License-Identifier: Apache-2.0
"""The Draft: a working copy of a Snapshot with a round's placements, evictions and reservations, which can be undone.

A round plans its units one after the other on one Draft, so that each unit sees the capacity that earlier units left.
A `Draft` copies the arrays of used amounts, and records each change in a journal. `undo` reverts all changes since a
mark in O(changes). The Snapshot itself never changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from koordpy.api.quantity import MAX_SUM
from koordpy.cache.reservations import Reservation, place
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices, DeviceLedger
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import ClaimVolume
from koordpy.quota.quota_book import QuotaUse


class Draft:
    """A snapshot with a round's changes; every change can be undone back to a mark."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        # arrays as in the Snapshot, with the changes of this draft
        self.used = snapshot.used.copy()
        self.score_used = snapshot.score_used.copy()
        self._cut = frozenset(np.nonzero((snapshot.used >= MAX_SUM).any(axis=1))[0].tolist())
        """Positions of nodes where a used amount is cut at `MAX_SUM`. The true sum is larger and unknown, so placements
        and evictions do not change such an amount."""
        self.placed: dict[str, int] = {}
        """Pod key -> node position, of the pods that this draft has placed."""
        self.placed_on: dict[int, dict[str, PodInfo]] = {}
        """Node position -> pods by key, of the pods that this draft has placed."""
        self.with_anti_affinity: dict[str, PodInfo] = {}
        """Placed pods with required anti-affinity, by key."""
        self.nominated: dict[str, None] = {}
        """Keys of placed pods that start only after victims have terminated, so that the plan nominates them. The value
        is always None: a dict keeps the order."""
        self.evicted: dict[str, PodInfo] = {}
        """Pods that this draft evicts, by key."""
        self.claim_volumes: dict[str, ClaimVolume] = dict(snapshot.claim_volumes)
        """Volume claim -> the volume and node that the claim is to be bound to, of assumed pods and of pods placed
        here."""
        self.volume_claims: dict[str, str] = {
            p.volume: claim for claim, p in snapshot.claim_volumes.items() if p.volume
        }
        """Volume -> the claim that the volume is assigned to."""
        self.reserved_claims: Callable[[PodInfo], Iterable[Reservation]] = lambda pod: ()
        """Function from a pod to the reservations of other pods that have volumes and devices closed to the pod's
        claims. `RoundState` sets it; the default returns none."""
        self.ledgers: Mapping[str, DeviceLedger] = {family: view.ledger() for family, view in snapshot.families.items()}
        """Device family -> its ledger: the allocations to pods that this draft has placed."""
        self.quotas = QuotaUse(snapshot.quotas)
        """Used amounts of quotas and users, with this draft's changes."""
        self._claims: dict[str, tuple[str, ...]] = {}
        """Key of a placed pod -> its volume claims in `claim_volumes`; only pods with such claims."""
        self.reservations: Mapping[str, Reservation] = snapshot.reservations
        """Key of a pod that waits for capacity on its node -> its reservation, from an earlier round or this one. The
        mapping is never changed in place, but replaced."""
        self.withheld: list[Reservation] = []
        """Reservations of units that have no node yet. Their amounts are included in `used`."""
        self.version = 0
        """Increases with every change, also with an undo."""
        self._journal: list[Callable[[], None]] = []
        """Undo function of each change, in order. A mark is a length of this list."""
        self._touched = np.zeros(len(snapshot.nodes), dtype=np.int64)
        """[nodes] value of `version` after the last change of each node."""
        self._last: tuple[int, int] = (-1, -1)
        """(version, node position) of the last change that affected a single node."""
        self.changes: list[tuple[PodInfo, int, int]] = []
        """(pod, node position, 1 if added or -1 if removed) of every change of a node, in order. An undo appends the
        opposite change."""

    @property
    def has_nominations(self) -> bool:
        """True if capacity is reserved for at least one nominated pod."""
        return bool(self.reservations)

    def free(self) -> Ints:
        """Returns [nodes, resources], allocatable minus used; negative for overcommitted nodes."""
        return np.asarray(self.snapshot.allocatable - self.used)

    def touched_since(self, version: int) -> list[int]:
        """Returns the positions of the nodes that changed after a version; a reader updates only its values of these.

        version: the draft's `version` when the reader was last up to date.
        """
        if self._last[0] == self.version == version + 1:
            return [self._last[1]]
        found: list[int] = np.nonzero(self._touched > version)[0].tolist()
        return found

    def assign(
        self,
        info: PodInfo,
        node: int,
        claims: Mapping[str, str] | None = None,
        devices: AllocatedDevices = NO_DEVICES,
    ) -> None:
        """Places a pending pod on a node (position). Raises ValueError if the pod is already placed.

        claims: volume claim -> its volume, empty for a volume to be provisioned. devices: device family -> allocation.
        """
        if info.key in self.placed:
            raise ValueError(f"{info.key} is placed already")
        for claim, volume in (claims or {}).items():
            self.claim_volumes[claim] = ClaimVolume(volume, self.snapshot.nodes[node].name)
            if volume:
                self.volume_claims[volume] = claim
        if claims:
            self._claims[info.key] = tuple(claims)
        for family, what in devices.items():
            self.ledgers[family].assign(info, node, what)
        self._change(info, node, 1)
        self.placed[info.key] = node
        self.placed_on.setdefault(node, {})[info.key] = info
        if info.ties.anti:
            self.with_anti_affinity[info.key] = info
        self._journal.append(partial(self._unassign, info, node))

    def evict(self, info: PodInfo) -> None:
        """Evicts a bound pod: frees its node and its quota at once. Raises ValueError if the draft has evicted it
        already."""
        if info.key in self.evicted:
            raise ValueError(f"{info.key} is evicted already")
        node = self.snapshot.index.get(info.node, -1)
        self._change(info, node, -1)
        for family in info.asks:
            if family in self.ledgers:
                self.ledgers[family].evict(info)
        self.evicted[info.key] = info
        self._journal.append(partial(self._unevict, info, node))

    def reserve(self, nodes: Mapping[str, int], waits_for: Iterable[str] = ()) -> None:
        """Reserves nodes for pods that start in a later round, in `reservations` and not in `used`.

        nodes: pod key -> node position. waits_for: keys of pods that start before them and may use the capacity until
        then.
        """
        self._journal.append(partial(self._reserve, self.reservations))
        found = {key: place(key, self.snapshot.nodes[node].name, waits_for) for key, node in nodes.items()}
        self._reserve({**self.reservations, **found})

    def nominate(self, keys: Iterable[str]) -> None:
        """Marks placed pods as pods that start after victims have terminated."""
        new = [key for key in keys if key not in self.nominated]
        self.nominated.update(dict.fromkeys(new))
        self._journal.append(partial(self._denominate, new))

    def record(self, undo: Callable[[], None]) -> None:
        """Adds a change that a device family made in its ledger to the journal. All verdicts are computed again then.

        undo: function that reverts the change.
        """
        self._journal.append(partial(self._reserve, self.reservations))
        self._reserve({**self.reservations})
        self._journal.append(undo)

    def withhold(self, reservation: Reservation) -> None:
        """Adds the amounts of a reservation to `used`, until an undo or `release_withheld`."""
        self._withhold(reservation, 1)
        self._journal.append(partial(self._withhold, reservation, -1))

    def release_withheld(self, reservation: Reservation) -> None:
        """Subtracts the amounts of a reservation from `used` that `withhold` has added."""
        self._withhold(reservation, -1)
        self._journal.append(partial(self._withhold, reservation, 1))

    @contextmanager
    def with_withheld(self, reservation: Reservation | None) -> Iterator[None]:
        """Adds the amounts of a reservation to `used` while the context lasts. None changes nothing.

        Placements that are made inside the context remain.
        """
        if reservation is None:
            yield
            return
        self._withhold(reservation, 1)
        try:
            yield
        finally:
            self._withhold(reservation, -1)

    def withheld_devices(self) -> list[Reservation]:
        """Returns the withheld reservations with devices, which no other pod may use."""
        return [one for one in self.withheld if one.devices]

    def used_by_pods(self, node: int, column: int) -> int:
        """Returns the amount of a resource (column) that pods use on a node (position), without withheld amounts."""
        withheld = (one.amounts for one in self.withheld)
        return int(self.used[node, column]) - sum(int(of[node, column]) for of in withheld if of is not None)

    def claims(self, key: str) -> dict[str, str]:
        """Returns volume claim -> volume of a placed pod; the volume is empty if it is to be provisioned."""
        return {claim: self.claim_volumes[claim].volume for claim in self._claims.get(key, ())}

    def family_devices_of(self, key: str, family: str) -> Any:
        """Returns a family's allocation to a placed pod, in the family's form; None for none."""
        ledger = self.ledgers.get(family)
        return ledger.allocations.get(key) if ledger is not None else None

    def devices_of(self, key: str) -> AllocatedDevices:
        """Returns device family -> its allocation to a placed pod."""
        return {
            family: one.allocations[key] for family, one in self.ledgers.items() if key in one.allocations
        } or NO_DEVICES

    def mark(self) -> int:
        """Returns a mark of the current changes, for `undo`."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undoes every change since the mark, the latest first."""
        while len(self._journal) > mark:
            self._journal.pop()()

    @contextmanager
    def trial(self, without: Iterable[PodInfo] = ()) -> Iterator[None]:
        """At the end of the context, undoes all changes made inside. without: bound pods that are evicted at its
        begin."""
        mark = self.mark()
        try:
            self.evict_all(without)
            yield
        finally:
            self.undo(mark)

    def evict_all(self, infos: Iterable[PodInfo]) -> None:
        """Evicts pods, except those that are already evicted."""
        for info in infos:
            if info.key not in self.evicted:
                self.evict(info)

    @contextmanager
    def remove_placed(self, keys: Iterable[str]) -> Iterator[None]:
        """Removes placed pods from their nodes while the context lasts, and places them again at its end.

        keys: keys of placed pods. Afterwards `placed` has its former order.
        """
        order, pods = tuple(self.placed), self.snapshot.pods
        known = [(key, self.placed[key], self.claims(key), self.devices_of(key)) for key in keys]
        for key, node, *_ in known:
            self._unassign(pods[key], node)
        try:
            yield
        finally:
            for key, node, claims, devices in known:
                self.assign(pods[key], node, claims, devices)
                self._journal.pop()  # the journal already has the entry of the first placement
            self.placed = {key: self.placed[key] for key in order}

    def _unassign(self, info: PodInfo, node: int) -> None:
        """Undoes `assign`."""
        self._change(info, node, -1)
        for claim in self._claims.pop(info.key, ()):
            self.volume_claims.pop(self.claim_volumes.pop(claim).volume, None)
        for ledger in self.ledgers.values() if info.asks else ():
            if info.key in ledger.allocations:
                ledger.release(info)
        del self.placed[info.key]
        del self.placed_on[node][info.key]
        self.with_anti_affinity.pop(info.key, None)

    def _unevict(self, info: PodInfo, node: int) -> None:
        """Undoes `evict`."""
        self._change(info, node, 1)
        for family in info.asks:
            if family in self.ledgers:
                self.ledgers[family].restore(info)
        del self.evicted[info.key]

    def _reserve(self, reservations: Mapping[str, Reservation]) -> None:
        """Replaces all reservations of pods with nodes."""
        self.version += 1
        self.reservations = reservations

    def _denominate(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self.nominated[key]

    def _withhold(self, reservation: Reservation, sign: int) -> None:
        """Adds the amounts of a reservation to `used` (sign 1), or subtracts them (-1)."""
        self.version += 1
        amounts = reservation.amounts
        if amounts is None:
            raise ValueError(f"{reservation.holder}: capacity is withheld by amounts")
        if sign > 0:
            self.withheld.append(reservation)
        else:
            last = max(i for i, one in enumerate(self.withheld) if one is reservation)
            del self.withheld[last]
        self.used += sign * amounts
        if reservation.devices:
            self.reservations = {**self.reservations}  # so that all verdicts are computed again
        self._touched[amounts.any(axis=1)] = self.version

    def _change(self, info: PodInfo, node: int, sign: int) -> None:
        """Adds a pod to the amounts of its node and quota (sign 1), or removes it (-1). node: position; -1 if
        unknown."""
        self.version += 1
        self.quotas.change(info, sign)
        if node < 0:
            return
        row = self.used[node]
        row[0] += sign
        columns = self.snapshot.columns
        for name, amount in info.requests.items():
            if node not in self._cut or self.snapshot.used[node, columns[name]] < MAX_SUM:
                row[columns[name]] += sign * amount
        cpu, memory = info.score_requests
        self.score_used[node, 0] += sign * cpu
        self.score_used[node, 1] += sign * memory
        self._touched[node] = self.version
        self._last = self.version, node
        self.changes.append((info, node, sign))
