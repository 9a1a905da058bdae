"""What a round says: placements with their annotations, why the rest waits, every gang's state.

Sources: gang-network.md sections 2.7 and 6; kube-parity.md 1.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from koordpy.api import keys
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.reservations import Purpose
from koordpy.cluster.snapshot import Ints
from koordpy.planning.attempt import Tried, unit_shape
from koordpy.planning.figures import Figures
from koordpy.planning.gangs import Gang, names_of
from koordpy.planning.plan import (
    Deferred,
    GangReport,
    GangStatus,
    PendingPod,
    Placement,
    Proof,
    Reason,
    RejectedPlan,
    RoundPlan,
    UnitReport,
)
from koordpy.planning.quota.admission import PLUGIN
from koordpy.planning.units import Groups, Unit
from koordpy.planning.victims.overuse import GivenBack
from koordpy.planning.victims.stale import StaleGang
from koordpy.planning.words.denial import KEPT, filter_sentence, met_sentence, needed_sentence
from koordpy.planning.words.evictions import (
    benefit,
    evictions,
    given_back_evictions,
    never_preempts,
    nominations,
    preemption_sentence,
    stale_evictions,
)
from koordpy.planning.words.warnings import goal_remark, warnings_of


@dataclass
class _Said:
    """What was said in this round, and is said again of pods and units of the same shape."""

    step: Callable[[], None]
    """Called before anything new is said."""
    sentences: dict[tuple[bytes, bool, bool], tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    rooms: dict[Hashable, str] = field(default_factory=dict)

    def sentence(
        self, pod: PodInfo, key: bytes, figures: Figures, *, alone: bool, beside: bool
    ) -> tuple[str, tuple[str, ...]]:
        """What filters say of pods like this one, and which. beside: as they are where a start is promised."""
        known = self.sentences.get((key, alone, beside))
        if known is None:
            self.step()
            if alone and beside:
                known = filter_sentence(pod, figures, alone=False, passing=KEPT)
            else:
                known = filter_sentence(pod, figures, alone=alone)
            self.sentences[key, alone, beside] = known
        return known

    def needed(self, unit: Unit, figures: Figures, *, beside: bool) -> str:
        """What a gang needs and what there is."""
        shape = None if beside else unit_shape(unit, figures)
        known = self.rooms.get(shape) if shape is not None else None
        text = known or needed_sentence(unit, figures)
        if shape is not None:
            self.rooms[shape] = text
        return f"gang {unit.group_id}: {text}"


def report(
    groups: Groups,
    figures: Figures,
    tried: list[Tried],
    *,
    every: bool,
    stale: Sequence[StaleGang] = (),
    given: Sequence[GivenBack] = (),
    rejected: Sequence[RejectedPlan] = (),
    kept: Ints | None = None,
    step: Callable[[], None] = lambda: None,
) -> RoundPlan:
    """The RoundPlan of what was tried.

    every: with the gangs that nothing was planned for; stale: those that give up; given: what quotas
    over their runtime give back; rejected: what was refused of these; kept: [nodes, resources] for a promised start;
    step: called before each unit, and before each kind of pod that something is said of.
    """
    snapshot = figures.snapshot
    placed = {key: snapshot.nodes[node].name for one in tried if one.nodes for key, node in one.nodes.items()}
    placements: list[Placement] = []
    pending: list[PendingPod] = []
    units: list[UnitReport] = []
    gang_reports: dict[str, GangReport] = {}
    said = _Said(step)
    deferred: list[Deferred] = []
    for one in tried:
        step()
        if one.deferred:
            deferred.append(Deferred(one.unit.id, one.kept_off, one.interrupted, one.passed_over, one.seconds))
            continue
        after = one.unit.after(placed, figures.draft.evicted)
        placements += _placements(one, after, figures)
        with figures.draft.beside(Purpose.PROMISED, kept) if one.behind and kept is not None else nullcontext():
            texts = _denials(one, after, figures, said)
        pending += texts
        units.append(_unit_report(one, after, figures))
        by_gang = {p.gang: p.message for p in reversed(texts)}
        for gang in after.gangs if after.is_gang else ():
            message = by_gang.get(gang.key, "")
            gang_reports[gang.ref.source.value + gang.key] = _gang_report(gang, after, figures, one, message)
    for ref in groups.every() if every else ():
        if ref.source.value + ref.key not in gang_reports:
            unit = groups.unit(ref).after(placed, figures.draft.evicted)
            # the rest of its group was not tried either, and is told of with it
            for gang in unit.gangs:
                known = _gang_report(gang, unit, figures, None, "")
                gang_reports.setdefault(gang.ref.source.value + gang.ref.key, known)
    evicting = [one for one in tried if one.victims]
    return RoundPlan(
        placements=tuple(placements),
        evictions=(
            *(eviction for one in evicting for eviction in evictions(one, figures)),
            *(eviction for one in stale for eviction in stale_evictions(one)),
            *(eviction for one in given for eviction in given_back_evictions(one)),
        ),
        pending=tuple(pending),
        gangs=tuple(gang_reports.values()),
        units=tuple(units),
        nominations=tuple(nomination for one in evicting for nomination in nominations(one, one.nodes or {}, figures)),
        awaiting=tuple(
            nomination for one in tried if one.awaits for nomination in nominations(one, one.awaits, figures)
        ),
        rejected=(*(plan for one in tried for plan in one.rejected), *rejected),
        benefits=tuple(benefit(one, figures) for one in evicting),
        warnings=tuple(warnings_of([one.unit for one in tried if not one.deferred], groups)),
        deferred=tuple(deferred),
    )


def _domain(unit: Unit, figures: Figures, pods: tuple[PodInfo, ...]) -> tuple[int, int] | None:
    """(level, domain) that holds bound pods; None without a gather goal, a topology object or such a pod."""
    tree = figures.snapshot.tree
    at = [tree.index[pod.node] for pod in pods if pod.node in tree.index]
    if not at or not unit.has_goal or not tree.has_object:
        return None
    return tree.lowest_common(at)


def _placements(one: Tried, after: Unit, figures: Figures) -> list[Placement]:
    if not one.nodes:
        return []
    snapshot = figures.snapshot
    notes: dict[str, str] = {}
    ranks: dict[str, int] = {}
    if one.unit.is_gang:
        ranks = one.unit.ranks()
        where = _domain(after, figures, tuple(pod for pod in after.members if pod.bound))
        if where is not None:
            notes[keys.BOUND_DOMAIN] = snapshot.tree.path(*where)
        if len(one.nodes) > 1:
            notes[keys.BIND_GROUP_ID] = one.unit.group_id
            notes[keys.BIND_MEMBER_COUNT] = str(len(one.nodes))
    out = []
    for key, node in one.nodes.items():
        own = {keys.BOUND_RANK: str(ranks[key]), **notes} if key in ranks else {}
        own.update(one.notes.get(key, {}))
        pod = snapshot.pods[key]
        own = {**_false(pod, own), **own}
        claims, devices = figures.draft.claims(key), figures.draft.allocations(key)
        chips = figures.draft.chips.get(key, ())
        out.append(Placement(key, pod.uid, snapshot.nodes[node].name, own, one.unit.id, claims, devices, chips))
    return out


def _false(pod: PodInfo, own: dict[str, str]) -> dict[str, str]:
    """Nothing for each annotation of ours that a pod had before its Binding, which adds to them and takes none away."""
    return {key: "" for key in pod.pod.metadata.annotations if keys.is_written(key) and key not in own}


def _denials(one: Tried, after: Unit, figures: Figures, words: _Said) -> list[PendingPod]:
    """One entry for each member that still waits."""
    waiting = after.pending if one.unit.plain is None else () if one.nodes else (one.unit.plain,)

    def told(pod: PodInfo, reason: Reason, text: str, plugins: tuple[str, ...], *, gated: bool = False) -> PendingPod:
        gang = pod.gang.key if pod.gang is not None else None
        return PendingPod(pod.key, one.unit.id, gang, reason, text, gated=gated, plugins=plugins)

    if not waiting:
        return []
    if one.gate is not None or one.fault:
        text = one.gate.text if one.gate is not None else f"plan refused by its check: {one.fault}"
        reason = one.gate.reason if one.gate is not None else Reason.SCHEDULER_ERROR
        asked = one.gate.plugins if one.gate is not None else ()
        held = one.gate is not None and not asked
        return [told(pod, reason, text, asked, gated=held) for pod in waiting]
    refusal = figures.admission.core_refusal(after, figures.draft.quotas) if one.nodes or one.refusal else None
    if refusal is None and not one.nodes:
        refusal = one.refusal
    if refusal is not None:
        text = " ".join((refusal.text(len(figures.snapshot.nodes)), *one.reasons))
        return [told(pod, Reason.UNSCHEDULABLE, text, (PLUGIN,)) for pod in waiting]
    alone = not one.unit.is_gang
    tail = ""
    met: dict[str, str] = {}
    never = never_preempts(one.unit)
    refused = next((run for run in one.runs if run.fault), None)
    if not alone:
        tail, met = words.needed(after, figures, beside=one.behind), met_sentence(after)
        if one.proof is Proof.UNKNOWN and refused is None:
            tail += "; not decided in time"
    if one.proof is Proof.UNKNOWN and refused is not None:
        tail += f"{'' if alone else ';'} not decided, the solver refused ({refused.stage}): {refused.fault}"
    if one.hold:
        tail += f"{'' if alone else ';'} {one.hold}"
    if one.remark:
        tail += f" pod {waiting[0].key}: {one.remark}" if alone else f"; {one.remark}"
    out: list[PendingPod] = []
    said: dict[tuple[bytes, str | None, str | None], tuple[str, tuple[str, ...]]] = {}
    for pod in waiting:
        gang = pod.gang.key if pod.gang is not None else None
        key = figures.key(pod)
        alike = (key, pod.pod.spec.preemption_policy, gang)
        known = None if pod.nominated_node else said.get(alike)
        if known is None:
            text, plugins = words.sentence(pod, key, figures, alone=alone, beside=one.behind)
            if one.awaits and not alone:
                # one sentence for all of them, that stays as it is while the pods end
                known = f"0/{len(figures.snapshot.nodes)} nodes are available: {one.reasons[0]}", plugins
            else:
                text = " ".join(
                    part for part in (text, preemption_sentence(pod, figures, never=never), *one.reasons) if part
                )
                if not alone:
                    text = f"{text} {met.get(gang or '', '')}"
                known = text + tail, plugins
            if not pod.nominated_node:
                said[alike] = known
        out.append(told(pod, Reason.UNSCHEDULABLE, *known))
    return out


def _gang_report(gang: Gang, unit: Unit, figures: Figures, one: Tried | None, message: str) -> GangReport:
    tree = figures.snapshot.tree
    bound = len(gang.bound)
    if one is not None and one.gate is not None and one.gate.status is GangStatus.INVALID:
        status = GangStatus.INVALID
    elif gang.whole:
        status = GangStatus.SCHEDULED
    elif one is not None and one.gate is not None:
        status = one.gate.status
    elif one is not None and one.fault:
        status = GangStatus.INVALID
    elif not gang.pending or unit.present(gang) < gang.min_member:
        status = GangStatus.INCOMPLETE
    else:
        status = GangStatus.UNSCHEDULABLE
    where = _domain(unit, figures, gang.bound)
    waits = gang.waits_for_members(unit.present(gang))
    if not message and not gang.members and gang.succeeded < gang.min_member:
        message = waits  # there is nobody whose message could be taken
    if bound and not gang.whole and gang.derived is not None and gang.by_workload and not gang.pending:
        maker = gang.derived.maker
        message = f"{bound} of {gang.min_member} members, {maker} has not made the others"
    elif bound and not gang.whole:
        message = f"{gang.present} of {gang.min_member} members; {message or waits}"
    return GangReport(
        name=gang.key,
        members=len(gang.members),
        min_member=gang.min_member,
        bound=bound,
        status=status,
        domain=(tree.layer_name(where[0]), tree.path(*where)) if where is not None else None,
        proof=one.proof if one is not None else None,
        message=message,
        source=gang.ref.source,
        origin=gang.origin,
        workload=names_of(gang.derived),
        remark=goal_remark(one.unit, figures) if one is not None and one.nodes else "",
        awaits=one is not None and bool(one.awaits),
    )


def _unit_report(one: Tried, after: Unit, figures: Figures) -> UnitReport:
    bound = tuple(pod for pod in after.members if pod.bound)
    where = _domain(after, figures, bound) if one.nodes else None
    crossings, ring = _crossings(after, figures, bound) if where is not None else (None, None)
    return UnitReport(
        unit=one.unit.id,
        pod_keys=tuple(pod.key for pod in one.unit.pending),
        placed=len(one.nodes or ()),
        proof=one.proof,
        layer=figures.snapshot.tree.layer_name(where[0]) if where is not None else None,
        method=str(one.method),
        seconds=one.seconds,
        solver=one.runs,
        pipeline_crossings=crossings,
        ring_crossings=ring,
        gpu_bottlenecks_gbps=_bottlenecks(one, figures),
    )


def _bottlenecks(one: Tried, figures: Figures) -> tuple[float, ...]:
    snapshot, chips = figures.snapshot, figures.draft.chips
    machines = snapshot.gpus.nodes
    found = [
        machines[name].machine.bottleneck_kbs(chips[key])
        for key, node in (one.nodes or {}).items()
        if key in chips and snapshot.pods[key].gpus is not None and (name := snapshot.nodes[node].name) in machines
    ]
    return tuple(kbs / 1e6 for kbs in found if kbs is not None)


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
