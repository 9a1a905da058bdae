# SPDX-License-Identifier: Apache-2.0
"""Suggestions on running pods, priorities and minMember: the least change that helps is named, and has been tried."""

import random
import re
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.custom_objects import ElasticQuota, ElasticQuotaSpec
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    OwnerReference,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PriorityClass,
    Taint,
)
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption
from koordpy.explain.explanation import explain
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, node, pod, wish

QUIET = KoordpyConfiguration(preemption=Preemption(enabled=False), fairness=Fairness(reclaim="off"))
GATHERED = wish({"blockLayer": "Must"})


def said(*objects: Any, name: str, config: KoordpyConfiguration = QUIET) -> tuple[str, ...]:
    """The suggestions for a pod."""
    return explain(World().add(*objects).state.snapshot(1767225600.0), config, f"default/{name}").would_fit_if


def blocks(number: int, size: int) -> list[Any]:
    """Blocks of nodes, each for one pod: n0-0, n0-1, ..."""
    return [node(f"n{b}-{i}:1", {"spine": "s", "block": f"b{b}"}) for b in range(number) for i in range(size)]


def running(name: str, places: list[str]) -> list[Any]:
    """A gang with a member on each of the nodes."""
    return [group(name, len(places)), *(pod(f"{name}-{i}", gang=name, at=place) for i, place in enumerate(places))]


def completed(lines: tuple[str, ...]) -> list[str]:
    return [line for line in lines if line.endswith("completed")]


B0, AFTER = "blockLayer s/b0 had room for", "more members, for example after"


@pytest.mark.parametrize(
    ("free", "needed", "line"),
    [
        (0, 6, f"{B0} 6 {AFTER} the 6 pods (of 24) of gang default/big in blockLayer s/b0 completed"),
        (1, 6, f"{B0} 5 {AFTER} the 5 pods (of 23) of gang default/big in blockLayer s/b0 completed"),
        (0, 4, f"{B0} 4 {AFTER} pods default/big-0 to default/big-3 of gang default/big (4 of its 24 pods) completed"),
    ],
)
def test_a_part_of_a_larger_gang_is_named(free: int, needed: int, line: str) -> None:
    """A gang on four blocks of six nodes; the first `free` nodes are free."""
    places = [one.metadata.name for one in blocks(4, 6)][free:]
    gang = [group("g", needed, GATHERED), *gang_pods("g", needed)]
    assert completed(said(TWO_LAYERS, blocks(4, 6), running("big", places), gang, name="p-0")) == [line]


def test_a_smaller_gang_is_named_before_a_part_of_a_larger_one() -> None:
    """Of equally many pods those of a whole gang; the larger gang is not named as a whole, because a part is enough."""
    nodes = blocks(3, 4)
    names = [one.metadata.name for one in nodes]
    gang = [group("g", 4, GATHERED), *gang_pods("g", 4)]
    busy = [*running("big", names[:8]), *running("small", names[8:])]
    assert completed(said(TWO_LAYERS, nodes, busy, gang, name="p-0")) == [
        "blockLayer s/b2 had room for 4 more members, for example after gang default/small (4 pods) completed"
    ]


def test_a_larger_set_of_pods_is_not_named_beside_a_smaller_one() -> None:
    busy = [pod("a", at="n1", cpu="2"), pod("b", at="n2", cpu="4"), pod("c", at="n2", cpu="4")]
    lines = said(node("n1:2"), node("n2:8"), busy, pod("p", cpu="2"), name="p")
    assert completed(lines) == ["node n1 had 2 more cpu free (now 0), for example after pod default/a completed"]


IN_LAB = {"quota.scheduling.koordinator.sh/name": "lab"}


@pytest.mark.parametrize(
    ("limit", "lines"),
    [
        ("", [f"{B0} 6 {AFTER} pods default/a-0 to default/a-5 completed"]),
        ("12", [f"{B0} 6 {AFTER} pods default/a-0 to default/a-5 completed"]),
        ("11", ["pods default/a-0 to default/a-5 completed"]),
        ("6", ["pods default/a-0 to default/a-5 completed"]),
        (
            "5",
            [f"max of quota lab were 12 cpu (it is 5), and {B0} 6 {AFTER} pods default/a-0 to default/a-5 completed"],
        ),
    ],
)
def test_free_slots_are_no_suggestion_for_a_gang_that_a_quota_refuses_too(limit: str, lines: list[str]) -> None:
    """Six nodes with a pod each, and six in other blocks; the gang of six is in the quota of these pods."""
    lab = ElasticQuota(metadata=ObjectMeta(name="lab", namespace="default"), spec=ElasticQuotaSpec(max={"cpu": limit}))
    nodes = [*blocks(1, 6), *(one for one in blocks(7, 1)[1:])]
    busy = [pod(f"a-{i}", at=f"n0-{i}", labels=IN_LAB) for i in range(6)]
    gang = [group("g", 6, GATHERED), *gang_pods("g", 6, labels=IN_LAB)]
    assert completed(said(TWO_LAYERS, nodes, lab if limit else [], busy, gang, name="p-0")) == lines


def test_the_deployment_of_a_replica_set_is_named() -> None:
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-6d4f", uid="uid", controller=True)
    running = pod("web-6d4f-x", at="n", labels={"pod-template-hash": "6d4f"})
    running = replace(running, metadata=replace(running.metadata, owner_references=[owner]))
    line = said(node("n:1"), running, pod("p"), name="p")[0]
    assert line.endswith("default/web-6d4f-x completed without being replaced by Deployment default/web")


@pytest.mark.parametrize(
    ("version", "kind", "replaced"),
    [
        ("v1", "ReplicationController", True),
        ("apps/v1", "ReplicaSet", True),
        ("apps/v1", "StatefulSet", True),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", True),
        ("ray.io/v1", "RayCluster", True),
        ("batch/v1", "Job", False),
        ("kubeflow.org/v1", "PyTorchJob", False),
    ],
)
def test_a_controller_that_replaces_pods_is_named(version: str, kind: str, replaced: bool) -> None:
    """One pod, and a whole gang of two, each of the controller."""
    owner = OwnerReference(api_version=version, kind=kind, name="owner", uid="uid", controller=True)

    def owned(one: Any) -> Any:
        return replace(one, metadata=replace(one.metadata, owner_references=[owner]))

    suffix = f" without being replaced by {kind} default/owner" if replaced else ""
    lines = said(node("n:1"), owned(pod("a", at="n")), pod("p"), name="p")
    assert f"node n had 1 more cpu free (now 0), for example after pod default/a completed{suffix}" in lines
    members = [owned(one) for one in gang_pods("big", 2, prefix="big")]
    busy = [replace(one, spec=replace(one.spec, node_name=f"n0-{i}")) for i, one in enumerate(members)]
    gang = [group("g", 2, GATHERED), *gang_pods("g", 2)]
    lines = said(TWO_LAYERS, blocks(1, 2), group("big", 2), busy, gang, name="p-0")
    assert f"{B0} 2 {AFTER} gang default/big (2 pods) completed{suffix}" in lines


@pytest.mark.parametrize(
    ("taken", "lines"),
    [
        (1, ["blockLayer s/b0 had room for 1 more member, for example after pod default/x0 completed"]),
        (2, ["pods default/x0 and default/x1 completed"]),
    ],
)
def test_a_gang_that_lost_members_gets_all_of_them_back(taken: int, lines: list[str]) -> None:
    """Room for one of two missing members is no suggestion: the gang would stay below its minimum."""
    members = [pod(f"g-{i}", gang="g", at=f"n0-{i}" if i < 2 else "") for i in range(4)]
    others = [pod(f"x{i}", at=f"n0-{3 - i}") for i in range(taken)]
    for name in ("g-2", "g-3")[-taken:]:
        found = said(TWO_LAYERS, *blocks(1, 4), group("g", 4, GATHERED), *members, *others, name=name)
        assert completed(found) == lines
        assert [line for line in found if "more node" in line] == [
            f"there were {taken} more node{'s' if taken > 1 else ''} with 1 cpu in blockLayer s/b0, like node n0-0"
        ]


def number_of(line: str) -> int:
    """The number of pods that a line names."""
    names = re.findall(r"default/r-\d+(?: to default/r-\d+)?", line)
    ends = [re.findall(r"\d+", one) for one in names]
    return sum(int(one[-1]) - int(one[0]) + 1 for one in ends)


@pytest.mark.parametrize("seed", range(40))
def test_no_smaller_set_of_pods_helps(seed: int) -> None:
    """Every subset of the running pods is tried as ended, by the sums of one resource."""
    dice = random.Random(seed)
    size, needed, places = (
        dice.randint(2, 4),
        dice.choice([1, 1, 2, 3, 4]),
        [f"n{i}" for i in range(dice.randint(2, 3))],
    )
    busy, free = list[tuple[str, int]](), dict.fromkeys(places, 8)
    for place in places:
        for _ in range(dice.randint(2, 4)):
            cpu = dice.randint(1, 4)
            if free[place] >= cpu:
                busy.append((place, cpu))
                free[place] -= cpu

    def slots(ended: tuple[int, ...]) -> int:
        now = dict(free)
        for i in ended:
            now[busy[i][0]] += busy[i][1]
        return sum(amount // size for amount in now.values())

    every = (few for number in range(len(busy) + 1) for few in combinations(range(len(busy)), number))
    least = next((len(few) for few in every if slots(few) >= needed), None)
    there = [pod(f"r-{i}", at=place, cpu=str(cpu)) for i, (place, cpu) in enumerate(busy)]
    own = [pod("p-0", cpu=str(size))] if needed == 1 else [group("g", needed), *gang_pods("g", needed, cpu=str(size))]
    lines = completed(said([node(f"{name}:8") for name in places], there, own, name="p-0"))
    assert least is not None
    assert (number_of(lines[0]) if lines else 0) == least


def of_class(name: str, value: int, policy: str = "") -> PriorityClass:
    return PriorityClass(metadata=ObjectMeta(name=name), value=value, preemption_policy=policy)


LOW, MIDDLE, HIGH = of_class("low", 10), of_class("middle", 100), of_class("high", 1000)
SYSTEM = of_class("system-node-critical", 2_000_001_000)


@pytest.mark.parametrize(
    ("classes", "own", "others", "line"),
    [
        ([LOW, MIDDLE, HIGH], 0, [0], "its PriorityClass were low with priority 10 (its priority is 0)"),
        ([HIGH, MIDDLE, LOW], 0, [50], "its PriorityClass were middle with priority 100 (its priority is 0)"),
        ([LOW, MIDDLE, HIGH], 10, [10, 500], "its PriorityClass were middle with priority 100 (its priority is 10)"),
        ([LOW, HIGH], 0, [5, 10], "its PriorityClass were low with priority 10 (its priority is 0)"),
        (
            [of_class("idle", 50, "Never"), HIGH],
            0,
            [0],
            "its PriorityClass were high with priority 1000 (its priority is 0)",
        ),
        ([LOW, SYSTEM], 0, [10], "its priority were 11 (it is 0, and no PriorityClass is high enough)"),
        ([], 7, [7], "its priority were 8 (it is 7, and no PriorityClass is high enough)"),
        ([LOW], 0, [1_000_000_000], ""),
        ([HIGH], 0, [2_000_000_000], ""),
    ],
)
def test_the_lowest_priority_that_helps_is_named(
    classes: list[PriorityClass], own: int, others: list[int], line: str
) -> None:
    """Each of the other pods fills a node."""
    nodes = [node(f"n{i}:1") for i in range(len(others))]
    busy = [pod(f"r-{i}", at=f"n{i}", priority=priority) for i, priority in enumerate(others)]
    objects = [*nodes, *classes, *busy, pod("p", priority=own)]
    lines = said(objects, name="p", config=replace(QUIET, preemption=Preemption()))
    assert [one for one in lines if "priority" in one] == ([f"{line}: 1 pod would be evicted for it"] if line else [])
    assert not [one for one in said(objects, name="p") if "priority" in one]  # without preemption none helps


EVICTS = ": 1 pod would be evicted for it"
POLICY = "its preemptionPolicy were PreemptLowerPriority (it is Never)"
BOTH = (
    "its PriorityClass were high with priority 1000 (its priority is 0)"
    " and its preemptionPolicy were PreemptLowerPriority"
)


@pytest.mark.parametrize(
    ("classes", "own", "spec", "lines"),
    [
        ([HIGH], 0, {}, [f"its PriorityClass were high with priority 1000 (its priority is 0){EVICTS}"]),
        ([of_class("never", 1000, "Never")], 0, {}, []),
        ([HIGH], 0, {"preemption_policy": "Never"}, [f"{BOTH}{EVICTS}"]),
        ([], 0, {"preemption_policy": "Never"}, []),
        (
            [],
            5,
            {"preemption_policy": "Never"},
            [f"{POLICY}{EVICTS}"],
        ),
        (
            [HIGH, of_class("never", 5, "Never")],
            5,
            {"preemption_policy": "Never", "priority_class_name": "never"},
            [f"its PriorityClass were high with priority 1000 (its priority is 5){EVICTS}"],
        ),
        ([of_class("never", 5, "Never")], 5, {"preemption_policy": "Never", "priority_class_name": "never"}, []),
    ],
)
def test_a_priority_that_cannot_preempt_is_not_named(
    classes: list[PriorityClass], own: int, spec: dict[str, Any], lines: list[str]
) -> None:
    """The API server rejects a pod with `preemptionPolicy: Never` and a class that preempts, so both are changed."""
    objects = [node("n:1"), *classes, pod("run", at="n"), pod("p", priority=own, **spec)]
    found = said(objects, name="p", config=replace(QUIET, preemption=Preemption()))
    assert [one for one in found if "priority" in one or "preemptionPolicy" in one] == lines


@pytest.mark.parametrize(("allowed", "end"), [(0, ", more than PodDisruptionBudget default/pdb allows"), (1, "")])
def test_a_priority_names_the_budget_that_the_evictions_violate(allowed: int, end: str) -> None:
    """Evictions by priority may violate a PodDisruptionBudget (preemption.md 3.5)."""
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="pdb", namespace="default"),
        spec=PodDisruptionBudgetSpec(max_unavailable=allowed, selector=LabelSelector({"app": "a"})),
    )
    objects = [node("n:1"), HIGH, budget, pod("run", at="n", labels={"app": "a"}), pod("p")]
    found = said(objects, name="p", config=replace(QUIET, preemption=Preemption()))
    assert found[1:2] == (f"its PriorityClass were high with priority 1000 (its priority is 0){EVICTS}{end}",)


def test_a_priority_that_brings_a_gang_before_others_is_named() -> None:
    """Without preemption: the order of the queue alone."""
    gang = [group("g", 2), *gang_pods("g", 2, created=5)]
    lines = said(node("n1:2"), [HIGH, LOW], pod("first", cpu="2"), gang, name="p-1")
    assert lines[0] == "pod default/first were not placed before it"
    assert "its PriorityClass were low with priority 10 (its priority is 0)" in lines


@pytest.mark.parametrize(
    ("slots", "minimum", "multiple", "least"),
    [(3, 4, 0, 3), (1, 4, 0, 1), (5, 8, 2, 4), (0, 4, 0, None), (3, 4, 4, None)],
)
def test_the_largest_minimum_that_fits_is_named(slots: int, minimum: int, multiple: int, least: int | None) -> None:
    notes = wish({"blockLayer": "Must"}, multiple={"blockLayer": multiple} if multiple else {})
    gang = gang_pods("g", minimum)
    nodes = blocks(1, slots) or [node("away:1", {"spine": "s", "block": "b"}), pod("r", at="away")]
    lines = said(TWO_LAYERS, nodes, group("g", minimum, notes), gang, name="p-0")
    found = [line for line in lines if line.startswith("minMember")]
    assert found == ([f"minMember of PodGroup default/g were {least} (it is {minimum})"] if least else [])
    if least:
        assert len(bound(World().add(TWO_LAYERS, nodes, group("g", least, notes), gang).plan())) >= least


def test_the_gang_is_named_whose_minimum_it_is() -> None:
    links = {"gang.scheduling.koordinator.sh/groups": '["default/a","default/b"]'}
    gangs = [group("a", 2, links), *gang_pods("a", 2), group("b", 3, links), *gang_pods("b", 3, prefix="q")]
    assert said([node("n1:4")], gangs, name="p-0")[0] == "minMember of PodGroup default/a were 1 (it is 2)"


TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")
TOLERATED = "it tolerated taint gpu=yes:NoSchedule"
LAB = ElasticQuota(metadata=ObjectMeta(name="lab", namespace="default"), spec=ElasticQuotaSpec(max={"cpu": "1"}))
RAISED = "max of quota lab were 2 cpu (it is 1)"
UNSELECTED = "node selector pool=b were removed (no node has this label)"
AFTER_RUN = "node n had 2 more cpu free (now 0), for example after pod default/run completed"


@pytest.mark.parametrize(
    ("closed", "runs", "in_quota", "spec", "line"),
    [
        (True, False, True, {}, f"{RAISED}, and {TOLERATED}"),
        (True, True, False, {}, f"{TOLERATED}, and {AFTER_RUN}"),
        (False, True, True, {}, f"{RAISED}, and {AFTER_RUN}"),
        (False, True, False, {"node_selector": {"pool": "b"}}, f"{UNSELECTED}, and {AFTER_RUN}"),
        (True, False, False, {"cpu": "4"}, f"{TOLERATED}, and it requested 2 cpu (it requests 4)"),
        (True, True, True, {}, f"{RAISED}, and {TOLERATED}, and {AFTER_RUN}"),
        (False, True, True, {"node_selector": {"pool": "b"}}, f"{RAISED}, and {UNSELECTED}, and {AFTER_RUN}"),
        (True, True, True, {"node_selector": {"pool": "b"}}, ""),
    ],
)
def test_the_second_obstacle_is_found_behind_the_first(
    closed: bool, runs: bool, in_quota: bool, spec: dict[str, Any], line: str
) -> None:
    """Each change alone does not help; with three obstacles neither do two. Four get no suggestion."""
    one = node("n:2")
    if closed:
        one = replace(one, spec=replace(one.spec, taints=[TAINT]))
    labels = {"quota.scheduling.koordinator.sh/name": "lab"} if in_quota else {}
    own = pod("p", labels=labels, **{"cpu": "2", **spec})
    busy = [pod("run", at="n", cpu="2")] if runs else []
    lines = said(one, LAB, busy, own, name="p")
    assert lines[:1] == ((line,) if line else ())
