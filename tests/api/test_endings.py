# SPDX-License-Identifier: Apache-2.0
"""Which finished pods have succeeded, as far as they tell themselves (gang-network.md 2.4)."""

from typing import Any

import pytest
from msgspec import convert

from koordpy.api.objects import Pod
from koordpy.api.pod_endings import is_success

DELETED = {"deletionTimestamp": "2026-01-01T00:01:30Z", "deletionGracePeriodSeconds": 30}
"""Asked for at 00:01:00."""
CLEANED = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}
"""A finished pod is deleted without grace."""


def disrupted(status: str = "True", at: str | None = None) -> dict[str, Any]:
    return {"type": "DisruptionTarget", "status": status, "lastTransitionTime": at and f"2026-01-01T00:{at}Z"}


def ended(
    *ends: str, phase: str = "Succeeded", policy: str = "Never", conditions: Any = (), sidecar: str = "", **meta: Any
) -> Pod:
    """A pod whose containers ended at these times (minute:second)."""

    def state(at: str) -> dict[str, Any]:
        return {"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": f"2026-01-01T00:{at}Z"}}}

    status = {"phase": phase, "conditions": list(conditions), "containerStatuses": [state(at) for at in ends]}
    if sidecar:
        status["initContainerStatuses"] = [state(sidecar)]
    return convert({"metadata": meta, "spec": {"restartPolicy": policy}, "status": status}, Pod)


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
@pytest.mark.parametrize(
    ("says", "success"),
    [
        ({"ends": ["00:50"]}, True),
        ({"ends": []}, True),
        ({"ends": ["00:50"], "phase": "Failed"}, False),
        ({"ends": ["00:50"], "phase": "Running"}, False),
        # deleted while it ran
        ({"ends": ["01:05"], **DELETED}, False),
        ({"ends": ["01:00"], **DELETED}, False),
        ({"ends": [], **DELETED}, False),
        ({"ends": ["00:50", "01:05"], **DELETED}, False),
        # deleted afterwards: by a clean-up, a drain, an owner that is gone
        ({"ends": ["00:59"], **DELETED}, True),
        ({"ends": ["00:50"], **CLEANED}, True),
        ({"ends": ["00:50"], "deletionTimestamp": CLEANED["deletionTimestamp"]}, True),
        ({"ends": ["00:50"], "sidecar": "01:05", **DELETED}, True),
        # evicted, whoever did so; the deletion may not be seen yet
        ({"ends": ["01:05"], "conditions": [disrupted()]}, False),
        ({"ends": ["01:05"], "conditions": [disrupted(at="01:00")]}, False),
        ({"ends": ["01:00"], "conditions": [disrupted(at="01:00")]}, False),
        ({"ends": ["00:50"], "conditions": [disrupted()]}, False),
        ({"ends": [], "conditions": [disrupted(at="01:00")]}, False),
        ({"ends": ["01:05"], "conditions": [disrupted(at="01:00")], **DELETED}, False),
        # finished long before its node was drained
        ({"ends": ["00:50"], "conditions": [disrupted(at="01:00")], **CLEANED}, True),
        # an eviction that did not come to pass
        ({"ends": ["01:05"], "conditions": [disrupted("False")]}, True),
    ],
)
def test_a_pod_has_succeeded_unless_an_eviction_ended_it(says: dict[str, Any], success: bool, policy: str) -> None:
    others = {name: value for name, value in says.items() if name != "ends"}
    assert is_success(ended(*says["ends"], policy=policy, **others)) is success


@pytest.mark.parametrize(("deleted", "success"), [(DELETED, False), (CLEANED, False), ({}, True)])
def test_a_pod_that_is_always_restarted_ends_by_its_deletion_alone(deleted: dict[str, Any], success: bool) -> None:
    assert is_success(ended("00:50", policy="Always", **deleted)) is success
