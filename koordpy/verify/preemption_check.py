# SPDX-License-Identifier: Apache-2.0
"""Checks the victims of a plan against all rules of preemption.md 2 and 3.

It checks pod by pod: which pods may be evicted, units as a whole, the conditions of each rule, PodDisruptionBudgets,
quotas, and the limits on harm. Usage, shares and nominations are taken from the round; everything else is computed
here, without code of the search. `plan_check.py` checks the members' nodes, on a draft without the victims. A plan that
evicts more pods than needed is not rejected: `needless` finds such plans only for metrics (preemption.md 5).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from koordpy.api.keys import DEFAULT_QUOTA, SYSTEM_PRIORITY_FLOOR
from koordpy.cache.snapshot import Ints
from koordpy.devices.family_registry import allocate
from koordpy.fairness.tenant_entitlements import Entitlements
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.limits import NEEDLESS_UNITS_TRIED
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import ShareQueue
from koordpy.verify.eviction_check import MOVE, PRIORITY, QUOTA, SHARE, EvictedUnit, Round
from koordpy.verify.plan_check import check_gathered, check_plan, found, path_of
from koordpy.verify.plan_fault import Check, PlanFault
from koordpy.verify.plan_sums import PlanSums, Sums, crosses_once, of_sums
from koordpy.verify.protection_check import check_harm, check_surplus
from koordpy.verify.tenant_check import TenantCheck


def check_victims(
    unit: Unit, taken: Sequence[EvictedUnit], nodes: Mapping[str, int], back: Mapping[str, int], at: Round
) -> list[PlanFault]:
    """Returns the faults of evicting units for members of a unit. The draft must not contain the plan.

    unit: the preemptor. nodes: pod key -> node position of each placed member. back: key of a moved pod -> its new node
    position. at: the round.
    """
    plan = VictimCheck(unit, nodes, back, at)
    faults = [*found(Check.VICTIMS, plan.check_identity(taken)), *found(Check.UNITS, plan.whole(taken))]
    return faults or plan.lawful(taken)  # sums over invalid victims would be meaningless


def check_moves(unit: Unit, moved: Mapping[str, str], round_state: RoundState) -> list[PlanFault]:
    """Returns the faults of the new nodes of a gang's moved members. moved: pod key -> name of the new node.

    Members must not be further apart than before, and must satisfy the gang's constraints. Of a gang with match-policy
    `only-waiting`, at least its minimum must move, because its running members do not count for the minimum.
    """
    snapshot = round_state.snapshot

    def together(nodes: Mapping[str, str]) -> int:
        """Returns how many layers, from the top down, have one domain with all members. nodes: pod key -> new node."""
        paths = [
            path_of(name, snapshot)
            for pod in unit.members
            if pod.bound and (name := nodes.get(pod.key, pod.node)) in snapshot.index
        ]
        return sum(len({path[: i + 1] for path in paths}) == 1 for i in range(min(map(len, paths), default=0)))

    apart = [f"gang {unit.group_id}: its members would be further apart"] if together(moved) < together({}) else []
    few = [
        f"gang {gang.key}: too few of its members would wait"
        for gang in unit.gangs
        if gang.match_policy == "only-waiting"
        and sum(pod.key in moved for pod in gang.pods) + gang.done < gang.min_member
    ]
    return found(Check.RETURNS, [*apart, *few, *check_gathered(unit, moved, round_state)])


class VictimCheck(PlanSums):
    """Checks the victims of one plan. The draft must not contain the plan."""

    # --- section 2 ----------------------------------------------------------------------------------------------------

    def check_identity(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults of pods that this unit may not evict, whatever amounts they use (preemption.md 2)."""
        faults = [*([] if self.nodes else ["pods are evicted for no member"]), *self.check_evictable(taken)]
        own = {gang.ref for gang in self.unit.gangs}
        for pod, rule in ((pod, one.rule) for one in taken for pod in one.pods):
            if pod.gang is not None and pod.gang in own:
                faults.append(f"{pod.key} is a member of the gang that it is evicted for")
            if (rule == MOVE) != (pod.key in self.back):
                faults.append(
                    f"{pod.key} is evicted by {rule} and has {'a' if pod.key in self.back else 'no'} new node"
                )
        if any(one.rule == MOVE for one in taken) and not all(one.rule == MOVE for one in taken):
            faults.append("some victims are moved and some are evicted")
        return faults

    # --- section 3 ----------------------------------------------------------------------------------------------------

    def lawful(self, taken: Sequence[EvictedUnit]) -> list[PlanFault]:
        """Returns the faults of all victims together: admission by quotas, each rule, budgets, and limits on harm."""
        gone = [pod for one in taken for pod in one.pods if pod.key not in self.back]
        lost = self.sum_by_quota(gone)
        by = {rule: [one for one in taken if one.rule == rule] for rule in (PRIORITY, QUOTA, SHARE, MOVE)}
        return [
            *found(Check.QUOTAS, self._admitted(lost, gone)),
            *found(Check.PRIORITY, self._by_priority(by[PRIORITY], lost, gone)),
            *found(Check.RECLAIM, self._by_quota(by[QUOTA], lost)),
            *found(Check.SHARES, self._by_share(by[SHARE], lost, gone)),
            *found(Check.CONSOLIDATION, self._by_consolidation(by[MOVE])),
            *found(Check.BUDGETS, self.budgets(taken)),
            *found(Check.PROTECTION, self._beyond_limits(taken)),
        ]

    def _beyond_limits(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults by the guards on harm and surplus members (3.7); empty for system priorities."""
        if min(pod.priority for pod in self.placed) >= SYSTEM_PRIORITY_FLOOR:
            return []
        spared = list[str]()
        if self.config.preemption.surplus_victims == "pods":
            groups, gone = self.round_state.groups, self.draft.evicted
            spared = check_surplus(self.unit, self.placed, taken, groups, gone)
        return [*check_harm(self.placed, taken, self.config), *spared]

    def _admitted(self, lost: Sums, gone: Sequence[PodInfo]) -> list[str]:
        """Returns the faults of the preemptor's quotas that are above their limit after the plan. Nominated pods count.

        lost: amounts that each quota loses with the plan. gone: all evicted pods, without moved pods.
        """
        if not self.added:
            return []
        limits = self.limits_after(gone)
        faults = []
        for name, asked in self.added.items():
            for resource, most in limits[name].items():
                after = self.use.used(name, resource) - of_sums(lost, name, resource) + asked[resource]
                if asked[resource] and after > most:
                    faults.append(f"quota {name} would use {after} of {most} {resource}")
        return faults

    def _by_priority(self, taken: Sequence[EvictedUnit], lost: Sums, gone: Sequence[PodInfo]) -> list[str]:
        """Returns the faults of victims by rule `priority` (3.1).

        taken: victims of this rule. lost: amounts that each quota loses with the plan. gone: all evicted pods.
        """
        if not taken:
            return []
        faults = []
        least = min(pod.priority for pod in self.placed)
        if not self.config.preemption.enabled:
            faults.append("preemption is off")
        if any(pod.preemption_policy == "Never" for pod in self.placed):
            faults.append("a member has preemptionPolicy Never")
        own = [pod for one in taken for pod in one.pods]
        for one in taken:
            highest = max(one.pods, key=lambda pod: pod.priority)
            if highest.priority >= least:
                faults.append(f"{highest.key} has priority {highest.priority}, not below {least}")
        across = self.config.preemption.across_quotas
        if across == "never":
            quota_of, quotas = self.quotas.quota_of, self.tree.quotas
            faults += [
                f"{p.key} is in another quota" for p in own if quota_of(p) in quotas and quota_of(p) != self.leaf
            ]
        elif across == "overMin":
            faults += self.faults_below_min([name for pod in own for name in self.victim_quotas(pod)], lost)
        faults += self._share_floors(own, gone)
        if not self.quotas.has_other_tenants(self.placed[0]):
            return faults
        return [*faults, *self._tenants(lost).preempted(taken, gone)]

    def _by_quota(self, taken: Sequence[EvictedUnit], lost: Sums) -> list[str]:
        """Returns the faults of victims by rule `quota` (3.2). taken: victims of this rule. lost: amounts that each
        quota loses with the plan."""
        if not taken:
            return []
        quotas = self.tree.quotas
        if self.config.fairness.reclaim == "off" or self.config.preemption.across_quotas == "any":
            return ["reclaim by quota is off"]
        if self.leaf not in quotas or not self.counted_resources(self.leaf):
            return ["the preemptor has no guarantee to reclaim"]
        faults = []
        own = [pod for one in taken for pod in one.pods]
        others = quotas.keys() - {self.leaf}
        if self.config.quota.no_quota_yields == "always":
            others |= {DEFAULT_QUOTA}
            out = [pod for pod in own if self.quotas.quota_of(pod) == DEFAULT_QUOTA]
            if out and not any(self.use.used(DEFAULT_QUOTA, r) > 0 for r in self.requested):
                faults.append(f"quota {DEFAULT_QUOTA} uses no requested resource")
        faults += [
            f"{pod.key} is in the quota of the preemptor, or in a quota from which nothing is reclaimed"
            for pod in own
            if self.quotas.quota_of(pod) not in others
        ]
        # after the plan, the preemptor's quotas must be within their min
        for name in dict.fromkeys(name for pod in own for name in self.preemptor_quotas(pod)):
            for resource in self.counted_resources(name):
                after = self.use.used(name, resource) - of_sums(lost, name, resource)
                after += self.added[name][resource]
                if after > quotas[name].least(resource):
                    faults.append(f"quota {name} would use {after} of min {quotas[name].least(resource)} {resource}")
        # before each eviction of a unit, the victims' quotas must be above their min
        for name in dict.fromkeys(name for pod in own for name in self.victim_quotas(pod)):
            parts = [self.sum_by_quota(one.pods).get(name) for one in taken]
            if not any(
                crosses_once([part[r] for part in parts if part], self.use.used(name, r) - quotas[name].least(r))
                for r in self.counted_resources(name)
            ):
                faults.append(f"quota {name} would lose more than one unit beyond its min")
        gained = [pod for pod in own if self._unit_of(pod) in self._gainers]
        return faults + self.faults_below_min([name for pod in gained for name in self.victim_quotas(pod)], lost)

    # --- shares -------------------------------------------------------------------------------------------------------

    def _usage_by_tenant(self, pods: Iterable[PodInfo], shares: Entitlements) -> dict[ShareQueue, Counter[str]]:
        """Returns tenant -> amounts that the given pods use in it and in tenants below it, of resources that shares
        count."""
        out: dict[ShareQueue, Counter[str]] = {}
        for pod in pods:
            for tenant in shares.path(pod):
                out.setdefault(tenant, Counter()).update(shares.amounts(pod.charged))
        return out

    def _tenants_below(self, pod: PodInfo, other: PodInfo, shares: Entitlements) -> list[ShareQueue]:
        """Returns the tenants of a pod that are not on the path of another pod, from the top down."""
        theirs = set(shares.path(other))
        return [tenant for tenant in shares.path(pod) if tenant not in theirs]

    def _share_floors(self, own: Sequence[PodInfo], gone: Sequence[PodInfo]) -> list[str]:
        """Returns the faults of tenants that rule `priority` leaves with less than min(usage before, share) (3.1).

        Empty if fair shares are not reclaimed. own: victims of the rule. gone: all evicted pods.
        """
        shares = self.at.entitlements
        if shares is None:
            return []
        lost = self._usage_by_tenant(gone, shares)
        touched: dict[ShareQueue, set[str]] = {}
        for pod in own:
            for tenant in self._tenants_below(pod, self.placed[0], shares):
                touched.setdefault(tenant, set()).update(r for r, n in shares.amounts(pod.charged).items() if n)
        faults = []
        for tenant, resources in touched.items():
            for resource in sorted(resources):
                before = shares.use(self.use, tenant, resource)
                after = before - lost[tenant][resource]
                if shares.counted(tenant, resource) and after < before and after < shares.share(tenant, resource):
                    faults.append(f"{tenant.quota or tenant.user} would keep {after} {resource}, less than its share")
        return faults

    def _by_share(self, taken: Sequence[EvictedUnit], lost: Sums, gone: Sequence[PodInfo]) -> list[str]:
        """Returns the faults of victims by rule `fair-share` (3.3). taken: victims of this rule. lost, gone: as in
        `_by_priority`.

        The conditions, in order: quotas keep their min; the preemptor's tenants are within their share after the plan;
        in one resource the preemptor's tenant is then less far above its share than the victim's tenant was; no
        victim's unit has recently gained by an eviction of the preemptor; each unit frees a requested resource; tenants
        are above their share before each eviction.
        """
        shares = self.at.entitlements
        if not taken:
            return []
        if shares is None:
            return ["reclaim by fair share is off"]
        first, own = self.placed[0], [pod for one in taken for pod in one.pods]
        asked: Counter[str] = Counter()
        for pod in self.placed:
            asked.update(shares.amounts(pod.charged))
        wanted = sorted(r for r, amount in asked.items() if amount > 0)
        faults = self.faults_below_min([name for pod in own for name in self.victim_quotas(pod)], lost)
        less = self._usage_by_tenant(gone, shares)
        losers: dict[ShareQueue, None] = {}
        for path in dict.fromkeys(shares.path(pod) for pod in own):
            pod = next(pod for pod in own if shares.path(pod) == path)
            mine, theirs = self._tenants_below(first, pod, shares), self._tenants_below(pod, first, shares)
            if not mine or not theirs:
                faults.append(f"{pod.key} belongs to the same tenant")
                continue
            losers.update(dict.fromkeys(theirs))
            for tenant in mine:
                for r in wanted:
                    after = shares.use(self.use, tenant, r) + asked[r] - less.get(tenant, Counter())[r]
                    if shares.counted(tenant, r) and after > shares.share(tenant, r):
                        faults.append(f"{tenant.quota or tenant.user} would use {after} {r}, more than its share")
            for ours, other in dict.fromkeys(((mine[-1], theirs[-1]), (mine[0], theirs[0]))):
                if not any(
                    shares.counted(ours, r) and shares.counted(other, r)
                    and (use := shares.use(self.use, other, r)) > shares.share(other, r)
                    and shares.use(self.use, ours, r) + asked[r] - shares.exact(ours, r) < use - shares.exact(other, r)
                    for r in wanted
                ):  # fmt: skip
                    faults.append(f"{other.quota or other.user} would be as far below its share as it was above")
        for unit in sorted({self._unit_of(pod) for pod in own} & self._gainers):
            faults.append(f"{self.unit.id} reclaims from {unit} what it was evicted for")
        for one in taken:
            if not any(shares.amounts(pod.charged).get(r) for pod in one.pods for r in wanted):
                faults.append(f"{one.pods[0].key} uses no requested resource")
        for tenant in losers:
            inside = [held[tenant] for one in taken if tenant in (held := self._usage_by_tenant(one.pods, shares))]
            if not any(
                shares.counted(tenant, r)
                and crosses_once([n[r] for n in inside], shares.use(self.use, tenant, r) - shares.share(tenant, r))
                for r in wanted
            ):
                faults.append(f"{tenant.quota or tenant.user} would lose more than one unit beyond its share")
        return faults

    def _by_consolidation(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults of units that consolidation moves (3.4).

        Consolidation must be enabled, or step 5b must apply (`TenantCheck.may_move`). Moved pods must not have a higher
        priority than the preemptor, be marked as immovable, or belong to a tenant within its entitlement.
        """
        if not taken:
            return []
        least, pods, check = (
            min(pod.priority for pod in self.placed),
            [p for one in taken for p in one.pods],
            self._tenants({}),
        )
        evicted = self.draft.evicted
        running = (pod for pod in self.snapshot.pods.values() if pod.bound and pod.key not in evicted)
        allowed = self.config.consolidation.enabled or check.may_move(pods, running)
        faults = [*([] if allowed else ["consolidation is off"]), *check.disturbed(taken)]
        for pod in pods if least < SYSTEM_PRIORITY_FLOOR else ():
            if not self.is_guaranteed(pod, {}):
                faults += [
                    f"{pod.key} is moved, and quota {name} is within its min"
                    for name in self.quotas_within_min(pod, taken)
                ]
        for one in taken:
            faults += [
                f"{pod.key} has priority {pod.priority}, above {least}" for pod in one.pods if pod.priority > least
            ]
        return faults

    def _tenants(self, lost: Sums) -> TenantCheck:
        """Returns the check of evictions from other tenants. lost: amounts that each quota loses with the plan."""
        known = self.at.known
        return TenantCheck(
            self.unit, self.placed, self.round_state, known, gate_open=lambda pod: self.is_guaranteed(pod, lost)
        )

    # --- minimality ---------------------------------------------------------------------------------------------------

    def needless(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the first pod of each unit that need not be evicted if the members are placed as planned.

        Each unit is tested alone. The result may be incomplete, because members are not tried on other nodes. Three
        cases are not tested: plans that move pods; nodes with capacity that is reserved for a nominated pod; units with
        claims, if members have claims, too. At most `NEEDLESS_UNITS_TRIED` units are tested with all filters.
        """
        if self.back:
            return []
        index, out, tries = self.snapshot.index, list[str](), 0
        free, least = self._free_after(taken), min(self.placed, key=lambda pod: pod.priority)
        available = self.round_state.available_to(least)
        reserved = set(available.positions.tolist()) if available is not None else set[int]()
        claiming = any(map(_claims, self.placed))
        columns = [0, *(self.snapshot.columns[name] for name in self.requested if not self.round_state.ignored(name))]
        for one in taken:
            nodes = {index[pod.node] for pod in one.pods if pod.node in index}
            held = {node: self._vector(pod for pod in one.pods if index.get(pod.node) == node) for node in nodes}
            lacks = any(((free[node] - held[node])[columns] < 0).any() for node in nodes & set(self.nodes.values()))
            if lacks or not reserved.isdisjoint(nodes) or (claiming and any(map(_claims, one.pods))):
                continue
            if tries == NEEDLESS_UNITS_TRIED:
                break
            tries += 1
            rest = [other for other in taken if other is not one]
            if not self.whole(rest) and not self.lawful(rest) and self._holds_without(rest):
                out.append(one.pods[0].key)
        return out

    def _free_after(self, taken: Sequence[EvictedUnit]) -> Ints:
        """Returns [nodes, columns] the free amounts after the plan."""
        free, index = self.snapshot.allocatable - self.draft.used, self.snapshot.index
        for pod in (pod for one in taken for pod in one.pods if pod.node in index):
            free[index[pod.node]] += self._vector([pod])
        for pod in self.placed:
            free[self.nodes[pod.key]] -= self._vector([pod])
        return free

    def _vector(self, pods: Iterable[PodInfo]) -> Ints:
        """Returns [columns] the total requests of pods; column 0 is the number of pods."""
        out = np.zeros(self.snapshot.allocatable.shape[1], dtype=np.int64)
        for pod in pods:
            out[0] += 1
            for name, amount in pod.requests.items():
                out[self.snapshot.columns[name]] += amount
        return out

    def _holds_without(self, taken: Sequence[EvictedUnit]) -> bool:
        """Returns True if the members pass every filter on their nodes with only these units evicted."""
        names = {key: self.snapshot.nodes[node].name for key, node in self.nodes.items()}
        with self.draft.trial(without=(pod for one in taken for pod in one.pods)):
            allocation = allocate(self.nodes, self.round_state)
            return not allocation.faults and not check_plan(
                self.unit, names, self.round_state, allocation.devices, allocation.notes, whole=True
            )


def _claims(pod: PodInfo) -> bool:
    """Returns True if a pod has volumes or resource claims."""
    return bool(pod.pod.spec.resource_claims or pod.ties.volumes)
