"""Bodies of the status patches we send (kube-parity.md 4.5). [signatures; body follows]"""

from typing import Any

from koordpy.api.objects import Pod


def pod_unschedulable(pod: Pod, *, reason: str, message: str, now: str) -> dict[str, Any] | None:
    """Strategic-merge patch of pods/status for PodScheduled=False; None when the pod says so already."""
    raise NotImplementedError


def wobbles(old: str, new: str) -> bool:
    """True when two messages differ in their counts only."""
    raise NotImplementedError
