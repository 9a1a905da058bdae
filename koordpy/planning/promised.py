"""Room that is promised: what ending pods leave, and the pods that it is for.

Sources: preemption.md section 4, kube-parity.md 2.2. Promised to: pods nominated to a node, if they can still fit there
once the ending pods are gone, and units of this round that wait for just that. Theirs is, first of all, what the ending
pods leave: whoever looks for victims meanwhile must not count both, the ending pod and the one that comes in its place,
or two would go for one. Likewise in the quotas: what ends is not theirs to lose any more, and what was promised to a
quota counts as its own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.pods import GangRef, PodInfo, seconds
from koordpy.cluster.quotas import Queue, QuotaUse
from koordpy.cluster.snapshot import Draft, Ints
from koordpy.planning.filters import node as node_filters
from koordpy.planning.filters.base import Refusal
from koordpy.planning.units import Unit

STUCK_SECONDS = 120
"""After its deletionTimestamp a pod's room counts as coming free so long (preemption.md 4)."""


def coming_free(pod: PodInfo, now: float) -> bool:
    """Whether a pod is ending and not stuck: its room counts as coming free."""
    stamp = pod.pod.metadata.deletion_timestamp
    return pod.bound and stamp is not None and now <= seconds(stamp) + STUCK_SECONDS


class Promises:
    """The promises of one round."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration) -> None:
        self.draft, self.snapshot, self.config = draft, draft.snapshot, config
        self.awaited: dict[str, int] = {}
        """Pod key -> node position, of units of this round that wait for ending pods."""
        self.version = 0
        """Grows with every promise."""
        self.netted = False
        """Whether what nominated pods hold is counted less what is ending for them: the view of who seeks victims."""

    def __bool__(self) -> bool:
        return bool(self.snapshot.nominated or self.awaited)

    def keep(self, nodes: Mapping[str, int]) -> None:
        """Keeps room for pods (key -> node position) that wait until it has come free."""
        self.awaited.update(nodes)
        self.version += 1

    def concern(self, pod: PodInfo) -> bool:
        """Whether room is promised to a pod, or it leaves room that may be promised to others."""
        return bool(pod.nominated_node or pod.key in self.awaited or pod.pod.metadata.deletion_timestamp)

    @contextmanager
    def net(self) -> Iterator[None]:
        """While victims are looked for."""
        self.netted = True
        try:
            yield
        finally:
            self.netted = False

    @cached_property
    def ending(self) -> tuple[PodInfo, ...]:
        """Pods of the snapshot whose room is coming free."""
        snapshot = self.snapshot
        return tuple(pod for pod in snapshot.pods.values() if coming_free(pod, snapshot.now))

    def ends(self) -> list[PodInfo]:
        """The same without those that the draft has out already."""
        return [pod for pod in self.ending if pod.key not in self.draft.evicted]

    @cached_property
    def _ending_on(self) -> dict[int, tuple[PodInfo, ...]]:
        """Node position -> pods ending there."""
        out: dict[int, tuple[PodInfo, ...]] = {}
        for pod in self.ending:
            node = self.snapshot.index.get(pod.node)
            if node is not None:
                out[node] = (*out.get(node, ()), pod)
        return out

    def _sum(self, pods: Iterable[PodInfo]) -> Ints:
        """[resources] what pods ask together, their number first."""
        out = np.zeros(self.snapshot.allocatable.shape[1], dtype=np.int64)
        for pod in pods:
            out[0] += 1
            for name, amount in pod.requests.items():
                out[self.snapshot.columns[name]] += amount
        return out

    def leaves(self, node: int) -> Ints:
        """[resources] what pods that are ending on a node, and still on the draft, will leave there."""
        gone = self.draft.evicted
        return self._sum(pod for pod in self._ending_on.get(node, ()) if pod.key not in gone)

    @cached_property
    def kept(self) -> tuple[PodInfo, ...]:
        """The nominated pods that can still fit their node beside more important ones, once the ending pods are gone;
        the nomination of the others keeps nothing."""
        snapshot = self.snapshot
        rooms: dict[int, Ints] = {}
        out: list[PodInfo] = []
        for pod in sorted(snapshot.nominated, key=lambda pod: (-pod.priority, pod.created, pod.key)):
            node = snapshot.index.get(pod.nominated_node)
            if node is None or not self._suits(pod, node):
                continue
            if node not in rooms:
                ending = self._sum(self._ending_on.get(node, ()))
                rooms[node] = snapshot.allocatable[node] - snapshot.used[node] + ending
            asks = self._sum([pod])
            if not bool(((asks > 0) & (asks > rooms[node])).any()):
                rooms[node] = rooms[node] - asks
                out.append(pod)
        return tuple(out)

    def _suits(self, pod: PodInfo, node: int) -> bool:
        """Whether the node's name, labels and taints let a pod in."""
        nodes, wire = self.snapshot.nodes[node : node + 1], pod.pod
        affinity = node_filters.check_affinity(nodes, wire)
        if isinstance(affinity, Refusal):
            return False
        added = node_filters.check_added(nodes, self.config.filters.node_affinity.added_affinity)
        checks = (node_filters.check_named, node_filters.check_unschedulable, node_filters.check_taints)
        return all(word.of(0) is None for word in (affinity, added, *(check(nodes, wire) for check in checks)))

    def coming(self, *, least: int, but: Collection[str]) -> dict[str, int]:
        """Pods that the draft has not placed -> position of their node; nominated ones only from that priority on.

        but: keys of those left out.
        """
        index, placed = self.snapshot.index, self.draft.placed
        out = {pod.key: index[pod.nominated_node] for pod in self.kept if pod.priority >= least} | self.awaited
        return {key: node for key, node in out.items() if key not in but and key not in placed}

    def own(self, gangs: Collection[GangRef]) -> frozenset[str]:
        """Keys of the members of gangs that something is promised to."""
        if not gangs:
            return frozenset()
        pods = self.snapshot.pods
        nominated = [pod.key for pod in self.snapshot.nominated if pod.gang in gangs]
        return frozenset((*nominated, *(key for key in self.awaited if pods[key].gang in gangs)))

    def use(self, unit: Unit, base: QuotaUse, *, netted: bool) -> QuotaUse:
        """A use with the promises in it, as the pending members of a unit see them; the same where there are none.

        netted: what is promised is, first of all, what is ending, and what is ending is its quota's no more.
        """
        if not self:
            return base
        own, least = {pod.key for pod in unit.members}, min(pod.priority for pod in unit.pending)
        gone = self.draft.evicted
        ending = [pod for pod in self.ending if pod.key not in gone] if netted else []
        coming = [self.snapshot.pods[key] for key in self.coming(least=least, but=own)]
        return PromisedUse(base, pods=unit.pending, ending=ending, coming=coming)


class PromisedUse(QuotaUse):
    """A use with promises in it. Quotas and users of the pods that ask, and all above them: what they hold, and what
    is promised there beyond what is ending. All others: what they hold without what is ending."""

    def __init__(
        self, base: QuotaUse, *, pods: Collection[PodInfo], ending: Iterable[PodInfo], coming: Iterable[PodInfo]
    ) -> None:
        super().__init__(base.quotas)
        quotas = base.quotas
        none = replace(quotas, held={}, waiting={})
        self._base, self._ending, self._coming = base, QuotaUse(none), QuotaUse(none)
        for pod in ending:
            self._ending.change(pod, 1)
        for pod in coming:
            self._coming.change(pod, 1)
        self._own_quotas = {name for pod in pods for name in quotas.tree.path(quotas.quota_of(pod))}
        self._own_users = {quotas.user_of(pod) for pod in pods}
        self._own_queues = {quotas.queue_of(pod) for pod in pods}

    def _promised(self, held_in: Callable[[QuotaUse], int], *, own: bool) -> int:
        held, ending = held_in(self._base), held_in(self._ending)
        return held + max(0, held_in(self._coming) - ending) if own else held - ending

    def used(self, quota: str, resource: str) -> int:
        return self._promised(lambda use: use.used(quota, resource), own=quota in self._own_quotas)

    def rigid_used(self, quota: str, resource: str) -> int:
        return self._promised(lambda use: use.rigid_used(quota, resource), own=quota in self._own_quotas)

    def user(self, user: str, resource: str) -> int:
        return self._promised(lambda use: use.user(user, resource), own=user in self._own_users)

    def user_devices(self, user: str) -> int:
        return self._promised(lambda use: use.user_devices(user), own=user in self._own_users)

    def queue(self, queue: Queue, resource: str) -> int:
        return self._promised(lambda use: use.queue(queue, resource), own=self._mine(queue))

    def queue_devices(self, queue: Queue) -> int:
        return self._promised(lambda use: use.queue_devices(queue), own=self._mine(queue))

    def _mine(self, queue: Queue) -> bool:
        return queue in self._own_queues or queue.quota in self._own_quotas
