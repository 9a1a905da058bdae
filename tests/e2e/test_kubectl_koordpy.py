# SPDX-License-Identifier: Apache-2.0
"""`kubectl koordpy` through kubectl, on a real API server beside a running koordpy, which writes what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually
from tests.e2e.recording import Recorder
from tests.e2e.test_quota_policies import quota
from tests.e2e.test_scheduler import GROUPS, start
from tests.engine.stage import device

Json = dict[str, Any]
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
OURS = keys.DEFAULT_SCHEDULER_NAME
GPU = "nvidia.com/gpu"
WAITING = ("vast", "wide-0", "wide-1", "wide-2", "lonely-0", "poor", "sick")


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    """Two nodes with four GPUs, of which one has two that are sick."""
    await api.make_nodes(2, allocatable={"cpu": "16", "memory": "64Gi", "pods": "20", GPU: "4"}, name=lambda i: f"g{i}")
    head = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    for name, sick in (("g0", (0, 1)), ("g1", ())):
        await api.create(DEVICES, {**head, **device(name, sick=sick)})
    yield api
    for path in (pods_path(), GROUPS, QUOTAS, DEVICES):
        await api.delete(path)


async def make_waiting(api: Client) -> None:
    """A plain pod, a gang without room, one without its members, one above its quota, one whose GPUs are sick."""

    async def pod(name: str, gpus: int, *, cpu: str = "1", **of_manifest: Any) -> None:
        asks = {"cpu": cpu, **({GPU: str(gpus)} if gpus else {})}
        await api.create(pods_path(), pod_manifest(name, scheduler=OURS, requests=asks, **of_manifest))

    await api.create(QUOTAS, quota("small", min={"cpu": "1"}, max={"cpu": "1"}))
    head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
    for name, members, least in (("wide", 3, 3), ("lonely", 1, 2)):
        await api.create(GROUPS, {**head, "metadata": {"name": name}, "spec": {"minMember": least}})
        for i in range(members):
            await pod(f"{name}-{i}", 4, labels={keys.LABEL_POD_GROUP: name})
    await pod("vast", 5)
    await pod("poor", 0, cpu="2", labels={keys.QUOTA_NAME: "small"})
    await pod("sick", 4, spec={"nodeSelector": {"kubernetes.io/hostname": "g0"}})


class Plugin:
    """kubectl with the plugin on the PATH, against a kubeconfig."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        self._kubectl, self._kubeconfig = plane.assets / "kubectl", kubeconfig

    async def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KUBECONFIG": str(self._kubeconfig)}
        command = [str(self._kubectl), "koordpy", *words]
        return await asyncio.to_thread(
            subprocess.run, command, env=env, capture_output=True, text=True, timeout=120, check=False
        )


async def test_why_is_word_for_word_what_the_scheduler_writes_and_nothing_is_written_for_it(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client, recorder: Recorder
) -> None:
    api = cluster
    ask = Plugin(controlplane, recorder.kubeconfig(tmp_path, controlplane.admin_token))
    await make_waiting(api)

    async def told() -> dict[str, Json]:
        found = {name: condition(await api.get(f"{pods_path()}/{name}"), "PodScheduled") for name in WAITING}
        return {name: one for name, one in found.items() if one} if all(found.values()) else {}

    def running() -> Process:
        return start(controlplane, tmp_path, "koordpy", "--leader-elect=false")

    with running() as process:
        await eventually(told, what="told why they wait", processes=[process])

        async def agree() -> dict[str, tuple[str, str]]:
            """What pods were told and are not told now: numbers that change are written after half a minute only."""
            there = await told()
            out = {}
            for unit in ("vast", "wide", "lonely", "poor", "sick"):
                done = await ask("why", unit, "-o", "json")
                assert (done.returncode, done.stderr) == (0, ""), done.stderr
                for said in json.loads(done.stdout)["pods"]:
                    one = there[said["pod"]]
                    assert said["lastTold"] == one["message"]
                    if (said["reason"], said["message"]) != (one["reason"], one["message"]):
                        out[said["pod"]] = (one["message"], said["message"])
            return out

        async def all_agree() -> bool:
            return not await agree()

        await eventually(all_agree, what="the same words", every_s=1.0, processes=[process])
        there = await told()
        gang = await ask("why", "wide")
        assert gang.returncode == 0 and f"    {there['wide-0']['message']}\n" in gang.stdout
        version = int((await api.get(pods_path()))["metadata"]["resourceVersion"])
        as_of = re.search(r"^as of \d+\.\d s ago, resourceVersion (\d+) of http://", gang.stdout, re.M)
        assert as_of is not None and int(as_of[1]) <= version
        queue = await ask("queue", "-o", "json")
        units = json.loads(queue.stdout)["units"]
        assert [one["unit"] for one in units if one["place"] is None] == ["gang default/lonely"] and len(units) == 5
        for words in (("slots", "--gpus", "4"), ("tree", "-o", "wide"), ("top",)):
            assert (await ask(*words)).returncode == 0
    assert {call.method for call in recorder.calls} == {"GET"}
    assert not [call for call in recorder.calls if call.verb == "watch"]


async def test_what_is_wrong_is_a_line_and_kubectls_exit_status(
    controlplane: ControlPlane, tmp_path: Path, api: Client, crds: list[str]
) -> None:
    good = Plugin(controlplane, controlplane.kubeconfig())
    missing = await good("why", "nobody")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "error: no pending or running pod, gang or workload named default/nobody\n"
    context = await good("tree", "--context", "elsewhere")
    assert context.returncode == 1 and "contexts[elsewhere]: no such entry" in context.stderr
    stranger = await Plugin(controlplane, controlplane.kubeconfig("stranger", token="wrong"))("queue")
    assert stranger.returncode == 1 and stranger.stderr.startswith("error: the cluster cannot be read: 401")
    # a user of few rights: koordpy's own kinds are not theirs to list
    user = controlplane.kubeconfig("system:kube-scheduler")
    few = await Plugin(controlplane, user)("queue")
    assert few.returncode == 0
    assert "warning: without podgroups.scheduling.sigs.k8s.io: " in few.stderr
