# SPDX-License-Identifier: Apache-2.0
"""The share of the reasons is measured for pods and gangs that stay pending, and is 0 if no pod does."""

import pytest

from bench.objects import group, node, pod, state_of
from bench.reasons import shares
from tests.clusters import GPU


@pytest.mark.parametrize(("gpus", "pending"), [(1, 0), (9, 3)])
def test_shares_of_a_small_cluster(gpus: int, pending: int) -> None:
    members = [pod(f"g-{i}", {GPU: gpus}, gang="g") for i in range(2)]
    state = state_of([node("n", {GPU: 8}), pod("p", {GPU: gpus}), group("g", 2), *members])
    found, plan = shares(state, 2)
    assert len(plan.pending) == pending
    assert [share > 0 for share in found] == [pending > 0] * 2
