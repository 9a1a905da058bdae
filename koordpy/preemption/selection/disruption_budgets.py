# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets in a search for victims: which pods each covers, and how many more evictions each allows.

Source: docs/rules/preemption.md 3.5. The status of a budget says how many disruptions it allows. Each eviction of the
same round reduces that number. Each placement of a covered pod raises it again, but never above the status.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from koordpy.api.label_selectors import selector_matches
from koordpy.api.objects import IntOrString, PodDisruptionBudget
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget with the number of evictions that it allows now."""

    budget: PodDisruptionBudget
    allowed: int


class BudgetCover:
    """An index of budgets, which finds the budgets of a pod without comparing it with every selector.

    A budget is indexed by its namespace and one of its matchLabels, or by its namespace alone if it has no matchLabels.
    Results are positions in the list of budgets.
    """

    def __init__(self, budgets: Sequence[PodDisruptionBudget]) -> None:
        self._budgets = budgets
        self._by_label: dict[tuple[str, str, str], list[int]] = {}
        self._others: dict[str, list[int]] = {}
        for number, budget in enumerate(budgets):
            namespace, selector = budget.metadata.namespace, budget.spec.selector
            if selector is not None and selector.match_labels:
                key, value = min(selector.match_labels.items())
                self._by_label.setdefault((namespace, key, value), []).append(number)
            else:
                self._others.setdefault(namespace, []).append(number)

    def protecting(self, pod: PodInfo) -> list[int]:
        """Returns the positions, ascending, of the budgets with a selector that matches the pod."""
        found = list(self._others.get(pod.namespace, ()))
        for key, value in pod.pod.metadata.labels.items() if self._by_label else ():
            found += self._by_label.get((pod.namespace, key, value), ())
        return [b for b in sorted(found) if protects(self._budgets[b], pod)]

    def budgets_of(self, pod: PodInfo) -> tuple[int, ...]:
        """Returns the positions of the budgets against which the pod's eviction counts.

        A budget that lists the pod in status.disruptedPods is left out, because its status has counted that eviction
        already.
        """
        return tuple(b for b in self.protecting(pod) if pod.name not in self._budgets[b].status.disrupted_pods)


def selects(budget: PodDisruptionBudget) -> bool:
    """Returns True if the budget has a selector with conditions.

    A missing or empty selector matches no pod, as in kube-scheduler's preemption. The eviction API of policy/v1 instead
    applies an empty selector to all pods of the namespace; koordpy does not model that.
    """
    selector = budget.spec.selector
    return selector is not None and bool(selector.match_labels or selector.match_expressions)


def protects(budget: PodDisruptionBudget, pod: PodInfo) -> bool:
    """Returns True if a budget covers a pod: same namespace, and the selector matches."""
    if not selects(budget) or pod.namespace != budget.metadata.namespace:
        return False
    return selector_matches(budget.spec.selector, pod.pod.metadata.labels)


def amount(raw: IntOrString, of: int) -> int:
    """Returns minAvailable or maxUnavailable as a number of pods.

    A percentage is taken of `of` pods and rounded up. An unreadable text counts as 0.
    """
    text = str(raw).strip()
    try:
        return -(-of * int(text[:-1]) // 100) if text.endswith("%") else int(text)
    except ValueError:
        return 0


def allowances(budgets: Sequence[PodDisruptionBudget], running: Iterable[PodInfo]) -> list[int]:
    """Returns the number of evictions that each budget allows: by its status, else by minAvailable or maxUnavailable.

    running: bound pods that are not terminating.
    """
    numbers = Counter[int]()
    if any(one.status.disruptions_allowed is None for one in budgets):
        index = BudgetCover(budgets)
        for pod in running:
            numbers.update(index.protecting(pod))
    return [_allowance(one, numbers[b]) for b, one in enumerate(budgets)]


def _allowance(budget: PodDisruptionBudget, number: int) -> int:
    """Returns the number of evictions that a budget allows, at least 0. number: running pods that it covers.

    If the budget has no status, minAvailable or maxUnavailable, it allows all evictions but one.
    """
    stated = budget.status.disruptions_allowed
    if stated is not None:
        return max(0, stated)
    if budget.spec.max_unavailable is not None:
        return max(0, amount(budget.spec.max_unavailable, number))
    if budget.spec.min_available is not None:
        return max(0, number - amount(budget.spec.min_available, number))
    return max(0, number - 1)


def snapshot_budgets(snapshot: Snapshot) -> tuple[Budget, ...]:
    """Returns the budgets of a snapshot that have a selector, with the number of evictions that each allows
    initially."""
    budgets = [one for one in snapshot.budgets if selects(one)]
    running = (pod for pod in snapshot.pods.values() if pod.bound and not pod.pod.metadata.deletion_timestamp)
    return tuple(map(Budget, budgets, allowances(budgets, running)))


def budgets_of(draft: Draft) -> tuple[Budget, ...]:
    """Returns the budgets with the number of evictions that each still allows on a draft (`BudgetsLeft.on`)."""
    return BudgetsLeft(draft.snapshot).on(draft)


class BudgetsLeft:
    """The budgets of a snapshot, and how many evictions each still allows on a draft of the snapshot.

    The budgets of each pod are cached, because one search queries them for many drafts.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._pods = snapshot.pods
        self._before = snapshot_budgets(snapshot)
        self._index = BudgetCover([one.budget for one in self._before])
        self._leaving: dict[str, tuple[int, ...]] = {}
        self._coming: dict[str, list[int]] = {}

    def on(self, draft: Draft) -> tuple[Budget, ...]:
        """Returns the budgets with the number of evictions that each still allows on a draft.

        Evictions of covered pods reduce the number. Placements of covered pods replace evicted pods, so they raise it
        again, but never above its initial value.
        """
        known = self._before
        if not known or not draft.evicted:
            return known
        gone, come = Counter[int](), Counter[int]()
        for pod in draft.evicted.values():
            gone.update(self.budgets_of(pod))
        for key in draft.placed if gone else ():
            if key not in self._coming:
                self._coming[key] = self._index.protecting(self._pods[key])
            come.update(self._coming[key])
        return tuple(
            Budget(one.budget, max(0, min(one.allowed, one.allowed - gone[b] + come[b]))) if b in gone else one
            for b, one in enumerate(known)
        )

    def budgets_of(self, pod: PodInfo) -> tuple[int, ...]:
        """Returns the positions of the budgets against which a pod's eviction counts (`BudgetCover.budgets_of`)."""
        found = self._leaving.get(pod.key)
        if found is None:
            found = self._leaving[pod.key] = self._index.budgets_of(pod)
        return found


def forbid(budgets: Sequence[Budget], victims: Iterable[PodInfo]) -> bool:
    """Returns True if the eviction API would reject at least one of these pods, evicted together.

    It rejects evictions beyond the number that a budget allows. It also rejects each pod that several budgets cover.
    """
    index = BudgetCover([one.budget for one in budgets])
    counting = [index.budgets_of(pod) for pod in victims]
    counts = Counter(chain.from_iterable(counting))
    return any(len(some) > 1 for some in counting) or any(n > budgets[b].allowed for b, n in counts.items())
