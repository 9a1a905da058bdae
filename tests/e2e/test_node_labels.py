# SPDX-License-Identifier: Apache-2.0
"""Who may say where a node is: forged labels of nodes on the real API server, and what the scheduler makes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Refused, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import RELEASE, Install, enforced
from tests.e2e.process import eventually
from tests.e2e.test_gpu_policies import account_of
from tests.e2e.test_scheduler import GROUPS, LEASE, TOPOLOGIES, start
from tests.e2e.test_topology import make_gang

Json = dict[str, Any]
NODES = "/api/v1/nodes"
RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
FREE, HELD = "example.com/block", "node-restriction.kubernetes.io/block"
"""Labels that a kubelet may write on its own node, and may not."""


@asynccontextmanager
async def impersonated(plane: ControlPlane, user: str, *groups: str) -> AsyncIterator[Client]:
    async with plane.client() as client:
        client.http.headers["Impersonate-User"] = user
        for group in groups:
            client.http.headers.add("Impersonate-Group", group)
        yield client


@asynccontextmanager
async def kubelet(plane: ControlPlane, node: str) -> AsyncIterator[Client]:
    async with impersonated(plane, f"system:node:{node}", "system:nodes", "system:authenticated") as client:
        yield client


@pytest.fixture
async def nodes(api: Client, crds: list[str]) -> AsyncIterator[list[str]]:
    """Four nodes of one GPU in two blocks, and kubelets with the rights of kubelets."""
    meta = {"name": "tests-nodes"}
    body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": meta}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    await api.create(RBAC, {**body, "roleRef": role, "subjects": [group]})
    yield await api.make_nodes(
        4,
        labels=lambda i: {FREE: f"b{i // 2}", HELD: f"b{i // 2}"},
        allocatable={"cpu": "8", "memory": "8Gi", "pods": "20", "nvidia.com/gpu": "1"},
    )
    await api.delete(f"{RBAC}/tests-nodes")
    for path in (pods_path(), GROUPS, TOPOLOGIES, LEASE):
        await api.delete(path)


def label(key: str, value: str | None = "b0") -> Json:
    return {"metadata": {"labels": {key: value}}}


async def refused(call: object, said: str) -> None:
    with pytest.raises(Refused) as raised:
        await call  # type: ignore[misc]
    assert raised.value.status == 403, raised.value
    assert said in raised.value.message


async def test_no_tenant_and_no_other_node_says_where_a_node_is(
    api: Client, nodes: list[str], controlplane: ControlPlane
) -> None:
    here, there = nodes[0], nodes[2]
    async with impersonated(controlplane, "tenant", "system:authenticated") as tenant:
        for path in (f"{NODES}/{there}", f"{NODES}/{there}/status"):
            await refused(tenant.patch(path, label(FREE)), "cannot patch resource")
    async with kubelet(controlplane, here) as node:
        for path in (f"{NODES}/{there}", f"{NODES}/{there}/status"):
            await refused(node.patch(path, label(FREE)), "is not allowed to modify node")
        await refused(node.patch(f"{NODES}/{here}", label(HELD, "b1")), "is not allowed to modify labels")
        await node.patch(f"{NODES}/{here}", label(FREE, "b1"))  # its own, by a label that is not held from it


async def test_with_the_policy_of_the_chart_no_node_says_where_it_is_itself(
    api: Client, nodes: list[str], controlplane: ControlPlane, install: Install
) -> None:
    installed = await install({"agent": {"enabled": True}, "nodePolicies": {"labels": [FREE]}})
    await enforced(api)
    here = nodes[0]
    said = f"a node must not set or change its topology labels: {FREE}"
    async with kubelet(controlplane, here) as node:
        for change in (label(FREE, "b1"), label(FREE, None)):
            for path in (f"{NODES}/{here}", f"{NODES}/{here}/status"):
                await refused(node.patch(path, change), said)
        await node.patch(f"{NODES}/{here}", label("example.com/other", "x"))
        await node.patch(f"{NODES}/{here}/status", {"status": {"conditions": []}})
    await api.patch(f"{NODES}/{here}", label(FREE, "b1"))
    await refused(installed.client.patch(f"{NODES}/{here}", label(FREE)), "cannot patch resource")
    async with account_of(api, installed, controlplane, f"{RELEASE}-agent", node=here) as agent:
        await refused(agent.patch(f"{NODES}/{here}", label(FREE)), "cannot patch resource")


async def test_a_gang_stays_in_its_block_while_a_node_tries_to_join_it(
    api: Client, nodes: list[str], controlplane: ControlPlane, tmp_path: Path
) -> None:
    """By the label that kubelets may not write, the liar is not taken for a neighbour."""
    layers = [
        {"topologyLayer": "blockLayer", "labelKey": [HELD], "parentTopologyLayer": "ClusterTopologyLayer"},
        {"topologyLayer": "nodeTopologyLayer", "parentTopologyLayer": "blockLayer"},
    ]
    topology = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
    spec = {"networkTopologySpec": layers}
    await api.create(TOPOLOGIES, {**topology, "metadata": {"name": "default"}, "spec": spec})
    liar = nodes[2]
    async with kubelet(controlplane, liar) as node:
        await refused(node.patch(f"{NODES}/{liar}", label(HELD)), "is not allowed to modify labels")
        await node.patch(f"{NODES}/{liar}", label(FREE))
    with start(controlplane, tmp_path, "koordpy", "--leader-elect=false") as process:
        await make_gang(api, "pair")

        async def places() -> set[str]:
            pods = await api.items(pods_path())
            return {pod["spec"].get("nodeName", "") for pod in pods}

        async def bound() -> bool:
            return "" not in await places()

        await eventually(bound, what="the gang is bound", processes=[process])
        assert await places() in ({nodes[0], nodes[1]}, {nodes[2], nodes[3]})
