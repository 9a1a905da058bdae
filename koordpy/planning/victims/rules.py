"""Who may take from whom: the rules of preemption.md 3 as options and limits of a choice.

Here are the numbers: which units lines and priorities let go one by one (`by_...`), and what must hold of all that go
together (`add_...`); `victim_rules.py` makes rules of them. Lines (min, share) are constants of the round; use is the
draft's before the plan. "Below the LCA" are the quotas on a path under the lowest common ancestor of the beneficiary's
leaf and the victim's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.api.quantity import quantity_text
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quota_tree import QuotaNode
from koordpy.cluster.quotas import QuotaUse
from koordpy.cluster.resources import Amounts, add_amounts
from koordpy.planning.victim_selection.choice import Crossing, Limit, Shortfall
from koordpy.planning.victim_selection.lines import Lines
from koordpy.planning.victim_selection.names import RuleName
from koordpy.planning.victims.fairness import FairShare
from koordpy.planning.victims.pool import Mask, Pool, below

Options = Mapping[RuleName, Mapping[int, int]]
"""Rule -> unit of the pool -> option."""


@dataclass(frozen=True, eq=False)
class Together:
    """What must hold of everything that is taken."""

    limits: list[Limit] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    shortfalls: list[Shortfall] = field(default_factory=list)


class Law:
    """The rules of one beneficiary. `pods` are placed together; `limit_of`: what a quota's pods may hold at most;
    `lines`: the share lines, where fair share is reclaimed at all."""

    def __init__(
        self,
        pods: Sequence[PodInfo],
        *,
        pool: Pool,
        use: QuotaUse,
        config: KoordpyConfiguration,
        limit_of: Callable[[str], Mapping[str, int]],
        lines: Lines | None = None,
    ) -> None:
        self.fair = FairShare(pods, pool=pool, use=use, lines=lines) if lines is not None else None
        self.pods, self.pool, self.use, self.config = pods, pool, use, config
        self.quotas = use.quotas
        self.tree = use.quotas.tree
        self.limit_of = limit_of
        self.leaf = self.quotas.quota_of(pods[0])
        self.priority = min(pod.priority for pod in pods)
        self.asked: dict[str, Amounts] = {}
        """Quota -> what the beneficiary asks in it and below it."""
        self.asked_rigid: dict[str, Amounts] = {}
        self.requested: Amounts = {}
        for pod in pods:
            add_amounts(self.requested, pod.requests)
            rigid = pod.owner.rigid
            for name in self.tree.path(self.quotas.quota_of(pod)):
                add_amounts(self.asked.setdefault(name, {}), pod.requests)
                if rigid:
                    add_amounts(self.asked_rigid.setdefault(name, {}), pod.requests)

    # --- which rules are open ---------------------------------------------------------------------------------------

    @property
    def reclaims(self) -> bool:
        """Whether quotas take back what is theirs (off where priority already ignores min)."""
        return self.config.fairness.reclaim != "off" and self.config.preemption.across_quotas != "any"

    @cached_property
    def closed(self) -> str:
        """Why the beneficiary has no guarantee to claim, with its numbers; empty for none to tell."""
        quota = self.tree.quotas.get(self.leaf)
        if quota is None:
            return ""
        for resource in self._counted(quota):
            after = self.use.used(quota.name, resource) + self.asked.get(quota.name, {}).get(resource, 0)
            if after > quota.least(resource):
                amount, least = quantity_text(resource, after), quantity_text(resource, quota.least(resource))
                return f"reclaim: quota {quota.name} would use {amount} of min {least} {resource}"
        return ""

    @cached_property
    def admissible(self) -> bool:
        """Whether evictions could let the quotas admit it: victims are preemptible, so that part cannot fall."""
        for name, asked in self.asked_rigid.items():
            quota = self.tree.quotas[name]
            for resource in quota.max:
                amount = asked.get(resource, 0)
                if amount and self.use.rigid_used(name, resource) + amount > quota.least(resource):
                    return False
        return True

    def _counted(self, quota: QuotaNode) -> list[str]:
        """Requested resources that a quota counts."""
        return [name for name in sorted(self.requested) if name in quota.max and self.requested[name] > 0]

    def below(self, leaf: str) -> tuple[str, ...]:
        """Quotas on the path of a leaf below its LCA with the beneficiary's; none for pods without a quota."""
        return below(self.tree.path(leaf), self.tree.path(self.leaf))

    def own_below(self, leaf: str) -> tuple[str, ...]:
        """The same on the beneficiary's side."""
        return below(self.tree.path(self.leaf), self.tree.path(leaf))

    # --- who may go -------------------------------------------------------------------------------------------------

    def by_priority(self, free: Mask) -> Mask:
        """Units of strictly lower priority that no line of another quota protects by themselves."""
        if not self.config.preemption.enabled or any(p.pod.spec.preemption_policy == "Never" for p in self.pods):
            return np.zeros(len(free), dtype=bool)
        out = free & (self.pool.priority < self.priority)
        across = self.config.preemption.across_quotas
        if across == "any" or not self.tree.quotas:
            return out

        def passes(i: int) -> bool:
            if across == "never":
                return all(leaf == self.leaf or leaf not in self.tree.quotas for leaf in self.pool.leaves(i))
            return all(taken <= self._spare(name, r) for name, r, taken in self._takes(i))

        return self.pool.of_kinds(out, passes)

    def by_share(self, free: Mask, *, strictly: bool) -> Mask:
        """Units of other users or queues above their share, whose quotas' guarantee they do not touch by themselves."""
        if self.fair is None or not self.admissible:
            return np.zeros(len(free), dtype=bool)
        out = self.fair.eligible(free, strictly=strictly)
        return self.pool.of_kinds(
            out, lambda i: all(taken <= self._spare(name, r) for name, r, taken in self._takes(i))
        )

    def _spare(self, name: str, resource: str) -> int:
        """What may be taken of a quota by another without touching its guarantee."""
        used = self.use.used(name, resource)
        return used - min(used, self.tree.quotas[name].least(resource))

    def _takes(self, i: int) -> list[tuple[str, str, int]]:
        """(quota below the LCA, counted resource, amount) of a unit."""
        out = []
        for name, amounts in self._by_quota(i).items():
            out += [(name, r, amounts[r]) for r in self.tree.quotas[name].max if amounts.get(r)]
        return out

    def _by_quota(self, i: int) -> dict[str, Amounts]:
        """Quota below the LCA -> what a unit holds in it and below it."""
        memo = self.pool.below.setdefault(self.leaf, {})
        known = memo.get(i)
        if known is None:
            known = memo[i] = {}
            for leaf, amounts in self.pool.leaves(i).items():
                for name in self.below(leaf):
                    add_amounts(known.setdefault(name, {}), amounts)
        return known

    def by_quota(self, free: Mask, *, strictly: bool) -> Mask:
        """Units of other quotas that use more than their min; strictly: where the beneficiary's own gate is open."""
        out = np.zeros(len(free), dtype=bool)
        quota = self.tree.quotas.get(self.leaf)
        if not self.reclaims or quota is None or not self._counted(quota) or not self.admissible:
            return out
        if strictly and self.closed:
            return out

        def opens(leaf: str) -> bool:
            if leaf == self.leaf or leaf not in self.tree.quotas:
                return False
            return all(
                any(self._over(name, r) > 0 for r in self._counted(self.tree.quotas[name])) for name in self.below(leaf)
            )

        return self.pool.of_kinds(
            free, lambda i: not self.pool.foreign(i) and all(opens(leaf) for leaf in self.pool.leaves(i))
        )

    def _over(self, name: str, resource: str) -> int:
        return self.use.used(name, resource) - self.tree.quotas[name].least(resource)

    # --- what must hold together ------------------------------------------------------------------------------------

    def _in(self, name: str, every: Iterable[tuple[int, int]]) -> dict[int, Amounts]:
        """Option -> what its unit holds in a quota and below it, wherever the LCA is."""
        out: dict[int, Amounts] = {}
        for o, i in every:
            for leaf, amounts in self.pool.leaves(i).items():
                if name in self.tree.path(leaf):
                    add_amounts(out.setdefault(o, {}), amounts)
        return out

    def add_admission(self, out: Together, every: Sequence[tuple[int, int]]) -> None:
        """Every quota of the members admits them all once the victims are gone."""
        for name, asked in self.asked.items():
            limit = self.limit_of(name)
            for resource in self.tree.quotas[name].max:
                over = self.use.used(name, resource) + asked.get(resource, 0) - limit.get(resource, 0)
                if over > 0 and asked.get(resource):
                    held = self._in(name, every)
                    terms = tuple((o, amounts[resource]) for o, amounts in held.items() if amounts.get(resource))
                    out.limits.append(Limit(terms, least=over))

    def add_guarantees(self, out: Together, own: Mapping[int, int], every: Sequence[tuple[int, int]]) -> None:
        """used_after >= min(used_before, min) wherever priority (3.1) or fair share (3.3) takes from another quota."""
        if not self.tree.quotas:
            return
        touched: dict[str, list[int]] = {}
        for i, o in own.items():
            for name in self._by_quota(i):
                touched.setdefault(name, []).append(o)
        for name, when in touched.items():
            held = self._in(name, every)
            for resource in self.tree.quotas[name].max:
                terms = tuple((o, amounts[resource]) for o, amounts in held.items() if amounts.get(resource))
                spare = self._spare(name, resource)
                if sum(n for _, n in terms) > spare:
                    only = {o for o, _ in terms} <= set(when)
                    out.limits.append(Limit(terms, most=spare, when=() if only else tuple(when)))

    def add_quota_gates(self, out: Together, own: Mapping[int, int], every: Sequence[tuple[int, int]]) -> None:
        """3.2, gate: the beneficiary's quotas below the LCA end within their min."""
        when: dict[str, list[int]] = {}
        for i, o in own.items():
            for leaf in self.pool.leaves(i):
                for name in self.own_below(leaf):
                    when.setdefault(name, []).append(o)
        for name, options in when.items():
            for resource in self._counted(self.tree.quotas[name]):
                least = self._over(name, resource) + self.asked.get(name, {}).get(resource, 0)
                if least > 0:
                    held = self._in(name, every)
                    terms = tuple((o, amounts[resource]) for o, amounts in held.items() if amounts.get(resource))
                    out.limits.append(Limit(terms, least=least, when=tuple(options)))

    def add_crossings(self, out: Together, own: Mapping[int, int]) -> None:
        """3.2, victims: (taken - the largest unit) < used_before - min in a requested resource."""
        taken: dict[str, dict[int, Amounts]] = {}
        for i, o in own.items():
            for name, amounts in self._by_quota(i).items():
                taken.setdefault(name, {})[o] = amounts
        for name, held in taken.items():
            resources = []
            for resource in self._counted(self.tree.quotas[name]):
                terms = tuple((o, amounts.get(resource, 0)) for o, amounts in held.items())
                resources.append((terms, self._over(name, resource)))
            total = [
                sum(n for _, n in terms) - max((n for _, n in terms), default=0) < room for terms, room in resources
            ]
            if not any(total):
                out.crossings.append(Crossing(tuple(resources)))

    def add_shortfalls(self, out: Together, options: Options) -> None:
        """Cost level 6: accelerators by which leaf quotas fall below min(used_before, min)."""
        taken: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for rule in (RuleName.QUOTA, RuleName.FAIR_SHARE):
            for i, o in options.get(rule, {}).items():
                for leaf, amounts in self.pool.leaves(i).items():
                    for resource in keys.ACCELERATORS:
                        if (
                            amounts.get(resource)
                            and leaf in self.tree.quotas
                            and resource in self.tree.quotas[leaf].max
                        ):
                            scale = 1 if resource in keys.HUNDREDTHS else 100
                            taken.setdefault((leaf, resource), []).append((o, amounts[resource] * scale))
        for (leaf, resource), terms in taken.items():
            slack = self._spare(leaf, resource) * (1 if resource in keys.HUNDREDTHS else 100)
            if sum(n for _, n in terms) > slack:
                out.shortfalls.append(Shortfall(tuple(terms), slack))

    # --- words ------------------------------------------------------------------------------------------------------

    def why_quota(self, i: int) -> str:
        """`quota b uses 12 of min 8 nvidia.com/gpu, quota a gets 4 of min 4`: numbers of a reclaim."""
        leaf = next(iter(self.pool.leaves(i)))
        names = self.below(leaf) or (leaf,)
        name = names[-1]
        quota, own = self.tree.quotas[name], self.tree.quotas[self.leaf]
        resource = next((r for r in self._counted(quota) if self._over(name, r) > 0), self._counted(quota)[0])
        uses, least = self.use.used(name, resource), quota.least(resource)
        gets = self.asked.get(self.leaf, {}).get(resource, 0)
        text = f"quota {name} uses {quantity_text(resource, uses)} of min {quantity_text(resource, least)} {resource}"
        line = quantity_text(resource, own.least(resource))
        return f"{text}, quota {self.leaf} gets {quantity_text(resource, gets)} of min {line}"
