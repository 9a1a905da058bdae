# SPDX-License-Identifier: Apache-2.0
"""Updates status.disruptionsAllowed of PodDisruptionBudgets in a simulation, where no disruption controller runs.

The number decreases with each evicted pod that a budget covers. It increases with each bound pod that the budget
covers, up to the initial number. Source: preemption.md 3.5.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from koordpy.api.objects import PodDisruptionBudget
from koordpy.cache.cluster_state import ClusterState
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.disruption_budgets import BudgetCover, allowances


class BudgetLedger:
    """Writes status.disruptionsAllowed of all budgets to the state (cache), at the start of a run and after each
    round."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        # the initial numbers are computed, because the status in a manifest may be absent or outdated
        running = (pod for pod in state.pods() if pod.bound and not pod.pod.metadata.deletion_timestamp)
        budgets = list(state.disruption_budgets())
        self._start = list(zip(budgets, allowances(budgets, running), strict=True))
        self._now = [allowed for _, allowed in self._start]
        self._write()

    def changed(self, *, gone: Sequence[PodInfo], come: Sequence[PodInfo]) -> None:
        """Updates the allowed disruptions. gone: pods that a round evicted; come: pods that the round bound."""
        if not gone and not come:
            return
        # more: position of a budget -> change of its allowed disruptions
        index, more = BudgetCover([one for one, _ in self._start]), Counter[int]()
        for pod in gone:
            more.subtract(index.budgets_of(pod))
        for pod in come:
            more.update(index.protecting(pod))
        for b, number in more.items():
            self._now[b] = max(0, min(self._start[b][1], self._now[b] + number))
        self._write()

    def _write(self) -> None:
        for (one, _), allowed in zip(self._start, self._now, strict=True):
            status = replace(one.status, disruptions_allowed=allowed)
            changed: PodDisruptionBudget = replace(one, status=status)
            self._state.upsert(changed)
