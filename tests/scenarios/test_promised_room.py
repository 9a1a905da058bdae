# SPDX-License-Identifier: Apache-2.0
"""What is already promised to whom while victims end: preemption.md 4.

Pods that are ending leave their room to those that are nominated to it; whoever comes next counts neither twice.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Affinity, LabelSelector, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Quota
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, bound, group, node, pod, whole_messages
from tests.scenarios.quotas import GPU, belongs, quota

NOW = "1970-01-01T00:00:00Z"


def gpus(name: str, number: int, **labels: str) -> Any:
    return node(name, labels, cpu="64", **{GPU: str(number)})


def runs(name: str, at: str, *, gpu: int = 1, **settings: Any) -> Pod:
    return pod(name, at=at, cpu="0", requests={GPU: str(gpu)}, **settings)


def waits(name: str, *, to: str = "", gpu: int = 1, created: int = 3000, **settings: Any) -> Pod:
    """A pending pod; `to` nominates it."""
    wire = pod(name, cpu="0", requests={GPU: str(gpu)}, created=created, **settings)
    return replace(wire, status=replace(wire.status, nominated_node_name=to))


def ending(wire: Pod, since: str = NOW) -> Pod:
    return replace(wire, metadata=replace(wire.metadata, deletion_timestamp=since))


def planned(*objects: Any, now: float = 0.0, config: KoordpyConfiguration | None = None) -> RoundPlan:
    return plan_round(World().add(*objects).state.snapshot(now), config)


def late_alone(*objects: Any, config: KoordpyConfiguration) -> bool:
    """Whether the pod `late` starts in a round in which nobody else is due."""
    snapshot = World().add(*objects).state.snapshot(0.0)
    return "late" in bound(plan_round(snapshot, config, only=frozenset(["default/late"])))


def evicted(plan: RoundPlan) -> list[str]:
    return sorted(one.pod_key.partition("/")[2] for one in plan.evictions)


A, B = belongs("a"), belongs("b")


def borrowed(*, least_b: int = 4, gone: Sequence[str] = (), **settings: Any) -> list[Any]:
    """Two nodes of four GPUs, which b holds all; those of `gone` are ending. a has a right to four."""
    names = {f"b-{i}": f"n{1 + i // 4}" for i in range(8)}
    pods = [runs(name, at, labels=B, created=10 + i) for i, (name, at) in enumerate(names.items())]
    pods = [ending(one) if one.metadata.name in gone else one for one in pods]
    limits = [quota("a", {GPU: 4}, {GPU: 8}, **settings), quota("b", {GPU: least_b}, {GPU: 8}, **settings)]
    return [gpus("n1", 4), gpus("n2", 4), *limits, *pods]


def test_the_third_of_three_that_come_one_by_one_takes_one_victim() -> None:
    coming = [waits("a-0", to="n2", labels=A), waits("a-1", to="n1", labels=A)]
    plan = planned(*borrowed(gone=["b-7", "b-3"]), *coming, waits("a-2", labels=A, created=3001))
    assert evicted(plan) == ["b-6"]
    assert bound(plan) == {"a-2": "n2"}


@pytest.mark.parametrize("inner", [False, True])
def test_what_was_promised_to_a_quota_counts_against_its_guarantee(inner: bool) -> None:
    settings: dict[str, Any] = {"parent": "org"} if inner else {}
    root = [quota("org", {GPU: 8}, {GPU: 8}, inner=True)] if inner else []
    coming = [waits(f"a-{i}", to="n2", labels=A) for i in range(4)]
    objects = [*root, *borrowed(gone=["b-4", "b-5", "b-6", "b-7"], **settings), *coming]
    assert evicted(planned(*objects, waits("a-4", labels=A))) == []
    three = [one for one in objects if not (isinstance(one, Pod) and one.metadata.name in ("b-4", "a-3"))]
    fourth = planned(*three, runs("b-4", "n2", labels=B, created=14), waits("a-4", labels=A))
    assert evicted(fourth) == ["b-4"]


def test_what_is_ending_is_not_its_quotas_to_lose_any_more() -> None:
    # b may fall to 6: two are ending for a-0, so nothing is left to take
    objects = borrowed(least_b=6, gone=["b-6", "b-7"])
    coming = [waits("a-0", to="n2", gpu=2, labels=A)]
    assert evicted(planned(*objects, *coming, waits("a-1", labels=A))) == []


@pytest.mark.parametrize(("least", "gone"), [(2, ["b-4", "b-5", "b-6", "b-7"]), (3, [])])
def test_what_is_ending_is_not_its_quotas_to_lose_though_it_is_promised_to_nobody(least: int, gone: list[str]) -> None:
    """Of the six that b goes on with four go, the last of them across its min, and no more."""
    assert evicted(planned(*borrowed(least_b=least, gone=["b-0", "b-1"]), waits("a-0", gpu=4, labels=A))) == gone


def test_a_pod_takes_the_room_of_its_own_victim_though_another_still_waits_for_his() -> None:
    coming = [waits("a-0", to="n2", labels=A), waits("a-1", to="n2", labels=A, created=3001)]
    objects = [one for one in borrowed(gone=["b-7"]) if not (isinstance(one, Pod) and one.metadata.name == "b-6")]
    plan = planned(*objects, *coming)
    assert bound(plan) == {"a-0": "n2"}
    assert evicted(plan) == []
    assert whole_messages(plan)["a-1"].endswith("waiting for 1 terminating pod on n2.")


def test_what_is_promised_beside_the_quotas_is_not_theirs_to_share() -> None:
    """Else a pod would go for one that has no place in its quota once the promise is kept."""
    least = [quota("a", {GPU: 4}, {GPU: 8}, lends=False), quota("b", {}, {GPU: 8})]
    there = [runs("a-0", "n2", gpu=3, labels=A, priority=9), runs("low", "n2")]
    vip = waits("vip", to="n1", gpu=4, priority=5)
    late = waits("late", labels=B, priority=3)
    plan = planned(gpus("n1", 4), gpus("n2", 4), *least, *there, vip, late)
    assert (bound(plan), evicted(plan)) == ({"vip": "n1"}, [])
    assert "runtime: nvidia.com/gpu=0, used: nvidia.com/gpu=0" in whole_messages(plan)["late"]
    # a node more, and what is left of it is the quota's
    assert bound(planned(*(gpus(f"n{at}", 4) for at in (1, 2, 3)), *least, *there, vip, late))["late"] == "n3"


def test_who_has_no_claim_on_it_is_kept_from_room_beside_a_nominated_pod() -> None:
    objects = [gpus("n", 2), ending(runs("old", "n")), waits("vip", to="n", priority=5), waits("low")]
    assert bound(planned(*objects)) == {"vip": "n"}


STUCK = "a pod ends for too long"
NEVER_FITS = "the pods that stay leave no room"
OTHER_NODE = "the node is tainted by now"


@pytest.mark.parametrize(
    ("why", "cluster"),
    [
        (STUCK, [gpus("n", 2), ending(runs("old", "n", priority=9), NOW), runs("more", "n", priority=9)]),
        (NEVER_FITS, [gpus("n", 3), runs("old", "n", priority=9), ending(runs("more", "n", priority=9), NOW)]),
    ],
    ids=[STUCK, NEVER_FITS],
)
def test_a_nomination_that_can_not_come_true_keeps_no_room(why: str, cluster: list[Any]) -> None:
    vip = waits("vip", to="n", gpu=3, priority=5)
    one_free = [gpus("n", 3), *cluster[1:]] if why == STUCK else cluster
    assert bound(planned(*one_free, vip, waits("low"), now=1000.0 if why == STUCK else 0.0)) == {"low": "n"}


UP_TO_MAX = KoordpyConfiguration(quota=Quota(enable_runtime_quota=False))
SHARED = KoordpyConfiguration(fairness=Fairness(reclaim="all"))


@pytest.mark.parametrize(
    ("who", "starts"),
    [
        (waits("late", labels=B, priority=100), False),
        (waits("late", labels=belongs("c"), priority=100), True),
        (waits("late", labels=belongs("c"), priority=0), False),
    ],
    ids=["the quota that lost it", "another quota, more important", "another quota, as important"],
)
def test_reclaimed_room_is_closed_to_the_quota_that_lost_it_whatever_its_priority(who: Pod, starts: bool) -> None:
    limits = [quota("a", {GPU: 2}, {GPU: 2}), quota("b", {}, {GPU: 2}), quota("c", {}, {GPU: 2})]
    cluster = [gpus("n", 2), *limits, ending(runs("b-0", "n", labels=B, priority=9))]
    assert late_alone(*cluster, waits("a-0", to="n", gpu=2, labels=A), who, config=UP_TO_MAX) is starts


@pytest.mark.parametrize(("user", "starts"), [("bob", False), ("carl", True)])
def test_reclaimed_room_is_closed_to_the_user_who_lost_it(user: str, starts: bool) -> None:
    cluster = [gpus("n", 2), ending(runs("bob-0", "n", labels=belongs(user="bob"), priority=9))]
    alice = waits("alice-0", to="n", gpu=2, labels=belongs(user="alice"))
    late = waits("late", labels=belongs(user=user), priority=100)
    assert late_alone(*cluster, alice, late, config=SHARED) is starts


def test_room_that_priority_has_taken_is_open_to_whoever_is_more_important_yet() -> None:
    limits = [quota("a", {GPU: 2}, {GPU: 2}), quota("b", {}, {GPU: 2})]
    cluster = [gpus("n", 2), *limits, ending(runs("b-0", "n", labels=B))]
    vip, late = waits("vip", to="n", gpu=2, labels=A, priority=5), waits("late", labels=B, priority=9)
    assert late_alone(*cluster, vip, late, config=UP_TO_MAX)


def test_an_important_member_above_the_minimum_takes_promised_room_no_more_than_the_others_of_its_gang() -> None:
    members = [runs(f"g-{i}", "n2", gang="g", created=10) for i in range(2)]
    above = [waits("g-2", gang="g"), waits("g-3", gang="g", priority=1000)]
    beside = [runs("low", "n1", gpu=2, created=20), runs("high", "n1", priority=1000, created=5)]
    promised = waits("middle", to="n1", priority=100)
    objects = [gpus("n1", 4), gpus("n2", 2), group("g", 2), *members, *above, *beside, promised]
    plan = plan_round(World().add(*objects).state.snapshot(0.0), None, only=frozenset(["gang:default/g"]))
    assert (evicted(plan), bound(plan), plan.rejected) == (["low"], {"g-3": "n1"}, ())


def test_members_do_not_start_in_the_room_of_one_whose_own_is_still_to_come() -> None:
    """Else the first would take the room of the second, and its own, when it comes, would be anybody's."""
    members = [waits("m-0", gang="m", to="n2", priority=1), waits("m-1", gang="m", to="n1", priority=1)]
    there = [gpus("n1", 1), gpus("n2", 1), group("m", 1), *members]
    plan = planned(*there, ending(runs("old", "n2")))
    assert (bound(plan), evicted(plan)) == ({}, [])
    assert {one.pod_key: one.node for one in plan.awaiting_nominations} == {"default/m-0": "n2", "default/m-1": "n1"}
    assert set(bound(planned(*there))) == {"m-0", "m-1"}


def test_the_member_that_room_was_made_for_has_it() -> None:
    """Not the less important one of a lower rank, which would be evicted again by whoever went for it."""
    members = [waits("m-0", gang="m"), waits("m-1", gang="m", to="n1", priority=9)]
    plan = planned(gpus("n1", 1), gpus("n2", 1), group("m", 1), runs("m-2", "n2", gang="m", priority=9), *members)
    assert bound(plan) == {"m-1": "n1"}


def test_room_that_was_made_for_a_gang_is_for_its_lowest_ranks_once_it_is_there() -> None:
    """m-0 came after the victim was chosen: the gang is planned anew when the victim is gone (gang-network.md 2.6)."""
    members = [waits("m-0", gang="m", priority=1), waits("m-3", gang="m", to="n1", priority=1)]
    there = [gpus("n1", 1), group("m", 1), *members]
    assert bound(planned(*there, ending(runs("old", "n1")))) == {}
    assert bound(planned(*there)) == {"m-0": "n1"}


def test_no_part_starts_that_leaves_too_few_to_start_by_themselves_while_their_room_is_made() -> None:
    """With only-waiting who is left counts alone: its victim would have gone in vain."""
    members = [waits(f"m-{i}", gang="m", to="n1" if i < 2 else "n2", priority=1) for i in range(3)]
    there = [gpus("n1", 2), gpus("n2", 1), ending(runs("old", "n2")), *members]
    assert set(bound(planned(*there, group("m", 2)))) == {"m-0", "m-1"}
    plan = planned(*there, group("m", 2, {keys.GANG_MATCH_POLICY: "only-waiting"}))
    assert (bound(plan), evicted(plan)) == ({}, [])
    assert {one.pod_key: one.node for one in plan.awaiting_nominations} == {
        f"default/m-{i}": m for i, m in enumerate(("n1", "n1", "n2"))
    }


def test_nobody_closes_a_promised_place_by_where_he_stands() -> None:
    """Who was evicted for a spread comes back, there is room for him beside it, and his turn comes first."""
    spread = TopologySpreadConstraint(
        topology_key="zone", label_selector=LabelSelector(match_labels={"app": "x"}), when_unsatisfiable="DoNotSchedule"
    )
    nodes = [gpus("n1", 1, zone="a"), gpus("n2", 2, zone="b")]
    app = {"app": "x"}
    high = waits("high", to="n2", priority=1, labels=app, created=3001, topology_spread_constraints=[spread])
    back = waits("back", labels=app | belongs(user="bob"))
    plan = planned(*nodes, runs("full", "n1", priority=9), high, back)
    assert bound(plan) == {"high": "n2"}
    assert "would block the nominated pod default/high" in whole_messages(plan)["back"]


def test_a_quota_lends_nothing_above_its_runtime_beside_room_that_is_being_made_in_it() -> None:
    """What was lent would be evicted for it in the next round, and lent again."""
    q0, q2 = belongs("q0"), belongs("q2")
    nodes = [gpus("n0", 1), gpus("n1", 1), gpus("n2", 2), gpus("n3", 2)]
    quotas = [quota("q0", {GPU: 1}, {GPU: 1000}), quota("q2", {}, {GPU: 1000})]
    there = [runs("old", "n2", gpu=2, labels=q2), runs("a", "n3", gpu=2, labels=q0), runs("b", "n1", labels=q0)]
    waiting = [waits("large", gpu=3, labels=q0), waits("two", gpu=2, labels=q2)]
    high = waits("high", priority=1, labels=q2)
    plan = planned(
        *nodes, *quotas, *there, *waiting, high, config=KoordpyConfiguration(fairness=Fairness(mode="exact"))
    )
    assert (bound(plan), evicted(plan)) == ({"high": "n0"}, ["old"])


def term(zone: str, **labels: str) -> PodAffinity:
    return PodAffinity(required=[PodAffinityTerm(label_selector=LabelSelector(match_labels=labels), topology_key=zone)])


def test_nobody_starts_who_shuns_a_nominated_pod_from_afar() -> None:
    vip = waits("vip", to="n1", priority=5, node_selector={"only": "n1"})
    there = [gpus("n1", 1, zone="a", only="n1"), gpus("n2", 1, zone="a"), ending(runs("old", "n1")), vip]
    shy = waits("shy", affinity=Affinity(pod_anti_affinity=term("zone", app="x")))
    assert bound(planned(*there, shy)) == {"shy": "n2"}
    there[-1] = replace(vip, metadata=replace(vip.metadata, labels={"app": "x"}))
    plan = planned(*there, shy)
    assert bound(plan) == {}
    assert "placing it would block the nominated pod default/vip" in whole_messages(plan)["shy"]


def test_nobody_closes_a_place_that_is_made_in_the_same_round() -> None:
    """The first of those that want to be beside each other may be anywhere, until another of them is somewhere."""
    vip = waits("vip", priority=9, labels={"app": "x"}, affinity=Affinity(pod_affinity=term("only", app="x")))
    near = pod("near", cpu="1", labels={"app": "x"}, node_selector={"only": "n2"}, created=3001)
    there = [gpus("n1", 1, only="n1"), gpus("n2", 1, only="n2"), runs("full", "n2", priority=9)]
    plan = planned(*there, runs("old", "n1", labels={"app": "x"}), vip, near)
    assert (evicted(plan), bound(plan)) == (["old"], {"vip": "n1"})
    assert "placing it would block the nominated pod default/vip" in whole_messages(plan)["near"]


def test_a_nominated_pod_that_waits_for_anothers_place_keeps_its_own() -> None:
    """Its room has come, and is nobody else's, though it would close the other's place by starting first."""
    far = Affinity(pod_affinity=term("only", app="x"))
    first = waits("first", to="n1", priority=9, labels={"app": "x"}, affinity=far, node_selector={"only": "n1"})
    second = waits("second", to="n2", priority=5, labels={"app": "x"}, node_selector={"only": "n2"})
    there = [gpus("n1", 1, only="n1"), gpus("n2", 1, only="n2"), ending(runs("old", "n1")), first, second]
    plan = planned(*there, waits("late", priority=4))
    assert bound(plan) == {}
    assert {one.pod_key: one.node for one in plan.awaiting_nominations}["default/second"] == "n2"


def test_who_must_go_by_the_filters_beside_a_nominated_pod_does_not_go_in_vain() -> None:
    """Room and spread have to hold with the pods that are nominated to the node, too."""
    spread = TopologySpreadConstraint(
        topology_key="zone", label_selector=LabelSelector(match_labels={"app": "x"}), when_unsatisfiable="DoNotSchedule"
    )
    app = {"app": "x"}
    there = [gpus("n1", 0, zone="a"), gpus("n2", 2, zone="a"), gpus("n3", 1, zone="b")]
    there += [
        pod("far", at="n1", labels=app),
        runs("low", "n2", labels=app),
        runs("kept", "n3", labels=app, priority=9),
    ]
    vip = waits("vip", to="n2", labels=app, priority=9)
    new = waits("new", labels=app, priority=5, topology_spread_constraints=[spread])
    plan = plan_round(World().add(*there, vip, new).state.snapshot(0.0), only=frozenset(["default/new"]))
    assert (evicted(plan), plan.rejected) == (["far", "low"], ())


def test_who_went_for_a_pod_beside_another_that_is_not_there_yet_did_not_go_in_vain() -> None:
    """Room is being made for both, and the spread lets the second start where the first is."""
    spread = TopologySpreadConstraint(
        topology_key="zone", label_selector=LabelSelector(match_labels={"app": "x"}), when_unsatisfiable="DoNotSchedule"
    )
    app = {"app": "x"}
    there = [gpus("n1", 1, zone="a", only="n1"), gpus("n2", 3, zone="b"), runs("low", "n2", labels=app, gpu=2)]
    first = waits("first", to="n1", priority=5, labels=app, node_selector={"only": "n1"})
    second = waits("second", to="n2", priority=1, labels=app, topology_spread_constraints=[spread])
    plan = planned(*there, ending(runs("old", "n1", labels=app)), first, second)
    assert (bound(plan), evicted(plan)) == ({}, [])
    assert {one.pod_key: one.node for one in plan.awaiting_nominations} == {
        "default/first": "n1",
        "default/second": "n2",
    }


def test_what_is_promised_in_a_quota_is_guaranteed_like_the_victims_were() -> None:
    limits = [quota("a", {}, {GPU: 8}), quota("b", {GPU: 1}, {GPU: 8})]
    config = KoordpyConfiguration(quota=Quota(guarantee_usage=True))
    there = [gpus("n", 2), runs("a-0", "n", labels=A, priority=1)]
    again = waits("old", labels=A)
    plan = planned(*limits, *there, waits("vip", to="n", labels=A, priority=9), again, config=config)
    assert (bound(plan), evicted(plan)) == ({"vip": "n"}, [])


def beside_quotas(**settings: Any) -> list[Any]:
    """a may use four of five GPUs: two of them while `free`, which counts in no quota, has two."""
    limits = [quota("a", {}, {GPU: 8}), quota("b", {GPU: 1}, {GPU: 8}, lends=False)]
    free = waits("free", gpu=2, node_selector={"only": "n2"}, **settings)
    return [gpus("n1", 3), gpus("n2", 2, only="n2"), *limits, free]


def test_nobody_goes_for_whom_those_beside_the_quotas_leave_no_room_in_his() -> None:
    old, vip = runs("old", "n1", gpu=2, labels=A), waits("vip", gpu=3, labels=A, priority=5)
    plan = planned(*beside_quotas(priority=9), old, vip)
    assert (bound(plan), evicted(plan)) == ({"free": "n2"}, [])
    assert evicted(planned(*beside_quotas(priority=9)[:-1], old, vip)) == ["old"]


def test_nobody_beside_the_quotas_takes_what_a_promised_place_needs_of_its_own() -> None:
    old, vip = ending(runs("old", "n1", gpu=2, labels=A)), waits("vip", to="n1", gpu=3, labels=A, priority=5)
    plan = planned(*beside_quotas(), old, vip)
    assert bound(plan) == {}
    assert "placing it would block the nominated pod default/vip" in whole_messages(plan)["free"]
    assert bound(planned(*beside_quotas(), vip)) == {"vip": "n1", "free": "n2"}
    # who is more important may
    assert bound(planned(*beside_quotas(priority=9), old, vip)) == {"free": "n2"}


def test_a_quota_gains_nothing_by_what_is_promised_beside_it() -> None:
    """Of ten GPUs the last one would be c's, of eleven it is not."""
    limits = [quota(name, {}, {GPU: most}) for name, most in (("a", 6), ("b", 6), ("c", 2))]
    asks = [waits(f"{name}-{i}", gpu=6, labels=belongs(name)) for name in "ab" for i in range(2)]
    there = [gpus("n1", 1), gpus("n2", 10), runs("c-0", "n2", labels=belongs("c"))]
    free = waits("free", to="n1", node_selector={"kubernetes.io/hostname": "n1"}, created=10)
    old = ending(runs("old", "n1", labels=B))
    assert planned(*limits, *there, old, free, *asks, waits("c-1", labels=belongs("c"), created=20)).rejected == ()
