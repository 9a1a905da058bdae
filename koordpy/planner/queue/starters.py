"""A dry run of the queue: who would start on the draft as it is, in free room. Nothing of it stays."""

from collections.abc import Hashable

from koordpy.planning.attempt import try_unit, unit_shape
from koordpy.planning.figures import Figures
from koordpy.planning.queue.order import UnitOrder


def starters(figures: Figures) -> frozenset[str]:
    """Keys of the pods that would be placed."""
    draft, snapshot = figures.draft, figures.snapshot
    pods, fairness = snapshot.pods.values(), figures.config.fairness
    queue = UnitOrder(figures.groups.units(), use=draft.quotas, pods=pods, config=fairness, now=snapshot.now)
    found: set[str] = set()
    failed: set[Hashable] = set()
    with draft.trial():
        for unit in queue:
            shape = unit_shape(unit, figures)
            if shape is not None and shape in failed:
                continue
            outcome = try_unit(unit, figures)
            if outcome.nodes:
                found.update(outcome.nodes)
                queue.placed()
            elif outcome.gate is None:
                failed.add(shape)
    return frozenset(found)
