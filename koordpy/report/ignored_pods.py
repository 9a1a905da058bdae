"""Why a pod that has no node is left alone: it waits, but not for koordpy.

Nothing is decided here. A misspelt schedulerName, or a gate that nobody takes away, looks like a scheduler that does
not answer; `koordpy explain` and the table of `koordpy simulate` say what it is.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from koordpy.api import keys
from koordpy.api.spelling import meant
from koordpy.pods.pod_info import FINISHED, PodInfo

_CALLED = frozenset({"koord", "koordinator", "koordinator-scheduler", "koordpy", "koordpy-scheduler"})
"""What may be taken for the name that pods give."""


class IgnoredPod(NamedTuple):
    """Why a pod is left alone, and what would have to be otherwise."""

    why: str
    miss: str
    ours: bool = False
    """Whether koordpy is meant to place it: its gates go one day, or its schedulerName is a misspelt one of ours."""


def misspelt(name: str, served: Sequence[str], others: Collection[str] = ()) -> bool:
    """Whether a schedulerName is nearly one of ours; others: names that are known to be another's."""
    return name not in others and bool(_right(name, served))


def _right(name: str, served: Sequence[str]) -> str:
    known = keys.DEFAULT_SCHEDULER_NAME
    return meant(name, served) or (known if name in _CALLED and known in served else "")


def of_another(name: str, served: Sequence[str], others: Collection[str] = ()) -> str:
    """What is said of a schedulerName that is not ours."""
    right = f", did you mean {_right(name, served)}?" if misspelt(name, served, others) else ""
    whose = name or '""'
    return f"of scheduler {whose}, koordpy serves {' or '.join(served)}{right}"


def aside(pod: PodInfo, served: Sequence[str], others: Collection[str] = ()) -> IgnoredPod | None:
    """Of a pod without a node; None for a pod that waits for koordpy, has a node, ends or has ended.

    served: the scheduler names that are koordpy's; others: those that are known to be another's.
    """
    spec = pod.pod.spec
    if pod.pending or pod.node or pod.pod.metadata.deletion_timestamp or pod.pod.status.phase in FINISHED:
        return None
    gates = ", ".join(gate.name for gate in spec.scheduling_gates)
    ungated = f"its scheduling gates were taken away: {gates}"
    if spec.scheduler_name not in served:
        name = spec.scheduler_name
        return IgnoredPod(
            f"pod is {of_another(name, served, others)}",
            f"its schedulerName were {' or '.join(served)}" + (f", and {ungated}" if gates else ""),
            ours=misspelt(name, served, others),
        )
    return IgnoredPod(f"pod is held by scheduling gates: {gates}", ungated, ours=True)
