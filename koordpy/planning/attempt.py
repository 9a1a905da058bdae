"""One unit's turn in a round: gates, the problem, its placement, the check, and the draft that carries it.

Source: gang-network.md sections 2.3 to 2.8; kube-parity.md 3 for plain pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.joint import place_jointly
from koordpy.planning.ascend.notes import allocation_notes, merged
from koordpy.planning.ascend.place import npu_gate, place_npus
from koordpy.planning.ascend.ranked import assign, best_node
from koordpy.planning.build import build
from koordpy.planning.figures import Figures
from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.resources_gate import check_min_resources
from koordpy.planning.units import Gate, Groups, Unit, gate
from koordpy.planning.verify import check_plan


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one unit in this round."""

    unit: Unit
    proof: Proof
    gate: Gate | None = None
    nodes: Mapping[str, int] | None = None
    """Pod key -> node position."""
    runs: tuple[SolverRun, ...] = ()
    fault: str = ""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> what its Binding is annotated with for the devices that it got."""
    remark: str = ""
    """What is to be added to the message of its waiting pods."""
    figures: Figures | None = None
    """What it was tried on, where that is not the round's own."""


def try_plain(unit: Unit, pod: PodInfo, figures: Figures) -> Tried:
    """The same for a plain pod: its best node."""
    held = npu_gate(unit, figures)
    if held is not None:
        return Tried(unit, Proof.UNKNOWN, gate=held)
    node = _best_node(pod, figures)
    if node is None:
        return Tried(unit, Proof.INFEASIBLE)
    return _accept(unit, {pod.key: node}, figures, Proof.OPTIMAL, ())


def try_unit(unit: Unit, groups: Groups, figures: Figures) -> Tried:
    """Places one unit on the draft, whole or not at all; the figures' draft carries what it got."""
    if unit.plain is not None:
        return try_plain(unit, unit.plain, figures)
    held = gate(unit, groups) or npu_gate(unit, figures) or check_min_resources(unit, figures)
    if held is not None:
        return Tried(unit, Proof.UNKNOWN, gate=held)
    own = place_npus(unit, figures)
    if own is not None:
        if not own.nodes:
            return Tried(unit, own.proof, runs=own.runs, remark=own.remark)
        return _accept(unit, dict(own.nodes), figures, own.proof, own.runs, own.notes)
    best = place_jointly(unit, build(unit, figures), figures)
    if not best.placed:
        return Tried(unit, best.proof, runs=best.runs)
    nodes = {unit.members[rank].key: node for rank, node in sorted(best.nodes.items())}
    return _accept(unit, nodes, figures, best.proof, best.runs)


def _best_node(pod: PodInfo, figures: Figures) -> int | None:
    """A plain pod's node: largest total, then fewest free slots, then natural name order (kube-parity.md 3)."""
    if npu_resource(pod.requests) is not None:
        return best_node(pod, figures)
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


def _accept(
    unit: Unit,
    nodes: dict[str, int],
    figures: Figures,
    proof: Proof,
    runs: tuple[SolverRun, ...],
    notes: Mapping[str, Mapping[str, str]] | None = None,
) -> Tried:
    """Checks a plan independently and puts it on the draft."""
    names = {key: figures.snapshot.nodes[node].name for key, node in nodes.items()}
    faults = check_plan(unit, names, figures)
    if faults:
        return Tried(unit, Proof.UNKNOWN, runs=runs, fault="; ".join(faults[:3]))
    for key, node in nodes.items():
        assign(figures.snapshot.pods[key], node, figures)
    return Tried(unit, proof, nodes=nodes, runs=runs, notes=merged(allocation_notes(nodes, figures), notes or {}))
