# SPDX-License-Identifier: Apache-2.0
"""docs/install.md to the letter: its commands are taken from the page, in its order, and run on real nodes."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator

import pytest

from tests.e2e.assets import REPOSITORY
from tests.e2e.chart import Helm
from tests.e2e.client import condition
from tests.image.archive import ARCHIVE
from tests.realnode.needs import SYSTEM_PATH
from tests.realnode.release import NAMESPACE, Release
from tests.realnode.work import Work, container, pod, pod_group, pod_spec

PAGE = REPOSITORY / "docs/install.md"
RENDERED = "koordpy.yaml"
"""What the page renders for those who do not use Helm."""
LEFT_OUT = re.compile(r"make image|docker tag|skopeo copy|.* serviceMonitor\.enabled")
"""The image is made by its own tests, no registry is here, nor is the Prometheus operator."""


def commands() -> list[str]:
    """Of the page's blocks of commands, lines that are continued put together. Those after a $ are shown to fail."""
    lines = re.sub(r" *\\\n +", " ", PAGE.read_text()).splitlines()
    found = [line.strip() for line in lines if re.match(r"    (make|docker|skopeo|ctr|helm|kubectl) ", line)]
    return [re.sub(r"  +#.*", "", line) for line in found]


class Shell:
    """Where a person follows the page: the repository, kubectl and helm of the cluster."""

    def __init__(self, work: Work) -> None:
        self._work = work
        path = f"{work.cluster.assets}:{SYSTEM_PATH}"
        self._env = {"PATH": path, "KUBECONFIG": str(work.cluster.plane.kubeconfig()), "HOME": str(work.cluster.folder)}
        self.todo = commands()

    async def until(self, last: str) -> str:
        """Follows the page up to the next command that begins so; its output. koordpy.yaml is written elsewhere."""
        said = ""
        while True:
            command = self.todo.pop(0)
            if command.startswith("ctr "):
                for node in self._work.cluster.nodes.values():
                    node.call("sh", "-c", f"cd {ARCHIVE.parent} && {command}", timeout_s=300)
            elif not LEFT_OUT.match(command):
                said = await asyncio.to_thread(self._run, command)
            if command.startswith(last):
                return said

    def _run(self, command: str) -> str:
        own = command.replace(" --follow", " --tail=-1")
        own = own.replace(RENDERED, f"{self._env['HOME']}/{RENDERED}")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-ec", own],
            cwd=REPOSITORY,
            env={**os.environ, **self._env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
async def shell(alone: Work, image: str, helm: Helm) -> AsyncIterator[Shell]:  # the image is on the nodes
    yield Shell(alone)
    # Nothing remains of a test that has failed half-way: it would be in the way of those that follow.
    await Release(helm, alone).helm("uninstall", "--ignore-not-found", "--wait", "--timeout=120s")
    rendered = alone.cluster.folder / RENDERED
    if rendered.exists():
        await asyncio.to_thread(
            alone.cluster.plane.kubectl, "delete", "--ignore-not-found", "--filename", str(rendered)
        )


async def test_the_page_installs_upgrades_and_removes_it(shell: Shell, alone: Work, helm: Helm) -> None:
    release = Release(helm, alone)
    alone.apply(pod_group("gang", 1), pod("waits", pod_spec(container()), gang="gang"))
    await shell.until("helm install")
    await release.ready()
    # dry: it is told in the log, and not done
    await alone.until("it plans", lambda: f"gang:{alone.namespace}/gang: places 1 of 1 pod" in release.logs())
    assert not (await alone.pods())["waits"]["spec"].get("nodeName")
    assert f"gang:{alone.namespace}/gang" in await shell.until("kubectl --namespace koordpy-system logs")
    await shell.until("helm upgrade")
    await alone.run(["waits"])
    await release.ready()
    await shell.until("helm test")
    await shell.until("helm show crds")
    await shell.until("helm upgrade")
    await release.gang_runs("upgraded")
    await shell.until("helm uninstall")

    async def removed() -> bool:
        return not await release.replicas() and await release.holder() == ""

    await alone.until("it is removed, and its Lease free", removed)
    await alone.run(["waits"])
    # without Helm: the namespace is made anew by the page
    await alone.api.delete(f"/api/v1/namespaces/{NAMESPACE}")

    async def gone() -> bool:
        return NAMESPACE not in [one["metadata"]["name"] for one in await alone.api.items("/api/v1/namespaces")]

    await alone.until("the namespace is gone", gone)
    await shell.until("kubectl apply --server-side --filename koordpy.yaml")
    assert all((condition(one, "Ready") or {})["status"] == "True" for one in await release.ready())
    await release.gang_runs("rendered")
    await shell.until("kubectl delete")
    await alone.until("it is removed", removed)
    assert not shell.todo
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.sigs.k8s.io"
    assert await alone.api.get(crds)
