"""What the demo reads of the API server's objects."""

from collections.abc import Mapping
from typing import Any

from koordpy.api import keys

Manifest = dict[str, Any]
DEVICES = ("nvidia.com/gpu", *keys.NPU_RESOURCES)


def key_of(obj: Manifest) -> str:
    """`namespace/name`; of a pod that its Job has named, without the random ending: the name that it has offline."""
    meta = obj["metadata"]
    return f"{meta.get('namespace', 'default')}/{meta.get('generateName', '').rstrip('-') or meta['name']}"


def devices_of(amounts: Mapping[str, Any]) -> int:
    """Accelerators among amounts by resource."""
    return sum(int(amounts.get(name, 0)) for name in DEVICES)


def gpus_of(pod: Manifest) -> int:
    """GPUs or NPUs that a pod asks for."""
    found = 0
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        found += devices_of({**resources.get("limits", {}), **resources.get("requests", {})})
    return found


def refusal(pod: Manifest) -> str:
    """The message of PodScheduled=False; empty where there is none."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def rank_of(pod: Manifest) -> str:
    """Its place in the gang's order; empty for a pod without gang, or not bound."""
    return str((pod["metadata"].get("annotations") or {}).get(keys.BOUND_RANK, ""))
