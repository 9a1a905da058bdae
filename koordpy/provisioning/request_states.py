# SPDX-License-Identifier: Apache-2.0
"""Computes the state of a unit's ProvisioningRequests, and which of them must be deleted (repair.md 3.3).

The state is a pure function of the existing requests, of the nodes that the unit asks for now, and of the time.
cluster-autoscaler sets the conditions of requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from koordpy.api import keys
from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.api.objects import Condition
from koordpy.api.times import seconds
from koordpy.config.node_failures import Provisioning
from koordpy.plan.wanted_nodes import WantedNodes

PROVISIONED, FAILED, REVOKED, EXPIRED = "Provisioned", "Failed", "CapacityRevoked", "BookingExpired"
CONSUMED = "CapacityBookingConsumed"
"""Reason of the condition BookingExpired if the pods used the booked capacity. This is not a failure."""


class RequestPhase(StrEnum):
    """State of a unit's requests, as in `provisioning[].state` of a simulation."""

    WANTED = "Wanted"
    """A request must be created."""
    QUEUED = "Queued"
    """A request will be created when fewer requests are open."""
    OPEN = "Open"
    """The request exists, and the autoscaler has not decided it yet."""
    PROVISIONED = "Provisioned"
    """The nodes of the request exist."""
    BACK_OFF = "BackOff"
    """The last request failed; the next one is created after a pause."""
    GIVEN_UP = "GivenUp"
    """The request of the last allowed attempt failed. It is kept, and no further request is created."""


@dataclass(frozen=True, slots=True)
class RequestState:
    """The state of one unit's requests."""

    phase: RequestPhase
    attempt: int
    """Number of the attempt, from 1: of the existing request; for WANTED and QUEUED, of the request to create."""
    request: ProvisioningRequest | None = None
    """The current request; None for WANTED and QUEUED."""
    delete: tuple[ProvisioningRequest, ...] = ()
    """Requests to delete: earlier attempts, and requests for other numbers of pods. For WANTED also the failed request;
    it is deleted only after the next one was created."""


def unit_of(request: ProvisioningRequest) -> str:
    """Returns the title of a request's unit, the names of its gangs; empty if koordpy did not create the request."""
    return request.metadata.annotations.get(keys.PROVISIONING_FOR, "")


def attempt_of(request: ProvisioningRequest) -> int:
    """Returns the number of a request's attempt, from 1; 1 if its annotation is invalid."""
    text = request.metadata.annotations.get(keys.PROVISIONING_ATTEMPT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0 else 1


def has_valid_attempt(request: ProvisioningRequest) -> bool:
    """Returns True if the annotation with the number of the attempt is valid."""
    return str(attempt_of(request)) == request.metadata.annotations.get(keys.PROVISIONING_ATTEMPT, "")


def is_provisioned(request: ProvisioningRequest, settings: Provisioning, now: float) -> bool:
    """Returns True if the nodes of a request exist, and its booking has not failed or expired."""
    return _true(request, PROVISIONED) is not None and failure_time(request, settings, now) is None


def is_open(request: ProvisioningRequest) -> bool:
    """Returns True for a request that is neither Provisioned nor Failed, and so counts for `maxOpen`."""
    return _true(request, PROVISIONED) is None and _true(request, FAILED) is None


def failure(request: ProvisioningRequest) -> Condition | None:
    """Returns the condition that says that a request failed; None if it did not fail, or if only its booking ended."""
    for type in (FAILED, REVOKED, EXPIRED):
        found = _true(request, type)
        if found is not None and not (type == EXPIRED and found.reason == CONSUMED):
            return found
    return None


def failure_time(request: ProvisioningRequest, settings: Provisioning, now: float) -> float | None:
    """Returns when a request failed, in seconds since 1970; None if it has not failed."""
    provisioned = _true(request, PROVISIONED)
    booked = _booked_until(provisioned, settings) if provisioned is not None else None
    if (failed := failure(request)) is not None:
        return seconds(failed.last_transition_time) or booked or 0.0
    return booked if booked is not None and booked <= now else None


def pause_seconds(attempt: int, settings: Provisioning) -> float:
    """Returns the pause after the failure of an attempt: the back-off, doubled with each attempt."""
    return min(settings.backoff * 2.0 ** min(attempt - 1, 64), settings.max_backoff)


def newest_first(requests: Iterable[ProvisioningRequest]) -> list[ProvisioningRequest]:
    """Returns the requests of one unit, the highest attempt first."""
    return sorted(requests, key=lambda one: (-attempt_of(one), one.metadata.name))


def state_of(
    wanted: WantedNodes, requests: Sequence[ProvisioningRequest], settings: Provisioning, now: float
) -> RequestState:
    """Returns the state of a unit that asks for nodes. requests: all requests of the unit. QUEUED is never returned,
    because it depends on other units (`provisioning_report.states_of`)."""
    ordered = newest_first(requests)
    if not ordered:
        return RequestState(RequestPhase.WANTED, 1)
    last, earlier = ordered[0], tuple(ordered[1:])
    attempt = attempt_of(last)
    if tuple(one.count for one in last.spec.pod_sets) != wanted.counts:
        return RequestState(RequestPhase.WANTED, 1, delete=tuple(ordered))
    failed = failure_time(last, settings, now)
    if failed is None:
        phase = RequestPhase.OPEN if _true(last, PROVISIONED) is None else RequestPhase.PROVISIONED
        return RequestState(phase, attempt, last, earlier)
    if attempt > settings.retries:
        return RequestState(RequestPhase.GIVEN_UP, attempt, last, earlier)
    if now < failed + pause_seconds(attempt, settings):
        return RequestState(RequestPhase.BACK_OFF, attempt, last, earlier)
    return RequestState(RequestPhase.WANTED, attempt + 1, delete=tuple(ordered))


def _booked_until(provisioned: Condition, settings: Provisioning) -> float | None:
    """Returns the end of a booking, in seconds since 1970; None if its start is not known. provisioned: the condition
    Provisioned; the booking starts at its transition."""
    since = seconds(provisioned.last_transition_time)
    return since + settings.booking_time if since else None


def _true(request: ProvisioningRequest, type: str) -> Condition | None:
    return next((one for one in request.status.conditions if one.type == type and one.status == "True"), None)
