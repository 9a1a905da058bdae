# SPDX-License-Identifier: Apache-2.0
"""Claims in quotas: what counts before and after the allocation, for which pod, and the totals (dra.md 11)."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.claim_objects import (
    CapacityPolicy,
    CapacityRange,
    CapacityRequirements,
    ClaimConsumer,
    Counter,
    CounterSet,
    CounterUse,
    DeviceCapacity,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    ExactRequest,
    ResourceSlice,
    SubRequest,
)
from koordpy.api.objects import NodeSelector, NodeSelectorTerm, ObjectMeta, Pod, Requirement
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.dra_settings import DeviceClassMapping, Dra
from koordpy.planner.planning_round import plan_round
from koordpy.pods.claim_refs import CLAIMS
from koordpy.verify.claim_amounts import planned_amounts
from tests.planning.node_rules import node, planned, states
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, held, offers, resource_claim, selectors, user
from tests.scenarios.cluster import bound, group
from tests.scenarios.quotas import quota

GPU = "nvidia.com/gpu"
MEMORY = "example.com/gpu-memory"
BIG = DeviceClass(
    metadata=ObjectMeta(name="big"),
    spec=DeviceClassSpec(selectors=selectors(f'device.driver == "{DRIVER}"'), extended_resource_name="example.com/big"),
)
NODES = [node("n1:8"), node("n2:8")]
SHARED = {
    "memory": DeviceCapacity(
        value="80Gi",
        request_policy=CapacityPolicy(default="10Gi", valid_range=CapacityRange(min="10Gi", step="10Gi", max="40Gi")),
    )
}


def settings(capacity: str = "") -> KoordpyConfiguration:
    mapping = DeviceClassMapping(name=MEMORY if capacity else GPU, device_class_names=("gpu",), capacity=capacity)
    return KoordpyConfiguration(dra=Dra(device_class_mappings=(mapping,)))


def in_quota(wire: Pod, name: str = "q") -> Pod:
    labels = {**wire.metadata.labels, keys.QUOTA_NAME: name}
    return replace(wire, metadata=replace(wire.metadata, labels=labels))


def claimed(objects: Sequence[Any], config: KoordpyConfiguration | None = None) -> dict[str, dict[str, int]]:
    """Pod -> amounts of its claims."""
    found = snapshot_of(objects, config).pods.values()
    return {pod.name: pod.claimed.total for pod in found if pod.claimed.total}


def snapshot_of(objects: Sequence[Any], config: KoordpyConfiguration | None = None) -> Snapshot:
    return states([*NODES, CLASS, BIG, *objects], config or settings()).snapshot(0.0)


def alternatives(*parts: tuple[str, int]) -> DeviceRequest:
    subs = [SubRequest(name=f"s{i}", device_class_name=name, count=count) for i, (name, count) in enumerate(parts)]
    return DeviceRequest(name="r", first_available=subs)


def of_class(name: str, **more: Any) -> DeviceRequest:
    return DeviceRequest(name="r", exactly=ExactRequest(device_class_name=name, **more))


FOUR = [offers("n1", "g0", "g1", "g2", "g3"), offers("n2", "g0", "g1")]
BEFORE: dict[str, tuple[list[DeviceRequest], dict[str, int]]] = {
    "a count": ([asks(3)], {GPU: 3}),
    "two requests": ([asks(3), asks(1)], {GPU: 4}),
    "all devices of the node with most": ([asks(None, allocation_mode="All")], {GPU: 4}),
    "the largest alternative of each name": (
        [alternatives(("gpu", 1), ("gpu", 4), ("big", 2))],
        {GPU: 4, "example.com/big": 2},
    ),
    "a class by its extended resource": ([of_class("big", count=2)], {"example.com/big": 2}),
    "admin access": ([asks(2, admin_access=True)], {}),
}


@pytest.mark.parametrize(("requests", "amounts"), BEFORE.values(), ids=BEFORE)
def test_amounts_of_a_claim_without_an_allocation(requests: list[DeviceRequest], amounts: dict[str, int]) -> None:
    named = [replace(one, name=f"r{i}") for i, one in enumerate(requests)]
    assert claimed([*FOUR, resource_claim("c", *named), user("p", "c")]) == ({"p": amounts} if amounts else {})


def test_all_devices_are_those_that_one_node_reaches() -> None:
    slices = [offers("gone", *(f"g{i}" for i in range(6))), offers("n1", "g0")]
    for at, number in (("n1", 2), ("n2", 4)):
        wide = offers(f"of-{at}", *(f"g{i}" for i in range(number)))
        here = Requirement(key="kubernetes.io/hostname", operator="In", values=[at])
        terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[here])])
        slices.append(replace(wide, spec=replace(wide.spec, node_name="", node_selector=terms)))
    every = resource_claim("c", asks(None, allocation_mode="All"))
    assert claimed([*slices, every, user("p", "c")]) == {"p": {GPU: 4}}


def test_amounts_of_a_capacity_are_rounded_like_shares() -> None:
    slices = [offers("n1", "g0", capacity=SHARED, allow_multiple_allocations=True)]
    claim = resource_claim("c", asks(2, capacity=CapacityRequirements(requests={"memory": "15Gi"})))
    assert claimed([*slices, claim, user("p", "c")], settings("memory")) == {"p": {MEMORY: 2 * 20 * 2**30}}


def consumers(*names: str) -> list[ClaimConsumer]:
    return [ClaimConsumer(resource="pods", name=name, uid=f"uid-{name}") for name in names]


PAYERS: dict[str, tuple[list[Any], dict[str, dict[str, int]]]] = {
    "what was given counts for the first reservation": (
        [
            resource_claim("c", asks(3), allocation=held("g0", "g1", at="n1"), reserved_for=consumers("b", "a")),
            user("a", "c", at="n1"),
            user("b", "c", at="n1", created=1),
        ],
        {"b": {GPU: 2}},
    ),
    "allocated and reserved for no pod": (
        [resource_claim("c", asks(2), allocation=held("g0", "g1", at="n1")), user("a", "c")],
        {},
    ),
    "reserved for an unknown pod": (
        [resource_claim("c", asks(1), allocation=held("g0", at="n1"), reserved_for=consumers("x")), user("a", "c")],
        {},
    ),
    "every unit may be the first to be placed": (
        [resource_claim("c", asks(2)), user("young", "c", created=9), user("old", "c", created=1)],
        {"old": {GPU: 2}, "young": {GPU: 2}},
    ),
    "a gang counts a claim once, for the lowest rank": (
        [resource_claim("c", asks(2)), *(user(f"p-{i}", "c", gang="g") for i in (2, 0, 1))],
        {"p-0": {GPU: 2}},
    ),
}


@pytest.mark.parametrize(("objects", "amounts"), PAYERS.values(), ids=PAYERS)
def test_a_claim_counts_for_one_pod(objects: list[Any], amounts: dict[str, dict[str, int]]) -> None:
    assert claimed([*FOUR, *objects]) == amounts


def test_demand_counts_a_claim_once() -> None:
    pods = [in_quota(user("young", "c", created=9), "r"), in_quota(user("old", "c", created=1))]
    found = snapshot_of(
        [*FOUR, resource_claim("c", asks(2)), *(quota(name, least={}, most={GPU: 9}) for name in "qr"), *pods]
    ).quotas
    assert [found.own_waiting[name].get(GPU, 0) for name in "qr"] == [2, 0]


def test_members_with_one_claim_fit_a_quota_of_its_devices() -> None:
    members = [in_quota(user(f"p-{i}", "c", gang="g")) for i in range(4)]
    limit = {GPU: 2, "cpu": 64}
    objects = [*NODES, CLASS, *FOUR, resource_claim("c", asks(2)), group("g", 4), *members]
    assert len(bound(planned([*objects, quota("q", least=limit, most=limit)], settings()))) == 4
    limit = {GPU: 1, "cpu": 64}
    assert not bound(planned([*objects, quota("q", least=limit, most=limit)], settings()))


def test_a_pod_cannot_bypass_its_quota_by_the_claim_of_an_older_pod() -> None:
    blocked = in_quota(user("old", "c", node_selector={"kubernetes.io/hostname": "none"}))
    young = in_quota(user("young", "c", created=1))
    limit = {GPU: 1, "cpu": 64}
    objects = [*NODES, CLASS, *FOUR, resource_claim("c", asks(2)), blocked, young]
    assert not bound(planned([*objects, quota("q", least=limit, most=limit)], settings()))


TOTALS: dict[str, tuple[list[ResourceSlice], dict[str, int]]] = {
    "devices of complete pools": ([*FOUR, offers("n3", "g0"), offers("n2", "x", generation=0)], {GPU: 6}),
    "an incomplete pool": ([offers("n1", "g0", slices=2), offers("n2", "g0")], {GPU: 1}),
}


@pytest.mark.parametrize(("slices", "total"), TOTALS.values(), ids=TOTALS)
def test_totals(slices: list[ResourceSlice], total: dict[str, int]) -> None:
    found = snapshot_of(slices).quotas
    assert {GPU: found.total.get(GPU, 0)} == total
    assert found.cards == 100 * total[GPU]


def test_devices_that_every_node_reaches_count_once() -> None:
    wide = offers("pool", "g0", "g1")
    wide = replace(wide, spec=replace(wide.spec, node_name="", all_nodes=True))
    assert snapshot_of([wide]).quotas.total["example.com/big"] == 2


@pytest.mark.parametrize("seed", range(30))
def test_of_devices_on_shared_counters_as_many_count_as_go_together(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.choice([4, 6])
    parts = [sorted(dice.sample(range(size), dice.choice([1, 1, 2, 3]))) for _ in range(dice.choice([4, 7]))]
    one = offers("n1", *(f"d{i}" for i in range(len(parts))))
    uses = [CounterUse(counter_set="s", counters={f"k{i}": Counter(value="1") for i in part}) for part in parts]
    devices = [replace(d, consumes_counters=[use]) for d, use in zip(one.spec.devices, uses, strict=True)]
    sets = [CounterSet(name="s", counters={f"k{i}": Counter(value="1") for i in range(size)})]
    slices = [replace(one, spec=replace(one.spec, devices=devices, shared_counters=sets))]
    most = max(
        number
        for number in range(len(parts) + 1)
        for chosen in itertools.combinations(parts, number)
        if len({k for part in chosen for k in part}) == sum(map(len, chosen))
    )
    assert snapshot_of(slices).quotas.total[GPU] == most


def test_the_check_counts_the_devices_of_a_plan_by_itself() -> None:
    objects = [*NODES, CLASS, *FOUR, resource_claim("c", asks(2)), user("p", "c")]
    snapshot = states(objects, settings()).snapshot(0.0)
    [placement] = plan_round(snapshot, settings()).placements
    view = snapshot.families[CLAIMS]
    assert planned_amounts(placement.devices[CLAIMS], view, settings().dra) == {GPU: 2}
    assert planned_amounts(placement.devices[CLAIMS], view, Dra()) == {}
