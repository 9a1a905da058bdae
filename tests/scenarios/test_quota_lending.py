# SPDX-License-Identifier: Apache-2.0
"""Runtimes keep no room for jobs that quotas refuse themselves (docs/quotas.md): whole rounds until nothing changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.objects import PersistentVolumeClaimSource, TopologySpreadConstraint, Volume
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption, Queue, Quota
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import simulate
from tests.scenarios.cluster import World, bound, gang_pods, group, hierarchy, messages, node, pod, wish
from tests.scenarios.quotas import belongs, quota
from tests.scenarios.witness import Witness

CALM = {"preemption": Preemption(enabled=False), "fairness": Fairness(reclaim="off")}


def plan(world: World, only: frozenset[str] | None = None, **changes: Any) -> RoundPlan:
    return plan_round(world.snapshot(), KoordpyConfiguration(**{**CALM, **changes}), only=only)


def asks(name: str, team: str, cores: int, age: int, **more: Any) -> Any:
    return pod(name, cpu=str(cores), labels=belongs(team), created=100 - age, **more)


def two(*, first: int = 6, second: int = 6) -> World:
    """Two quotas with min 4 of 8 cores, and a job in each."""
    world = World().add(node("n1:8"), quota("a", 4, 8), quota("b", 4, 8))
    return world.add(asks("old", "a", first, 9), asks("new", "b", second, 1))


def test_of_two_jobs_that_keep_each_other_waiting_the_first_of_the_queue_starts() -> None:
    done = plan(two())
    assert set(bound(done)) == {"old"}
    assert "quotaName: b, runtime: cpu=4, used: cpu=0, request: cpu=6" in messages(done)["new"]


def test_who_is_not_due_is_no_reason_to_leave_it_empty() -> None:
    assert set(bound(plan(two(), only=frozenset({"default/new"})))) == {"new"}


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_job_asks_that_its_quota_admits_is_kept(kept: bool) -> None:
    """It waits for room on one node: three cores are left on each."""
    world = World().add(node("n1:4"), node("n2:4"), quota("a", 0, 8), quota("b", 4, 8), quota("c", 2, 2))
    world.add(asks("r1", "c", 1, 0, at="n1"), asks("r2", "c", 1, 0, at="n2"), asks("old", "a", 3, 9))
    world.add(asks("new", "b", 4 if kept else 7, 1))
    assert set(bound(plan(world))) == (set() if kept else {"old"})


@pytest.mark.parametrize("most", [8, 5])
def test_max_is_never_passed(most: int) -> None:
    world = World().add(node("n1:8"), quota("a", 4, most), quota("b", 4, 8))
    world.add(asks("old", "a", 6, 9), asks("new", "b", 6, 1))
    assert set(bound(plan(world))) == ({"old"} if most == 8 else {"new"})


def test_nobody_is_evicted_for_it() -> None:
    world = two().add(pod("low", cpu="4", at="n1", priority=-5, labels=belongs("c")), quota("c", 0, 8))
    done = plan_round(world.snapshot(), KoordpyConfiguration())
    assert not done.evictions and not bound(done)


def claiming(name: str) -> list[Any]:
    claim = PersistentVolumeClaimSource(claim_name="nowhere")
    return [asks(name, "a", 4, 9, volumes=[Volume(name="v", persistent_volume_claim=claim)])]


SOFT = TopologySpreadConstraint(max_skew=1, topology_key="kubernetes.io/hostname", when_unsatisfiable="ScheduleAnyway")
HARD = TopologySpreadConstraint(max_skew=1, topology_key="kubernetes.io/hostname", when_unsatisfiable="DoNotSchedule")
STUCK: dict[str, list[Any]] = {
    "no such node": [asks("s", "a", 4, 9, node_selector={"pool": "a100"})],
    "no such node, many of them": [asks(f"s{i}", "a", 1, 9, node_selector={"pool": "a100"}) for i in range(4)],
    "larger than a node": [asks("s", "a", 4, 9, requests={"nvidia.com/gpu": "1"})],
    "members are missing": [group("g", 3), *gang_pods("g", 2, cpu="2", labels=belongs("a"))],
    "no PodGroup": gang_pods("g", 2, cpu="2", labels=belongs("a")),
    "an unknown layer": [group("g", 2, wish({"rackLayer": "Must"})), *gang_pods("g", 2, cpu="2", labels=belongs("a"))],
    "a gang larger than any block": [
        hierarchy(("blockLayer", "block")),
        group("g", 2, wish({"blockLayer": "Must"})),
        *gang_pods("g", 2, cpu="3", labels=belongs("a"), node_selector={"kubernetes.io/hostname": "n2"}),
    ],
    "no such claim": claiming("s"),
    "no such node, and a wish about others": [
        asks("s", "a", 4, 9, node_selector={"pool": "a100"}, topology_spread_constraints=[SOFT])
    ],
    "no such node, and a rule about others": [
        asks("s", "a", 4, 9, node_selector={"pool": "a100"}, topology_spread_constraints=[HARD])
    ],
    "no such node for NPUs": [
        asks("s", "a", 4, 9, node_selector={"pool": "a100"}, requests={"huawei.com/Ascend910": "1"})
    ],
    "a member too many": [
        group("g", 1),
        asks("g-0", "a", 1, 0, gang="g", at="n2"),
        asks("g-1", "a", 4, 9, gang="g", node_selector={"pool": "a100"}),
    ],
}


@pytest.mark.parametrize("which", STUCK)
def test_who_could_never_start_keeps_no_room_from_others(which: str) -> None:
    """Of 9 cores a may have 5 and b 6: what a's job asks for would leave b 5."""
    world = World().add(node("n1:7"), node("n2:2"), quota("a", 2, 9), quota("b", 3, 9), *STUCK[which])
    done = plan(world.add(asks("new", "b", 6, 1)))
    assert set(bound(done)) == {"new"}


@pytest.mark.parametrize("where", ["n1", "n2"])
def test_who_waits_for_those_that_run_keeps_his_room(where: str) -> None:
    world = World().add(node("n1:7"), node("n2:4"), quota("a", 4, 11), quota("b", 3, 11), quota("c", 2, 9))
    world.add(asks("r", "c", 2, 0, at=where), asks("s", "a", 4, 9, node_selector={"kubernetes.io/hostname": "n2"}))
    gang = [group("new", 4), *gang_pods("new", 4, cpu="2" if where == "n2" else "1", labels=belongs("b"), prefix="new")]
    done = plan(world.add(*gang))
    assert set(bound(done)) == (set() if where == "n2" else {"s", *(f"new-{i}" for i in range(4))})


POOLS = [node(f"h{i}:4", {"pool": "h"}) for i in (1, 2)] + [node(f"f{i}:4", {"pool": "f"}) for i in (1, 2)]
FULL = [asks(f"r{i}", "a", 4, 50, at=f"h{i}", node_selector={"pool": "h"}) for i in (1, 2)]


def pools(waits: str = "h") -> World:
    """Two pools of nodes, one of them full of a's pods; small pods of a wait for one of the pools."""
    world = World().add(*POOLS, *FULL, quota("a", 4, 16), quota("b", 4, 16))
    wanted = {"node_selector": {"pool": waits}} if waits else {}
    return world.add(*(asks(f"s{i}", "a", 1, 9 - i, **wanted) for i in range(4)))


@pytest.mark.parametrize("wanted", [{}, {"node_selector": {"pool": "f"}}])
def test_who_waits_for_a_full_pool_keeps_no_room_in_another(wanted: dict[str, Any]) -> None:
    """Of 16 cores a's runtime keeps 12, so that b may have 4."""
    world = pools().add(group("g", 2), *gang_pods("g", 2, cpu="4", labels=belongs("b"), prefix="g", **wanted))
    assert set(bound(plan(world))) == {"g-0", "g-1"}


def test_what_others_could_use_is_closed_to_who_is_above_his_runtime() -> None:
    """A core of each full node is free, but too little for a pod of a that waits there."""
    world = World().add(*POOLS, quota("a", 16, 16), quota("b", 0, 16))
    world.add(*(asks(f"r{i}", "a", 3, 50, at=f"h{i}", node_selector={"pool": "h"}) for i in (1, 2)))
    world.add(*(asks(f"s{i}", "a", 2, 9, node_selector={"pool": "h"}) for i in range(5)))
    world.add(*(asks(f"n{i}", "b", 1, 1) for i in range(10)))
    done = bound(plan(world))
    assert len(done) == 8 and {at[0] for at in done.values()} == {"f"}


def test_what_was_lent_in_another_pool_is_not_taken_back() -> None:
    """a's pods wait in the full pool. Only what is there could help them."""
    at_once = Quota(monitor_all_quotas=True, delay_evict_time=0.0)
    for there, gone in ((False, []), (True, ["y"])):
        world = pools() if not there else World().add(*POOLS, FULL[0], quota("a", 4, 16), quota("b", 4, 16))
        if there:
            world.add(*(asks(f"s{i}", "a", 1, 9 - i, node_selector={"pool": "h"}) for i in range(4)))
            world.add(asks("y", "b", 4, 5, at="h2"))
        world.add(*(asks(f"x{i}", "b", 4, 2 - i, at=f"f{i}") for i in (1, 2)))
        done = plan(world, quota=at_once)
        assert sorted(one.pod_key.removeprefix("default/") for one in done.evictions) == gone


def test_gangs_start_whole() -> None:
    world = World().add(node("n1:8"), quota("a", 4, 8), quota("b", 4, 8), group("g", 3), group("h", 3))
    world.add(
        *gang_pods("g", 3, cpu="2", labels=belongs("a"), prefix="g"),
        *gang_pods("h", 3, cpu="2", labels=belongs("b"), prefix="h"),
    )
    assert set(bound(plan(world))) in ({"g-0", "g-1", "g-2"}, {"h-0", "h-1", "h-2"})


def test_with_backfill_likewise() -> None:
    assert set(bound(plan(two(), queue=Queue(backfill=True)))) == {"old"}


def test_what_was_lent_is_not_taken_back_for_a_job_that_could_not_start_anyway() -> None:
    at_once = Quota(monitor_all_quotas=True, delay_evict_time=0.0)
    for asked, gone in ((6, []), (4, ["p0", "p1"])):
        world = World().add(node("n1:8"), quota("a", 4, 8), quota("b", 4, 8), asks("new", "b", asked, 1))
        world.add(*(asks(f"p{i}", "a", 1, i + 2, at="n1") for i in range(6)))
        assert sorted(one.pod_key.removeprefix("default/") for one in plan(world, quota=at_once).evictions) == gone


@dataclass
class Pool:
    """Some nodes, quotas under a root or a parent, and jobs of some cores each, a few for one node alone."""

    cores: dict[str, int]
    quotas: list[ElasticQuota]
    most: dict[str, int]
    parent: dict[str, str]
    jobs: list[tuple[str, str, int, str]]

    def world(self, order: Sequence[int]) -> World:
        world = World().add(*(node(f"{name}:{cores}") for name, cores in self.cores.items()), *self.quotas)
        for place in order:
            name, team, cores, at = self.jobs[place]
            wanted = {"node_selector": {"kubernetes.io/hostname": at}} if at else {}
            world.add(asks(name, team, cores, 99 - place, **wanted))
        return world

    def could_use(self, at: str) -> set[str]:
        """Jobs that a node could hold, were it empty."""
        return {name for name, _, cores, where in self.jobs if where in ("", at) and cores <= self.cores[at]}

    def path(self, team: str) -> list[str]:
        return [team, *([self.parent[team]] if team in self.parent else [])]


def pool(random: Random) -> Pool:
    nodes = {f"n{i}": random.randint(4, 24) for i in range(random.choice((1, 1, 2, 3)))}
    cores = sum(nodes.values())
    most, parent = dict[str, int](), dict[str, str]()
    quotas = []
    inner = random.random() < 0.5
    if inner:
        most["org"] = random.randint(cores // 2, cores + 4)
        quotas.append(quota("org", min(most["org"], cores // 2), most["org"], inner=True))
    for team in "abcd"[: random.randint(2, 4)]:
        below = inner and random.random() < 0.6
        most[team] = random.randint(1, cores)
        least = random.randint(0, min(most[team], cores // 4))
        if below:
            parent[team] = "org"
        quotas.append(quota(team, least, most[team], parent=parent.get(team, ""), forced=True))
    teams = [team for team in most if team != "org"]
    jobs = []
    for i in range(random.randint(2, 9)):
        at = random.choice(["", *nodes]) if len(nodes) > 1 else ""
        largest = nodes[at] if at else max(nodes.values())
        jobs.append((f"j{i}", random.choice(teams), random.randint(1, largest), at))
    return Pool(nodes, quotas, most, parent, jobs)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_room_stays_empty_while_everybody_who_waits_is_refused(seed: int) -> None:
    """Counted by hand: who would fit the free room of a node and every max waits only where another that is not refused
    waits for that node."""
    random = Random(seed)
    case = pool(random)
    witness = Witness()
    order = random.sample(range(len(case.jobs)), len(case.jobs))
    state, now = case.world(order).state, datetime(2026, 1, 1, tzinfo=UTC)
    done = simulate(state, KoordpyConfiguration(**CALM), planner=witness, now=now)
    assert witness.faults == [] and done.stable
    team_of, cores_of = {n: t for n, t, _, _ in case.jobs}, {n: c for n, _, c, _ in case.jobs}
    free, used = dict(case.cores), dict.fromkeys(case.most, 0)
    for key, at in done.final:
        name = key.partition("/")[2]
        free[at] -= cores_of[name]
        for above in case.path(team_of[name]):
            used[above] += cores_of[name]
    assert all(left >= 0 for left in free.values()) and all(used[at] <= case.most[at] for at in used)
    waiting = {one.pod_key.partition("/")[2]: one.message for one in done.pending}
    refused = {name for name, text in waiting.items() if "Insufficient quotas" in text}
    for name in refused:
        if all(used[at] + cores_of[name] <= case.most[at] for at in case.path(team_of[name])):
            for at, left in free.items():
                fits = name in case.could_use(at) and cores_of[name] <= left
                assert not fits or case.could_use(at) & (waiting.keys() - refused), (seed, name, waiting[name])


def test_what_is_taken_back_is_not_lent_again() -> None:
    """b is above its runtime beside both jobs of a, and within the one that it has beside the job that could use n2."""
    world = World().add(node("n0:8", {"pool": "a"}), node("n1:8", {"pool": "a"}), node("n2:8"), node("n3:8"))
    world.add(quota("a", 16, 48), quota("b", 8, 24), *(pod(f"d{i}", cpu="3", at=f"n{i}") for i in (1, 2, 3)))
    world.add(asks("rb", "b", 5, 9, at="n0"), asks("rd", "b", 5, 8, at="n2"))
    world.add(asks("here", "a", 8, 2, node_selector={"pool": "a"}), asks("any", "a", 8, 1))
    assert at_rest(world) == {"rb"}


@pytest.mark.parametrize("foreign", [0, 2])
def test_two_quotas_give_back_together_only_where_somebody_starts(foreign: int) -> None:
    """The job needs all of the node; what pods without a quota hold of it stays."""
    world = World().add(node("n0:8"), quota("a", 0, 8), quota("b", 0, 8), quota("c", 8, 8))
    world.add(*(asks(f"{team}{i}", team, 1, 9 - i, at="n0") for team in "ab" for i in range(3)))
    if foreign:
        world.add(pod("of-nobody", cpu=str(foreign), at="n0"))
    world.add(asks("whole", "c", 8, 1))
    assert at_rest(world) == (set() if foreign else {f"{team}{i}" for team in "ab" for i in range(3)})


def test_who_starts_where_pods_end_costs_nobody_else() -> None:
    world = World().add(node("n0:4"), node("n1:4"), quota("a", 0, 8), quota("b", 4, 8))
    ends = asks("ends", "a", 4, 9, at="n0")
    meta = msgspec.structs.replace(ends.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    world.add(msgspec.structs.replace(ends, metadata=meta), asks("stays", "a", 4, 8, at="n1"), asks("comes", "b", 4, 1))
    assert plan(world, quota=Quota(monitor_all_quotas=True, delay_evict_time=0.0)).evictions == ()


def at_rest(world: World, **fairness: Any) -> set[str]:
    """Who went once nothing changes any more, where quotas are watched: nobody did for nobody."""
    watched = Quota(monitor_all_quotas=True, delay_evict_time=0.0)
    fair = Fairness(**{"reclaim": "off", **fairness})
    config = KoordpyConfiguration(preemption=Preemption(enabled=False), quota=watched, fairness=fair)
    before = running(world)
    done = simulate(world.state, config, planner=plan_round, now=datetime(2026, 1, 1, tzinfo=UTC))
    assert done.stable
    assert not done.evictions or running(world) - before
    return {one.eviction.pod_key.partition("/")[2] for one in done.evictions}


def running(world: World) -> set[str]:
    return {pod.name for pod in world.state.pods() if pod.bound}


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 32))
@example(1129)
def test_what_quotas_give_back_and_lend_comes_to_rest(seed: int) -> None:
    """Nodes of three pools, pods without a quota among them, jobs of three teams that run and wait here or anywhere."""
    random = Random(seed)
    free = {f"n{i}": 8 for i in range(6)}
    pool_of = {name: random.choice("hax") for name in free}
    world = World().add(*(node(f"{name}:8", {"pool": pool_of[name]}) for name in free))
    left = {team: random.choice((24, 48)) for team in "abc"}
    for team, most in left.items():
        world.add(quota(team, random.choice((0, 8, 16)), most))
    for name in free:
        if random.random() < 0.5:
            free[name] -= 2
            world.add(pod(f"of-nobody-{name}", cpu="2", at=name))
    for number in range(random.randint(4, 14)):
        cores, team, where = random.choice((2, 3, 5, 8)), random.choice("abc"), random.choice("haxxx---")
        fits = [name for name, room in free.items() if cores <= room and where in ("-", pool_of[name])]
        at = random.choice(fits) if fits and cores <= left[team] and random.random() < 0.6 else ""
        if at:
            free[at] -= cores
            left[team] -= cores
        wanted = {"node_selector": {"pool": where}} if where != "-" else {}
        world.add(asks(f"j{number}", team, cores, 99 - number, at=at, **wanted))
    at_rest(world, mode=random.choice(("exact", "kai")), reclaim=random.choice(("off", "quotas", "all")))
