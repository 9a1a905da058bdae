# SPDX-License-Identifier: Apache-2.0
"""All rows that the end-to-end test shows to autoscalers, and what has no row, with the cause.

`SHOWN` lists each place of the code that decides a reason: the calls of `Gate`, and the reasons that other functions
name. For each place it has the name of a row, or a text why an API server cannot hold such a row.
"""

from collections.abc import Mapping

from tests.autoscalers.error_rows import errors, undecided
from tests.autoscalers.gate_rows import blocked, gated, holding
from tests.autoscalers.rows import Row, helpless, not_ready, unschedulable, waiting

ROWS: list[Row] = [
    *unschedulable(),
    *not_ready(),
    *gated(),
    *waiting(),
    *holding(),
    *undecided(),
    *helpless(),
    *errors(),
]
LATE: list[Row] = [blocked()]
"""Rows of pods that are created once the others have their reasons."""
A_FAULT_OF_KOORDPY = "not live: only a fault of koordpy causes it"
MANY = "not live: it needs more than 1,000 objects in the API server"
SHOWN: Mapping[str, tuple[str, ...]] = {
    "gangs/unit_gates.py:gate": (
        "no-group",
        MANY,
        "terms",
        "suspended",
        "lacks-members",
        "only-waiting",
        "setting",
    ),
    "gangs/unit_gates.py:_together": ("not live: it needs the definition of Volcano's PodGroup, with minTaskMember",),
    "gangs/unit_gates.py:_unserved": ("not live: the API server drops these fields of a PodGroup without alpha gates",),
    "gangs/unit_gates.py:_mixed": ("mixed",),
    "gangs/unit_gates.py:_unknown_layer": ("layer",),
    "attempts/filter_errors.py:find_error": ("selector",),
    "attempts/resources_gate.py:check_min_resources": ("min-resources",),
    "attempts/unit_attempt.py:find_gate": ("not live: the next round plans the gang again, so that no state has it",),
    "attempts/unit_attempt.py:place_members": (MANY,),
    "attempts/unit_attempt.py:protect_nominations": ("blocked",),
    "devices/ascend/jobs/npu_unit_planner.py:npu_gate": ("chips", "npu-parts"),
    "attempts/reason_rules.py:_decide": (
        A_FAULT_OF_KOORDPY,
        "more-than-core",
        "volume",
        "ending",
        "quota",
        "spare",
        "undecided",
        "by-name",
    ),
    "attempts/reason_rules.py:_without_cause": ("full", "request-failed", "request"),
    "report/pending_messages.py:pending_pods": ("more-than-core",),
    "engine/dispatch.py:_defer": ("not live: the search ends, and then the unit has another reason",),
    "engine/evictions/evictor.py:__init__": ("victim",),
    "engine/unschedulable.py:not_bound": ("binding",),
    "engine/unschedulable.py:planner_failed": (A_FAULT_OF_KOORDPY,),
}
""""MODULE:FUNCTION" -> for each place in the function, in the order of the lines, a row or a text with the cause."""
