# SPDX-License-Identifier: Apache-2.0
"""Shares, runtimes and queue order against a plain reading of quota-fairness.md 2 to 4, on random trees."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.config.configuration import Quota
from koordpy.fairness.fair_shares import Claim, exact_and_whole_shares, kai_shares
from koordpy.fairness.quota_runtime import all_quota_amounts
from tests.planning import fairness_oracle as oracle
from tests.planning.test_order import names
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import GPU, belongs, quota

AMOUNTS = st.integers(0, 12) | st.sampled_from([100, 997])
QUARTERS = st.integers(0, 6).map(lambda n: Fraction(n, 4))


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    return [
        Claim(
            request=draw(AMOUNTS),
            quota=draw(st.none() | AMOUNTS),
            limit=draw(st.none() | AMOUNTS),
            weight=draw(st.sampled_from([0, 1, 1, 2, 5, Fraction(1, 2)])),
            priority=draw(st.sampled_from([50, 100])),
            usage=draw(QUARTERS),
            parent=draw(st.integers(-1, i - 1)),
        )
        for i in range(draw(st.integers(1, 8)))
    ]


@settings(max_examples=400, deadline=None)
@given(claims(), AMOUNTS, st.sampled_from([0, 0, 1, Fraction(1, 2), 3]))
def test_shares(queues: list[Claim], total: int, k: Any) -> None:
    unrounded, whole = exact_and_whole_shares(total, queues, k=k)
    assert unrounded == oracle.shares("exact", total, queues, k=k)
    assert whole == oracle.shares("whole", total, queues, k=k)
    assert kai_shares(total, queues, k=k) == oracle.shares("kai", total, queues, k=k)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(0, 40), st.booleans(), st.booleans())
def test_runtimes(data: st.DataObject, capacity: int, scale: bool, guarantee: bool) -> None:
    draw = data.draw
    world = World().add(node("n1", **{GPU: str(capacity)}))
    want: dict[str, oracle.Ask] = {}
    taken = 0
    for i in range(draw(st.integers(1, 7))):
        name, most = draw(st.sampled_from([f"q{i}", f"q{10 * i + 1}-x"])), draw(st.integers(0, 20))
        parent = draw(st.sampled_from(["", *want]))
        one = oracle.Ask(
            least=draw(st.integers(0, most)),
            most=most,
            weight=draw(st.integers(0, 5)),
            parent=parent,
            lends=draw(st.booleans()),
            used=draw(st.integers(0, 9)),
            waiting=draw(st.integers(0, 9)),
        )
        want[name] = one
        world.add(
            quota(
                name,
                {GPU: one.least},
                {GPU: most},
                parent=parent,
                inner=True,
                lends=one.lends,
                weight={GPU: one.weight},
            )
        )
        world.add(pod(f"r{i}", labels=belongs(name), requests={GPU: str(one.used)}, at="n1"))
        world.add(pod(f"p{i}", labels=belongs(name), requests={GPU: str(one.waiting)}))
    for built_in in (keys.DEFAULT_QUOTA, keys.SYSTEM_QUOTA):
        amount = draw(st.integers(0, 5))
        taken += amount
        world.add(pod(f"r-{built_in}", labels=belongs(built_in), requests={GPU: str(amount)}, at="n1"))
    oracle.runtimes(want, max(0, capacity - taken), scale=scale, guarantee=guarantee)
    settings_ = Quota(enable_min_quota_scale=scale, guarantee_usage=guarantee)
    found = all_quota_amounts(world.snapshot().quotas, settings_)
    for name, one in want.items():
        got = found[name]
        round_state = got.request[GPU], got.allocated[GPU], got.guaranteed[GPU], got.runtime[GPU]
        assert round_state == (one.request, one.allocated, one.guaranteed, one.runtime), name


@pytest.mark.parametrize("mode", ["exact", "kai"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_order(mode: str, data: st.DataObject) -> None:
    draw = data.draw
    resources = draw(st.sampled_from([("cpu",), (GPU,), (GPU, "cpu"), (GPU, "cpu", "memory")]))
    small = st.integers(0, 4)
    capacity = draw(st.integers(1, 12))
    world = World().add(node(f"n1:{capacity}", **{GPU: str(capacity), "memory": str(capacity)}))
    places: dict[str, oracle.Place] = {}
    weights: dict[str, dict[str, int]] = {}
    inner: list[str] = []
    for i in range(draw(st.integers(0, 4))):
        name, parent = f"q{i}", draw(st.sampled_from(["", *inner]))
        counted = places[parent].counted if parent else tuple(r for r in resources if draw(st.integers(0, 5)))
        assert counted is not None
        limit = {r: draw(st.integers(0, 8)) for r in counted}
        least = {r: draw(st.integers(0, limit[r])) for r in counted}
        weights[name] = {r: draw(st.integers(0, 3)) for r in counted}
        created, is_inner = draw(small), draw(st.booleans())
        places[name] = oracle.Place(name, created - 1000, parent, least, limit, counted)
        world.add(
            quota(
                name,
                least,
                limit,
                parent=parent,
                inner=is_inner,
                weight=weights[name],
                forced=True,
                created=created,
            )
        )
        if is_inner:
            inner.append(name)
    owners = [name for name in places if name not in inner] + ["alice", "bob"]
    jobs: list[oracle.Waiting] = []
    total_asked: dict[tuple[str, str], int] = {}
    for i in range(draw(st.integers(1, 8))):
        owner, asks = draw(st.sampled_from(owners)), {r: draw(small) for r in resources}
        created, priority = draw(small), draw(st.integers(0, 1))
        running = not draw(st.integers(0, 2))
        labels = belongs(owner) if owner in places and places[owner].counted is not None else belongs(user=owner)
        requests = {r: str(amount) for r, amount in asks.items() if r != "cpu"}
        world.add(
            pod(
                f"j{i}",
                labels=labels,
                cpu=str(asks.get("cpu", 0)),
                requests=requests,
                created=created,
                priority=priority,
                at="n1" if running else "",
            )
        )
        places.setdefault(owner, oracle.Place(owner, oracle.INFINITE))
        for r, amount in asks.items():
            total_asked[owner, r] = total_asked.get((owner, r), 0) + amount
        if places[owner].counted is None:
            # those that run count: an odd unit must not move with what is placed (quota-fairness.md 9)
            places[owner].age = min(places[owner].age, created)
        if not running:
            jobs.append(oracle.Waiting(f"j{i}", owner, asks, created, priority))
            continue
        at = owner
        while at:
            held = places[at].held
            held |= {r: held.get(r, 0) + amount for r, amount in asks.items()}
            at = places[at].parent
    for resource in resources:
        if not any(amount for (_, r), amount in total_asked.items() if r == resource):
            continue
        queues = sorted(
            (place for place in places.values() if place.counts(resource)), key=lambda place: (place.age, place.name)
        )
        position = {place.name: i for i, place in enumerate(queues)}
        thousandth = Fraction(1, 1000) if resource == "cpu" else 1
        asked = [
            Claim(
                request=total_asked.get((place.name, resource), 0),
                quota=place.quota.get(resource, 0),
                limit=place.limit.get(resource),
                weight=weights[place.name][resource] if place.counted is not None else 1,
                parent=position.get(place.parent, -1) if place.parent else -1,
            )
            for place in queues
        ]
        for place, share in zip(queues, oracle.shares(mode, capacity, asked, unit=thousandth), strict=True):
            place.share[resource] = share
    mask = draw(st.integers(0, 255))
    fits = {f"j{i}": bool(mask >> i & 1) for i in range(8)}
    found = names(world, fits=lambda unit: fits[unit.id.rpartition("/")[2]], mode=mode)
    try:
        wanted = oracle.order(mode, places, jobs, lambda name: fits[name], GPU)
    except oracle.UndecidedError:
        reject()
    assert found == wanted
