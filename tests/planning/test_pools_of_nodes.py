# SPDX-License-Identifier: Apache-2.0
"""Pools whose slices hold devices of several nodes, as kube-scheduler reads them (dra.md 1, 2, 3)."""

from typing import Any

import pytest

from koordpy.api.claim_objects import (
    CapacityRequirements,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from koordpy.api.objects import ObjectMeta
from tests.planning.node_rules import node, planned, reasons
from tests.planning.test_filter_dra import (
    CANNOT,
    CLASS,
    DRIVER,
    MODEL,
    NODES,
    asks,
    facts,
    offers,
    resource_claim,
    user,
)
from tests.scenarios.cluster import bound, messages

INVALID = "UU: invalid resource pools were encountered"
UPDATED = "UU: claim default/c, request r: asks for all devices, but resource pool {} is currently being updated"
ERROR = (
    f"UU: claim default/c: selector #0 on device {DRIVER}/{{}}: CEL runtime error: no such key: model. consider using "
    "CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields"
)
ALL = {"allocation_mode": "All"}


def piece(name: str, *devices: tuple[str, str], pool: str = "pool", slices: int = 1, **every: Any) -> ResourceSlice:
    """A slice with devices (name, node). An empty node: all nodes."""
    listed = [
        SliceDevice(name=device, node_name=at or None, all_nodes=None if at else True, **every)
        for device, at in devices
    ]
    spec = ResourceSliceSpec(
        driver=DRIVER,
        pool=ResourcePool(name=pool, generation=1, resource_slice_count=slices),
        per_device_node_selection=True,
        devices=listed,
    )
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


BIG = facts(model="a")
CASES: dict[str, tuple[list[Any], dict[str, str]]] = {
    "a name of two nodes in slices of their own": (
        [piece("s", ("d", "n1"), slices=2), piece("t", ("d", "n2"), slices=2), resource_claim("c", asks())],
        {"n1": "fits", "n2": "fits"},
    ),
    "a name of two nodes in slices that both reach one of them": (
        [
            piece("s", ("d", "n1"), ("e", ""), slices=2),
            piece("t", ("d", "n2"), slices=2),
            resource_claim("c", asks(2)),
        ],
        {"n1": "fits", "n2": INVALID},
    ),
    "a selector fails on a device of another node, in a slice that the node reaches": (
        [piece("s", ("d", "n1"), ("e", "")), resource_claim("c", asks(1, MODEL))],
        {"n1": ERROR.format("pool/d"), "n2": ERROR.format("pool/d")},
    ),
    "a selector fails on a device of another node, in a slice that the node does not reach": (
        [
            piece("s", ("d", "n1"), slices=2),
            piece("t", ("e", ""), slices=2, attributes=BIG),
            resource_claim("c", asks(1, MODEL)),
        ],
        {"n1": ERROR.format("pool/d"), "n2": "fits"},
    ),
    "a selector would fail on a device of another node after the first solution": (
        [piece("s", ("d", "n2"), pool="z"), offers("n1", "g0", attributes=BIG), resource_claim("c", asks(1, MODEL))],
        {"n1": "fits", "n2": ERROR.format("z/d")},
    ),
    "all devices: those of other nodes are not meant": (
        [
            piece("s", ("d", "n1"), ("e", ""), ("f", "n2"), attributes=BIG),
            resource_claim("c", asks(None, MODEL, **ALL)),
        ],
        {"n1": "fits", "n2": "fits"},
    ),
    "all devices: a selector fails on a device of another node": (
        [piece("s", ("d", "n1"), ("e", "")), resource_claim("c", asks(None, MODEL, **ALL))],
        {"n1": ERROR.format("pool/d"), "n2": ERROR.format("pool/d")},
    ),
    "all devices: a selector fails before the pool that is changing": (
        [piece("s", ("d", ""), pool="a"), offers("n1", "g0", slices=2), resource_claim("c", asks(None, MODEL, **ALL))],
        {"n1": ERROR.format("a/d"), "n2": ERROR.format("a/d")},
    ),
    "all devices: a selector would fail after the pool that is changing": (
        [
            piece("s", ("d", "n1"), pool="z"),
            offers("n1", "g0", slices=2),
            resource_claim("c", asks(None, MODEL, **ALL)),
        ],
        {"n1": UPDATED.format(f"{DRIVER}/n1"), "n2": CANNOT},
    ),
}


@pytest.mark.parametrize(("objects", "words"), CASES.values(), ids=CASES)
def test_slices_with_devices_of_several_nodes(objects: list[Any], words: dict[str, str]) -> None:
    """Each node is the only one, because an error on one node is the verdict on all."""
    found = {name: reasons([node(f"{name}:8"), CLASS, *objects, user("p", "c")])[name] for name in words}
    assert {name: text.partition(", class gpu")[0] for name, text in found.items()} == words


def test_an_error_counts_on_the_last_devices_of_a_node() -> None:
    """kube-scheduler reads all devices, also where too few are left for the number."""
    wanted = CapacityRequirements(requests={"memory": "1Gi"})
    slices = [
        offers("n1", "g0", "g1", slices=2, attributes=BIG),
        offers("n1", "g2", slices=2, number=1),
    ]
    claim = resource_claim("c", asks(2, MODEL, capacity=wanted))
    found = reasons([NODES[0], CLASS, *slices, claim, user("p", "c")])
    assert found == {"n1": ERROR.format("n1/g2")}


def test_devices_of_different_nodes_have_equal_names() -> None:
    """The check of a plan reads the device of the pod's node."""
    small = {"memory": DeviceCapacity(value="10Gi")}
    large = {"memory": DeviceCapacity(value="80Gi")}
    slices = [
        piece("s", ("d", "n1"), slices=2, capacity=small, allow_multiple_allocations=True),
        piece("t", ("d", "n2"), slices=2, capacity=large, allow_multiple_allocations=True),
    ]
    pinned = user("p", "c", node_selector={"name": "n2"})
    nodes = [node("n1:8"), node("n2:8", labels={"name": "n2"})]
    assert bound(planned([*nodes, CLASS, *slices, resource_claim("c", asks()), pinned])) == {"p": "n2"}


def test_each_pod_is_told_of_its_own_claim() -> None:
    claims = [resource_claim(name, asks(None, **ALL)) for name in ("c", "d")]
    told = messages(planned([NODES[0], CLASS, offers("n1", "g0", slices=2), *claims, user("p", "c"), user("q", "d")]))
    assert {name: text.partition(" claim ")[2].partition(",")[0] for name, text in told.items()} == {
        "p": "default/c",
        "q": "default/d",
    }
