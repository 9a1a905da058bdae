"""One unit of the queue: its pods, its state, its last answer, and the search that it waits for."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from koordpy.engine.wakeups import Wake

LOAD_BYTES = 256
"""Of what a pod says of other pods, compact: as long again costs a round as much as an ordinary pod (a quarter ms)."""


class State(enum.StrEnum):
    """Values are the labels of scheduler_pending_pods, but for in flight ones, which count as active."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    IN_FLIGHT = "inflight"


@dataclass(slots=True)
class QueuedPod:
    """A pending pod in its unit. Times are of the queue's clock."""

    key: str
    uid: str
    added: float
    priority: int
    created: float
    light: bool
    """A plain pod that asks for no accelerator: rounds may take such pods in parts."""
    load: int = 1
    """What it costs a round, by how much it says of other pods; 1 for most."""
    profile: str = ""
    attempts: int = 0
    failures: int = 0
    """How often its Binding failed."""


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """The result of the last attempt that left pods over."""

    at: float = -inf
    """Clock time; -inf before the first."""
    wakes: Wake = Wake.NOTHING
    """Changes of the cluster that could make the unit schedulable."""
    plugins: tuple[str, ...] = ()
    gated: bool = False
    """True if a gate held the unit, and nothing was tried."""
    never: bool = False
    """True if the unit would not fit the empty cluster."""


@dataclass(slots=True)
class PendingSearch:
    """The search that a unit waits for (`search_worker.py`)."""

    since: float
    """When the unit was deferred first."""
    stale_plans: int = 0
    """Plans of earlier searches that did not hold any more when they were made."""
    told: bool = False
    """True if the pods were told that victims are looked for."""


@dataclass(slots=True)
class Entry:
    """One unit of the queue. Times are of the queue's clock."""

    unit: str
    tenant_of: Callable[[str], str] = str
    """Namespace -> tenant."""
    pods: dict[str, QueuedPod] = field(default_factory=dict)
    state: State = State.ACTIVE
    since: float = 0.0
    """When the unit entered its state."""
    due: float = 0.0
    """Not tried before (back-off, or the pace after an attempt)."""
    not_before: float = 0.0
    """The API server wants to be left alone until then (Retry-After), whatever happens."""
    attempts: int = 0
    errors: int = 0
    first_tried: float | None = None
    """When its first try began; None before, and once it was placed."""
    answer: LastAnswer = LastAnswer()
    search: PendingSearch | None = None
    """None while the unit waits for no search."""
    passed_over: float | None = None
    """Since when its tenant has its part of rounds without it; None where it was tried since."""
    looked_again: bool = False
    """It was planned once more, because room came while victims were chosen for it: once only, for in a busy cluster
    room comes all the time."""
    taken: int = 0
    """Pods that the last attempt knew."""
    complete_pods: int = 0
    """Pods with which its gangs have the members that the last attempt found missing; 0 where none was."""
    touched: bool = False
    """The unit itself changed since the attempt under way began."""
    missed: Wake = Wake.NOTHING
    """Changes of the cluster since the attempt under way began, those that were broadcast since the last poll not
    included."""

    @property
    def priority(self) -> int:
        return max((pod.priority for pod in self.pods.values()), default=0)

    @property
    def namespace(self) -> str:
        """That of its first pod."""
        return next(iter(self.pods), "").partition("/")[0]

    @property
    def tenant(self) -> str:
        """The tenant whose part of planning time it takes."""
        return self.tenant_of(self.namespace)

    @property
    def answered(self) -> float:
        """When an attempt last ended with pods left over; -inf before the first."""
        return self.answer.at

    @property
    def created(self) -> float:
        return min((pod.created for pod in self.pods.values()), default=0.0)

    @property
    def light(self) -> bool:
        return all(pod.light for pod in self.pods.values())

    @property
    def load(self) -> int:
        return sum(pod.load for pod in self.pods.values())

    def begin_attempt(self, now: float) -> None:
        """Counts an attempt, which knows the pods of this moment."""
        self.attempts += 1
        self.first_tried = now if self.first_tried is None else self.first_tried
        self.touched, self.missed = False, Wake.NOTHING
        self.taken, self.complete_pods = len(self.pods), 0
        for pod in self.pods.values():
            pod.attempts += 1

    def undo_attempt(self) -> None:
        """The attempt did not decide, and does not count."""
        self.attempts -= 1
        for pod in self.pods.values():
            pod.attempts = max(0, pod.attempts - 1)


def pod_load(affinity: bytes) -> int:
    """What a pod with these terms of pod affinity costs a round: the time grows with their length."""
    return 1 + len(affinity) // LOAD_BYTES
