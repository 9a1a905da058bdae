"""PodDisruptionBudgets as far as a plan asks: who is covered, and how many evictions each still allows.

Source: preemption.md 3.5. violations = sum over budgets of max(0, victims covered - allowed).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from koordpy.api.objects import IntOrString, PodDisruptionBudget
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.selectors import selector_matches
from koordpy.cluster.snapshot import Draft, Snapshot


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget with what it allows now."""

    budget: PodDisruptionBudget
    allowed: int

    def covers(self, pod: PodInfo) -> bool:
        """Whether an eviction of the pod counts against it."""
        return protects(self.budget, pod) and pod.name not in self.budget.status.disrupted_pods


class Covering:
    """Which of some budgets a pod may be covered by, without asking each: budgets stand under one label that they ask
    for, those that ask for no value of any under their namespace."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._by_label: dict[tuple[str, str, str], list[int]] = {}
        self._others: dict[str, list[int]] = {}
        for number, budget in enumerate(budgets):
            namespace, selector = budget.metadata.namespace, budget.spec.selector
            if selector is not None and selector.match_labels:
                key, value = min(selector.match_labels.items())
                self._by_label.setdefault((namespace, key, value), []).append(number)
            else:
                self._others.setdefault(namespace, []).append(number)

    def may(self, pod: PodInfo) -> list[int]:
        """Numbers of the budgets, in order, beside which no other can speak of a pod."""
        found = list(self._others.get(pod.namespace, ()))
        for key, value in pod.pod.metadata.labels.items() if self._by_label else ():
            found += self._by_label.get((pod.namespace, key, value), ())
        return sorted(found)


def coverage(budgets: Sequence[Budget]) -> Callable[[PodInfo], tuple[int, ...]]:
    """A function from a pod to the numbers of the budgets that its eviction counts against."""
    index = Covering(one.budget for one in budgets)
    return lambda pod: tuple(b for b in index.may(pod) if budgets[b].covers(pod))


def selects(budget: PodDisruptionBudget) -> bool:
    """Whether it has a selector; an empty or missing one speaks of no pod."""
    selector = budget.spec.selector
    return selector is not None and bool(selector.match_labels or selector.match_expressions)


def protects(budget: PodDisruptionBudget, pod: PodInfo) -> bool:
    """Whether the selector speaks of a pod of the budget's namespace."""
    if not selects(budget) or pod.namespace != budget.metadata.namespace:
        return False
    return selector_matches(budget.spec.selector, pod.pod.metadata.labels)


def amount(raw: IntOrString, of: int) -> int:
    """A number, or a percentage of so many pods, rounded up; an unreadable one is 0."""
    text = str(raw).strip()
    try:
        return -(-of * int(text[:-1]) // 100) if text.endswith("%") else int(text)
    except ValueError:
        return 0


def allowances(budgets: Sequence[PodDisruptionBudget], running: Iterable[PodInfo]) -> list[int]:
    """Per budget what its status says, else what minAvailable or maxUnavailable leave of the running pods."""
    numbers = Counter[int]()
    if any(one.status.disruptions_allowed is None for one in budgets):
        index = Covering(budgets)
        for pod in running:
            numbers.update(b for b in index.may(pod) if protects(budgets[b], pod))
    return [_allowance(one, numbers[b]) for b, one in enumerate(budgets)]


def _allowance(budget: PodDisruptionBudget, number: int) -> int:
    """number: running pods that it protects. Never below 0."""
    stated = budget.status.disruptions_allowed
    if stated is not None:
        return max(0, stated)
    if budget.spec.max_unavailable is not None:
        return max(0, amount(budget.spec.max_unavailable, number))
    if budget.spec.min_available is not None:
        return max(0, number - amount(budget.spec.min_available, number))
    return max(0, number - 1)


def standing_budgets(snapshot: Snapshot) -> tuple[Budget, ...]:
    """The budgets of a snapshot that protect anyone, with what each allows before anything is planned."""
    budgets = [one for one in snapshot.budgets if selects(one)]
    running = (pod for pod in snapshot.pods.values() if pod.bound and not pod.pod.metadata.deletion_timestamp)
    return tuple(map(Budget, budgets, allowances(budgets, running)))


def budgets_of(draft: Draft, standing: Sequence[Budget] | None = None) -> tuple[Budget, ...]:
    """The same on a draft: less what it evicts, more what it binds, never above the start."""
    return BudgetsLeft(draft.snapshot, standing).on(draft)


class BudgetsLeft:
    """The budgets of a snapshot as its drafts leave them. Which of them speak of a pod is read once."""

    def __init__(self, snapshot: Snapshot, standing: Sequence[Budget] | None = None) -> None:
        self._pods = snapshot.pods
        self._standing = tuple(standing_budgets(snapshot) if standing is None else standing)
        self._covers, self._index = coverage(self._standing), Covering(one.budget for one in self._standing)
        self._leaving: dict[str, tuple[int, ...]] = {}
        self._coming: dict[str, tuple[int, ...]] = {}

    def on(self, draft: Draft) -> tuple[Budget, ...]:
        """The budgets with what each still allows."""
        known = self._standing
        if not known or not draft.evicted:
            return known
        gone, come = Counter[int](), Counter[int]()
        for pod in draft.evicted.values():
            for b in self._left_by(pod):
                gone[b] += 1
        for key in draft.placed if gone else ():
            for b in self._joined_by(key):
                come[b] += 1
        return tuple(
            Budget(one.budget, max(0, min(one.allowed, one.allowed - gone[b] + come[b]))) if b in gone else one
            for b, one in enumerate(known)
        )

    def covers(self, pod: PodInfo, some: frozenset[int]) -> bool:
        """Whether one of some budgets, by number, counts a pod's eviction."""
        return not some.isdisjoint(self._left_by(pod))

    def several(self, pod: PodInfo) -> bool:
        """Whether more than one budget counts a pod's eviction: the eviction API refuses it."""
        return len(self._left_by(pod)) > 1

    def _left_by(self, pod: PodInfo) -> tuple[int, ...]:
        found = self._leaving.get(pod.key)
        if found is None:
            found = self._leaving[pod.key] = self._covers(pod)
        return found

    def _joined_by(self, key: str) -> tuple[int, ...]:
        found = self._coming.get(key)
        if found is None:
            pod = self._pods[key]
            found = tuple(b for b in self._index.may(pod) if protects(self._standing[b].budget, pod))
            self._coming[key] = found
        return found


def forbid(budgets: Sequence[Budget], victims: Iterable[PodInfo]) -> bool:
    """Whether the eviction API would refuse some of these pods, evicted together: it evicts nobody whom more than one
    budget covers."""
    victims, covers = list(victims), coverage(budgets)
    return bool(violations(budgets, victims)) or any(len(covers(pod)) > 1 for pod in victims)


def violations(budgets: Sequence[Budget], victims: Iterable[PodInfo]) -> int:
    """Cost level 1 of evicting some pods together."""
    covers = coverage(budgets)
    counted = Counter(b for pod in victims for b in covers(pod))
    return sum(max(0, number - budgets[b].allowed) for b, number in counted.items())
