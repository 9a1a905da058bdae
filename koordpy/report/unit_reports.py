# SPDX-License-Identifier: Apache-2.0
"""Composes the reports of gangs and units in a round plan, for the status of PodGroups, metrics and `koordpy simulate`.

A gang's report has its status, its message, the proof, and the domain of its bound members. A unit's report has the
method and the solver runs of its attempt, and measures of its placement: how often the ring and the pipeline groups
cross domains, and the lowest bandwidth between its GPUs. Source: gang-network.md 2.7.
"""

from collections.abc import Mapping

from koordpy.attempts.unit_outcome import (
    DecidedUnit,
    PlacedUnit,
    RejectedUnit,
    WaitingUnit,
)
from koordpy.devices.family_registry import bottlenecks
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import missing_members
from koordpy.gangs.gang_settings import Gang, names_of
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.round_plan import (
    GangReport,
    GangStatus,
    PendingPod,
    Proof,
    UnitReport,
)
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.preemption_names import NO_GUARD, WITHHOLDING
from koordpy.report.repair_report import gang_repair
from koordpy.report.setting_warnings import goal_remark


def bound_domain(unit: Unit, round_state: RoundState, pods: tuple[PodInfo, ...]) -> tuple[int, int] | None:
    """Returns the (level, domain) of the lowest domain that contains all given bound pods.

    None without a gather goal, without a ClusterNetworkTopology, or if no pod is on a node of the tree.
    """
    tree = round_state.snapshot.tree
    at = [tree.index[pod.node] for pod in pods if pod.node in tree.index]
    if not at or not unit.has_goal or not tree.has_object:
        return None
    return tree.lowest_common(at)


def gang_report(
    gang: Gang, unit: Unit, round_state: RoundState, one: DecidedUnit | None, first: PendingPod | None, never: str = ""
) -> GangReport:
    """Returns the report of one gang of a unit.

    one: outcome of the unit; None if this round has not planned it. first: the verdict on one of the gang's pending
    members; None without any. never: why the unit never fits; empty if it may fit.
    """
    message = first.message if first is not None else ""
    tree = round_state.snapshot.tree
    bound = len(gang.bound)
    match one:
        case WaitingUnit(diagnosis=Gate(status=GangStatus.INVALID)):
            status = GangStatus.INVALID
        case _ if missing_members(gang):
            status = GangStatus.DEGRADED
        case _ if gang.whole:
            status = GangStatus.SCHEDULED
        case WaitingUnit(diagnosis=Gate(status=status)):
            pass
        case RejectedUnit():
            status = GangStatus.INVALID
        case _ if not gang.pending or unit.present(gang) < gang.min_member:
            status = GangStatus.INCOMPLETE
        case _:
            status = GangStatus.UNSCHEDULABLE
    # a message for a gang without one, and for a gang that is half bound
    where = bound_domain(unit, round_state, gang.bound)
    waits = gang.waits_for_members(unit.present(gang))
    if not message and not gang.members and gang.succeeded < gang.min_member:
        message = waits  # no pod of the gang has a message
    if bound and not gang.whole and gang.workload_gang is not None and gang.by_workload and not gang.pending:
        maker = gang.workload_gang.maker
        message = f"{bound} of {gang.min_member} members, {maker} has not made the others"
    elif bound and not gang.whole:
        lacks = gang.min_member - gang.present
        needed = f"{lacks} more {'is' if lacks == 1 else 'are'} needed: " if lacks > 0 else ""
        message = f"{gang.present} of {gang.min_member} members; {needed}{message or waits}"
    return GangReport(
        name=gang.key,
        members=len(gang.members),
        min_member=gang.min_member,
        bound=bound,
        status=status,
        domain=(tree.layer_name(where[0]), tree.path(*where)) if where is not None else None,
        proof=_proof_of(one, never) if one is not None else None,
        message=message,
        source=gang.ref.source,
        origin=gang.origin,
        workload=names_of(gang.workload_gang),
        remark=goal_remark(one.unit, round_state) if isinstance(one, PlacedUnit) else "",
        awaits=isinstance(one, WaitingUnit) and bool(one.awaits),
        never=never if gang.pending else "",
        reason=first.written_reason if first is not None else None,
        repair=gang_repair(gang, round_state.snapshot, round_state.config.repair),
    )


def _proof_of(one: DecidedUnit, never: str) -> Proof:
    return Proof.INFEASIBLE if never else one.attempt.proof


def unit_report(one: DecidedUnit, after: Unit, round_state: RoundState, never: str) -> UnitReport:
    """Returns the report of a unit. after: the unit as if the placements of the plan were bound.

    never: why the unit never fits; empty if it may fit.
    """
    bound = tuple(pod for pod in after.members if pod.bound)
    nodes = one.nodes if isinstance(one, PlacedUnit) else {}
    withheld = one.withheld if isinstance(one, WaitingUnit) else NO_GUARD
    where = bound_domain(after, round_state, bound) if nodes else None
    crossings, ring = _crossings(after, round_state, bound) if where is not None else (None, None)
    return UnitReport(
        unit=one.unit.id,
        pod_keys=tuple(pod.key for pod in one.unit.pending),
        placed=len(nodes),
        proof=_proof_of(one, never),
        layer=round_state.snapshot.tree.layer_name(where[0]) if where is not None else None,
        method=str(one.attempt.method),
        seconds=one.attempt.seconds,
        solver=one.attempt.runs,
        pipeline_crossings=crossings,
        ring_crossings=ring,
        withheld=tuple(guard for guard in WITHHOLDING if guard in withheld),
        gpu_bottlenecks_gbps=_bottlenecks(nodes, round_state),
        never=never,
    )


def _bottlenecks(nodes: Mapping[str, int], round_state: RoundState) -> tuple[float, ...]:
    """Returns, for each placed pod with several GPUs, the lowest bandwidth between two of its GPUs, in GB/s.

    nodes: pod key -> node position.
    """
    asking = {key: node for key, node in nodes.items() if round_state.snapshot.pods[key].asks}
    return bottlenecks(asking, round_state) if asking else ()


def _crossings(unit: Unit, round_state: RoundState, bound: tuple[PodInfo, ...]) -> tuple[dict[str, int] | None, int]:
    """Returns two measures of a placement: layer -> number of pipeline groups for which it is the lowest common layer;
    number of neighbours in the ring that are on different nodes.

    The first value is None without pipeline groups. The ring is the bound members in rank order, with the last member
    next to the first.
    """
    tree = round_state.snapshot.tree
    at = {pod.key: tree.index[pod.node] for pod in bound if pod.node in tree.index}
    ring = [at[pod.key] for pod in unit.members if pod.key in at]
    changes = sum(a != b for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    if unit.pipeline < 2:
        return None, changes
    layers: dict[str, int] = {}
    for start in range(0, len(unit.members), unit.pipeline):
        group = [at[p.key] for p in unit.members[start : start + unit.pipeline] if p.key in at]
        if group:
            name = tree.layer_name(tree.lowest_common(group)[0])
            layers[name] = layers.get(name, 0) + 1
    return layers, changes
