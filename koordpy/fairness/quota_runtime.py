# SPDX-License-Identifier: Apache-2.0
"""The runtime of every ElasticQuota: the amount that it may use now.

A runtime is the quota's min as far as requested, plus a part by weight of the amounts that other quotas do not request
(water filling, docs/rules/quota-fairness.md 4). It is computed for each resource separately, level by level from the
top of the tree: siblings share out their parent's runtime. A quota takes part in the resources that its max names.
Rounding follows Koordinator, so that amounts stay the same after a migration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koordpy.api import keys
from koordpy.config.configuration import Quota as QuotaSettings
from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import CARDS, COUNT, Quotas
from koordpy.quota.quota_tree import TOP, QuotaNode


@dataclass(frozen=True, slots=True)
class QuotaAmounts:
    """Request, usage and runtime of one quota, by resource.

    The resources are those that its max names; for a built-in quota, all resources that pods request.
    """

    name: str
    request: Amounts
    """Requests of running and pending pods in the quota and below it; each child counts at most its max. For a quota
    that does not lend, it is at least min."""
    used: Amounts
    """Requests of assigned pods in the quota and below it."""
    rigid_used: Amounts
    """The part of `used` by non-preemptible pods."""
    runtime: Amounts = field(default_factory=dict)
    """The amount that the quota may use now; empty for a built-in quota."""
    allocated: Amounts = field(default_factory=dict)
    """Only with `quota.guaranteeUsage`, else 0: usage of pods directly in the quota, plus `guaranteed` of children."""
    guaranteed: Amounts = field(default_factory=dict)
    """Only with `quota.guaranteeUsage`, else 0: max(min, allocated), the amount that no other quota may use."""

    @property
    def over(self) -> Amounts:
        """Resource -> usage above the runtime; empty if usage is within it."""
        return {r: self.used[r] - most for r, most in self.runtime.items() if self.used[r] > most}


def quota_amounts(
    quotas: Quotas, settings: QuotaSettings, promised: Mapping[str, Amounts] | None = None, only: str = ""
) -> dict[str, QuotaAmounts]:
    """Returns the `QuotaAmounts` of every quota in natural order of names.

    promised: quota -> amounts reserved in it, which count as used with `guaranteeUsage`. only: the one resource to
    compute; empty for all.
    """
    tree = quotas.tree
    per: dict[str, _Level] = {}
    for resource in sorted({name for quota in tree.quotas.values() for name in quota.max}):
        if not only or resource == only:
            per[resource] = _Level(quotas, settings, resource, promised or {})
    out = {}
    for name, quota in tree.quotas.items():
        counted = [r for r in quota.max if r in per]
        used, rigid = quotas.used.get(name, {}), quotas.rigid_used.get(name, {})
        out[name] = QuotaAmounts(
            name=name,
            request={r: per[r].request[name] for r in counted},
            used={r: used.get(r, 0) for r in counted},
            rigid_used={r: rigid.get(r, 0) for r in counted},
            runtime={r: per[r].runtime[name] for r in counted},
            allocated={r: per[r].allocated[name] for r in counted},
            guaranteed={r: per[r].guaranteed[name] for r in counted},
        )
    return out


def all_quota_amounts(quotas: Quotas, settings: QuotaSettings) -> dict[str, QuotaAmounts]:
    """Returns the `QuotaAmounts` of every quota, then of the built-in quotas with pods."""
    out = quota_amounts(quotas, settings)
    for name in (keys.DEFAULT_QUOTA, keys.SYSTEM_QUOTA):
        used, waiting = quotas.own_used.get(name, {}), quotas.own_waiting.get(name, {})
        if used.get(COUNT) or waiting.get(COUNT):
            rigid = quotas.rigid_used.get(name, {})
            names = sorted({*used, *waiting} - {COUNT, CARDS})
            out[name] = QuotaAmounts(
                name=name,
                request={r: used.get(r, 0) + waiting.get(r, 0) for r in names},
                used={r: used.get(r, 0) for r in names},
                rigid_used={r: rigid.get(r, 0) for r in names},
            )
    return out


def limits(amounts: Mapping[str, QuotaAmounts], quotas: Quotas, settings: QuotaSettings) -> dict[str, Amounts]:
    """Returns quota -> resource of its max -> maximum usage: the runtime, or max if runtimes are off."""
    if settings.enable_runtime_quota:
        return {name: amounts[name].runtime for name in quotas.tree.quotas}
    return {name: quota.max for name, quota in quotas.tree.quotas.items()}


def overdue(
    quotas: Quotas, amounts: Mapping[str, QuotaAmounts], settings: QuotaSettings, *, now: float
) -> dict[str, Amounts]:
    """Returns the overdue quotas: quota -> resource -> amount to give back, in natural order of names.

    A quota is overdue if its usage has been above its runtime without interruption for `delayEvictTime`. The start of
    that time is in the condition OverUsed of the ElasticQuota; with a delay of 0 no condition is needed. Empty unless
    `monitorAllQuotas` is on and runtimes are enabled. now: seconds since the epoch.
    """
    if not (settings.monitor_all_quotas and settings.enable_runtime_quota):
        return {}
    out = {}
    for name, quota in quotas.tree.quotas.items():
        over, since = amounts[name].over, quota.over_since
        waited = settings.delay_evict_time <= 0 or (since is not None and now - since >= settings.delay_evict_time)
        if over and waited:
            out[name] = over
    return out


class _Level:
    """Runtimes of one resource over the whole tree. Each mapping has names of quotas as keys."""

    def __init__(self, quotas: Quotas, settings: QuotaSettings, resource: str, promised: Mapping[str, Amounts]) -> None:
        self.quotas, self.reserved = quotas, promised
        self.settings = settings
        self.resource = resource
        self.request: dict[str, int] = {}
        self.allocated: dict[str, int] = {}
        self.guaranteed: dict[str, int] = {}
        self.runtime: dict[str, int] = {}
        for name in reversed(quotas.tree.downwards):
            self._add_request(quotas.tree.quotas[name])
        for tree_id, total in self._totals().items():
            tops = [name for name in quotas.tree.children.get(TOP, ()) if quotas.tree.quotas[name].tree_id == tree_id]
            self._share(tops, total)

    def _lends(self, quota: QuotaNode) -> bool:
        """Returns True if other quotas may use the part of the quota's min that it does not request."""
        return quota.lends and not self.settings.guarantee_usage

    def _add_request(self, quota: QuotaNode) -> None:
        """Computes request and guarantee of a quota. Its children must be computed before.

        Pods directly in a quota with children count as well. A quota that does not lend requests at least its min.
        """
        resource, name = self.resource, quota.name
        if resource not in quota.max:
            return
        below = [c for c in self.quotas.tree.children.get(name, ()) if c in self.request]
        used = self.quotas.own_used.get(name, {}).get(resource, 0)
        request = used + self.quotas.own_waiting.get(name, {}).get(resource, 0) + sum(map(self._limited, below))
        self.request[name] = request if self._lends(quota) else max(request, quota.least(resource))
        self.allocated[name] = self.guaranteed[name] = 0
        if self.settings.guarantee_usage:
            promised = self.reserved.get(name, {}).get(resource, 0)
            self.allocated[name] = used + promised + sum(self.guaranteed[c] for c in below)
            self.guaranteed[name] = max(quota.least(resource), self.allocated[name])

    def _limited(self, name: str) -> int:
        """Returns the request of a quota, at most its max."""
        return min(self.request[name], self.quotas.tree.quotas[name].max[self.resource])

    def _totals(self) -> dict[str, int]:
        """Returns tree-id -> total that the top quotas with this tree-id share.

        A tree with an id has the sum of the totals of its top quotas (annotation total-resource, else min). The default
        tree, with an empty id, has the rest of the cluster, less usage of the built-in quotas, at least 0.
        """
        tree, resource = self.quotas.tree, self.resource
        totals: dict[str, int] = {}
        for name in tree.children.get(TOP, ()):
            quota = tree.quotas[name]
            if quota.tree_id:
                own = quota.total if quota.total is not None else quota.min
                totals[quota.tree_id] = totals.get(quota.tree_id, 0) + own.get(resource, 0)
        rest = self.quotas.total.get(resource, 0) - sum(totals.values())
        for built_in in (keys.DEFAULT_QUOTA, keys.SYSTEM_QUOTA):
            rest -= self.quotas.own_used.get(built_in, {}).get(resource, 0)
        return {**totals, "": max(0, rest)}

    def _share(self, names: Sequence[str], total: int) -> None:
        """Computes the runtimes of siblings that share `total`, then of the quotas below them."""
        todo = [(names, total)]
        for siblings, amount in todo:
            self._siblings([name for name in siblings if name in self.request], amount)
            # a quota that does not count the resource passes its part on to the children that count it
            children = self.quotas.tree.children
            todo += [(children[name], self.runtime.get(name, amount)) for name in siblings if name in children]

    def _siblings(self, names: list[str], total: int) -> None:
        """Gives each sibling its min as far as requested (steps 1 and 2 of quota-fairness.md 4), then distributes the
        rest.

        If the mins exceed the total, they are scaled down in proportion (`enableMinQuotaScale`).
        """
        resource, quotas = self.resource, self.quotas.tree.quotas
        least = {name: quotas[name].least(resource) for name in names}
        every = sum(least.values())
        if every > total and self.settings.enable_min_quota_scale and not self.settings.guarantee_usage:
            least = {name: total * amount // every for name, amount in least.items()}
        sharing: list[str] = []
        for name in names:
            most, limited = max(least[name], self.guaranteed[name]), self._limited(name)
            if limited > most:
                self.runtime[name] = most
                sharing.append(name)
            else:
                self.runtime[name] = limited if self._lends(quotas[name]) else most
        self._distribute(sharing, total - sum(self.runtime[name] for name in names))

    def _distribute(self, sharing: list[str], rest: int) -> None:
        """Shares out the rest by weight, in whole units (steps 3 and 4 of quota-fairness.md 4).

        A quota that gets all that it requests drops out, and its excess is shared again. sharing: the quotas that
        request more.
        """
        quotas = self.quotas.tree.quotas
        while rest > 0 and sharing:
            weights = {name: quotas[name].weight.get(self.resource, 0) for name in sharing}
            every = sum(weights.values())
            if not every:
                return
            parts = {name: divmod(rest * weight, every) for name, weight in weights.items()}
            missing = rest - sum(part for part, _ in parts.values())
            largest = sorted(sharing, key=lambda name: -parts[name][1])  # stable: ties in natural name order
            first = set(largest[:missing])
            rest = 0
            staying = []
            for name in sharing:
                self.runtime[name] += parts[name][0] + (name in first)
                excess = self.runtime[name] - self._limited(name)
                if excess >= 0:
                    self.runtime[name] -= excess
                    rest += excess
                else:
                    staying.append(name)
            sharing = staying
