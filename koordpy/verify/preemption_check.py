"""The independent check of the victims of a plan: who may go at all, whole units, every rule, and nobody in vain.

Sources: preemption.md 2 to 5, quota-fairness.md 5. Pod by pod over the objects; what is used, deserved
and promised is read as the round has it, all that follows from it is reckoned here and shares nothing with the search.
Where the members stand is checked by `verify.plan`, on a draft without the victims. A plan that fails is a bug.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import ShareQueue
from koordpy.cluster.snapshot import Ints
from koordpy.planning.accelerators.registry import give
from koordpy.planning.figures import Figures
from koordpy.planning.limits import REFITTED_UNITS
from koordpy.planning.nominated import Reserved
from koordpy.planning.units import Unit
from koordpy.planning.verify.fault import Check, PlanFault
from koordpy.planning.verify.gpus import takes_promised
from koordpy.planning.verify.leaving import MOVE, PRIORITY, QUOTA, SHARE, Leaving, Round, Taken
from koordpy.planning.verify.plan import check_filters, check_gathered, check_plan, check_returns, found, path_of
from koordpy.planning.victim_selection.lines import Lines

Sums = Mapping[str, Counter[str]]


def check_victims(
    unit: Unit, taken: Sequence[Taken], nodes: Mapping[str, int], back: Mapping[str, int], at: Round
) -> list[PlanFault]:
    """Faults of evicting units for members of a unit, on the draft as it was before. nodes: pod key -> node position
    of each member placed; back: the same of pods that are moved."""
    plan = _Plan(unit, nodes, back, at)
    faults = [*found(Check.VICTIMS, plan.who(taken)), *found(Check.UNITS, plan.whole(taken))]
    if faults:
        return faults  # sums over what is not there mean nothing
    return plan.lawful(taken) or found(Check.VAIN, plan.in_vain(taken))


def check_moves(unit: Unit, moved: Mapping[str, str], figures: Figures) -> list[PlanFault]:
    """Faults of where the members of a gang stand once some have moved (pod key -> node name): no further apart than
    before, and as the gang asks. A gang of which those alone count that wait has to come back with its minimum."""
    snapshot = figures.snapshot

    def together(nodes: Mapping[str, str]) -> int:
        """Layers, from the top, of which one domain holds all."""
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
    return found(Check.RETURNS, [*apart, *few, *check_gathered(unit, moved, figures)])


class _Plan(Leaving):
    """One plan on the draft as it was before it."""

    def __init__(self, unit: Unit, nodes: Mapping[str, int], back: Mapping[str, int], at: Round) -> None:
        super().__init__(at, back)
        self.unit, self.nodes = unit, nodes
        self.placed = [self.snapshot.pods[key] for key in nodes]
        self.use = at.figures.promises.use(unit, self.draft.quotas, netted=True)
        self.requested = {r for pod in self.placed for r, amount in pod.requests.items() if amount > 0}
        self.leaf = self.quotas.quota_of(self.placed[0]) if self.placed else ""
        self.added = self._sums(self.placed)

    # --- section 2 ----------------------------------------------------------------------------------------------------

    def who(self, taken: Sequence[Taken]) -> list[str]:
        """Who may go at all."""
        faults = [*([] if self.nodes else ["somebody is evicted for nobody"]), *self.may_go(taken)]
        own = {gang.ref for gang in self.unit.gangs}
        for pod, rule in ((pod, one.rule) for one in taken for pod in one.pods):
            if pod.gang is not None and pod.gang in own:
                faults.append(f"{pod.key} is a member of the gang that it is evicted for")
            if (rule == MOVE) != (pod.key in self.back):
                faults.append(
                    f"{pod.key} goes by {rule} and {'comes' if pod.key in self.back else 'does not come'} back"
                )
        if any(one.rule == MOVE for one in taken) and not all(one.rule == MOVE for one in taken):
            faults.append("some are moved and some are evicted")
        return faults

    # --- sums ---------------------------------------------------------------------------------------------------------

    def _sums(self, pods: Iterable[PodInfo]) -> dict[str, Counter[str]]:
        """Quota -> what the pods in it and below it ask."""
        out: dict[str, Counter[str]] = {}
        for pod in pods:
            for name in self.tree.path(self.quotas.quota_of(pod)):
                out.setdefault(name, Counter()).update(pod.requests)
        return out

    def _beside(self, path: Sequence[str], other: Sequence[str]) -> list[str]:
        theirs = set(other)
        return [name for name in path if name not in theirs]

    def _theirs(self, pod: PodInfo) -> list[str]:
        """Quotas of a victim below the LCA."""
        return self._beside(self.tree.path(self.quotas.quota_of(pod)), self.tree.path(self.leaf))

    def _ours(self, pod: PodInfo) -> list[str]:
        """Quotas of the beneficiary below the LCA with a victim."""
        return self._beside(self.tree.path(self.leaf), self.tree.path(self.quotas.quota_of(pod)))

    def _counted(self, name: str) -> list[str]:
        return sorted(self.requested & set(self.tree.quotas[name].max))

    # --- section 3 ----------------------------------------------------------------------------------------------------

    def lawful(self, taken: Sequence[Taken]) -> list[PlanFault]:
        """What the rules ask of all that goes together."""
        gone = [pod for one in taken for pod in one.pods if pod.key not in self.back]
        lost = self._sums(gone)
        by = {rule: [one for one in taken if one.rule == rule] for rule in (PRIORITY, QUOTA, SHARE, MOVE)}
        return [
            *found(Check.QUOTAS, self._admitted(lost)),
            *found(Check.PRIORITY, self._by_priority(by[PRIORITY], lost, gone)),
            *found(Check.RECLAIM, self._by_quota(by[QUOTA], lost)),
            *found(Check.SHARES, self._by_share(by[SHARE], lost, gone)),
            *found(Check.CONSOLIDATION, self._moved(by[MOVE])),
            *found(Check.BUDGETS, self.budgets(taken)),
        ]

    def _admitted(self, lost: Sums) -> list[str]:
        """No quota ends above its limit, nominated pods included."""
        limits = self.figures.admission.open_limits()
        faults = []
        for name, asked in self.added.items():
            for resource, most in limits[name].items():
                after = self.use.used(name, resource) - _of(lost, name, resource) + asked[resource]
                if asked[resource] and after > most:
                    faults.append(f"quota {name} would use {after} of {most} {resource}")
        return faults

    def _guarded(self, names: Iterable[str], lost: Sums) -> list[str]:
        """used_after >= min(used_before, min) in every counted resource."""
        faults = []
        for name in dict.fromkeys(names):
            for resource in self.tree.quotas[name].max:
                before, less = self.use.used(name, resource), _of(lost, name, resource)
                line, after = min(before, self.tree.quotas[name].least(resource)), before - less
                after += _of(self.added, name, resource)
                if less and after < line:
                    faults.append(f"quota {name} would keep {after} of {line} {resource}")
        return faults

    def _by_priority(self, taken: Sequence[Taken], lost: Sums, gone: Sequence[PodInfo]) -> list[str]:
        if not taken:
            return []
        faults = []
        least = min(pod.priority for pod in self.placed)
        if not self.config.preemption.enabled:
            faults.append("preemption is off")
        if any(pod.pod.spec.preemption_policy == "Never" for pod in self.placed):
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
                f"{p.key} is of another quota" for p in own if quota_of(p) in quotas and quota_of(p) != self.leaf
            ]
        elif across == "overMin":
            faults += self._guarded((name for pod in own for name in self._theirs(pod)), lost)
        return faults + self._share_floors(own, gone)

    def _by_quota(self, taken: Sequence[Taken], lost: Sums) -> list[str]:
        if not taken:
            return []
        quotas = self.tree.quotas
        if self.config.fairness.reclaim == "off" or self.config.preemption.across_quotas == "any":
            return ["reclaim by quota is off"]
        if self.leaf not in quotas or not self._counted(self.leaf):
            return ["the beneficiary has no guarantee to take back"]
        faults = []
        own = [pod for one in taken for pod in one.pods]
        others = quotas.keys() - {self.leaf}
        faults += [f"{pod.key} is of no other quota" for pod in own if self.quotas.quota_of(pod) not in others]
        for name in dict.fromkeys(name for pod in own for name in self._ours(pod)):
            for resource in self._counted(name):
                after = self.use.used(name, resource) - _of(lost, name, resource)
                after += self.added[name][resource]
                if after > quotas[name].least(resource):
                    faults.append(f"quota {name} would use {after} of min {quotas[name].least(resource)} {resource}")
        for name in dict.fromkeys(name for pod in own for name in self._theirs(pod)):
            parts = [self._sums(one.pods).get(name) for one in taken]
            if not any(
                _crosses_once([part[r] for part in parts if part], self.use.used(name, r) - quotas[name].least(r))
                for r in self._counted(name)
            ):
                faults.append(f"quota {name} would lose more than one unit beyond its min")
        gained = [pod for pod in own if self._unit_of(pod) in self._gainers]
        return faults + self._guarded((name for pod in gained for name in self._theirs(pod)), lost)

    # --- shares -------------------------------------------------------------------------------------------------------

    def _held(self, pods: Iterable[PodInfo], lines: Lines) -> dict[ShareQueue, Counter[str]]:
        out: dict[ShareQueue, Counter[str]] = {}
        for pod in pods:
            for party in lines.path(pod):
                out.setdefault(party, Counter()).update(lines.amounts(pod.requests))
        return out

    def _aside(self, pod: PodInfo, other: PodInfo, lines: Lines) -> list[ShareQueue]:
        """The parties of a pod that are not the other's, from the top down."""
        theirs = set(lines.path(other))
        return [party for party in lines.path(pod) if party not in theirs]

    def _share_floors(self, own: Sequence[PodInfo], gone: Sequence[PodInfo]) -> list[str]:
        """3.1: with fair share reclaimed, priority leaves another party min(used_before, share)."""
        lines = self.at.lines
        if lines is None:
            return []
        lost = self._held(gone, lines)
        touched: dict[ShareQueue, set[str]] = {}
        for pod in own:
            for party in self._aside(pod, self.placed[0], lines):
                touched.setdefault(party, set()).update(r for r, n in lines.amounts(pod.requests).items() if n)
        faults = []
        for party, resources in touched.items():
            for resource in sorted(resources):
                before = lines.use(self.use, party, resource)
                after = before - lost[party][resource]
                if lines.counted(party, resource) and after < before and after < lines.share(party, resource):
                    faults.append(f"{party.quota or party.user} would keep {after} {resource}, less than its share")
        return faults

    def _by_share(self, taken: Sequence[Taken], lost: Sums, gone: Sequence[PodInfo]) -> list[str]:
        lines = self.at.lines
        if not taken:
            return []
        if lines is None:
            return ["reclaim by fair share is off"]
        first, own = self.placed[0], [pod for one in taken for pod in one.pods]
        asked: Counter[str] = Counter()
        for pod in self.placed:
            asked.update(lines.amounts(pod.requests))
        wanted = sorted(r for r, amount in asked.items() if amount > 0)
        faults = self._guarded((name for pod in own for name in self._theirs(pod)), lost)
        less = self._held(gone, lines)
        losers: dict[ShareQueue, None] = {}
        for path in dict.fromkeys(lines.path(pod) for pod in own):
            pod = next(pod for pod in own if lines.path(pod) == path)
            mine, theirs = self._aside(first, pod, lines), self._aside(pod, first, lines)
            if not mine or not theirs:
                faults.append(f"{pod.key} is of the same party")
                continue
            losers.update(dict.fromkeys(theirs))
            for party in mine:
                for r in wanted:
                    after = lines.use(self.use, party, r) + asked[r] - less.get(party, Counter())[r]
                    if lines.counted(party, r) and after > lines.share(party, r):
                        faults.append(f"{party.quota or party.user} would use {after} {r}, more than its share")
            for ours, other in dict.fromkeys(((mine[-1], theirs[-1]), (mine[0], theirs[0]))):
                if not any(
                    lines.counted(ours, r) and lines.counted(other, r)
                    and (use := lines.use(self.use, other, r)) > lines.share(other, r)
                    and lines.use(self.use, ours, r) + asked[r] - lines.exact(ours, r) < use - lines.exact(other, r)
                    for r in wanted
                ):  # fmt: skip
                    faults.append(f"{other.quota or other.user} would be as far below its share as it was above")
        for unit in sorted({self._unit_of(pod) for pod in own} & self._gainers):
            faults.append(f"{self.unit.id} takes back from {unit} what it was evicted for")
        for one in taken:
            if not any(lines.amounts(pod.requests).get(r) for pod in one.pods for r in wanted):
                faults.append(f"{one.pods[0].key} holds nothing that is asked for")
        for party in losers:
            inside = [held[party] for one in taken if party in (held := self._held(one.pods, lines))]
            if not any(
                lines.counted(party, r)
                and _crosses_once([n[r] for n in inside], lines.use(self.use, party, r) - lines.share(party, r))
                for r in wanted
            ):
                faults.append(f"{party.quota or party.user} would lose more than one unit beyond its share")
        return faults

    def _unit_of(self, pod: PodInfo) -> str:
        return self.figures.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    @cached_property
    def _gainers(self) -> set[str]:
        """Units that the beneficiary went for lately, or one of those that it went for."""
        out, newest = set[str](), {self.unit.id}
        while newest:
            newest = {one for unit in newest for one in self.snapshot.yielded.get(unit, ())} - out
            out |= newest
        return out

    def _moved(self, taken: Sequence[Taken]) -> list[str]:
        if not taken:
            return []
        least = min(pod.priority for pod in self.placed)
        faults = [] if self.config.consolidation.enabled else ["consolidation is off"]
        for one in taken:
            faults += [
                f"{pod.key} has priority {pod.priority}, above {least}" for pod in one.pods if pod.priority > least
            ]
        return faults

    # --- nobody in vain -----------------------------------------------------------------------------------------------

    def in_vain(self, taken: Sequence[Taken]) -> list[str]:
        """Units that could stay: with one of them back, each by itself, the members stand where they are, or those who
        stand in its place go elsewhere, and pods that are moved return where they do. Where members have volumes or
        resource claims it is not asked of units that have some, too, nor are such members sent elsewhere: where claims
        could be otherwise is not checked here."""
        index = self.snapshot.index
        claiming = {pod.key for pod in self.placed if _claims(pod)}
        room, faults, tries = _CheckedRoom(self, taken), [], 0
        for one in taken:
            if not room.may_stay(one) or not all(pod.node in index for pod in one.pods):
                continue
            if claiming and any(_claims(pod) for pod in one.pods):
                continue
            seats = room.without(one)
            if seats is None or not claiming.isdisjoint(seats):
                continue
            rest = [other for other in taken if other is not one]
            tries += 1
            if tries > REFITTED_UNITS:
                break
            if self.whole(rest) or self.lawful(rest):
                continue
            if not self._refused(rest, {**self.nodes, **seats}):
                faults.append(f"{one.pods[0].key} is {'moved' if self.back else 'evicted'} in vain")
        return faults

    @cached_property
    def promised(self) -> Reserved | None:
        """What nominated pods keep from the unit, the least important of those that wait."""
        return self.figures.reserved(min(self.unit.pending, key=lambda pod: pod.priority)) if self.placed else None

    def _refused(self, taken: Sequence[Taken], nodes: Mapping[str, int]) -> bool:
        """Whether a filter, a quota or its devices refuse places with some units gone, or moved."""
        draft, names = self.draft, self.snapshot.nodes
        mark = draft.mark()
        moved = [pod for one in taken for pod in one.pods]
        for pod in moved:
            draft.evict(pod)
        given = give(nodes, self.figures)
        at = {key: names[node].name for key, node in nodes.items()}
        refused = bool(given.faults or check_plan(self.unit, at, self.figures, given.chips, given.notes, whole=True))
        if self.promised is not None and not refused:
            columns = self.snapshot.columns
            kept = {int(node): self.promised.requests(i, columns) for i, node in enumerate(self.promised.at)}
            seated = [(pod, nodes[pod.key]) for pod in self.placed]
            refused = takes_promised(seated, kept, draft, self.figures.config.gpu.resources)
            for node, pods in self.promised.pods.items() if not refused else ():
                there = [(pod, names[node].name) for pod, seat in seated if seat == node]
                with draft.trial():
                    for pod in pods if there else ():
                        draft.assign(pod, node)
                    refused |= bool(there and check_filters(there, self.figures, whole=True))
        if self.back and not refused:
            for pod in self.placed:
                draft.assign(pod, nodes[pod.key], chips=given.chips.get(pod.key, ()))
            back = {pod.key: names[self.back[pod.key]].name for pod in moved}
            refused = bool(check_returns([(pod, back[pod.key]) for pod in moved], self.figures)) or any(
                check_moves(self.figures.groups.unit(gang), back, self.figures)
                for gang in dict.fromkeys(pod.gang for pod in moved if pod.gang is not None)
            )
        draft.undo(mark)
        return refused


class _CheckedRoom:
    """What is free once a plan is carried out, by sums."""

    def __init__(self, plan: _Plan, taken: Sequence[Taken]) -> None:
        self.plan, self.taken = plan, taken
        draft, snapshot = plan.draft, plan.snapshot
        free = snapshot.allocatable - draft.used
        if plan.promised is not None:
            free[plan.promised.at] -= plan.promised.held
        self.columns = snapshot.columns
        for pod in (pod for one in taken for pod in one.pods):
            if pod.node in snapshot.index:
                self._count(free[snapshot.index[pod.node]], pod, 1)
        self.on: dict[int, list[PodInfo]] = {}
        for pod in plan.placed:
            self._count(free[plan.nodes[pod.key]], pod, -1)
            self.on.setdefault(plan.nodes[pod.key], []).append(pod)
        for key, node in plan.back.items():
            self._count(free[node], snapshot.pods[key], -1)
        self.free = free
        self._candidates: dict[bytes, list[int]] = {}
        self._tight = self._slack()

    def _slack(self) -> list[tuple[str, str, int]]:
        """(quota, resource, what it could still take) where the plan's own quotas end, by their limits; by their min
        where a reclaim from outside them has to keep them within it."""
        plan = self.plan
        lost = plan._sums(pod for one in self.taken for pod in one.pods)
        limits = plan.figures.admission.open_limits()
        reclaimed = [pod for one in self.taken if one.rule == QUOTA for pod in one.pods]
        gaining = {name for pod in reclaimed for name in plan._ours(pod)}
        out = []
        for name, asked in plan.added.items():
            for resource, most in limits[name].items():
                line = min(most, plan.tree.quotas[name].least(resource)) if name in gaining else most
                less = _of(lost, name, resource)
                if asked[resource] and less:
                    after = plan.use.used(name, resource) + asked[resource] - less
                    out.append((name, resource, line - after))
        return out

    def may_stay(self, one: Taken) -> bool:
        """Whether the beneficiary's quotas could do without a unit: a quick look."""
        if not self._tight:
            return True
        held = self.plan._sums(one.pods)
        return all(_of(held, name, resource) <= slack for name, resource, slack in self._tight)

    def without(self, one: Taken) -> dict[str, int] | None:
        """Pod key -> node of members that go elsewhere so that a unit may stay; None where sums find no way."""
        plan = self.plan
        rows = {node: self.free[node].copy() for node in {plan.snapshot.index[pod.node] for pod in one.pods}}
        for pod in one.pods:
            self._count(rows[plan.snapshot.index[pod.node]], pod, -1)
            if (returns := plan.back.get(pod.key)) is not None:
                self._count(rows.setdefault(returns, self.free[returns].copy()), pod, 1)
        seats: dict[str, int] = {}
        for node, row in list(rows.items()):
            leaving = list(self.on.get(node, ()))
            homeless = []
            while leaving and self._lacks(row):
                pod = leaving.pop()
                self._count(row, pod, 1)
                homeless.append(pod)
            for pod in homeless:
                seat = self._elsewhere(pod, rows)
                if seat is None:
                    return None
                seats[pod.key] = seat
        return seats

    def _lacks(self, row: Ints) -> bool:
        return bool((row[self._columns] < 0).any())

    @cached_property
    def _columns(self) -> list[int]:
        """Columns that the members ask of."""
        names = {name for name in self.plan.requested if not self.plan.figures.ignored(name)}
        return [0, *sorted(self.columns[name] for name in names)]

    def _count(self, row: Ints, pod: PodInfo, sign: int) -> None:
        row[0] += sign
        for name, amount in pod.requests.items():
            row[self.columns[name]] += sign * amount

    def _elsewhere(self, pod: PodInfo, rows: dict[int, Ints]) -> int | None:
        """A node with room for a pod, which it takes."""
        asked = np.zeros(self.free.shape[1], dtype=np.int64)
        self._count(asked, pod, 1)
        columns = self._columns
        known = self._candidates.get(pod.shape)
        if known is None:
            enough = ((self.free[:, columns] >= asked[columns]) | (asked[columns] <= 0)).all(axis=1)
            nodes = np.nonzero(enough)[0].tolist()
            names = self.plan.snapshot.nodes
            figures = self.plan.figures
            known = [n for n in nodes[:200] if not check_filters([(pod, names[n].name)], figures)]
            self._candidates[pod.shape] = known
        for node in (*rows, *known):
            row = rows[node] if node in rows else self.free[node].copy()
            if bool(((row[columns] >= asked[columns]) | (asked[columns] <= 0)).all()):
                self._count(row, pod, -1)
                rows[node] = row
                return node
        return None


def _claims(pod: PodInfo) -> bool:
    """Whether a pod has volumes or resource claims."""
    return bool(pod.pod.spec.resource_claims or pod.ties.volumes)


def _of(sums: Sums, name: str, resource: str) -> int:
    return sums[name][resource] if name in sums else 0


def _crosses_once(parts: Sequence[int], over: int | Fraction) -> bool:
    """Whether what is taken without the largest part stays below what is above the line."""
    return sum(parts) - max(parts, default=0) < over
