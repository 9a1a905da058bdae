# SPDX-License-Identifier: Apache-2.0
"""The reading of cluster-autoscaler, by examples that follow its source line by line, and every reason of koordpy."""

from typing import Any

import pytest

from koordpy.api import keys
from koordpy.plan.pending_reason import Reason, written
from tests.autoscalers.cluster_autoscaler import CONSUMES, DAEMON, Flags, Json, Sorted, adds_nodes, injected, sort

OURS = keys.DEFAULT_SCHEDULER_NAME
BYPASSED = Flags(bypassed_scheduler_names=frozenset({OURS}))
REQUESTS = Flags(enable_provisioning_requests=True)


def pod(reason: str | None = "Unschedulable", *, status: str = "False", **more: Any) -> Json:
    """A pod of koordpy. reason: of its condition; None for no condition."""
    conditions = [] if reason is None else [{"type": "PodScheduled", "status": status, "reason": reason}]
    made: Json = {
        "metadata": {"name": "p", **more.pop("meta", {})},
        "spec": {"schedulerName": OURS, **more.pop("spec", {})},
        "status": {"phase": "Pending", "conditions": conditions, **more},
    }
    return made


def owned(kind: str, uid: str = "u", *, controller: bool = True) -> Json:
    return {"ownerReferences": [{"kind": kind, "name": "o", "uid": uid, "controller": controller}]}


def notes(key: str, value: str = "x") -> Json:
    return {"annotations": {key: value}}


EXAMPLES: list[tuple[str, Json, Flags, Sorted]] = [
    ("reason Unschedulable", pod(), Flags(), Sorted.UNSCHEDULABLE),
    ("another reason", pod("QuotaExceeded"), Flags(), Sorted.IGNORED),
    ("a reason that only begins so", pod("UnschedulableByQuota"), Flags(), Sorted.IGNORED),
    ("reason Unschedulable of a condition that is not False", pod(status="Unknown"), Flags(), Sorted.IGNORED),
    ("no condition", pod(None), Flags(), Sorted.IGNORED),
    ("no condition, bypassed", pod(None), BYPASSED, Sorted.UNPROCESSED),
    ("False without a reason, bypassed", pod(""), BYPASSED, Sorted.UNPROCESSED),
    ("True without a reason, bypassed", pod("", status="True"), BYPASSED, Sorted.IGNORED),
    ("another reason, bypassed", pod("NotReadyForScheduling"), BYPASSED, Sorted.IGNORED),
    ("scheduling gates, bypassed", pod("SchedulingGated"), BYPASSED, Sorted.IGNORED),
    ("reason Unschedulable, bypassed", pod(), BYPASSED, Sorted.UNSCHEDULABLE),
    (
        "another scheduler is bypassed",
        pod(None),
        Flags(bypassed_scheduler_names=frozenset({"other"})),
        Sorted.IGNORED,
    ),
    ("not allowed", pod(), Flags(allowed_scheduler_names=frozenset({"other"})), Sorted.FOREIGN),
    ("allowed", pod(), Flags(allowed_scheduler_names=frozenset({"other", OURS})), Sorted.UNSCHEDULABLE),
    ("bound", pod(spec={"nodeName": "n"}), Flags(), Sorted.SCHEDULED),
    ("bound and deleted", pod(spec={"nodeName": "n"}, meta={"deletionTimestamp": "t"}), Flags(), Sorted.SCHEDULED),
    ("deleted", pod(meta={"deletionTimestamp": "t"}), Flags(), Sorted.DELETED),
    ("nominated", pod(nominatedNodeName="n"), Flags(), Sorted.NOMINATED),
    ("nominated, bypassed", pod(None, nominatedNodeName="n"), BYPASSED, Sorted.NOMINATED),
    ("failed", pod(phase="Failed"), Flags(), Sorted.FOREIGN),
    ("succeeded", pod(phase="Succeeded"), Flags(), Sorted.FOREIGN),
]


@pytest.mark.parametrize(("one", "flags", "found"), [row[1:] for row in EXAMPLES], ids=[row[0] for row in EXAMPLES])
def test_pods_are_sorted_as_its_source_says(one: Json, flags: Flags, found: Sorted) -> None:
    assert sort(one, flags) is found
    assert adds_nodes(one, flags) == (found in (Sorted.UNSCHEDULABLE, Sorted.UNPROCESSED))


@pytest.mark.parametrize(
    ("one", "flags", "adds"),
    [
        (pod(spec={"priority": -11}), Flags(), False),
        (pod(spec={"priority": -10}), Flags(), True),
        (pod(meta=notes(CONSUMES[0])), REQUESTS, False),
        (pod(meta=notes(CONSUMES[1])), REQUESTS, False),
        (pod(meta=notes(CONSUMES[0])), Flags(), True),
        (pod(meta=owned("DaemonSet")), Flags(), False),
        (pod(meta=owned("DaemonSet", controller=False)), Flags(), True),
        (pod(meta=owned("Job")), Flags(), True),
        (pod(meta=notes(DAEMON, "true")), Flags(), False),
        (pod(meta=notes(DAEMON, "false")), Flags(), True),
    ],
)
def test_unschedulable_pods_that_get_no_nodes(one: Json, flags: Flags, adds: bool) -> None:
    assert sort(one, flags) is Sorted.UNSCHEDULABLE
    assert adds_nodes(one, flags) is adds


def test_bypassed_schedulers_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="subset"):
        Flags(bypassed_scheduler_names=frozenset({OURS}), allowed_scheduler_names=frozenset({"other"}))


def test_copies_of_pods_are_added_for_a_controller_with_some_pods() -> None:
    held = [pod("QuotaExceeded", meta=owned("Job"))] * 2
    assert injected(held, {"u": 4}, Flags()) == {}, "no pod of the controller is counted"
    live = pod(spec={"nodeName": "n"}, meta=owned("Job"))
    assert injected([live, live, *held], {"u": 4}, Flags()) == {"u": 2}
    gated, lacking = pod("SchedulingGated", meta=owned("Job")), pod(meta=owned("Job"))
    assert injected([live, live, gated, lacking], {"u": 4}, Flags()) == {}
    assert injected([live], {"v": 4}, Flags()) == {}


@pytest.mark.parametrize("reason", Reason)
def test_nodes_are_added_for_one_reason_of_koordpy_alone(reason: Reason) -> None:
    for flags in (Flags(), BYPASSED, REQUESTS):
        assert adds_nodes(pod(written(reason, "honest")), flags) == (reason is Reason.UNSCHEDULABLE)
    errors = (Reason.SCHEDULER_ERROR, Reason.JOB_VALIDATE_FAILED)
    assert adds_nodes(pod(written(reason, "upstream")), Flags()) == (reason not in errors)
