# SPDX-License-Identifier: Apache-2.0
"""Consolidation of pods with claims against an enumeration: every set of moves, every set of devices (dra.md 10)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from koordpy.plan.round_plan import Proof
from tests.planning.consolidation_oracle import ANY_HARM
from tests.planning.node_rules import node, planned
from tests.planning.test_claim_victims import holding
from tests.planning.test_filter_dra import CLASS, asks, facts, offers, resource_claim, user
from tests.scenarios.cluster import bound, group, messages

FIXED = {"quota.scheduling.koordinator.sh/preemptible": "false"}
NUMA = "resource.kubernetes.io/numaNode"
Device = tuple[str, str]
"""(node, name) of a device."""


@dataclass(frozen=True)
class Held:
    """A claim in use: its devices and its pods."""

    devices: tuple[Device, ...]
    pods: tuple[str, ...]


class Cluster:
    """A few nodes with devices in two NUMA nodes, claims in use, and the numbers of devices that a gang asks for."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.numa: dict[Device, int] = {}
        for at in ("n1", "n2", "n3")[: dice.choice([2, 2, 3])]:
            for i in range(dice.choice([2, 3, 3, 4])):
                self.numa[at, f"g{i}"] = dice.choice([0, 0, 1])
        self.held: list[Held] = []
        self.fixed: set[str] = set()
        for at in sorted({place for place, _ in self.numa}):
            free = [one for one in self.numa if one[0] == at]
            dice.shuffle(free)
            while free and dice.random() < 0.6:
                count = dice.choice([1, 1, 2])
                devices, free = free[:count], free[count:]
                number = sum(len(one.pods) for one in self.held)
                pods = tuple(f"v{number + i}" for i in range(dice.choice([1, 1, 1, 2])))
                self.fixed |= {one for one in pods if dice.random() < 0.1}
                self.held.append(Held(tuple(sorted(devices)), pods))
        self.asked = dice.choice([[2], [3], [3], [4], [2, 2], [1, 2]])
        self.gang = set(dice.sample(range(len(self.held)), 2)) if len(self.held) > 2 and dice.random() < 0.4 else set()
        """Positions in `held` of two claims whose pods are one gang, which needs all of them."""

    def objects(self) -> list[Any]:
        """The objects as a cluster has them."""
        out: list[Any] = [CLASS, group("p", len(self.asked))]
        for i, count in enumerate(self.asked):
            gang = "p" if len(self.asked) > 1 else ""
            out += [resource_claim(f"c{i}", asks(count)), user(f"p-{i}", f"c{i}", gang=gang, cpu="0", priority=0)]
        out.append(group("v", sum(len(self.held[i].pods) for i in self.gang) or 1))
        for at in sorted({place for place, _ in self.numa}):
            out.append(node(f"{at}:8"))
            for zone in (0, 1):
                own = [name for place, name in self.numa if place == at and self.numa[place, name] == zone]
                out.append(offers(at, *own, slices=2, number=zone, attributes=facts(**{NUMA: zone})))
        for i, one in enumerate(self.held):
            [at] = {place for place, _ in one.devices}
            out.append(holding(f"h{i}", at, [name for _, name in one.devices], *one.pods))
            for name in one.pods:
                labels = FIXED if name in self.fixed else {}
                gang = "v" if i in self.gang else ""
                out.append(user(name, f"h{i}", at=at, cpu="0", priority=0, labels=labels, gang=gang))
        return out

    def slow(self, devices: Sequence[Device]) -> int:
        """The slowest pair: 9 in one NUMA node, 8 in two, 99 for one device."""
        return min((9 if self.numa[a] == self.numa[b] else 8 for a, b in combinations(devices, 2)), default=99)

    def sets(self, free: frozenset[Device], count: int) -> Iterator[frozenset[Device]]:
        """The sets of free devices of one node."""
        for at in sorted({place for place, _ in free}):
            for some in combinations(sorted(one for one in free if one[0] == at), count):
                yield frozenset(some)

    def least(self) -> tuple[int, int] | None:
        """The smallest cost of moves: gangs that move, then pods; None if no moves help."""
        free = frozenset(self.numa) - {device for one in self.held for device in one.devices}
        found = [
            (int(bool(self.gang & {*some})), sum(len(self.held[i].pods) for i in some))
            for number in range(len(self.held) + 1)
            for some in combinations(range(len(self.held)), number)
            if (self.gang <= {*some} or self.gang.isdisjoint(some))
            and all(self.fixed.isdisjoint(self.held[i].pods) for i in some)
            and self._fits(free | {device for i in some for device in self.held[i].devices}, self.asked, some)
        ]
        return min(found, default=None)

    def _fits(self, free: frozenset[Device], asked: Sequence[int], moved: Sequence[int]) -> bool:
        if not asked:
            return self._return(free, moved, ())
        return any(self._fits(free - own, asked[1:], moved) for own in self.sets(free, asked[0]))

    def _return(self, free: frozenset[Device], moved: Sequence[int], gang_at: tuple[str, ...]) -> bool:
        """Whether claims find devices; a gang of one node stays on one. gang_at: new nodes of the gang's claims."""
        if not moved:
            before = {device[0] for i in self.gang for device in self.held[i].devices}
            return len(before) > 1 or len({*gang_at}) <= 1
        first, devices = moved[0], self.held[moved[0]].devices
        return any(
            self.slow(sorted(own)) >= self.slow(devices)
            and self._return(free - own, moved[1:], (*gang_at, *({at for at, _ in own} if first in self.gang else ())))
            for own in self.sets(free, len(devices))
        )


def compared(seed: int) -> tuple[int, int] | None:
    """The smallest cost of moves, after comparing it with the plan; None if no moves help."""
    cluster = Cluster(seed)
    least, plan = cluster.least(), planned(cluster.objects(), ANY_HARM)
    assert bool(bound(plan)) is (least is not None), (seed, messages(plan))
    gone = [one.pod_key.partition("/")[2] for one in plan.evictions]
    if least is None:
        assert plan.units[0].proof in (Proof.INFEASIBLE, Proof.UNKNOWN)
    assert (any(cluster.gang & {i} and {*one.pods} & {*gone} for i, one in enumerate(cluster.held)), len(gone)) == (
        least or (False, 0)
    ), seed
    assert all(one.rule == "consolidation" and one.returns_to for one in plan.evictions)
    for one in cluster.held:
        assert set(one.pods) <= set(gone) or set(one.pods).isdisjoint(gone), "a claim moves with all of its pods"
    return least


@pytest.mark.parametrize("seeds", [range(60), range(4000, 4060)], ids=str)
def test_the_fewest_pods_with_claims_move(seeds: range) -> None:
    found = [compared(seed) for seed in seeds]
    assert sum(one is not None and one[1] > 0 for one in found) > 2


@pytest.mark.parametrize(("held", "proof"), [(3, Proof.INFEASIBLE), (1, Proof.OPTIMAL)])
def test_that_no_moves_help_is_proven_by_numbers_of_devices(held: int, proof: Proof) -> None:
    """Three of four devices of each node are in use, and a pod needs four: claims of three find no other node."""
    objects: list[Any] = [CLASS, resource_claim("c", asks(4)), user("p", "c", cpu="0", priority=0)]
    for at in ("n1", "n2", "n3", "n4"):
        objects += [node(f"{at}:8"), offers(at, "g0", "g1", "g2", "g3")]
        for i in range(0, 3, held):
            objects.append(holding(f"{at}-{i}", at, [f"g{i + k}" for k in range(held)], f"{at}-v{i}"))
            objects.append(user(f"{at}-v{i}", f"{at}-{i}", at=at, cpu="0", priority=0))
    plan = planned(objects, ANY_HARM)
    assert (plan.units[0].proof, len(plan.evictions)) == (proof, 0 if held == 3 else 3)
