# SPDX-License-Identifier: Apache-2.0
"""Clusters of Ascend NPUs in a few words, for scenario tables."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import (
    ConfigMap,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    ResourceRequirements,
)
from koordpy.api.pod_groups import PodGroup, PodGroupSpec
from koordpy.config.configuration import Ascend, KoordpyConfiguration
from koordpy.plan.round_plan import RoundPlan
from tests.scenarios.cluster import World, pod_meta

N910, N310, N310P, NPU = keys.NPU_RESOURCES


def npu_node(
    name: str,
    chips: int = 8,
    product: str = "module-910b-8",
    *,
    resource: str = N910,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    cpu: str = "64",
    allocatable: int | None = None,
) -> Node:
    """A node; product: its label `accelerator-type`, empty for none."""
    whole: Quantities = {"cpu": cpu, "memory": "512Gi", "pods": "110", resource: str(chips)}
    given: Quantities = whole if allocatable is None else {**whole, resource: str(allocatable)}
    own = {"kubernetes.io/hostname": name, **({keys.ACCELERATOR_TYPE: product} if product else {}), **(labels or {})}
    meta = ObjectMeta(name=name, labels=own, annotations=dict(annotations or {}))
    return Node(metadata=meta, status=NodeStatus(capacity=whole, allocatable=given))


def ids(chips: Iterable[int], resource: str = N910) -> str:
    return ",".join(f"{resource.partition('/')[2]}-{k}" for k in chips)


def npu_pod(
    name: str,
    chips: int = 8,
    *,
    gang: str = "",
    at: str = "",
    holds: Iterable[int] | None = None,
    resource: str = N910,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    created: int = 0,
    containers: Sequence[Mapping[str, int]] = (),
    scheduler: str = keys.DEFAULT_SCHEDULER_NAME,
    **spec: Any,
) -> Pod:
    """A pod that asks for NPUs; `at` binds it, `holds` are its chips then (by default the lowest)."""
    notes = dict(annotations or {})
    if at and holds is not None:
        notes[resource] = ids(holds, resource)
    meta = pod_meta(name, gang=gang, created=created, labels=labels, annotations=notes)
    parts = containers or ({resource: chips} if chips else {},)
    made = [
        Container(
            name=f"c{i}",
            image="img",
            resources=ResourceRequirements(requests={"cpu": "1", **{r: str(n) for r, n in part.items()}}),
        )
        for i, part in enumerate(parts)
    ]
    wire = PodSpec(scheduler_name=scheduler, node_name=at, containers=made, **spec)
    return Pod(metadata=meta, spec=wire, status=PodStatus(phase="Running" if at else "Pending"))


def npu_gang(
    name: str,
    count: int,
    chips: int = 8,
    *,
    minimum: int | None = None,
    prefix: str = "p",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    group_labels: Mapping[str, str] | None = None,
    **settings: Any,
) -> list[Any]:
    """A PodGroup with `annotations` and its members p-0, p-1, ... with `labels`."""
    meta = ObjectMeta(
        name=name, namespace="default", annotations=dict(annotations or {}), labels=dict(group_labels or {})
    )
    group = PodGroup(metadata=meta, spec=PodGroupSpec(min_member=count if minimum is None else minimum))
    pods = [npu_pod(f"{prefix}-{i}", chips, gang=name, labels=labels, **settings) for i in range(count)]
    return [group, *pods]


def switch_table(leaves: Mapping[str, Sequence[int | str]], positions: int = 4, **data: str) -> ConfigMap:
    """The ConfigMap: leaf `a` with slices 0, 2 has servers as0, as2; leaf numbers follow the order."""
    listed = [
        {
            "tor_id": i,
            "tor_ip": f"10.9.0.{i + 1}",
            "server": [{"server_ip": f"{leaf}s{at}", "npu_count": 8, "slice_id": at} for at in slices],
        }
        for i, (leaf, slices) in enumerate(leaves.items())
    ]
    text = json.dumps({"version": "1.0", "tor_count": positions, "server_list": listed})
    return ConfigMap(
        metadata=ObjectMeta(name=keys.SWITCH_TABLE, namespace=keys.SYSTEM_NAMESPACE),
        data={keys.SWITCH_TABLE_KEY: text, **data},
    )


def servers(leaves: Mapping[str, Sequence[int]]) -> list[Node]:
    """The nodes of `switch_table`."""
    return [npu_node(f"{leaf}s{at}") for leaf, slices in leaves.items() for at in slices]


def switched(leaves: Mapping[str, Sequence[int]], positions: int = 4, **data: str) -> list[Any]:
    """Nodes and their table."""
    return [*servers(leaves), switch_table(leaves, positions, **data)]


def super_pods(*sizes: int, chips: int = 16, product: str = "module-a3-16-super-pod") -> list[Node]:
    """SuperPoD 0, 1, ... of so many nodes s0-0, s0-1, ..."""
    return [
        npu_node(f"s{i}-{j}", chips, product, labels={keys.SUPER_POD_ID: str(i)})
        for i, size in enumerate(sizes)
        for j in range(size)
    ]


def device_info(node: str, resource: str = N910, **lists: str) -> ConfigMap:
    """The device plugin's report: chips=, unhealthy=, unlinked=, fault=."""
    names = {"chips": "", "unhealthy": "-Unhealthy", "unlinked": "-NetworkUnhealthy", "fault": "-Fault"}
    listed = {f"{resource}{names[key]}": text for key, text in lists.items()}
    return ConfigMap(
        metadata=ObjectMeta(name=f"{keys.DEVICE_INFO_PREFIX}{node}", namespace=keys.SYSTEM_NAMESPACE),
        data={keys.DEVICE_INFO_KEY: json.dumps({"DeviceInfo": {"DeviceList": listed}})},
    )


def ascend(**settings: Any) -> KoordpyConfiguration:
    """A configuration with settings of its section `ascend`."""
    return KoordpyConfiguration(ascend=Ascend(**settings))


SECOND = ascend(nslb_version="2.0")


def notes(plan: RoundPlan) -> dict[str, Mapping[str, str]]:
    """Pod name -> annotations of a plan."""
    return {p.pod_key.partition("/")[2]: p.annotations for p in plan.placements}


def chips(plan: RoundPlan, resource: str = N910) -> dict[str, list[int]]:
    """Pod name -> its chips by the annotation."""
    return {
        name: [int(part.rpartition("-")[2]) for part in own[resource].split(",")]
        for name, own in notes(plan).items()
        if resource in own
    }


def settle(world: World, config: KoordpyConfiguration | None = None) -> RoundPlan:
    """Plans one round, evicts and binds."""
    plan = world.plan(config=config)
    for eviction in plan.evictions:
        world.state.delete(Pod, eviction.pod_key)
    for placement in plan.placements:
        world.state.bind(placement.pod_key, placement.node, dict(placement.annotations))
    return plan
