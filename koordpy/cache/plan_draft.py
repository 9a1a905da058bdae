"""The snapshot with the changes of a plan: placements, evictions and reservations, each with its undo.

A `Draft` copies the arrays of used amounts and keeps a journal; `undo` takes changes back to a mark in O(changes).
The snapshot itself never changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from koordpy.api.quantity import MAX_SUM
from koordpy.cache.reservations import Reservation, place
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.pods.family_books import NOTHING_GIVEN, DeviceLedger, Given
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import Promise
from koordpy.quota.quota_book import QuotaUse


class Draft:
    """The snapshot with a plan's placements and evictions on top; every change can be undone to a mark."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.used = snapshot.used.copy()
        self.score_used = snapshot.score_used.copy()
        self._cut = frozenset(np.nonzero((snapshot.used >= MAX_SUM).any(axis=1))[0].tolist())
        """Nodes of which only a part of what they hold is counted: nobody's leaving shows there is room."""
        self.placed: dict[str, int] = {}
        """Pod key -> node position, of the pods this draft has placed."""
        self.placed_on: dict[int, dict[str, PodInfo]] = {}
        """Node position -> pods by key, of the pods this draft has placed."""
        self.shunning: dict[str, PodInfo] = {}
        """Of the pods this draft has placed those with required anti-affinity, by key."""
        self.nominated: dict[str, None] = {}
        """Keys of the pods that this draft has placed and that start once victims are gone: its plan nominates them."""
        self.evicted: dict[str, PodInfo] = {}
        self.promised: dict[str, Promise] = dict(snapshot.promised)
        """Claim -> what it takes, of assumed pods and of those this draft has placed."""
        self.taken: dict[str, str] = {p.volume: claim for claim, p in snapshot.promised.items() if p.volume}
        """Volume -> claim that takes it."""
        self.reserved_claims: Callable[[PodInfo], Iterable[Reservation]] = lambda pod: ()
        """Reservations whose volumes and devices the claims of a pod may not take."""
        self.ledgers: Mapping[str, DeviceLedger] = {family: view.ledger() for family, view in snapshot.families.items()}
        """Family of devices -> what this draft gives of it."""
        self.quotas = QuotaUse(snapshot.quotas)
        """What quotas and users hold with this draft's changes."""
        self._claims: dict[str, tuple[str, ...]] = {}
        self.reservations: Mapping[str, Reservation] = snapshot.reservations
        """Pod without a node -> its nomination, before the round and in it: replaced, never changed."""
        self.withheld: list[Reservation] = []
        """Reservations of units without a node whose amounts count as used beside what pods hold."""
        self.version = 0
        """Grows with every change, also with an undo."""
        self._journal: list[Callable[[], None]] = []
        """What takes each change back."""
        self._touched = np.zeros(len(snapshot.nodes), dtype=np.int64)
        """[nodes] the version at which each was changed last."""
        self._last: tuple[int, int] = (-1, -1)
        """(version, node) of the last change of one node."""
        self.changes: list[tuple[PodInfo, int, int]] = []
        """(pod, node position, 1 or -1) in the order that pods came and went."""

    @property
    def has_nominations(self) -> bool:
        """Whether capacity is reserved for any nominated pod."""
        return bool(self.reservations)

    def free(self) -> Ints:
        """[nodes, resources]: allocatable minus used; negative where a node is overcommitted."""
        return np.asarray(self.snapshot.allocatable - self.used)

    def touched_since(self, version: int) -> list[int]:
        """Positions of the nodes that were changed after a version; lets a cache of node figures catch up."""
        if self._last[0] == self.version == version + 1:
            return [self._last[1]]
        found: list[int] = np.nonzero(self._touched > version)[0].tolist()
        return found

    def assign(
        self,
        info: PodInfo,
        node: int,
        claims: Mapping[str, str] | None = None,
        given: Given = NOTHING_GIVEN,
    ) -> None:
        """Places a pending pod on a node.

        claims: claim -> volume it takes, empty for one to be made; given: devices of each family that it is given by
        name.
        """
        if info.key in self.placed:
            raise ValueError(f"{info.key} is placed already")
        for claim, volume in (claims or {}).items():
            self.promised[claim] = Promise(volume, self.snapshot.nodes[node].name)
            if volume:
                self.taken[volume] = claim
        if claims:
            self._claims[info.key] = tuple(claims)
        for family, what in given.items():
            self.ledgers[family].assign(info, node, what)
        self._change(info, node, 1)
        self.placed[info.key] = node
        self.placed_on.setdefault(node, {})[info.key] = info
        if info.ties.anti:
            self.shunning[info.key] = info
        self._journal.append(partial(self._unassign, info, node))

    def evict(self, info: PodInfo) -> None:
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
        """Reserves the places (key -> node position) of pods that start in a later round.

        waits_for: keys of pods that start before them.
        """
        self._journal.append(partial(self._reserve, self.reservations))
        found = {key: place(key, self.snapshot.nodes[node].name, waits_for) for key, node in nodes.items()}
        self._reserve({**self.reservations, **found})

    def nominate(self, keys: Iterable[str]) -> None:
        """Marks placed pods as those that start once victims are gone."""
        new = [key for key in keys if key not in self.nominated]
        self.nominated.update(dict.fromkeys(new))
        self._journal.append(partial(self._denominate, new))

    def withhold(self, reservation: Reservation) -> None:
        """Counts the amounts of a reservation as used."""
        self._withhold(reservation, 1)
        self._journal.append(partial(self._withhold, reservation, -1))

    @contextmanager
    def withholding(self, reservation: Reservation | None) -> Iterator[None]:
        """Counts the amounts of a reservation as used while it is entered; None: of no reservation. What is placed
        meanwhile stays."""
        if reservation is None:
            yield
            return
        self._withhold(reservation, 1)
        try:
            yield
        finally:
            self._withhold(reservation, -1)

    def used_by_pods(self, node: int, column: int) -> int:
        """What pods hold of a resource on a node, without what is withheld there."""
        withheld = (one.amounts for one in self.withheld)
        return int(self.used[node, column]) - sum(int(of[node, column]) for of in withheld if of is not None)

    def claims(self, key: str) -> dict[str, str]:
        """Claim -> volume that a placed pod takes, empty for one to be made."""
        return {claim: self.promised[claim].volume for claim in self._claims.get(key, ())}

    def given_of(self, key: str, family: str) -> Any:
        """Returns what a placed pod is given of a family of devices; None for nothing."""
        ledger = self.ledgers.get(family)
        return ledger.given.get(key) if ledger is not None else None

    def given(self, key: str) -> Given:
        """Returns what a placed pod is given of each family of devices."""
        return {family: one.given[key] for family, one in self.ledgers.items() if key in one.given} or NOTHING_GIVEN

    def mark(self) -> int:
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Takes back every change since the mark, the latest first."""
        while len(self._journal) > mark:
            self._journal.pop()()

    @contextmanager
    def trial(self, without: Iterable[PodInfo] = ()) -> Iterator[None]:
        """What is done meanwhile is taken back at the end. without: bound pods that are off their nodes till then."""
        mark = self.mark()
        try:
            self.evict_all(without)
            yield
        finally:
            self.undo(mark)

    def evict_all(self, infos: Iterable[PodInfo]) -> None:
        """Takes pods off their nodes, those left out that are off them already."""
        for info in infos:
            if info.key not in self.evicted:
                self.evict(info)

    @contextmanager
    def lifted(self, keys: Iterable[str]) -> Iterator[None]:
        """Pods that this draft has placed are off their nodes till the end."""
        order, pods = tuple(self.placed), self.snapshot.pods
        known = [(key, self.placed[key], self.claims(key), self.given(key)) for key in keys]
        for key, node, *_ in known:
            self._unassign(pods[key], node)
        try:
            yield
        finally:
            for key, node, claims, given in known:
                self.assign(pods[key], node, claims, given)
                self._journal.pop()  # it stands there already
            self.placed = {key: self.placed[key] for key in order}

    def _unassign(self, info: PodInfo, node: int) -> None:
        self._change(info, node, -1)
        for claim in self._claims.pop(info.key, ()):
            self.taken.pop(self.promised.pop(claim).volume, None)
        for ledger in self.ledgers.values() if info.asks else ():
            if info.key in ledger.given:
                ledger.release(info)
        del self.placed[info.key]
        del self.placed_on[node][info.key]
        self.shunning.pop(info.key, None)

    def _unevict(self, info: PodInfo, node: int) -> None:
        self._change(info, node, 1)
        for family in info.asks:
            if family in self.ledgers:
                self.ledgers[family].restore(info)
        del self.evicted[info.key]

    def _reserve(self, reservations: Mapping[str, Reservation]) -> None:
        self.version += 1
        self.reservations = reservations

    def _denominate(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self.nominated[key]

    def _withhold(self, reservation: Reservation, sign: int) -> None:
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
        self._touched[amounts.any(axis=1)] = self.version

    def _change(self, info: PodInfo, node: int, sign: int) -> None:
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
