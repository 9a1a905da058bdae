# SPDX-License-Identifier: Apache-2.0
"""Who wakes a job that a runtime refuses, where the runtime grows though no pod, node or quota makes room."""

import threading
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration, Quota
from tests.clusters import pod as simulated
from tests.engine.live import Live, in_virtual_time, live, small, until
from tests.engine.manifests import GPU, GROUPS, QUOTAS, Manifest
from tests.engine.storage import MADE, Storage, pod_with
from tests.engine.test_quotas import manifest

TREE = {
    "tree": {keys.QUOTA_IS_PARENT: "true"},
    "x": {keys.QUOTA_PARENT: "tree"},
    "y": {keys.QUOTA_PARENT: "tree"},
    "b": {},
}


def asks(name: str, gpus: int, team: str, *, cpu: str = "0", **labels: str) -> Manifest:
    return simulated(name, gpus=gpus, cpu=cpu, memory="1Mi", labels={keys.QUOTA_NAME: team, **labels} if team else {})


def moves(cluster: Live) -> None:
    def change(obj: Manifest) -> Manifest:
        return {**obj, "metadata": {**obj["metadata"], "labels": {}}}

    cluster.server.store.update("pods", "b", change, namespace="default")


def needs_more_members(cluster: Live) -> None:
    cluster.server.store.update(GROUPS, "b", lambda obj: {**obj, "spec": {"minMember": 2}}, namespace="default")


def has_no_node(cluster: Live) -> None:
    def change(obj: Manifest) -> Manifest:
        return {**obj, "status": {**obj["status"], "allocatable": {**obj["status"]["allocatable"], "cpu": "3"}}}

    for name in ("n1", "n2"):
        cluster.server.store.update("nodes", name, change, status=True)


def loses_its_claim(cluster: Live) -> None:
    cluster.server.store.remove("persistentvolumeclaims", "b", "default")


@pytest.mark.parametrize("change", [moves, needs_more_members, has_no_node, loses_its_claim])
@in_virtual_time
async def test_a_job_starts_when_another_that_its_room_is_kept_for_asks_for_less_or_cannot_start(change: Any) -> None:
    """b fits its runtime and no node now, so 6 are kept for it and a waits."""
    async with live([small("n1", gpus=8), small("n2", gpus=8)]) as cluster, cluster.running():
        for name, least, most in (("a", "0", "8"), ("b", "6", "8"), ("c", "6", "6")):
            cluster.server.store.create(QUOTAS, manifest(name, {GPU: least}, {GPU: most}))
        for name, gpus, node in (("c1", 3, "n1"), ("c2", 3, "n2")):
            cluster.create(asks(name, gpus, "c"))
            cluster.bind(name, node)
        big = asks("b", 6, "b", cpu="4")
        if change is needs_more_members:
            group = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"minMember": 1}}
            cluster.server.store.create(GROUPS, {"apiVersion": f"{keys.GROUP_SIGS}/v1alpha1", **group})
            big = asks("b", 6, "b", **{keys.LABEL_POD_GROUP: "b"})
        elif change is loses_its_claim:
            storage = Storage(cluster.server)
            storage.classes()
            storage.claim("b", MADE)
            big["spec"]["volumes"] = pod_with("b", "b")["spec"]["volumes"]
        cluster.create(big)
        await until(lambda: cluster.condition("b"))
        cluster.create(asks("a", 5, "a"))
        await until(lambda: cluster.condition("a"))
        assert "Insufficient quotas" in cluster.condition("a")["message"]
        change(cluster)
        await until(lambda: cluster.bound("a"))


@in_virtual_time
async def test_with_guaranteed_usage_a_job_starts_when_another_pod_has_raised_the_runtime_of_its_parent() -> None:
    """Of 8 cores, the tree and b have 4 each, and of these 4 the leaves 2 each; what x uses is guaranteed, so that the
    tree has 2 and half of 6 then, and y 3 of that."""
    async with live([small("n1"), small("n2")]) as cluster:
        for node in ("n1", "n2"):
            cluster.create(asks(f"on-{node}", 1, ""))
            cluster.bind(f"on-{node}", node)
        quota = Quota(guarantee_usage=True)
        cluster.planner.config = KoordpyConfiguration(quota=quota)
        async with cluster.running(quota=quota) as scheduler:
            for name, labels in TREE.items():
                cluster.server.store.create(QUOTAS, manifest(name, {}, {"cpu": "8"}, labels=labels))
            cluster.create(asks("b", 4, "b", cpu="4"))
            await until(lambda: cluster.condition("b"))
            cluster.planner.hold = hold = threading.Event()
            cluster.pod("first", cpu="0")
            await until(lambda: cluster.planner.tried("default/first"))
            cluster.create(asks("x", 0, "x", cpu="2"), asks("y", 0, "y", cpu="3"))
            await until(lambda: {"default/x", "default/y"} <= scheduler.queue.entries.keys())
            cluster.planner.hold = None
            hold.set()
            await until(lambda: cluster.bound("x"))
            await until(lambda: cluster.bound("y"))
