"""One round: order the queue, plan unit by unit on one snapshot, say why the rest waits.

The one function that the live scheduler, `simulate`, `explain` and the tests call. The same Snapshot and configuration
give the same RoundPlan; nothing is remembered between calls but figures that depend on the nodes alone (PlannerCache).
Sources: gang-network.md sections 2, 6 and 8; simulate.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.build import build, partitions
from koordpy.planning.figures import Figures, PlannerCache
from koordpy.planning.order import Queue
from koordpy.planning.place import place_best
from koordpy.planning.plan import (
    GangReport,
    GangStatus,
    PendingPod,
    Placement,
    Proof,
    Reason,
    RoundPlan,
    SolverRun,
    UnitReport,
)
from koordpy.planning.resources_gate import check_min_resources
from koordpy.planning.units import Gang, Gate, Groups, Unit, gate, unenforced, wish_warnings
from koordpy.planning.verify import check_plan
from koordpy.planning.wording import filter_sentence, gang_sentence, met_sentence

__all__ = ["PlannerCache", "plan_round"]


@dataclass(frozen=True, slots=True)
class _Tried:
    """What became of one unit in this round."""

    unit: Unit
    proof: Proof
    gate: Gate | None = None
    nodes: Mapping[str, int] | None = None
    """Pod key -> node position."""
    runs: tuple[SolverRun, ...] = ()
    fault: str = ""


def plan_round(
    snapshot: Snapshot,
    config: KoordpyConfiguration | None = None,
    *,
    only: frozenset[str] | None = None,
    planner_cache: PlannerCache | None = None,
) -> RoundPlan:
    """Plans the pending units (or those of `only`, by unit id) in queue order.

    The gangs reported are all of the snapshot's, with `only` those of the units tried.
    """
    config = config or KoordpyConfiguration()
    groups = Groups(snapshot)
    draft = Draft(snapshot)
    figures = Figures(draft, config, planner_cache)
    units = [unit for unit in groups.units() if only is None or unit.id in only]
    queue = Queue(units, held=snapshot.user_devices, config=config.fairness)
    tried: list[_Tried] = []
    failed: dict[bytes, _Tried] = {}
    later: list[int] = []
    for unit in queue:
        shape = figures.key(unit.plain) if unit.plain is not None else None
        if shape is not None and shape in failed:
            tried.append(replace(failed[shape], unit=unit))
            continue
        outcome = _try(unit, groups, figures)
        tried.append(outcome)
        if outcome.nodes:
            queue.placed(snapshot.pods[key] for key in outcome.nodes)
        elif unit.plain is not None and shape is not None and not outcome.fault:
            if figures.of(unit.plain).follows:
                later.append(len(tried) - 1)
            else:
                failed[shape] = outcome
    _again(tried, later, figures, queue)
    return _report(groups, figures, tried, every=only is None)


def _again(tried: list[_Tried], later: list[int], figures: Figures, queue: Queue) -> None:
    """Plain pods that no node took, and that a pod placed after them may have made room for (affinity, spread)."""
    moved = True
    while moved:
        moved = False
        for i in list(later):
            unit = tried[i].unit
            if unit.plain is None or not figures.of(unit.plain).slots.any():
                continue
            later.remove(i)
            outcome = _plain(unit, unit.plain, figures)
            tried[i] = outcome
            if outcome.nodes:
                queue.placed([unit.plain])
                moved = True


def _plain(unit: Unit, pod: PodInfo, figures: Figures) -> _Tried:
    node = _best_node(pod, figures)
    if node is None:
        return _Tried(unit, Proof.INFEASIBLE)
    return _accept(unit, {pod.key: node}, figures, Proof.OPTIMAL, ())


def _try(unit: Unit, groups: Groups, figures: Figures) -> _Tried:
    if unit.plain is not None:
        return _plain(unit, unit.plain, figures)
    held = gate(unit, groups) or check_min_resources(unit, figures)
    if held is not None:
        return _Tried(unit, Proof.UNKNOWN, gate=held)
    problem = build(unit, figures)
    best = place_best(partitions(unit, problem, figures))
    if not best.placed:
        return _Tried(unit, best.proof, runs=best.runs)
    nodes = {unit.members[rank].key: node for rank, node in sorted(best.nodes.items())}
    return _accept(unit, nodes, figures, best.proof, best.runs)


def _best_node(pod: PodInfo, figures: Figures) -> int | None:
    """A plain pod's node: largest total, then fewest free slots, then natural name order (kube-parity.md 3)."""
    own = figures.of(pod)
    able = np.nonzero(own.slots > 0)[0]
    if not len(able):
        return None
    total = own.total[able]
    able = able[total == total.max()]
    if len(able) > 1:
        room = own.slots[able]
        able = able[room == room.min()]
        if len(able) > 1:
            return int(able[np.argmin(figures.snapshot.name_rank[able])])
    return int(able[0])


def _accept(unit: Unit, nodes: dict[str, int], figures: Figures, proof: Proof, runs: tuple[SolverRun, ...]) -> _Tried:
    """Checks a plan independently and puts it on the draft."""
    names = {key: figures.snapshot.nodes[node].name for key, node in nodes.items()}
    faults = check_plan(unit, names, figures)
    if faults:
        return _Tried(unit, Proof.UNKNOWN, runs=runs, fault="; ".join(faults[:3]))
    for key, node in nodes.items():
        pod = figures.snapshot.pods[key]
        figures.draft.assign(pod, node, figures.claims_at(pod, node), figures.devices_at(pod, node))
    return _Tried(unit, proof, nodes=nodes, runs=runs)


# -- what is said ------------------------------------------------------------------------------------------------------


def _after(pod: PodInfo, placed: Mapping[str, str]) -> PodInfo:
    return replace(pod, node=placed[pod.key], pending=False) if pod.key in placed else pod


def _unit_after(unit: Unit, placed: Mapping[str, str]) -> Unit:
    """The unit as it stands once the round's placements are bound."""
    if unit.plain is not None or not any(pod.key in placed for pod in unit.members):
        return unit
    gangs = tuple(replace(gang, pods=tuple(_after(pod, placed) for pod in gang.pods)) for gang in unit.gangs)
    return Unit(id=unit.id, gangs=gangs)


def _report(groups: Groups, figures: Figures, tried: list[_Tried], *, every: bool) -> RoundPlan:
    snapshot = figures.snapshot
    placed = {key: snapshot.nodes[node].name for one in tried if one.nodes for key, node in one.nodes.items()}
    placements: list[Placement] = []
    pending: list[PendingPod] = []
    units: list[UnitReport] = []
    gang_reports: dict[str, GangReport] = {}
    sentences: dict[tuple[bytes, bool], tuple[str, tuple[str, ...]]] = {}
    for one in tried:
        after = _unit_after(one.unit, placed)
        placements += _placements(one, after, figures)
        texts = _denials(one, after, figures, sentences)
        pending += texts
        units.append(_unit_report(one, after, figures))
        by_gang = {p.gang: p.message for p in reversed(texts)}
        for gang in after.gangs:
            message = by_gang.get(gang.key, "")
            gang_reports[gang.ref.source.value + gang.key] = _gang_report(gang, after, figures, one, message)
    for ref in groups.every() if every else ():
        if ref.source.value + ref.key not in gang_reports:
            report = _gang_report(groups.gang(ref), groups.unit(ref), figures, None, "")
            gang_reports[ref.source.value + ref.key] = report
    return RoundPlan(
        placements=tuple(placements),
        evictions=(),
        pending=tuple(pending),
        gangs=tuple(gang_reports.values()),
        units=tuple(units),
        warnings=tuple(_warnings([one.unit for one in tried], figures)),
    )


def _warnings(units: list[Unit], figures: Figures) -> list[tuple[str, str]]:
    """What a setting asks for and the planner does not do."""
    mode = figures.config.fairness.mode
    out = wish_warnings(units, figures.snapshot) + unenforced(units, figures.snapshot)
    if mode in ("exact", "kai"):
        text = f"fairness.mode {mode} is not built yet: the order is that of gpu-count"
        out.append(("KoordpyConfiguration", text))
    return out


def _domain(unit: Unit, figures: Figures, pods: tuple[PodInfo, ...]) -> tuple[int, int] | None:
    """(level, domain) that holds bound pods; None without a gather goal, a topology object or such a pod."""
    tree = figures.snapshot.tree
    at = [tree.index[pod.node] for pod in pods if pod.node in tree.index]
    if not at or not unit.has_goal or not tree.has_object:
        return None
    return tree.lowest_common(at)


def _placements(one: _Tried, after: Unit, figures: Figures) -> list[Placement]:
    if not one.nodes:
        return []
    snapshot = figures.snapshot
    notes: dict[str, str] = {}
    ranks: dict[str, int] = {}
    if one.unit.plain is None:
        ranks = {pod.key: rank for rank, pod in enumerate(one.unit.members)}
        where = _domain(after, figures, tuple(pod for pod in after.members if pod.bound))
        if where is not None:
            notes[keys.BOUND_DOMAIN] = snapshot.tree.path(*where)
        if len(one.nodes) > 1:
            notes[keys.BIND_GROUP_ID] = one.unit.group_id
            notes[keys.BIND_MEMBER_COUNT] = str(len(one.nodes))
    out = []
    for key, node in one.nodes.items():
        own = {keys.BOUND_RANK: str(ranks[key]), **notes} if key in ranks else {}
        pod = snapshot.pods[key]
        claims, devices = figures.draft.claims(key), figures.draft.allocations(key)
        out.append(Placement(key, pod.uid, snapshot.nodes[node].name, own, one.unit.id, claims, devices))
    return out


def _denials(
    one: _Tried,
    after: Unit,
    figures: Figures,
    sentences: dict[tuple[bytes, bool], tuple[str, tuple[str, ...]]],
) -> list[PendingPod]:
    """One entry for each member that still waits."""
    out: list[PendingPod] = []
    waiting = after.pending if one.unit.plain is None else () if one.nodes else (one.unit.plain,)
    if not waiting:
        return out
    if one.gate is not None or one.fault:
        text = one.gate.text if one.gate is not None else f"plan refused by its check: {one.fault}"
        reason = one.gate.reason if one.gate is not None else Reason.SCHEDULER_ERROR
        for pod in waiting:
            gang = pod.gang.key if pod.gang is not None else None
            out.append(PendingPod(pod.key, one.unit.id, gang, reason, text, gated=one.gate is not None))
        return out
    alone = one.unit.plain is not None
    tail = ""
    met: dict[str, str] = {}
    if not alone:
        tail, met = gang_sentence(after, figures), met_sentence(after)
        if one.proof is Proof.UNKNOWN:
            tail += "; not decided in time"
    for pod in waiting:
        key = figures.key(pod)
        known = sentences.get((key, alone))
        if known is None:
            known = sentences[key, alone] = filter_sentence(pod, figures, alone=alone)
        text, plugins = known
        gang = pod.gang.key if pod.gang is not None else None
        if not alone:
            text = f"{text} {met.get(gang or '', '')}{tail}"
        out.append(PendingPod(pod.key, one.unit.id, gang, Reason.UNSCHEDULABLE, text, plugins=plugins))
    return out


def _gang_report(gang: Gang, unit: Unit, figures: Figures, one: _Tried | None, message: str) -> GangReport:
    tree = figures.snapshot.tree
    bound = len(gang.bound)
    if one is not None and one.gate is not None and one.gate.status is GangStatus.INVALID:
        status = GangStatus.INVALID
    elif bound and bound >= gang.min_member:
        status = GangStatus.SCHEDULED
    elif one is not None and one.gate is not None:
        status = one.gate.status
    elif one is not None and one.fault:
        status = GangStatus.INVALID
    elif not gang.pending or len(gang.members) + gang.succeeded < gang.min_member:
        status = GangStatus.INCOMPLETE
    else:
        status = GangStatus.UNSCHEDULABLE
    where = _domain(unit, figures, gang.bound)
    return GangReport(
        name=gang.key,
        members=len(gang.members),
        min_member=gang.min_member,
        bound=bound,
        status=status,
        domain=(tree.layer_name(where[0]), tree.path(*where)) if where is not None else None,
        proof=one.proof if one is not None else None,
        message=message,
    )


def _unit_report(one: _Tried, after: Unit, figures: Figures) -> UnitReport:
    bound = tuple(pod for pod in after.members if pod.bound)
    where = _domain(after, figures, bound) if one.nodes else None
    crossings, ring = _crossings(after, figures, bound) if where is not None else (None, None)
    return UnitReport(
        unit=one.unit.id,
        pod_keys=tuple(pod.key for pod in one.unit.pending),
        placed=len(one.nodes or ()),
        proof=one.proof,
        layer=figures.snapshot.tree.layer_name(where[0]) if where is not None else None,
        solver=one.runs,
        pipeline_crossings=crossings,
        ring_crossings=ring,
    )


def _crossings(unit: Unit, figures: Figures, bound: tuple[PodInfo, ...]) -> tuple[dict[str, int] | None, int]:
    """Layer -> pipeline groups whose lowest common layer it is; ring neighbours on different nodes."""
    tree = figures.snapshot.tree
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
