"""The cluster at the end of the demo as its promises read it: API objects, nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


def refusal(pod: Manifest) -> tuple[str, str]:
    """(reason, message) of PodScheduled=False; empty texts where there is none."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("reason", ""), condition.get("message", "")
    return "", ""


def rank_of(pod: Manifest) -> str:
    """Its place in the gang's order; empty for a pod without gang, or not bound."""
    return str((pod["metadata"].get("annotations") or {}).get(keys.BOUND_RANK, ""))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Pods by key, nodes by name."""

    pods: Mapping[str, Manifest]
    labels: Mapping[str, Mapping[str, str]]
    """Node -> labels."""
    gpus: Mapping[str, int]
    """Node -> its accelerators."""

    def of(self, *prefixes: str) -> list[Manifest]:
        """Pods of the default namespace whose names begin so, in rank order."""
        found = [pod for pod in self.pods.values() if pod["metadata"]["name"].startswith(prefixes)]
        return sorted(found, key=lambda pod: int(rank_of(pod) or 0))

    def domains(self, pods: Iterable[Manifest], label: str) -> list[str]:
        """The domain of each pod; empty for one that is not bound."""
        return [self.labels.get(pod["spec"].get("nodeName", ""), {}).get(label, "") for pod in pods]

    def asked(self, pod: Manifest) -> int:
        """Accelerators that a pod asks for."""
        return gpus_of(pod)


def outcome_of(pods: Iterable[Manifest], nodes: Iterable[Manifest]) -> Outcome:
    """The outcome from API objects."""
    nodes = list(nodes)
    return Outcome(
        {key_of(pod): pod for pod in pods},
        {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes},
        {node["metadata"]["name"]: devices_of(node["status"]["allocatable"]) for node in nodes},
    )
