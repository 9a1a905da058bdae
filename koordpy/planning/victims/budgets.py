"""PodDisruptionBudgets as far as a plan asks: who is covered, and how many evictions each still allows.

Source: preemption.md 3.5. violations = sum over budgets of max(0, victims covered - allowed).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koordpy.api.objects import IntOrString, PodDisruptionBudget
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.selectors import selector_matches
from koordpy.cluster.snapshot import Draft


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget with what it allows now."""

    budget: PodDisruptionBudget
    allowed: int

    def covers(self, pod: PodInfo) -> bool:
        """Whether an eviction of the pod counts against it."""
        return protects(self.budget, pod) and pod.name not in self.budget.status.disrupted_pods


def protects(budget: PodDisruptionBudget, pod: PodInfo) -> bool:
    """Whether the selector speaks of a pod of the budget's namespace; an empty or missing one of none."""
    selector = budget.spec.selector
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return False
    return pod.namespace == budget.metadata.namespace and selector_matches(selector, pod.pod.metadata.labels)


def amount(raw: IntOrString, of: int) -> int:
    """A number, or a percentage of so many pods, rounded up; an unreadable one is 0."""
    text = str(raw).strip()
    try:
        return -(-of * int(text[:-1]) // 100) if text.endswith("%") else int(text)
    except ValueError:
        return 0


def allowance(budget: PodDisruptionBudget, running: Iterable[PodInfo]) -> int:
    """What the status says, else what minAvailable or maxUnavailable leave of the running pods; never below 0."""
    stated = budget.status.disruptions_allowed
    if stated is not None:
        return max(0, stated)
    number = sum(protects(budget, pod) for pod in running)
    if budget.spec.max_unavailable is not None:
        return max(0, amount(budget.spec.max_unavailable, number))
    if budget.spec.min_available is not None:
        return max(0, number - amount(budget.spec.min_available, number))
    return max(0, number - 1)


def budgets_of(draft: Draft) -> tuple[Budget, ...]:
    """The budgets that protect anyone, on a draft: less what it evicts, more what it binds, never above the start."""
    snapshot = draft.snapshot
    if not snapshot.budgets:
        return ()
    running = [pod for pod in snapshot.pods.values() if pod.bound and not pod.pod.metadata.deletion_timestamp]
    out = []
    for one in snapshot.budgets:
        if one.spec.selector is None or not (one.spec.selector.match_labels or one.spec.selector.match_expressions):
            continue
        start = allowance(one, running)
        known = Budget(one, start)
        gone = sum(known.covers(pod) for pod in draft.evicted.values())
        come = sum(protects(one, snapshot.pods[key]) for key in draft.placed) if gone else 0
        out.append(Budget(one, max(0, min(start, start - gone + come))))
    return tuple(out)


def violations(budgets: Sequence[Budget], victims: Iterable[PodInfo]) -> int:
    """Cost level 1 of evicting some pods together."""
    pods = tuple(victims)
    return sum(max(0, sum(budget.covers(pod) for pod in pods) - budget.allowed) for budget in budgets)
