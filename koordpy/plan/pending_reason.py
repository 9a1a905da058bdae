# SPDX-License-Identifier: Apache-2.0
"""Defines the reasons of the condition PodScheduled=False of pending pods (repair.md 1.2).

Autoscalers create nodes for pods with the reason Unschedulable, and ignore all other reasons. All pending members of a
unit have the same reason.
"""

from enum import StrEnum

from koordpy.config.node_failures import ReasonMode

SELF_CHECK = "a plan failed koordpy's own check and was not carried out"
"""Message of SchedulerError for a plan that an independent check rejected; its faults follow."""


class Reason(StrEnum):
    """Reason of a pending pod, in order of precedence: the first reason that applies is reported."""

    SCHEDULER_ERROR = "SchedulerError"
    """An error of the planner, of a Binding, or of an upstream PodGroup that needs equal members and has different
    ones."""
    JOB_VALIDATE_FAILED = "JobValidateFailed"
    """The settings of a job with NPUs are invalid."""
    NOT_READY = "NotReadyForScheduling"
    """A gate blocks the unit, or an object that it needs does not exist."""
    WAITING_FOR_TERMINATION = "WaitingForTermination"
    """The unit fits when terminating pods have ended."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A quota refuses the unit, and more nodes would not change that."""
    HELD_BACK = "HeldBack"
    """The unit fits, but the capacity is reserved for another unit."""
    UNDETERMINED = "Undetermined"
    """No placement was found within the limits, but one may exist."""
    NODES_CANNOT_HELP = "NodesCannotHelp"
    """No new node would help, whatever its size, labels and taints are."""
    WAITING_FOR_PROVISIONING = "WaitingForProvisioning"
    """A ProvisioningRequest for the nodes of the unit exists, or will be created."""
    PROVISIONING_FAILED = "ProvisioningFailed"
    """The last ProvisioningRequest of the unit failed, and no further one is created."""
    UNSCHEDULABLE = "Unschedulable"
    """More nodes may help."""
    NEVER_FITS = "NeverFits"
    """The unit would not fit the empty cluster. Used only in the output of offline commands; the condition says
    Unschedulable, because an autoscaler may have larger nodes."""


ERRORS = frozenset((Reason.SCHEDULER_ERROR, Reason.JOB_VALIDATE_FAILED))
"""Reasons that conditions state in any mode of `autoscaling.reasons`."""


def written(reason: Reason, mode: ReasonMode) -> Reason:
    """Returns the reason that conditions state. In mode `upstream` it is Unschedulable, except for `ERRORS`."""
    return Reason.UNSCHEDULABLE if mode == "upstream" and reason not in ERRORS else reason
