# SPDX-License-Identifier: Apache-2.0
"""Which nodes are lost, since when, and which pods on them are (repair.md 4.1)."""

import pytest

from koordpy.api.objects import Condition, Node, NodeSpec, NodeStatus, ObjectMeta, Taint, Toleration
from koordpy.api.times import rfc3339
from koordpy.cache.lost_nodes import GONE, Loss, LossCause, lost_node, may_be_lost, next_loss
from koordpy.config.node_failures import Repair
from tests.scenarios.cluster import pod

NOW = 1_000_000.0
SETTINGS = Repair(lost_conditions=("SickFabric", "SickGPU"))


def taint(name: str, ago: float | None, effect: str = "NoExecute") -> Taint:
    added = None if ago is None else rfc3339(NOW - ago)
    return Taint(key=f"node.kubernetes.io/{name}", effect=effect, time_added=added)


def condition(name: str, ago: float | None, status: str = "True") -> Condition:
    return Condition(type=name, status=status, last_transition_time=None if ago is None else rfc3339(NOW - ago))


def made(*marks: Taint | Condition, cordoned: bool = False) -> Node:
    taints = [mark for mark in marks if isinstance(mark, Taint)]
    conditions = [mark for mark in marks if isinstance(mark, Condition)]
    return Node(
        metadata=ObjectMeta(name="n1"),
        spec=NodeSpec(taints=taints, unschedulable=cordoned),
        status=NodeStatus(conditions=conditions),
    )


@pytest.mark.parametrize(
    ("node", "lost", "ends_in"),
    [
        (made(), False, None),
        (made(cordoned=True), False, None),
        (made(taint("not-ready", None)), True, None),
        (made(taint("unreachable", 30)), True, None),
        (made(taint("unreachable", 29)), False, 1),
        (made(taint("out-of-service", 3600)), True, None),
        (made(taint("not-ready", None, "NoSchedule")), False, None),
        (made(taint("memory-pressure", None)), False, None),
        (made(Taint(key="karpenter.sh/disrupted", effect="NoExecute")), False, None),
        (made(condition("SickGPU", 31)), True, None),
        (made(condition("SickGPU", 10)), False, 20),
        (made(condition("SickGPU", None)), True, None),
        (made(condition("SickGPU", 99, "False")), False, None),
        (made(condition("SickGPU", 99, "Unknown")), False, None),
        (made(condition("Ready", 99)), False, None),
        (made(taint("not-ready", 99), condition("SickGPU", 10)), True, 20),
    ],
)
def test_a_node_is_lost_after_its_grace(node: Node, lost: bool, ends_in: float | None) -> None:
    assert (lost_node(node, NOW, SETTINGS) is not None) is lost
    assert next_loss(node, NOW, SETTINGS) == (None if ends_in is None else NOW + ends_in)
    assert may_be_lost(node, SETTINGS) is (lost or ends_in is not None)


FOREVER = Toleration(key="node.kubernetes.io/unreachable", operator="Exists")
FOR_A_WHILE = Toleration(key="node.kubernetes.io/unreachable", operator="Exists", toleration_seconds=300)


@pytest.mark.parametrize(
    ("node", "tolerations", "loss"),
    [
        (made(taint("unreachable", None)), [], Loss(LossCause.NODE_TAINT, "node.kubernetes.io/unreachable")),
        (made(taint("unreachable", None)), [FOR_A_WHILE], Loss(LossCause.NODE_TAINT, "node.kubernetes.io/unreachable")),
        (made(taint("unreachable", None)), [FOREVER], None),
        (
            made(taint("unreachable", None), taint("out-of-service", None)),
            [FOREVER],
            Loss(LossCause.NODE_TAINT, "node.kubernetes.io/out-of-service"),
        ),
        (made(condition("SickGPU", None)), [FOREVER], Loss(LossCause.NODE_CONDITION, "SickGPU")),
        (
            made(condition("SickGPU", None), condition("SickFabric", None), taint("unreachable", None)),
            [FOREVER],
            Loss(LossCause.NODE_CONDITION, "SickFabric"),
        ),
    ],
)
def test_a_pod_that_tolerates_the_taint_for_ever_is_not_lost(
    node: Node, tolerations: list[Toleration], loss: Loss | None
) -> None:
    lost = lost_node(node, NOW, SETTINGS)
    assert lost is not None and lost.loss_of(pod("p", tolerations=tolerations)) == loss


def test_a_loss_is_told_in_words() -> None:
    assert GONE.text == "node is gone"
    assert Loss(LossCause.NODE_TAINT, "node.kubernetes.io/unreachable").text == "taint node.kubernetes.io/unreachable"
    assert Loss(LossCause.NODE_CONDITION, "SickGPU").text == "condition SickGPU"
