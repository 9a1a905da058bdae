# SPDX-License-Identifier: Apache-2.0
"""Required pod affinity of gang members to each other: linked pods open one domain (kube-parity.md 2.7).

Random gangs are held against the rule read a second time (`affinity_law`), by trying every placement.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from koordpy.api.objects import LabelSelector, Namespace, Node, ObjectMeta, Pod
from koordpy.planner.planning_round import plan_round
from tests.halves import own_half
from tests.planning.affinity_law import AffinityLaw, Placed
from tests.planning.node_rules import elsewhere, near, node, pod, states, term
from tests.scenarios.cluster import bound, group, messages

HOST = "kubernetes.io/hostname"
KEYS = ["zone", "rack", HOST]
KINDS = [{"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}, {"app": "c", "tier": "x"}]
SELECTED: list[dict[str, str]] = [{"app": "a"}, {"app": "b"}, {"tier": "x"}, {}]
RED = {"team": "red"}
TEAMS = {"default": {}, "red": RED}


@dataclass
class Case:
    """A small cluster: pods that run, and one gang of which some members may run already."""

    nodes: list[Node]
    running: list[Pod]
    members: list[Pod]
    minimum: int
    room: dict[str, int] = field(default_factory=dict)
    """Node -> free slots."""

    @property
    def objects(self) -> list[Any]:
        spaces = [Namespace(metadata=ObjectMeta(name=name, labels=labels)) for name, labels in TEAMS.items()]
        return [*spaces, *self.nodes, group("g", self.minimum), *self.running, *self.members]

    @property
    def before(self) -> list[Placed]:
        return [(one, one.spec.node_name) for one in (*self.running, *self.members) if one.spec.node_name]

    @property
    def pending(self) -> list[Pod]:
        return [one for one in self.members if not one.spec.node_name]

    def lawful(self, law: AffinityLaw) -> Iterator[list[Placed]]:
        """Every placement of pending members that keeps the rule and has room, the largest first."""
        need = self.minimum if len(self.pending) == len(self.members) else 1
        for number in range(len(self.pending), need - 1, -1):
            for some in combinations(self.pending, number):
                for way in product(self.room, repeat=number):
                    taken = Counter(way)
                    plan = list(zip(some, way, strict=True))
                    if all(n <= self.room[name] for name, n in taken.items()) and law.keeps(plan, self.before):
                        yield plan


def random_case(seed: int, *, own: bool = False) -> Case:
    """Two to four nodes, few running pods, a gang of two to four of one to three kinds, some without terms. own: pods
    match their own terms."""
    rng = np.random.default_rng((seed, 77))

    def pick(options: Sequence[Any]) -> Any:
        return options[int(rng.integers(len(options)))]

    def near_some(labels: dict[str, str]) -> dict[str, Any]:
        found = []
        selected = [one for one in SELECTED if one.items() <= labels.items()] if own else SELECTED
        for _ in range(1 + (rng.random() < 0.25)):
            more: dict[str, Any] = {}
            if rng.random() < 0.15:
                more["namespace_selector"] = pick([LabelSelector(), LabelSelector(match_labels={} if own else RED)])
            elif rng.random() < 0.1:
                more["namespaces"] = ["red", "default"]
            found.append(term(pick(KEYS), pick(selected), **more))
        return {"affinity": near(*found)}

    nodes, room = list[Node](), dict[str, int]()
    for i in range(int(rng.integers(2, 5))):
        labels = {key: f"{key[0]}{rng.integers(2)}" for key in ("zone", "rack") if rng.random() < 0.92}
        room[f"n{i}"] = int(rng.integers(1, 4))
        nodes.append(node(f"n{i}:{room[f'n{i}']}", labels))
    names, running = list(room), list[Pod]()
    for i in range(int(rng.integers(0, 3)) if rng.random() < 0.5 else 0):
        one = pod(f"run-{i}", at=pick(names), labels=pick(KINDS), cpu="0")
        running.append(elsewhere(one, "red") if rng.random() < 0.4 else one)
    kinds = [
        (labels, near_some(labels) if i == 0 or rng.random() < 0.7 else {})
        for i, labels in enumerate(pick(KINDS) for _ in range(int(rng.integers(1, 4))))
    ]
    count = int(rng.integers(2, 5))
    late = int(rng.integers(1, count)) if rng.random() < 0.25 else 0
    members = []
    for i in range(count):
        labels, spec = pick(kinds)
        at = ""
        if i < late and (open_to := [name for name in names if room[name] > 0]):
            at = pick(open_to)
            room[at] -= 1
        members.append(pod(f"p-{i}", gang="g", at=at, labels=labels, **spec))
    minimum = count if rng.random() < 0.6 else int(rng.integers(1, count + 1))
    return Case(nodes, running, members, minimum, room)


@pytest.mark.parametrize("seed", own_half(range(400)))
def test_as_many_members_are_placed_as_any_lawful_plan_holds(seed: int) -> None:
    case = random_case(seed)
    law = AffinityLaw.of(case.nodes, TEAMS)
    best = len(next(case.lawful(law), []))
    plan = plan_round(states(case.objects).snapshot(0.0))
    said = messages(plan)
    assert not any("failed koordpy's own check" in text or "unsupported" in text for text in said.values())
    placed = bound(plan)
    found = [(one, placed[one.metadata.name]) for one in case.pending if one.metadata.name in placed]
    assert len(found) == best
    assert law.keeps(found, case.before)


@pytest.mark.parametrize("seed", range(150))
def test_kube_scheduler_could_place_pods_that_match_themselves_the_same_way(seed: int) -> None:
    case = random_case(seed, own=True)
    law = AffinityLaw.of(case.nodes, TEAMS)
    for plan in case.lawful(law):
        assert law.order(plan, case.before) is not None
