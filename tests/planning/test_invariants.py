# SPDX-License-Identifier: Apache-2.0
"""What must hold for any cluster and any gangs: checked from outside, on whole rounds."""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpy.planner.planning_round import plan_round
from koordpy.pods.resource_amounts import pod_requests
from tests.scenarios.cluster import TWO_LAYERS, World, group, node, pod, wish


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, dict[str, Any], list[Any]]:
    two = st.integers(0, 1)
    nodes = [
        node(f"n{i}:{draw(st.integers(1, 4))}", {"spine": f"s{draw(two)}", "block": f"b{draw(two)}"})
        for i in range(draw(st.integers(1, 6)))
    ]
    objects: list[Any] = [TWO_LAYERS, *nodes]
    gangs: dict[str, Any] = {}
    for g in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, 5))
        must = draw(st.sampled_from([None, "blockLayer", "spineLayer"]))
        minimum = draw(st.integers(0, size))
        multiple = draw(st.sampled_from([None, {"blockLayer": 2}]))
        gather = {"spineLayer": "Prefer", "blockLayer": "Prefer", **({must: "Must"} if must else {})}
        pp = draw(st.sampled_from([1, 1, 2]))
        objects.append(group(f"g{g}", minimum, wish(gather, pp=pp, multiple=multiple)))
        gangs[f"g{g}"] = (minimum, must, multiple)
        cpus = st.sampled_from(["1", "1", "2"]) if draw(st.booleans()) else st.just("1")
        objects += [pod(f"g{g}-{i}", gang=f"g{g}", cpu=draw(cpus), created=i) for i in range(size)]
    objects += [pod(f"plain-{i}", cpu=draw(st.sampled_from(["1", "3"]))) for i in range(draw(st.integers(0, 3)))]
    objects += [pod(f"run-{i}", at=f"n{i}") for i in range(draw(st.integers(0, 2)))]
    return World().add(objects), gangs, objects


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_no_node_is_overfilled_and_every_gang_is_whole_or_absent(made: tuple[World, dict[str, Any], list[Any]]) -> None:
    world, gangs, _ = made
    before = world.snapshot()
    plan = plan_round(before)
    taken = [p.pod_key for p in plan.placements]
    assert len(taken) == len(set(taken))
    assert {p.pod_key for p in plan.pending} == {p.key for p in before.pending} - set(taken)
    use: Counter[str] = Counter({info.name: 0 for info in before.nodes})
    for info in before.pods.values():
        if info.node:
            use[info.node] += info.requests.get("cpu", 0)
    for placement in plan.placements:
        use[placement.node] += pod_requests(before.pods[placement.pod_key].pod).get("cpu", 0)
    for info in before.nodes:
        held = sum(p.requests.get("cpu", 0) for p in before.pods.values() if p.node == info.name)
        assert use[info.name] <= max(info.allocatable["cpu"], held)
    for name, (minimum, must, multiple) in gangs.items():
        at = [
            p.node for p in plan.placements if before.pods[p.pod_key].gang and before.pods[p.pod_key].gang.name == name
        ]
        assert not at or len(at) >= minimum
        labels = [before.nodes[before.index[n]].labels for n in at]
        if must and at:
            wide = {(lb["spine"], lb["block"]) if must == "blockLayer" else lb["spine"] for lb in labels}
            assert len(wide) == 1
        if multiple:
            assert all(n % 2 == 0 for n in Counter((lb["spine"], lb["block"]) for lb in labels).values())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_events(made: tuple[World, dict[str, Any], list[Any]], rng: Any) -> None:
    world, _, objects = made
    shuffled = list(objects)
    rng.shuffle(shuffled)
    first, second = world.plan(), World().add(shuffled).plan()
    assert sorted(first.placements, key=lambda p: p.pod_key) == sorted(second.placements, key=lambda p: p.pod_key)
    assert sorted(p.message for p in first.pending) == sorted(p.message for p in second.pending)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_rounds_come_to_rest(made: tuple[World, dict[str, Any], list[Any]]) -> None:
    """Binding what was planned and planning again ends; what fits is never left for a third round."""
    world, _, _ = made
    for _ in range(6):
        if not world.run().placements:
            return
    raise AssertionError("still placing after six rounds")
