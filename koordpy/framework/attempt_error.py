# SPDX-License-Identifier: Apache-2.0
"""A refusal that ends the planning of a whole unit, as an error of a Filter plugin ends a cycle of kube-scheduler."""

from dataclasses import dataclass

from koordpy.framework.filter_protocol import Refusal


@dataclass(frozen=True, slots=True)
class AttemptError(Refusal):
    """A refusal that ends the attempt of the pod's unit, if every earlier filter accepts the node.

    The unit then waits with the reason SchedulerError, even if other nodes accept the pod.
    """
