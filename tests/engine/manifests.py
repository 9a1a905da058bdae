# SPDX-License-Identifier: Apache-2.0
"""Names of kinds as the embedded API server shelves them, and what tests read in manifests."""

import json
from typing import Any

from koordpy.api import keys

Manifest = dict[str, Any]
GPU, NPU = "nvidia.com/gpu", keys.NPU_RESOURCES[0]
GROUPS, DEVICES = "podgroups.scheduling.sigs.k8s.io", "devices.scheduling.koordinator.sh"
QUOTAS, BUDGETS = "elasticquotas.scheduling.sigs.k8s.io", "poddisruptionbudgets.policy"
TOPOLOGIES = "clusternetworktopologies.scheduling.koordinator.sh"
CLAIMS_OF_DEVICES = "resourceclaims.resource.k8s.io"
EVENTS = "events.events.k8s.io"
OURS = keys.DEFAULT_SCHEDULER_NAME
BLOCK = "example.com/block"
FRESH_SECONDS = 1.0
"""What came this lately may be unknown to a plan that is being carried out."""


def annotations_of(obj: Manifest) -> dict[str, str]:
    notes: dict[str, str] = obj["metadata"].get("annotations") or {}
    return notes


def gang_of(pod: Manifest) -> str:
    """Name of the PodGroup that a pod says it is of; empty for none."""
    return str(pod["metadata"].get("labels", {}).get(keys.LABEL_POD_GROUP, ""))


def minors(obj: Manifest) -> list[int]:
    """The GPUs written on a pod."""
    text = annotations_of(obj).get(keys.GPU_ALLOCATION)
    lists = json.loads(text)["allocatedGPUs"].values() if text else ()
    return [int(one) for each in lists for one in each]


def chips(obj: Manifest) -> list[str]:
    """The NPUs written on a pod."""
    text = annotations_of(obj).get(NPU)
    return text.split(",") if text else []


def asked(obj: Manifest, resource: str) -> int:
    return int(obj["spec"]["containers"][0]["resources"]["requests"].get(resource, 0))


def live_on_node(obj: Manifest) -> bool:
    return bool(obj["spec"].get("nodeName")) and obj.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def nominated_node(obj: Manifest) -> str:
    return "" if obj["spec"].get("nodeName") else obj.get("status", {}).get("nominatedNodeName") or ""
