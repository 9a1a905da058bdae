# SPDX-License-Identifier: Apache-2.0
"""Quotas that use more than their runtime give back (quota-fairness.md 5): whom, how many, and who stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.fairness.quota_runtime import all_quota_amounts
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import TWO_LAYERS, World, gang_pods, group, node, pod, wish
from tests.scenarios.quotas import GPU, belongs, quota
from tests.scenarios.test_victims import budget

LOAN = [quota("a", 4, 10), quota("b", 6, 10), pod("asks", labels=belongs("b"), cpu="6")]
"""b asks for its guarantee, so of ten cores a has four left."""


def at_once(**changes: Any) -> KoordpyConfiguration:
    return KoordpyConfiguration(
        preemption=Preemption(enabled=False),
        fairness=Fairness(reclaim="off"),
        quota=Quota(monitor_all_quotas=True, delay_evict_time=0.0, **changes),
    )


def given_back(world: World) -> list[str]:
    plan = plan_round(world.snapshot(), at_once())
    evictions = plan.evictions
    assert not plan.rejected
    assert all((one.rule, one.beneficiary) == ("quota", None) for one in evictions)
    return sorted(one.pod_key.removeprefix("default/") for one in evictions)


def run(name: str, cores: int, age: int = 0, *, rigid: bool = False, app: str = "", **settings_: Any) -> Any:
    """A pod in quota a; of a larger age it is older."""
    labels = {**belongs("a", rigid=rigid), **({"app": app} if app else {})}
    return pod(name, at="n1", cpu=str(cores), created=100 - age, labels=labels, **settings_)


ROWS: dict[str, tuple[list[Any], list[str]]] = {
    "the youngest go, as many as it takes": ([run(f"p{i}", 2, age=9 - i) for i in range(4)], ["p2", "p3"]),
    "lower priority goes before younger": (
        [run("old", 2, age=9, priority=0), run("young", 2, priority=5), run("mid", 2, age=3, priority=5)],
        ["old"],
    ),
    "of those the most important that fits again stays": (
        # seven cores, three too many: the youngest and the next would go; with the next one alone it is enough
        [run("first", 2, age=9), run("next", 3, age=5), run("last", 2, age=1)],
        ["next"],
    ),
    "who may not be evicted stays": ([run("p0", 2, age=9), run("p1", 2, age=5), run("p2", 2, rigid=True)], ["p1"]),
    "a budget forbids": (
        [budget(0, "x"), run("p0", 2, age=9), run("p1", 2, age=5, app="x"), run("p2", 2, age=1, app="x")],
        ["p0"],
    ),
    "of a gang its surplus goes": (
        [group("g", 2), *gang_pods("g", 4, at="n1", cpu="2", labels=belongs("a"))],
        ["p-2", "p-3"],
    ),
    "or all of it": (
        [group("g", 3), *gang_pods("g", 4, at="n1", cpu="2", labels=belongs("a"))],
        ["p-0", "p-1", "p-2", "p-3"],
    ),
    "of a gang that stands in pairs whole pairs go": (
        [
            TWO_LAYERS,
            group("g", 2, wish({"blockLayer": "Must"}, multiple={"blockLayer": 2})),
            *gang_pods("g", 6, at="n1", cpu="1", labels=belongs("a")),
        ],
        ["p-4", "p-5"],
    ),
    "of an odd number, too": (
        [
            TWO_LAYERS,
            group("g", 2, wish({"blockLayer": "Must"}, multiple={"blockLayer": 2})),
            *gang_pods("g", 6, at="n1", cpu="1", labels=belongs("a")),
            run("old", 1, age=9, priority=1),
        ],
        ["p-2", "p-3", "p-4", "p-5"],
    ),
    "within the runtime nobody goes": ([run("p0", 2), run("p1", 2)], []),
    "pods of other quotas stay": (
        [run("p0", 4), pod("other", at="n1", cpu="4", labels=belongs("b"), created=100)],
        [],
    ),
}


@pytest.mark.parametrize("age", [1, 5, 9])
def test_a_broken_gang_goes_once_where_those_that_it_is_linked_to_go(age: int) -> None:
    """Six cores too many; four are protected, and the linked gangs hold five."""
    links = {keys.GANG_GROUPS: '["default/g", "default/h"]'}
    world = World().add(node("n1:10"), LOAN, group("g", 2, links), group("h", 1, links))
    world.add(run("g-0", 3, age=5, gang="g"), run("h-0", 2, age=age, gang="h"))
    world.add(run("stays", 4, rigid=True), run("last", 1, priority=5))
    assert given_back(world) == ["g-0", "h-0", "last"]


@pytest.mark.parametrize("row", ROWS)
def test_given_back_is_what(row: str) -> None:
    objects, gone = ROWS[row]
    assert given_back(World().add(node("n1:10"), LOAN, objects)) == gone


@dataclass(frozen=True)
class Running:
    name: str
    quota: str
    cpu: int
    gpus: int
    priority: int
    created: int
    rigid: bool

    def holds(self, resource: str) -> int:
        return self.cpu * 1000 if resource == "cpu" else self.gpus


def by_the_rule(world: World, pods: Sequence[Running]) -> set[str]:
    """quota-fairness.md 5, over-use, pod by pod and quota by quota in natural order."""
    quotas = world.snapshot().quotas
    round_state = all_quota_amounts(quotas, at_once().quota)
    gone: set[str] = set()
    for name in quotas.tree.quotas:
        inside = [p for p in pods if name in quotas.tree.path(p.quota)]
        runtime = round_state[name].runtime

        def above(out: set[str], inside: list[Running] = inside, runtime: dict[str, int] = runtime) -> list[str]:
            return [r for r in runtime if sum(p.holds(r) for p in inside if p.name not in out) > runtime[r]]

        over = above(gone)
        order = sorted(inside, key=lambda p: (p.priority, -p.created, -int(p.name[1:])))
        taken: list[Running] = []
        for one in order:
            if not set(over) & set(above(gone | {p.name for p in taken})):
                break
            if not one.rigid and one.name not in gone and any(one.holds(r) for r in over):
                taken.append(one)
        for one in reversed(list(taken)):
            rest = [p for p in taken if p is not one]
            if not set(over) & set(above(gone | {p.name for p in rest})):
                taken = rest
        gone |= {p.name for p in taken}
    return gone


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_plain_pods_are_given_back_by_the_rule(data: st.DataObject) -> None:
    draw = data.draw
    world = World().add(node(f"n1:{draw(st.integers(4, 30))}", **{GPU: str(draw(st.integers(4, 30)))}))
    inner: list[str] = []
    leaves = [""]
    for i in range(draw(st.integers(1, 4))):
        most = {"cpu": draw(st.integers(1, 14)), GPU: draw(st.integers(1, 14))}
        least = {r: draw(st.integers(0, amount)) for r, amount in most.items()}
        is_inner = not draw(st.integers(0, 2))
        parent = draw(st.sampled_from(["", *inner]))
        world.add(quota(f"q{i}", least, most, parent=parent, inner=is_inner, forced=True))
        (inner if is_inner else leaves).append(f"q{i}")
    small = st.integers(0, 5)
    pods = [
        Running(
            f"r{i}", draw(st.sampled_from(leaves)), draw(small), draw(small), draw(st.sampled_from([0, 0, 3])),
            draw(small), not draw(st.integers(0, 6)),
        )
        for i in range(draw(st.integers(1, 9)))
    ]  # fmt: skip
    for p in pods:
        labels = belongs(p.quota, rigid=p.rigid)
        world.add(
            pod(
                p.name,
                at="n1",
                labels=labels,
                cpu=str(p.cpu),
                requests={GPU: str(p.gpus)},
                priority=p.priority,
                created=p.created,
            )
        )
    assert set(given_back(world)) == by_the_rule(world, pods)
