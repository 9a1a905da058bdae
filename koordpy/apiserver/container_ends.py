"""How containers of a fake kubelet end when their pod is deleted.

A container gets SIGTERM. It exits with its own code (0 where it saves its state), or with 143 where it has no handler,
or it ignores the signal and is killed at the end of the grace (137). The phase follows as the kubelet has it: Succeeded
where all containers exited 0, else Failed, whatever the restartPolicy; nothing is restarted in a pod that is deleted.
A pod's annotation `sim.koordpy.io/on-sigterm` says its own: an exit code, or `ignore`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ON_SIGTERM = "sim.koordpy.io/on-sigterm"
SIGTERM_CODE, SIGKILL_CODE = 143, 137


@dataclass(frozen=True, slots=True)
class Stopping:
    """How a container answers SIGTERM."""

    code: int
    ignores: bool = False
    """True if it lives until the end of the grace."""

    def of(self, pod: Mapping[str, Any]) -> "Stopping":
        """Of the containers of one pod; this one where the pod says nothing that can be read."""
        said = (pod["metadata"].get("annotations") or {}).get(ON_SIGTERM, "")
        if said == "ignore":
            return KILLED
        return Stopping(int(said)) if said.isascii() and said.isdecimal() and int(said) < 256 else self


SAVES, TERMINATES, CRASHES, KILLED = Stopping(0), Stopping(SIGTERM_CODE), Stopping(1), Stopping(SIGKILL_CODE, True)


def phase_after(code: int, policy: str = "Never", *, deleted: bool) -> str:
    """Phase of a pod whose container exited with a code; Running where the restartPolicy has it started again."""
    if not deleted and (policy == "Always" or (policy == "OnFailure" and code)):
        return "Running"
    return "Failed" if code else "Succeeded"


def stopped_status(stopping: Stopping, pod: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The status of a deleted pod whose containers have ended; at: when, RFC 3339."""
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
