# SPDX-License-Identifier: Apache-2.0
"""What a cluster holds, as `kubectl get -o yaml` writes it, and what the offline commands say of that."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, Refused
from tests.e2e.process import eventually

Json = dict[str, Any]

READ = {
    "/api/v1/namespaces": ("v1", "Namespace"),
    "/api/v1/nodes": ("v1", "Node"),
    "/api/v1/pods": ("v1", "Pod"),
    "/api/v1/namespaces/kube-system/configmaps": ("v1", "ConfigMap"),
    "/apis/scheduling.k8s.io/v1/priorityclasses": ("scheduling.k8s.io/v1", "PriorityClass"),
    "/apis/scheduling.sigs.k8s.io/v1alpha1/podgroups": ("scheduling.sigs.k8s.io/v1alpha1", "PodGroup"),
    "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": ("scheduling.sigs.k8s.io/v1alpha1", "ElasticQuota"),
    "/apis/scheduling.koordinator.sh/v1alpha1/devices": ("scheduling.koordinator.sh/v1alpha1", "Device"),
    "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies": (
        "scheduling.koordinator.sh/v1alpha1",
        "ClusterNetworkTopology",
    ),
}
"""Path of a collection -> what its items are; the items of a built-in kind do not say it themselves."""


async def dump(api: Client) -> Json:
    """A List of everything that decides where pods go, with every field that the API server has filled in."""
    items = [
        {**item, "apiVersion": version, "kind": kind}
        for path, (version, kind) in READ.items()
        for item in await _items(api, path)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


async def _items(api: Client, path: str) -> list[Json]:
    """A resource whose definition is new is refused for a moment: its storage is being initialised."""

    async def ready() -> tuple[list[Json]] | None:
        try:
            return (await api.items(path),)
        except Refused as refused:
            if refused.status != 429:
                raise
            return None

    found = await eventually(ready, what=f"{path} served")
    assert found is not None
    return found[0]


def offline(command: str, dumped: Json, folder: Path, *flags: str, config: Mapping[str, Any] | None = None) -> Json:
    """The JSON of `koordpy COMMAND -f DUMP FLAGS...`; config: sections of the configuration."""
    file = folder / "dump.json"
    file.write_text(json.dumps(dumped))
    arguments = [sys.executable, "-m", "koordpy", command, "-f", str(file), "-o", "json", *flags]
    if config:
        settings = folder / "offline.json"
        head = {"apiVersion": "koordpy.io/v1alpha1", "kind": "KoordpyConfiguration"}
        settings.write_text(json.dumps({**head, **config}))
        arguments += ["--config", str(settings)]
    answer = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)
    assert answer.returncode == 0, answer.stderr
    found: Json = json.loads(answer.stdout)
    return found


def planned(simulated: Json) -> dict[str, tuple[str, Json]]:
    """Pod -> (node, annotations) of a simulation's bindings."""
    return {one["pod"]: (one["node"], one["annotations"]) for one in simulated["bindings"]}


def said(pods: Mapping[str, Json], simulated: Json) -> dict[str, tuple[str, Json]]:
    """The same of live pods: of each, as many annotations as the simulation speaks of, so that both can be compared."""
    return {
        name: (
            pods[name]["spec"].get("nodeName", ""),
            {key: pods[name]["metadata"].get("annotations", {}).get(key) for key in notes},
        )
        for name, (_, notes) in planned(simulated).items()
    }
