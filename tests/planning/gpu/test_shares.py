# SPDX-License-Identifier: Apache-2.0
"""Ways to deal out sets among parts, against listing them all."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.devices.links.device_masks import bits_of, masks_of_size
from koordpy.devices.links.device_partitioning import Partitioner

GPUS = 7


def _ways(mask: int, kinds: list[int]) -> Iterator[tuple[int, ...]]:
    """Every way to deal a set out to parts in order; parts[i] is for a part of kinds[i]'s size."""
    if not kinds:
        yield ()
        return
    for own in combinations(bits_of(mask), kinds[0]):
        part = sum(1 << i for i in own)
        for rest in _ways(mask & ~part, kinds[1:]):
            yield (part, *rest)


@st.composite
def deals(draw: st.DrawFn) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True))
    numbers = [draw(st.integers(1, 2)) for _ in sizes]
    total = sum(s * n for s, n in zip(sizes, numbers, strict=True))
    if total > GPUS:
        numbers = [1] * len(sizes)
        total = sum(sizes)
    us = draw(st.lists(st.sampled_from(masks_of_size(GPUS, total).tolist()), min_size=1, max_size=4, unique=True))
    top = draw(st.sampled_from([3, 10**9]))
    seeds = draw(st.lists(st.lists(st.integers(0, top), min_size=128, max_size=128), min_size=1, max_size=3))
    order = draw(st.permutations([k for k, n in enumerate(numbers) for _ in range(n)]))
    return {"sizes": sizes, "numbers": numbers, "us": sorted(us), "tables": seeds, "order": order}


@given(deals())
@settings(max_examples=150, deadline=None)
def test_what_is_dealt_is_the_least_of_all_ways_and_the_first_of_equals(deal: dict[str, Any]) -> None:
    tables = [np.array(one, dtype=np.int64) for one in deal["tables"]]
    sizes, order = deal["sizes"], deal["order"]
    listed = {
        (u, way): [sum(int(table[part]) for part in way) for table in tables]
        for u in deal["us"]
        for way in _ways(u, [sizes[k] for k in order])
    }
    charges = [lambda _, own, table=table: table[own] for table in tables]
    each = Partitioner(GPUS, np.array(deal["us"], dtype=np.int64), sizes, deal["numbers"])
    totals = [one.tolist() for one in each.charge(charges)]
    for i, u in enumerate(deal["us"]):
        assert [row[i] for row in totals] == min(cost for (v, _), cost in listed.items() if v == u)
    best = Partitioner(GPUS, np.array(deal["us"], dtype=np.int64), sizes, deal["numbers"])
    best.charge_best(charges)
    least = min(listed.values())
    assert best.us.tolist() == sorted({u for (u, _), cost in listed.items() if cost == least})
    some = tuple(best.any_way())
    assert min(cost for (_, way), cost in listed.items() if sorted(way) == sorted(some)) == least
    first = min(([bits_of(part) for part in way], way) for (_, way), cost in listed.items() if cost == least)[1]
    assert tuple(best.deal(order)) == first


@given(deals(), st.sets(st.integers(0, 127), max_size=30))
@settings(max_examples=80, deadline=None)
def test_forbidden_parts_are_in_no_way(deal: dict[str, Any], bad: set[int]) -> None:
    shares = Partitioner(GPUS, np.array(deal["us"], dtype=np.int64), deal["sizes"], deal["numbers"])
    shares.forbid(lambda _, own: np.array([mask not in bad for mask in own.tolist()], dtype=bool))
    able = [
        u
        for u in deal["us"]
        if any(not bad.intersection(way) for way in _ways(u, [deal["sizes"][k] for k in deal["order"]]))
    ]
    assert shares.us.tolist() == able
    every = [masks_of_size(GPUS, size) for size in deal["sizes"]]
    allowed = [masks[[mask not in bad for mask in masks.tolist()]] for masks in every]
    few = Partitioner(GPUS, np.array(deal["us"], dtype=np.int64), deal["sizes"], deal["numbers"], allowed)
    assert few.us.tolist() == able
    for kind in range(len(allowed)):
        assert few.parts(kind).tolist() == shares.parts(kind).tolist()
    if able:
        dealt = shares.deal(deal["order"])
        assert not bad.intersection(dealt)
        assert few.deal(deal["order"]) == dealt


@given(deals())
@settings(max_examples=40, deadline=None)
def test_a_single_division_is_known_as_such(deal: dict[str, Any]) -> None:
    sizes, us = deal["sizes"], np.array(deal["us"], dtype=np.int64)
    shares = Partitioner(GPUS, us, sizes, deal["numbers"])
    ways = {tuple(sorted(way)) for u in deal["us"] for way in _ways(u, [sizes[k] for k in deal["order"]])}
    assert shares.is_single == (len(ways) == 1)
    dealt = shares.deal(deal["order"])
    single = [np.array([one for one in dealt if one.bit_count() == size], dtype=np.int64) for size in sizes]
    assert Partitioner(GPUS, us, sizes, deal["numbers"], single).is_single
