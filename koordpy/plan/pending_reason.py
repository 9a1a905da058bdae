# SPDX-License-Identifier: Apache-2.0
"""Reasons of pending pods (repair.md 1.2): the reason of the condition PodScheduled=False.

Autoscalers create nodes for pods with the reason Unschedulable, and ignore all other reasons. All pending members of a
unit have the same reason.
"""

from enum import StrEnum

from koordpy.config.node_failures import ReasonMode


class Reason(StrEnum):
    """Reason of a pending pod, in order of precedence: the first that applies is reported."""

    SCHEDULER_ERROR = "SchedulerError"
    """An error of the planner, of a Binding, or of an upstream group with different members."""
    JOB_VALIDATE_FAILED = "JobValidateFailed"
    """The settings of a job with NPUs are invalid."""
    NOT_READY = "NotReadyForScheduling"
    """A gate blocks the unit, or an object that it needs does not exist."""
    WAITING_FOR_TERMINATION = "WaitingForTermination"
    """The unit fits once terminating pods are gone."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A quota refuses the unit, and more nodes would not change that."""
    HELD_BACK = "HeldBack"
    """The unit fits, but the capacity is reserved for another unit."""
    UNDETERMINED = "Undetermined"
    """The unit is neither placed nor proven to be impossible to place."""
    NODES_CANNOT_HELP = "NodesCannotHelp"
    """No new node would help, whatever its size, labels and taints are."""
    WAITING_FOR_PROVISIONING = "WaitingForProvisioning"
    """A ProvisioningRequest asks for the nodes of the unit, or will do so."""
    PROVISIONING_FAILED = "ProvisioningFailed"
    """The last ProvisioningRequest of the unit failed, and no other one is created."""
    UNSCHEDULABLE = "Unschedulable"
    """More nodes may help."""
    NEVER_FITS = "NeverFits"
    """Instead of Unschedulable in the output of offline commands only: the unit would not fit the empty cluster. The
    condition says Unschedulable, because larger nodes may be for sale."""


ERRORS = frozenset((Reason.SCHEDULER_ERROR, Reason.JOB_VALIDATE_FAILED))
"""Reasons that are written in any mode."""


def written(reason: Reason, mode: ReasonMode) -> Reason:
    """Returns the reason that conditions state. In mode `upstream` it is Unschedulable for all reasons but errors."""
    return Reason.UNSCHEDULABLE if mode == "upstream" and reason not in ERRORS else reason
