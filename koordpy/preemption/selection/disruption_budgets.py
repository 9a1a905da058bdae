# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets in a search for victims: which pods each covers, and how many evictions each still allows.

Source: preemption.md 3.5. The status of a budget says how many disruptions it allows. Evictions of the same round
reduce that number, and placements of covered pods raise it again, but never above the status.
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
    """An index of budgets: finds the budgets that cover a pod without matching every selector.

    A budget is indexed by its namespace and one of its matchLabels; by its namespace alone if it has none. Results are
    positions in the list of budgets.
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
        """Returns the positions of the budgets with a selector that matches a pod, ascending."""
        found = list(self._others.get(pod.namespace, ()))
        for key, value in pod.pod.metadata.labels.items() if self._by_label else ():
            found += self._by_label.get((pod.namespace, key, value), ())
        return [b for b in sorted(found) if protects(self._budgets[b], pod)]

    def budgets_of(self, pod: PodInfo) -> tuple[int, ...]:
        """Returns the positions of the budgets that the pod's eviction counts against.

        A budget with the pod in status.disruptedPods is left out, because its status has already counted that eviction.
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
    """Returns how many evictions each budget allows: by its status, else by its minAvailable or maxUnavailable.

    running: bound pods that are not terminating.
    """
    numbers = Counter[int]()
    if any(one.status.disruptions_allowed is None for one in budgets):
        index = BudgetCover(budgets)
        for pod in running:
            numbers.update(index.protecting(pod))
    return [_allowance(one, numbers[b]) for b, one in enumerate(budgets)]


def _allowance(budget: PodDisruptionBudget, number: int) -> int:
    """Returns how many evictions a budget allows, at least 0. number: running pods that it covers.

    Without status, minAvailable and maxUnavailable, one pod must stay.
    """
    stated = budget.status.disruptions_allowed
    if stated is not None:
        return max(0, stated)
    if budget.spec.max_unavailable is not None:
        return max(0, amount(budget.spec.max_unavailable, number))
    if budget.spec.min_available is not None:
        return max(0, number - amount(budget.spec.min_available, number))
    return max(0, number - 1)


def standing_budgets(snapshot: Snapshot) -> tuple[Budget, ...]:
    """Returns the budgets of a snapshot that have a selector, with the evictions that each allows before the round."""
    budgets = [one for one in snapshot.budgets if selects(one)]
    running = (pod for pod in snapshot.pods.values() if pod.bound and not pod.pod.metadata.deletion_timestamp)
    return tuple(map(Budget, budgets, allowances(budgets, running)))


def budgets_of(draft: Draft) -> tuple[Budget, ...]:
    """Returns the budgets with the evictions that each still allows on a draft (`BudgetsLeft.on`)."""
    return BudgetsLeft(draft.snapshot).on(draft)


class BudgetsLeft:
    """The budgets of a snapshot, with the evictions that each still allows on a draft of it.

    Which budgets cover a pod is cached, because one search asks for many drafts.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._pods = snapshot.pods
        self._standing = standing_budgets(snapshot)
        self._index = BudgetCover([one.budget for one in self._standing])
        self._leaving: dict[str, tuple[int, ...]] = {}
        self._coming: dict[str, list[int]] = {}

    def on(self, draft: Draft) -> tuple[Budget, ...]:
        """Returns the budgets with the evictions that each still allows on a draft.

        Evictions of covered pods reduce the number. Placements of covered pods replace evicted ones, so they raise it
        again, but never above its value before the round.
        """
        known = self._standing
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
        """Returns the positions of the budgets that a pod's eviction counts against (`BudgetCover.budgets_of`)."""
        found = self._leaving.get(pod.key)
        if found is None:
            found = self._leaving[pod.key] = self._index.budgets_of(pod)
        return found


def forbid(budgets: Sequence[Budget], victims: Iterable[PodInfo]) -> bool:
    """Returns True if the eviction API would reject some of these pods, evicted together.

    It rejects pods beyond what a budget allows, and every pod with an eviction that counts against several budgets.
    """
    index = BudgetCover([one.budget for one in budgets])
    counting = [index.budgets_of(pod) for pod in victims]
    counts = Counter(chain.from_iterable(counting))
    return any(len(some) > 1 for some in counting) or any(n > budgets[b].allowed for b, n in counts.items())
