# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs outside any gang, and gangs without a group, against every way to place and to divide them.

gpu-topology.md 5: all members where all fit, else in order, whoever does not fit left out; every node divides
its GPUs among all that stand there, under minimum bandwidths (6) and partition tables (8); fewest nodes (b).
"""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from random import Random
from typing import Any

from koordpy.api import keys
from koordpy.plan.pending_reason import Reason
from tests.planning.gpu.machines import device
from tests.scenarios.cluster import bound, group
from tests.scenarios.gpus import GpuWorld, gpu_node, gpu_pod

SIZE = 4
HIGH = 50


class Machine:
    """A node of four GPUs: the pairs that are fast, what is free, and the sets that a strict table lists."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        pairs = [set(pair) for pair in combinations(range(SIZE), 2)]
        self.fast = [pair for pair in pairs if random.random() < 0.5]
        held = random.sample(range(SIZE), random.choice([0, 0, 0, 1, 2]))
        self.held, self.free = held, [g for g in range(SIZE) if g not in held]
        self.listed: list[set[int]] | None = None
        if random.random() < 0.3:
            sets = [set(one) for size in (1, 2, 3) for one in combinations(range(SIZE), size)]
            self.listed = random.sample(sets, random.randint(2, 8))

    def objects(self) -> list[Any]:
        matrix = [[HIGH if {a, b} in self.fast else 10 for b in range(SIZE)] for a in range(SIZE)]
        labels, notes = {}, {}
        if self.listed is not None:
            labels["node.koordinator.sh/gpu-partition-policy"] = "Honor"
            table: dict[str, list[Any]] = {}
            for one in self.listed:
                own = {"minors": sorted(one), "gpuLinkType": "NVLink", "allocationScore": 1}
                table.setdefault(str(len(one)), []).append(own)
            notes["scheduling.koordinator.sh/gpu-partitions"] = json.dumps(table)
        out = [gpu_node(self.name, labels, gpus=SIZE), device(matrix, name=self.name, annotations=notes)]
        if self.held:
            out.append(gpu_pod(f"held-{self.name}", len(self.held), held=self.held, at=self.name, cpu="0"))
        return out

    def serves(self, pods: Sequence[tuple[int, bool]]) -> bool:
        """Whether its GPUs can be divided so. pods: (GPUs, whether all pairs must be fast)."""
        return next(self._divisions(tuple(self.free), pods), None) is not None

    def _divisions(self, free: tuple[int, ...], pods: Sequence[tuple[int, bool]]) -> Iterator[bool]:
        if not pods:
            yield True
            return
        (count, strict), *others = pods
        for own in combinations(free, count):
            slow = strict and any(set(pair) not in self.fast for pair in combinations(own, 2))
            if slow or (self.listed is not None and set(own) not in self.listed):
                continue
            yield from self._divisions(tuple(g for g in free if g not in own), others)


def nodes_needed(machines: Sequence[Machine], pods: Sequence[tuple[int, bool]]) -> int | None:
    """The fewest nodes that serve all pods; None where none do."""
    best: int | None = None
    for places in product(range(len(machines)), repeat=len(pods)):
        used = len(set(places))
        if best is not None and used >= best:
            continue
        if all(
            one.serves([p for p, at in zip(pods, places, strict=True) if at == n]) for n, one in enumerate(machines)
        ):
            best = used
    return best


def compared(seed: int, *, gang: bool) -> int:
    """Pods that are placed, as many and the ones that enumeration says, on the fewest nodes."""
    random = Random(seed)
    machines = [Machine(f"n{i}", random) for i in range(random.randint(1, 3))]
    pods = [(random.choice([1, 1, 2, 2, 3]), random.random() < 0.4) for _ in range(random.randint(1, 4))]
    world = GpuWorld()
    for machine in machines:
        world.add(machine.objects())
    if gang:
        world.add(group("g", len(pods)))
    for i, (count, strict) in enumerate(pods):
        notes = {keys.GPU_MIN_BANDWIDTH: str(HIGH)} if strict else {}
        whose = {"gang": "g"} if gang else {"group": "job"}
        world.add(gpu_pod(f"w-{i}", count, annotations=notes, created=i, **whose))
    plan = world.plan()
    assert not [one.message for one in plan.pending if one.reason is not Reason.UNSCHEDULABLE], seed
    wanted = list(range(len(pods)))
    if nodes_needed(machines, pods) is None:
        wanted = []
        for i in range(len(pods)) if not gang else ():
            if nodes_needed(machines, [pods[k] for k in (*wanted, i)]) is not None:
                wanted.append(i)
    placed = bound(plan)
    assert set(placed) == {f"w-{i}" for i in wanted}, (seed, wanted)
    if wanted:
        assert len(set(placed.values())) == nodes_needed(machines, [pods[i] for i in wanted]), seed
    return len(placed)


def test_a_group_is_placed_as_far_as_it_fits() -> None:
    placed = [compared(seed, gang=False) for seed in range(60)]
    assert len(set(placed)) > 3


def test_a_gang_is_placed_where_its_gpus_can_be_divided() -> None:
    placed = [compared(seed, gang=True) for seed in range(1000, 1040)]
    assert 0 in placed and max(placed) > 2
