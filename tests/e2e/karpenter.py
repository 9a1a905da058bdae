# SPDX-License-Identifier: Apache-2.0
"""Karpenter on a real API server: its own answer which pods are provisionable, and its controllers with the KWOK
provider, whose machines are Node objects that the test makes ready.

`controlplane/build.sh karpenter` builds both (`make e2e-autoscalers`); KOORDPY_KARPENTER names their folder.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.client import Client, Json
from tests.e2e.controlplane import ControlPlane, free_port
from tests.e2e.process import Process
from tests.e2e.provisioning import are_served
from tests.loudly import skip_loudly

GROUP = "/apis/karpenter.sh/v1"
CLAIMS = f"{GROUP}/nodeclaims"
POOLS = f"{GROUP}/nodepools"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
MANAGED = "karpenter.sh/nodepool"
"""Label of Karpenter's nodes."""


class Karpenter:
    """Creates nodes for pods by their node selector with one label."""

    def __init__(self, folder: Path, plane: ControlPlane, label: str, room: Mapping[str, str], logs: Path) -> None:
        """folder: of the programs. label: that each node gets with a value that pods select. room: of each node."""
        self._folder, self._label = folder, label
        types = logs / "types.json"
        types.write_text(json.dumps([_machine(room)]))
        command = [
            str(folder / "karpenter"),
            f"--metrics-port={free_port()}",
            f"--health-probe-port={free_port()}",
            "--disable-leader-election=true",
            f"--instance-types-file-path={types}",
        ]
        environment = {"KUBECONFIG": str(plane.kubeconfig())}
        self.process = Process("karpenter", command, log=logs / "karpenter.log", env=environment)

    def provisionable(self, pods: Sequence[Json]) -> list[str]:
        """Returns the names of the pods for which `IsProvisionable` of Karpenter is true."""
        program = [str(self._folder / "isprovisionable")]
        text = json.dumps({"items": pods})
        done = subprocess.run(program, input=text, capture_output=True, text=True, timeout=60, check=True)
        return [pod["metadata"]["name"] for pod, yes in zip(pods, json.loads(done.stdout), strict=True) if yes]

    async def start(self, api: Client) -> None:
        """Starts its controllers, with one NodePool."""
        for crds in (self._folder / "operators" / "karpenter").rglob("crds"):
            await api.apply_crds(crds)
        for path in (CLAIMS, POOLS, CLASSES):
            await are_served(api, path)
        nodes = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "tests"}
        await api.create(
            CLASSES, {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": nodes["kind"], "metadata": {"name": "tests"}}
        )
        requirements = [{"key": self._label, "operator": "Exists"}]
        template = {"spec": {"requirements": requirements, "nodeClassRef": nodes, "expireAfter": "Never"}}
        spec = {"template": template, "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}}
        await api.create(
            POOLS,
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "tests"}, "spec": spec},
        )
        self.process.start()

    async def stop(self, api: Client) -> None:
        """Ends it, and removes what it made."""
        self.process.stop()
        for path in (CLAIMS, POOLS, CLASSES):
            for one in await api.items(path):
                await api.patch(f"{path}/{one['metadata']['name']}", {"metadata": {"finalizers": None}})
            await api.delete(path)
        for node in await api.items(f"/api/v1/nodes?labelSelector={MANAGED}"):
            await api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"metadata": {"finalizers": None}})


async def claimed(api: Client, label: str) -> dict[str, int]:
    """Returns value of the label -> number of pods for which there are NodeClaims."""
    found: Counter[str] = Counter()
    for claim in await api.items(CLAIMS):
        wanted = {one["key"]: one.get("values", ()) for one in claim["spec"]["requirements"]}
        found[",".join(wanted[label])] += int(claim["spec"]["resources"]["requests"]["pods"])
    return dict(found)


async def make_ready(api: Client) -> None:
    """Does what the kubelets of Karpenter's nodes do."""
    for node in await api.items(f"/api/v1/nodes?labelSelector={MANAGED}"):
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}}
        await api.patch(f"{path}/status", ready)
        await api.patch(path, {"spec": {"taints": None}})


def _machine(room: Mapping[str, str]) -> Json:
    requirements = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "a"}
    offering = {
        "Price": 1,
        "Available": True,
        "Requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in requirements.items()],
    }
    resources = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "100Gi", **room}
    kind = {"name": "machine", "architecture": "amd64", "operatingSystems": ["linux"]}
    return {**kind, "offerings": [offering], "resources": resources}


def find_programs(request: pytest.FixtureRequest) -> Path:
    """Returns the folder with both programs; skips the test if they are not built."""
    folder = os.environ.get("KOORDPY_KARPENTER", "")
    if not folder:
        skip_loudly(request, "Karpenter", "KOORDPY_KARPENTER is not set: make e2e-autoscalers builds it")
    return Path(folder)
