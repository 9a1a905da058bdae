# SPDX-License-Identifier: Apache-2.0
"""The record of one unit in the scheduling queue, as QueuedPodInfo in kube-scheduler.

An `Entry` has the unit's pods, its state, the time from which it is due, the result of its last attempt, and the search
that it waits for. Only `UnitQueue` (`scheduling_queue.py`) may change the state of an entry.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from koordpy.engine.wakeups import Wake
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import card_hundredths

LOAD_BYTES = 256
"""Bytes of affinity terms (compact JSON) that cost as much planning time as one ordinary pod: a quarter of a
millisecond, as measured."""


class State(enum.StrEnum):
    """States of a unit, explained in `scheduling_queue.py`. The values are labels of the metric scheduler_pending_pods,
    which counts IN_FLIGHT as active."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    IN_FLIGHT = "inflight"


@dataclass(slots=True)
class QueuedPod:
    """The queue's record of a pending pod: fields that it needs without the cache, and the counts of attempts.

    The record exists while the pod is pending. (`Placement` and `PendingPod` are results of one round about a pod.)
    """

    key: str
    uid: str
    added: float
    """Clock time at which the pod was first queued."""
    priority: int
    created: float
    """Creation time, in seconds since 1970."""
    light: bool
    """True for a plain pod that requests no accelerator. There may be thousands, so the number in a round is
    limited."""
    load: int = 1
    """Planning cost of the pod, as a multiple of an ordinary pod's cost. It grows with the pod's affinity terms."""
    profile: str = ""
    """schedulerName of the pod: the label `profile` of metrics."""
    attempts: int = 0
    """Number of rounds and searches that have decided the pod."""
    failures: int = 0
    """Number of failed Bindings."""


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """The result of a unit's last attempt that left pods pending without an error."""

    time: float = -inf
    """Clock time; -inf before the first answer."""
    wakes: Wake = Wake.NOTHING
    """Changes of the cluster that could make the unit schedulable."""
    plugins: tuple[str, ...] = ()
    """Names of the filters that refused a node."""
    gated: bool = False
    """True if a gate blocked the unit, so that no placement was tried."""
    never: bool = False
    """True if the unit would not fit an empty cluster."""


@dataclass(slots=True)
class PendingSearch:
    """The state of a unit that waits for a search (`search_worker.py`)."""

    since: float
    """Clock time at which the unit was deferred first."""
    stale_plans: int = 0
    """Number of the unit's searches so far that ended with a stale plan."""
    reported: bool = False
    """True if the pods' conditions say that victims are being searched."""


@dataclass(slots=True)
class Entry:
    """One unit of the queue. Times are of the queue's clock."""

    unit: str
    """Id of the unit: `namespace/name` of a plain pod, or `gang:` and the id of a gang."""
    tenant_of: Callable[[str], str] = str
    """Namespace -> tenant."""
    pods: dict[str, QueuedPod] = field(default_factory=dict)
    """Key -> pending pod of the unit. May be empty only while the unit is in flight."""
    state: State = State.ACTIVE
    since: float = 0.0
    """Clock time at which the unit entered its state."""
    due: float = 0.0
    """Clock time before which the unit is not tried (back-off, or the pause after an attempt)."""
    not_before: float = 0.0
    """Clock time before which no event makes the unit due, because the API server asked for a pause (Retry-After)."""
    attempts: int = 0
    """Number of attempts that decided the unit."""
    errors: int = 0
    """Number of consecutive attempts that failed with an error. The back-off doubles with each."""
    first_tried: float | None = None
    """Clock time of the first attempt; None before it, and after a placement."""
    answer: LastAnswer = LastAnswer()
    """The last answer; the default values mean that there was none."""
    search: PendingSearch | None = None
    """The search that the unit waits for; None if it waits for none."""
    passed_over: float | None = None
    """Clock time since which rounds skip the unit because its tenant has used its share; None if it is not skipped."""
    replanned_for_capacity: bool = False
    """True if the unit was planned once more because capacity was freed while victims were selected for it. This is
    done only once, because a busy cluster frees capacity all the time."""
    attempted_pods: int = 0
    """Number of pods in the last attempt."""
    complete_pods: int = 0
    """Number of pending pods from which on the unit is complete, and so is tried at once; 0 if the last attempt found
    that no members are missing."""
    has_changed: bool = False
    """True if the unit itself changed since the current attempt began."""
    missed_changes: Wake = Wake.NOTHING
    """Kinds of cluster changes since the current attempt began, up to the queue's last `poll`. `UnitQueue.has_missed`
    also knows the later ones."""

    @property
    def priority(self) -> int:
        """The highest priority of the unit's pods; 0 without pods."""
        return max((pod.priority for pod in self.pods.values()), default=0)

    @property
    def namespace(self) -> str:
        """The namespace of the unit's first pod; empty without pods."""
        return next(iter(self.pods), "").partition("/")[0]

    @property
    def tenant(self) -> str:
        """The tenant to which the unit's planning time is charged."""
        return self.tenant_of(self.namespace)

    @property
    def answered_at(self) -> float:
        """Clock time at which an attempt last ended with pods left over; -inf before the first."""
        return self.answer.time

    @property
    def created(self) -> float:
        """Creation time of the unit's oldest pod, in seconds since 1970; 0 without pods."""
        return min((pod.created for pod in self.pods.values()), default=0.0)

    @property
    def light(self) -> bool:
        """True if all pods of the unit are light."""
        return all(pod.light for pod in self.pods.values())

    @property
    def load(self) -> int:
        """Planning cost of the unit, in ordinary pods."""
        return sum(pod.load for pod in self.pods.values())

    def begin_attempt(self, now: float) -> None:
        """Counts an attempt for the unit and for each of its current pods."""
        self.attempts += 1
        self.first_tried = now if self.first_tried is None else self.first_tried
        self.has_changed, self.missed_changes = False, Wake.NOTHING
        self.attempted_pods, self.complete_pods = len(self.pods), 0
        for pod in self.pods.values():
            pod.attempts += 1

    def undo_attempt(self) -> None:
        """Subtracts the current attempt from the counts, because it ended without a decision."""
        self.attempts -= 1
        for pod in self.pods.values():
            pod.attempts = max(0, pod.attempts - 1)


def queued_pod(info: PodInfo, now: float) -> QueuedPod:
    """Returns the queue's record of a pending pod without attempts. now: clock time."""
    return QueuedPod(
        key=info.key,
        uid=info.uid,
        added=now,
        priority=info.priority,
        created=info.created,
        light=info.gang is None and not card_hundredths(info.requests),
        load=pod_load(info.ties.terms.encoded),
        profile=info.pod.spec.scheduler_name,
    )


def pod_load(affinity: bytes) -> int:
    """Returns the cost of a pod with these affinity terms (JSON): planning time grows with their length."""
    return 1 + len(affinity) // LOAD_BYTES
