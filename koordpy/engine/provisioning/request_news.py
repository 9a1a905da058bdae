# SPDX-License-Identifier: Apache-2.0
"""Reports changes of ProvisioningRequests: as events on the PodGroup and in metrics (repair.md 3.3).

A change of a request also makes its unit due in the queue.
"""

from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.engine.engine_context import Context
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.scheduler_events import (
    PROVISIONED,
    PROVISIONING_FAILED,
    PROVISIONING_REQUESTED,
)
from koordpy.plan.wanted_nodes import WantedNodes
from koordpy.provisioning.request_states import EXPIRED, FAILED, REVOKED, RequestPhase, RequestState, failure

_OUTCOMES = {FAILED: "failed", REVOKED: "revoked", EXPIRED: "expired"}
"""Type of a request's condition that means failure -> outcome of the request, as label of the metric."""
_FAILED = (RequestPhase.BACK_OFF, RequestPhase.GIVEN_UP)


class RequestNews:
    """Reports each change of a request once. States that a new leader finds at its first comparison are not reported,
    because an earlier leader has reported them."""

    def __init__(self, context: Context) -> None:
        self._announcer, self._metrics, self._queue = context.announcer, context.metrics, context.queue
        self._told: dict[str, RequestPhase] = {}
        """uid of a request -> the last phase that was reported."""
        self.is_first = True
        """True until the first comparison has ended."""

    def saw(self, wanted: WantedNodes, state: RequestState, owner: ObjectReference | None) -> None:
        """Reports a change of the state of a unit's request, and makes the unit due in the queue."""
        request = state.request
        if request is None or self._told.get(request.metadata.uid) == state.phase:
            return
        before = self._told.get(request.metadata.uid)
        self._told[request.metadata.uid] = state.phase
        if self.is_first and before is None:
            return
        if state.phase in _FAILED and before not in _FAILED:
            found = failure(request)
            self.count(_OUTCOMES[found.type] if found is not None else "expired")
            text = f"{found.reason}: {found.message}" if found is not None else "the booked nodes were not used in time"
            self._tell(PROVISIONING_FAILED, owner, f"{request.metadata.name}: {text}")
        elif state.phase is RequestPhase.PROVISIONED:
            self._tell(PROVISIONED, owner, f"the nodes of {request.metadata.name} are there")
        self._queue.touch(wanted.unit, "ProvisioningRequest")

    def created(self, owner: ObjectReference, request: ProvisioningRequest) -> None:
        """Reports a new request."""
        self._told[request.metadata.uid] = RequestPhase.OPEN
        number = sum(one.count for one in request.spec.pod_sets)
        text = f"{request.metadata.name} asks class {request.spec.provisioning_class_name} for nodes for {number} pods"
        self._tell(PROVISIONING_REQUESTED, owner, text)

    def is_alive(self, request: ProvisioningRequest) -> bool:
        """Returns True if no failure of the request was reported."""
        return self._told.get(request.metadata.uid) not in _FAILED

    def count(self, outcome: str) -> None:
        """Counts the end of a request. outcome: label of the metric."""
        self._metrics.provisioning.labels(outcome).inc()

    def forget(self, uids: set[str]) -> None:
        """Forgets requests that do not exist any more. uids: of all existing requests."""
        self._told = {uid: phase for uid, phase in self._told.items() if uid in uids}

    def _tell(self, reason: str, owner: ObjectReference | None, note: str) -> None:
        if owner is not None:
            self._announcer.tell(reason, owner, note)
