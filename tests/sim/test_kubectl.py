# SPDX-License-Identifier: Apache-2.0
"""kubectl against the embedded API server, as a person uses it with the kubeconfig that is printed."""

import asyncio
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.fake_kubelet import FakeKubelet

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on the PATH")

GANG = """\
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g, annotations: {team: one}}
spec: {minMember: 2}
---
apiVersion: v1
kind: Pod
metadata:
  name: p-0
  labels: {pod-group.scheduling.sigs.k8s.io: g}
spec:
  schedulerName: koord-scheduler
  tolerations: [{operator: Exists}]
  containers:
  - name: main
    image: pause
    resources: {limits: {nvidia.com/gpu: 8}}
"""


class Kubectl:
    """Runs kubectl with a kubeconfig and a home of its own."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.folder = folder
        config = folder / "kubeconfig"
        config.write_text(server.kubeconfig())
        self._environment = {**os.environ, "KUBECONFIG": str(config), "HOME": str(folder)}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        assert KUBECTL is not None
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            KUBECTL, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=self._environment
        )

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        process = await self.start(*arguments, "--request-timeout=60s")
        try:
            out, err = await asyncio.wait_for(process.communicate(), 120)
        finally:
            if process.returncode is None:
                process.kill()
        text = (out + err).decode()
        assert process.returncode == code, text
        return text

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@pytest.fixture
async def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    return Kubectl(server, tmp_path)


async def test_apply_get_describe_and_delete(server: ApiServer, kubectl: Kubectl) -> None:
    file = kubectl.file("gang.yaml", GANG)
    assert "pod/p-0 created" in await kubectl("apply", "-f", file)
    assert "pod/p-0 unchanged" in await kubectl("apply", "-f", file)
    changed = kubectl.file("gang.yaml", GANG.replace("minMember: 2", "minMember: 3").replace("one", "two"))
    assert "podgroup.scheduling.sigs.k8s.io/g configured" in await kubectl("apply", "-f", changed)
    assert server.store.get("podgroups.scheduling.sigs.k8s.io", "g")["spec"] == {"minMember": 3}
    uid = server.store.get("pods", "p-0")["metadata"]["uid"]
    event = {
        "metadata": {"name": "p-0.1"},
        "involvedObject": {"kind": "Pod", "name": "p-0", "namespace": "default", "uid": uid},
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available",
        "type": "Warning",
    }
    server.store.create("events", event)
    with closing(FakeKubelet(server.store)):
        server.store.create(
            "pods", {"metadata": {"name": "q"}, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}
        )
        assert "condition met" in await kubectl("wait", "--for=condition=Ready", "pod/q", "--timeout=60s")
        lines = (await kubectl("get", "pods", "-o", "wide")).splitlines()
        assert lines[0].split()[:3] == ["NAME", "READY", "STATUS"]
        assert lines[1].split()[:3] == ["p-0", "0/1", "Pending"] and lines[2].split()[:3] == ["q", "1/1", "Running"]
        for order in (".lastTimestamp", ".firstTimestamp", ".eventTime", ".metadata.creationTimestamp"):
            assert "0/3 nodes are available" in await kubectl("get", "events", "-A", f"--sort-by={order}")
        described = await kubectl("describe", "pod", "p-0")
        assert "0/3 nodes are available" in described and "nvidia.com/gpu:  8" in described
        assert "g " in await kubectl("get", "pg")
        assert "deleted" in await kubectl("delete", "pods", "--all", "--timeout=60s")
    assert server.store.list("pods") == []


async def test_mistakes_are_told(kubectl: Kubectl) -> None:
    wrong = kubectl.file("wrong.yaml", GANG.replace("minMember: 2", "minMembers: 2"))
    assert 'unknown field "spec.minMembers"' in await kubectl("apply", "-f", wrong, code=1)
    negative = kubectl.file("negative.yaml", GANG.replace("minMember: 2", "minMember: -2"))
    assert "should be greater than or equal to 0" in await kubectl("apply", "-f", negative, code=1)
    assert '"none" not found' in await kubectl("get", "pod", "none", code=1)


async def test_the_other_ways_to_write(server: ApiServer, kubectl: Kubectl) -> None:
    file = kubectl.file("gang.yaml", GANG)
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", file)
    server.store.create("nodes", {"metadata": {"name": "n1"}})
    await kubectl("cordon", "n1")
    assert "SchedulingDisabled" in await kubectl("get", "nodes")
    await kubectl("taint", "node", "n1", "a=b:NoSchedule")
    await kubectl("label", "node", "n1", "zone=a")
    await kubectl("patch", "pg", "g", "--type=merge", "-p", '{"spec":{"minMember":5}}')
    await kubectl("annotate", "pod", "p-0", "note=x")
    node = server.store.get("nodes", "n1")
    assert node["spec"]["taints"] == [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    assert node["metadata"]["labels"] == {"zone": "a"}
    assert server.store.get("podgroups.scheduling.sigs.k8s.io", "g")["spec"]["minMember"] == 5
    assert server.store.get("pods", "p-0")["metadata"]["annotations"]["note"] == "x"


async def test_what_is_not_there_is_told_with_what_to_do(server: ApiServer, kubectl: Kubectl) -> None:
    said = await kubectl("create", "job", "x", "--image=busybox", code=1)
    assert "this embedded server does not accept protobuf - " in said and "--dry-run=client -o yaml |" in said
    written = await kubectl("create", "job", "x", "--image=busybox", "--dry-run=client", "-o", "yaml")
    assert "job.batch/x created" in await kubectl("apply", "-f", kubectl.file("job.yaml", written))
    server.store.create("pods", {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}})
    assert "log is not supported, because no containers run on this embedded cluster" in await kubectl(
        "logs", "p", code=1
    )
    assert "exec is not supported, because no containers run" in await kubectl("exec", "p", "--", "true", code=1)


async def test_watch_prints_changes(server: ApiServer, kubectl: Kubectl) -> None:
    process = await kubectl.start("get", "pods", "--watch")
    assert process.stdout is not None
    try:
        server.store.create("pods", {"metadata": {"name": "late"}, "spec": {"containers": [{"name": "c"}]}})
        lines: list[str] = []
        async with asyncio.timeout(60):
            while not any(line.startswith("late") for line in lines):
                lines.append((await process.stdout.readline()).decode())
        server.store.delete("pods", "late")
        async with asyncio.timeout(60):
            lines.append((await process.stdout.readline()).decode())
        assert [line.split()[0] for line in lines] == ["NAME", "late", "late"]
    finally:
        process.kill()
        await process.wait()


async def test_discovery_and_explanation(kubectl: Kubectl) -> None:
    resources = await kubectl("api-resources", "-o", "name")
    assert {"pods", "podgroups.scheduling.sigs.k8s.io", "leases.coordination.k8s.io"} <= set(resources.split())
    assert "must be scheduled together" in await kubectl("explain", "podgroup.spec.minMember")
