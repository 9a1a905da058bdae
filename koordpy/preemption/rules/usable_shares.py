"""Fair shares on the nodes that a pending unit could use: what tenants hold, ask for and deserve there.

Source: docs/rules/preemption.md 3.1. N is the set of nodes that could take a member if they were empty. The total is
what N has; a tenant asks for what its pods hold on N, and for its pending pods that could use a node of N. Where N has
all accelerators of the cluster these are the ordinary shares. Figures of a set of nodes are read once in a round; what
is held follows the draft.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.fairness.entitlement_lines import EntitlementLines, Party, Path, lines_of
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.tenant_usage import TenantUsage
from koordpy.preemption.search.victim_pool import Pool
from koordpy.preemption.selection.victim_units import VictimUnit
from koordpy.quota.quota_book import CARDS, COUNT, Quotas, QuotaUse, card_hundredths

Nodes = NDArray[np.bool_]
ALL = None
"""All nodes of the cluster, in place of a mask."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Whose a pod is. tenant: the user, or the queue; quota: the path of its ElasticQuota, from the top down."""

    tenant: Party
    is_quota: bool
    """Whether the tenant is an ElasticQuota, rather than a user by label or namespace."""
    quota: Path


class PodTenants:
    """The tenant of each pod, and whether the pod is on one of the nodes.

    Apart from UsableShares, which refers to UsableHoldings, because a circle of references would keep the snapshot.
    """

    def __init__(
        self, figures: RoundState, lines: EntitlementLines, mins: EntitlementLines, nodes: Nodes | None
    ) -> None:
        """mins: the lines of ElasticQuotas."""
        self._figures, self._lines, self._mins, self._nodes = figures, lines, mins, nodes
        self._tenancies: dict[Owner, Tenancy | None] = {}

    def tenancy(self, pod: PodInfo) -> Tenancy | None:
        """Whose a pod is; None for the system quota."""
        if pod.owner not in self._tenancies:
            path, quotas = self._lines.path(pod), self._figures.snapshot.quotas
            by_quota = quotas.quota_of(pod) in quotas.tree.quotas
            is_quota = by_quota and (bool(path and path[-1].quota) or not pod.owner.user)
            self._tenancies[pod.owner] = Tenancy(path[-1], is_quota, self._mins.path(pod)) if path else None
        return self._tenancies[pod.owner]

    def counts(self, pod: PodInfo) -> bool:
        """Whether a bound pod is on one of the nodes."""
        node = self._figures.snapshot.index.get(pod.node, -1)
        return self._nodes is ALL or (node >= 0 and bool(self._nodes[node]))


class UsableShares:
    """The shares on one set of nodes."""

    def __init__(
        self, figures: RoundState, lines: EntitlementLines, quotas: Quotas, nodes: Nodes | None, mins: EntitlementLines
    ) -> None:
        """quotas: what is shared, held and asked for on the nodes; mins: the lines of ElasticQuotas."""
        self.lines = lines
        self._figures, self._quotas, self._nodes = figures, quotas, nodes
        self._use, self._seen = QuotaUse(quotas), 0
        self._holdings: tuple[Pool, UsableHoldings] | None = None
        self._tenants = PodTenants(figures, lines, mins, nodes)

    def use(self, unit: Unit) -> QuotaUse:
        """What tenants hold there on the draft, promises as the unit sees them."""
        figures, nodes = self._figures, self._nodes
        if nodes is ALL:
            return figures.reservations.use(unit, figures.draft.quotas, net=True)
        changes = figures.draft.changes
        for pod, node, sign in changes[self._seen :]:
            if nodes[node]:
                self._use.change(pod, sign)
        self._seen = len(changes)
        return figures.reservations.use(unit, self._use, net=True, at=lambda node: node >= 0 and bool(nodes[node]))

    def holdings(self, pool: Pool) -> "UsableHoldings":
        """What the victim units hold there."""
        if self._holdings is None or self._holdings[0] is not pool:
            held = UsableHoldings(pool.units, pool.foreign, self.lines, self._tenants)
            self._holdings = pool, held
        return self._holdings[1]

    def tenancy(self, pod: PodInfo) -> Tenancy | None:
        """Whose a pod is; None for the system quota."""
        return self._tenants.tenancy(pod)


class UsableHoldings(TenantUsage):
    """What units hold on some nodes: a pod elsewhere is its tenant's, and holds nothing there."""

    def __init__(
        self,
        units: Sequence[VictimUnit],
        foreign: Callable[[int], bool],
        lines: EntitlementLines,
        tenants: PodTenants,
    ) -> None:
        super().__init__(units, foreign, lines)
        self._tenants = tenants
        self._owned: dict[Collection[Owner], frozenset[Tenancy]] = {}

    def held(self, i: int) -> "dict[Path, Amounts]":
        found = self._held.get(i)
        if found is None:
            pods = self.units[i].pods
            kind = (self._tenants.counts(pods[0]), pods[0].owner, *pods[0].requests.items()) if len(pods) == 1 else i
            found = self._held[i] = self._of_kind.setdefault(kind, {})
            for pod in pods if not found else ():
                own = found.setdefault(self.lines.path(pod), {})
                if self._tenants.counts(pod):
                    add_amounts(own, self.lines.amounts(pod.requests))
        return found

    def owned(self, i: int) -> frozenset[Tenancy]:
        """Whose the pods of a unit are, those of the system quota left out."""
        owners = frozenset(pod.owner for pod in self.units[i].pods)
        if owners not in self._owned:
            pods = {pod.owner: pod for pod in self.units[i].pods}
            found = (self._tenants.tenancy(pod) for pod in pods.values())
            self._owned[owners] = frozenset(one for one in found if one is not None)
        return self._owned[owners]

    def kind(self, i: int) -> object:
        return super().kind(i), self.owned(i)


class TenantShares:
    """The shares of a round, by the nodes that count."""

    def __init__(self, figures: RoundState, mins: EntitlementLines) -> None:
        self._figures, self._mins = figures, mins
        self._known: dict[bytes | None, UsableShares | None] = {}

    def of(self, pods: Iterable[PodInfo]) -> UsableShares | None:
        """The shares on the nodes that could take one of some pods; None where no share is drawn (mode off)."""
        figures = self._figures
        if figures.config.fairness.mode == "off":
            return None
        kinds = {pod.shape: pod for pod in pods}
        usable = np.any([figures.could_hold(pod) for pod in kinds.values()], axis=0)
        nodes = ALL if bool((usable | ~self._sharing).all()) else usable
        key = nodes.tobytes() if nodes is not ALL else None
        if key not in self._known:
            quotas = figures.snapshot.quotas if nodes is ALL else self._quotas_on(nodes)
            lines = lines_of(figures.snapshot, figures.config.fairness, quotas)
            own = UsableShares(figures, lines, quotas, nodes, self._mins) if lines is not None else None
            self._known[key] = own
        return self._known[key]

    @cached_property
    def _sharing(self) -> Nodes:
        """[nodes] with something that is shared out: in gpu-count accelerators."""
        nodes = self._figures.snapshot.nodes
        if self._figures.config.fairness.mode != "gpu-count":
            return np.ones(len(nodes), dtype=bool)
        return np.array([card_hundredths(node.allocatable) > 0 for node in nodes], dtype=bool)

    def _quotas_on(self, nodes: Nodes) -> Quotas:
        """The quotas with what is there, held there and asked for there alone."""
        snapshot, figures = self._figures.snapshot, self._figures
        every, index = snapshot.quotas, snapshot.index
        inside = int(nodes.sum()) * 2 <= len(nodes)
        """Whether what is on the nodes is summed, rather than what is elsewhere: the shorter sum."""
        counted = set(np.nonzero(nodes if inside else ~nodes)[0].tolist())
        total: Amounts = {} if inside else dict(every.total)
        held: dict[Owner, Amounts] = {} if inside else {owner: dict(sums) for owner, sums in every.held.items()}
        sign, cards = (1, 0) if inside else (-1, every.cards)
        for position in sorted(counted):
            node = snapshot.nodes[position]
            if not node.going:
                add_amounts(total, node.allocatable, sign)
                cards += sign * card_hundredths(node.allocatable)
        for pod in snapshot.pods.values():
            # a pod on a node that is not known is on none of them
            if pod.bound and (index[pod.node] in counted if pod.node in index else not inside):
                add_amounts(held.setdefault(pod.owner, {}), _sums(pod), sign)
        waiting = {owner: dict(sums) for owner, sums in every.waiting.items()}
        able: dict[bytes, bool] = {}
        for pod in snapshot.pending:
            if pod.shape not in able:
                able[pod.shape] = bool((figures.could_hold(pod) & nodes).any())
            if not able[pod.shape]:
                add_amounts(waiting.setdefault(pod.owner, {}), _sums(pod), -1)
        return replace(every, total=total, held=held, waiting=waiting, cards=cards)


def _sums(pod: PodInfo) -> Amounts:
    return {COUNT: 1, CARDS: card_hundredths(pod.requests), **pod.requests}
