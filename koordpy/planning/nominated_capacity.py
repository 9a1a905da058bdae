"""Capacity reserved for nominated pods, and for units of this round, while their victims terminate.

Sources: preemption.md 4, kube-parity.md 2.2. A terminating pod and the pod nominated to its node stand for the same
capacity. Counting both would evict two pods where one is enough. A search for victims therefore sees the node without
the terminating pod and with the nominated one. Quota usage is netted alike. A nomination counts only while the pod
would still fit the node once the terminating pods are gone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from koordpy.api.config import KoordpyConfiguration
from koordpy.api.keys import BUILT_IN_QUOTAS
from koordpy.api.times import seconds
from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.cluster.quotas import Quotas, QuotaUse, ShareQueue
from koordpy.cluster.resources import Amounts, add_amounts
from koordpy.cluster.snapshot import Draft, Ints
from koordpy.planning.filters import node as node_filters
from koordpy.planning.units import Unit

EVICTED = "EvictionByEvictionAPI"
"""Reason of the condition DisruptionTarget of pods that the eviction API has evicted."""
STUCK_SECONDS = 120
"""After its deletionTimestamp a pod's room counts as coming free so long (preemption.md 4)."""


def coming_free(pod: PodInfo, now: float) -> bool:
    """Whether a pod is ending and not stuck: its room counts as coming free."""
    stamp = pod.pod.metadata.deletion_timestamp
    return pod.bound and stamp is not None and now <= seconds(stamp) + STUCK_SECONDS


class NominatedCapacity:
    """The promises of one round."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration) -> None:
        self.draft, self.snapshot, self.config = draft, draft.snapshot, config
        self.netted = False
        """Whether what nominated pods hold is counted less what is ending for them: the view of who seeks victims."""
        self._losers: dict[str, frozenset[ShareQueue]] = {}
        self._by_gang: tuple[Mapping[str, object], dict[GangRef | None, list[str]]] = {}, {}

    def __bool__(self) -> bool:
        return self.draft.keeps_room

    def concern(self, pod: PodInfo) -> bool:
        """Whether room is promised to a pod, or it leaves room that may be promised to others."""
        return self.to(pod) or bool(pod.pod.metadata.deletion_timestamp)

    def to(self, pod: PodInfo) -> bool:
        """Whether room is promised to a pod."""
        return pod.key in self.draft.reservations

    @contextmanager
    def net(self) -> Iterator[None]:
        """While victims are looked for, and what was found is checked."""
        before, self.netted = self.netted, True
        try:
            yield
        finally:
            self.netted = before

    @cached_property
    def ending(self) -> tuple[PodInfo, ...]:
        """Pods of the snapshot whose room is coming free."""
        snapshot = self.snapshot
        return tuple(pod for pod in snapshot.pods.values() if coming_free(pod, snapshot.now))

    @cached_property
    def _ending_on(self) -> dict[int, tuple[PodInfo, ...]]:
        """Node position -> pods ending there."""
        out: dict[int, tuple[PodInfo, ...]] = {}
        for pod in self.ending:
            node = self.snapshot.index.get(pod.node)
            if node is not None:
                out[node] = (*out.get(node, ()), pod)
        return out

    def leaves(self, node: int) -> Ints:
        """[resources] what pods that are ending on a node, and still on the draft, will leave there."""
        gone = self.draft.evicted
        return self.snapshot.asked(pod for pod in self._ending_on.get(node, ()) if pod.key not in gone)

    @property
    def kept(self) -> dict[str, int]:
        """Pods that room is kept for -> position of their node. What is promised to those that will not fit there keeps
        nothing."""
        at, ledger = self.snapshot.index, self.draft.reservations
        return {**self._kept_before, **{key: at[one.node] for key, one in ledger.items() if one.awaited}}

    @cached_property
    def _kept_before(self) -> dict[str, int]:
        """The same of what was kept before the round: those that can still fit there beside more important ones, once
        the ending pods are gone."""
        snapshot = self.snapshot
        known = snapshot.reservations
        pods = [snapshot.pods[key] for key in known if key in snapshot.pods]
        rooms: dict[int, Ints] = {}
        out: dict[str, int] = {}
        for pod in sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.key)):
            node = snapshot.index.get(known[pod.key].node)
            if node is None or not self._suits(pod, node):
                continue
            if node not in rooms:
                ending = snapshot.asked(self._ending_on.get(node, ()))
                rooms[node] = snapshot.allocatable[node] - snapshot.used[node] + ending
            asks = snapshot.asked([pod])
            if not bool(((asks > 0) & (asks > rooms[node])).any()):
                rooms[node] = rooms[node] - asks
                out[pod.key] = node
        return out

    def _suits(self, pod: PodInfo, node: int) -> bool:
        """Whether the node's name, labels and taints let a pod in."""
        added = self.config.filters.node_affinity.added_affinity
        words, refusal = node_filters.first_words(self.snapshot.nodes[node : node + 1], pod.pod, added)
        return refusal is None and all(word.of(0) is None for word in words)

    def coming(self, asker: PodInfo, *, but: Collection[str]) -> dict[str, int]:
        """Pods that the draft has not placed and whose room is kept from a pod -> position of their node.

        Of nominated ones those of its priority or above, and those whose room was reclaimed from its quota or user.
        but: keys of those left out.
        """
        pods, placed, ledger = self.snapshot.pods, self.draft.placed, self.draft.reservations
        return {
            key: node
            for key, node in self.kept.items()
            if key not in but
            and key not in placed
            and (
                (ledger[key].awaited and ledger[key].behind.isdisjoint(but))
                or pods[key].priority >= asker.priority
                or self._lost_by(pods[key], node, asker)
            )
        }

    def _lost_by(self, pod: PodInfo, node: int, asker: PodInfo) -> bool:
        """Whether a promised room was taken from the asker's quota or user by reclaim (preemption.md 4)."""
        losers = self._losers.get(pod.key)
        if losers is None:
            told = self.snapshot.reservations[pod.key].closed_to
            losers = self._losers[pod.key] = told | self._seen_to_lose(pod, node)
        return bool(losers) and not losers.isdisjoint(parties(asker, self.snapshot.quotas))

    def _seen_to_lose(self, pod: PodInfo, node: int) -> frozenset[ShareQueue]:
        """Whose pods are ending on the node that is promised to a pod, by reclaim as far as that can be seen: they are
        not less important, or the eviction API says that it was asked."""
        quotas, fairness = self.snapshot.quotas, self.config.fairness
        by_quota = fairness.reclaim != "off" and self.config.preemption.across_quotas != "any"
        out: set[ShareQueue] = set()
        for other in self._ending_on.get(node, ()):
            if other.priority < pod.priority and not any(
                said.type == "DisruptionTarget" and said.reason == EVICTED for said in other.pod.status.conditions
            ):
                continue
            quota = quotas.quota_of(other)
            if by_quota and quota in quotas.tree.quotas and quota != quotas.quota_of(pod) in quotas.tree.quotas:
                out.add(ShareQueue(quota, ""))
            if fairness.reclaim == "all" and fairness.mode != "off":
                theirs = party_of(other, quotas, fairness.mode)
                if theirs != party_of(pod, quotas, fairness.mode):
                    out.add(theirs)
        return frozenset(out)

    def own(self, gangs: Collection[GangRef]) -> frozenset[str]:
        """Keys of the members of gangs that something is promised to."""
        ledger, pods = self.draft.reservations, self.snapshot.pods
        if self._by_gang[0] is not ledger:
            by_gang: dict[GangRef | None, list[str]] = {}
            for key in ledger:
                by_gang.setdefault(pods[key].gang, []).append(key)
            self._by_gang = ledger, by_gang
        return frozenset(key for gang in gangs for key in self._by_gang[1].get(gang, ()))

    def by_quota(self, *, placed: bool) -> dict[str, Amounts]:
        """Quota, a built-in one too -> what is promised to pods that sit in it, beyond what is ending there; placed:
        with what the draft has placed: in the built-in ones, with guaranteeUsage in all."""
        pods, quotas = self.snapshot.pods, self.snapshot.quotas
        coming = [pods[key] for key in self.kept if key not in self.draft.placed]
        out: dict[str, Amounts] = {}
        for sign, some in ((1, coming), (-1, self.ending)):
            for pod in some:
                if sign > 0 or pod.key not in self.draft.evicted:
                    add_amounts(out.setdefault(quotas.quota_of(pod), {}), pod.requests, sign)
        if placed and self.config.quota.guarantee_usage:
            for sign, keys in ((1, self.draft.placed), (-1, self.draft.evicted)):
                for key in keys:
                    add_amounts(out.setdefault(quotas.quota_of(pods[key]), {}), pods[key].requests, sign)
        elif placed:
            used = self.draft.quotas.used
            for name in BUILT_IN_QUOTAS:
                before = quotas.used.get(name, {})
                add_amounts(out.setdefault(name, {}), {r: used(name, r) - before.get(r, 0) for r in quotas.total})
        return {name: above for name, of in out.items() if (above := {r: n for r, n in of.items() if n > 0})}

    def use(self, unit: Unit, base: QuotaUse, *, netted: bool) -> QuotaUse:
        """A use with the promises in it, as the pending members of a unit see them; the same where nothing is promised
        or ending.

        netted: what is promised is, first of all, what is ending, and what is ending is its quota's no more.
        """
        gone = self.draft.evicted
        ending = [pod for pod in self.ending if pod.key not in gone] if netted else []
        if not self and not ending:
            return base
        own, asker = {pod.key for pod in unit.members}, min(unit.pending, key=lambda pod: pod.priority)
        coming = [self.snapshot.pods[key] for key in self.coming(asker, but=own)]
        return NominatedUse(base, pods=unit.pending, ending=ending, coming=coming)


def party_of(pod: PodInfo, quotas: Quotas, mode: str) -> ShareQueue:
    """Who shares are counted for: a user where the mode counts accelerators of users, else a queue."""
    return ShareQueue("", quotas.user_of(pod)) if mode == "gpu-count" else quotas.queue_of(pod)


def parties(pod: PodInfo, quotas: Quotas) -> tuple[ShareQueue, ...]:
    """Everybody that a pod counts for: its quota, its user, its queue."""
    return ShareQueue(quotas.quota_of(pod), ""), ShareQueue("", quotas.user_of(pod)), quotas.queue_of(pod)


class NominatedUse(QuotaUse):
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

    def queue(self, queue: ShareQueue, resource: str) -> int:
        return self._promised(lambda use: use.queue(queue, resource), own=self._mine(queue))

    def _mine(self, queue: ShareQueue) -> bool:
        return queue in self._own_queues or queue.quota in self._own_quotas
