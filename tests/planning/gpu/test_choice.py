# SPDX-License-Identifier: Apache-2.0
"""The choice of GPUs inside one node: the examples of gpu-topology.md 11, and every rule against plain enumeration."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.choice.gpu_wants import PodWant, want_on
from koordpy.devices.links.device_masks import bits_of
from tests.planning.gpu.brute import best_choice
from tests.planning.gpu.machines import BRIDGES, UNIFORM, M, chosen, machine, mask

ALL = range(8)
MEASURED = machine(M)
TURNED = [row[:] for row in M]
TURNED[2][3] = 6.02


@dataclass(frozen=True)
class Case:
    """free GPUs, pods by the GPUs of their containers, and what each gets."""

    name: str
    free: Any
    pods: list[tuple[int, ...]]
    answer: list[list[list[int]]]
    held: tuple[int, ...] = ()
    on: Any = MEASURED


CASES = [
    Case("1 pairs that break no quad", ALL, [(2,)], [[[0, 3]]]),
    Case("2 a quad", ALL, [(4,)], [[[0, 1, 2, 3]]]),
    Case("4 a ring decides, then what is left", ALL, [(5,)], [[[0, 2, 3, 5, 6]]]),
    Case("5 growing the best pair would fail", (0, 1, 2, 6), [(3,)], [[[0, 1, 2]]]),
    Case("6 one GPU leaves the quad whole", range(7), [(1,)], [[[4]]]),
    Case("7 one slow direction counts", ALL, [(4,)], [[[4, 5, 6, 7]]], on=machine(TURNED)),
    Case("8 the worst pair rather than none", (0, 4), [(2,)], [[[0, 4]]]),
    Case("9 two pods share a quad", ALL, [(2,), (2,)], [[[0, 3]], [[1, 2]]]),
    Case("10 the pods' own links before the ring", ALL, [(3,), (3,)], [[[0, 1, 3]], [[5, 6, 7]]]),
    Case("11 the second quad", (4, 5, 6, 7), [(2,), (2,)], [[[4, 7]], [[5, 6]]]),
    Case("13 what siblings hold counts", (1, 2, 4, 5), [(2,)], [[[4, 5]]], held=(6, 7)),
    Case("13 alone the first of equals", (1, 2, 4, 5), [(2,)], [[[1, 2]]]),
    Case("14 the first of a pair", ALL, [(1,)], [[[0]]], on=machine(links=BRIDGES)),
    Case("14 the broken bridge is used up", range(1, 8), [(1,)], [[[1]]], on=machine(links=BRIDGES)),
    Case("15 blocks stay whole", (0, 1, 2, 3, 5, 6, 7), [(1,)], [[[5]]], on=machine(UNIFORM)),
    Case("16 containers split their pod's set", (4, 5, 6, 7), [(2, 2)], [[[4, 7], [5, 6]]]),
    Case("an init container's surplus is in no container", (4, 5, 6, 7), [(2,)], [[[4, 7]]]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pods_get_the_gpus_of_the_example(case: Case) -> None:
    assert chosen(case.on, case.free, *case.pods, held=case.held) == case.answer


def test_the_surplus_of_an_init_container_is_given_but_in_no_container() -> None:
    on = machine(UNIFORM)
    found = chooser_of(on).choose(mask(ALL), 0, (want_on(on, PodWant(4, (2,))),))
    assert found is not None
    ((whole, containers),) = found
    assert bits_of(whole) == [0, 1, 2, 3]
    assert [bits_of(one) for one in containers] == [[0, 1]]


def test_too_few_gpus_are_no_choice() -> None:
    assert chosen(MEASURED, (0, 1), (3,)) is None


def test_sixteen_equal_gpus_fill_the_broken_half_first() -> None:
    on = machine([[300] * 16 for _ in range(16)])
    assert chosen(on, range(1, 16), (2,)) == [[[2, 3]]]
    assert chosen(on, [i for i in range(16) if i != 3], (8,)) == [[[8, 9, 10, 11, 12, 13, 14, 15]]]


@st.composite
def matrices(draw: st.DrawFn, size: int) -> list[list[float]]:
    values = draw(st.lists(st.sampled_from([0, 5, 10, 20, 50, 100]), min_size=1, max_size=4))
    rows = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i):
            rows[i][j] = rows[j][i] = draw(st.sampled_from(values))
    return rows


@st.composite
def situations(draw: st.DrawFn) -> tuple[Any, ...]:
    size = draw(st.integers(2, 6))
    rows = draw(matrices(size))
    places = [draw(st.sampled_from("fffffhs")) for _ in range(size)]
    free = [i for i, place in enumerate(places) if place == "f"]
    held = [i for i, place in enumerate(places) if place == "h"]
    pods: list[tuple[int, tuple[int, ...]]] = []
    left = len(free)
    while left and len(pods) < 3:  # as many pods as there is room for
        count = draw(st.integers(1, left))
        containers: list[int] = []
        while sum(containers) < count and len(containers) < 2 and draw(st.booleans()):
            containers.append(draw(st.integers(1, count - sum(containers))))
        pods.append((count, tuple(containers) or (count,)))
        left -= count
        if draw(st.booleans()):
            break
    numa = [draw(st.integers(0, 1)) for _ in range(size)] if draw(st.booleans()) else None
    return rows, free, held, pods, numa


@given(situations())
@settings(max_examples=300, deadline=None)
def test_the_choice_is_the_best_of_all(situation: tuple[Any, ...]) -> None:
    rows, free, held, pods, numa = situation
    places = [{"node_id": n} for n in numa] if numa else None
    on = machine(rows, places=places)
    wants = tuple(want_on(on, PodWant(count, containers)) for count, containers in pods)
    found = chooser_of(on).choose(mask(free), mask(held), wants)
    pattern, size = on.matrix.pattern, len(rows)
    listed = []
    if pattern.classes == 1:
        listed = [(tuple(range(at, at + n)), 1) for n in (1, 2, 4) for at in range(0, size - n + 1, n)]
    answer = best_choice(pattern.ranks, on.matrix.floors, free, pods, held=held, numa=numa, listed=listed)
    assert (None if found is None else [tuple(bits_of(own)) for own, _ in found]) == answer
    judged = chooser_of(on).judge(mask(free), mask(held), wants)
    if found and judged:
        low = chooser_of(on).tables.low_list
        union = mask(held) | mask([i for own, _ in found for i in bits_of(own)])
        assert judged.low == low[union]
        assert judged.lows == tuple(sorted(low[own] for own, _ in found))


@st.composite
def picky_pods(draw: st.DrawFn) -> tuple[Any, list[int], list[int], list[PodWant]]:
    size = draw(st.integers(3, 6))
    rows = draw(matrices(size))
    sets = st.lists(st.integers(0, size - 1), min_size=1, max_size=3, unique=True).map(sorted)
    table: dict[str, list[dict[str, Any]]] = {}
    for minors in draw(st.lists(sets, max_size=4)):
        one = {"minors": minors, "allocationScore": draw(st.integers(1, 3))}
        table.setdefault(str(len(minors)), []).append(one)
    annotations = {keys.GPU_PARTITIONS: json.dumps(table)} if table else {}
    honor = {keys.GPU_PARTITION_POLICY: "Honor"} if table and draw(st.booleans()) else {}
    places = [draw(st.sampled_from("fffffh")) for _ in range(size)]
    free = [i for i, place in enumerate(places) if place == "f"]
    held = [i for i, place in enumerate(places) if place == "h"]
    wants, left = [], len(free)
    while left and len(wants) < 2:
        count = draw(st.integers(1, min(3, left)))
        wants.append(PodWant(count, (count,), draw(st.sampled_from([0, 10, 50])) * 10**6, draw(st.booleans())))
        left -= count
    return machine(rows, annotations=annotations, node=honor), free, held, wants


@given(picky_pods())
@settings(max_examples=200, deadline=None)
def test_nodes_are_judged_by_what_picky_pods_would_be_given(situation: Any) -> None:
    on, free, held, pods = situation
    chooser, wants = chooser_of(on), tuple(want_on(on, pod) for pod in pods)
    found, judged = chooser.choose(mask(free), mask(held), wants), chooser.judge(mask(free), mask(held), wants)
    assert (found is None) == (judged is None) == (not chooser.can(mask(free), wants))
    if found is None or judged is None:
        return
    low = chooser.tables.low_list
    union = mask(held) | mask([i for own, _ in found for i in bits_of(own)])
    assert (judged.low, judged.lows) == (low[union], tuple(sorted(low[own] for own, _ in found)))
