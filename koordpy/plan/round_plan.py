# SPDX-License-Identifier: Apache-2.0
"""Defines the result of a round, `RoundPlan`: the pods to bind, the pods to evict, and why other pods stay pending.

A RoundPlan has plain values, offline and live, without references to the planner's state. A unit that does not fit is
an entry with the reason, never an exception.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from koordpy.config.node_failures import ReasonMode
from koordpy.plan.gang_repair import GangRepair, KeptSeats
from koordpy.plan.pending_reason import SELF_CHECK, Reason, written
from koordpy.plan.quota_needs import QuotaNeed
from koordpy.plan.wanted_nodes import WantedNodes
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices
from koordpy.pods.gang_refs import GangRef, GangSource


class Proof(StrEnum):
    """Certainty of an answer (simulate.md 3.4)."""

    OPTIMAL = "optimal"
    """A placement was found, and none is better."""
    FEASIBLE = "feasible"
    """A placement was found; a better one may exist."""
    INFEASIBLE = "infeasible"
    """No placement exists."""
    UNKNOWN = "unknown"
    """No placement was found within the limits; one may exist."""


def proof_of(*, placed: bool, sure: bool) -> Proof:
    """Returns the certainty of a search's answer.

    placed: True if a placement was found. sure: True if the search left nothing undecided.
    """
    if placed:
        return Proof.OPTIMAL if sure else Proof.FEASIBLE
    return Proof.INFEASIBLE if sure else Proof.UNKNOWN


def combine_proofs(proofs: Iterable[Proof], *, placed: bool) -> Proof:
    """Returns the certainty of the best of several answers.

    proofs: the certainty of each answer. placed: True if at least one of the answers has a placement.
    """
    return proof_of(placed=placed, sure=set(proofs) <= {Proof.OPTIMAL, Proof.INFEASIBLE})


class GangStatus(StrEnum):
    """Status of a gang after a round (gang-network.md 6)."""

    SCHEDULED = "Scheduled"
    """At least one member and at least minMember members are bound."""
    INCOMPLETE = "Incomplete"
    """The PodGroup, a linked gang, or pods that the gang needs do not exist yet."""
    INVALID = "Invalid"
    """A setting of the gang or its job cannot take effect, or its plan failed the independent check."""
    UNSCHEDULABLE = "Unschedulable"
    """The gang waits: it does not fit, or a quota refuses it."""
    DEGRADED = "Degraded"
    """The gang runs with fewer members than its minimum (repair.md 4.5)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One pod and its node: a pod to be bound, or a nominated pod that waits for victims on the node.

    pod_key: `namespace/name`. node: name of the node; for a nominated pod, the live scheduler writes it to
    status.nominatedNodeName. The remaining fields describe the Binding; a nominated pod does not have them yet, because
    the round that binds it decides them. A pod without a node has a `PendingPod` instead.
    """

    pod_key: str
    uid: str
    node: str
    unit: str
    """Id of the unit in which the pod was planned."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Binding."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Volume claim (`namespace/name`) -> volume to bind it to, written before the Binding. An empty volume means that a
    volume is provisioned for the node (kube-parity.md 2.8)."""
    devices: AllocatedDevices = field(default_factory=lambda: NO_DEVICES)
    """Devices of each family that are allocated to the pod by name. They are written as annotations of the Binding, or
    before the Binding as allocations and reservations of resource claims (kube-parity.md 6)."""


@dataclass(frozen=True, slots=True)
class FamilyAllocation:
    """Devices of one family for a plan's pods, by pod key (`namespace/name`)."""

    devices: Mapping[str, Any] = field(default_factory=dict)
    """Pod key -> devices that are allocated by name, in the family's form. Pods without such devices have no entry."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> annotations of the pod's Binding."""
    faults: tuple[str, ...] = ()
    """Reasons why pods cannot have the devices that they were placed for. A plan with faults is not carried out."""


@dataclass(frozen=True, slots=True)
class PlanAllocation:
    """Devices of all families for a plan's pods, by pod key. The fields are those of `FamilyAllocation`."""

    devices: Mapping[str, AllocatedDevices] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


NOTHING_ALLOCATED = PlanAllocation()
"""The allocation of a plan without devices by name."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """One pod to be evicted (simulate.md 3.2). pod_key: `namespace/name`. node: name of the pod's node."""

    pod_key: str
    uid: str
    node: str
    rule: str
    """`priority`, `quota`, `fair-share`, `consolidation`, `stale-gang` or `repair`."""
    beneficiary: str | None
    """`namespace/name` of the pod or gang that gets the capacity; None for evictions of quotas above their runtime."""
    unit: str = ""
    """Id of the preemptor's unit, which is bound after the victims have ended; empty without a preemptor."""
    reason: str = ""
    """Reason of the event on the victim (preemption.md 8)."""
    message: str = ""
    """Message of the event on the victim."""
    priority: int = 0
    """Priority of the victim."""
    grace_seconds: int = 30
    """Termination grace period of the pod's spec, in seconds."""
    returns_to: str = ""
    """Node on which capacity is reserved for the moved pod's successor; empty if the pod is not moved."""
    returning_devices: AllocatedDevices = field(default_factory=lambda: NO_DEVICES)
    """Devices of each family that are reserved on that node."""
    victim_unit: str = ""
    """Id of the victim's unit, which must not reclaim from `unit` for an hour (preemption.md 3.6); empty if no rule
    reclaims."""


@dataclass(frozen=True, slots=True)
class Benefit:
    """The totals of one plan with victims, for the event on the pod or gang that gets the capacity."""

    unit: str
    """Id of the unit."""
    beneficiary: str
    """`namespace/name` of the pod or gang."""
    message: str
    """The cost of the plan, and whether it is not proven to be the lowest."""


@dataclass(frozen=True, slots=True)
class PendingPod:
    """The verdict on one pod that stays pending, with the reason (kube-parity.md 4.3).

    pod_key: `namespace/name`. unit: id of its unit. gang: `namespace/name` of its gang; None for a plain pod, and for
    errors outside a round. message: as in the condition PodScheduled.
    """

    pod_key: str
    unit: str
    gang: str | None
    reason: Reason
    """The true reason; `written_reason` is the one that the configuration lets conditions state."""
    message: str
    gated: bool = False
    """True if a gate blocks the pod before planning: missing group or members, invalid setting (gang-network.md
    2.3)."""
    plugins: tuple[str, ...] = ()
    """Filters that refused a node; empty if the verdict is about the gang."""
    never: str = ""
    """Why the pod's unit can never fit, as in the message (gang-network.md 6); empty if it may fit."""
    mode: ReasonMode = "honest"
    """`autoscaling.reasons`."""

    @property
    def written_reason(self) -> Reason:
        """Reason as the condition states it."""
        return written(self.reason, self.mode)

    @property
    def offline_reason(self) -> Reason:
        """Reason in the output of the offline commands."""
        never = self.never and self.reason is Reason.UNSCHEDULABLE and self.mode == "honest"
        return Reason.NEVER_FITS if never else self.written_reason


@dataclass(frozen=True, slots=True)
class GangReport:
    """One gang after the round. name: `namespace/name`. members: number of its members. bound: number of its bound
    members."""

    name: str
    members: int
    min_member: int
    bound: int
    status: GangStatus
    domain: tuple[str, str] | None
    """(layer, path) of the lowest domain that contains every bound member; None if there is none."""
    proof: Proof | None
    """Certainty of the round's answer; None if the round has not planned the gang."""
    message: str
    source: GangSource = GangSource.GROUP
    origin: str = ""
    """Why the pods are a gang, such as `PodGroup train`, for messages; empty if that is not reported."""
    workload: Mapping[str, str] | None = None
    """The workload from which the gang is derived; None for a gang from a group."""
    remark: str = ""
    """A hint for the owner about the plan that starts the gang; empty if there is none."""
    awaits: bool = False
    """True if the gang waits for terminating pods. Their capacity is reserved for it."""
    never: str = ""
    """Why the gang can never fit; empty if it may fit."""
    reason: Reason | None = None
    """The reason of its pending members as written; None if none is pending, or the round did not plan the gang."""
    repair: GangRepair | None = None
    """Its lost members and members on unhealthy devices; None if it has none."""

    @property
    def ref(self) -> GangRef:
        """Returns the identity of the gang: groups of different kinds may share a name."""
        return GangRef.from_key(self.name, self.source)


@dataclass(frozen=True, slots=True)
class SolverRun:
    """One use of the solver, for metrics. stage: the goal that was solved. status: certainty of the answer.
    deterministic_time: in CP-SAT's deterministic units instead of wall time."""

    stage: str
    status: Proof
    deterministic_time: float
    fault: str = ""
    """Why the solver rejected the problem or failed: an error in the problem or in the planner. Empty without a
    fault."""


RANKS, NAMES = "ranks", "names"
"""Names of the last stages of a placement: the order of ranks on the chosen nodes (gang-network.md 5, goal 7), and the
choice by name among equal nodes. If these stages are unproven, the proof of earlier goals stays valid."""


RANKS_OPEN = SolverRun(RANKS, Proof.UNKNOWN, 0.0)
"""Marks an order of ranks that is not proven best."""


def ranks_proven(runs: Iterable[SolverRun]) -> bool:
    """Returns True if the order of ranks is proven to be the best (goal 7). An unproven order is deterministic: the
    same problem gives the same order."""
    return all(run.stage != RANKS for run in runs)


class Method(StrEnum):
    """The method that found a unit's plan, or proved that there is none; `victims-WAY` for a plan with victims."""

    SCORES = "scores"
    """The node with the best score, for a plain pod."""
    COUNTING = "counting"
    """Exact counting over the network tree."""
    SOLVER = "cp-sat"
    """The solver."""
    RULES = "rules"
    """The rules of a device family, such as Ascend NPUs."""


@dataclass(frozen=True, slots=True)
class UnitReport:
    """One unit of the queue (a plain pod or a GangGroup) that the round has tried. unit: its id. pod_keys: keys of its
    pending members. placed: number of members that got a node. solver: its runs of the solver."""

    unit: str
    pod_keys: tuple[str, ...]
    placed: int
    proof: Proof
    layer: str | None
    """Lowest common layer that a gather goal reached; None without one."""
    method: str = ""
    """Method that gave the answer (`Method`); empty if no placement was searched."""
    seconds: float | None = None
    """Planning time in seconds; None if it was not measured."""
    solver: tuple[SolverRun, ...] = ()
    pipeline_crossings: Mapping[str, int] | None = None
    """Layer -> number of pipeline groups with this lowest common layer; None without pipeline groups."""
    ring_crossings: int | None = None
    """Number of neighbours in the ring of ranks that are on different nodes; None if nothing was placed."""
    withheld: tuple[str, ...] = ()
    """Limits without which a plan with victims would exist: `share` (preemption.acrossUsers), `harm`
    (protection.maxHarm), `surplus` (preemption.surplusVictims)."""
    gpu_bottlenecks_gbps: tuple[float, ...] = ()
    """For each placed pod with two or more GPUs by name and known links: bandwidth of its slowest link, in GB/s."""
    never: str = ""
    """Why the unit can never fit; empty if it may fit."""
    quota_needs: tuple[QuotaNeed, ...] = ()
    """What a unit that waits for nodes would add to its quotas; empty for others, and outside of the live scheduler."""

    @property
    def solver_faults(self) -> tuple[str, ...]:
        """Distinct faults of the solver. A lack of time is not a fault."""
        found = (f"the solver refused ({run.stage}): {run.fault}" for run in self.solver if run.fault)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class RejectedPlan:
    """A unit's plan that the independent check rejected, because of a bug of the planner. It is not carried out."""

    unit: str
    faults: tuple[tuple[str, str], ...]
    """(check, text) of each fault."""
    way: str = ""
    """The way of choosing the victims; empty without victims."""
    victims: tuple[tuple[str, str], ...] = ()
    """(pod key, rule) of each victim."""
    nodes: tuple[tuple[str, str], ...] = ()
    """(pod key, node name) of the members, and of pods that would have moved."""

    @property
    def checks(self) -> tuple[str, ...]:
        """Distinct checks that rejected the plan."""
        return tuple(dict.fromkeys(check for check, _ in self.faults))

    @property
    def text(self) -> str:
        """The message for users."""
        return f"internal error: {SELF_CHECK} ({', '.join(self.checks)}): {self.faults[0][1]}"


@dataclass(frozen=True, slots=True)
class PromisedStart:
    """Capacity reserved for a unit that waits for running pods to end (`queue.backfill`)."""

    unit: str
    start: float
    """The promised start, in seconds since 1970."""
    nodes: Mapping[str, str]
    """Pod key -> name of the node on which the pod will start."""
    blocked_units: Mapping[str, str] = field(default_factory=dict)
    """Id of a unit that would fit, but may not use the reserved capacity -> message for that unit."""


class DeferralReason(StrEnum):
    """Why a round did not decide a unit."""

    SEARCH = "search"
    """The unit needs victims, moved units, or the solver. A later search decides."""
    CUT = "cut"
    """The round ended before the unit's turn."""
    TURN = "turn"
    """The unit's tenant used its part of the round, and units of other tenants with the same or a higher priority
    wait."""


@dataclass(frozen=True, slots=True)
class Deferral:
    """A unit that the round did not decide. A later round tries it."""

    unit: str
    reason: DeferralReason = DeferralReason.SEARCH
    seconds: float | None = field(default=None, compare=False)
    """Wall time of the unit's attempt in seconds; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Everything one round decided."""

    placements: tuple[Placement, ...]
    evictions: tuple[Eviction, ...]
    pending: tuple[PendingPod, ...]
    gangs: tuple[GangReport, ...]
    units: tuple[UnitReport, ...]
    nominations: tuple[Placement, ...] = ()
    """Placements of units with victims. They are bound only after the victims have ended (preemption.md 4)."""
    awaiting_nominations: tuple[Placement, ...] = ()
    """Placements of units that wait for pods which are already terminating. No pod is evicted for these units."""
    benefits: tuple[Benefit, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    """(object such as PodGroup/default/g, text): InvalidAnnotation events live, lines on stderr offline."""
    parts_by_number: tuple[tuple[str, str], ...] = ()
    """(object, resource) of resources that mean parts of devices, but are only counted. The object is the first pod of
    the round that requests the resource. Each resource is reported once per run or process."""
    rejected: tuple[RejectedPlan, ...] = ()
    reservation: PromisedStart | None = None
    """The start that is promised to a waiting unit; None if none is promised."""
    seats: Mapping[str, KeptSeats] = field(default_factory=dict)
    """Broken gang -> its seats, whether or not the round tried the gang."""
    spares: tuple[str, ...] = ()
    """Names of the spare nodes at the start of the round, in natural order."""
    deferred: tuple[Deferral, ...] = ()
    """Units that were not decided, in queue order."""
    wanted_nodes: tuple[WantedNodes, ...] = ()
    """The nodes that are requested by ProvisioningRequests, per unit, in queue order."""
    not_minimal: tuple[str, ...] = ()
    """Units with a plan that evicts more than necessary, as far as the round checked it (preemption.md 5)."""
