"""Goal 6: counts inside the region that won, layer by layer the lexicographically largest in the order of its domains.

Source: gang-network.md section 5, goal 6. Classes of equal nodes serve down to the lowest domains; the nodes themselves
are settled by a model of the domains that hold pods, node by node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordpy.planning.placement.problem import Ints
from koordpy.planning.solver.cells import lost_score
from koordpy.planning.solver.counts import CountModel
from koordpy.planning.solver.placed import hint_at, node_pods
from koordpy.planning.solver.whole_groups import GroupType


@dataclass(frozen=True, slots=True)
class Held:
    """What earlier goals came to.

    pipeline: per level, the top layer first, the negated number of whole groups; domains: those that hold members.
    """

    pipeline: tuple[int, ...]
    domains: tuple[int, ...]
    score: int


def settle_inside(
    model: CountModel, order: Mapping[int, Ints], held: Held, *, counts: Ints, types: Sequence[GroupType]
) -> CountModel:
    """A model whose current solution is best in goal 6. order: level below the region -> its domains in their order."""
    depth = model.tree.depth
    for level in sorted(order):
        if level < depth:
            model.largest("inside", model.domain_totals(level, order[level].tolist()))
    if any(len(cell.nodes) > 1 for cell in model.cells):
        single = _node_by_node(model, held, counts=counts, types=types)
        if single is None:
            return model
        model = single
    model.largest("inside", model.node_totals(order[depth].tolist()))
    return model


def _node_by_node(model: CountModel, held: Held, *, counts: Ints, types: Sequence[GroupType]) -> CountModel | None:
    """The same in a model of single nodes, only below the lowest domains that hold pods; None if the limit is met."""
    tree, top = model.tree, model.region[0]
    depth = tree.depth
    place = tree.levels[depth - 1]
    lowest = [d for d, var in model.totals[depth - 1].items() if model.value([(var, 1)])]
    keep = [node for d in lowest for node in range(int(place.start[d]), int(place.end[d]))]
    single = CountModel(model.room, model.region, counts=counts.tolist(), budget=model.budget, split=True, keep=keep)
    single.add_used()
    single.add_groups(types)
    for level in range(top + 1, depth):
        for domain, var in single.totals[level].items():
            single.model.add(var == model.value([(model.totals[level][domain], 1)]))
    for level in range(top + 1, depth + 1):
        single.hold([(v, -c) for v, c in single.whole(level)], held.pipeline[level - 1])
    bound = int((model.problem.bound_counts > 0).sum())
    single.hold(single.opened(depth), held.domains[depth - 1] - bound)
    single.hold(lost_score(single.problem, single.room.shapes, single.cells), -held.score)
    hint_at(single, node_pods(model))
    single.find("inside")
    return single if single.values else None
