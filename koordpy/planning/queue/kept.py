"""Room that units further ahead could use while their search has no answer: nobody behind them is given it.

Else a small pod would take what a gang needs beside its victims, and be evicted for it a moment later. What such a unit
cannot use, by its filters and what it asks for, is given at once. Likewise with what it asks of quotas.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
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
        self._figures = figures
        self._nodes: dict[int, Mask] = {}
        """Column -> [nodes] where what is free of it is kept."""
        self._quotas: dict[tuple[str, str], int] = {}
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
        figures = self._figures
        self._highest = max(self._highest, unit.priority)
        for pod, count in unit.kinds:
            for asked, amount in self._asked(pod):
                self._quotas[asked] = self._quotas.get(asked, 0) + count * amount
            key = figures.key(pod)
            if key in self._seen:
                continue
            self._seen.add(key)
            self._later.append(pod)

    def _more(self) -> Iterator[dict[int, Mask]]:
        """Takes in the nodes of further shapes, as long as more are asked for: column -> nodes of one of them."""
        while self._later:
            own = self._figures.of(self._later.popleft())
            new = {column: own.could_hold for column, amount in own.request[1:] if amount}
            for column, able in new.items():
                known = self._nodes.get(column)
                self._nodes[column] = able if known is None else known | able
            yield new

    def taken(self, pods: list[tuple[PodInfo, int]]) -> bool:
        """Whether any of these (pod, node), placed on the draft, has what is kept there. What was promised to a pod is
        its own, unless somebody more important may take it."""
        snapshot = self._figures.snapshot
        wanted = [
            (snapshot.columns[name], node)
            for pod, node in pods
            if pod.nominated_node != snapshot.nodes[node].name or pod.priority < self._highest
            for name, amount in pod.requests.items()
            if amount
        ]
        return self._short(pod for pod, _ in pods) or any(
            (mask := masks.get(column)) is not None and mask[node]
            for masks in chain([self._nodes], self._more())
            for column, node in wanted
        )

    def leaves(self, unit: Unit) -> bool:
        """Whether each of the unit's pending pods has room on some node beside what is kept, and all of them in their
        quotas."""
        pods = unit.pending if unit.plain is None else (unit.plain,)
        return not self._short(pods, placed=False) and all(self._leaves(pod) for pod in pods)

    def _asked(self, pod: PodInfo) -> Iterator[tuple[tuple[str, str], int]]:
        """((quota, resource), amount) of a pod, of each quota above it that limits what it asks for."""
        quotas = self._figures.snapshot.quotas
        if quotas.tree.quotas:
            for name in quotas.tree.path(quotas.quota_of(pod)):
                most = quotas.tree.quotas[name].max
                yield from (((name, r), amount) for r, amount in pod.requests.items() if amount and r in most)

    def _short(self, pods: Iterable[PodInfo], *, placed: bool = True) -> bool:
        """Whether these pods, placed on the draft or not yet, leave their quotas less than is kept there."""
        if not self._quotas:
            return False
        asked: dict[tuple[str, str], int] = {}
        for pod in pods:
            for where, amount in self._asked(pod):
                asked[where] = asked.get(where, 0) + amount
        limits, use = self._figures.admission.limits, self._figures.draft.quotas
        return any(
            limits[name][r] - use.used(name, r) - (0 if placed else amount) < self._quotas[name, r]
            for (name, r), amount in asked.items()
            if (name, r) in self._quotas
        )

    def _leaves(self, pod: PodInfo) -> bool:
        own = self._figures.of(pod)
        able = own.slots > 0
        for masks in chain([self._nodes], self._more()):
            for column, amount in own.request[1:]:
                if amount and (mask := masks.get(column)) is not None:
                    able = able & ~mask
            if not able.any():
                return False
        return True

    def closed(self) -> AbstractContextManager[None]:
        """While this lasts, nothing that is kept can be had. What is placed meanwhile stays."""
        draft = self._figures.draft
        deque(self._more(), maxlen=0)
        free, amounts = draft.free(), np.zeros_like(draft.used)
        for column, mask in self._nodes.items():
            amounts[:, column] = np.where(mask, np.maximum(free[:, column], 0), 0)
        return draft.beside(Purpose.SEARCHED, amounts)
