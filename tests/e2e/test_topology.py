# SPDX-License-Identifier: Apache-2.0
"""A ClusterNetworkTopology that is invalid, on a real API server: who hears of it, what counts, and what is told after
a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually
from tests.e2e.test_scheduler import GROUPS, LEASE, TOPOLOGIES, start

Json = dict[str, Any]
DEFAULT = f"{TOPOLOGIES}/default"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
MUST = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]})}
SPINE = {"layerName": "spineLayer", "labelKey": "example.com/spine"}
BLOCK = {"layerName": "blockLayer", "labelKey": "example.com/block", "parentTopologyLayer": "spineLayer"}
BARE = {"layerName": "spineLayer"}
"""Without a labelKey, which no rule of a definition sees: its schema has no type for it."""
FAULT = "spec.hierarchy[0].labelKey: layer spineLayer needs a label key; only the lowest layer may have none"


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    """Two blocks of two nodes with a GPU each, below a spine."""
    await api.make_nodes(
        4,
        labels=lambda i: {"example.com/spine": "s1", "example.com/block": f"b{i // 2}"},
        allocatable={"cpu": "8", "memory": "8Gi", "pods": "20", "nvidia.com/gpu": "1"},
    )
    yield api
    for path in (pods_path(), GROUPS, TOPOLOGIES, LEASE):
        await api.delete(path)


def hierarchy(*layers: Json) -> Json:
    return {"spec": {"hierarchy": list(layers)}}


async def make_gang(api: Client, name: str) -> None:
    head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
    await api.create(GROUPS, {**head, "metadata": {"name": name, "annotations": MUST}, "spec": {"minMember": 2}})
    for i in range(2):
        asks, labels = {"cpu": "1", "nvidia.com/gpu": "1"}, {keys.LABEL_POD_GROUP: name}
        manifest = pod_manifest(f"{name}-{i}", scheduler=keys.DEFAULT_SCHEDULER_NAME, requests=asks, labels=labels)
        await api.create(pods_path(), manifest)


async def test_an_invalid_topology_is_told_to_its_owner_and_after_a_restart_to_the_gangs(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    api = cluster
    head = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
    await api.create(TOPOLOGIES, {**head, "metadata": {"name": "default"}, **hierarchy(SPINE, BLOCK)})

    async def columns() -> list[str]:
        headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        async with api.http.get(api.url + TOPOLOGIES, headers=headers) as answer:
            (row,) = (await answer.json())["rows"]
        return [str(cell) for cell in row["cells"][1:3]]

    async def pod(name: str) -> Json:
        found: Json = await api.get(f"{pods_path()}/{name}")
        return found

    async def bound(name: str) -> bool:
        return all([(await pod(f"{name}-{i}"))["spec"].get("nodeName") for i in range(2)])

    def running(name: str) -> Process:
        return start(controlplane, tmp_path, name, "--leader-elect=false")

    with running("first") as first:

        async def shown(*cells: str) -> bool:
            return await columns() == list(cells)

        await eventually(lambda: shown("True", "spineLayer > blockLayer > nodeLayer"), what="valid", processes=[first])
        await api.patch(DEFAULT, hierarchy(BARE, BLOCK))
        await eventually(lambda: shown("False", FAULT), what="invalid", processes=[first])

        async def event() -> list[str]:
            events = await api.items(EVENTS)
            return [e["note"] for e in events if e["regarding"]["kind"] == "ClusterNetworkTopology"]

        (note,) = await eventually(event, what="its event", processes=[first])
        assert note == f"{FAULT}; the hierarchy in use is still spineLayer > blockLayer > nodeLayer"
        assert (
            f"WARNING koordpy.operator.topology_status ClusterNetworkTopology default: {note}" in first.log.read_text()
        )
        # the last good layers count
        await make_gang(api, "before")
        await eventually(lambda: bound("before"), what="gathered in a block", processes=[first])

    await make_gang(api, "after")
    with running("second") as second:

        async def told() -> str:
            return str((condition(await pod("after-0"), "PodScheduled") or {}).get("message", ""))

        text = await eventually(told, what="told why it waits", processes=[second])
        assert text == f"gang default/after: ClusterNetworkTopology default is invalid: {FAULT}"
        await api.patch(DEFAULT, hierarchy(SPINE, BLOCK))
        await eventually(lambda: bound("after"), what="bound once it is corrected", processes=[second])
