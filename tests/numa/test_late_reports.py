# SPDX-License-Identifier: Apache-2.0
"""Pods that are known before the first report of a node use its zones like others (numa.md 4)."""

from collections.abc import Callable, Sequence

import pytest

from koordpy.api.objects import Pod, Wire
from tests.numa.test_allocated_claims_in_zones import CPUS, report, worker
from tests.planning.node_rules import node, reasons

Order = Callable[[Wire, Wire, Wire], Sequence[Wire]]
ORDERS: dict[str, Order] = {
    "the report last": lambda machine, told, pod: [machine, pod, told],
    "the report first": lambda machine, told, pod: [told, pod, machine],
    "the node last": lambda machine, told, pod: [pod, told, machine],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize(
    "running",
    [
        pytest.param(worker("x", CPUS, at="n1", zone=0, demand=False), id="record"),
        pytest.param(worker("x", CPUS, at="n1", zone=0, demand=True), id="record and demand"),
        pytest.param(worker("x", CPUS, at="n1", demand=True), id="demand"),
    ],
)
def test_a_running_pod_uses_its_zones_whatever_comes_first(order: Order, running: Pod) -> None:
    """The report is older than the pod, so that only the pod shows that the zone, or a zone, is used."""
    objects = order(node("n1:64"), report("n1", (0, 0)), running)
    is_placed = "resource-status" in "".join(running.metadata.annotations)
    assert reasons([*objects, worker("p", CPUS, priority=0)]) == {"n1": "fits" if is_placed else "U: cannot align pod"}
    two = [worker("q", CPUS, at="n1", zone=1, demand=False)]
    assert reasons([*objects, *two, worker("p", 1, priority=0)]) == {"n1": "U: cannot align pod"}
