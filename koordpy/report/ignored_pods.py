# SPDX-License-Identifier: Apache-2.0
"""Finds why koordpy ignores a pod without a node: another scheduler, or scheduling gates.

`koordpy explain` and the table of `koordpy simulate` show the reason. Otherwise a user with a misspelt schedulerName or
a forgotten gate would think that the scheduler does not work. Must not decide anything.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from koordpy.api import keys
from koordpy.api.spelling import meant
from koordpy.pods.pod_info import FINISHED, PodInfo

_CALLED = frozenset({"koord", "koordinator", "koordinator-scheduler", "koordpy", "koordpy-scheduler"})
"""Names that users may write by mistake instead of the default scheduler name."""


class IgnoredPod(NamedTuple):
    """Why a pod is ignored, and the change after which koordpy would schedule it."""

    why: str
    """Sentence why the pod is ignored, beginning with `pod has`."""
    miss: str
    """Change after which koordpy would schedule the pod, as the end of a line `Would fit if ...`; empty if none is
    known."""
    ours: bool = False
    """True if the pod was probably created for koordpy: it is only gated, or its schedulerName is a misspelt name of
    koordpy."""


def misspelt(name: str, served: Sequence[str], others: Collection[str] = ()) -> bool:
    """Returns True if a schedulerName is probably a misspelt name of koordpy.

    served: the scheduler names of koordpy. others: names known to belong to other schedulers.
    """
    return name not in others and bool(_right(name, served))


def _right(name: str, served: Sequence[str]) -> str:
    """Returns the scheduler name of koordpy that a name was probably meant to be; empty if it resembles none."""
    known = keys.DEFAULT_SCHEDULER_NAME
    return meant(name, served) or (known if name in _CALLED and known in served else "")


def of_another(name: str, served: Sequence[str], others: Collection[str] = ()) -> str:
    """Returns the end of a sentence on a schedulerName that koordpy does not serve. It begins `pod has` or `pods
    have`."""
    right = f", did you mean {_right(name, served)}?" if misspelt(name, served, others) else ""
    given = name or '""'
    return f"schedulerName {given}, koordpy handles {' or '.join(served)}{right}"


def find_ignored_reason(pod: PodInfo, served: Sequence[str], others: Collection[str] = ()) -> IgnoredPod | None:
    """Returns why koordpy does not schedule a pod without a node.

    None for a pod that koordpy schedules, and for a pod that is bound, terminating or ended.

    served: the scheduler names of koordpy. others: names known to belong to other schedulers.
    """
    spec = pod.pod.spec
    if pod.pending or pod.node or pod.pod.metadata.deletion_timestamp or pod.pod.status.phase in FINISHED:
        return None
    gates = ", ".join(gate.name for gate in spec.scheduling_gates)
    ungated = f"its scheduling gates were removed: {gates}"
    if spec.scheduler_name not in served:
        name = spec.scheduler_name
        return IgnoredPod(
            f"pod has {of_another(name, served, others)}",
            f"its schedulerName were {' or '.join(served)}" + (f", and {ungated}" if gates else ""),
            ours=misspelt(name, served, others),
        )
    return IgnoredPod(f"pod has scheduling gates: {gates}", ungated, ours=True)
