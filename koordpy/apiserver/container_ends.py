# SPDX-License-Identifier: Apache-2.0
"""Simulates the end of a deleted pod: the exit codes of its containers, and its last status.

A container gets SIGTERM. It exits with its own code (0 if it saves its state), or with 143 if the signal ends it. If it
ignores the signal, it is killed at the end of the grace period (137). As with the kubelet, the phase of a deleted pod
is Succeeded if all containers exited with 0, else Failed, whatever the restartPolicy is. A pod's annotation
`sim.koordpy.io/on-sigterm` replaces the default behaviour with an exit code or `ignore`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ON_SIGTERM = "sim.koordpy.io/on-sigterm"
SIGTERM_CODE, SIGKILL_CODE = 143, 137
"""Exit codes of containers that a signal ended: 128 plus the number of the signal."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Reaction of a container to SIGTERM."""

    code: int
    """Exit code of the container."""
    ignores: bool = False
    """True if the container runs until the end of the grace period."""

    def of(self, pod: Mapping[str, Any]) -> "Stopping":
        """Returns the reaction of a pod's containers: that of its annotation, or this one if it has no valid
        annotation."""
        said = (pod["metadata"].get("annotations") or {}).get(ON_SIGTERM, "")
        if said == "ignore":
            return KILLED
        return Stopping(int(said)) if said.isascii() and said.isdecimal() and int(said) < 256 else self


# common reactions: saves its state and exits with 0; has no handler; fails with 1; is killed after the grace period
SAVES, TERMINATES, CRASHES, KILLED = Stopping(0), Stopping(SIGTERM_CODE), Stopping(1), Stopping(SIGKILL_CODE, True)


def phase_after(code: int, policy: str = "Never", *, deleted: bool) -> str:
    """Returns the phase of a pod after its container exited; Running if the restartPolicy restarts the container.

    deleted: True if the pod was deleted; then the restartPolicy has no effect.
    """
    if not deleted and (policy == "Always" or (policy == "OnFailure" and code)):
        return "Running"
    return "Failed" if code else "Succeeded"


def stopped_status(stopping: Stopping, pod: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Returns the status of a deleted pod after its containers ended. at: time of the end, RFC 3339."""
    code = stopping.of(pod).code
    containers = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": False,
            "started": False,
            "state": {"running": None, "terminated": {"exitCode": code, "finishedAt": at}},
        }
        for container in pod["spec"]["containers"]
    ]
    not_ready = [{"type": kind, "status": "False", "lastTransitionTime": at} for kind in ("Ready", "ContainersReady")]
    return {"phase": phase_after(code, deleted=True), "conditions": not_ready, "containerStatuses": containers}
