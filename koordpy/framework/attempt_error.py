# SPDX-License-Identifier: Apache-2.0
"""The refusal of a node that ends the attempt of a whole unit, as an error of a kube-scheduler plugin does."""

from dataclasses import dataclass

from koordpy.framework.filter_protocol import Refusal


@dataclass(frozen=True, slots=True)
class AttemptError(Refusal):
    """A refusal that ends the attempt of the pod's unit if every earlier filter accepts the node.

    The unit then waits with reason SchedulerError, even if other nodes accept the pod.
    """
