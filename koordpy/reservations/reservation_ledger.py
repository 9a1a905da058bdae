# SPDX-License-Identifier: Apache-2.0
"""The ledger of a round's reservations: which reserved capacity a unit must respect, on nodes and in quotas.

Sources: docs/rules/preemption.md 4, kube-parity.md 2.2. A nominated pod waits until its victims on the node have
terminated. The terminating pod and the nominated pod use the same capacity, one after the other. If both counted, a
search for victims would evict two pods where one is enough. So a search counts the capacity once, on the node and in
quotas; in this package that is called "net". A nomination counts only if the pod would still fit the node once the
terminating pods are gone.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property

from koordpy.api.keys import BUILT_IN_QUOTAS, DEFAULT_QUOTA
from koordpy.api.pod_endings import DISRUPTED
from koordpy.api.times import seconds
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import ClosedTo, Reservation
from koordpy.cache.snapshot import Ints
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.plugins import node_filters as node_filters
from koordpy.plugins.volume_binding import VolumeReach
from koordpy.pods.family_books import AllocatedDevices
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.quota.netted_use import NettedUse
from koordpy.quota.quota_book import Quotas, QuotaUse, ShareQueue
from koordpy.reservations.available_capacity import AvailableCapacity, ClaimsOfNominated
from koordpy.reservations.capacity_view import View

EVICTED = "EvictionByEvictionAPI"
"""Reason of the condition DisruptionTarget of pods that the eviction API has evicted."""
STUCK_SECONDS = 120
"""Seconds after the deletionTimestamp during which the capacity of a pod is expected to become free (preemption.md
4)."""


def frees_capacity(pod: PodInfo, now: float) -> bool:
    """Returns True if a pod is terminating and not stuck, so that its capacity is expected to become free."""
    stamp = pod.pod.metadata.deletion_timestamp
    return pod.bound and stamp is not None and now <= seconds(stamp) + STUCK_SECONDS


class ReservationLedger:
    """The reservations of one round. `available_to` returns those that limit a unit."""

    def __init__(
        self,
        draft: Draft,
        config: KoordpyConfiguration,
        reach: Callable[[], VolumeReach],
        devices: Callable[[PodInfo, int, Draft, KoordpyConfiguration], AllocatedDevices],
        groups: Groups,
    ) -> None:
        """reach: returns the nodes on which volumes can be used; called only if a nominated pod has claims. devices:
        called with (pod, node position, draft, configuration), returns the named devices that a nominated pod keeps on
        the node. groups: the gangs and units of the round."""
        self.draft, self.snapshot, self.config, self._reach = draft, draft.snapshot, config, reach
        self._devices, self._groups = devices, groups
        self._losers: dict[str, frozenset[ShareQueue]] = {}
        """Cache: key of a nominated pod -> tenants from which its capacity was reclaimed."""
        self._by_gang: tuple[Mapping[str, object], dict[GangRef | None, list[str]]] = {}, {}
        """Cache of `members`: (the reservations that it was built from, gang -> keys of its members)."""

    def __bool__(self) -> bool:
        """Returns True if any pod is nominated."""
        return self.draft.has_nominations

    # -- available capacity -------------------------------------------------------------------------------------------

    def available_to(
        self, pods: Collection[PodInfo], together: Collection[str], *, net: bool = False
    ) -> AvailableCapacity | None:
        """Returns the reservations of other holders that are closed to pods of one unit; None if there are none.

        The lowest priority of `pods` decides. together: keys of the pods that are planned together; their own
        reservations are available to them. net: True if every nominated pod first uses the capacity that terminating
        pods free. If False, only these nominated pods do: those of at most the lowest priority, on a node to which a
        pod of `together` is nominated.
        """
        asker = min(pods, key=lambda pod: pod.priority)
        others = {key: node for key, node in self.feasible.items() if self._is_closed(key, node, asker, together)}
        if not others:
            return None
        every = self.snapshot.pods
        at = {every[key].nominated_node for key in together if key in every}

        def takes_freed(pod: PodInfo, node: str) -> bool:
            """Returns True if a nominated pod first uses the capacity that terminating pods free on a node."""
            return net or (node in at and pod.priority <= asker.priority)

        return AvailableCapacity(self.snapshot, others, self.freed, takes_freed)

    def claims_closed_to(self, pod: PodInfo, together: Collection[str]) -> list[Reservation]:
        """Returns the reservations of other pods that are closed to a pod, with the volumes and devices of their
        claims.

        together: as for `available_to`.
        """
        found = self.available_to([pod], together)
        return self._claims.of(found.others, self.feasible, self.draft.reservations) if found is not None else []

    def use(self, unit: Unit, base: QuotaUse, *, net: bool, at: Callable[[int], bool] | None = None) -> QuotaUse:
        """Returns the usage of quotas and users, including the reservations that limit the pending members of a unit.

        Returns `base` itself if nothing is reserved or terminating. net: True if terminating amounts are subtracted
        from reserved amounts in the same quota, and terminating pods do not count. at: returns True for the node
        positions that `base` covers (-1: unknown node); None if it covers all nodes.
        """
        gone, index = self.draft.evicted, self.snapshot.index
        terminating = [pod for pod in self.terminating if pod.key not in gone] if net else []
        if at is not None:
            terminating = [pod for pod in terminating if at(index.get(pod.node, -1))]
        if not self and not terminating:
            return base
        found = self.available_to(unit.pending, {pod.key for pod in unit.members})
        others = found.others.items() if found is not None else ()
        coming = [self.snapshot.pods[key] for key, node in others if at is None or at(node)]
        return NettedUse(base, pods=unit.pending, leaving=terminating, coming=coming)

    def _is_closed(self, key: str, node: int, asker: PodInfo, together: Collection[str]) -> bool:
        """Returns True if the capacity of a nominated pod is closed to the pod `asker` (`ClosedTo`).

        It is not closed to pods of the same unit, and not closed if the draft has placed the nominated pod already.
        Otherwise it is closed to pods of the same or a lower priority, and to the tenants from which it was reclaimed.
        A nomination of this round is also closed to all later units, except those that it waits for.
        """
        if key in together or key in self.draft.placed:
            return False
        one, holder = self.draft.reservations[key], self.snapshot.pods[key]
        if one.closed_to is ClosedTo.ALL and one.waits_for.isdisjoint(together):
            return True
        return holder.priority >= asker.priority or self._was_reclaimed_from(holder, node, asker)

    # -- holders ------------------------------------------------------------------------------------------------------

    def concerns(self, pod: PodInfo) -> bool:
        """Returns True if capacity is reserved for a pod, or if the pod is terminating, so that its capacity may be
        reserved."""
        return self.has(pod) or bool(pod.pod.metadata.deletion_timestamp)

    def has(self, pod: PodInfo) -> bool:
        """Returns True if capacity is reserved for a pod."""
        return pod.key in self.draft.reservations

    def members(self, gangs: Collection[GangRef]) -> frozenset[str]:
        """Returns the keys of those members of the given gangs for which capacity is reserved."""
        ledger, pods = self.draft.reservations, self.snapshot.pods
        if self._by_gang[0] is not ledger:
            by_gang: dict[GangRef | None, list[str]] = {}
            for key in ledger:
                by_gang.setdefault(pods[key].gang, []).append(key)
            self._by_gang = ledger, by_gang
        return frozenset(key for gang in gangs for key in self._by_gang[1].get(gang, ()))

    @property
    def feasible(self) -> dict[str, int]:
        """Nominated pods that count: pod key -> node position.

        These are nominations of earlier rounds that fit their node once terminating pods are gone, and all nominations
        of this round. If too few pods of a gang are nominated (`_partial`), their nominations do not count.
        """
        at, ledger = self.snapshot.index, self.draft.reservations
        found = {key: at[one.node] for key, one in ledger.items() if one.closed_to is ClosedTo.ALL}
        return {**self._feasible_before, **found}

    @cached_property
    def _feasible_before(self) -> dict[str, int]:
        """Nominations of earlier rounds that fit their node: pod key -> node position.

        On each node, nominated pods get capacity in the order of descending priority, then age (older first).
        """
        snapshot = self.snapshot
        known = snapshot.reservations
        pods = [snapshot.pods[key] for key in known if key in snapshot.pods and key not in self._partial]
        # free: node position -> capacity once the terminating pods are gone, less the nominated pods handled so far
        free: dict[int, Ints] = {}
        out: dict[str, int] = {}
        for pod in sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.key)):
            node = snapshot.index.get(known[pod.key].node)
            if node is None or not self._admits(pod, node):
                continue
            if node not in free:
                freed = snapshot.requests_of(self._terminating_on.get(node, ()))
                free[node] = snapshot.allocatable[node] - snapshot.used[node] + freed
            asks = snapshot.requests_of([pod])
            if not bool(((asks > 0) & (asks > free[node])).any()):
                free[node] = free[node] - asks
                out[pod.key] = node
        return out

    @cached_property
    def _partial(self) -> frozenset[str]:
        """Keys of the nominated pods of units in which a gang has fewer nominated pods than it needs to start.

        Their capacity would stay unused, because a gang starts as a whole (docs/rules/repair.md 2).
        """
        known, pods = self.snapshot.reservations, self.snapshot.pods
        out: set[str] = set()
        seen: set[str] = set()
        for ref in dict.fromkeys(gang for key in known if key in pods and (gang := pods[key].gang) is not None):
            unit = self._groups.unit(ref)
            if unit.id in seen:
                continue
            seen.add(unit.id)
            if any(sum(pod.key in known for pod in gang.pending) < unit.need(gang) for gang in unit.gangs):
                out |= {pod.key for pod in unit.pending if pod.key in known}
        return frozenset(out)

    def _admits(self, pod: PodInfo, node: int) -> bool:
        """Returns True if the node's name, labels and taints admit a pod, and the node is not lost by a condition."""
        lost = self.snapshot.lost_nodes.get(self.snapshot.nodes[node].name)
        if lost is not None and lost.condition:
            return False
        added = self.config.filters.node_affinity.added_affinity
        words, refusal = node_filters.first_words(self.snapshot.nodes[node : node + 1], pod.pod, added)
        return refusal is None and all(word.of(0) is None for word in words)

    @cached_property
    def _claims(self) -> ClaimsOfNominated:
        """Volumes and devices of nominated pods, computed on first use."""
        return ClaimsOfNominated(
            self.snapshot, self._reach(), lambda pod, node, draft: self._devices(pod, node, draft, self.config)
        )

    # -- terminating pods ---------------------------------------------------------------------------------------------

    @cached_property
    def terminating(self) -> tuple[PodInfo, ...]:
        """Pods of the snapshot that are terminating and not stuck."""
        snapshot = self.snapshot
        return tuple(pod for pod in snapshot.pods.values() if frees_capacity(pod, snapshot.now))

    @cached_property
    def _terminating_on(self) -> dict[int, tuple[PodInfo, ...]]:
        """Node position -> pods terminating there."""
        out: dict[int, tuple[PodInfo, ...]] = {}
        for pod in self.terminating:
            node = self.snapshot.index.get(pod.node)
            if node is not None:
                out[node] = (*out.get(node, ()), pod)
        return out

    def freed(self, node: int) -> Ints:
        """Returns [resources]: requests of the pods that are terminating on a node and are still on the draft."""
        gone = self.draft.evicted
        return self.snapshot.requests_of(pod for pod in self._terminating_on.get(node, ()) if pod.key not in gone)

    def _was_reclaimed_from(self, pod: PodInfo, node: int, asker: PodInfo) -> bool:
        """Returns True if the capacity of a nominated pod was reclaimed from a tenant of `asker` (preemption.md 4).

        Such a tenant may not use the capacity, whatever the priority of its pods is.
        """
        losers = self._losers.get(pod.key)
        if losers is None:
            known = self.snapshot.reservations.get(pod.key)
            written = known.losers if known is not None else frozenset()
            losers = self._losers[pod.key] = written | self._inferred_losers(pod, node)
        return bool(losers) and not losers.isdisjoint(tenants_of(asker, self.snapshot.quotas))

    def _inferred_losers(self, pod: PodInfo, node: int) -> frozenset[ShareQueue]:
        """Returns the quotas and users from which capacity was reclaimed for a nominated pod, as far as pods show it.

        Needed after a restart, when the reasons of evictions are not known any more. A pod that terminates on the node
        is assumed to be reclaimed in two cases. Either its priority is not lower than that of the nominated pod, so
        that rule `priority` would not have evicted it. Or the eviction API has evicted it; rule `priority` deletes pods
        directly.
        """
        quotas, fairness = self.snapshot.quotas, self.config.fairness
        by_quota = fairness.reclaim != "off" and self.config.preemption.across_quotas != "any"
        tops = {*quotas.tree.quotas, *((DEFAULT_QUOTA,) if self.config.quota.no_quota_yields == "always" else ())}
        out: set[ShareQueue] = set()
        for other in self._terminating_on.get(node, ()):
            if other.priority < pod.priority and not any(
                said.type == DISRUPTED and said.reason == EVICTED for said in other.pod.status.conditions
            ):
                continue
            quota = quotas.quota_of(other)
            if by_quota and quota in tops and quota != quotas.quota_of(pod) in quotas.tree.quotas:
                out.add(ShareQueue(quota, ""))
            if fairness.reclaim == "all" and fairness.mode != "off":
                theirs = tenant_of(other, quotas, fairness.mode)
                if theirs != tenant_of(pod, quotas, fairness.mode):
                    out.add(theirs)
        return frozenset(out)

    # -- quotas -------------------------------------------------------------------------------------------------------

    def allowed(self, view: View) -> View:
        """Returns the view, changed so that terminating pods count if `quota.noQuotaYields` is `never`.

        With that setting, capacity that pods in no quota free does not raise runtimes.
        """
        return replace(view, without_terminating=False) if self.config.quota.no_quota_yields == "never" else view

    def reserved_by_quota(self, *, without_terminating: bool) -> dict[str, Amounts]:
        """Returns quota -> requests of nominated pods minus requests of terminating pods; only differences above 0.

        Built-in quotas are included. without_terminating: True if pods of built-in quotas that the draft has evicted
        are subtracted as well; amounts of these quotas may then be below 0.
        """
        out = self._unplaced_by_quota()
        for key, pod in self.draft.evicted.items() if without_terminating else ():
            if key not in self.draft.placed and (name := self.snapshot.quotas.quota_of(pod)) in BUILT_IN_QUOTAS:
                add_amounts(out.setdefault(name, {}), pod.charged, -1)
        return _without_zeros(out, without_terminating=without_terminating)

    def committed_by_quota(self, *, without_terminating: bool) -> dict[str, Amounts]:
        """Returns `reserved_by_quota` plus requests that the draft has placed, minus requests that it has evicted.

        Without `quota.guaranteeUsage`, the draft's changes count only in the built-in quotas. without_terminating: True
        if amounts of built-in quotas may be below 0.
        """
        draft, quotas, out = self.draft, self.snapshot.quotas, self._unplaced_by_quota()
        if self.config.quota.guarantee_usage:
            for sign, keys in ((1, draft.placed), (-1, draft.evicted)):
                for key in keys:
                    pod = self.snapshot.pods[key]
                    add_amounts(out.setdefault(quotas.quota_of(pod), {}), pod.charged, sign)
        else:
            used = draft.quotas.used
            for name in BUILT_IN_QUOTAS:
                before = quotas.used.get(name, {})
                add_amounts(out.setdefault(name, {}), {r: used(name, r) - before.get(r, 0) for r in quotas.total})
        return _without_zeros(out, without_terminating=without_terminating)

    def _unplaced_by_quota(self) -> dict[str, Amounts]:
        """Returns quota -> reserved requests minus terminating requests; amounts may be below 0.

        Reserved: requests of nominated pods that the draft has not placed. Terminating: requests of terminating pods
        that the draft has not evicted.
        """
        pods, quotas, draft = self.snapshot.pods, self.snapshot.quotas, self.draft
        out: dict[str, Amounts] = {}
        for sign, some in (
            (1, [pods[key] for key in self.feasible if key not in draft.placed]),
            (-1, [pod for pod in self.terminating if pod.key not in draft.evicted]),
        ):
            for pod in some:
                add_amounts(out.setdefault(quotas.quota_of(pod), {}), pod.charged, sign)
        return out


def _without_zeros(by_quota: Mapping[str, Amounts], *, without_terminating: bool) -> dict[str, Amounts]:
    """Returns the amounts above 0 of every quota; with `without_terminating`, also amounts below 0 of built-in
    quotas."""
    freed = BUILT_IN_QUOTAS if without_terminating else ()
    return {
        name: counted
        for name, of in by_quota.items()
        if (counted := {r: n for r, n in of.items() if n > 0 or (n < 0 and name in freed)})
    }


def tenant_of(pod: PodInfo, quotas: Quotas, mode: str) -> ShareQueue:
    """Returns the tenant to which a pod is charged: a user in mode gpu-count, else a queue."""
    return ShareQueue("", quotas.user_of(pod)) if mode == "gpu-count" else quotas.queue_of(pod)


def tenants_of(pod: PodInfo, quotas: Quotas) -> tuple[ShareQueue, ...]:
    """Returns the tenants to which a pod belongs: its quota, its user, its queue."""
    return ShareQueue(quotas.quota_of(pod), ""), ShareQueue("", quotas.user_of(pod)), quotas.queue_of(pod)
