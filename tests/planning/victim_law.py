# SPDX-License-Identifier: Apache-2.0
"""The law of victims read from preemption.md 1 to 5 a second time: every subset of the units of a small cluster is
judged by the text of its sections 2, 3 and 5, with arithmetic of its own, and placed by the planner.

Nothing of `koordpy.preemption.search` is used but the PodDisruptionBudgets' selectors. One unit is planned on one
snapshot; the answer is who has to go, under which step.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from koordpy.api import keys
from koordpy.api.label_selectors import selector_matches
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod, PodDisruptionBudget
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import allocate
from koordpy.devices.rule_registry import place_members
from koordpy.fairness.queue_shares import queue_ages, queue_shares
from koordpy.fairness.quota_runtime import limits, quota_amounts
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.placement.goals import Goals
from koordpy.placement.problem import only_ranks
from koordpy.plan.round_plan import Eviction
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit
from koordpy.quota.quota_book import ShareQueue
from koordpy.reservations.capacity_view import AFTER_TERMINATION

GPU = "nvidia.com/gpu"
NPU = keys.NPU_RESOURCES[0]
NEVER = "preemptionPolicy=Never"


@dataclass(frozen=True)
class Part:
    """A victim unit. limit: (gang, how many of its surplus may go) of a surplus pod; group: its GangGroup."""

    pods: tuple[PodInfo, ...]
    breaks: int = 0
    group: str = ""
    gang: str = ""
    most: int = 0
    core: bool = False
    rest: bool = False
    """What is left of a gang that is below its minimum."""

    @property
    def priority(self) -> int:
        return max(pod.priority for pod in self.pods)

    @property
    def standing(self) -> tuple[object, ...]:
        """The most important first."""
        first = min(self.pods, key=lambda pod: natural_key(pod.name))
        index = min((0, pod.index) if pod.index is not None else (1, 0) for pod in self.pods)
        return -self.priority, min(pod.created for pod in self.pods), index, natural_key(first.name)


@dataclass(frozen=True)
class Verdict:
    """victims: names; step: the rules that were open. placed: whether it fits without, or gets room."""

    placed: bool
    victims: tuple[str, ...] = ()
    step: tuple[str, ...] = ()


class Judge:
    """One unit against the running pods of a snapshot. No pod of it ends, nobody is nominated, nothing is moved."""

    def __init__(self, snapshot: Snapshot, config: KoordpyConfiguration, unit_id: str) -> None:
        self.snapshot, self.config = snapshot, config
        self.device = NPU if any(NPU in node.allocatable for node in snapshot.nodes) else GPU
        self.groups, self.draft = Groups(snapshot), Draft(snapshot)
        self.round_state = RoundState(self.draft, config)
        self.unit: Unit = next(unit for unit in self.groups.units() if unit.id == unit_id)
        self.quotas = snapshot.quotas.tree.quotas
        self.running = [pod for pod in snapshot.pods.values() if pod.bound]
        self._limits: dict[tuple[tuple[str, int], ...], Mapping[str, Mapping[str, int]]] = {}
        self._leaf: dict[object, str] = {}
        self._known: dict[tuple[str, str, int], tuple[Sequence[PodInfo], int]] = {}
        self.shares = self._shares()
        self._on_nodes: dict[frozenset[str], dict[tuple[str, str], tuple[Fraction, Fraction]]] = {}

    # --- sums ---------------------------------------------------------------------------------------------------------

    def path(self, leaf: str) -> list[str]:
        out: list[str] = []
        while leaf in self.quotas:
            out.insert(0, leaf)
            leaf = self.quotas[leaf].parent
        return out

    def leaf(self, pod: PodInfo) -> str:
        if pod.owner not in self._leaf:
            self._leaf[pod.owner] = self.snapshot.quotas.quota_of(pod)
        return self._leaf[pod.owner]

    def user(self, pod: PodInfo) -> str:
        return self.snapshot.quotas.user_of(pod)

    def used(self, name: str, resource: str, pods: Sequence[PodInfo]) -> int:
        known = self._known.get((name, resource, id(pods)))
        if known is None or known[0] is not pods:
            inside = {leaf for leaf in {self.leaf(pod) for pod in pods} if name in self.path(leaf)}
            total = sum(pod.requests.get(resource, 0) for pod in pods if self.leaf(pod) in inside)
            known = self._known[name, resource, id(pods)] = pods, total
        return known[1]

    def below(self, leaf: str, other: str) -> list[str]:
        theirs = set(self.path(other))
        return [name for name in self.path(leaf) if name not in theirs]

    def limits(self, gone: Sequence[PodInfo]) -> Mapping[str, Mapping[str, int]]:
        """quota-fairness.md 4: what quotas may hold where the total has what victims in no quota used."""
        freed: Counter[str] = Counter()
        if self.config.quota.no_quota_yields != "never":
            for pod in gone:
                freed.update(pod.requests if self.leaf(pod) not in self.quotas else {})
        key = tuple(sorted(freed.items()))
        if key not in self._limits:
            quotas = self.snapshot.quotas
            larger = replace(quotas, total={r: amount + freed[r] for r, amount in quotas.total.items()})
            self._limits[key] = limits(quota_amounts(larger, self.config.quota), larger, self.config.quota)
        return self._limits[key]

    # --- shares -------------------------------------------------------------------------------------------------------

    def parties(self, pod: PodInfo) -> list[str]:
        """Whose share a pod is held against, from the top down: its user, or the queues of its path."""
        if self.config.fairness.mode == "gpu-count":
            return [self.user(pod)]
        return self.path(self.leaf(pod)) or [f"user {self.user(pod)}"]

    def aside(self, pod: PodInfo, other: PodInfo) -> list[str]:
        """Its parties that are not the other's, from the top down."""
        theirs = self.parties(other)
        return [party for party in self.parties(pod) if party not in theirs]

    def shared(self, party: str) -> list[str]:
        """Resources that are shared out to a party."""
        if self.config.fairness.mode == "gpu-count":
            return [self.device]
        return sorted(self.quotas[party].max) if party in self.quotas else [self.device, "cpu"]

    def line(self, party: str, resource: str) -> tuple[Fraction, Fraction]:
        """(unrounded share, whole share)."""
        return self.shares.get((party, resource), (Fraction(0), Fraction(0)))

    def held(self, party: str, resource: str, pods: Sequence[PodInfo]) -> int:
        key = f"party {party}", resource, id(pods)
        known = self._known.get(key)
        if known is None or known[0] is not pods:
            total = sum(pod.requests.get(resource, 0) for pod in pods if party in self.parties(pod))
            known = self._known[key] = pods, total
        return known[1]

    def _shares(self, names: frozenset[str] | None = None) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
        """names: of the nodes that count, all where it is None."""
        mode, quotas = self.config.fairness.mode, self.snapshot.quotas
        if mode == "off":
            return {}
        if mode == "gpu-count":
            return {(user, self.device): (a, Fraction(b)) for user, (a, b) in self._users(names).items()}
        known = [pod for pod in self.snapshot.pods.values() if pod.bound or pod.pending]
        ages: dict[ShareQueue, float] = {}
        for pod in known:
            queue = quotas.queue_of(pod)
            ages[queue] = min(ages.get(queue, pod.created), pod.created)
        if names is not None:
            total, held, waiting = Counter[str](), dict[Owner, Counter[str]](), dict[Owner, Counter[str]]()
            for one in self.snapshot.nodes:
                total.update(one.allocatable if one.name in names else {})
            for pod in known:
                if self._counts(pod, names):
                    (held if pod.bound else waiting).setdefault(pod.owner, Counter()).update(pod.requests)
            quotas = replace(quotas, total=dict(total), usage=held, demand=waiting)
        found = queue_shares(quotas, self.config.fairness, queue_ages(quotas, ages))
        out = {}
        for queue, exact in found.exact.items():
            for resource, share in exact.items():
                name = queue.quota or f"user {queue.user}"
                out[name, resource] = Fraction(share), Fraction(found.whole[queue][resource])
        return out

    def _counts(self, pod: PodInfo, names: frozenset[str]) -> bool:
        """Whether a running pod is on one of some nodes, or a waiting one could be."""
        return pod.node in names if pod.bound else not names.isdisjoint(self._able(pod))

    def _able(self, pod: PodInfo) -> set[str]:
        """Names of the nodes that could take a pod if they were empty."""
        wanted = pod.pod.spec.node_selector.items()
        return {
            one.name
            for one in self.snapshot.nodes
            if wanted <= one.labels.items() and all(one.allocatable.get(r, 0) >= n for r, n in pod.requests.items())
        }

    def _users(self, names: frozenset[str] | None = None) -> dict[str, tuple[Fraction, int]]:
        """User -> (unrounded, whole) integer max-min of the cluster's GPUs, capped by demand."""
        demand: Counter[str] = Counter()
        age: dict[str, tuple[float, object]] = {}
        for pod in self.snapshot.pods.values():
            if pod.bound or pod.pending:
                user = self.user(pod)
                if names is None or self._counts(pod, names):
                    demand[user] += pod.requests.get(self.device, 0)
                age[user] = min(age.get(user, (pod.created, natural_key(user))), (pod.created, natural_key(user)))
        nodes = [one for one in self.snapshot.nodes if names is None or one.name in names]
        total = sum(one.allocatable.get(self.device, 0) for one in nodes)
        level, open_to = Fraction(0), dict(demand)
        left = Fraction(min(total, sum(demand.values())))
        exact: dict[str, Fraction] = {}
        while open_to:
            level = left / len(open_to)
            full = [user for user, asked in open_to.items() if asked <= level]
            if not full:
                exact.update(dict.fromkeys(open_to, level))
                break
            for user in full:
                exact[user] = Fraction(open_to.pop(user))
                left -= exact[user]
        whole = {user: share.numerator // share.denominator for user, share in exact.items()}
        odd = min(total, sum(demand.values())) - sum(whole.values())
        for user in sorted(exact, key=lambda user: (-(exact[user] - whole[user]), age[user]))[:odd]:
            whole[user] += 1
        return {user: (exact[user], whole[user]) for user in exact}

    # --- who may be asked ---------------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """Section 2."""
        out: list[Part] = []
        own = {gang.ref for gang in self.unit.gangs}
        seen = set[object]()
        for pod in self.running:
            if pod.gang is None:
                if not _protected(pod):
                    out.append(Part((pod,)))
                continue
            if pod.gang in seen:
                continue
            unit = self.groups.unit(pod.gang)
            seen |= {gang.ref for gang in unit.gangs}
            if own & {gang.ref for gang in unit.gangs}:
                continue
            bound = {gang.ref: list(gang.bound) for gang in unit.gangs}
            broken = [g for g in unit.gangs if bound[g.ref] and len(bound[g.ref]) + g.succeeded < g.min_member]
            whole = [g for g in unit.gangs if bound[g.ref] and g not in broken]
            for gang in broken:
                if not any(map(_protected, bound[gang.ref])):
                    out += [Part(tuple(bound[gang.ref]), 0, unit.group_id, gang.key, most=1, rest=True)]
            for gang in whole:
                most = len(bound[gang.ref]) - max(0, gang.min_member)
                if most > 0:
                    free = [one for one in bound[gang.ref] if not _protected(one)]
                    out += [Part((one,), 0, unit.group_id, gang.key, most) for one in free]
            everyone = tuple(p for gang in unit.gangs for p in bound[gang.ref])
            if any(g.min_member > 0 for g in whole) and not any(map(_protected, everyone)):
                out.append(Part(everyone, 1, unit.group_id, core=True))
        return out

    def _may(self, rule: str, part: Part, pods: Sequence[PodInfo]) -> bool:
        """What a rule asks of a unit by itself."""
        foreign = any(pod.pod.spec.scheduler_name not in self.snapshot.scheduler_names for pod in part.pods)
        leaf = self.leaf(pods[0])
        if rule == "priority":
            if not self.config.preemption.enabled or any(p.pod.spec.preemption_policy == "Never" for p in pods):
                return False
            if self.config.preemption.across_quotas == "never" and any(
                self.leaf(pod) != leaf and self.leaf(pod) in self.quotas for pod in part.pods
            ):
                return False
            return part.priority < min(pod.priority for pod in pods)
        if foreign or self.config.fairness.reclaim == "off":
            return False
        if rule == "quota":
            if self.config.preemption.across_quotas == "any" or leaf not in self.quotas:
                return False
            if not any(pod.requests.get(r) for pod in pods for r in self.quotas[leaf].max):
                return False
            tops = {*self.quotas, *((keys.DEFAULT_QUOTA,) if self.config.quota.no_quota_yields == "always" else ())}
            outside = [pod for pod in self.running if self.leaf(pod) == keys.DEFAULT_QUOTA]
            used = any(pod.requests.get(r) for r in self._requested(pods) for pod in outside)
            if not used and any(pod in outside for pod in part.pods):
                return False
            return all(self.leaf(pod) in tops and self.leaf(pod) != leaf for pod in part.pods)
        if self.config.fairness.reclaim != "all" or self.config.fairness.mode == "off":
            return False
        mine = [r for r in self.shared(self.parties(pods[0])[-1]) if any(pod.requests.get(r) for pod in pods)]
        others = all(self.parties(pod)[-1] != self.parties(pods[0])[-1] for pod in part.pods)
        return others and any(pod.requests.get(r) for pod in part.pods for r in self._asked(pods)) and bool(mine)

    def _requested(self, pods: Sequence[PodInfo]) -> set[str]:
        return {r for pod in pods for r, amount in pod.requests.items() if amount}

    def _asked(self, pods: Sequence[PodInfo]) -> list[str]:
        """Resources that a beneficiary requests, of those that are shared out at all."""
        known = [self.device] if self.config.fairness.mode == "gpu-count" else [self.device, "cpu"]
        return [r for r in known if any(pod.requests.get(r) for pod in pods)]

    # --- the rules ----------------------------------------------------------------------------------------------------

    def lawful(self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo]) -> bool:
        """Whether units (position -> rule) may go together for some members."""
        chosen = [parts[i] for i in taken]
        gone = [pod for part in chosen for pod in part.pods]
        if len({pod.key for pod in gone}) < len(gone):
            return False
        lent = Counter(part.gang for part in chosen if part.gang)
        if any(part.gang and lent[part.gang] > part.most for part in chosen):
            return False
        left = {pod.key for pod in gone}
        stay = [pod for pod in self.running if pod.key not in left]
        after = [*stay, *pods]
        return (
            self._admitted(after, pods, self.limits(gone))
            and (min(pod.priority for pod in pods) >= 2_000_000_000 or self._limited(taken, parts, pods))
            and self._priority(taken, parts, pods, after)
            and self._quota(taken, parts, pods, after)
            and self._share(taken, parts, pods, after)
            and self._budgets(taken, parts, gone)
        )

    def _limited(self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo]) -> bool:
        """preemption.md 3.7."""
        return self._spared(taken, parts, pods) and self._harm(taken, parts, pods)

    def _spared(self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo]) -> bool:
        """preemption.md 3.7: members above minMember break no gang but by quota."""
        broken = [i for i, rule in taken.items() if rule != "quota" and (parts[i].core or parts[i].rest)]
        if not broken or self.config.preemption.surplus_victims == "any":
            return True
        for gang in self.unit.gangs:
            lacks = gang.min_member - len(gang.bound) - gang.succeeded
            if gang.min_member > 0 and sum(pod.gang == gang.ref for pod in pods) > max(0, lacks):
                return False
        return True

    def _harm(self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo]) -> bool:
        """preemption.md 3.7."""
        limits = self.config.protection.max_harm
        for rule, factor in (
            ("priority", limits.priority),
            ("quota", limits.quota),
            ("fair-share", limits.fair_share),
            ("consolidation", limits.consolidation),
        ):
            gone = [pod for i, own in taken.items() if own == rule for pod in parts[i].pods]
            if factor is None or not gone:
                continue
            sides = [sum(pod.requests.get(self.device, 0) for pod in some) for some in (gone, pods)]
            if not sides[1]:
                if sides[0]:
                    return False
                sides = [sum(pod.requests.get("cpu", 0) for pod in some) for some in (gone, pods)]
            if not sides[1]:
                sides = [len(gone), len(pods)]
            if sides[0] > Fraction(str(factor)) * sides[1]:
                return False
        return True

    def _admitted(
        self, after: Sequence[PodInfo], pods: Sequence[PodInfo], limits: Mapping[str, Mapping[str, int]]
    ) -> bool:
        for name in {name for pod in pods for name in self.path(self.leaf(pod))}:
            inside = [pod for pod in pods if name in self.path(self.leaf(pod))]
            for resource in self.quotas[name].max:
                asked = [pod for pod in inside if pod.requests.get(resource)]
                if asked and self.used(name, resource, after) > limits[name].get(resource, 0):
                    return False
                if any(map(_protected, asked)):
                    held = self.used(name, resource, [pod for pod in after if _protected(pod)])
                    if held > self.quotas[name].least(resource):
                        return False
        return True

    def _priority(
        self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo], after: Sequence[PodInfo]
    ) -> bool:
        """3.1."""
        own = [parts[i] for i, rule in taken.items() if rule == "priority"]
        leaf = self.leaf(pods[0])
        for pod in (pod for part in own for pod in part.pods):
            for name in self.below(self.leaf(pod), leaf):
                for resource in self.quotas[name].max:
                    before, least = self.used(name, resource, self.running), self.quotas[name].least(resource)
                    guarded = self.config.preemption.across_quotas == "overMin"
                    if guarded and self.used(name, resource, after) < min(before, least):
                        return False
            if self.config.fairness.reclaim == "all" and self.config.fairness.mode != "off":
                for party in self.aside(pod, pods[0]):
                    for resource in self.shared(party):
                        before, share = self.held(party, resource, self.running), self.line(party, resource)[1]
                        line = min(Fraction(before), share)
                        if pod.requests.get(resource) and self.held(party, resource, after) < line:
                            return False
        return self._across_users(own, pods, after)

    def _across_users(self, own: Sequence[Part], pods: Sequence[PodInfo], after: Sequence[PodInfo]) -> bool:
        """3.1, priority between users."""
        across = self.config.preemption.across_users
        asked = [pod for part in own for pod in part.pods if across != "any" and self.asks(pod, pods, after)]
        if not asked or (across == "overShare" and self.config.fairness.reclaim == "all"):
            return True
        return across != "never" and all(
            self._keeps_share(tenant, own, pods, after) or self._passes_on(tenant, own, pods, after)
            for tenant in {self.parties(pod)[-1] for pod in asked}
        )

    def asks(self, pod: PodInfo, pods: Sequence[PodInfo], after: Sequence[PodInfo]) -> bool:
        """Whether priority between users asks for a pod's tenant."""
        first = pods[0]
        if self.config.fairness.mode == "off" or min(one.priority for one in pods) >= 2_000_000_000:
            return False
        if self.parties(pod)[-1] == self.parties(first)[-1] or (self._is_quota(pod) and self._is_quota(first)):
            return False
        return bool(self._wanted(pods)) and not self._guaranteed(pod, pods, after)

    def _is_quota(self, pod: PodInfo) -> bool:
        labelled = self.config.fairness.mode == "gpu-count" and keys.QUOTA_USER in pod.pod.metadata.labels
        return self.leaf(pod) in self.quotas and not labelled

    def _wanted(self, pods: Sequence[PodInfo]) -> list[str]:
        return [r for r in self._asked(pods) if r in self.shared(self.parties(pods[0])[-1])]

    def _guaranteed(self, pod: PodInfo, pods: Sequence[PodInfo], after: Sequence[PodInfo]) -> bool:
        """Whether the gate of 3.2 is open against a pod."""
        leaf = self.leaf(pods[0])
        mine = self.below(leaf, self.leaf(pod))
        asked = {resource for one in pods for resource, amount in one.requests.items() if amount}
        if not mine or not asked & set(self.quotas[leaf].max):
            return False
        return all(
            self.used(name, r, after) <= self.quotas[name].least(r)
            for name in mine
            for r in asked & set(self.quotas[name].max)
        )

    def _usable(self, pods: Sequence[PodInfo]) -> frozenset[str]:
        return frozenset(name for pod in pods for name in self._able(pod))

    def user_line(self, party: str, resource: str, pods: Sequence[PodInfo]) -> tuple[Fraction, Fraction]:
        """(unrounded share, whole share) on the nodes that could take a member."""
        names = self._usable(pods)
        if self.config.fairness.mode == "gpu-count" and all(
            one.name in names or not one.allocatable.get(self.device) for one in self.snapshot.nodes
        ):
            return self.line(party, resource)
        if names not in self._on_nodes:
            self._on_nodes[names] = self._shares(names)
        return self._on_nodes[names].get((party, resource), (Fraction(0), Fraction(0)))

    def on_usable(self, party: str, resource: str, some: Sequence[PodInfo], pods: Sequence[PodInfo]) -> int:
        """What some pods hold on these nodes; members are to be there."""
        names = self._usable(pods)
        return sum(
            pod.requests.get(resource, 0)
            for pod in some
            if party == self.parties(pod)[-1] and (not pod.bound or pod.node in names)
        )

    def _keeps_share(self, tenant: str, own: Sequence[Part], pods: Sequence[PodInfo], after: Sequence[PodInfo]) -> bool:
        """(a)"""
        for resource in self.shared(tenant):
            if not self.on_usable(tenant, resource, [pod for part in own for pod in part.pods], pods):
                continue
            before = self.on_usable(tenant, resource, self.running, pods)
            line = min(Fraction(before), self.user_line(tenant, resource, pods)[1])
            if self.on_usable(tenant, resource, after, pods) < line:
                return False
        return True

    def _passes_on(self, tenant: str, own: Sequence[Part], pods: Sequence[PodInfo], after: Sequence[PodInfo]) -> bool:
        """(b)"""
        mine = self.parties(pods[0])[-1]
        for resource in set(self._wanted(pods)) & set(self.shared(tenant)):
            (exact, whole), use = (
                self.user_line(tenant, resource, pods),
                self.on_usable(tenant, resource, self.running, pods),
            )
            gain = self.on_usable(mine, resource, after, pods) - self.user_line(mine, resource, pods)[0]
            above, left = gain <= use - exact, use
            for size in sorted(self.on_usable(tenant, resource, part.pods, pods) for part in own):
                above &= left > whole
                left -= size
            if above:
                return True
        return False

    def _quota(
        self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo], after: Sequence[PodInfo]
    ) -> bool:
        """3.2: the gate, and "use > min before each unit is taken" in every order."""
        own = [parts[i] for i, rule in taken.items() if rule == "quota"]
        leaf = self.leaf(pods[0])
        asked = {resource for pod in pods for resource, amount in pod.requests.items() if amount}
        touched: set[str] = set()
        for pod in (pod for part in own for pod in part.pods):
            for name in self.below(leaf, self.leaf(pod)):
                for resource in asked & set(self.quotas[name].max):
                    if self.used(name, resource, after) > self.quotas[name].least(resource):
                        return False
            touched |= set(self.below(self.leaf(pod), leaf))
        for name in touched:
            if not any(self._lasts(own, name, resource) for resource in asked & set(self.quotas[name].max)):
                return False
        return True

    def _lasts(self, own: Sequence[Part], name: str, resource: str) -> bool:
        """Whether a quota is above its min before each unit, the largest taken last."""
        sizes = sorted(self.used(name, resource, part.pods) for part in own if self._inside(part, name))
        use = self.used(name, resource, self.running)
        for size in sizes:
            if use <= self.quotas[name].least(resource):
                return False
            use -= size
        return True

    def _inside(self, part: Part, name: str) -> bool:
        return any(name in self.path(self.leaf(pod)) for pod in part.pods)

    def _share(
        self, taken: Mapping[int, str], parts: Sequence[Part], pods: Sequence[PodInfo], after: Sequence[PodInfo]
    ) -> bool:
        """3.3."""
        own = [parts[i] for i, rule in taken.items() if rule == "fair-share"]
        for pod in (pod for part in own for pod in part.pods):
            for party in self.aside(pods[0], pod):
                for resource in set(self._asked(pods)) & set(self.shared(party)):
                    if self.held(party, resource, after) > self.line(party, resource)[1]:
                        return False
            for name in self.below(self.leaf(pod), self.leaf(pods[0])):
                for resource in self.quotas[name].max:
                    before, least = self.used(name, resource, self.running), self.quotas[name].least(resource)
                    if self.used(name, resource, after) < min(before, least):
                        return False
            if not self._no_flip(pods, pod):
                return False
        for party in {party for part in own for pod in part.pods for party in self.aside(pod, pods[0])}:
            asked = set(self._asked(pods)) & set(self.shared(party))
            if not any(self._lasts_share(own, party, resource) for resource in asked):
                return False
        return True

    def _lasts_share(self, own: Sequence[Part], party: str, resource: str) -> bool:
        inside = [part for part in own if any(party in self.parties(pod) for pod in part.pods)]
        use = self.held(party, resource, self.running)
        for size in sorted(self.held(party, resource, part.pods) for part in inside):
            if use <= self.line(party, resource)[1]:
                return False
            use -= size
        return True

    def _no_flip(self, pods: Sequence[PodInfo], victim: PodInfo) -> bool:
        """Of the leaves and of the two children of the LCA."""
        mine, theirs = self.aside(pods[0], victim), self.aside(victim, pods[0])
        for own, other in {(mine[-1], theirs[-1]), (mine[0], theirs[0])} if mine and theirs else ():
            worse = False
            for resource in set(self._asked(pods)) & set(self.shared(own)) & set(self.shared(other)):
                before = self.held(other, resource, self.running)
                gain = self.held(own, resource, [*self.running, *pods]) - self.line(own, resource)[0]
                over = before > self.line(other, resource)[1]
                worse |= over and gain < before - self.line(other, resource)[0]
            if not worse:
                return False
        return True

    def _budgets(self, taken: Mapping[int, str], parts: Sequence[Part], gone: Sequence[PodInfo]) -> bool:
        """PDBs forbid for what reclaim carries."""
        reclaimed = [pod for i, rule in taken.items() if rule != "priority" for pod in parts[i].pods]
        return self.spares_budgets(reclaimed, gone)

    def spares_budgets(self, strict: Sequence[PodInfo], gone: Sequence[PodInfo]) -> bool:
        """Whether no budget that covers some of the pods that it forbids for is exceeded."""
        for budget in self.snapshot.budgets:
            allowed = budget.status.disruptions_allowed or 0
            if any(covers(budget, p.pod) for p in strict) and sum(covers(budget, p.pod) for p in gone) > allowed:
                return False
        return True

    def of(self, evictions: Sequence[Eviction], parts: Sequence[Part]) -> dict[int, str]:
        """Which parts go under which rule, of the evictions of a plan. Fails where they are not whole."""
        rules = {one.pod_key: str(one.rule) for one in evictions}
        out: dict[int, str] = {}
        left = dict(rules)
        for i in sorted(range(len(parts)), key=lambda i: -len(parts[i].pods)):
            own = {pod.key for pod in parts[i].pods}
            if own <= set(left):
                [out[i]] = {left.pop(key) for key in own}
        assert not left, f"evicted beside any unit: {sorted(left)}"
        return out

    # --- what it costs ------------------------------------------------------------------------------------------------

    def cost(self, taken: Mapping[int, str], parts: Sequence[Part]) -> tuple[int, ...]:
        """Levels 1 to 6."""
        chosen = [parts[i] for i in taken]
        gone = [pod for part in chosen for pod in part.pods]
        over = sum(
            max(0, sum(covers(budget, pod.pod) for pod in gone) - (budget.status.disruptions_allowed or 0))
            for budget in self.snapshot.budgets
        )
        short = 0
        reclaimed = [pod for i, rule in taken.items() if rule != "priority" for pod in parts[i].pods]
        for leaf in {self.leaf(pod) for pod in reclaimed} & set(self.quotas):
            if self.device in self.quotas[leaf].max:
                use = self.used(leaf, self.device, self.running)
                line = min(use, self.quotas[leaf].least(self.device))
                short += max(0, line - (use - self.used(leaf, self.device, reclaimed)))
        return (
            over,
            max((part.priority for part in chosen), default=-(1 << 40)),
            sum(part.breaks for part in chosen),
            sum(pod.requests.get(self.device, 0) for pod in gone),
            len(gone),
            short,
        )

    def place(self, gone: Sequence[PodInfo], ranks: Sequence[int]) -> tuple[object, ...] | None:
        """Goals 1 to 4 of the best placement once some pods are gone; None where there is none."""
        mark = self.draft.mark()
        for pod in gone:
            self.draft.evict(pod)
        own = place_members(self.unit, [self.unit.members[rank].key for rank in ranks], self.round_state)
        if own is not None:
            self.draft.undo(mark)
            return () if len(own.nodes) == len(ranks) else None
        relieved = self.round_state.of_view(AFTER_TERMINATION)
        room = only_ranks(build(self.unit, relieved), set(ranks))
        found = place_unit(self.unit, room, relieved, Question.TRIAL)
        seats = {self.unit.members[rank].key: node for rank, node in found.nodes.items()}
        given = allocate(seats, self.round_state) if len(seats) == len(ranks) else None
        self.draft.undo(mark)
        if given is None or given.faults:
            return None
        if not room.gather:
            return ()
        worth = Goals(room)
        return tuple(g(found.nodes) for g in (worth.layers, worth.attraction, worth.pipeline, worth.domains))

    # --- the answer ---------------------------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Section 1, without steps 2 and 3."""
        pending = [rank for rank, pod in enumerate(self.unit.members) if pod.pending]
        if self._plain(pending):
            return Verdict(True)
        parts = self.parts()
        core = self._core(pending)
        for ranks in [pending, *([core] if core != pending else [])]:
            pods = [self.unit.members[rank] for rank in ranks]
            for step in (("quota",), ("priority",), ("fair-share",), ("quota", "priority", "fair-share")):
                found = self._best(step, parts, pods, ranks)
                if found is not None:
                    return Verdict(True, found, step)
        return Verdict(False)

    def may_move(self, ranks: Sequence[int]) -> bool:
        """Step 5b: whether priority between users was asked for members, and neither a guarantee nor priority gives
        them room."""
        pods, parts = [self.unit.members[rank] for rank in ranks], self.parts()
        if self.config.preemption.across_users != "overShare":
            return False
        less = [part for part in parts if self._may("priority", part, pods)]
        if not any(self.asks(pod, pods, [*self.running, *pods]) for part in less for pod in part.pods):
            return False
        return (
            self._best(("quota",), parts, pods, ranks) is None and self._best(("priority",), parts, pods, ranks) is None
        )

    def _plain(self, pending: Sequence[int]) -> bool:
        members = self.unit.members
        problem = build(self.unit, self.round_state)
        if self.round_state.admission.core_refusal(self.unit, self.draft.quotas) is not None:
            return False
        if self.round_state.admission.refusal(self.unit, self.draft.quotas) is not None:
            return False
        found = place_unit(self.unit, problem, self.round_state, Question.TRIAL)
        return bool(found.nodes) and bool(members) and bool(pending)

    def _core(self, pending: Sequence[int]) -> list[int]:
        if self.unit.plain is not None:
            return list(pending)
        out: list[int] = []
        for gang in self.unit.gangs:
            own = [rank for rank in pending if self.unit.members[rank].gang == gang.ref]
            out += own[: self.unit.need(gang)]
        return sorted(out) or list(pending[:1])

    def _best(
        self, step: Sequence[str], parts: Sequence[Part], pods: Sequence[PodInfo], ranks: Sequence[int]
    ) -> tuple[str, ...] | None:
        ways = [[None, *(rule for rule in step if self._may(rule, part, pods))] for part in parts]
        order = sorted(range(len(parts)), key=lambda i: parts[i].standing)
        best: tuple[tuple[object, ...], tuple[str, ...]] | None = None
        known: dict[frozenset[str], tuple[object, ...] | None] = {}
        for taken in _assignments(ways):
            if not self.lawful(taken, parts, pods):
                continue
            early = self.cost(taken, parts)
            if best is not None and early > best[0][: len(early)]:
                continue
            gone = [pod for i in taken for pod in parts[i].pods]
            which = frozenset(pod.key for pod in gone)
            if which not in known:
                known[which] = self.place(gone, ranks)
            goals = known[which]
            if goals is None:
                continue
            spared = tuple(int(i in taken) for i in order)
            cost = (*early, goals, sum(pod.priority for pod in gone), spared)
            if best is None or cost < best[0]:
                best = cost, tuple(sorted(pod.name for pod in gone))
        return best[1] if best is not None else None


def _assignments(ways: Sequence[Sequence[str | None]]) -> Iterator[dict[int, str]]:
    for rules in product(*ways):
        yield {i: rule for i, rule in enumerate(rules) if rule is not None}


def _protected(pod: PodInfo) -> bool:
    return pod.pod.metadata.labels.get(keys.QUOTA_PREEMPTIBLE) == "false"


def covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether a budget counts the eviction of a pod."""
    same = budget.metadata.namespace == pod.metadata.namespace
    return same and selector_matches(budget.spec.selector, pod.metadata.labels)
