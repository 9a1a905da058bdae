# SPDX-License-Identifier: Apache-2.0
"""Finds errors of filters that end the attempt of a whole unit, such as a claim's CEL selector that fails on a device.

The filters report them as `AttemptError` in their verdicts; here they become the gate of the unit.
"""

import numpy as np

from koordpy.feasibility.round_state import RoundState
from koordpy.framework.attempt_error import AttemptError
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus
from koordpy.pods.pod_info import PodInfo


def find_error(unit: Unit, round_state: RoundState) -> Gate | None:
    """Returns a gate with the error that ends the attempt of a unit; None if no member has an error."""
    found = unit_error(unit, round_state)
    if found is None:
        return None
    return Gate(found.reasons[0], GangStatus.INVALID, Reason.SCHEDULER_ERROR, plugins=(found.plugin,))


def unit_error(unit: Unit, round_state: RoundState) -> AttemptError | None:
    """Returns the error of the first pending member that has one; None if no member has an error.

    If several nodes have an error, that of the first node in natural order of names counts. A node is ignored if an
    earlier filter refuses it.
    """
    errors = (_error_of(pod, round_state) for pod in unit.pending if pod.asks)
    return next((found for found in errors if found is not None), None)


def _error_of(pod: PodInfo, round_state: RoundState) -> AttemptError | None:
    state = round_state.of(pod)
    words = (rule.verdict() for rule in state.rules if rule.may_end_attempt)
    if not any(isinstance(one, AttemptError) for word in words for one in word.refusals):
        return None
    verdict = state.verdict()
    errors = {i: one for i, one in enumerate(verdict.refusals, start=1) if isinstance(one, AttemptError)}
    if not errors:
        return None
    nodes = np.nonzero(np.isin(verdict.which, list(errors)))[0].tolist()
    if not nodes:
        return None
    first = min(nodes, key=lambda node: int(round_state.snapshot.name_rank[node]))
    return errors[int(verdict.which[first])]
