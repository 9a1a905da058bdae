# SPDX-License-Identifier: Apache-2.0
"""Whether a pod that is said to be Unschedulable would start if there were more nodes: autoscalers buy them for it.

Checked by planning its unit alone with further nodes that are empty and large, in each block and in one of their own
(docs/rules/repair.md 1.2). So a unit that only a quota, a gate or a missing object holds back must not say so.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import convert

from koordpy.api import keys
from koordpy.api.claim_objects import ResourceSlice
from koordpy.api.objects import Node
from koordpy.api.storage_objects import PersistentVolume
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.clusters import node
from tests.engine.manifests import BLOCK, NPU, Manifest
from tests.engine.storage import local_volume
from tests.engine.test_reservations import devices_of

FURTHER = 3
"""Nodes in each block; as many as members of a gang that may take the NPUs of a whole node each."""
VOLUMES = 5
"""Of each that claims may be bound to; more than a gang has members."""
AMOUNT = 16
"""Of processors, GPUs and cards of each."""


def said_unschedulable(pods: Iterable[Manifest]) -> set[str]:
    """Keys of the pending pods for which an autoscaler buys nodes."""
    return {
        f"default/{obj['metadata']['name']}"
        for obj in pods
        for one in obj.get("status", {}).get("conditions", [])
        if one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" and not obj["spec"].get("nodeName")
    }


def check_wanted(
    state: ClusterState, before: RoundPlan, told: set[str], config: KoordpyConfiguration, now: float
) -> None:
    """Whether each of these pods, or another of its unit, starts once there are more nodes.

    state: the cluster, which gets them. before: what is planned without them. told: keys of pods.
    """
    # a unit is told when it is tried: pods of its quota that have started since are not looked for before the flush
    # of `podMaxInUnschedulable`
    filled = Reason.QUOTA_EXCEEDED
    units = {one.unit: one for one in before.pending if one.pod_key in told and one.reason is not filled}
    for obj in _further() if units else ():
        state.upsert(obj)
    left = {*units}
    for only in ({*units}, *({unit} for unit in units)):
        # each alone, too, because units before it may use up a quota once they have nodes
        if left & only:
            plan = plan_round(state.snapshot(now), config, only=frozenset(only), evict=False)
            left -= {one.unit for one in plan.placements}
            if len(only) == 1 and left & only:
                one = units[min(only)]
                why = [f"{pod.reason}: {pod.message}" for pod in plan.pending if pod.pod_key == one.pod_key]
                raise AssertionError(f"{one.pod_key} is said to be Unschedulable, and no node helps: {why}")


@functools.cache
def _further() -> tuple[Any, ...]:
    return tuple(convert(obj, kind, strict=False) for kind, obj in _manifests())


def _manifests() -> Iterator[tuple[Any, Manifest]]:
    for block in ("b0", "b1", "further"):
        for i in range(FURTHER):
            name = f"further-{block}-{i}"
            labels = {BLOCK: block, keys.ACCELERATOR_TYPE: "module-910b-8"}
            made = node(name, gpus=AMOUNT, cpu=AMOUNT, labels=labels)
            for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
                amounts[NPU] = "8"
            yield Node, made
            yield ResourceSlice, devices_of(name, *(f"{name}-{one}" for one in range(AMOUNT)))
            for one in range(VOLUMES):
                yield PersistentVolume, local_volume(f"v-{name}-{one}", name)
