# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on real nodes: one cluster of three a session, which this process is then in the network of.

Where real nodes cannot be run the tests are skipped, and say why in the summary.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Client
from tests.e2e.conftest import CRDS, assets, helm
from tests.e2e.test_scheduler import TOPOLOGIES
from tests.image.archive import ARCHIVE, REPOSITORY
from tests.loudly import skip_loudly
from tests.realnode.cluster import RealCluster
from tests.realnode.needs import obstacle
from tests.realnode.work import Work

HERE = Path(__file__).parent
BLOCK = "network.topology.koordpy.io/block"
LAYERS = [
    {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": "ClusterTopologyLayer"},
    {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"},
]
NODES = "/api/v1/nodes"
__all__ = ["assets", "helm"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "able" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.realnode)


@pytest.fixture(scope="session")
def able(request: pytest.FixtureRequest) -> None:
    """Skips where real nodes cannot be run."""
    if (reason := obstacle()) is not None:
        skip_loudly(request, "tests/realnode", reason)


@pytest.fixture(scope="session")
def cluster(able: None, assets: Path) -> Iterator[RealCluster]:
    """Three real nodes, for all tests; a test that ends a node or a program of it starts it again."""
    with RealCluster(assets) as running:
        yield running


@pytest.fixture
async def api(cluster: RealCluster) -> AsyncIterator[Client]:
    """The administrator's client; the definitions of crds/ are there."""
    async with cluster.plane.client() as client:
        await client.apply_crds(CRDS)
        yield client


@pytest.fixture
async def work(cluster: RealCluster, api: Client, tmp_path: Path) -> AsyncIterator[Work]:
    """A namespace of the test's own with koordpy running; its pods are gone when the test ends."""
    async with Work(cluster, api, tmp_path) as working:
        yield working


@pytest.fixture
async def alone(cluster: RealCluster, api: Client, tmp_path: Path) -> AsyncIterator[Work]:
    """The same without koordpy, which the test installs."""
    async with Work(cluster, api, tmp_path, alone=True) as working:
        yield working


@pytest.fixture
async def blocks(api: Client) -> AsyncIterator[dict[str, str]]:
    """n1 and n3 in block a, n2 in block b: the order of the network is not that of names."""
    found = {"n1": "a", "n2": "b", "n3": "a"}
    for node, block in found.items():
        await api.patch(f"{NODES}/{node}", {"metadata": {"labels": {BLOCK: block}}})
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
    await api.create(TOPOLOGIES, {**kind, "metadata": {"name": "default"}, "spec": {"hierarchy": LAYERS}})
    yield found
    await api.delete(f"{TOPOLOGIES}/default")
    for node in found:
        await api.patch(f"{NODES}/{node}", {"metadata": {"labels": {BLOCK: None}}})


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest, cluster: RealCluster) -> str:
    """koordpy's image on every node; the repository that names it, which is the chart's default."""
    if not ARCHIVE.exists():
        skip_loudly(request, "tests of the image on real nodes", f"no {ARCHIVE.name}: make image")
    cluster.import_image(ARCHIVE)
    return REPOSITORY
