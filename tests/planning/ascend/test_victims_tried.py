# SPDX-License-Identifier: Apache-2.0
"""Victims for elastic jobs with switches or SuperPoDs against trying every set of gangs (ascend.md 5.3, 6).

First all members, then the least size that has a plan; a proof is claimed only where the answer is the least harmful.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration, Preemption
from koordpy.plan.round_plan import Proof, RoundPlan
from tests.scenarios.cluster import World
from tests.scenarios.npus import ascend, npu_gang, npu_pod, super_pods, switched

LABELS: tuple[dict[str, str], ...] = (
    {keys.TOR_AFFINITY: "large-model-schema"},
    {keys.TOR_AFFINITY: "normal-schema"},
    {},
)


@dataclass(frozen=True)
class Held:
    """A running gang of one pod a node; chips it takes of each."""

    name: str
    nodes: tuple[str, ...]
    priority: int
    chips: int
    labels: dict[str, str]

    @property
    def objects(self) -> list[Any]:
        group, *_ = npu_gang(self.name, len(self.nodes))
        pods = [
            npu_pod(
                f"{self.name}-{i}",
                self.chips,
                gang=self.name,
                at=at,
                holds=range(self.chips),
                priority=self.priority,
                labels=self.labels,
            )
            for i, at in enumerate(self.nodes)
        ]
        return [group, *pods]


class Case:
    """A cluster, who runs there, and the job that asks."""

    def __init__(self, random: Random) -> None:
        blocks = random.random() < 0.5
        self.whole = 16 if blocks else 8
        if blocks:
            self.cluster: list[Any] = super_pods(*(random.randint(1, 4) for _ in range(random.randint(1, 3))))
            free = [node.metadata.name for node in self.cluster]
        else:
            leaves = {leaf: sorted(random.sample(range(3), random.randint(1, 3))) for leaf in "abc"}
            self.cluster = switched(leaves, 3)
            free = [f"{leaf}s{at}" for leaf, slices in leaves.items() for at in slices]
        random.shuffle(free)
        self.held: list[Held] = []
        while free and len(self.held) < 5 and random.random() < 0.93:
            size = random.randint(1, 3)
            chips = random.choice([self.whole, self.whole, self.whole // 2])
            labels = {} if blocks else random.choice(LABELS)
            at, free = tuple(free[:size]), free[size:]
            self.held.append(Held(f"v{len(self.held)}", at, random.choice([0, 0, 1, 2, 20]), chips, labels))
        self.count = random.randint(1, 5)
        self.least = random.randint(1, self.count)
        self.block = 1
        notes, labels = dict[str, str](), dict[str, str]()
        if blocks:
            self.block = random.choice([b for b in (1, 2) if self.count % b == 0])
            notes[keys.SP_BLOCK] = str(16 * self.block)
            labels = random.choice([{}, {keys.SUPER_POD_AFFINITY: "soft"}])
        else:
            labels = dict(random.choice(LABELS[:2]))
        self.job = npu_gang(
            "g", self.count, self.whole, minimum=self.least, priority=10, annotations=notes, labels=labels
        )
        self.second = not blocks and random.random() < 0.4
        self.reserve = random.choice([0, 2])

    def config(self, *, preempts: bool = True) -> KoordpyConfiguration:
        section = ascend(nslb_version="2.0" if self.second else "1.0", reserve_nodes=self.reserve).ascend
        return KoordpyConfiguration(ascend=section, preemption=Preemption(enabled=preempts, surplus_victims="any"))

    def plan(self, gone: Sequence[Held] = (), *, preempts: bool = True) -> RoundPlan:
        world = World().add(*self.cluster)
        for one in self.held:
            if one not in gone:
                world.add(one.objects)
        return world.add(*self.job).plan(config=self.config(preempts=preempts))

    def least_harmful(self) -> tuple[int, ...] | None:
        """Cost levels 2 to 5 of the best set; None where there is none, () where nobody has to go."""
        if self.plan(preempts=False).placements:
            return ()
        weak = [one for one in self.held if one.priority < 10]
        sizes = [self.count, -(-self.least // self.block) * self.block]
        for size in dict.fromkeys(sizes):
            costs = [
                harm(gone)
                for number in range(1, len(weak) + 1)
                for gone in combinations(weak, number)
                if len(self.plan(gone, preempts=False).placements) >= size
            ]
            if costs:
                return min(costs)
        return None


def harm(gone: Sequence[Held]) -> tuple[int, ...]:
    chips = sum(one.chips * len(one.nodes) for one in gone)
    return max(one.priority for one in gone), len(gone), chips, sum(len(one.nodes) for one in gone)


def compared(seed: int) -> str:
    """What came of one case."""
    case = Case(Random(seed))
    wanted, plan = case.least_harmful(), case.plan()
    names = {one.pod_key.partition("/")[2] for one in plan.evictions}
    taken = [one for one in case.held if f"{one.name}-0" in names]
    proof = next(report.proof for report in plan.units)
    assert names == {f"{one.name}-{i}" for one in taken for i in range(len(one.nodes))}, (seed, "gangs go whole")
    assert not [one.message for one in plan.pending if "failed koordpy's own check" in one.message], seed
    if wanted is None:
        assert not plan.placements, seed
        return "none"
    assert plan.placements, (seed, wanted, [one.message for one in plan.pending])
    if taken and proof is Proof.OPTIMAL:
        assert harm(taken) == wanted, (seed, wanted, names)
    return str(proof) if taken else "free"


def test_the_least_harmful_gangs_make_room_for_all_or_for_the_core() -> None:
    outcomes = [compared(seed) for seed in range(40)]
    assert outcomes.count("optimal") > 10
    assert "feasible" not in outcomes[:20]
