# SPDX-License-Identifier: Apache-2.0
"""Reads what the demo shows and checks from objects of the API server: requests, messages and ranks of pods."""

from collections.abc import Mapping
from typing import Any

from koordpy.api import keys

Manifest = dict[str, Any]
"""An object as decoded YAML or JSON."""
DEVICES = ("nvidia.com/gpu", *keys.NPU_RESOURCES)


def key_of(obj: Manifest) -> str:
    """Returns `namespace/name`. A random suffix from a Job is left out, because offline the pod has none."""
    meta = obj["metadata"]
    return f"{meta.get('namespace', 'default')}/{meta.get('generateName', '').rstrip('-') or meta['name']}"


def devices_of(amounts: Mapping[str, Any]) -> int:
    """Returns the number of accelerators in amounts by resource."""
    return sum(int(amounts.get(name, 0)) for name in DEVICES)


def gpus_of(pod: Manifest) -> int:
    """Returns the number of GPUs or NPUs that a pod requests."""
    found = 0
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        found += devices_of({**resources.get("limits", {}), **resources.get("requests", {})})
    return found


def refusal(pod: Manifest) -> str:
    """Returns the message of a pod's condition PodScheduled=False; empty if it has no such condition."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def rank_of(pod: Manifest) -> str:
    """Returns a pod's rank in its gang; empty for a pod that has no gang or is not bound."""
    return str((pod["metadata"].get("annotations") or {}).get(keys.BOUND_RANK, ""))
