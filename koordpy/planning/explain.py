"""Why a pod, or its gang, fits where it does: each node's verdict, each domain's slots, the nearest misses.

Source: simulate.md 5; gang-network.md section 6. Nothing is placed; the words are the planner's own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.api.counted import counted
from koordpy.api.natural import natural_key
from koordpy.api.spelling import meant
from koordpy.cluster.pods import GangSource, PodInfo
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.accelerators.registry import families_of
from koordpy.planning.ascend.filter import AFFINITY
from koordpy.planning.attempt import gate_of
from koordpy.planning.build import build, unit_multiples
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.place import affinity_scores, place_npus
from koordpy.planning.joint import place_gang
from koordpy.planning.placement.problem import Problem
from koordpy.planning.plan import ranks_proven
from koordpy.planning.queue.backfill import NO_PROMISE, moment
from koordpy.planning.queue.standing import Standing, standing
from koordpy.planning.round import plan_round
from koordpy.planning.units import Unit
from koordpy.planning.what_if import WhatIf
from koordpy.planning.words.denial import domain_slots
from koordpy.planning.words.ignored_pods import IgnoredPod, aside
from koordpy.planning.words.quota_misses import let_through, quota_misses
from koordpy.planning.words.relaxations import relaxed_misses
from koordpy.planning.words.suggestions import NEAREST, closed_misses, node_misses
from koordpy.planning.words.warnings import goal_remark, warnings_of

RANKS_OPEN = "rank order: not proven best"
"""Said of a gang whose plan is settled but for goal 7 (gang-network.md 5)."""


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """One node against the pod alone. reasons: (plugin, code, message); scores unweighted, feasible nodes only."""

    node: str
    feasible: bool
    reasons: tuple[tuple[str, str, str], ...]
    scores: dict[str, float]
    total: int


class DomainExplanation(NamedTuple):
    """One domain above the node layer, and the chosen one: slots for further pods against the pods to place."""

    layer: str
    name: str
    slots: int
    needed: int
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Answer of `explain`."""

    pod: str
    gang: str | None
    feasible_nodes: int = 0
    nodes: tuple[NodeExplanation, ...] = ()
    domains: tuple[DomainExplanation, ...] = ()
    message: str = ""
    would_fit_if: tuple[str, ...] = ()
    method: str = ""
    """What found its plan, or that there is none, in a round of its own; empty where nothing was looked for."""
    origin: str | None = None
    """Why its gang is one; None for a plain pod."""
    standing: Standing | None = None
    """Its place in the queue; None for a pod that does not wait."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of settings that do nothing."""


def explain(snapshot: Snapshot, config: KoordpyConfiguration | None, pod_key: str) -> Explanation:
    """Explains one known pod. Raises KeyError for an unknown one; of one that koordpy has nothing to do for, why."""
    pod = snapshot.pods[pod_key]
    figures = Figures(Draft(snapshot), config or KoordpyConfiguration())
    groups = figures.groups
    unit = groups.unit_of(pod)
    if not pod.pending:
        left = left_alone(pod, figures.config.scheduler_names)
        return Explanation(
            pod=pod.key,
            gang=pod.gang.key if pod.gang else None,
            origin=groups.gang(pod.gang).origin if pod.gang else None,
            message=left.why,
            would_fit_if=(left.miss,) if left.miss else (),
            warnings=tuple(warnings_of([], groups)),
        )
    nodes = _nodes(pod, unit, figures)
    held = gate_of(unit, figures)
    domains: tuple[DomainExplanation, ...] = ()
    misses, method, order = list[str](), "", ""
    admission, use = figures.admission, figures.draft.quotas
    turn = WhatIf(snapshot, figures.config, unit)
    alone = turn.alone() if held is None else None
    lent = alone is not None and turn.lent(alone)
    refusal = admission.refusal(unit, use) if held is None and not lent else None
    if refusal is None and unit.is_gang and held is None and not (lent and admission.refusal(unit, use) is not None):
        domains, misses = _domains(unit, figures)
        if not any(domain.chosen for domain in domains):
            refusal = admission.core_refusal(unit, use)  # its members differ: that no core passes is known only now
    feasible = sum(node.feasible for node in nodes)
    lacks = node_misses(pod, figures) if not feasible else []
    if refusal is not None:
        room = _domains(unit, figures)[1] if unit.is_gang else lacks
        domains, misses, lacks = (), quota_misses(unit, admission, use), []
        if refusal.limit is not None and not turn.admitted(let_through(unit, admission, use)):
            rooms = room[:NEAREST] or ["there were room for it"]
            misses = [f"{quota}, and {one}" for quota in misses for one in rooms]
    if feasible and misses and refusal is None:
        misses += closed_misses(pod, figures)
    if held is not None:
        misses += _meant_group(pod, snapshot)
    if feasible and refusal is None and not any(domain.chosen for domain in domains):
        misses += _independent(unit)
    if alone is not None:
        misses += [one for one in turn.misses(alone) if one not in misses]
        found = next((one for one in alone.units if one.unit == unit.id), None)
        if found is not None:
            method = found.method
            order = "" if not found.placed or ranks_proven(found.solver) else RANKS_OPEN
    message, miss = _promise(snapshot, config, unit.id) if held is None else ("", [])
    misses += miss
    message = message or order
    return Explanation(
        pod=pod.key,
        gang=pod.gang.key if pod.gang is not None else None,
        origin=groups.gang(pod.gang).origin if pod.gang is not None else None,
        feasible_nodes=feasible,
        nodes=tuple(sorted(nodes, key=lambda node: natural_key(node.node))),
        domains=domains,
        message=held.text if held is not None else refusal.text(len(nodes)) if refusal is not None else message,
        would_fit_if=tuple(misses + lacks),
        method=method,
        standing=standing(unit, groups, snapshot, figures.config),
        warnings=(
            *warnings_of([unit], groups),
            *((f"gang {gang.key}", remark) for gang in unit.gangs if (remark := goal_remark(unit, figures))),
        ),
    )


def _independent(unit: Unit) -> list[str]:
    """The way out for tasks that do not need each other, where nobody asked for their gang and nothing of it runs."""
    gang = unit.gangs[0] if unit.gangs else None
    if gang is None or gang.derived is None or not gang.derived.presumed or unit.bound_any:
        return []
    return [f'its pods were independent: annotation {keys.GANG_AUTO}: "off" on {gang.derived.title} makes them plain']


def _meant_group(pod: PodInfo, snapshot: Snapshot) -> list[str]:
    """The PodGroup that a pod may have meant by a name that there is not."""
    if pod.gang is None or pod.gang.source is not GangSource.GROUP or pod.gang.key in snapshot.pod_groups:
        return []
    near = meant(pod.gang.key, snapshot.pod_groups)
    return [f"its label named {near.partition('/')[2]}: PodGroup {near} is there"] if near else []


def left_alone(pod: PodInfo, served: Sequence[str]) -> IgnoredPod:
    """Why a pod that is not pending is not to be placed."""
    return aside(pod, served) or IgnoredPod(f"pod is {_state(pod)}", "")


def _state(pod: PodInfo) -> str:
    if pod.node:
        return f"bound to {pod.node}"
    return "being deleted" if pod.pod.metadata.deletion_timestamp else pod.pod.status.phase


def _promise(snapshot: Snapshot, config: KoordpyConfiguration | None, unit: str) -> tuple[str, list[str]]:
    """What `queue.backfill` promises a unit, as (message, nearest misses); nothing unless it is the first to wait."""
    if config is None or not config.queue.backfill:
        return "", []
    plan = plan_round(snapshot, config)
    if plan.reservation is not None and plan.reservation.unit == unit:
        start = moment(plan.reservation.start)
        return f"start promised at {start}", [f"it were {start}: by then enough running pods will have ended"]
    said = next((one.message for one in plan.pending if one.unit == unit), "")
    # units of equal shape share a verdict
    told = (
        next((text for text in plan.reservation.kept.values() if said.endswith(text)), "") if plan.reservation else ""
    )
    if plan.reservation is not None and told:
        return told, [f"it said that it ends by {moment(plan.reservation.start)} (max-runtime): {told}"]
    return (NO_PROMISE, []) if said.endswith(NO_PROMISE) else ("", [])


def _nodes(pod: PodInfo, unit: Unit, figures: Figures) -> list[NodeExplanation]:
    own = figures.of(pod)
    verdict = own.verdict()
    scores: dict[str, Sequence[float]] = {plugin: values.tolist() for plugin, values in own.plugin_scores().items()}
    if own.chips is not None:
        scores[AFFINITY] = affinity_scores(pod, unit, figures)
    total = own.total.tolist()
    marks = [mark for family in families_of(pod) if (mark := family.mark(pod, figures.scene)) is not None]
    out = []
    for i, node in enumerate(figures.snapshot.nodes):
        refusal = own.refusal or verdict.of(i)
        if refusal is None:
            shown: dict[str, float] = {plugin: values[i] for plugin, values in sorted(scores.items())}
            for name, of in marks:
                if (figure := of(i)) is not None:
                    shown[name] = round(figure, 2)
            out.append(NodeExplanation(node.name, True, (), shown, total[i]))
        else:
            reasons = tuple((refusal.plugin, refusal.code.value, reason) for reason in refusal.reasons)
            out.append(NodeExplanation(node.name, False, reasons, {}, 0))
    return out


def _domains(unit: Unit, figures: Figures) -> tuple[tuple[DomainExplanation, ...], list[str]]:
    tree = figures.snapshot.tree
    problem = build(unit, figures)
    nodes, stay, remark = _planned(unit, problem, figures)
    needed = problem.core_size
    chosen: tuple[int, int] | None = None
    if nodes:
        needed = len(nodes)
        chosen = tree.lowest_common([*nodes.values(), *stay])
    usable = domain_slots(unit, figures, tuple(sorted(nodes)) or None)
    out: list[DomainExplanation] = []
    short: list[tuple[int, int, int]] = []
    for level in range(tree.depth):
        slots = usable(level).tolist()
        for d, have in enumerate(slots):
            reason = "large enough" if have >= needed else f"{have} of {needed} slots"
            if (level, d) == chosen:
                reason = "chosen"  # also with fewer slots, which are those of the reference pod alone
            elif have < needed and level == problem.hard:
                short.append((needed - have, level, d))
            out.append(
                DomainExplanation(
                    tree.layer_name(level), tree.path(level, d), have, needed, (level, d) == chosen, reason
                )
            )
    if chosen is not None and chosen[0] == tree.depth:
        have = int(usable(tree.depth)[chosen[1]])
        path = tree.path(*chosen)
        out.append(DomainExplanation(tree.layer_name(tree.depth), path, have, needed, True, "chosen"))
    misses = _gang_misses(unit, problem, figures, needed=needed, short=short) if chosen is None else []
    if chosen is None and remark:
        misses.append(f"its own order had room: {remark}")
    return tuple(out), misses


def _gang_misses(
    unit: Unit, problem: Problem, figures: Figures, *, needed: int, short: Sequence[tuple[int, int, int]]
) -> list[str]:
    """What would give a gang its room. short: (slots that lack, level, domain) of the domains that may hold it."""
    tree = figures.snapshot.tree
    misses: list[str] = []
    divisor = math.lcm(*unit_multiples(unit, figures).values())
    allowed = [n for n in range(needed, len(problem.pending) + 1) if (len(problem.bound) + n) % divisor == 0]
    if not allowed:
        misses.append(f"the number of its members were a multiple of {divisor}")
    short = [(lacking + allowed[0] - needed, level, d) for lacking, level, d in short] if allowed else ()
    held = tree.levels[problem.hard].sums(problem.bound_counts)
    if held.any():  # the others have to join them
        short = [one for one in short if held[one[2]]]
    for lacking, level, d in sorted(short)[:NEAREST]:
        place_name = f"{tree.layer_name(level)} {tree.path(level, d)}" if level else "the cluster"
        misses.append(f"{counted(lacking, 'more slot')} were free in {place_name}")
    return misses + relaxed_misses(unit, figures, needed=needed)


def _planned(unit: Unit, problem: Problem, figures: Figures) -> tuple[dict[int, int], list[int], str]:
    """(rank -> node of the pods that a plan places, none where there is none; nodes of the other members in it; what
    rules of the job's own remark): the plan that a round would make."""
    bound = dict(problem.bound)
    own = place_npus(unit, figures)
    if own is None:
        return dict(place_gang(unit, problem, figures).nodes), list(bound.values()), ""
    ranks = {pod.key: rank for rank, pod in enumerate(unit.members)}
    for pod in own.evicted:
        bound.pop(ranks[pod.key], None)
    nodes = {ranks[key]: node for key, node in own.nodes.items()}
    return nodes, [*bound.values(), *own.returns.values()], own.remark
