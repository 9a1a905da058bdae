# SPDX-License-Identifier: Apache-2.0
"""What a pod says of its own place before it is bound, on the real API server, whose Bindings only add annotations."""

from __future__ import annotations

from pathlib import Path

from koordpy.api import keys
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually
from tests.e2e.test_scheduler import create, start
from tests.scenarios.test_presets import OTHERS, PRESET


async def test_a_bound_pod_says_of_its_place_only_what_koordpy_says(
    controlplane: ControlPlane, tmp_path: Path, api: Client, crds: list[str]
) -> None:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    await create(api, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": status})
    manifest = pod_manifest("p", scheduler="koord-scheduler")
    manifest["metadata"]["annotations"] = {**PRESET, **OTHERS}
    await api.create(pods_path(), manifest)

    async def bound() -> bool:
        return bool((await api.get(f"{pods_path()}/p"))["spec"].get("nodeName"))

    with start(controlplane, tmp_path, "koordpy") as scheduler:
        await eventually(bound, what="the pod is bound", processes=[scheduler])
    said = (await api.get(f"{pods_path()}/p"))["metadata"]["annotations"]
    assert said.pop(keys.BOUND_EPOCH).isdigit() and said.pop(keys.BOUND_LEASE) == "kube-system/koordpy"
    assert said == {**dict.fromkeys(PRESET.keys() - {keys.BOUND_EPOCH, keys.BOUND_LEASE}, ""), **OTHERS}
