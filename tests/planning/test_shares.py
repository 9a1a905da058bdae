# SPDX-License-Identifier: Apache-2.0
"""Fair shares (quota-fairness.md 3): the worked examples, an oracle by breakpoints, and what holds for any input."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import Fairness
from koordpy.fairness.fair_shares import Claim, Rational, exact_and_whole_shares, kai_shares
from koordpy.fairness.queue_shares import user_shares
from koordpy.fairness.tenant_entitlements import ACCELERATORS, entitlements_of
from koordpy.observe.gauges import share_gauges
from koordpy.quota.quota_book import CARDS
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import belongs

HALF = Fraction(1, 2)


def exact(total: Rational, claims: Sequence[Claim], *, k: Rational = 0) -> list[Rational]:
    return exact_and_whole_shares(total, claims, k=k)[1]


EXAMPLES = [
    ("3: weights 1:3", 8, [Claim(6, 2, weight=1), Claim(6, 2, weight=3)], 0, [3, 5], [3, 5]),
    ("4: the odd unit goes to the older", 11, [Claim(6, 2), Claim(6, 2)], 0, [6, 5], [6, 5]),
    ("5: KAI leaves part of a unit behind", 10, [Claim(9), Claim(2), Claim(9, weight=2)], 0, [3, 2, 5], [2, 2, 6]),
    ("6: quota first", 1000, [Claim(5000, 250, weight=1), Claim(5000, 150, weight=2)], 0, [450, 550], [450, 550]),
    ("6: quotas above the capacity", 1, [Claim(3, 2), Claim(3, 2)], 0, [1, 0], [2, 2]),
    ("7: past usage", 16, [Claim(99, usage=HALF), Claim(99)], 1, [5, 11], None),
    ("what the other does not ask is not left idle", 16, [Claim(99, usage=1), Claim(4)], 1, [12, 4], None),
    ("no limit on the request", 8, [Claim(9, limit=3), Claim(9)], 0, [3, 5], [3, 5]),
    ("a quota of all", 8, [Claim(9, None), Claim(9, 0)], 0, [8, 0], [8, 0]),
    ("priority before weight", 10, [Claim(8, weight=9), Claim(8, priority=200)], 0, [2, 8], [2, 8]),
    ("quota before priority", 10, [Claim(9, 4), Claim(9, priority=200)], 0, [4, 6], [4, 6]),
    ("quota by priority where it does not fit", 5, [Claim(9, 4), Claim(9, 4, priority=200)], 0, [1, 4], None),
    ("weight 0 keeps its quota alone", 10, [Claim(9, 2, weight=0), Claim(3)], 0, [2, 3], [2, 3]),
    ("all used: plain weights", 9, [Claim(9, weight=2, usage=5), Claim(9, usage=5)], 1, [6, 3], None),
    ("nobody", 8, [], 0, [], []),
]


@pytest.mark.parametrize(
    ("total", "claims", "k", "by_level", "by_kai"), [e[1:] for e in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_the_worked_examples(
    total: int, claims: list[Claim], k: int, by_level: list[int], by_kai: list[int] | None
) -> None:
    assert exact(total, claims, k=k) == by_level
    if by_kai is not None:
        assert kai_shares(total, claims, k=k) == by_kai


def test_unrounded_shares_are_fractions() -> None:
    assert exact_and_whole_shares(10, [Claim(9), Claim(2), Claim(9, weight=2)])[0] == [
        Fraction(8, 3),
        2,
        Fraction(16, 3),
    ]


def test_a_child_shares_what_its_parent_has() -> None:
    claims = [
        Claim(quota=6, limit=6),  # org: asks what its children can take
        Claim(9, parent=0),
        Claim(9, weight=2, parent=0),
        Claim(9),
    ]
    assert exact(9, claims) == [6, 2, 4, 3]


def test_an_odd_unit_goes_down_one_path_and_the_inner_queue_is_the_sum_of_its_leaves() -> None:
    claims = [Claim(), Claim(9, parent=0), Claim(9, parent=0), Claim(), Claim(9, parent=3)]
    assert exact(5, claims) == [3, 2, 1, 2, 2]  # 2.5 each at the top, 1.25 each below the first


def test_the_smaller_usage_gets_an_odd_unit_before_the_older() -> None:
    assert exact(3, [Claim(9, usage=HALF), Claim(9, usage=0)]) == [1, 2]


def test_kai_gives_remainders_from_the_largest_on_and_forgets_those_of_filled_queues() -> None:
    assert kai_shares(7, [Claim(9, weight=3), Claim(9, weight=2), Claim(1, weight=2)]) == [4, 2, 1]


# -- against an oracle ------------------------------------------------------------------------------------------------

amounts = st.integers(0, 12)
flat = st.lists(
    st.builds(
        Claim,
        request=amounts,
        quota=st.none() | amounts,
        limit=st.none() | amounts,
        weight=st.integers(0, 4),
        priority=st.sampled_from([50, 100]),
    ),
    min_size=1,
    max_size=5,
)


def breakpoints(total: Fraction, claims: Sequence[Claim]) -> list[Fraction]:
    """The same rule by another way: the level is looked for among the points where a queue is full."""

    def level(rest: Fraction, parts: list[tuple[Fraction, Fraction]]) -> Fraction:
        """Level at which the sum of min(need, level * weight) is the rest."""
        points = sorted({need / weight for need, weight in parts if weight} | {Fraction(0)})
        filled = [sum((min(need, at * weight) for need, weight in parts), Fraction(0)) for at in points]
        for low, high, below, above in zip(points, points[1:], filled, filled[1:], strict=False):
            if below <= rest <= above and above > below:
                return low + (high - low) * (rest - below) / (above - below)
        return points[-1]

    caps = [Fraction(c.request if c.limit is None else min(c.request, c.limit)) for c in claims]
    quotas = [Fraction(total if c.quota is None else c.quota) for c in claims]
    base = [min(quota, cap) for quota, cap in zip(quotas, caps, strict=True)]
    shares, rest = [Fraction(0)] * len(claims), total
    for step in ("quota", "rest"):
        for priority in sorted({c.priority for c in claims}, reverse=True):
            own = [i for i, c in enumerate(claims) if c.priority == priority]
            if step == "quota":
                fits = sum(base[i] for i in own) <= rest
                at = level(rest, [(base[i], quotas[i]) for i in own])
                gains = {i: base[i] if fits else min(base[i], at * quotas[i]) for i in own}
            else:
                at = level(rest, [(caps[i] - base[i], Fraction(claims[i].weight)) for i in own])
                gains = {i: min(caps[i] - base[i], at * claims[i].weight) for i in own}
            for i, gain in gains.items():
                shares[i] += gain
            rest -= sum(gains.values())
            if rest == 0:
                return shares
    return shares


@settings(max_examples=400, deadline=None)
@given(flat, amounts)
def test_exact_shares_are_those_of_the_breakpoints(claims: list[Claim], total: int) -> None:
    assert exact_and_whole_shares(total, claims)[0] == breakpoints(Fraction(total), claims)


# -- what holds for any input -----------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> list[Claim]:
    return [
        Claim(
            request=draw(amounts),
            quota=draw(amounts),
            limit=draw(st.none() | amounts),
            weight=draw(st.integers(1, 5)),
            priority=draw(st.sampled_from([50, 100])),
            usage=Fraction(draw(st.integers(0, 4)), 4),
            parent=draw(st.integers(-1, i - 1)),
        )
        for i in range(draw(st.integers(1, 7)))
    ]


def leaves(claims: Sequence[Claim]) -> list[int]:
    return [i for i in range(len(claims)) if all(c.parent != i for c in claims)]


def caps(claims: Sequence[Claim]) -> list[Rational]:
    out: list[Rational] = [0] * len(claims)
    for i in reversed(range(len(claims))):
        below = [out[j] for j, c in enumerate(claims) if c.parent == i]
        request = sum(below) if below else claims[i].request
        limit = claims[i].limit
        out[i] = request if limit is None else min(request, limit)
    return out


@settings(max_examples=300, deadline=None)
@given(trees(), amounts, st.sampled_from([0, 1, HALF]))
def test_shares_add_up_and_nobody_has_more_than_it_can_take(claims: list[Claim], total: int, k: Rational) -> None:
    most = caps(claims)
    unrounded, rounded = exact_and_whole_shares(total, claims, k=k)
    asked = sum(most[i] for i, c in enumerate(claims) if c.parent == -1)
    for shares in (unrounded, rounded):
        assert sum(shares[i] for i in leaves(claims)) == min(total, asked)
        assert all(0 <= share <= cap for share, cap in zip(shares, most, strict=True))
        for i in range(len(claims)):
            below = [shares[j] for j, c in enumerate(claims) if c.parent == i]
            assert not below or sum(below) == shares[i]
    for a, b in zip(unrounded, rounded, strict=True):
        assert abs(a - b) < 1
        assert b.denominator == 1


@settings(max_examples=300, deadline=None)
@given(flat, amounts)
def test_more_capacity_never_lowers_a_share_by_more_than_a_unit(claims: list[Claim], total: int) -> None:
    if any(claim.quota is None for claim in claims):
        return  # a quota of all grows with the capacity and may push others down
    before, after = exact(total, claims), exact(total + 1, claims)
    assert all(b >= a - 1 for a, b in zip(before, after, strict=True))


@settings(max_examples=300, deadline=None)
@given(trees(), amounts, st.sampled_from([0, 1, HALF]))
def test_kai_honours_quotas_and_gives_away_no_more_than_there_is(claims: list[Claim], total: int, k: Rational) -> None:
    most = caps(claims)
    tops = [i for i, c in enumerate(claims) if c.parent == -1]
    shares = kai_shares(total, claims, k=k)
    base = [min(claims[i].quota or 0, most[i]) for i in tops]
    assert all(b <= shares[i] <= most[i] for i, b in zip(tops, base, strict=True))
    assert sum(shares[i] for i in tops) <= max(total, sum(base))


@settings(max_examples=200, deadline=None)
@given(flat, amounts)
def test_the_outcome_depends_on_ratios_alone(claims: list[Claim], total: int) -> None:
    def times(claim: Claim, n: int) -> Claim:
        return Claim(
            claim.request * n,
            None if claim.quota is None else claim.quota * n,
            None if claim.limit is None else claim.limit * n,
            Fraction(claim.weight) / 7,
            claim.priority,
        )

    scaled = exact_and_whole_shares(total * 3, [times(claim, 3) for claim in claims])[0]
    assert scaled == [share * 3 for share in exact_and_whole_shares(total, claims)[0]]


@pytest.mark.parametrize(
    ("listed", "shares"),
    [
        ({"nvidia.com/gpu": "4", "koordinator.sh/gpu": "400"}, {"alice": 2, "bob": 2}),
        ({"nvidia.com/gpu": "4", "aliyun.com/gpu-count": "4", "huawei.com/Ascend910": "2"}, {"alice": 3, "bob": 3}),
        ({"koordinator.sh/gpu": "400"}, {"alice": 2, "bob": 2}),
    ],
)
def test_a_card_is_one_card_under_whatever_names(listed: dict[str, str], shares: dict[str, int]) -> None:
    """Each asks for as many as there are."""
    world = World().add(node("n", cpu="64", **listed))
    world.add(*(pod(user, requests={"nvidia.com/gpu": "6"}, labels=belongs(user=user)) for user in shares))
    assert user_shares(world.snapshot().quotas, Fairness(), {}).whole == shares


def test_a_card_that_a_pod_asks_for_under_two_names_is_one() -> None:
    """Of 4 cards bob asks for 2, each under one name, and alice for 2, each under both: she waits for none of his."""
    world = World().add(node("n", cpu="64", **{"nvidia.com/gpu": "4", "koordinator.sh/gpu": "400"}))
    both = {"nvidia.com/gpu": "1", "koordinator.sh/gpu": "100"}
    world.add(pod("a0", at="n", requests=both, labels=belongs(user="alice")))
    world.add(pod("a1", requests=both, labels=belongs(user="alice"), created=5))
    world.add(pod("b0", at="n", requests={"nvidia.com/gpu": "1"}, labels=belongs(user="bob")))
    world.add(pod("b1", requests={"koordinator.sh/gpu": "100"}, labels=belongs(user="bob"), created=5))
    snapshot = world.snapshot()
    assert user_shares(snapshot.quotas, Fairness(), {}).whole == {"alice": 2, "bob": 2}
    assert share_gauges(snapshot.quotas, Fairness())["alice", "used"] == 1
    draft = Draft(snapshot)
    assert draft.quotas.user("alice", CARDS) == draft.quotas.user("bob", CARDS) == 100
    draft.assign(snapshot.pods["default/a1"], 0)
    assert draft.quotas.user("alice", CARDS) == 200
    lines = entitlements_of(snapshot, Fairness())
    assert lines is not None
    assert lines.amounts(snapshot.pods["default/a1"].requests) == {ACCELERATORS: 100}
