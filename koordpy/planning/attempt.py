"""One unit's turn in a round: gates, the problem, its placement, the check, and the draft that carries it.

Source: gang-network.md sections 2.3 to 2.8; kube-parity.md 3 for plain pods.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from koordpy.api.limits import GANG_KINDS, too_many
from koordpy.api.natural import natural_key
from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.yields import gainers
from koordpy.planning.accelerators.base import NOTHING, merged
from koordpy.planning.accelerators.registry import give
from koordpy.planning.build import build
from koordpy.planning.figures import Figures
from koordpy.planning.gates import Gate, gate
from koordpy.planning.jobs.ascend.moves import keep_room
from koordpy.planning.jobs.ascend.place import npu_gate, place_npus
from koordpy.planning.jobs.ascend.ranked import best_node
from koordpy.planning.jobs.ascend.standing import Placed
from koordpy.planning.jobs.gpus import best_with_gpus
from koordpy.planning.joint import place_gang
from koordpy.planning.open_places import open_places
from koordpy.planning.parts import has_parts
from koordpy.planning.patience import Patience
from koordpy.planning.place import needs_solver, place_in_turn
from koordpy.planning.placement.problem import Problem, Solution, only_ranks
from koordpy.planning.plan import GangStatus, Method, Proof, RejectedPlan, SolverRun
from koordpy.planning.quota.admission import QuotaRefusal
from koordpy.planning.resources_gate import check_min_resources
from koordpy.planning.scores.nodes import first_node
from koordpy.planning.units import Unit
from koordpy.planning.verify.fault import Check, PlanFault
from koordpy.planning.verify.leaving import Taken, rejection
from koordpy.planning.verify.plan import check_claims, check_plan, found
from koordpy.planning.victim_selection.names import RuleName
from koordpy.planning.victim_selection.units import UnitKind, VictimUnit
from koordpy.planning.victims.asked import one_by_one
from koordpy.planning.victims.relief import PreemptionPlan, Victim
from koordpy.planning.victims.relocation import Back
from koordpy.planning.victims.search import Preemptor
from koordpy.planning.victims.terminating import crowds_siblings


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one unit in this round."""

    unit: Unit
    proof: Proof
    method: str = ""
    """What found its nodes, or that there are none."""
    seconds: float | None = None
    gate: Gate | None = None
    nodes: Mapping[str, int] | None = None
    """Pod key -> node position."""
    runs: tuple[SolverRun, ...] = ()
    fault: str = ""
    refusal: QuotaRefusal | None = None
    """The quota that does not admit it."""
    hold: str = ""
    """What its pods are told of nodes that are kept for it."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> what its Binding is annotated with for the devices that it got."""
    remark: str = ""
    """What is to be added to the message of its waiting pods."""
    behind: bool = False
    """It found no room beside what is kept for a promised start."""
    victims: tuple[Victim, ...] = ()
    """Who is evicted for it."""
    back: tuple[Back, ...] = ()
    """Where those of them return to that are only moved."""
    reasons: tuple[str, ...] = ()
    """Why nobody is evicted for it, beyond the count of nodes."""
    least: int | None = None
    """Pods evicted at least, where the set is not proven least."""
    rejected: tuple[RejectedPlan, ...] = ()
    """Plans for it that their check refused."""
    awaits: Mapping[str, int] = field(default_factory=dict)
    """Pod key -> node position, where it waits for room that pods are leaving: that is kept for it."""
    deferred: bool = False
    """It was not decided: its search, or the room that it could have, waits for another round."""
    kept_off: bool = False
    """It is deferred for room that is kept for units ahead of it."""
    interrupted: bool = False
    """It is deferred in the middle of its search."""
    passed_over: bool = False
    """It is deferred for other namespaces, whose turn it is."""

    @property
    def lacks_room(self) -> bool:
        """Whether it was planned, and no node or domain had room."""
        undecided = self.gate is not None or self.refusal is not None or self.fault or self.deferred
        return not self.nodes and not undecided

    @property
    def by_runtime(self) -> bool:
        """Whether the runtime of a quota refuses it."""
        refusal = self.refusal
        return refusal is not None and refusal.limit_name == "runtime" and not self.nodes and not self.awaits

    def like(self, unit: Unit) -> "Tried":
        """The same verdict on a unit of the same shape, which took no time."""
        refusal = self.refusal
        if refusal is not None and unit.plain is None:
            refusal = replace(refusal, gang=unit.group_id)
        return replace(self, unit=unit, refusal=refusal, hold="", seconds=None)


def unit_shape(unit: Unit, figures: Figures) -> Hashable | None:
    """Equal for units that fail alike: same requests, constraints, quotas and gang layout; None where none is like it.

    Gangs with bound members or parts, or whose members look at other pods, are like no others.
    """
    quotas = figures.snapshot.quotas
    # what a pod may take from others depends on whose it is and on its policy (preemption.md 1)
    first = unit.members[0]
    owner = quotas.user_of(first), quotas.queue_of(first)
    kept_from = gainers(figures.snapshot.yielded, unit.id) if figures.snapshot.yielded else None
    if unit.plain is not None:
        return figures.key(first), owner, first.pod.spec.preemption_policy, kept_from
    if unit.bound_any or has_parts(unit) or any(figures.concerned(pod) for pod in unit.pending):
        return None
    position = {gang.ref: i for i, gang in enumerate(unit.gangs)}
    layout = tuple((unit.need(g), g.min_member, g.exists, g.fault, g.wish, g.hard_keys, g.links) for g in unit.gangs)
    resources = tuple(tuple(sorted(gang.min_resources.items())) for gang in unit.gangs)
    members = tuple((position[pod.gang] if pod.gang is not None else 0, figures.key(pod)) for pod in unit.pending)
    return layout, resources, members, owner, tuple(pod.pod.spec.preemption_policy for pod in unit.pending), kept_from


def gate_of(unit: Unit, figures: Figures) -> Gate | None:
    """What holds a unit before its quotas and any node are looked at; None for nothing."""
    if unit.plain is not None:
        return npu_gate(unit, figures) if unit.plain.extended else None
    return gate(unit, figures.groups) or npu_gate(unit, figures) or check_min_resources(unit, figures)


def try_unit(unit: Unit, figures: Figures, search: Preemptor | None = None, patience: Patience | None = None) -> Tried:
    """Places one unit on the draft, whole or not at all; the figures' draft carries what it got.

    search: where a unit that finds no room may look for victims; patience: how long.
    """
    draft = figures.draft
    known = open_places(unit, figures) if draft.keeps_room or draft.later else frozenset()
    mark = draft.mark()
    tried = _try(unit, figures, search, patience)
    closed = known - open_places(unit, figures) if known and tried.nodes else frozenset()
    if tried.victims:
        # it is not bound now: who is more important starts before it
        closed = frozenset(one for one in closed if _counts_against(tried, figures.snapshot.pods[one[0]]))
    if not closed:
        if tried.victims:
            draft.later.update(dict.fromkeys(tried.nodes or ()))
        return tried
    # who was evicted for it would come back and be evicted for it again; or each of the two would wait for the other
    draft.undo(mark)
    if tried.victims and search is not None:
        search.reread()
    promised = not tried.victims and any(figures.promises.to(pod) for pod in unit.pending)
    waits = tried.nodes if promised and tried.nodes else {}
    draft.await_room(waits, frozenset(pod for pod, _ in closed))
    key, plugins = min(closed, key=lambda one: natural_key(one[0]))
    text = f"it would keep pod {key} from the room that is promised to it"
    refusal = f"0/{len(figures.snapshot.nodes)} nodes are available: {text}."
    held = Gate(refusal, GangStatus.UNSCHEDULABLE, plugins=plugins)
    return Tried(unit, Proof.UNKNOWN, gate=held, awaits=waits, rejected=tried.rejected)


def _counts_against(tried: Tried, pod: PodInfo) -> bool:
    """Whether room that victims make for a unit is kept from a pod (`NominatedCapacity.coming`)."""
    most = max(one.priority for one in tried.unit.pending if one.key in (tried.nodes or ()))
    reclaimed = any(victim.rule in (RuleName.QUOTA, RuleName.FAIR_SHARE) for victim in tried.victims)
    return reclaimed or pod.priority <= most


def _try(unit: Unit, figures: Figures, search: Preemptor | None, patience: Patience | None) -> Tried:
    evicted = figures.draft.evicted
    if unit.plain is None and evicted and any(pod.key in evicted for pod in unit.members):
        text = f"gang {unit.group_id}: members are evicted in this round, it is planned anew in the next"
        return Tried(unit, Proof.UNKNOWN, gate=Gate(text, GangStatus.UNSCHEDULABLE))
    held = gate_of(unit, figures)
    if held is not None:
        return Tried(unit, Proof.UNKNOWN, gate=held)
    use = figures.draft.quotas
    refusal = figures.admission.refusal(unit, use) if use.quotas.tree.quotas else None
    if refusal is not None:
        return _relieved(Tried(unit, Proof.INFEASIBLE, refusal=refusal), figures, search)
    own = place_npus(unit, figures) if any(pod.extended for pod in unit.pending) else None
    if own is not None:
        return _by(Method.RULES, _accepted(unit, own, figures, search))
    if unit.plain is not None:
        node = _best_node(unit.plain, figures)
        if node is None:
            return _relieved(Tried(unit, Proof.INFEASIBLE, Method.SCORES), figures, search)
        return _by(Method.SCORES, _accept(unit, {unit.plain.key: node}, figures, Proof.OPTIMAL, ()))
    problem = build(unit, figures)
    if fault := too_many(len(problem.shapes), GANG_KINDS, "kinds of pods"):
        return Tried(unit, Proof.UNKNOWN, gate=Gate(f"gang {unit.group_id}: {fault}", GangStatus.INVALID))
    if patience is not None and not patience.stops and patience.spent() and needs_solver(problem):
        return Tried(unit, Proof.UNKNOWN, deferred=True)
    best = _place(unit, problem, figures)
    method = Method.SOLVER if best.runs else Method.COUNTING
    if not best.placed:
        refusal = figures.admission.core_refusal(unit, use)
        return _relieved(Tried(unit, best.proof, method, runs=best.runs, refusal=refusal), figures, search)
    nodes = {unit.members[rank].key: node for rank, node in sorted(best.nodes.items())}
    if crowds_siblings(unit, nodes, figures):
        return _relieved(Tried(unit, Proof.UNKNOWN, method, runs=best.runs), figures, search)
    return _by(method, _accept(unit, nodes, figures, best.proof, best.runs))


def _place(unit: Unit, problem: Problem, figures: Figures) -> Solution:
    """Nodes for members of a unit. Where each further one asks for itself, those with room promised come first: who
    went for one of them would else take that room back from a less important one, and be evicted again."""
    if not unit.is_gang:
        return place_in_turn(problem)
    promised = {rank for rank in problem.pending if unit.members[rank].nominated_node}
    if promised and len(promised) < len(problem.pending) and one_by_one(unit):
        found = place_gang(unit, only_ranks(problem, promised), figures)
        if found.placed:
            return found
    return place_gang(unit, problem, figures)


def _by(method: str, tried: Tried) -> Tried:
    return tried if tried.method else replace(tried, method=method)


def _relieved(refused: Tried, figures: Figures, search: Preemptor | None) -> Tried:
    """A unit that found no room, with the room that victims make for it, or why there is none."""
    if search is None:
        return refused
    unit = refused.unit
    if refused.refusal is not None and not refused.refusal.limit_name:
        return refused
    relief, tried = _sought(unit, figures, search)
    if relief.deferred:
        return replace(refused, proof=Proof.UNKNOWN, deferred=True)
    if relief.awaited is not None:
        figures.draft.await_room(relief.awaited.nodes)
        text = relief.awaited.stable_text if unit.is_gang else relief.awaited.text
        return replace(refused, reasons=(text,), awaits=relief.awaited.nodes)
    if tried is None:
        unknown = Proof.UNKNOWN in (relief.proof, refused.proof)
        proof = Proof.UNKNOWN if unknown else refused.proof
        return replace(refused, proof=proof, runs=(*refused.runs, *relief.runs), reasons=relief.reasons)
    while tried.nodes and one_by_one(unit):
        _, more = _sought(unit, figures, search, tried.nodes)
        if more is None:
            break
        if not more.nodes:
            tried = replace(tried, rejected=(*tried.rejected, *more.rejected))
            break
        proof = tried.proof if more.proof is Proof.OPTIMAL else more.proof
        nodes, notes = {**(tried.nodes or {}), **more.nodes}, {**tried.notes, **more.notes}
        tried = replace(
            more,
            nodes=nodes,
            notes=notes,
            proof=proof,
            victims=(*tried.victims, *more.victims),
            back=(*tried.back, *more.back),
            rejected=(*tried.rejected, *more.rejected),
        )
    return tried


def _sought(
    unit: Unit, figures: Figures, search: Preemptor, placed: Mapping[str, int] | None = None
) -> tuple[PreemptionPlan, Tried | None]:
    """The first plan with victims that its check lets pass, way by way of choosing them; the refused one where none
    does, None where nobody is found. placed: pod key -> node of members that got room just before."""
    rejected: tuple[RejectedPlan, ...] = ()
    last: Tried | None = None
    ways = tuple(search.ways)
    while True:
        relief = search.relieve(unit, placed, ways)
        if not relief.nodes:
            return relief, last
        tried = _make_room(unit, relief, figures, search)
        rejected += tried.rejected
        if tried.nodes:
            # a way that failed may have been right in that nothing is better
            proof = Proof.FEASIBLE if rejected else tried.proof
            return relief, replace(tried, proof=proof, rejected=rejected)
        last = replace(tried, rejected=rejected)
        ways = ways[ways.index(relief.way) + 1 :] if relief.way in ways else ()
        if not ways:
            return relief, last


def _make_room(unit: Unit, relief: PreemptionPlan, figures: Figures, search: Preemptor) -> Tried:
    """Puts a plan with victims on the draft, checked as one; nothing of it stays where it fails."""
    draft = figures.draft
    mark = draft.mark()
    faults = search.faults(unit, relief)
    if not faults:
        for victim in relief.victims:
            for pod in victim.unit.pods:
                draft.evict(pod)
        tried = _accept(unit, dict(relief.nodes), figures, relief.proof, relief.runs, relief.notes, relief)
        if not tried.nodes:
            draft.undo(mark)
            return tried
        faults = search.faults_of_returns(relief)
    if faults:
        draft.undo(mark)
        return _rejected(unit, faults, dict(relief.nodes), figures, relief.runs, relief)
    search.took(relief.victims)
    for back in relief.back:
        draft.assign(back.pod, back.node, chips=back.chips)
    method = f"victims-{relief.way}" if relief.way is not None else tried.method
    return replace(tried, method=method, victims=relief.victims, back=relief.back, least=relief.bound)


def _rejected(
    unit: Unit,
    faults: Sequence[PlanFault],
    nodes: Mapping[str, int],
    figures: Figures,
    runs: tuple[SolverRun, ...],
    relief: PreemptionPlan | None,
) -> Tried:
    """A unit whose plan its check refuses."""
    relief = relief or PreemptionPlan()
    every = [*nodes.items(), *((back.pod.key, back.node) for back in relief.back)]
    taken = [Taken(victim.unit.pods, str(victim.rule)) for victim in relief.victims]
    names = [(key, figures.snapshot.nodes[node].name) for key, node in every]
    plan = rejection(unit.id, faults, taken, names, relief.way or "")
    return Tried(unit, Proof.UNKNOWN, runs=runs, fault="; ".join(faults[:3]), rejected=(plan,))


def _best_node(pod: PodInfo, figures: Figures) -> int | None:
    """A plain pod's node: where it is nominated, else largest total, then fewest free slots, then natural name order
    (kube-parity.md 3, 4.5); or by rules of its own where it has some."""
    hinted = figures.snapshot.index.get(pod.nominated_node) if pod.nominated_node else None
    if hinted is not None and figures.of(pod).slots[hinted] > 0:
        return hinted
    if pod.extended and npu_resource(pod.requests) is not None:
        return best_node(pod, figures)
    if pod.extended and pod.gpus is not None:
        return best_with_gpus(pod, figures)
    own = figures.of(pod)
    return first_node(np.nonzero(own.slots > 0)[0], -own.total, own.slots, figures.snapshot.name_rank)


def _accepted(unit: Unit, placed: Placed, figures: Figures, search: Preemptor | None) -> Tried:
    """The same for the answer of rules of its own."""
    if not placed.nodes:
        refusal = figures.admission.core_refusal(unit, figures.draft.quotas)
        tried = Tried(unit, placed.proof, runs=placed.runs, remark=placed.remark, refusal=refusal)
        return _relieved(tried, figures, search)
    if placed.evicted:
        return _moved(unit, placed, figures, search)
    tried = _accept(unit, dict(placed.nodes), figures, placed.proof, placed.runs, placed.notes)
    return replace(tried, remark=placed.remark)


def _moved(unit: Unit, placed: Placed, figures: Figures, search: Preemptor | None) -> Tried:
    """Members of the unit are evicted so that others, and they, stand together (ascend.md 5.3)."""
    if search is None:
        return Tried(unit, Proof.INFEASIBLE, remark=placed.remark)
    draft = figures.draft
    mark = draft.mark()
    for pod in placed.evicted:
        draft.evict(pod)
    tried = _accept(unit, dict(placed.nodes), figures, placed.proof, placed.runs, placed.notes)
    if not tried.nodes:
        draft.undo(mark)
        return tried
    keep_room(placed.returns, figures)
    victim = Victim(VictimUnit(UnitKind.BROKEN, placed.evicted, unit.group_id), RuleName.STALE_GANG, placed.moved)
    search.reread()
    return replace(tried, victims=(victim,), remark=placed.remark)


def _accept(
    unit: Unit,
    nodes: dict[str, int],
    figures: Figures,
    proof: Proof,
    runs: tuple[SolverRun, ...],
    notes: Mapping[str, Mapping[str, str]] | None = None,
    relief: PreemptionPlan | None = None,
) -> Tried:
    """Checks a plan independently and puts it on the draft. relief: whose victims are off the draft for it."""
    names = {key: figures.snapshot.nodes[node].name for key, node in nodes.items()}
    pods = figures.snapshot.pods
    given = give(nodes, figures) if any(pods[key].extended for key in nodes) else NOTHING
    own = merged(given.notes, notes) if notes else given.notes
    faults = [*found(Check.DEVICES, given.faults), *check_plan(unit, names, figures, given.chips, own)]
    if faults:
        return _rejected(unit, faults, nodes, figures, runs, relief)
    mark = figures.draft.mark()
    for key, node in nodes.items():
        pod = pods[key]
        chips = given.chips.get(key, ())
        figures.draft.assign(pod, node, figures.claims_at(pod, node), figures.devices_at(pod, node), chips)
    faults = check_claims([pods[key] for key in nodes], figures.draft)
    if faults:
        figures.draft.undo(mark)
        return _rejected(unit, faults, nodes, figures, runs, relief)
    figures.notes.update(own)
    return Tried(unit, proof, nodes=nodes, runs=runs, notes=own)
