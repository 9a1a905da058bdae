# SPDX-License-Identifier: Apache-2.0
"""A witness of every round: what preemption.md 9 promises of each plan, looked up pod by pod.

It stands between `simulate` and the planner and sums up requests itself; the search for victims has no part in it.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import floor

import numpy as np

from koordpy.api import keys
from koordpy.api.label_selectors import selector_matches
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import ClosedTo, Reservation, withheld
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.fairness.quota_admission import core_members
from koordpy.fairness.quota_runtime import all_quota_amounts, limits
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import is_broken, missing_members
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.gangs.unit_gates import gate
from koordpy.placement.problem import only_ranks
from koordpy.plan.round_plan import Eviction, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit
from koordpy.reservations.reservation_ledger import frees_capacity
from tests.planning.minimality import proven

GPU = "nvidia.com/gpu"
ALONE = ("stale-gang",)
GPU = "nvidia.com/gpu"


@dataclass
class Witness:
    """Plans rounds and keeps what is wrong with them. taken: (loser's quota, winner's quota, round) of reclaims."""

    faults: list[str] = field(default_factory=list)
    rounds: int = 0
    evictions: Counter[str] = field(default_factory=Counter)
    changes: list[tuple[str, str, int]] = field(default_factory=list)
    returning: set[str] = field(default_factory=set)
    """Pods that have moved: their room is kept, and their quotas let them back."""

    def __call__(self, snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        with proven():
            plan = plan_round(snapshot, config)
        self.rounds += 1
        for unit in plan.not_minimal:
            self.fault(f"I7: {unit} could do without a victim")
        _Round(self, snapshot, config, plan).judge()
        return plan

    def fault(self, text: str) -> None:
        self.faults.append(f"round {self.rounds}: {text}")


class _Round:
    def __init__(self, witness: Witness, snapshot: Snapshot, config: KoordpyConfiguration, plan: RoundPlan) -> None:
        self.witness, self.snapshot, self.config, self.plan = witness, snapshot, config, plan
        self.groups = Groups(snapshot, config.gangs, config.stale_gangs)
        self.quotas = snapshot.quotas.tree.quotas
        self.limits = limits(all_quota_amounts(snapshot.quotas, config.quota), snapshot.quotas, config.quota)
        self.here = {key: pod for key, pod in snapshot.pods.items() if pod.bound}
        self.new: dict[str, str] = {}
        self.moved: list[PodInfo] = []
        """Gone from their nodes, with room elsewhere: their quotas still count them."""
        self.allowed = [(one, one.status.disruptions_allowed or 0) for one in snapshot.budgets]

    def fault(self, text: str) -> None:
        self.witness.fault(text)

    # --- sums -----------------------------------------------------------------------------------------------------

    def path(self, pod: PodInfo) -> list[str]:
        name, out = self.snapshot.quotas.quota_of(pod), list[str]()
        while name in self.quotas:
            out.insert(0, name)
            name = self.quotas[name].parent
        return out

    def used(self, name: str, resource: str, pods: Iterable[PodInfo], *, rigid: bool = False) -> int:
        inside = (pod for pod in pods if name in self.path(pod) and (not rigid or _rigid(pod)))
        return sum(pod.requests.get(resource, 0) for pod in inside)

    # --- the round ------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        snapshot, plan = self.snapshot, self.plan
        self.fault_messages()
        for one in plan.evictions:
            self.witness.evictions[one.rule] += 1
            self._victim(snapshot.pods[one.pod_key], one)
        by_unit: dict[str, list[Eviction]] = {}
        for one in plan.evictions:
            by_unit.setdefault(one.unit, []).append(one)
        for one in by_unit.pop("", []):
            del self.here[one.pod_key]
        order = dict.fromkeys([report.unit for report in plan.units])
        for unit in order:
            placed = {p.pod_key: p.node for p in plan.placements if p.unit == unit}
            mine = [one for one in by_unit.pop(unit, []) if one.rule not in ALONE or placed]
            if placed:
                self._unit(unit, mine, placed)
            elif mine:
                self.fault(f"I4: {unit} has victims and no member placed")
        for one in plan.evictions:
            if one.rule in ALONE:
                self.here.pop(one.pod_key, None)
        self._gangs()

    def fault_messages(self) -> None:
        for one in self.plan.pending:
            if "failed koordpy's own check" in one.message:
                self.fault(one.message)

    def _victim(self, pod: PodInfo, one: Eviction) -> None:
        meta = pod.pod.metadata
        if _rigid(pod) or meta.deletion_timestamp or any(o.kind == "DaemonSet" for o in meta.owner_references):
            self.fault(f"{pod.key} is protected")
        if pod.key in {placement.pod_key for placement in self.plan.placements}:
            self.fault(f"{pod.key} is bound and evicted")
        foreign = pod.pod.spec.scheduler_name not in self.snapshot.scheduler_names
        if foreign and one.rule != "priority":
            self.fault(f"{pod.key} of another scheduler goes by {one.rule}")

    def _unit(self, unit_id: str, mine: Sequence[Eviction], placed: Mapping[str, str]) -> None:
        members = [self.snapshot.pods[key] for key in placed]
        victims = [(self.snapshot.pods[one.pod_key], one) for one in mine]
        before = list(self.here.values())
        least = max if self._one_by_one(unit_id) else min
        for pod, one in victims:
            if pod.key not in self.here:
                self.fault(f"{pod.key} goes twice")
            if one.rule == "priority" and pod.priority >= least(p.priority for p in members):
                self.fault(f"{pod.key} of priority {pod.priority} goes for {unit_id}")
        left = [pod for pod in before if pod.key not in {p.key for p, _ in victims}]
        self._budgets(victims, members if self._one_by_one(unit_id) else members[:1])
        self._lines(unit_id, victims, members, before, [*left, *members])
        self._guards(unit_id, victims, members)
        self._limits(unit_id, placed, before, [*left, *members], relieved=bool(victims))
        rules = {one.rule for _, one in victims}
        # room that the round keeps for somebody is not on any pod yet
        kept = any(one.returns_to for one in self.plan.evictions)
        kept |= any(" terminating pod" in one.message for one in self.plan.pending)
        if not kept and len(rules) == 1 and rules <= {"priority", "quota", "fair-share"}:
            self._minimal(unit_id, [pod for pod, _ in victims], placed)
        for pod, _ in victims:
            self.here.pop(pod.key, None)
        self.moved += [pod for pod, one in victims if one.returns_to]
        self.witness.returning.update(pod.key for pod in self.moved)
        self.here.update({pod.key: pod for pod in members})
        self.new.update(placed)
        for budget, (one, allowed) in enumerate(self.allowed):
            less = sum(_covers(one, pod) for pod, _ in victims)
            more = sum(_covers(one, pod) for pod in members)
            self.allowed[budget] = one, allowed - less + more

    def _unit_of(self, unit_id: str) -> Unit:
        return next(unit for unit in self.groups.units() if unit.id == unit_id)

    def _one_by_one(self, unit_id: str) -> bool:
        """Whether each of its members is a plan of its own."""
        unit = self._unit_of(unit_id)
        return unit.plain is None and unit.bound_any and not any(unit.need(gang) for gang in unit.gangs)

    def _budgets(self, victims: Sequence[tuple[PodInfo, Eviction]], turns: Sequence[PodInfo]) -> None:
        """3.5: what an earlier of some turns has bound counts for the next."""
        for one, start in self.allowed:
            allowed = start + sum(_covers(one, pod) for pod in turns[1:])
            gone = [(pod, eviction) for pod, eviction in victims if _covers(one, pod)]
            if any(eviction.rule != "priority" for _, eviction in gone) and len(gone) > max(0, allowed):
                self.fault(f"PDB {one.metadata.name} allows {allowed}, {len(gone)} go")

    def _lines(
        self,
        unit_id: str,
        victims: Sequence[tuple[PodInfo, Eviction]],
        members: Sequence[PodInfo],
        before: Sequence[PodInfo],
        after: Sequence[PodInfo],
    ) -> None:
        """I2: what a quota holds within its min is taken by the last unit of a reclaim by quota at most."""
        if len({tuple(self.path(pod)) for pod in members}) > 1:
            return
        own = self.path(members[0])
        across = self.config.preemption.across_quotas
        for pod, one in victims:
            below = [name for name in self.path(pod) if name not in own]
            for name in below:
                for resource in self.quotas[name].max:
                    use, least = self.used(name, resource, before), self.quotas[name].least(resource)
                    ends, amount = self.used(name, resource, after), pod.requests.get(resource, 0)
                    if one.rule == "consolidation" or not amount or ends >= min(use, least):
                        continue
                    if (one.rule == "priority" and across == "overMin") or one.rule == "fair-share":
                        self.fault(f"I2: {unit_id} leaves {name} {ends} of min {least} {resource} by {one.rule}")
            if one.rule == "quota" and one.beneficiary is not None:
                self._reclaimed(unit_id, pod, victims, members, before)
            if one.rule in ("quota", "fair-share") and one.beneficiary is not None and below and own:
                self.witness.changes.append((below[-1], own[-1], self.witness.rounds))
        self._shares(unit_id, victims, members, before)

    def _shares(
        self,
        unit_id: str,
        victims: Sequence[tuple[PodInfo, Eviction]],
        members: Sequence[PodInfo],
        before: Sequence[PodInfo],
    ) -> None:
        """I11, of users that are known by their label and hold accelerators, where all nodes take every member: they
        lose by priority what is above their share, and the last unit."""
        fairness, across = self.config.fairness, self.config.preemption.across_users
        if fairness.mode != "gpu-count" or fairness.reclaim == "all" or across == "any":
            return
        asked = [pod.requests.get(GPU, 0) for pod in members]
        if not any(asked) or any(one.allocatable.get(GPU, 0) < max(asked) for one in self.snapshot.nodes):
            return
        cpu = max(pod.requests.get("cpu", 0) for pod in members)
        if any(one.allocatable.get("cpu", 0) < cpu for one in self.snapshot.nodes):
            return
        user_of, shares = self.snapshot.quotas.user_of, self._user_shares()
        own = {user_of(pod) for pod in members}
        units: dict[str, dict[str, int]] = {}
        for pod, one in victims:
            labelled = pod.pod.metadata.labels.get(keys.QUOTA_USER, "")
            if one.rule == "priority" and labelled and labelled not in own and not self._may_claim(members, pod):
                name = self.groups.id_of(pod.gang) if pod.gang is not None else pod.key
                held = units.setdefault(labelled, {})
                held[name] = held.get(name, 0) + pod.requests.get(GPU, 0)
        for user, held in units.items():
            if across == "never":
                self.fault(f"I11: {unit_id} takes {sorted(held)} of {user}")
            # those that moved for another unit of the round still count there, and what ends no longer does
            use = sum(pod.requests.get(GPU, 0) for pod in [*before, *self.moved] if user_of(pod) == user)
            if sum(held.values()) and sum(held.values()) - max(held.values()) >= max(1, use - shares.get(user, 0)):
                self.fault(f"I11: {unit_id} takes {held} of {user}, which uses {use}, share {shares.get(user, 0)}")

    def _may_claim(self, members: Sequence[PodInfo], victim: PodInfo) -> bool:
        """Whether the members' quotas could be within their min once some of their own pods are gone."""
        mine = [name for name in self.path(members[0]) if name not in self.path(victim)]
        return bool(mine) and all(
            self.used(name, r, members) <= self.quotas[name].least(r) for name in mine for r in self.quotas[name].max
        )

    def _user_shares(self) -> Mapping[str, int]:
        """Max-min of the accelerators among users, in whole ones, at most."""
        return {user: floor(share) for user, share in self._exact_shares(None).items()}

    def _exact_shares(self, names: Container[str] | None) -> dict[str, Fraction]:
        """Max-min of the accelerators of some nodes, None for all, among the users of these nodes, unrounded."""
        snapshot, demand = self.snapshot, Counter[str]()
        usable = [i for i, one in enumerate(snapshot.nodes) if names is None or one.name in names]
        for pod in snapshot.pods.values():
            asks = pod.bound or pod.pending
            if names is not None and asks:
                asks = pod.node in names if pod.bound else bool(self._empty.of(pod).slots[usable].any())
            if asks and snapshot.quotas.quota_of(pod) != keys.SYSTEM_QUOTA:
                demand[snapshot.quotas.user_of(pod)] += pod.requests.get(GPU, 0)
        left = Fraction(sum(snapshot.nodes[i].allocatable.get(GPU, 0) for i in usable))
        shares: dict[str, Fraction] = {}
        for number, (user, asked) in enumerate(sorted(demand.items(), key=lambda one: one[1])):
            shares[user] = min(Fraction(asked), left / (len(demand) - number))
            left -= shares[user]
        return shares

    def _opens_share(self, members: Sequence[PodInfo], spared: Sequence[PodInfo], others: Sequence[PodInfo]) -> bool:
        """Whether pods of the beneficiary's own tenant have to go by priority before those of another tenant may:
        without them its tenant ends further above its share than the other one is (preemption.md 3.1, b)."""
        fairness, across = self.config.fairness, self.config.preemption.across_users
        if fairness.mode == "off" or fairness.reclaim == "all" or across != "overShare":
            return False
        quotas = self.snapshot.quotas

        def tenant(pod: PodInfo) -> str:
            return quotas.user_of(pod) if fairness.mode == "gpu-count" else str(quotas.queue_of(pod))

        own = {tenant(pod) for pod in members}
        foreign = {tenant(pod) for pod in others if not (self._by_quota(pod) and self._by_quota(members[0]))} - own
        if not foreign or not {tenant(pod) for pod in spared} & own:
            return False
        if fairness.mode != "gpu-count" or len(own) > 1:
            return True  # not computed here
        [mine], nodes = own, self.snapshot.nodes
        names = {one.name for i, one in enumerate(nodes) if any(self._empty.of(pod).slots[i] for pod in members)}
        every = names.issuperset(one.name for one in nodes if one.allocatable.get(GPU, 0))
        shares = self._exact_shares(None if every else names)

        def held(user: str, pods: Iterable[PodInfo]) -> int:
            return sum(p.requests.get(GPU, 0) for p in pods if tenant(p) == user and p.node in names)

        ending = {pod.key for pod in self._ending()}
        before = [pod for pod in (*self.here.values(), *self.moved) if pod.key not in ending]
        gained = sum(pod.requests.get(GPU, 0) for pod in members)
        excess = held(mine, before) - held(mine, others) + gained - shares.get(mine, 0)
        for user in foreign:
            use, share = held(user, before), shares.get(user, Fraction(0))
            keeps = use - held(user, others) >= min(use, floor(share))
            if not keeps and excess > use - share:
                return True
        return False

    def _by_quota(self, pod: PodInfo) -> bool:
        """Whether the tenant of a pod is an ElasticQuota."""
        return bool(self.path(pod)) and not pod.pod.metadata.labels.get(keys.QUOTA_USER)

    def _reclaimed(
        self,
        unit_id: str,
        pod: PodInfo,
        victims: Sequence[tuple[PodInfo, Eviction]],
        members: Sequence[PodInfo],
        before: Sequence[PodInfo],
    ) -> None:
        """3.2: above min before each unit."""
        own = self.path(members[0])
        asked = {r for member in members for r, amount in member.requests.items() if amount}
        gone = [p for p, one in victims if one.rule == "quota"]
        units: dict[str, list[PodInfo]] = {}
        for one in gone:
            whole = one.gang is not None and not self._stays(one, victims)
            units.setdefault(self.groups.unit(one.gang).id if whole and one.gang else one.key, []).append(one)
        for name in [name for name in self.path(pod) if name not in own]:
            good = False
            for resource in asked & set(self.quotas[name].max):
                sizes = [self.used(name, resource, pods) for pods in units.values()]
                # those that moved for another unit of the round still count there
                over = self.used(name, resource, [*before, *self.moved]) - self.quotas[name].least(resource)
                good |= sum(sizes) - max(sizes) < over
            if not good:
                self.fault(f"I2: {unit_id} takes {pod.key} of {name}, which is within its min before")

    def _stays(self, pod: PodInfo, victims: Sequence[tuple[PodInfo, Eviction]]) -> bool:
        gone = {p.key for p, _ in victims}
        mates = [other for other in self.here.values() if other.gang == pod.gang and other.key not in gone]
        return any(not other.pod.metadata.deletion_timestamp for other in mates)

    def _guards(self, unit_id: str, victims: Sequence[tuple[PodInfo, Eviction]], members: Sequence[PodInfo]) -> None:
        """preemption.md 3.7."""
        if min(pod.priority for pod in members) >= 2_000_000_000:
            return
        limits = self.config.protection.max_harm
        factors = {
            "priority": limits.priority,
            "quota": limits.quota,
            "fair-share": limits.fair_share,
            "consolidation": limits.consolidation,
        }
        gpus, cpus = (sum(pod.requests.get(r, 0) for pod in members) for r in (GPU, "cpu"))
        for rule, factor in factors.items():
            gone = [pod for pod, one in victims if one.rule == rule]
            if factor is None or not gone:
                continue
            held = sum(pod.requests.get(GPU, 0) for pod in gone)
            cpu = sum(pod.requests.get("cpu", 0) for pod in gone)
            gain, harm = (gpus, held) if gpus else (cpus, cpu) if cpus else (len(members), len(gone))
            if harm > factor * gain or (held and not gpus):
                self.fault(f"{unit_id} gains {gain}, and {rule} takes {harm}")
        if self.config.preemption.surplus_victims == "any":
            return
        going = {pod.key for pod, _ in victims}
        ours = Counter(pod.gang for pod in members)
        for gang in self._unit_of(unit_id).gangs:
            stood = [pod for pod in gang.bound if pod.key in self.here and not pod.pod.metadata.deletion_timestamp]
            lacks = max(0, gang.min_member - len(stood) - gang.succeeded)
            if gang.min_member < 1 or ours[gang.ref] <= lacks:
                continue
            # of a plan for its core, those above it are plans of their own
            if self._one_by_one(unit_id) and any(one.rule == "quota" for _, one in victims):
                continue
            for pod, one in victims:
                if pod.gang is None or one.rule == "quota":
                    continue
                other = self.groups.gang(pod.gang)
                mates = [p for p in other.bound if p.key in self.here and not p.pod.metadata.deletion_timestamp]
                left = [p for p in mates if p.key not in going]
                breaks = len(mates) + other.succeeded < other.min_member or (not left and other.min_member > 0)
                if breaks and not self._may_be_without_limit(unit_id, members, one, max(p.priority for p in mates)):
                    self.fault(f"{unit_id} breaks {other.key} by {one.rule} for members above minMember")

    def _may_be_without_limit(self, unit_id: str, members: Sequence[PodInfo], one: Eviction, priority: int) -> bool:
        """Whether an eviction may be of a plan that the limit on surplus does not concern: where each member is a plan
        of its own, that of a member of a gang without minMember. priority: of the victim unit."""
        if not self._one_by_one(unit_id):
            return False
        free = [pod for pod in members if pod.gang is not None and self.groups.gang(pod.gang).min_member < 1]
        return any(one.rule != "priority" or pod.priority > priority for pod in free)

    def _ending(self) -> list[PodInfo]:
        """Pods whose room is coming free."""
        return [pod for pod in self.snapshot.pods.values() if frees_capacity(pod, self.snapshot.now)]

    def _relieved(self, gone: Iterable[PodInfo]) -> Mapping[str, Mapping[str, int]]:
        """The limits where the total has what pods in no quota used that go, or are ending."""
        if self.config.quota.no_quota_yields == "never":
            return self.limits
        freed: Counter[str] = Counter()
        for pod in {pod.key: pod for pod in (*gone, *self._ending())}.values():
            freed.update(pod.requests if not self.path(pod) else {})
        quotas = self.snapshot.quotas
        larger = replace(quotas, total={r: amount + freed[r] for r, amount in quotas.total.items()})
        return limits(all_quota_amounts(larger, self.config.quota), larger, self.config.quota)

    def _limits(
        self,
        unit_id: str,
        placed: Mapping[str, str],
        before: Sequence[PodInfo],
        after: Sequence[PodInfo],
        *,
        relieved: bool,
    ) -> None:
        """I3 and I10: above its limit a quota ends in free room only, and only by what others ask for in vain.
        relieved: whether the plan has victims."""
        stays = {pod.key for pod in (*after, *self.moved)}
        gone = [pod for pod in self.snapshot.pods.values() if pod.bound and pod.key not in stays]
        known = self._relieved(gone) if relieved else self.limits
        members = [self.snapshot.pods[key] for key in placed]
        own = [pod for pod in members if pod.key not in self.witness.returning]
        lent: Mapping[str, Mapping[str, int]] | None = None
        for name in dict.fromkeys(name for pod in members for name in self.path(pod)):
            for resource in self.quotas[name].max:
                ends, most = self.used(name, resource, after), max(known[name][resource], self.limits[name][resource])
                if ends > most and len(before) + len(members) == len(after) and lent is None:
                    lent = self._lent(placed, [*before, *self.moved])
                if lent is not None:
                    most = max(most, min(lent[name][resource], self.quotas[name].max[resource]))
                if ends > most and self.used(name, resource, own):
                    self.fault(f"I10: {unit_id} brings {name} to {ends} of {most} {resource}")
                rigid = self.used(name, resource, after, rigid=True)
                rises = rigid > self.used(name, resource, before, rigid=True)
                if rises and rigid > self.quotas[name].least(resource):
                    self.fault(f"I3: {unit_id} brings {name} to {rigid} non-preemptible {resource}")

    def _lent(self, placed: Mapping[str, str], before: Sequence[PodInfo]) -> Mapping[str, Mapping[str, int]]:
        """The limits where those ask for nothing who wait in other quotas and would end above theirs, or could use none
        of the nodes that the members are placed on."""
        members, at = [self.snapshot.pods[key] for key in placed], [self.snapshot.index[n] for n in placed.values()]
        empty, quotas = self._empty, self.snapshot.quotas
        waiting = {owner: dict(amounts) for owner, amounts in quotas.demand.items()}
        own = [self.path(pod)[-1:] for pod in members]
        units = [one for one in self.groups.units() if not any(pod.key in self.here for pod in one.pending)]
        # room of ending pods that is promised counts as theirs who wait for it
        ending = {one.pod_key for one in self.plan.pending if " terminating pod" in one.message}
        promised = {one.id: [pod for pod in core_members(one) if pod.key in ending] for one in units}
        for unit in units:
            others = [pod for name, pods in promised.items() if name != unit.id for pod in pods]
            elsewhere = not any(empty.of(pod).slots[at].any() for pod in unit.pending)
            above = elsewhere or self._above(list(core_members(unit)), [*before, *others])
            if not above and not self._never(unit):
                continue
            for pod in unit.pending:
                if self.path(pod)[-1:] not in own:
                    for resource, amount in pod.requests.items():
                        waiting[pod.owner][resource] -= amount
        less = replace(quotas, demand=waiting)
        return limits(all_quota_amounts(less, self.config.quota), less, self.config.quota)

    def _never(self, unit: Unit) -> bool:
        """Whether it does not start in a cluster of its own: by its gate, or by room."""
        if gate(unit, self.groups) is not None:
            return True
        round_state = self._emptied({one.key for one in unit.members})
        return not place_unit(unit, build(unit, round_state), round_state, Question.TRIAL).placed

    @cached_property
    def _empty(self) -> RoundState:
        """The cluster without bound pods."""
        return self._emptied(())

    def _emptied(self, staying: Container[str]) -> RoundState:
        draft = Draft(self.snapshot)
        for pod in self.snapshot.pods.values():
            if pod.bound and pod.key not in staying:
                draft.evict(pod)
        return RoundState(draft, self.config)

    def _above(self, pods: Sequence[PodInfo], before: Sequence[PodInfo]) -> bool:
        """Whether some quota would end above its limit with these pods, or above its min with non-preemptible ones."""
        for name in dict.fromkeys(name for pod in pods for name in self.path(pod)):
            for resource in self.quotas[name].max:
                more, rigid = self.used(name, resource, pods), self.used(name, resource, pods, rigid=True)
                if more and self.used(name, resource, before) + more > self.limits[name][resource]:
                    return True
                least = self.quotas[name].least(resource)
                if rigid and self.used(name, resource, before, rigid=True) + rigid > least:
                    return True
        return False

    def _minimal(self, unit_id: str, victims: Sequence[PodInfo], placed: Mapping[str, str]) -> None:
        """I7: with one unit of them spared, the members find no room."""
        pods = self.snapshot.pods
        if self._one_by_one(unit_id):
            return
        unit = self._unit_of(unit_id)
        if self._may_lack_seats(unit, placed):
            return  # not computed here
        seats = self._seats_closed_to(unit)
        gone = {pod.key for pod in victims}
        parts: dict[str, list[PodInfo]] = {}
        for pod in victims:
            if pod.gang is None:
                parts[pod.key] = [pod]
                continue
            whole = self.groups.unit(pod.gang)
            if any(gang.wish.gather for gang in whole.gangs):
                return
            left = [p for g in whole.gangs for p in g.bound if p.key in self.here and p.key not in gone]
            left = [p for p in left if not p.pod.metadata.deletion_timestamp]
            mates = any(p.gang == pod.gang for p in left)
            parts.setdefault(pod.key if mates else pod.gang.key if left else whole.id, []).append(pod)
        for spared in parts:
            draft = Draft(self.snapshot)
            for pod in self.snapshot.pods.values():
                if pod.bound and pod.key not in self.here:
                    draft.evict(pod)
            for key, node in self.new.items():
                draft.assign(pods[key], self.snapshot.index[node])
            draft.withhold(seats)
            for name, others in parts.items():
                for pod in others if name != spared else ():
                    draft.evict(pod)
            others = [pod for name, some in parts.items() if name != spared for pod in some]
            if self._opens_share([pods[key] for key in placed], parts[spared], others):
                continue
            if self._fits(unit, draft, placed, self._limits_then(others)):
                self.fault(f"I7: {unit_id} could do without {[pod.key for pod in parts[spared]]}")

    def _seats_closed_to(self, unit: Unit) -> Reservation:
        """The seats that the unit may not use (repair.md 4.4). In a gang with pods of several sizes, each seat has the
        largest size, because a plan does not say which member has which seat."""
        snapshot, plan = self.snapshot, self.plan
        amounts = np.zeros_like(snapshot.allocatable)
        for gang in (self.groups.gang(ref) for ref in snapshot.members if ref.key in plan.seats):
            if not self._is_closed(gang, unit):
                continue
            largest = np.max([snapshot.requests_of([pod]) for pod in (*gang.bound, *gang.pending)], axis=0)
            for node, number in plan.seats[gang.ref.key].nodes.items():
                amounts[snapshot.index[node]] += number * largest
        return withheld("seats", ClosedTo.RANK, amounts)

    def _may_lack_seats(self, unit: Unit, placed: Container[str]) -> bool:
        """Whether seats may have been closed to the unit that the plan does not name: a later unit of a priority to
        which they are open may have taken them."""
        pods, plan = self.snapshot.pods, self.plan
        later = [p.pod_key for p in plan.placements if p.pod_key not in self.new and p.pod_key not in placed]
        unnamed = (self.groups.gang(ref) for ref in self.snapshot.members if ref.key not in plan.seats)
        broken = [gang for gang in unnamed if missing_members(gang) and self._is_closed(gang, unit)]
        return any(pods[key].priority > self._lowest_live(gang) for gang in broken for key in later)

    def _is_closed(self, gang: Gang, unit: Unit) -> bool:
        """Whether the seats of a gang, if it has any, are closed to a unit."""
        return not is_broken(unit.gangs) and min(pod.priority for pod in unit.pending) <= self._lowest_live(gang)

    def _lowest_live(self, gang: Gang) -> int:
        """The lowest priority of a gang's live members, with those that the round has placed."""
        joined = [self.snapshot.pods[one.pod_key] for one in self.plan.placements]
        return min(pod.priority for pod in (*gang.bound, *joined) if pod.gang == gang.ref)

    def _limits_then(self, going: Sequence[PodInfo]) -> Mapping[str, Mapping[str, int]]:
        """The limits once those have started whom the round placed before: in no quota of the tree they use what is
        shared, and with guaranteeUsage what they use is theirs. going: pods that leave with the plan."""
        quotas, known = self.snapshot.quotas, self.limits
        held = {owner: dict(amounts) for owner, amounts in quotas.usage.items()}
        gone = [pod for key, pod in self.snapshot.pods.items() if pod.bound and key not in self.here]
        if self.config.quota.no_quota_yields != "never":
            leaving = [*going, *self._ending()]
            gone += {pod.key: pod for pod in leaving if not self.path(pod) and pod.key in self.here}.values()
        for sign, pods in ((1, [self.snapshot.pods[key] for key in self.new]), (-1, gone)):
            for pod in pods:
                if self.config.quota.guarantee_usage or not self.path(pod):
                    own = held.setdefault(pod.owner, {})
                    for resource, amount in pod.requests.items():
                        own[resource] = own.get(resource, 0) + sign * amount
        then = replace(quotas, usage=held)
        found = limits(all_quota_amounts(then, self.config.quota), then, self.config.quota)
        if self.config.quota.no_quota_yields == "never":
            return {name: {r: min(n, known[name][r]) for r, n in of.items()} for name, of in found.items()}
        return found

    def _fits(self, unit: Unit, draft: Draft, placed: Mapping[str, str], most: Mapping[str, Mapping[str, int]]) -> bool:
        round_state = RoundState(draft, self.config)
        ranks = {rank for rank, pod in enumerate(unit.members) if pod.key in placed}
        room = only_ranks(build(unit, round_state), ranks)
        found = place_unit(unit, room, round_state, Question.TRIAL)
        if len(found.nodes) < len(ranks):
            return False
        members = [unit.members[rank] for rank in found.nodes]
        for name in dict.fromkeys(name for pod in members for name in self.path(pod)):
            for resource in self.quotas[name].max:
                asked = sum(pod.requests.get(resource, 0) for pod in members if name in self.path(pod))
                if asked and draft.quotas.used(name, resource) + asked > most[name][resource]:
                    return False
        return True

    def _gangs(self) -> None:
        """I5, of gangs that lose somebody in this round."""
        gone = {one.pod_key for one in self.plan.evictions}
        for ref, pods in self.snapshot.members.items():
            if not any(pod.key in gone for pod in pods):
                continue
            gang = self.groups.gang(ref)
            # a pod that ends is no longer part of what a gang is counted by
            stood = [pod for pod in pods if pod.bound and not pod.pod.metadata.deletion_timestamp]
            left = [pod for pod in pods if pod.key in self.here and not pod.pod.metadata.deletion_timestamp]
            moved = [one for one in self.plan.evictions if one.returns_to and one.pod_key in {p.key for p in pods}]
            if moved or len(stood) + gang.succeeded < gang.min_member:
                continue
            if left and len(left) < gang.min_member:
                self.fault(f"I5: gang {gang.key} keeps {len(left)} of {gang.min_member}")


def _rigid(pod: PodInfo) -> bool:
    labels = pod.pod.metadata.labels
    return labels.get(keys.QUOTA_PREEMPTIBLE) == "false" or labels.get(keys.DISABLE_PREEMPTIBLE) == "true"


def _covers(budget: object, pod: PodInfo) -> bool:
    spec, meta = budget.spec, budget.metadata  # type: ignore[attr-defined]
    return meta.namespace == pod.namespace and selector_matches(spec.selector, pod.pod.metadata.labels)
