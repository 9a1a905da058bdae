# SPDX-License-Identifier: Apache-2.0
"""The accounting of pods to nodes: whatever happens in whatever order, the figures are those of the objects."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api.objects import Node, ObjectMeta, Pod
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import ClosedTo, withheld
from koordpy.cache.snapshot import NOWHERE, Snapshot
from koordpy.devices.family_registry import make_state
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_ties import PodClass
from tests.scenarios.cluster import node, pod

NODES = ("n1", "n2", "n3")


def figures(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Node -> resource -> used, zeros left out."""
    names = {column: name for name, column in snapshot.columns.items()}
    return {
        info.name: {names[c]: int(v) for c, v in enumerate(snapshot.used[i]) if v}
        for i, info in enumerate(snapshot.nodes)
    }


def events() -> st.SearchStrategy[Any]:
    names = st.sampled_from([f"p-{i}" for i in range(5)])
    upsert = st.tuples(
        st.just("pod"), names, st.sampled_from(["", *NODES]), st.sampled_from(["1", "500m"]),
        st.sampled_from(["Running", "Pending", "Succeeded"]), st.sampled_from(["", "g"]), st.sampled_from(["u1", "u2"]),
    )  # fmt: skip
    return st.one_of(
        upsert,
        st.tuples(st.just("gone"), names),
        st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from(["2", "4"])),
        st.tuples(st.just("no node"), st.sampled_from(NODES)),
        st.tuples(st.just("assume"), names, st.sampled_from(NODES)),
        st.tuples(st.just("forget"), names),
        st.tuples(st.just("snapshot")),
    )


def made(name: str, at: str, cpu: str, phase: str, gang: str, uid: str) -> Pod:
    wire = pod(name, at=at, cpu=cpu, phase=phase, gang=gang, requests={"nvidia.com/gpu": "1"})
    from msgspec.structs import replace

    return replace(wire, metadata=replace(wire.metadata, uid=uid))


@settings(max_examples=300, deadline=None)
@given(st.lists(events(), max_size=25))
def test_used_is_the_sum_over_the_pods_that_hold_room(happened: list[Any]) -> None:
    state = make_state()
    pods: dict[str, Pod] = {}
    nodes: dict[str, Node] = {}
    assumed: dict[str, str] = {}
    for what, *rest in happened:
        if what == "pod":
            wire = made(*rest)
            key = wire.key
            if wire.spec.node_name or (key in pods and pods[key].metadata.uid != wire.metadata.uid):
                assumed.pop(key, None)
            if wire.status.phase == "Succeeded":
                assumed.pop(key, None)
            pods[key] = wire
            state.upsert(wire)
        elif what == "gone":
            pods.pop(f"default/{rest[0]}", None)
            assumed.pop(f"default/{rest[0]}", None)
            state.delete(Pod, f"default/{rest[0]}")
        elif what == "node":
            nodes[rest[0]] = node(f"{rest[0]}:{rest[1]}")
            state.upsert(nodes[rest[0]])
        elif what == "no node":
            nodes.pop(rest[0], None)
            state.delete(Node, rest[0])
        elif what == "assume":
            key = f"default/{rest[0]}"
            info = state.pod(key)
            if info is not None and info.pending:
                state.assume(key, rest[1])
                assumed[key] = rest[1]
        elif what == "forget":
            state.forget(f"default/{rest[0]}")
            assumed.pop(f"default/{rest[0]}", None)
        else:
            state.snapshot(0.0)
    want: dict[str, dict[str, int]] = {name: {} for name in nodes}
    for key, wire in pods.items():
        at = wire.spec.node_name or assumed.get(key, "")
        if at in want and wire.status.phase != "Succeeded":
            cpu = 1000 if wire.spec.containers[0].resources.requests["cpu"] == "1" else 500
            for resource, amount in {"pods": 1, "cpu": cpu, "nvidia.com/gpu": 1}.items():
                want[at][resource] = want[at].get(resource, 0) + amount
    snapshot = state.snapshot(0.0)
    for held in want.values():
        if "nvidia.com/gpu" in held:
            held[NOWHERE] = held.pop("nvidia.com/gpu")
    assert figures(snapshot) == want
    waiting = {
        k for k, p in pods.items() if not p.spec.node_name and k not in assumed and p.status.phase != "Succeeded"
    }
    assert {info.key for info in snapshot.pending} == waiting
    assert {p.key for p in snapshot.members.get(GangRef("default", "g"), ())} == {
        k for k, p in pods.items() if p.metadata.labels
    }


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_undo_gives_back_what_was_there(data: st.DataObject) -> None:
    state = make_state()
    for name in NODES:
        state.upsert(node(f"{name}:4"))
    for i in range(3):
        state.upsert(pod(f"run-{i}", at=NODES[i]))
        state.upsert(pod(f"p-{i}"))
    snapshot = state.snapshot(0.0)
    draft = Draft(snapshot)

    def now() -> Any:
        aside = [one.holder for one in draft.withheld]
        return draft.used.tolist(), dict(draft.placed), dict(draft.evicted), dict(draft.reservations), aside

    marks = [(draft.mark(), now())]
    for i in data.draw(st.permutations(range(3))):
        what, at = data.draw(st.sampled_from(["assign", "evict", "await", "aside"])), data.draw(st.integers(0, 2))
        if what == "assign":
            draft.assign(snapshot.pods[f"default/p-{i}"], at)
        elif what == "evict":
            draft.evict(snapshot.pods[f"default/run-{i}"])
        elif what == "await":
            draft.reserve({f"default/p-{i}": at})
        else:
            draft.withhold(withheld(f"u-{i}", data.draw(st.sampled_from(ClosedTo)), np.full_like(draft.used, 1 + i)))
        marks.append((draft.mark(), now()))
    while marks:
        mark, then = marks.pop()
        draft.undo(mark)
        assert now() == then
    assert (draft.used == snapshot.used).all() and (draft.score_used == snapshot.score_used).all()


def test_a_snapshot_does_not_change_with_the_state() -> None:
    state = make_state()
    state.upsert(node("n1:4"))
    state.upsert(pod("a", at="n1"))
    before = state.snapshot(0.0)
    used = before.used.copy()
    state.upsert(pod("b", at="n1"))
    state.delete(Pod, "default/a")
    assert (before.used == used).all() and set(before.pods) == {"default/a"}
    assert not np.shares_memory(before.used, state.snapshot(0.0).used)


def test_pods_of_a_node_that_is_gone_are_kept_for_its_return() -> None:
    state = make_state()
    state.upsert(node("n1:4"))
    state.upsert(pod("a", at="n1"))
    state.delete(Node, "n1")
    assert state.snapshot(0.0).nodes == ()
    assert state.pod("default/a") is not None
    state.upsert(node("n1:4"))
    assert figures(state.snapshot(0.0))["n1"]["cpu"] == 1000


def test_a_heartbeat_changes_no_version() -> None:
    state = make_state()
    state.upsert(node("n1:4"))
    first = state.snapshot(0.0)
    from msgspec.structs import replace

    beat = node("n1:4")
    state.upsert(replace(beat, metadata=replace(beat.metadata, resource_version="2")))
    second = state.snapshot(0.0)
    assert (first.static_version, first.capacity_version) == (second.static_version, second.capacity_version)
    assert second.tree is first.tree


def test_an_assumption_ends_with_the_pod_it_was_made_for() -> None:
    state = make_state()
    state.upsert(node("n1:4"))
    state.upsert(pod("a"))
    state.assume("default/a", "n1")
    wire = pod("a")
    from msgspec.structs import replace

    state.upsert(replace(wire, metadata=ObjectMeta(name="a", namespace="default", uid="another")))
    assert state.assumed_node("default/a") is None
    info = state.pod("default/a")
    assert info is not None and info.pending


def test_pods_are_told_apart_by_the_labels_that_someone_looks_for() -> None:
    state = make_state()
    state.upsert(node("n1:4"))
    for name, app in (("a", "web"), ("b", "web"), ("c", "db")):
        state.upsert(pod(name, at="n1", labels={"app": app, "index": name}))
    whole = PodClass("default", frozenset())
    assert state.snapshot(0.0).classes == {whole: {("n1", False): 3}}
    state.look_for(["app"])
    web, db = (PodClass("default", frozenset({("app", app)})) for app in ("web", "db"))
    before = state.snapshot(0.0)
    assert before.classes == {web: {("n1", False): 2}, db: {("n1", False): 1}}
    state.delete(Pod, "default/a")
    state.delete(Pod, "default/c")
    assert state.snapshot(0.0).classes == {web: {("n1", False): 1}}
    assert before.classes[web] == {("n1", False): 2}


def test_amounts_beyond_any_machine_neither_fail_nor_wrap_around() -> None:
    state = make_state()
    state.upsert(node("n1"))
    for i in range(5):
        state.upsert(pod(f"p{i}", at="n1", requests={"memory": "8Ei"}))
    snapshot = state.snapshot(0.0)
    free = snapshot.allocatable - snapshot.used
    assert int(free[0, snapshot.columns["memory"]]) < 0
