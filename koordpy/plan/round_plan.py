"""What the planner answers: a RoundPlan of plain values, the same offline and live.

One direction: nothing in here points back to the planner. Unschedulable is a value with its explanation, never an
exception.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from koordpy.pods.family_books import NOTHING_GIVEN, Given
from koordpy.pods.gang_refs import GangRef, GangSource


class Proof(StrEnum):
    """What is known of an answer (simulate.md 3.4)."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


def proof_of(*, placed: bool, sure: bool) -> Proof:
    """What a search knows of its answer. placed: whether it has one; sure: whether nothing was left open on the way."""
    if placed:
        return Proof.OPTIMAL if sure else Proof.FEASIBLE
    return Proof.INFEASIBLE if sure else Proof.UNKNOWN


def combined(proofs: Iterable[Proof], *, placed: bool) -> Proof:
    """What is known of the best of several answers, of which the proofs are given; placed: whether there is any."""
    return proof_of(placed=placed, sure=set(proofs) <= {Proof.OPTIMAL, Proof.INFEASIBLE})


class Reason(StrEnum):
    """Reason of PodScheduled=False, and of pending[] offline."""

    UNSCHEDULABLE = "Unschedulable"
    NEVER_FITS = "NeverFits"
    """Of pending[] offline alone: the condition says Unschedulable, because larger nodes may be for sale."""
    SCHEDULER_ERROR = "SchedulerError"
    JOB_VALIDATE_FAILED = "JobValidateFailed"


class GangStatus(StrEnum):
    """Status of a gang after a round (gang-network.md 6)."""

    SCHEDULED = "Scheduled"
    INCOMPLETE = "Incomplete"
    INVALID = "Invalid"
    UNSCHEDULABLE = "Unschedulable"


@dataclass(frozen=True, slots=True)
class Placement:
    """One pod to be bound: node and what the Binding is annotated with. `unit` names the unit it was planned in."""

    pod_key: str
    uid: str
    node: str
    annotations: Mapping[str, str]
    unit: str
    claims: Mapping[str, str] = field(default_factory=dict)
    """Claim (`namespace/name`) -> volume that it is to be bound to, empty where one is to be provisioned for the node;
    written before the Binding (kube-parity.md 2.8)."""
    given: Given = field(default_factory=lambda: NOTHING_GIVEN)
    """Devices of each family that it is given by name. Annotations say them, or objects that are written before the
    Binding: allocations of resource claims, with the pod's reservation (kube-parity.md 6)."""


@dataclass(frozen=True, slots=True)
class FamilyAllocation:
    """Devices of one family for a plan's pods, by pod key (`namespace/name`)."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """What each pod is given, in the family's own form; pods that are given nothing by name are left out."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Annotations of the pod's Binding."""
    faults: tuple[str, ...] = ()
    """Pods that cannot have what they were placed for: then the plan is not carried out, and says so."""


@dataclass(frozen=True, slots=True)
class PlanAllocation:
    """Devices of all families for a plan's pods, by pod key; as those of one family."""

    given: Mapping[str, Given] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


NOTHING_ALLOCATED = PlanAllocation()


@dataclass(frozen=True, slots=True)
class Eviction:
    """One pod to be evicted, under the contract of simulate.md 3.2.

    rule: priority, quota, fair-share, consolidation or stale-gang. unit: the unit that takes the room, whose placements
    wait for the victims. reason and message: of the event on the victim (preemption.md 8).
    """

    pod_key: str
    uid: str
    node: str
    rule: str
    beneficiary: str | None
    unit: str = ""
    reason: str = ""
    message: str = ""
    priority: int = 0
    grace_seconds: int = 30
    """What the pod's spec gives it to end in."""
    returns_to: str = ""
    """Node whose room is kept for it (consolidation)."""
    yields: str = ""
    """Id of the unit that it goes with, which takes nothing back from `unit` (preemption.md 3.6); empty where nobody
    reclaims anything."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """A pod whose room is being made: it goes to status.nominatedNodeName until the victims are gone."""

    pod_key: str
    uid: str
    node: str
    unit: str


@dataclass(frozen=True, slots=True)
class Benefit:
    """The totals of one beneficiary's plan, for its own event: what it costs, and whether that is proven least."""

    unit: str
    beneficiary: str
    message: str


@dataclass(frozen=True, slots=True)
class PendingPod:
    """One pod that stays pending, and why. `wakes` names what would change the verdict (kube-parity.md 4.3)."""

    pod_key: str
    unit: str
    gang: str | None
    reason: Reason
    message: str
    gated: bool = False
    """Held before planning: missing group or members, unreadable setting (gang-network.md 2.3)."""
    plugins: tuple[str, ...] = ()
    """Filters that refused a node; empty for a gang's own verdict."""
    never: str = ""
    """Why its unit never fits, as the message says (gang-network.md 6); empty where it may."""

    @property
    def offline_reason(self) -> Reason:
        """Its reason in the output of the offline commands."""
        return Reason.NEVER_FITS if self.never and self.reason is Reason.UNSCHEDULABLE else self.reason


@dataclass(frozen=True, slots=True)
class GangReport:
    """One gang after the round. proof is None where this round planned nothing for it."""

    name: str
    members: int
    min_member: int
    bound: int
    status: GangStatus
    domain: tuple[str, str] | None
    """(layer, path) of the lowest domain that holds every bound member."""
    proof: Proof | None
    message: str
    source: GangSource = GangSource.GROUP
    origin: str = ""
    """Why it is a gang."""
    workload: Mapping[str, str] | None = None
    """Which workload it follows from."""
    remark: str = ""
    """What its owner should know of the plan that starts it."""
    awaits: bool = False
    """Whether it waits for room that pods are leaving, which is kept for it."""
    never: str = ""
    """Why it never fits; empty where it may."""

    @property
    def ref(self) -> GangRef:
        """Which gang it is: groups of different kinds may share a name."""
        return GangRef.of(self.name, self.source)


@dataclass(frozen=True, slots=True)
class SolverRun:
    """One use of the solver, for metrics; its time is deterministic, not of the wall."""

    stage: str
    status: Proof
    deterministic_time: float
    fault: str = ""
    """Why the solver would not, or could not rightly, answer: a mistake in the problem or in the planner."""


RANKS, NAMES = "ranks", "names"
"""Stages that order pods on chosen nodes: the ring of ranks (gang-network.md 5, goal 7), of which a run says that the
order is open, and ties by natural name. What they leave open takes nothing from the proof of the goals before."""


RANKS_OPEN = SolverRun(RANKS, Proof.UNKNOWN, 0.0)
"""What says that the order of ranks is not proven best."""


def ranks_proven(runs: Iterable[SolverRun]) -> bool:
    """Whether no order of ranks is better (goal 7); an order that is not proven is the same for the same problem."""
    return all(run.stage != RANKS for run in runs)


class Method(StrEnum):
    """What found a unit's plan, or showed that there is none; with victims it is `victims-` and the way of choosing."""

    SCORES = "scores"
    COUNTING = "counting"
    SOLVER = "cp-sat"
    RULES = "rules"


@dataclass(frozen=True, slots=True)
class UnitReport:
    """One unit of the queue (a plain pod or a GangGroup) that was tried in the round."""

    unit: str
    pod_keys: tuple[str, ...]
    placed: int
    proof: Proof
    layer: str | None
    """Lowest common layer that a gather goal reached."""
    method: str = ""
    """What found it; empty where nothing was looked for."""
    seconds: float | None = None
    """What it took; None where nobody asked."""
    solver: tuple[SolverRun, ...] = ()
    pipeline_crossings: Mapping[str, int] | None = None
    """Layer -> pipeline groups whose lowest common layer it is."""
    ring_crossings: int | None = None
    withheld: tuple[str, ...] = ()
    """What alone keeps its plan with victims from being carried out: `share` (preemption.acrossUsers), `harm`
    (protection.maxHarm), `surplus` (preemption.surplusVictims)."""
    gpu_bottlenecks_gbps: tuple[float, ...] = ()
    """Weakest link within the GPUs of each pod that is given two or more by name, where links are known."""
    never: str = ""
    """Why it never fits; empty where it may."""

    @property
    def solver_faults(self) -> tuple[str, ...]:
        """What the solver would not answer, once each: mistakes, not lack of time."""
        found = (f"the solver refused ({run.stage}): {run.fault}" for run in self.solver if run.fault)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class RejectedPlan:
    """A unit's plan that an independent check refused: a mistake of the planner. It was not carried out.

    faults: (check, text); way: of choosing the victims, empty without any; victims: (pod key, rule); nodes: (pod key,
    node name) of the members, and of pods that would have moved.
    """

    unit: str
    faults: tuple[tuple[str, str], ...]
    way: str = ""
    victims: tuple[tuple[str, str], ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()

    @property
    def checks(self) -> tuple[str, ...]:
        """Those that refused it, once each."""
        return tuple(dict.fromkeys(check for check, _ in self.faults))

    @property
    def text(self) -> str:
        """As people are told."""
        return f"a plan was refused by its check ({', '.join(self.checks)}): {self.faults[0][1]}"


@dataclass(frozen=True, slots=True)
class PromisedStart:
    """Room kept for a unit that waits for running pods to end (`queue.backfill`)."""

    unit: str
    start: float
    """Promised start, seconds since the epoch."""
    nodes: Mapping[str, str]
    """Pod key -> node of the placement then."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Unit -> what it is told, of those that it keeps from room they could take now."""


class DeferralReason(StrEnum):
    """Why a unit was not decided in a round."""

    SEARCH = "search"
    """It needs victims, units to move, or the solver. A search decides."""
    CUT = "cut"
    """The round ended before its turn."""
    TURN = "turn"
    """Its namespace had its part of the round, and units of others wait that are as important."""


@dataclass(frozen=True, slots=True)
class Deferral:
    """A unit that was not decided. A later round tries it."""

    unit: str
    reason: DeferralReason = DeferralReason.SEARCH
    seconds: float | None = field(default=None, compare=False)
    """Wall time of its attempt; None where it is not measured."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Everything one round decided."""

    placements: tuple[Placement, ...]
    evictions: tuple[Eviction, ...]
    pending: tuple[PendingPod, ...]
    gangs: tuple[GangReport, ...]
    units: tuple[UnitReport, ...]
    nominations: tuple[Nomination, ...] = ()
    """Placements of units that evict: nothing is bound there before the victims are gone (preemption.md 4)."""
    awaiting: tuple[Nomination, ...] = ()
    """Where units will stand that wait for pods which are ending already; nobody is evicted for them."""
    benefits: tuple[Benefit, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    """(object such as PodGroup/default/g, text): InvalidAnnotation events live, lines on stderr offline."""
    counted: tuple[tuple[str, str], ...] = ()
    """(object, resource) of resources that mean parts of devices and are counted by number: of each the first pod of
    the round that asks for it. It is said once a run or process."""
    rejected: tuple[RejectedPlan, ...] = ()
    reservation: PromisedStart | None = None
    deferred: tuple[Deferral, ...] = ()
    """Units that were not decided, in queue order."""
    not_minimal: tuple[str, ...] = ()
    """Units whose plan evicts a unit that could stay where it is; as far as that is looked at (preemption.md 5)."""
