"""The status that a kubelet writes for a pod that starts, and for one that ends well."""

from datetime import UTC, datetime
from typing import Any


def now() -> str:
    """The time in RFC 3339, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, value: bool, at: str, reason: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "status": "True" if value else "False", "lastTransitionTime": at}
    return {**found, "reason": reason} if reason else found


def _container_statuses(pod: dict[str, Any], state: dict[str, Any], *, ready: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "started": ready,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]


def running_status(pod: dict[str, Any], at: str) -> dict[str, Any]:
    """The status of a pod whose containers have just started."""
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "startTime": at,
        "conditions": [_condition(kind, True, at) for kind in kinds],
        "containerStatuses": _container_statuses(pod, {"running": {"startedAt": at}}, ready=True),
    }


def succeeded_status(pod: dict[str, Any], at: str) -> dict[str, Any]:
    """The status of a pod whose containers have ended well."""
    started = (pod.get("status") or {}).get("startTime") or at
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": at}}
    conditions = [
        _condition("PodReadyToStartContainers", False, at),
        _condition("Initialized", True, at, "PodCompleted"),
    ]
    conditions += [_condition(kind, False, at, "PodCompleted") for kind in ("Ready", "ContainersReady")]
    conditions.append(_condition("PodScheduled", True, at))
    return {
        "phase": "Succeeded",
        "conditions": conditions,
        "containerStatuses": _container_statuses(pod, ended, ready=False),
    }
