# SPDX-License-Identifier: Apache-2.0
"""What quotas may use (quota-fairness.md 4 and 8), through the cluster state."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.config.configuration import Quota
from koordpy.fairness.quota_runtime import QuotaAmounts, all_quota_amounts, limits, overdue
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import GPU, belongs, quota


def figures(
    capacity: int, quotas: Sequence[ElasticQuota], asked: dict[str, int], config: Quota | None = None, **held: int
) -> dict[str, QuotaAmounts]:
    """Figures of quotas that ask for cores: `asked` pending, `held` on the one node, which may be overcommitted."""
    world = World().add(node(f"n1:{capacity}"), list(quotas))
    for name, cores in asked.items():
        world.add(pod(f"p-{name}", labels=belongs(name), cpu=str(cores)))
    for name, cores in held.items():
        world.add(pod(f"r-{name}", labels=belongs(name), cpu=str(cores), at="n1"))
    return all_quota_amounts(world.snapshot().quotas, config or Quota())


def runtimes(*args: Any, **kwargs: Any) -> dict[str, float]:
    found = figures(*args, **kwargs)
    return {name: one.runtime["cpu"] / 1000 for name, one in found.items() if one.runtime}


SHARED = [quota("a", 4, 99, weight={"cpu": 8}), quota("b", 4, 99, weight={"cpu": 8}), quota("c", 4, 99)]
OVER = [quota("p", 300, 600, inner=True), *(quota(f"c{i}", 100, 600, parent="p", forced=True) for i in range(3))]


def test_8_what_nobody_asks_is_shared_by_weight() -> None:
    assert runtimes(16, SHARED, {"a": 10, "b": 10}) == {"a": 8, "b": 8, "c": 0}


def test_8_an_odd_unit_goes_to_the_first_name() -> None:
    gpus = [
        quota(n, {GPU: 4}, {GPU: 99}, weight={GPU: 8}) for n in ("a", "b", "c")
    ]  # whole devices; cores would be shared in milli-cores
    world = World().add(node("n1", **{GPU: "17"}), gpus)
    for name in ("b", "a"):
        world.add(pod(f"p-{name}", labels=belongs(name), requests={GPU: "10"}))
    found = all_quota_amounts(world.snapshot().quotas, Quota())
    assert [found[n].runtime for n in "abc"] == [{GPU: 9}, {GPU: 8}, {GPU: 0}]


def test_9_lending() -> None:
    assert runtimes(100, [quota("t1", 60, 96), quota("t2", 40, 96)], {"t1": 120}) == {"t1": 96, "t2": 0}
    keeps = [quota("t1", 60, 96), quota("t2", 40, 96, lends=False)]
    assert runtimes(100, keeps, {"t1": 120}) == {"t1": 60, "t2": 40}


def test_10_mins_are_scaled_to_what_there_is() -> None:
    asked = {f"c{i}": 200 for i in range(3)}
    assert runtimes(200, OVER, asked) == {"p": 200, "c0": 66.667, "c1": 66.667, "c2": 66.666}
    assert runtimes(200, OVER, asked, Quota(enable_min_quota_scale=False)) == {
        "p": 300,
        "c0": 100,
        "c1": 100,
        "c2": 100,
    }


def test_a_weight_of_0_gets_nothing_of_the_rest() -> None:
    assert runtimes(20, [quota("a", 5, 20, weight={"cpu": 0}), quota("b", 5, 20)], {"a": 20, "b": 6}) == {
        "a": 5,
        "b": 6,
    }


def test_a_quota_that_does_not_lend_is_seen_by_its_parent() -> None:
    quotas = [
        quota("org", 60, 100, inner=True, lends=False),
        quota("c1", 20, 100, parent="org", lends=False),
        quota("c2", 20, 100, parent="org", lends=False),
    ]
    assert runtimes(100, quotas, {"c1": 60}) == {"org": 80, "c1": 60, "c2": 20}


def test_a_child_is_cut_by_its_parent() -> None:
    quotas = [quota("org", 176, 300, inner=True), quota("kid", 100, 500, parent="org")]
    assert runtimes(350, quotas, {"kid": 400}) == {"org": 300, "kid": 300}


def test_pods_in_an_inner_quota_count_in_its_own_sums() -> None:
    quotas = [quota("org", 0, 100, inner=True), quota("kid", 0, 100, parent="org")]
    found = figures(50, quotas, {"org": 3, "kid": 4}, org=2, kid=1)
    assert found["org"].request["cpu"] == 10_000
    assert (found["org"].used["cpu"], found["kid"].used["cpu"]) == (3000, 1000)


def test_a_request_is_limited_by_max_on_its_way_up() -> None:
    quotas = [quota("org", 0, 100, inner=True), quota("kid", 0, 10, parent="org")]
    found = figures(50, quotas, {"kid": 40})
    assert (found["kid"].request["cpu"], found["org"].request["cpu"]) == (40_000, 10_000)


def test_what_the_built_in_quotas_use_is_taken_off_before() -> None:
    found = figures(20, [quota("a", 0, 99)], {"a": 50, keys.SYSTEM_QUOTA: 1}, **{keys.DEFAULT_QUOTA: 6})
    assert found["a"].runtime == {"cpu": 14_000}
    assert list(found) == ["a", keys.DEFAULT_QUOTA, keys.SYSTEM_QUOTA]
    assert (found[keys.SYSTEM_QUOTA].request, found[keys.SYSTEM_QUOTA].used) == ({"cpu": 1000}, {"cpu": 0})
    assert runtimes(20, [quota("a", 0, 99)], {"a": 50}, **{keys.DEFAULT_QUOTA: 60}) == {"a": 0}


def test_use_is_guaranteed_where_that_is_wanted() -> None:
    quotas = [
        quota("q1", 20, 100, inner=True),
        quota("q2", 10, 100, parent="q1"),
        quota("q3", 5, 100, parent="q1"),
    ]
    found = figures(100, quotas, {}, Quota(guarantee_usage=True), q2=15)
    assert {n: (f.allocated["cpu"] // 1000, f.guaranteed["cpu"] // 1000) for n, f in found.items()} == {
        "q1": (20, 20),
        "q2": (15, 15),
        "q3": (0, 5),
    }
    assert {n: f.runtime["cpu"] // 1000 for n, f in found.items()} == {"q1": 20, "q2": 15, "q3": 5}


def test_guarantees_are_not_scaled_and_may_be_oversold() -> None:
    found = runtimes(10, [quota("a", 8, 20), quota("b", 8, 20)], {"a": 20}, Quota(guarantee_usage=True), b=9)
    assert found == {"a": 8, "b": 9}


def test_a_tree_of_its_own_has_its_own_total_which_the_others_lose() -> None:
    quotas = [
        quota("pool", 0, 99, inner=True, tree="t", total={"cpu": 30}),
        quota("x", 0, 99, parent="pool"),
        quota("y", 0, 99),
    ]
    assert runtimes(40, quotas, {"x": 60, "y": 60}) == {"pool": 30, "x": 30, "y": 10}


def test_the_keys_of_max_are_shown_and_no_others() -> None:
    world = World().add(node("n1:8", **{GPU: "4"}), quota("a", 0, {GPU: 2}))
    world.add(pod("p", labels=belongs("a"), requests={GPU: "3"}))
    found = all_quota_amounts(world.snapshot().quotas, Quota())["a"]
    assert (found.runtime, found.request, found.used) == ({GPU: 2}, {GPU: 3}, {GPU: 0})


def test_limits_are_max_where_runtimes_are_off() -> None:
    world = World().add(node("n1:8"), quota("a", 0, 5))
    quotas = world.snapshot().quotas
    off = Quota(enable_runtime_quota=False)
    assert limits(all_quota_amounts(quotas, off), quotas, off) == {"a": {"cpu": 5000}}
    assert limits(all_quota_amounts(quotas, Quota()), quotas, Quota()) == {"a": {"cpu": 0}}


def test_over_use_is_told_per_resource() -> None:
    assert figures(10, [quota("a", 0, 9)], {}, a=12)["a"].over == {"cpu": 3000}
    assert figures(10, [quota("a", 0, 9)], {}, a=9)["a"].over == {}


@st.composite
def forests(draw: st.DrawFn) -> list[ElasticQuota]:
    out: list[ElasticQuota] = []
    for i in range(draw(st.integers(1, 6))):
        parent = draw(st.integers(-1, i - 1))
        most = draw(st.integers(0, 20))
        out.append(
            quota(
                f"q{i}",
                draw(st.integers(0, most)),
                most,
                parent="" if parent < 0 else f"q{parent}",
                inner=True,
                lends=draw(st.booleans()),
                weight=draw(st.none() | st.integers(0, 5).map(lambda w: {"cpu": w})),
            )
        )
    return out


@settings(max_examples=300, deadline=None)
@given(forests(), st.data(), st.integers(1, 40))
def test_runtimes_of_siblings_never_exceed_what_they_share(
    quotas: list[ElasticQuota], data: st.DataObject, capacity: int
) -> None:
    names = [q.metadata.name for q in quotas]
    asked = {name: data.draw(st.integers(0, 25)) for name in names}
    world = World().add(node(f"n1:{capacity}"), quotas)
    for name, cores in asked.items():
        world.add(pod(f"p-{name}", labels=belongs(name), cpu=str(cores)))
    snapshot = world.snapshot()
    tree = snapshot.quotas.tree
    found = all_quota_amounts(snapshot.quotas, Quota())
    for parent, children in tree.children.items():
        total = found[parent].runtime["cpu"] if parent else capacity * 1000
        runtime = {name: found[name].runtime["cpu"] for name in children}
        limited = {name: min(found[name].request["cpu"], tree.quotas[name].max["cpu"]) for name in children}
        assert sum(runtime.values()) <= total
        least = {name: tree.quotas[name].least("cpu") for name in children}
        every = sum(least.values())
        if every > total:
            least = {name: total * amount // every for name, amount in least.items()}
        for name in children:
            assert runtime[name] >= min(least[name], limited[name])
            assert runtime[name] <= max(limited[name], least[name])
            if not tree.quotas[name].lends:
                assert runtime[name] >= least[name]
        hungry = [n for n in children if runtime[n] < limited[n] and tree.quotas[n].weight["cpu"]]
        assert not hungry or sum(runtime.values()) == total


def test_over_use_is_to_be_given_back_once_it_has_lasted() -> None:
    from msgspec.structs import replace

    from koordpy.api.custom_objects import ElasticQuotaStatus
    from koordpy.api.objects import Condition

    over = quota("a", 0, 9)
    since = Condition(type="OverUsed", status="True", last_transition_time="2026-01-01T00:00:00Z")
    told = replace(over, status=ElasticQuotaStatus(conditions=[since]))
    start = 1767225600.0

    def due(obj: ElasticQuota, now: float, **settings_: Any) -> dict[str, dict[str, int]]:
        world = World().add(node("n1:20"), obj, quota("b", 0, 9), pod("r", labels=belongs("a"), cpu="12", at="n1"))
        quotas, config = world.snapshot().quotas, Quota(**{"monitor_all_quotas": True, **settings_})
        return overdue(quotas, all_quota_amounts(quotas, config), config, now=now)

    assert due(over, start) == {}
    assert due(over, start, delay_evict_time=0.0) == {"a": {"cpu": 3000}}
    assert due(told, start + 119) == {}
    assert due(told, start + 120) == {"a": {"cpu": 3000}}
    assert due(told, start + 120, monitor_all_quotas=False) == {}
    assert due(told, start + 120, enable_runtime_quota=False) == {}


def test_weights_may_be_parts_of_a_device() -> None:
    gpus = [quota("a", {}, {GPU: 99}, weight={GPU: 0.5}), quota("b", {}, {GPU: 99}, weight={GPU: "1500m"})]
    world = World().add(node("n1", **{GPU: "8"}), gpus)
    world.add(*(pod(f"p-{name}", labels=belongs(name), requests={GPU: "10"}) for name in "ab"))
    found = all_quota_amounts(world.snapshot().quotas, Quota())
    assert [found[name].runtime for name in "ab"] == [{GPU: 2}, {GPU: 6}]
    assert world.state.quotas.tree.faults == ()
