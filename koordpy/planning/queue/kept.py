"""Room that units further ahead could use while their search has no answer: nobody behind them is given it.

Else a small pod would take what a gang needs beside its victims, and be evicted for it a moment later. What such a unit
cannot use, by its filters and what it asks for, is given at once. Likewise with what it asks of quotas.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from itertools import chain
from math import inf

import numpy as np
from numpy.typing import NDArray

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.reservations import Purpose
from koordpy.planning.figures import Figures
from koordpy.planning.units import Unit

Mask = NDArray[np.bool_]


class KeptRoom:
    """The kept room of one round."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self._nodes: dict[int, Mask] = {}
        """Column -> [nodes] where what is free of it is kept."""
        self.quotas: dict[tuple[str, str], int] = {}
        """(quota, resource that it limits) -> what those ask of it that room is kept for."""
        self._seen: set[bytes] = set()
        self._later: deque[PodInfo] = deque()
        """Pods of kept units, one of each shape, whose nodes nobody has asked for: of a thousand shapes that wait the
        first often tells enough."""
        self._highest: float = -inf
        """Priority of the most important that room is kept for."""

    def keep(self, unit: Unit) -> None:
        """Keeps what the unit's pending pods could use, now or once others have left: by labels, taints and size; and
        what they ask of their quotas."""
        self._highest = max(self._highest, unit.priority)
        for pod, count in unit.kinds:
            for asked, amount in _asked(pod, self.figures):
                self.quotas[asked] = self.quotas.get(asked, 0) + count * amount
            if pod.shape in self._seen:
                continue
            self._seen.add(pod.shape)
            self._later.append(pod)

    def _more(self) -> Iterator[dict[int, Mask]]:
        """Takes in the nodes of further shapes, as long as more are asked for: column -> nodes of one of them."""
        figures, columns = self.figures, self.figures.snapshot.columns
        while self._later:
            pod = self._later.popleft()
            able = figures.could_hold(pod)
            if not able.any():
                continue
            new = {columns[name]: able for name, amount in pod.requests.items() if amount and not figures.ignored(name)}
            for column, able in new.items():
                known = self._nodes.get(column)
                self._nodes[column] = able if known is None else known | able
            yield new

    def has_lost(self, pods: Iterable[tuple[PodInfo, int]]) -> bool:
        """Whether any of these (pod, node), placed on the draft, has what is kept there. What was promised to a pod is
        its own, unless somebody more important may take it."""
        snapshot = self.figures.snapshot
        wanted = [
            (snapshot.columns[name], node)
            for pod, node in pods
            if pod.nominated_node != snapshot.nodes[node].name or pod.priority < self._highest
            for name, amount in pod.requests.items()
            if amount
        ]
        return any(
            (mask := masks.get(column)) is not None and mask[node]
            for masks in chain([self._nodes], self._more())
            for column, node in wanted
        )

    def leaves(self, pod: PodInfo) -> bool:
        """Whether a pod has room on some node beside what is kept."""
        own = self.figures.of(pod)
        able = own.slots > 0
        for masks in chain([self._nodes], self._more()):
            for column, amount in own.request[1:]:
                if amount and (mask := masks.get(column)) is not None:
                    able = able & ~mask
            if not able.any():
                return False
        return True

    def amounts(self) -> NDArray[np.int64]:
        """[nodes, columns] of what is kept and free."""
        draft = self.figures.draft
        deque(self._more(), maxlen=0)
        free, amounts = draft.free(), np.zeros_like(draft.used)
        for column, mask in self._nodes.items():
            amounts[:, column] = np.where(mask, np.maximum(free[:, column], 0), 0)
        return amounts


def taken(rooms: Sequence[KeptRoom], pods: Sequence[tuple[PodInfo, int]]) -> bool:
    """Whether any of these (pod, node), placed on the draft, has what is kept in one of the rooms."""
    return _short(rooms, (pod for pod, _ in pods)) or any(room.has_lost(pods) for room in rooms)


def leaves(rooms: Sequence[KeptRoom], unit: Unit) -> bool:
    """Whether each of the unit's pending pods has room on some node beside what is kept, and all of them in their
    quotas."""
    pods = unit.pending if unit.plain is None else (unit.plain,)
    return not _short(rooms, pods, placed=False) and all(room.leaves(pod) for room in rooms for pod in pods)


def closed(rooms: Sequence[KeptRoom]) -> AbstractContextManager[None]:
    """While this lasts, nothing that is kept in one of the rooms can be had. What is placed meanwhile stays."""
    amounts = reduce(np.maximum, (room.amounts() for room in rooms))
    return rooms[0].figures.draft.beside(Purpose.SEARCHED, amounts)


def _asked(pod: PodInfo, figures: Figures) -> Iterator[tuple[tuple[str, str], int]]:
    """((quota, resource), amount) of a pod, of each quota above it that limits what it asks for."""
    quotas = figures.snapshot.quotas
    if quotas.tree.quotas:
        for name in quotas.tree.path(quotas.quota_of(pod)):
            most = quotas.tree.quotas[name].max
            yield from (((name, r), amount) for r, amount in pod.requests.items() if amount and r in most)


def _short(rooms: Sequence[KeptRoom], pods: Iterable[PodInfo], *, placed: bool = True) -> bool:
    """Whether these pods, placed on the draft or not yet, leave their quotas less than is kept in all rooms together:
    unlike nodes, a quota is kept by amounts."""
    if not any(room.quotas for room in rooms):
        return False
    figures, asked = rooms[0].figures, dict[tuple[str, str], int]()
    for pod in pods:
        for where, amount in _asked(pod, figures):
            asked[where] = asked.get(where, 0) + amount
    limits, use = figures.admission.limits, figures.draft.quotas
    return any(
        (kept := [room.quotas[where] for room in rooms if where in room.quotas])
        and limits[where[0]][where[1]] - use.used(*where) - (0 if placed else amount) < sum(kept)
        for where, amount in asked.items()
    )
