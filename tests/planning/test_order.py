# SPDX-License-Identifier: Apache-2.0
"""Who is next (quota-fairness.md 2): the order of units, mode by mode."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import Fairness
from koordpy.fairness.queue_shares import queue_ages, queue_shares
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.planner.queue.unit_order import UnitOrder
from tests.scenarios.cluster import World, gang_pods, group, node, pod
from tests.scenarios.quotas import GPU, belongs, quota


def gpus(count: int) -> dict[str, Any]:
    return {"requests": {GPU: str(count)}, "cpu": "0"} if count else {"cpu": "0"}


def names(
    world: World, *, fits: Callable[[Unit], bool] = lambda unit: True, now: float = 0.0, **fairness: Any
) -> list[str]:
    """Units in their order; those that fit are placed, on a node that is large enough for all of them."""
    snapshot = world.state.snapshot(now)
    draft = Draft(snapshot)
    queue = UnitOrder(
        Groups(snapshot).units(), use=draft.quotas, pods=snapshot.pods.values(), config=Fairness(**fairness), now=now
    )
    out = []
    for unit in queue:
        out.append(unit.id.rpartition("/")[2])
        if fits(unit):
            for one in unit.pending:
                draft.assign(one, 0)
            queue.placed()
    return out


def cluster(*objects: Any, total: int = 16) -> World:
    return World().add(node("n1:64", **{GPU: str(total)}), list(objects))


def of(user: str, name: str, count: int = 1, **settings_: Any) -> Any:
    return pod(name, labels=belongs(user=user), **gpus(count), **settings_)


def inside(name: str, job: str, count: int = 1, **settings_: Any) -> Any:
    return pod(job, labels=belongs(name), **gpus(count), **settings_)


# -- gpu-count --------------------------------------------------------------------------------------------------------


def test_users_take_turns_by_what_they_hold() -> None:
    world = cluster(
        *(of("alice", f"a-{i}", created=i) for i in range(3)), *(of("bob", f"b-{i}", created=9) for i in range(3))
    )
    assert names(world) == ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]


def test_priority_orders_a_users_own_jobs_and_no_others() -> None:
    world = cluster(
        of("alice", "a", created=1),
        of("alice", "a-high", created=2, priority=9),
        of("bob", "b", created=3, priority=99),
    )
    assert names(world) == ["a-high", "b", "a"]


def test_weights_divide_what_is_held() -> None:
    world = cluster(of("alice", "ra", 2, at="n1"), of("bob", "rb", 1, at="n1"), of("alice", "a"), of("bob", "b"))
    assert names(world) == ["b", "a"]
    assert names(world, weights={"alice": 3}) == ["a", "b"]
    assert names(world, weights={"bob": 0}) == ["a", "b"]


def test_a_failed_job_gives_its_turn_to_the_next_of_its_user() -> None:
    world = cluster(of("alice", "a-8", 8), of("alice", "a-1", 1, created=1), of("bob", "b-1", created=2))
    assert names(world, fits=lambda unit: unit.id != "default/a-8") == ["a-8", "a-1", "b-1"]


def test_jobs_without_accelerators_cost_no_turn() -> None:
    world = cluster(of("alice", "a-0", 0), of("alice", "a-1", 0, created=1), of("bob", "b", 0, created=2))
    assert names(world) == ["a-0", "a-1", "b"]


def test_hundredths_count_as_parts() -> None:
    half = {"requests": {"koordinator.sh/gpu": "50"}, "cpu": "0"}
    world = World().add(node("n1:64", **{GPU: "9", "koordinator.sh/gpu": "900"}))
    world.add(pod("ra", labels=belongs(user="alice"), at="n1", **half), of("bob", "rb", at="n1"))
    world.add(of("bob", "b"), of("alice", "a", created=5))
    assert names(world) == ["a", "b"]


# -- before everything ------------------------------------------------------------------------------------------------


def test_half_bound_gangs_then_system_priorities_come_first_in_every_mode() -> None:
    for mode in ("gpu-count", "exact", "kai", "off"):
        world = cluster(group("g", 3), group("h", 2), of("alice", "old"))
        world.add(
            of("alice", "system", created=5, priority=2_000_000_000),
            of("bob", "node", created=9, priority=2_000_001_000),
        )
        world.add(gang_pods("h", 2, "h", created=1, cpu="0"))
        world.add(
            pod("g-0", gang="g", at="n1", cpu="0"), *(pod(f"g-{i}", gang="g", created=20, cpu="0") for i in (1, 2))
        )
        assert names(world, mode=mode)[:3] == ["g", "node", "system"], mode


def test_a_gang_is_as_old_as_its_oldest_member_and_as_urgent_as_its_highest_pending_one() -> None:
    world = cluster(group("g", 1), group("h", 1), of("x", "p", created=3))
    world.add(pod("g-0", gang="g", at="n1", created=1, cpu="0", priority=9), pod("g-1", gang="g", created=8, cpu="0"))
    world.add(pod("h-0", gang="h", created=9, cpu="0"), pod("h-1", gang="h", created=9, cpu="0", priority=5))
    assert names(world, mode="off") == ["h", "g", "p"]


def test_mode_off_is_one_queue_by_priority_age_and_name() -> None:
    world = cluster(of("a", "p-10", created=1), of("b", "p-9", created=1), of("c", "q", created=2, priority=1))
    assert names(world, mode="off") == ["q", "p-9", "p-10"]


# -- starving ---------------------------------------------------------------------------------------------------------

START = 1767225600.0  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(("hours", "first"), [(0.9, "b"), (1, "a"), (1.9, "a"), (2, "b"), (3, "a")])
def test_a_starving_job_is_first_in_every_second_period(hours: float, first: str) -> None:
    world = cluster(of("alice", "r", at="n1"), of("alice", "a"), of("bob", "b", created=1800))
    found = names(world, now=START + hours * 3600, starvation_after=3600.0)
    assert found[0] == first
    assert names(world, now=START + hours * 3600, starvation_after=0.0)[0] == "b"


def test_the_longest_wait_is_first_and_a_member_that_comes_late_has_not_waited() -> None:
    world = cluster(
        of("z", "r", 4, at="n1"), group("g", 1), of("z", "old", created=0), of("z", "older", created=0, priority=9)
    )
    world.add(pod("g-0", gang="g", at="n1", cpu="0", created=0), pod("g-1", gang="g", created=3000, cpu="0"))
    world.add(of("bob", "b", created=3500))
    assert names(world, now=START + 3700)[:2] == ["older", "old"]
    snapshot = world.state.snapshot(START + 3700)
    queue = UnitOrder(
        Groups(snapshot).units(),
        use=Draft(snapshot).quotas,
        pods=snapshot.pods.values(),
        config=Fairness(),
        now=START + 3700,
    )
    assert queue.starving == {"default/old", "default/older"}


# -- exact ------------------------------------------------------------------------------------------------------------


def test_exact_a_queue_within_its_quota_with_the_job_is_first() -> None:
    world = cluster(
        quota("a", {GPU: 1}, {GPU: 9}, created=1),
        quota("b", {GPU: 4}, {GPU: 9}, created=2),
        inside("b", "rb", 2, at="n1"),
        inside("a", "ja", 2),
        inside("b", "jb", 2, created=5),
    )
    assert names(world, mode="exact") == ["jb", "ja"]


def test_exact_then_the_smaller_part_of_the_unrounded_share() -> None:
    # shares of 7: 3.5 each; 1 of 3.5 against 2 of 3.5
    world = cluster(
        quota("a", {}, {GPU: 9}, weight={GPU: 1}),
        quota("b", {}, {GPU: 9}, weight={GPU: 1}),
        inside("a", "ra", 2, at="n1"),
        inside("b", "rb", 1, at="n1"),
        *(inside("a", f"ja-{i}", 1, created=i) for i in range(5)),
        *(inside("b", f"jb-{i}", 1, created=9) for i in range(5)),
        total=7,
    )
    assert names(world, mode="exact")[:4] == ["jb-0", "ja-0", "jb-1", "ja-1"]


def test_exact_a_queue_without_a_share_comes_after_every_queue_with_one() -> None:
    world = cluster(
        quota("none", {}, {GPU: 9}, weight={GPU: 0}),
        quota("some", {}, {GPU: 9}),
        inside("some", "r", 9, at="n1"),
        inside("none", "jn"),
        inside("some", "js", created=9),
        total=10,
    )
    assert names(world, mode="exact") == ["js", "jn"]


def test_exact_users_are_queues_beside_the_top_quotas_without_a_quota() -> None:
    world = cluster(quota("a", {GPU: 1}, {GPU: 9}), of("bob", "jb"), inside("a", "ja", created=5))
    assert names(world, mode="exact") == ["ja", "jb"]


def test_exact_a_resource_that_max_does_not_name_is_not_counted() -> None:
    world = cluster(quota("a", {"cpu": 2}, {"cpu": 9}), quota("b", {}, {"cpu": 9}))
    world.add(
        pod("ja", labels=belongs("a"), cpu="1", requests={GPU: "8"}, created=5), pod("jb", labels=belongs("b"), cpu="1")
    )
    assert names(world, mode="exact") == ["ja", "jb"]


@pytest.mark.parametrize("mode", ["exact", "kai"])
def test_parents_are_compared_before_their_children(mode: str) -> None:
    world = cluster(
        quota("d1", {GPU: 1}, {GPU: 4}, inner=True),
        quota("d2", {GPU: 2}, {GPU: 4}, inner=True),
        quota("q0", {GPU: 3}, {GPU: 4}, parent="d1", forced=True),
        quota("q1", {GPU: 2}, {GPU: 4}, parent="d1", forced=True),
        quota("q2", {GPU: 1}, {GPU: 4}, parent="d2"),
        inside("q1", "r", at="n1"),
        inside("q0", "j0"),
        inside("q1", "j1", created=1),
        inside("q2", "j2", created=2),
        total=4,
    )
    assert names(world, mode=mode) == ["j2", "j0", "j1"]


def test_a_job_in_a_parent_quota_has_its_turn_too() -> None:
    world = cluster(quota("org", {}, {GPU: 9}, inner=True), quota("kid", {}, {GPU: 9}, parent="org"))
    world.add(inside("org", "stuck"), inside("kid", "j"))
    assert sorted(names(world, mode="exact", fits=lambda unit: unit.id != "default/stuck")) == ["j", "stuck"]


# -- kai --------------------------------------------------------------------------------------------------------------


def test_kai_the_larger_quota_is_the_smaller_ratio_with_the_job() -> None:
    world = cluster(
        quota("a", {GPU: 1}, {GPU: 4}), quota("b", {GPU: 2}, {GPU: 4}), inside("a", "ja"), inside("b", "jb"), total=1
    )
    assert names(world, mode="kai") == ["jb", "ja"]
    assert names(world, mode="exact") == ["ja", "jb"]


def test_kai_equal_ratios_go_to_the_queue_with_the_smaller_allocatable() -> None:
    world = cluster(
        quota("big", {GPU: 4}, {GPU: 4}, created=1),
        quota("small", {GPU: 2}, {GPU: 2}, created=2),
        inside("big", "rb", 2, at="n1"),
        inside("small", "rs", 1, at="n1"),
        inside("big", "jb", 2),
        inside("small", "js", 1, created=5),
        total=6,
    )
    assert names(world, mode="kai") == ["js", "jb"]


def test_kai_where_neither_is_smaller_the_older_queue_goes_first() -> None:
    world = cluster(
        quota("young", {"cpu": 2, GPU: 4}, {"cpu": 2, GPU: 4}, created=9),
        quota("old", {"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2}, created=1),
        pod("jy", labels=belongs("young"), cpu="1", requests={GPU: "2"}),
        pod("jo", labels=belongs("old"), cpu="2", requests={GPU: "1"}, created=5),
    )
    assert names(world, mode="kai") == ["jo", "jy"]


def test_kai_a_queue_above_its_share_waits() -> None:
    world = cluster(
        quota("over", {GPU: 8}, {GPU: 8}, weight={GPU: 1}, created=1),
        quota("under", {}, {GPU: 8}, weight={GPU: 1}, created=2),
        inside("over", "ro", 9, at="n1"),
        inside("over", "jo"),
        inside("under", "ju", 8, created=5),
    )
    assert names(world, mode="kai") == ["ju", "jo"]


# -- against a plain reading of the rule ------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9), st.integers(0, 2)), max_size=8),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)),
    st.integers(0, 255),
)
def test_gpu_count_by_sorting_everything_anew_each_time(
    jobs: Sequence[tuple[str, int, int, int]], held: dict[str, int], weights: dict[str, float], mask: int
) -> None:
    world = cluster(*(of(user, f"r-{user}", count, at="n1") for user, count in held.items() if count), total=999)
    waiting = []
    for i, (user, count, created, priority) in enumerate(jobs):
        world.add(of(user, f"j-{i}", count, created=created, priority=priority))
        waiting.append((user, -priority, created, i, count))
    fits = {f"default/j-{i}": bool(mask >> i & 1) for i in range(len(jobs))}
    holds = {user: held.get(user, 0) for user in "abc"}
    want = []
    while waiting:

        def rank(user: str) -> Any:
            return Fraction(holds[user]) / weights.get(user, 1), min(j[2] for j in waiting if j[0] == user), user

        user = min({j[0] for j in waiting}, key=rank)
        for job in sorted(j for j in waiting if j[0] == user):
            waiting.remove(job)
            want.append(f"j-{job[3]}")
            if fits[f"default/j-{job[3]}"]:
                holds[user] += job[4]
                break
    assert names(world, fits=lambda unit: fits[unit.id], weights=weights) == want


def test_members_of_other_users_count_for_them_at_once() -> None:
    world = cluster(group("g", 2), of("bob", "b", created=3), of("carol", "c", created=9))
    world.add(pod("g-0", gang="g", labels=belongs(user="alice"), **gpus(1)))
    world.add(pod("g-1", gang="g", labels=belongs(user="bob"), **gpus(1)))
    assert names(world) == ["g", "c", "b"]


@pytest.mark.parametrize("mode", ["exact", "kai"])
def test_who_holds_without_a_share_comes_after_who_holds_nothing_without_one(mode: str) -> None:
    # the min of `sure` is all there is, so nobody else has a share; of kai's: a part of nothing is infinite
    world = cluster(
        quota("sure", {GPU: 4}, {GPU: 4}, created=1),
        quota("a", {}, {GPU: 4}, created=2),
        quota("b", {}, {GPU: 4}, created=3),
        inside("sure", "r", 4, at="n1"),
        inside("a", "ra", 2, at="n1"),
        inside("a", "ja"),
        inside("b", "jb", created=9),
        total=4,
    )
    assert names(world, mode=mode) == ["jb", "ja"]


@pytest.mark.parametrize("mode", ["exact", "kai"])
def test_the_weights_of_quotas_and_users_are_in_one_unit(mode: str) -> None:
    # 8 cores for weights 3 (the default, max) and 1: shares 3 and 5 of the requests 3 and 8
    world = World().add(node("n1:8"), quota("a", {}, {"cpu": 3}, created=1))
    world.add(pod("ra", labels=belongs("a"), cpu="2", at="n1"), pod("rb", labels=belongs(user="bob"), cpu="3", at="n1"))
    world.add(pod("ja", labels=belongs("a"), cpu="1", created=1))
    world.add(pod("jb", labels=belongs(user="bob"), cpu="5", created=2))
    snapshot = world.snapshot()
    config = Fairness(mode=mode)
    shares = queue_shares(snapshot.quotas, config, queue_ages(snapshot.quotas, {})).whole
    assert {queue.quota or queue.user: dict(share) for queue, share in shares.items()} == {
        "a": {"cpu": 3000},
        "bob": {"cpu": 5000},
    }
    less = World().add(node("n1:4"), quota("a", {}, {"cpu": 3}, created=1))
    less.add(pod("ja", labels=belongs("a"), cpu="8"), pod("jb", labels=belongs(user="bob"), cpu="8"))
    shares = queue_shares(less.snapshot().quotas, config, queue_ages(less.snapshot().quotas, {})).whole
    assert [share["cpu"] for share in shares.values()] == [3000, 1000]


def test_kai_a_resource_that_nobody_asks_for_is_exceeded_by_nobody() -> None:
    # alice is above her share of the one resource that is asked for, not of cpu and memory: so she is not "above"
    world = cluster(
        of("alice", "ra", 3, at="n1"), of("bob", "rb", 1, at="n1"), of("alice", "ja", 1), of("bob", "jb", 7), total=4
    )
    assert names(world, mode="kai") == ["ja", "jb"]


def test_kai_an_odd_unit_goes_to_the_user_with_the_oldest_job_also_where_that_one_runs() -> None:
    # 3 GPUs for 2 and 2: bob, whose oldest job runs, has a share of 2 as if it waited; so his job goes first, 2 of 2
    world = cluster(
        of("bob", "rb", 1, at="n1", created=1),
        of("alice", "ra", 1, at="n1", created=2),
        of("alice", "ja", created=3),
        of("bob", "jb", created=4),
        total=3,
    )
    assert names(world, mode="kai") == ["jb", "ja"]
    waiting = cluster(
        of("bob", "system", 1, priority=2_000_000_000, created=1),
        of("alice", "ra", 1, at="n1", created=2),
        of("alice", "ja", created=3),
        of("bob", "jb", created=4),
        total=3,
    )
    assert names(waiting, mode="kai") == ["system", "jb", "ja"]
