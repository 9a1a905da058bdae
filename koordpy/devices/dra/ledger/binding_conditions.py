# SPDX-License-Identifier: Apache-2.0
"""Binding conditions of allocated devices (dra.md 7, 12).

A ResourceSlice may name binding conditions of a device. The driver, or a controller of the fabric, sets them in the
claim's `status.devices`. A device is ready when all of them are True. It has failed if a failure condition is True.
"""

from koordpy.api.claim_objects import AllocatedDevice, DeviceResult, ResourceClaim
from koordpy.api.objects import Condition, condition_of
from koordpy.api.times import seconds


def _state(claim: ResourceClaim, result: DeviceResult) -> AllocatedDevice | None:
    """Returns the state of an allocated device as its driver reports it; None for no report."""
    wanted = result.driver, result.pool, result.device
    return next((one for one in claim.status.devices if (one.driver, one.pool, one.device) == wanted), None)


def failed_condition(claim: ResourceClaim) -> Condition | None:
    """Returns the first failure condition that is True of a claim's allocated devices; None for none."""
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        state = _state(claim, result) if result.binding_conditions else None
        for name in result.binding_failure_conditions if state is not None else ():
            found = condition_of(state.conditions, name) if state is not None else None
            if found is not None and found.status == "True":
                return found
    return None


def is_ready(claim: ResourceClaim) -> bool:
    """Returns whether a claim is allocated, and all binding conditions of its devices are True."""
    allocation = claim.status.allocation
    if allocation is None:
        return False
    for result in allocation.devices.results:
        state = _state(claim, result)
        conditions = state.conditions if state is not None else ()
        found = (condition_of(conditions, name) for name in result.binding_conditions)
        if not all(one is not None and one.status == "True" for one in found):
            return False
    return True


def is_given_up(claim: ResourceClaim, now: float, timeout: float) -> bool:
    """Returns whether the devices of a claim have failed, or are not ready `timeout` seconds after their allocation.

    now: seconds since the epoch.
    """
    if failed_condition(claim) is not None:
        return True
    allocation = claim.status.allocation
    if allocation is None or not allocation.allocation_timestamp:
        return False
    return now - seconds(allocation.allocation_timestamp) > timeout and not is_ready(claim)
