# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests against a real API server, which is started once a session.

Without the binaries and without a Go toolchain to build them the tests are skipped, and say so in the summary. With
CI=true a toolchain that is there must work.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.assets import REPOSITORY, AssetsMissing, BuildFailed, a_failed_build_is_a_failure, find_assets
from tests.e2e.chart import Helm, find_helm
from tests.e2e.client import Client
from tests.e2e.controlplane import ControlPlane
from tests.e2e.gang_api import GangApi, gang_api, kubernetes_version
from tests.e2e.installed import Install, installer
from tests.e2e.recording import Recorder
from tests.loudly import skip_loudly

HERE = Path(__file__).parent
CRDS = REPOSITORY / "crds"
_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.controlplane)


@pytest.fixture(scope="session")
def assets(request: pytest.FixtureRequest) -> Path:
    """The folder with etcd and kube-apiserver; built first where that is needed and can be done."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    found, reason = None, ""
    # a build takes minutes, and is seen whatever pytest captures
    with capture.global_and_fixture_disabled():
        try:
            found = find_assets()
        except BuildFailed as failed:
            if a_failed_build_is_a_failure():
                pytest.fail(str(failed), pytrace=False)
            reason = str(failed)
        except AssetsMissing as missing:
            reason = str(missing)
    if found is None:
        skip_loudly(request, "tests/e2e", reason)
    return found


@pytest.fixture(scope="session")
def gangs(request: pytest.FixtureRequest, assets: Path) -> GangApi:
    """The API of PodGroups of scheduling.k8s.io. Versions of Kubernetes without it skip the tests that need it."""
    found = gang_api(assets)
    if found is None:
        version = kubernetes_version(assets)
        skip_loudly(request, request.node.name, f"Kubernetes {version} has no PodGroups of scheduling.k8s.io")
    return found


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest, assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm, which is built beside the control plane; a folder that was given may lack it."""
    found = find_helm(assets, tmp_path_factory.mktemp("helm"))
    if found is None:
        reason = "no helm: it is neither in KUBEBUILDER_ASSETS nor on PATH"
        skip_loudly(request, "tests of the chart", reason)
    return found


@pytest.fixture(scope="session")
def controlplane(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver without controllers, for all tests; each test cleans up the nodes it made (`api`)."""
    with ControlPlane(assets, folder=tmp_path_factory.mktemp("controlplane")) as plane:
        yield plane


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """What a module talks to: the session's, or one of its own with kube-controller-manager where it is marked
    `controllers`. One that needs other gates has a `plane` of its own."""
    if request.node.get_closest_marker("controllers") is None:
        yield request.getfixturevalue("controlplane")
        return
    assets, folder = request.getfixturevalue("assets"), tmp_path_factory.mktemp("controllers")
    with ControlPlane(assets, controller_manager=True, folder=folder) as running:
        yield running


@pytest.fixture
async def recorder(plane: ControlPlane) -> AsyncIterator[Recorder]:
    """What the API server is asked and answers, for schedulers that go through it."""
    async with Recorder(plane.url, plane.ca) as recorder:
        yield recorder


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    """The administrator's client of an empty cluster: its nodes and pods go when the test ends."""
    plane.must_run()
    async with plane.client() as client:
        yield client
        await client.clear()


@pytest.fixture
async def crds(api: Client) -> list[str]:
    """The project's custom resource definitions, established; their names."""
    return await api.apply_crds(CRDS)


@pytest.fixture
async def namespace(api: Client) -> str:
    """A new namespace of the test's own (it stays: nothing here would finish its deletion)."""
    return await api.make_namespace(f"test-{os.getpid()}-{next(_numbers)}")


@pytest.fixture
async def install(
    api: Client, crds: list[str], plane: ControlPlane, helm: Helm, namespace: str
) -> AsyncIterator[Install]:
    """Installs the chart with the values given; its rights and its work go when the test ends."""
    async with installer(api, plane, helm, namespace) as installing:
        yield installing
