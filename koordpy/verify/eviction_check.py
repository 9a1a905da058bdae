# SPDX-License-Identifier: Apache-2.0
"""Checks evictions of all rules: no protected pods, units as a whole, PodDisruptionBudgets.

It also checks evictions without a preemptor, such as those of quotas above their runtime and of stale gangs. Sources:
preemption.md 2, 3.5 and 7, quota-fairness.md 5.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpy.api import keys
from koordpy.api.label_selectors import selector_matches
from koordpy.fairness.tenant_entitlements import Entitlements
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import RejectedPlan
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts
from koordpy.preemption.selection.disruption_budgets import Budget
from koordpy.verify.plan_check import found, path_of
from koordpy.verify.plan_fault import Check, PlanFault

PRIORITY, QUOTA, SHARE, MOVE = "priority", "quota", "fair-share", "consolidation"
"""Names of the rules, as in `RuleName`."""
STALE_GANG, REPAIR = "stale-gang", "repair"


@dataclass(frozen=True, eq=False)
class EvictedUnit:
    """Pods that are evicted or moved together, and the preemption rule that allows it."""

    pods: tuple[PodInfo, ...]
    rule: str
    """Name of the rule, as in `RuleName`."""


@dataclass(frozen=True, eq=False)
class Round:
    """The data of a round that the checks of evictions read."""

    round_state: RoundState
    """The round state; its draft must not contain the plan yet."""
    entitlements: Entitlements | None
    """Fair shares; None if fair shares are not reclaimed."""
    budgets: Sequence[Budget]
    """PodDisruptionBudgets with the evictions that each still allows."""
    known: dict[object, Any] = field(default_factory=dict)
    """Cache that `TenantCheck` uses for the round."""


def check_given_back(name: str, limit: Amounts, taken: Sequence[EvictedUnit], at: Round) -> list[PlanFault]:
    """Returns the faults of the evicted units of a quota above its runtime. The draft must not contain the evictions.

    name: of the quota. limit: its runtime, by resource. Each unit must be needed: without its eviction, the quota would
    stay above the limit, or gangs would be evicted in part.
    """
    plan = EvictionCheck(at)
    faults = [*found(Check.VICTIMS, plan.check_evictable(taken)), *found(Check.UNITS, plan.whole(taken))]
    if faults:
        return faults
    quotas, tree = plan.quotas, plan.tree
    inside = {pod.key for one in taken for pod in one.pods if name in tree.path(quotas.quota_of(pod))}
    texts = [f"{pod.key} is not in quota {name}" for one in taken for pod in one.pods if pod.key not in inside]
    leaving = [pod for pod in at.round_state.reservations.terminating if name in tree.path(quotas.quota_of(pod))]
    over = {
        r: above
        for r, most in limit.items()
        if (above := plan.draft.quotas.used(name, r) - sum(pod.charged.get(r, 0) for pod in leaving) - most) > 0
    }

    def enough(some: Sequence[EvictedUnit]) -> bool:
        """Returns True if the quota is within its limit after the eviction of the given units."""
        held = sum((Counter(pod.charged) for one in some for pod in one.pods), Counter[str]())
        return all(held[r] >= above for r, above in over.items())

    for one in taken:
        rest = [other for other in taken if other is not one]
        if enough(rest) and not plan.whole(rest):
            texts.append(f"without {one.pods[0].key} quota {name} is within its limit already")
    return [*found(Check.RECLAIM, texts), *found(Check.BUDGETS, plan.budgets(taken))]


def check_stale(stale: Sequence[Gang], unit: Unit, pods: Sequence[PodInfo], at: Round) -> list[PlanFault]:
    """Returns the faults of the eviction of a unit with stale gangs. The draft must not contain the eviction."""
    plan, taken = EvictionCheck(at), [EvictedUnit(tuple(pods), STALE_GANG)]
    texts, going = plan.check_evictable(taken), {pod.key for pod in pods}
    members = [pod for gang in unit.gangs for pod in gang.pods]
    gone = {pod.key for pod in members if pod.lost and pod.pod.metadata.deletion_timestamp} | {*plan.draft.evicted}
    for gang in stale:
        here = sum(pod.bound and pod.key not in gone for pod in gang.pods)
        have = here + sum(pod.key in plan.draft.placed for pod in gang.pods if not pod.bound) + gang.succeeded
        if not gang.strict or have >= gang.min_member or 0 < gang.past.whole <= have:
            texts.append(f"gang {gang.key} is not stale, with {have} of {gang.min_member} members")
    texts += [
        f"{pod.key} stays"
        for pod in members
        if pod.bound and not (pod.key in gone or pod.lost or pod.key in going or pod.pod.metadata.deletion_timestamp)
    ]
    own = {pod.key for pod in members}
    texts += [f"{key} is a member of another gang" for key in going if key not in own]
    return [*found(Check.VICTIMS, texts), *found(Check.BUDGETS, plan.budgets(taken))]


def check_moved(unit: Unit, pods: Sequence[PodInfo], at: Round) -> list[PlanFault]:
    """Returns the faults of the eviction of a broken unit that moves as a whole. The draft must not contain it."""
    plan, taken = EvictionCheck(at), [EvictedUnit(tuple(pods), REPAIR)]
    going = {pod.key for pod in pods}
    texts = plan.check_evictable(taken)
    texts += [f"{pod.key} stays" for pod in unit.members if pod.bound and pod.key not in going]
    here = [(gang, len(gang.bound) + gang.succeeded) for gang in unit.gangs]
    if not any(gang.strict and 0 < have < gang.min_member for gang, have in here):
        texts.append(f"{unit.title} is not broken")
    return [*found(Check.VICTIMS, texts), *found(Check.BUDGETS, plan.budgets(taken))]


def check_hurt(unit: Unit, pods: Sequence[PodInfo], at: Round) -> list[PlanFault]:
    """Returns the faults of the eviction of members with unhealthy devices. The draft must not contain it."""
    plan, taken = EvictionCheck(at), [EvictedUnit(tuple(pods), REPAIR)]
    sick = {key for view in at.round_state.snapshot.families.values() for key in view.sick_holders}
    texts = plan.check_evictable(taken)
    texts += [f"{pod.key} uses no unhealthy device" for pod in pods if pod.key not in sick]
    members = {pod.key for pod in unit.members}
    texts += [f"{pod.key} is a member of another gang" for pod in pods if pod.key not in members]
    return [*found(Check.VICTIMS, texts), *found(Check.BUDGETS, plan.budgets(taken))]


def rejection(
    unit: str,
    faults: Sequence[PlanFault],
    taken: Sequence[EvictedUnit],
    nodes: Sequence[tuple[str, str]] = (),
    way: str = "",
) -> RejectedPlan:
    """Returns the record of a rejected plan, with the data that is needed to analyse it.

    unit: id of the unit, or `quota NAME`. nodes: (pod key, node name) of the members. way: the way of choosing the
    victims; empty without one.
    """
    victims = tuple((pod.key, one.rule) for one in taken for pod in one.pods)
    return RejectedPlan(unit, tuple((str(one.check), str(one)) for one in faults), way, victims, tuple(nodes))


class EvictionCheck:
    """Checks the pods that a plan evicts from the draft."""

    def __init__(self, at: Round, back: Mapping[str, int] | None = None) -> None:
        """back: pod key -> new node position of moved pods; None without moves."""
        self.at, self.back = at, back or {}
        self.round_state, self.config = at.round_state, at.round_state.config
        self.draft, self.snapshot = at.round_state.draft, at.round_state.snapshot
        self.quotas, self.tree = self.snapshot.quotas, self.snapshot.quotas.tree
        self._known_covers: dict[object, list[int]] = {}

    def check_evictable(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults of pods that no rule, or not their rule, may evict.

        No rule may evict protected, unbound and terminating pods, and pods that the round has already evicted or
        placed. Only the rule `priority` may evict pods of other schedulers.
        """
        faults, seen = list[str](), set[str]()
        names = self.snapshot.scheduler_names
        for pod, rule in ((pod, one.rule) for one in taken for pod in one.pods):
            meta = pod.pod.metadata
            daemon = keys.MIRROR in meta.annotations or any(o.kind == "DaemonSet" for o in meta.owner_references)
            if pod.owner.rigid or daemon or not pod.bound or not pod.pod.spec.node_name or meta.deletion_timestamp:
                faults.append(f"{pod.key} must not be evicted")
            if pod.key in seen or pod.key in self.draft.evicted:
                faults.append(f"{pod.key} is evicted twice")
            seen.add(pod.key)
            if pod.key in self.draft.placed:
                faults.append(f"{pod.key} is bound in this round")
            if rule != PRIORITY and pod.pod.spec.scheduler_name not in names:
                faults.append(f"{pod.key} belongs to another scheduler: its pods are evicted by priority only")
        return faults

    def whole(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults of gangs that the evictions leave below their minimum instead of evicting them as a
        whole."""
        going = {pod.key for one in taken for pod in one.pods}
        seen, faults = set[object](), list[str]()
        for gang in (pod.gang for one in taken for pod in one.pods):
            if gang is None or gang in seen:
                continue
            group = self.round_state.groups.unit(gang)
            seen.update(one.ref for one in group.gangs)
            faults += self._check_group(group, going)
        return faults

    def _check_group(self, group: Unit, going: set[str]) -> list[str]:
        """Returns the faults of the evicted members of one GangGroup.

        going: keys of all evicted pods. If a gang loses its minimum, all gangs of the group must be evicted.
        """
        # core: True if a gang that had its minimum is evicted as a whole; stays: True if a member of the group stays
        faults, core, stays = [], False, False
        for gang in group.gangs:
            bound = self._live_members(gang)
            left = sum(pod.key not in going for pod in bound)
            stays |= left > 0
            if left == len(bound):
                continue
            whole = len(bound) + gang.succeeded >= gang.min_member
            if left and (gang.one_victim or not whole):
                faults.append(f"gang {gang.key} must be disrupted as a whole and keeps {left}")
            elif left and left < gang.min_member:
                faults.append(f"gang {gang.key} keeps {left} of minMember {gang.min_member}")
            core |= not left and whole and (gang.min_member > 0 or gang.one_victim)
        if core and stays:
            faults.append(f"gang {group.group_id}: its core is evicted, but some linked gangs stay")
        if not core and stays and not any(key in self.back for key in going):
            faults += self._multiples(group, going)
        return faults

    def _live_members(self, gang: Gang) -> list[PodInfo]:
        """Returns the members that are bound and not terminating."""
        evicted = self.draft.evicted
        return [pod for pod in gang.bound if pod.key not in evicted and not pod.pod.metadata.deletion_timestamp]

    def _multiples(self, group: Unit, going: set[str]) -> list[str]:
        """Returns the faults of domains that lose surplus members, if their remaining members violate
        podCountMultiple."""
        layers, index = self.snapshot.tree.layers, self.snapshot.index
        rules = [(layers.level(r.layer), r) for gang in group.gangs for r in gang.wish.gather if r.multiple > 1]
        bound = [pod for gang in group.gangs for pod in self._live_members(gang) if pod.node in index]
        lent = {
            pod.key
            for gang in group.gangs
            if len(standing := self._live_members(gang)) + gang.succeeded >= gang.min_member
            for pod in standing
        }
        faults = []
        for level, rule in rules:
            if level is None:
                continue
            counts, less = Counter[object](), set[object]()
            for pod in bound:
                domain = path_of(pod.node, self.snapshot)[:level]
                counts[domain] += pod.key not in going
                if pod.key in going & lent:
                    less.add(domain)
            if any(counts[domain] % rule.multiple for domain in less):
                faults.append(f"podCountMultiple {rule.layer}={rule.multiple} of gang {group.group_id} is broken")
        return faults

    def budgets(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults by PodDisruptionBudgets (preemption.md 3.5).

        If a budget covers a victim of a rule other than `priority`, all victims of the plan together must not exceed
        it.
        """
        strict = {pod.key for one in taken if one.rule != PRIORITY for pod in one.pods}
        counts, forbid, several = Counter[int](), set[int](), list[str]()
        for pod in (pod for one in taken for pod in one.pods) if strict and self.at.budgets else ():
            if pod.key in strict and len(self._covering(pod)) > 1:
                several.append(f"{pod.key} has more than one budget: the eviction API rejects it")
            for b in self._covering(pod):
                counts[b] += 1
                if pod.key in strict:
                    forbid.add(b)
        return several + [
            f"budget {self.at.budgets[b].budget.metadata.name} allows {allowed}, {counts[b]} would be evicted"
            for b in sorted(forbid)
            if counts[b] > (allowed := self.at.budgets[b].allowed)
        ]

    def _covering(self, pod: PodInfo) -> list[int]:
        """Returns the positions of the budgets that count the eviction of a pod."""
        labels = pod.pod.metadata.labels
        key = pod.namespace, tuple(sorted(labels.items()))
        known = self._known_covers.get(key)
        if known is None:
            known = self._known_covers[key] = [
                b
                for b, budget in enumerate(one.budget for one in self.at.budgets)
                if budget.metadata.namespace == pod.namespace
                and (selector := budget.spec.selector) is not None
                and (selector.match_labels or selector.match_expressions)
                and selector_matches(selector, labels)
            ]
        return [b for b in known if pod.name not in self.at.budgets[b].budget.status.disrupted_pods]
