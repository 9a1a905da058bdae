"""Consolidation: running units that move so that a beneficiary fits, every one of them placed again in the same plan.

Source: preemption.md 3.4. Off by default. Pods whose place concerns other pods (affinity, spread, ports, volumes) and
pods of a gang that is below its minimum stay where they are. Where each unit returns to is planned with the planner's
own placement; the draft keeps that room.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as wire_replace

from koordpy.cluster.pods import PodInfo, pod_info
from koordpy.planning.ascend.dealing import deal
from koordpy.planning.ascend.relief import return_of
from koordpy.planning.build import build
from koordpy.planning.figures import Figures
from koordpy.planning.joint import place_jointly
from koordpy.planning.units import Groups, Unit
from koordpy.planning.victims.choice import Return
from koordpy.planning.victims.pool import Mask, Pool
from koordpy.planning.victims.units import Kind, VictimUnit

MOST_PLACES = 20_000
"""Ways of single pods back to single nodes beyond which nothing is moved."""


@dataclass(frozen=True, slots=True)
class Back:
    """A moved pod as it will come back, and where room is kept for it."""

    pod: PodInfo
    node: int
    chips: tuple[int, ...] = ()
    """NPUs of the node that are kept with it."""


def as_pending(pod: PodInfo, figures: Figures) -> PodInfo:
    """The pod as its owner makes it again."""
    wire = pod.pod
    fresh = wire_replace(wire, spec=wire_replace(wire.spec, node_name=""))
    snapshot = figures.snapshot
    return pod_info(fresh, scheduler_names=snapshot.scheduler_names, looked_for=snapshot.looked_for)


def movable(pool: Pool, free: Mask, figures: Figures, *, priority: int) -> Mask:
    """Units of at most a priority that may be moved."""
    out = free & (pool.priority <= priority)
    for i in np.nonzero(out)[0].tolist():
        unit = pool.units[i]
        fixed = unit.kind is Kind.BROKEN or pool.foreign(i)
        out[i] = not fixed and not any(figures.concerned(pod) for pod in unit.pods)
    return out


def returns_of(unit: VictimUnit, figures: Figures, *, devices: int | None = None) -> tuple[Return, ...]:
    """What a unit needs to come back: pods of each shape, and the nodes that take them. devices: column of GPUs."""
    kinds: dict[bytes, list[PodInfo]] = {}
    for pod in unit.pods:
        again = as_pending(pod, figures)
        kinds.setdefault(again.shape, []).append(again)
    out = []
    for pods in kinds.values():
        own = figures.of(pods[0])
        allowed = own.static.before.fits if own.refusal is None else np.zeros(len(figures.snapshot.nodes), dtype=bool)
        gpus = pods[0].gpus
        cards = ((devices, gpus.count),) if devices is not None and gpus is not None and gpus.count else ()
        out.append(Return(len(pods), (*own.request, *cards), tuple(np.nonzero(allowed)[0].tolist())))
    return tuple(out)


def bring_back(chosen: Sequence[VictimUnit], groups: Groups, figures: Figures) -> list[Back] | None:
    """Places every moved unit again on the draft, the largest first; None where one finds no room.

    The draft has them evicted and the beneficiary in place; what is placed stays on it.
    """
    out: list[Back] = []
    for moved in sorted(chosen, key=lambda unit: (-unit.devices, -len(unit.pods), unit.importance)):
        again = {pod.key: as_pending(pod, figures) for pod in moved.pods}
        unit, before = _unit(moved, again, groups, figures)
        own = return_of(list(again.values()), figures)
        if own is None:
            found = place_jointly(unit, build(unit, figures), figures)
            own = {unit.members[rank].key: node for rank, node in found.nodes.items()}
        if len(own) < len(again):
            return None
        nodes = dict(own)
        tree, index = figures.snapshot.tree, figures.snapshot.index
        after = [*nodes.values(), *(index[pod.node] for pod in unit.members if pod.bound and pod.node in index)]
        if tree.lowest_common(after)[0] < before:
            return None
        dealt = deal([(again[key], node) for key, node in nodes.items()], figures)
        if isinstance(dealt, str):
            return None
        for key, node in nodes.items():
            chips = dealt.get(key, ())
            figures.draft.assign(again[key], node, chips=chips)
            out.append(Back(again[key], node, chips))
    return out


def _unit(moved: VictimUnit, again: dict[str, PodInfo], groups: Groups, figures: Figures) -> tuple[Unit, int]:
    """The unit with its moved pods pending, and the level of what its members have in common now."""
    first = moved.pods[0]
    if first.gang is None:
        return Unit(id=first.key, gangs=(), plain=again[first.key]), 0
    whole = groups.unit(first.gang)
    index = figures.snapshot.index
    at = [index[pod.node] for pod in whole.members if pod.bound and pod.node in index]
    gangs = tuple(
        replace(gang, pods=tuple(again.get(pod.key, pod) for pod in gang.pods if pod.key in again or pod.bound))
        for gang in whole.gangs
    )
    return Unit(id=whole.id, gangs=gangs), figures.snapshot.tree.lowest_common(at)[0]
