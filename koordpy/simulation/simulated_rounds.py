# SPDX-License-Identifier: Apache-2.0
"""`koordpy simulate`: runs rounds of the live scheduler's planner on a cache of objects, until a round changes nothing.

Each round plans on one snapshot. Then its evictions and bindings are applied, evicted pods are recreated, and workloads
create further pods. The output is JSON as in simulate.md 3, sorted so that the order of the input does not matter.
Source: simulate.md 2.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import replace as changed
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod, PodStatus
from koordpy.api.times import exact_time
from koordpy.api.uids import made_up_uid
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.fairness.quota_runtime import QuotaAmounts, all_quota_amounts
from koordpy.gangs.gang_settings import names_of
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import Eviction, GangReport, GangStatus, PendingPod, RoundPlan
from koordpy.planner.queue.tenant_shares import TenantShare, tenant_shares
from koordpy.pods.gang_refs import GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.provisioning.provisioning_report import provisioning_document
from koordpy.quota.quota_tree import QuotaNode
from koordpy.report.setting_warnings import counted_text
from koordpy.simulation.budget_ledger import BudgetLedger
from koordpy.simulation.claim_controllers import ClaimControllers
from koordpy.simulation.claim_report import ClaimRounds
from koordpy.simulation.failing_nodes import FailedNode, NodeFailure, remove_nodes
from koordpy.simulation.gap_warnings import gap_warnings
from koordpy.simulation.result_fields import gang_fields, object_order, pod_fields, quota_fields

MOVING = ("consolidation", "repair")
"""Rules of evictions that only move a pod: such a pod is always recreated."""
UNPROVEN = "unknown"
"""Proof of a gang that no plan included."""
# messages of pods that existed only after the last round
UNTRIED = "evicted in the last round of the simulation and not planned again"
UNTRIED_STEP = "created after the last round of the simulation and not planned yet"

Planner = Callable[[Snapshot, KoordpyConfiguration], RoundPlan]
Evicted = Literal["recreate", "drop"]
"""What happens to evicted pods: they are recreated, as by a controller, or they disappear."""


@dataclass(frozen=True, slots=True)
class RoundBinding:
    """A pod that was bound, and the round. Rounds are counted from 1."""

    pod_key: str
    node: str
    round: int
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodEviction:
    """A pod that was evicted, and the round."""

    eviction: Eviction
    round: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a run. rounds: number of rounds; stable: True if the last round changed nothing; pending: pods that
    are not bound at the end."""

    rounds: int
    stable: bool
    bindings: tuple[RoundBinding, ...]
    evictions: tuple[PodEviction, ...]
    pending: tuple[PendingPod, ...]
    gangs: tuple[tuple[GangReport, str], ...]
    """(report, proof as a word) of each gang."""
    final: tuple[tuple[str, str], ...]
    """(pod key, node) of every bound pod."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of each warning."""
    quotas: tuple[tuple[str, QuotaAmounts, QuotaNode | None], ...] = ()
    """(key, state of the quota, quota) of each quota at the end; the quota is None for the built-in quotas."""
    shares: tuple[TenantShare, ...] = ()
    """Usage and fair share of each tenant at the end; empty if fairness is off."""
    spares: tuple[str, ...] = ()
    """Spare nodes of the last round."""
    failures: tuple[FailedNode, ...] = ()
    """Nodes that failed, by round and natural name."""
    claims: tuple[dict[str, Any], ...] = ()
    """Every ResourceClaim at the end, as in the document."""
    backed_off: tuple[dict[str, object], ...] = ()
    """Nodes that take no pods of some request shapes at the end, as in the document."""
    provisioning: tuple[dict[str, object], ...] = ()
    """States of units that request nodes by ProvisioningRequests, as in the document."""
    recreated: int = 0
    """Number of recreated pods, including those of earlier runs."""

    def document(self, workloads: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Returns the SimulationResult of simulate.md 3 with keys in its order. workloads: accounts of the input's
        workloads."""
        return {
            "apiVersion": "koordpy.io/v1alpha1",
            "kind": "SimulationResult",
            "rounds": self.rounds,
            "stable": self.stable,
            "bindings": [
                {
                    **pod_fields(b.pod_key),
                    "node": b.node,
                    "round": b.round,
                    "annotations": dict(sorted(b.annotations.items())),
                }
                for b in self.bindings
            ],
            "evictions": [
                {
                    **pod_fields(e.eviction.pod_key),
                    "node": e.eviction.node,
                    "round": e.round,
                    "rule": e.eviction.rule,
                    "beneficiary": e.eviction.beneficiary,
                }
                for e in self.evictions
            ],
            "pending": [
                {**pod_fields(p.pod_key), "gang": p.gang, "reason": str(p.offline_reason), "message": p.message}
                for p in self.pending
            ],
            "gangs": [gang_fields(report, proof) for report, proof in self.gangs],
            "workloads": list(workloads),
            "quotas": [quota_fields(name, amounts, quota) for name, amounts, quota in self.quotas],
            "shares": [asdict(share) for share in self.shares],
            "final": [{**pod_fields(key), "node": node} for key, node in self.final],
            "claims": list(self.claims),
            "failures": [
                {"node": one.failure.node, "round": one.failure.round, "pods": list(one.pods)} for one in self.failures
            ],
            "provisioning": list(self.provisioning),
            "spares": list(self.spares),
            "backedOff": list(self.backed_off),
        }


def simulate(
    state: ClusterState,
    config: KoordpyConfiguration,
    *,
    planner: Planner,
    now: datetime,
    rounds: int = 20,
    evicted: Evicted = "recreate",
    grow: Callable[[], Sequence[str]] = tuple,
    after: int = 0,
    recreated: int = 0,
    failures: Sequence[NodeFailure] = (),
) -> SimulationResult:
    """Runs up to `rounds` rounds, at least one, and changes the state. The same input gives the same result.

    grow: creates the pods that begin after a round, and returns their keys (`namespace/name`). after, recreated:
    numbers of rounds and of recreated pods in earlier runs. failures: nodes that fail before a round of this run or a
    later run. The run is not stable before the last of these rounds.
    """
    run = _Run(
        state,
        config,
        now,
        BudgetLedger(state),
        ClaimControllers(state),
        ClaimRounds(state),
        recreated=recreated,
        after=after,
    )
    for number in range(after + 1, after + rounds + 1):
        run.fail([one for one in failures if one.round == number], evicted)
        run.warnings.update(dict.fromkeys(gap_warnings(state, config, now.timestamp())))
        plan = planner(state.snapshot(now.timestamp()), config)
        run.apply(plan, number, evicted)
        run.claim_rounds.read(number)
        run.born = grow()
        stable = not (plan.placements or plan.evictions or run.born or any(one.round > number for one in failures))
        if stable:
            break
    return run.result(plan, number, stable)


@dataclass(slots=True)
class _Run:
    """The state of a run between rounds. Proofs are stored by name and source of a gang."""

    state: ClusterState
    config: KoordpyConfiguration
    now: datetime
    budgets: BudgetLedger
    claims: ClaimControllers
    claim_rounds: ClaimRounds
    bindings: list[RoundBinding] = field(default_factory=list)
    evictions: list[PodEviction] = field(default_factory=list)
    bound_proofs: dict[tuple[str, GangSource], str] = field(default_factory=dict)  # of the last plan that bound members
    last_proofs: dict[tuple[str, GangSource], str] = field(default_factory=dict)  # of the last plan with a proof
    warnings: dict[tuple[str, str], None] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)
    """Resource that is counted by number -> the first pod that requested it."""
    recreated: int = 0
    untried: list[str] = field(default_factory=list)
    """Pods that the latest round recreated, and that no round has planned yet."""
    after: int = 0
    """Number of rounds of earlier runs."""
    failed: list[FailedNode] = field(default_factory=list)
    born: Sequence[str] = ()
    """Pods of workloads that were created after the latest round."""

    def fail(self, failures: Sequence[NodeFailure], evicted: Evicted) -> None:
        """Removes nodes that fail before the next round, and recreates their pods if `evicted` is `recreate`."""
        if not failures:
            return
        gone = remove_nodes([one.node for one in failures], self.state, self.claims)
        for failure in sorted(failures, key=lambda one: natural_key(one.node)):
            self.failed.append(FailedNode(failure, tuple(info.key for info in gone if info.node == failure.node)))
        self.budgets.changed(gone=gone, come=[])
        for info in gone if evicted == "recreate" else ():
            self._recreate(info.pod, "")

    def apply(self, plan: RoundPlan, number: int, evicted: Evicted) -> None:
        """Carries out a plan: evicts, binds, and recreates evicted pods. number: of the round."""
        # stage 1: collect proofs and warnings
        gangs = {self._gang(placement.pod_key) for placement in plan.placements}
        for report in plan.gangs:
            if report.proof is None:
                continue
            self.last_proofs[report.name, report.source] = str(report.proof)
            if report.name in gangs:
                self.bound_proofs[report.name, report.source] = str(report.proof)
        self.warnings.update(dict.fromkeys(plan.warnings))
        for about, resource in plan.parts_by_number:
            self.counted.setdefault(resource, about)
        self.warnings.update({(f"gang {report.name}", report.remark): None for report in plan.gangs if report.remark})
        self.warnings.update({(unit.unit, text): None for unit in plan.units for text in unit.solver_faults})
        self.warnings.update({(rejected.unit, rejected.text): None for rejected in plan.rejected})
        self.untried = []
        # stage 2: evict, then bind, so that a binding finds the capacity of the victims
        gone: list[tuple[Eviction, PodInfo]] = []
        for eviction in sorted(plan.evictions, key=lambda e: object_order(e.pod_key)):
            info = self.state.pod(eviction.pod_key)
            if info is None:
                continue
            gone.append((eviction, info))
            self.evictions.append(PodEviction(eviction, number))
            if eviction.victim_unit:
                self.state.preemption_history.add(eviction.victim_unit, eviction.unit, self.now.timestamp())
            self.state.delete(Pod, eviction.pod_key)
            self.claims.release(info.pod)
        for placement in plan.placements:
            annotations = dict(placement.annotations)
            self.state.bind(placement.pod_key, placement.node, annotations, placement.claims, placement.devices)
            self.bindings.append(RoundBinding(placement.pod_key, placement.node, number, annotations))
        come = [info for one in plan.placements if (info := self.state.pod(one.pod_key)) is not None]
        self.budgets.changed(gone=[info for _, info in gone], come=come)
        for eviction, info in gone:
            if evicted == "recreate" or eviction.rule in MOVING:
                self._recreate(info.pod, eviction.returns_to)

    def _gang(self, key: str) -> str | None:
        info = self.state.pod(key)
        return info.gang.key if info is not None and info.gang is not None else None

    def _recreate(self, pod: Pod, returns_to: str) -> None:
        """Recreates a pod. returns_to: for a moved pod, the node with its reserved capacity; empty for other pods."""
        self.recreated += 1
        again = made_again(pod, self.recreated, self.now, returns_to)
        self.state.upsert(self.claims.served(again))
        self.untried.append(again.key)

    def _quotas(self) -> tuple[tuple[str, QuotaAmounts, QuotaNode | None], ...]:
        """Returns the state of every quota, by key; built-in quotas only if pods use them."""
        quotas = self.state.snapshot(self.now.timestamp()).quotas
        own = quotas.tree.quotas
        found = [
            (own[name].key if name in own else name, amounts, own.get(name))
            for name, amounts in all_quota_amounts(quotas, self.config.quota).items()
        ]
        return tuple(sorted(found, key=lambda entry: object_order(entry[0])))

    def result(self, plan: RoundPlan, number: int, stable: bool) -> SimulationResult:
        """Returns the result, in the order of simulate.md 3."""
        reports = [*plan.gangs, *self._born_gangs()]
        named = Counter(report.name for report in reports)
        # a PodGroup without pods is not reported if a workload has its name
        told = (one for one in reports if one.members or one.workload is not None or named[one.name] == 1)
        gangs = sorted(told, key=lambda report: object_order(report.name))
        final = [(info.key, info.node) for info in self.state.pods() if info.bound]
        return SimulationResult(
            rounds=number - self.after,
            stable=stable,
            bindings=tuple(sorted(self.bindings, key=lambda b: (b.round, object_order(b.pod_key)))),
            evictions=tuple(sorted(self.evictions, key=lambda e: (object_order(e.eviction.pod_key), e.round))),
            pending=tuple(sorted(self._pending(plan), key=lambda p: object_order(p.pod_key))),
            gangs=tuple((report, self._proof(report)) for report in gangs),
            final=tuple(sorted(final, key=lambda item: object_order(item[0]))),
            warnings=tuple(
                sorted((*self.warnings, *((pod, counted_text(name)) for name, pod in self.counted.items())))
            ),
            quotas=self._quotas(),
            failures=tuple(self.failed),
            spares=plan.spares,
            claims=self.claim_rounds.document(),
            provisioning=tuple(provisioning_document(plan, self.state.provisioning_requests(), self.config, self.now)),
            backed_off=tuple(self.state.closed_nodes(self.now.timestamp()).document()),
            shares=tenant_shares(self.state.snapshot(self.now.timestamp()), self.config.fairness),
            recreated=self.recreated,
        )

    def _pending(self, plan: RoundPlan) -> list[PendingPod]:
        """Returns koordpy's pending pods at the end: those of the last plan, and pods that were created after it."""
        found = list(plan.pending)
        for key, text in (*((key, UNTRIED) for key in self.untried), *((key, UNTRIED_STEP) for key in self.born)):
            info = self.state.pod(key)
            if info is not None and info.pending:
                gang = info.gang.key if info.gang is not None else None
                found.append(PendingPod(key, gang or key, gang, Reason.UNSCHEDULABLE, text))
        return found

    def _born_gangs(self) -> list[GangReport]:
        """Returns the reports of gangs with pods that were created after the last round."""
        derived = self.state.snapshot(self.now.timestamp()).workload_gangs if self.born else {}
        waiting = [info for key in self.born if (info := self.state.pod(key)) is not None and info.pending]
        members = Counter(info.gang for info in waiting if info.gang in derived)
        return [
            GangReport(
                name=ref.key,
                members=number,
                min_member=derived[ref].min_member,
                bound=0,
                status=GangStatus.UNSCHEDULABLE,
                domain=None,
                proof=None,
                message=UNTRIED_STEP,
                source=ref.source,
                origin=derived[ref].origin,
                workload=names_of(derived[ref]),
            )
            for ref, number in members.items()
            if ref is not None
        ]

    def _proof(self, report: GangReport) -> str:
        """Returns the proof of the plan that bound the gang's members; without such a plan, the last proof of any plan.

        `UNPROVEN` if no plan included the gang (gang-network.md 6)."""
        of_bound = self.bound_proofs.get((report.name, report.source)) if report.bound else None
        return of_bound or self.last_proofs.get((report.name, report.source)) or UNPROVEN


def made_again(pod: Pod, number: int, now: datetime, returns_to: str = "") -> Pod:
    """Returns the pod as its owner would recreate it: pending, the newest of all pods, without data of its Binding.

    It has a new uid, and no annotations of its Binding. number: number of objects that a run has created after `now`,
    including this pod. returns_to: for a moved pod, the node with its reserved capacity; empty for other pods.
    """
    meta = replace(
        pod.metadata,
        annotations={k: text for k, text in pod.metadata.annotations.items() if not keys.is_written(k)},
        uid=made_up_uid("Pod", pod.metadata.uid, str(number)),
        creation_timestamp=exact_time(now + timedelta(milliseconds=number)),
        deletion_timestamp=None,
    )
    status = PodStatus(phase="Pending", nominated_node_name=returns_to)
    return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=""), status=status)


def joined(results: Sequence[SimulationResult]) -> SimulationResult:
    """Returns the result of consecutive runs: the actions of all runs, and the state at the end of the last run."""
    last = results[-1]
    proofs = {
        (report.name, report.source): proof for one in results for report, proof in one.gangs if proof != UNPROVEN
    }
    return changed(
        last,
        gangs=tuple(
            (report, proofs.get((report.name, report.source), proof) if report.bound and proof == UNPROVEN else proof)
            for report, proof in last.gangs
        ),
        rounds=sum(one.rounds for one in results),
        failures=tuple(failed for one in results for failed in one.failures),
        bindings=tuple(binding for one in results for binding in one.bindings),
        evictions=tuple(
            sorted(
                (eviction for one in results for eviction in one.evictions),
                key=lambda e: (object_order(e.eviction.pod_key), e.round),
            )
        ),
        warnings=tuple(sorted({warning for one in results for warning in one.warnings})),
    )
