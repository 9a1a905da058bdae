# SPDX-License-Identifier: Apache-2.0
"""The rows that the end-to-end test shows to autoscalers have every reason that a stable state of objects can have."""

from koordpy.plan.pending_reason import Reason
from tests.autoscalers.rows import GATED, ROWS


def test_every_reason_has_a_row() -> None:
    reasons = {row.reason for row in ROWS}
    assert reasons == {*Reason, GATED} - {Reason.UNDETERMINED, Reason.NEVER_FITS}
    pods = [name for row in ROWS for name in row.pending]
    assert len(set(pods)) == len(pods)
