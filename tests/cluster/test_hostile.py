# SPDX-License-Identifier: Apache-2.0
"""Objects as hostile as their definition lets them be, up to the size that an API server takes: read and planned for in
work that is bounded by their bytes, counted in calls of functions."""

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import convert, inspect

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota, HyperNode
from koordpy.api.key_hints import READ
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.decoding.wire_json import Undecodable, WireReader
from tests.scenarios.cluster import TWO_LAYERS, World, group, nodes_of, pod

KINDS = (Pod, PodGroup, ElasticQuota, PersistentVolumeClaim, HyperNode)
LARGE = 256 * 1024
"""Bytes of one object; an API server takes as many of annotations, and about five times as many in all."""
CALLS_A_BYTE = 0.5
CALLS_OF_NOTHING = 15_000
"""What a round of this cluster takes without any hostile object, and then some."""
NOTES = sorted({key for places in READ.values() for key in places})
QUANTITIES = ("0", "1", "7", "9" * 30, "1e18", "2Gi")
AMOUNTS = ("requests", "limits", "min", "max", "minResources", "overhead", "divisor")
"""Fields of quantities: an object with a text that is none is not read at all."""
TEXTS = ("", "a", "default/train", "-1", "9" * 5000, "1e308", "\n\x1b[31m", "true", "[" * 9000, "{}", "n1", "é" * 500)


class Hostile:
    """Values of a type, drawn by a seed: every field there or not, lists and mappings long, texts odd."""

    def __init__(self, seed: int, many: int) -> None:
        self._rng, self._many = random.Random(seed), many

    def text(self) -> str:
        rng = self._rng
        if rng.random() < 0.2:
            return json.dumps(
                {
                    "gatherStrategy": [
                        {"layer": f"l{i}", "strategy": "MustGather"} for i in range(rng.choice((1, 70, 900)))
                    ],
                    **{f"gatherStrateg{i}": i for i in range(rng.choice((0, 9, self._many)))},
                }
            )
        if rng.random() < 0.2:
            return json.dumps([f"g{i}" for i in range(rng.choice((1, 999, self._many)))])
        return rng.choice(TEXTS)

    def of(self, info: Any, name: str = "", depth: int = 0) -> Any:
        rng = self._rng
        if isinstance(info, inspect.Metadata):
            return self.of(info.type, name, depth)
        if isinstance(info, inspect.UnionType):
            return self.of(rng.choice(info.types), name, depth)
        if isinstance(info, inspect.StructType):
            chance = 0.9 if depth < 3 else 0.5
            own = {one.encode_name: one for one in info.fields if rng.random() < chance}
            return {key: self.of(one.type, key, depth + 1) for key, one in own.items()}
        if isinstance(info, inspect.ListType | inspect.VarTupleType):
            first = [self.of(info.item_type, name, depth + 1) for _ in range(rng.choice((0, 1, 3)))]
            return first * rng.choice((1, 1, max(1, self._many >> 2 * depth)))
        if isinstance(info, inspect.DictType):
            if name in ("annotations", "labels"):
                known = {key: self.text() for key in rng.sample(NOTES, rng.randrange(len(NOTES)))}
                return known | {f"{rng.choice(NOTES)}{i}": "x" for i in range(rng.choice((0, 5, self._many)))}
            return {
                f"example.com/{name}{i}": self.of(info.value_type, name, depth + 1)
                for i in range(rng.choice((0, 2, 9)))
            }
        if isinstance(info, inspect.BoolType):
            return rng.random() < 0.5
        if isinstance(info, inspect.IntType):
            return rng.choice((0, 1, -1, 7, 2**31 - 1, -(2**31)))
        if isinstance(info, inspect.NoneType):
            return None
        return rng.choice(QUANTITIES) if name in AMOUNTS else self.text()


def least_bytes(value: Any, known: dict[int, int]) -> int:
    """No more than its bytes as JSON. known: of the mappings and lists in it, which may stand there many times."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, dict | list):
        return 1
    if (size := known.get(id(value))) is None:
        parts = value.values() if isinstance(value, dict) else value
        size = known[id(value)] = len(value) + sum(least_bytes(part, known) for part in parts)
    return size


def calls_of(act: Callable[[], object]) -> int:
    """How many functions are called, those of C too."""
    count = 0

    def hear(frame: object, what: str, arg: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(hear)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS), st.integers(0, 2**32), st.sampled_from((1, 30, 1000, 8000)))
def test_work_is_bounded_by_the_bytes_of_a_hostile_object(kind: type, seed: int, many: int) -> None:
    drawn = Hostile(seed, many).of(inspect.type_info(kind))
    meta = {**drawn.get("metadata", {}), "name": "train", "namespace": "default", "uid": "u"}
    drawn["metadata"] = {key: value for key, value in meta.items() if key != "deletionTimestamp"}
    drawn.pop("status", None)  # which no tenant writes
    if kind is Pod:
        drawn["spec"] = {**drawn.get("spec", {}), "schedulerName": keys.DEFAULT_SCHEDULER_NAME, "nodeName": ""}
        drawn["spec"].pop("schedulingGates", None)
    if least_bytes(drawn, {}) > 4 * LARGE:  # some would take gigabytes
        return
    raw = json.dumps(drawn).encode()
    if len(raw) > 4 * LARGE:
        return
    world = World().add(
        TWO_LAYERS, *nodes_of("s1{b1: n1:4 n2:4; b2: n3:4}"), group("train", 1), pod("p-0", gang="train")
    )

    def act() -> None:
        try:
            world.add(WireReader(kind).read(raw))
        except (Undecodable, ValueError):
            return
        for _ in range(2):
            world.plan()

    calls = calls_of(act)
    assert calls < CALLS_OF_NOTHING + CALLS_A_BYTE * len(raw), (kind.__name__, len(raw), calls)


def chained(count: int, *, closed: bool) -> list[ElasticQuota]:
    """Quotas of which each is the parent of the next; closed: the last is the parent of the first."""
    first = f"q{count - 1}" if closed else ""
    wire = [
        {
            "metadata": {
                "name": f"q{i}",
                "namespace": "default",
                "labels": {keys.QUOTA_IS_PARENT: "true", keys.QUOTA_PARENT: f"q{i - 1}" if i else first},
            },
            "spec": {"min": {"cpu": "1"}, "max": {"cpu": "8"}},
        }
        for i in range(count)
    ]
    return [convert(one, ElasticQuota) for one in wire]


@pytest.mark.parametrize("closed", [False, True], ids=["a chain", "a cycle"])
def test_a_change_among_2000_quotas_below_one_another_costs_little_each(closed: bool) -> None:
    world = World().add(*nodes_of("n1:8"), *chained(2000, closed=closed))
    before = world.snapshot().quotas.tree
    world.add(*chained(2000, closed=closed)[7:8])
    assert calls_of(world.snapshot) < 100 * 2000
    after = world.snapshot().quotas.tree
    assert after.quotas == before.quotas
    assert max((len(fault.text) for fault in after.faults), default=0) < 200
    assert len(after.faults) == (2000 if closed else 0)


def test_quotas_of_a_cycle_and_those_below_it_are_told_apart() -> None:
    below = [
        convert(
            {"metadata": {"name": "low", "namespace": "default", "labels": {keys.QUOTA_PARENT: "q1"}}}, ElasticQuota
        )
    ]
    tree = World().add(*nodes_of("n1:8"), *chained(3, closed=True), *below).snapshot().quotas.tree
    assert {fault.key: fault.text for fault in tree.faults if "cycle" in fault.text} == {
        "default/q0": "parents form a cycle: q0 -> q2 -> q1 -> q0",
        "default/q1": "parents form a cycle: q1 -> q0 -> q2 -> q1",
        "default/q2": "parents form a cycle: q2 -> q1 -> q0 -> q2",
    }
