"""PodDisruptionBudgets as far as a plan asks: who is covered, and how many evictions each still allows.

Source: preemption.md 3.5. violations = sum over budgets of max(0, victims covered - allowed).
"""

from collections.abc import Iterable, Sequence
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


def standing_budgets(snapshot: Snapshot) -> tuple[Budget, ...]:
    """The budgets of a snapshot that protect anyone, with what each allows before anything is planned."""
    if not snapshot.budgets:
        return ()
    running = [pod for pod in snapshot.pods.values() if pod.bound and not pod.pod.metadata.deletion_timestamp]
    return tuple(Budget(one, allowance(one, running)) for one in snapshot.budgets if selects(one))


def budgets_of(draft: Draft, standing: Sequence[Budget] | None = None) -> tuple[Budget, ...]:
    """The same on a draft: less what it evicts, more what it binds, never above the start."""
    snapshot = draft.snapshot
    out = []
    for known in standing_budgets(snapshot) if standing is None else standing:
        gone = sum(known.covers(pod) for pod in draft.evicted.values())
        come = sum(protects(known.budget, snapshot.pods[key]) for key in draft.placed) if gone else 0
        out.append(Budget(known.budget, max(0, min(known.allowed, known.allowed - gone + come))))
    return tuple(out)


def violations(budgets: Sequence[Budget], victims: Iterable[PodInfo]) -> int:
    """Cost level 1 of evicting some pods together."""
    pods = tuple(victims)
    return sum(max(0, sum(budget.covers(pod) for pod in pods) - budget.allowed) for budget in budgets)
