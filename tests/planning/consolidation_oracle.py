# SPDX-License-Identifier: Apache-2.0
"""Ground truth for consolidation: every set of moves of a tiny cluster, and every way to place those who come with it.

preemption.md 3.4 and section 5 read a second time: levels 3 to 9, "moved" for "evicted". Nothing of
`koordpy.preemption.search` is used. A world has one pending unit, asks for one resource, and no running pod looks at
others; whoever moves comes back under room, its group's MustGather and podCountMultiple, and no higher common layer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from msgspec.structs import replace

from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, MaxHarm, Preemption, Protection
from koordpy.config.node_failures import Repair
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.placement.goals import Goals, violations
from koordpy.placement.problem import Problem, only_ranks
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build, hard_level, unit_multiples
from tests.planning.victim_law import GPU, Judge, Part
from tests.scenarios.cluster import World, group, hierarchy, node, pod, wish

MOVES_ONLY = KoordpyConfiguration(
    consolidation=Consolidation(enabled=True),
    preemption=Preemption(enabled=False),
    fairness=Fairness(mode="off", reclaim="off"),
    repair=Repair(seat_hold=0.0),
)
LAYERS = hierarchy(("blockLayer", "block"), ("spineLayer", "spine"))
ANY_HARM = replace(
    MOVES_ONLY,
    protection=Protection(max_harm=MaxHarm(consolidation=None)),
    preemption=Preemption(enabled=False, surplus_victims="any"),
)
MOST_WAYS = 60_000
"""Ways to place somebody beyond which a world is too large to be judged."""


@dataclass(frozen=True)
class Moves:
    """Who moves (names), and goals 1 to 4 of the beneficiary. fits: whether it needs nobody to."""

    fits: bool
    moved: tuple[str, ...] = ()
    goals: tuple[object, ...] = ()
    members: int = 0


class TooLarge(Exception):
    """More ways than are looked at."""


class Mover:
    """The one pending unit of a snapshot, and who could make room for it by moving."""

    def __init__(self, snapshot: Snapshot, config: KoordpyConfiguration = MOVES_ONLY) -> None:
        self.snapshot = snapshot
        self.groups, self.draft = Groups(snapshot), Draft(snapshot)
        self.round_state = RoundState(self.draft, config)
        [self.unit] = self.groups.units()
        self.tree = snapshot.tree
        self.judge = Judge(snapshot, config, self.unit.id)
        self.ways = 0

    def answer(self) -> Moves:
        """Section 1: all pending members, else the core; the least harmful set of moves."""
        problem = build(self.unit, self.round_state)
        pending = list(problem.pending)
        needed = self.judge._core(pending)
        found = self._best_place(only_ranks(problem, pending), ()) or self._best_place(only_ranks(problem, needed), ())
        if found is not None or any(
            self._best_place(only_ranks(problem, some), ()) is not None
            for some in combinations(pending, len(needed))
            if self.unit.plain is None and len(self.unit.gangs) == 1
        ):
            return Moves(True)
        for ranks in [pending, *([needed] if needed != pending else [])]:
            best = self._least(ranks)
            if best is not None:
                return best
        return Moves(False)

    def _least(self, ranks: Sequence[int]) -> Moves | None:
        pods = [self.unit.members[rank] for rank in ranks]
        parts = [part for part in self.judge.parts() if self._movable(part, min(pod.priority for pod in pods))]
        order = sorted(range(len(parts)), key=lambda i: parts[i].standing)
        best: tuple[tuple[object, ...], Moves] | None = None
        for bits in range(1, 1 << len(parts)):
            taken = [i for i in range(len(parts)) if bits >> i & 1]
            chosen = [parts[i] for i in taken]
            gone = [pod for part in chosen for pod in part.pods]
            moves = dict.fromkeys(taken, "consolidation")
            kept = self.judge._spared(moves, parts, pods) and self.judge._harm(moves, parts, pods)
            if not kept or not self._together(chosen, gone):
                continue
            early = sum(part.breaks for part in chosen), sum(pod.requests.get(GPU, 0) for pod in gone), len(gone)
            if best is not None and early > best[0][:3]:
                continue
            mark = self.draft.mark()
            for one in gone:
                self.draft.evict(one)
            goals = self._best_place(only_ranks(build(self.unit, self.round_state), set(ranks)), chosen)
            self.draft.undo(mark)
            if goals is None:
                continue
            spared = tuple(int(i in taken) for i in order)
            cost = (*early, goals, sum(pod.priority for pod in gone), spared)
            if best is None or cost < best[0]:
                best = cost, Moves(False, tuple(sorted(pod.name for pod in gone)), goals, len(ranks))
        return best[1] if best is not None else None

    def _movable(self, part: Part, priority: int) -> bool:
        foreign = any(pod.pod.spec.scheduler_name not in self.snapshot.scheduler_names for pod in part.pods)
        below = part.gang and part.most == 1 and self._below(part)
        return part.priority <= priority and not foreign and not below

    def _below(self, part: Part) -> bool:
        """A gang that is below its minimum stays where it is."""
        [gang] = [g for g in self.groups.unit(part.pods[0].gang).gangs if g.key == part.gang]  # type: ignore[arg-type]
        return len(gang.bound) + gang.succeeded < gang.min_member

    def _together(self, chosen: Sequence[Part], gone: Sequence[PodInfo]) -> bool:
        """Section 2, and that PDBs forbid."""
        if len({pod.key for pod in gone}) < len(gone):
            return False
        lent = Counter(part.gang for part in chosen if part.gang)
        if any(part.gang and lent[part.gang] > part.most for part in chosen):
            return False
        for part in chosen:
            if not part.core and part.gang and not self._whole_without(part, {pod.key for pod in gone}):
                return False
        return self.judge._budgets(dict(enumerate(["consolidation"] * len(chosen))), chosen, gone)

    def _whole_without(self, part: Part, gone: set[str]) -> bool:
        """Surplus is lent as long as what stays where it left keeps the gang's podCountMultiple."""
        unit = self.groups.unit(part.pods[0].gang)  # type: ignore[arg-type]
        stays = [self.tree.index[pod.node] for pod in unit.members if pod.bound and pod.key not in gone]
        left = self.tree.index[part.pods[0].node]
        for level, k in unit_multiples(unit, self.round_state).items():
            domains = self.tree.domain_of[level]
            if sum(domains[at] == domains[left] for at in stays) % k:
                return False
        return True

    def _multiples_hold(self, unit: Unit, nodes: Sequence[int]) -> bool:
        for level, k in unit_multiples(unit, self.round_state).items():
            inside = Counter(int(self.tree.domain_of[level, at]) for at in nodes)
            if any(number % k for number in inside.values()):
                return False
        return True

    # --- places -------------------------------------------------------------------------------------------------------

    def _best_place(self, problem: Problem, chosen: Sequence[Part]) -> tuple[object, ...] | None:
        """Goals 1 to 4 of the best way to place all members where everybody who moved finds a place, too."""
        worth = Goals(problem)
        ways: list[tuple[tuple[object, ...], dict[int, int]]] = []
        for nodes in self._spread(problem):
            if violations(problem, nodes):
                continue
            goals: tuple[object, ...] = ()
            if problem.gather:
                goals = tuple(g(nodes) for g in (worth.layers, worth.attraction, worth.pipeline, worth.domains))
            ways.append((goals, nodes))
            if not chosen and not goals:
                return goals
        if not chosen:
            return min((goals for goals, _ in ways), default=None)
        tried: set[tuple[int, ...]] = set()
        for goals, nodes in sorted(ways, key=lambda way: way[0]):  # type: ignore[arg-type,return-value]
            left = [int(free[self.snapshot.columns[GPU]]) for free in problem.free]
            for rank, at in nodes.items():
                left[at] -= self.unit.members[rank].requests.get(GPU, 0)
            if tuple(left) not in tried and self._all_return(left, chosen):
                return goals
            tried.add(tuple(left))
        return None

    def _spread(self, problem: Problem) -> Iterator[dict[int, int]]:
        """Every way to put all members on nodes with room."""
        pending = problem.pending
        left = [int(free[self.snapshot.columns[GPU]]) for free in problem.free]
        nodes: dict[int, int] = {}

        def step(at: int) -> Iterator[dict[int, int]]:
            self._count()
            if at == len(pending):
                yield dict(nodes)
                return
            asked = self.unit.members[pending[at]].requests.get(GPU, 0)
            for one in range(len(left)):
                if left[one] >= asked:
                    left[one] -= asked
                    nodes[pending[at]] = one
                    yield from step(at + 1)
                    left[one] += asked

        return step(0)

    def _count(self) -> None:
        self.ways += 1
        if self.ways > MOST_WAYS:
            raise TooLarge

    def _all_return(self, left: list[int], chosen: Sequence[Part]) -> bool:
        """Whether all pods that moved fit again, each group as it has to stand."""
        coming = [pod for part in chosen for pod in part.pods]
        at: dict[str, int] = {}

        def step(number: int) -> bool:
            self._count()
            if number == len(coming):
                return self._stand_well(coming, at)
            one = coming[number]
            asked = one.requests.get(GPU, 0)
            for place in range(len(left)):
                if left[place] >= asked:
                    left[place] -= asked
                    at[one.key] = place
                    if step(number + 1):
                        return True
                    left[place] += asked
            return False

        return step(0)

    def _stand_well(self, coming: Sequence[PodInfo], at: Mapping[str, int]) -> bool:
        index = self.tree.index
        for ref in dict.fromkeys(one.gang for one in coming if one.gang is not None):
            unit = self.groups.unit(ref)
            bound = [one for one in unit.members if one.bound]
            after = [at.get(one.key, index[one.node]) for one in bound]
            level = self.tree.lowest_common(after)[0]
            if level < self.tree.lowest_common([index[one.node] for one in bound])[0]:
                return False
            if level < hard_level(unit, self.round_state) or not self._multiples_hold(unit, after):
                return False
        return True


def world(random: Random) -> World:
    """Running pods and gangs on a few nodes, and one pod or gang that needs them closer together."""
    out, free = World(), dict[str, int]()
    layers = random.random() < 0.6
    if layers:
        out.add(LAYERS)
    for i in range(random.randint(2, 4)):
        free[f"n{i}"] = random.choice([1, 2, 2, 3, 3, 4])
        labels = {"spine": f"s{i // 2}", "block": f"b{random.randint(0, 1)}"}
        out.add(node(f"n{i}", labels, cpu="64", **{GPU: str(free[f"n{i}"])}))
    gangs = [f"g{i}" for i in range(random.randint(0, 2))]
    for name in gangs:
        notes = None
        if layers and random.random() < 0.6:
            multiple = {"blockLayer": 2} if random.random() < 0.3 else None
            notes = wish({"blockLayer": random.choice(["Must", "Prefer"])}, multiple=multiple)
        out.add(group(name, random.randint(1, 3), notes))
    for i in range(random.randint(2, 6)):
        at, amount = max(free, key=lambda name: (free[name], random.random())), random.choice([1, 1, 1, 2, 3])
        if amount > free[at] or (amount == free[at] and random.random() < 0.5):
            continue
        free[at] -= amount
        extra = {"scheduler": "other"} if random.random() < 0.05 else {}
        labels = {"app": random.choice("ab")} if random.random() < 0.4 else {}
        if random.random() < 0.05:
            labels["quota.scheduling.koordinator.sh/preemptible"] = "false"
        out.add(
            pod(
                f"v{i}",
                at=at,
                gang=random.choice(["", *gangs, *gangs]),
                cpu="0",
                requests={GPU: str(amount)},
                priority=random.choice([0, 0, 1, 5]),
                created=random.randint(0, 20),
                labels=labels,
                **extra,  # type: ignore[arg-type]
            )
        )
    if random.random() < 0.3:
        out.add(
            PodDisruptionBudget(
                metadata=ObjectMeta(name="pdb", namespace="default"),
                spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "a"})),
                status=PodDisruptionBudgetStatus(disruptions_allowed=random.randint(0, 2)),
            )
        )
    _waiting(out, random, layers=layers)
    return out


def _waiting(out: World, random: Random, *, layers: bool) -> None:
    priority = random.choice([0, 1, 5])
    if random.random() < 0.4:
        out.add(pod("p", cpu="0", requests={GPU: str(random.randint(2, 4))}, priority=priority, created=100))
        return
    notes, count = None, random.randint(1, 3)
    if layers and random.random() < 0.7:
        layer = random.choice(["blockLayer", "spineLayer"])
        notes = wish({layer: random.choice(["Prefer", "Must"])}, pp=random.choice([1, 1, 2]))
    out.add(group("me", random.randint(1, count), notes))
    mixed, amount = random.random() < 0.3, random.randint(1, 3)
    for i in range(count):
        asked = random.randint(1, 3) if mixed else amount
        out.add(pod(f"m-{i}", gang="me", cpu="0", requests={GPU: str(asked)}, priority=priority, created=100))
