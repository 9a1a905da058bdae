# SPDX-License-Identifier: Apache-2.0
"""A unit that never fits is tried again when what decides that changes, and at nothing else (kube-parity.md 4.3)."""

from collections.abc import Callable

import pytest

from koordpy.engine.queue_entry import QueuedPod, State
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import EMPTY_CLUSTER, Wake
from tests.engine.live import Live, gang, in_virtual_time, live, small, until

GANG = "gang:default/big"
DECIDING = {
    Wake.NODE_ADDED,
    Wake.NODE_GONE,
    Wake.NODE_ALLOCATABLE,
    Wake.NODE_LABELS,
    Wake.NODE_TAINTS,
    Wake.TOPOLOGY,
    Wake.QUOTA,
    Wake.DEVICE,
    Wake.DEVICE_REPORT,
    Wake.DEVICE_OFFER,
    Wake.EXTENDED_RESOURCE,
}


@pytest.mark.parametrize("wake", list(Wake), ids=lambda wake: str(wake.name))
def test_only_nodes_devices_quotas_and_the_tree_wake_it(wake: Wake) -> None:
    queue = UnitQueue(clock=lambda: 0.0)
    queue.add("u", QueuedPod("default/p", "uid", added=0.0, priority=0, created=0.0, light=True))
    [entry] = queue.take(light_pods=100)
    queue.settle_unschedulable(
        entry, wakes=EMPTY_CLUSTER, plugins=["NodeResourcesFit"], gated=False, seconds=0.0, never=True
    )
    assert entry.state is State.UNSCHEDULABLE and entry.answer.never
    queue.broadcast(wake, "Change")
    queue.poll()
    assert (entry.state is State.ACTIVE) == (wake in DECIDING)


def ends(cluster: Live) -> None:
    cluster.delete("runs-0")


def comes(cluster: Live) -> None:
    cluster.create(*gang("other", 1, gpus=1))


@pytest.mark.parametrize("change", [ends, comes])
@in_virtual_time
async def test_a_gang_too_large_for_the_cluster_waits_untried_until_a_node_is_added(
    change: Callable[[Live], None],
) -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        cluster.create(*gang("runs", 1, gpus=1))
        await until(lambda: cluster.bound("runs-0"))
        cluster.create(*gang("big", 3, gpus=4))
        await until(lambda: "never fits" in cluster.condition("big-0").get("message", ""))
        told = cluster.condition("big-0")
        why = "never fits: the cluster has room for 2 members, 3 are required"
        assert told["message"].startswith(f"gang default/big: {why}. 0/2 nodes are available: ")
        assert told["reason"] == "Unschedulable"
        await cluster.at_rest(scheduler)
        assert b"koordpy_pending_units_never_fit 1.0" in scheduler.metrics.render()
        tried = cluster.planner.tried(GANG)
        change(cluster)
        await cluster.at_rest(scheduler)
        assert cluster.planner.tried(GANG) == tried
        cluster.nodes(small("n3"))
        await until(lambda: cluster.planner.tried(GANG) > tried)
        await until(lambda: "never fits" not in cluster.condition("big-0").get("message", ""))


@in_virtual_time
async def test_a_changed_member_is_tried_at_once() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.pod("p", gpus=9)
        await until(lambda: "never fits: the largest node has 4" in cluster.condition("p").get("message", ""))
        cluster.delete("p")
        cluster.pod("p", gpus=1)
        await until(lambda: cluster.bound("p"))
