# SPDX-License-Identifier: Apache-2.0
"""Rejections by kubelets: what counts as one, strikes and closures, early openings, forgetting (numa.md 8.1 to 8.7)."""

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from koordpy.api.objects import Condition, Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koordpy.api.times import rfc3339, seconds
from koordpy.config.node_failures import Rejections
from koordpy.rejections.closed_nodes import ClosedNodes
from koordpy.rejections.rejection_memory import RejectedPod, RejectingNodeFacts, RejectionMemory, RunningPod
from koordpy.rejections.rejection_reading import bind_time, rejection_reason, rejection_time
from koordpy.rejections.request_shapes import RequestShape, qos_class, request_shape
from koordpy.rejections.strikes import Rejection, count_strikes
from tests.scenarios.cluster import pod

GPU = "nvidia.com/gpu"
TOPOLOGY, UNEXPECTED = "TopologyAffinityError", "UnexpectedAdmissionError"
FREE = {"cpu": 32_000, "memory": 1 << 38, GPU: 8, "pods": 100}
START = seconds("2026-01-01T00:00:00Z")


def shape(gpus: int = 4, **more: int) -> RequestShape:
    total = {**({GPU: gpus} if gpus else {}), **more}
    return RequestShape(repr(sorted(total.items())).encode(), total)


def rejected(
    at: float, reason: str = TOPOLOGY, *, node: str = "n1", of: RequestShape | None = None, uid: str = ""
) -> RejectedPod:
    own = of or shape()
    return RejectedPod(node, own, Rejection(at, uid or f"{node} {own.text} {at} {reason}", reason))


def running(bound: float, requests: dict[str, int], uid: str = "") -> RunningPod:
    return RunningPod(uid or f"run {bound} {requests}", bound, requests)


class Nodes:
    """Facts of nodes that a test changes."""

    def __init__(self, *names: str, **facts: Any) -> None:
        self.facts = {
            name: RejectingNodeFacts(**{"free": FREE, "unstarted": {}, "fresh": 0.0, "running": (), **facts})
            for name in names or ("n1",)
        }

    def put(self, name: str = "n1", **facts: Any) -> None:
        given = self.facts[name]
        before = {key: getattr(given, key) for key in ("free", "unstarted", "fresh", "running", "state")}
        self.facts[name] = RejectingNodeFacts(**{**before, **facts})


def closures(
    pods: Iterable[RejectedPod], now: float, nodes: Nodes | None = None, *, count: int = 20, **settings: Any
) -> ClosedNodes:
    memory, nodes = RejectionMemory(Rejections(**settings)), nodes or Nodes()
    for one in pods:
        memory.saw(one)
    return memory.update(now, nodes.facts.get, count)


def told(closed: ClosedNodes) -> list[tuple[Any, ...]]:
    return [(one["node"], one["shape"], one["rejections"], one["until"]) for one in closed.document()]


# -- what is a rejection ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("UnexpectedAdmissionError", "UnexpectedAdmissionError"),
        ("TopologyAffinityError", "TopologyAffinityError"),
        ("Topology Affinity Error", "TopologyAffinityError"),
        ("SMTAlignmentError", "SMTAlignmentError"),
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfnvidia.com/gpu", "OutOfnvidia.com/gpu"),
        *(
            (other, "")
            for other in (
                "NodeAffinity",
                "NodePorts",
                "NodeName",
                "Evicted",
                "NodeShutdown",
                "Terminated",
                "Preempting",
                "PodOSNotSupported",
                "SysctlForbidden",
                "",
            )
        ),
    ],
)
def test_reasons_that_are_rejections(reason: str, found: str) -> None:
    assert rejection_reason(_failed(reason)) == found


def test_a_pod_that_ran_or_has_no_node_was_not_rejected() -> None:
    assert not rejection_reason(_failed(TOPOLOGY, container_statuses=[ContainerStatus(container_id="containerd://1")]))
    assert rejection_reason(_failed(TOPOLOGY, container_statuses=[ContainerStatus(name="main")]))
    assert not rejection_reason(_failed(TOPOLOGY, init_container_statuses=[ContainerStatus(container_id="c")]))
    assert not rejection_reason(pod("p"))
    assert not rejection_reason(_failed(TOPOLOGY, phase="Running"))


def _failed(reason: str, phase: str = "Failed", **status: Any) -> Pod:
    made = pod("p", at="n1")
    return Pod(metadata=made.metadata, spec=made.spec, status=PodStatus(phase=phase, reason=reason, **status))


def test_times_of_rejections_and_bindings() -> None:
    ready = Condition(type="Ready", status="False", last_transition_time=rfc3339(START + 5))
    bound = Condition(type="PodScheduled", status="True", last_transition_time=rfc3339(START + 1))
    whole = _failed(TOPOLOGY, conditions=[bound, ready], start_time=rfc3339(START + 2))
    assert rejection_time(whole, START + 60) == START + 5
    assert rejection_time(whole, START + 3) == START + 3
    assert rejection_time(_failed(TOPOLOGY, start_time=rfc3339(START + 2)), START + 60) == START + 2
    assert bind_time(whole) == START + 1
    assert bind_time(_failed("", start_time=rfc3339(START + 2))) == START + 2
    assert bind_time(_failed("")) == 0


# -- shapes -----------------------------------------------------------------------------------------------------------


def _pod(*containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), **spec: Any) -> Pod:
    made = [[Container(name=str(i), **one) for i, one in enumerate(group)] for group in (containers, init)]
    return Pod(metadata=pod("p").metadata, spec=PodSpec(containers=made[0], init_containers=made[1], **spec))


def _asks(requests: dict[str, str], limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"resources": ResourceRequirements(requests=requests, limits=limits or {})}


def test_shapes_ignore_names_and_see_containers() -> None:
    one = _pod(_asks({"cpu": "1"}), _asks({GPU: "1"}))
    same = [
        _pod({**_asks({"cpu": "1000m"}), "image": "other"}, _asks({}, {GPU: "1"})),
        _pod(_asks({"cpu": "1", "memory": "0"}), _asks({GPU: "1"})),
    ]
    others = [
        _pod(_asks({"cpu": "1", GPU: "1"}), _asks({})),
        _pod(_asks({GPU: "1"}), _asks({"cpu": "1"})),
        _pod(_asks({GPU: "1"}), init=[_asks({"cpu": "1"})]),
        _pod(_asks({GPU: "1"}), init=[{**_asks({"cpu": "1"}), "restart_policy": "Always"}]),
        _pod(_asks({"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}), _asks({GPU: "1"})),
        _pod(_asks({"cpu": "1"}), _asks({GPU: "1"}), overhead={"cpu": "1"}),
        _pod(_asks({"cpu": "1"}), _asks({GPU: "1"}), resources=ResourceRequirements(requests={"cpu": "1"})),
    ]
    assert {request_shape(each).key for each in same} == {request_shape(one).key}
    keys = [request_shape(each).key for each in (one, *others)]
    assert len(set(keys)) == len(keys)


def test_text_of_a_shape() -> None:
    assert request_shape(_pod(_asks({GPU: "4", "memory": "64Gi", "ephemeral-storage": "1Gi", "cpu": "8"}))).text == (
        f"cpu 8, memory 64Gi, ephemeral-storage 1Gi, {GPU} 4"
    )
    assert request_shape(_pod(_asks({}))).text == "no requests"
    assert request_shape(_pod(_asks({"hugepages-2Mi": "4Mi", "b.c/d": "1", "a.b/c": "1"}))).devices == (
        "a.b/c",
        "b.c/d",
    )


@pytest.mark.parametrize(
    ("made", "qos"),
    [
        (_pod(_asks({})), "BestEffort"),
        (_pod(_asks({GPU: "1"})), "BestEffort"),
        (_pod(_asks({"cpu": "1"})), "Burstable"),
        (_pod(_asks({}, {"cpu": "1", "memory": "1Gi"})), "Guaranteed"),
        (_pod(_asks({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"})), "Burstable"),
        (_pod(_asks({}, {"cpu": "1", "memory": "1Gi"}), _asks({})), "Burstable"),
        (_pod(_asks({}, {"cpu": "1", "memory": "1Gi"}), init=[_asks({"cpu": "1"})]), "Burstable"),
        (_pod(_asks({}), resources=ResourceRequirements(limits={"cpu": "1", "memory": "1Gi"})), "Guaranteed"),
    ],
)
def test_qos_classes(made: Pod, qos: str) -> None:
    assert qos_class(made) == qos


# -- strikes and closures ---------------------------------------------------------------------------------------------


def test_strikes_double_the_closure_and_a_closed_shape_counts_nothing() -> None:
    """Worked example 6."""
    times = [START + second for second in (0, 60, 150, 420)]
    pods = [rejected(at) for at in times]
    assert told(closures(pods[:2], START + 61)) == [("n1", f"{GPU} 4", 1, "2026-01-01T00:02:00Z")]
    assert told(closures(pods[:2], START + 120)) == []
    assert told(closures(pods[:3], START + 160)) == [("n1", f"{GPU} 4", 2, "2026-01-01T00:06:30Z")]
    assert told(closures(pods, START + 430)) == [("n1", f"{GPU} 4", 3, "2026-01-01T00:15:00Z")]


def test_the_closure_has_a_maximum_and_strikes_are_forgotten_in_time() -> None:
    def strikes(*times: float, now: float) -> tuple[int, float] | None:
        made = [Rejection(at, str(at), TOPOLOGY) for at in times]
        settings = Rejections(backoff=10.0, max_backoff=40.0)
        found = count_strikes(made, successes=(), openings=(), settings=settings, now=now)
        return (found.count, found.until) if found is not None else None

    assert strikes(0, 10, 30, 70, now=71) == (4, 110)
    assert strikes(0, 10, 30, 70, now=149.9) == (4, 110)
    assert strikes(0, 10, 30, 70, now=150) is None
    assert strikes(0, 79, now=80) == (2, 99)
    assert strikes(0, 80, now=81) == (1, 90)


def test_backoff_0_learns_nothing() -> None:
    assert not closures([rejected(START)], START + 1, backoff=0.0)


@pytest.mark.parametrize(
    ("run", "forgets"),
    [
        (running(START + 10, {GPU: 4}), True),
        (running(START + 10, {GPU: 8, "cpu": 5}), True),
        (running(START + 9.9, {GPU: 4}), False),
        (running(START - 30, {GPU: 4}), False),
        (running(START + 10, {GPU: 3}), False),
        (running(START + 10, {"cpu": 64_000}), False),
    ],
)
def test_a_success_forgets_the_strikes(run: RunningPod, forgets: bool) -> None:
    assert bool(closures([rejected(START)], START + 30, Nodes(running=(run,)))) is not forgets


def test_a_success_counts_at_its_time() -> None:
    nodes = Nodes(running=(running(START + 20, {GPU: 4}),))
    closed = closures([rejected(START), rejected(START + 60)], START + 61, nodes)
    assert told(closed) == [("n1", f"{GPU} 4", 1, "2026-01-01T00:03:00Z")]


def test_a_younger_node_or_kubelet_voids_rejections() -> None:
    assert closures([rejected(START)], START + 9, Nodes(fresh=START))
    assert not closures([rejected(START)], START + 9, Nodes(fresh=START + 1))
    assert told(closures([rejected(START), rejected(START + 5)], START + 9, Nodes(fresh=START + 1))) == [
        ("n1", f"{GPU} 4", 1, "2026-01-01T00:02:05Z")
    ]
    assert not closures([rejected(START, node="gone")], START + 9)


def test_a_changed_node_is_tried_again_and_the_same_pod_is_not_learnt_twice() -> None:
    memory, nodes = RejectionMemory(Rejections()), Nodes(state=8)
    memory.saw(rejected(START))
    assert memory.update(START + 1, nodes.facts.get, 9)
    nodes.put(state=7)
    assert not memory.update(START + 2, nodes.facts.get, 9)
    assert [one.ended for one in memory.news] == [None, "the node changed"]
    memory.saw(rejected(START))
    assert not memory.update(START + 3, nodes.facts.get, 9)


def test_more_free_devices_open_the_node_early_and_keep_the_strikes() -> None:
    memory, nodes = RejectionMemory(Rejections()), Nodes(free={**FREE, GPU: 4})
    memory.saw(rejected(START))
    assert memory.update(START + 1, nodes.facts.get, 9)
    nodes.put(free={**FREE, "cpu": 99_000, GPU: 4})
    assert memory.update(START + 2, nodes.facts.get, 9)
    nodes.put(free={**FREE, GPU: 5})
    assert not memory.update(START + 3, nodes.facts.get, 9)
    nodes.put(free={**FREE, GPU: 4})
    assert not memory.update(START + 4, nodes.facts.get, 9)
    memory.saw(rejected(START + 5))
    assert told(memory.update(START + 6, nodes.facts.get, 9)) == [("n1", f"{GPU} 4", 2, "2026-01-01T00:04:05Z")]
    nodes.put(free={**FREE, GPU: 5})
    assert not memory.update(START + 7, nodes.facts.get, 9)
    assert [one.ended for one in memory.news] == [None, "more is free", None, "more is free"]


def test_what_rejected_members_of_a_burst_free_opens_nothing() -> None:
    memory, nodes = RejectionMemory(Rejections()), Nodes(free={**FREE, GPU: 0}, unstarted={GPU: 4})
    memory.saw(rejected(START))
    assert memory.update(START + 1, nodes.facts.get, 9)
    nodes.put(free={**FREE, GPU: 4}, unstarted={})
    assert memory.update(START + 2, nodes.facts.get, 9)


def test_a_shape_without_devices_is_opened_by_cpu_memory_or_hugepages() -> None:
    for resource, opens in (("cpu", True), ("memory", True), ("hugepages-2Mi", True), (GPU, False)):
        memory, nodes = RejectionMemory(Rejections()), Nodes()
        memory.saw(rejected(START, of=shape(0, cpu=1000)))
        assert memory.update(START + 1, nodes.facts.get, 9)
        nodes.put(free={**FREE, resource: FREE.get(resource, 0) + 1})
        assert bool(memory.update(START + 2, nodes.facts.get, 9)) is not opens


def test_out_of_counts_only_if_the_totals_do_not_explain_it() -> None:
    assert closures([rejected(START, f"OutOf{GPU}")], START + 1)
    assert not closures([rejected(START, f"OutOf{GPU}")], START + 1, Nodes(free={**FREE, GPU: 3}))
    assert not closures([rejected(START, "OutOfpods")], START + 1, Nodes(free={**FREE, "pods": 0}))
    assert closures([rejected(START, TOPOLOGY)], START + 1, Nodes(free={**FREE, GPU: 3}))


# -- three shapes -----------------------------------------------------------------------------------------------------


def _three(
    reason: str = UNEXPECTED, at: float = START, node: str = "n1", sizes: Sequence[int] = (1, 2, 4)
) -> list[RejectedPod]:
    return [rejected(at, reason, node=node, of=shape(size)) for size in sizes]


def test_three_shapes_close_a_node() -> None:
    """Worked example 7."""
    whole = closures(_three(), START + 1).nodes["n1"]
    assert (whole.resources, whole.shapes, whole.rejections) == ((GPU,), 3, 3)
    assert rfc3339(whole.until) == "2026-01-01T00:02:00Z"
    assert not closures(_three(sizes=(1, 2)), START + 1).nodes
    assert not closures(_three(TOPOLOGY), START + 1).nodes
    assert not closures(_three(), START + 1, shapes=0).nodes
    assert closures(_three(sizes=(1,)), START + 1, shapes=1).nodes
    mixed = [*_three(sizes=(1, 2)), rejected(START, UNEXPECTED, of=shape(0, cpu=1000))]
    assert closures(mixed, START + 1).nodes["n1"].resources == ()


def test_a_remembered_shape_counts_and_one_of_them_must_be_closed() -> None:
    old = _three(at=START - 600, sizes=(1, 2))
    assert closures([*old, *_three(sizes=(4,))], START + 1).nodes["n1"].rejections == 3
    assert not closures([*old, *_three(at=START - 600, sizes=(4,))], START + 1).nodes


def test_a_pod_that_started_with_the_devices_disproves_the_closure() -> None:
    small = running(START + 10, {GPU: 1})
    assert not closures(_three(sizes=(2, 4, 8)), START + 30, Nodes(running=(small,))).nodes
    assert closures(_three(sizes=(2, 4, 8)), START + 30, Nodes(running=(running(START + 9, {GPU: 1}),))).nodes
    assert closures(_three(sizes=(2, 4, 8)), START + 30, Nodes(running=(running(START + 10, {"cpu": 1}),))).nodes


def test_few_nodes_are_closed_at_once() -> None:
    names = [f"n{i}" for i in range(1, 13)]
    pods = [one for i, name in enumerate(names) for one in _three(node=name, at=START + i // 6)]
    for count, most in ((1, 0), (2, 1), (19, 1), (20, 2), (200, 12)):
        closed = closures(pods, START + 20, Nodes(*names), count=count)
        assert len(closed.nodes) == most
        assert len(closed.shapes) == 12
    assert [*closures(pods, START + 20, Nodes(*names), count=20).nodes] == ["n7", "n8"]
    more = [*pods, *(rejected(START - 900, UNEXPECTED, node="n3", of=shape(size)) for size in (1, 2, 4))]
    assert [*closures(more, START + 20, Nodes(*names), count=10).nodes] == ["n3"]


# -- order, bounds ----------------------------------------------------------------------------------------------------


def test_the_answer_does_not_depend_on_the_order_of_pods() -> None:
    """Every order of five rejections, read in one or several updates, and random histories."""
    times = [START + second for second in (0, 60, 150, 420, 421)]
    expected = told(closures(map(rejected, times), START + 430))
    assert expected
    for order in itertools.permutations(times):
        for cut in (0, 2, 4):
            memory, nodes = RejectionMemory(Rejections()), Nodes()
            for part in (order[:cut], order[cut:]):
                for at in part:
                    memory.saw(rejected(at))
                memory.update(START + 430, nodes.facts.get, 20)
            assert told(memory.closed) == expected
    for seed in range(200):
        chance = random.Random(seed)
        names = ["n1", "n2", "n3"]
        pods = [
            rejected(
                START + chance.randrange(900),
                chance.choice((TOPOLOGY, UNEXPECTED)),
                node=chance.choice(names),
                of=shape(chance.choice((1, 2, 4))),
                uid=str(i),
            )
            for i in range(chance.randrange(1, 25))
        ]
        runs = tuple(running(START + chance.randrange(900), {GPU: chance.choice((1, 2, 4))}) for _ in range(3))
        expected_document = closures(pods, START + 900, Nodes(*names, running=runs)).document()
        shuffled = pods[:]
        chance.shuffle(shuffled)
        assert closures(shuffled, START + 900, Nodes(*names, running=runs)).document() == expected_document


def test_strikes_agree_with_a_walk_through_time() -> None:
    """An independent check: the closure is simulated second by second."""
    settings = Rejections(backoff=4.0, max_backoff=20.0)
    for seed in range(300):
        chance = random.Random(seed)
        times = sorted(chance.randrange(120) for _ in range(chance.randrange(1, 9)))
        bound = [chance.randrange(120) for _ in range(chance.randrange(3))]
        now = chance.randrange(times[-1], 140)
        strikes, until, last_strike, last = 0, -1.0, -1000.0, -1000.0
        for second in range(now + 1):
            if strikes and second >= last_strike + 40:
                strikes = 0
            for _ in range(times.count(second)):
                last = second
                if strikes and second < until:
                    continue
                strikes, last_strike = strikes + 1, second
                until = second + min(4 * 2 ** (strikes - 1), 20)
            if strikes and second in bound and second >= last + 10:
                strikes, until = 0, -1.0
        made = [Rejection(float(at), str(i), TOPOLOGY) for i, at in enumerate(times)]
        seen = [float(at) for at in bound if at <= now]
        found = count_strikes(made, successes=seen, openings=(), settings=settings, now=float(now))
        assert (found.count if found else 0, found.until if found else -1.0) == (strikes, until if strikes else -1.0)


def test_memory_is_bounded_and_empties() -> None:
    memory = RejectionMemory(Rejections())
    names = [f"n{i}" for i in range(600)]
    nodes = Nodes(*names)
    for at, name in enumerate(names):
        for size in range(1, 10):
            memory.saw(rejected(START + at, node=name, of=shape(size)))
        memory.update(START + at, nodes.facts.get, 600)
    assert sum(map(len, memory.closed.shapes.values())) <= 4096
    assert "n599" in memory.closed.shapes
    memory.update(START + 600 + 2 * 3600, nodes.facts.get, 600)
    assert memory.is_idle
