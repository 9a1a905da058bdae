"""From pods per node to values of a CountModel, and back.

A placement is node -> pods per shape position (in Room); nodes without any may be left out.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.solver.counts import CountModel


def hint_at(model: CountModel, pods: Mapping[int, Sequence[int]]) -> None:
    """Hints at the counts per node of a solution of the same region."""
    for cell in model.cells:
        for i, var in cell.pods.items():
            model.model.add_hint(var, sum(pods[node][i] for node in cell.nodes if node in pods))


def adopt(model: CountModel, pods: Mapping[int, Sequence[int]]) -> None:
    """Takes a placement of the region as the current solution, without a solve.

    Only for models without multiples, interactions and order among domains alike.
    """
    model.values = [0] * len(model.model.proto.variables)
    placed = np.zeros(len(model.problem.free), dtype=np.int64)
    for node, held in pods.items():
        placed[node] = sum(held)
    for cell in model.cells:
        here = [pods[node] for node in cell.nodes if node in pods]
        for i, var in cell.pods.items():
            model.values[var.index] = sum(held[i] for held in here)
        for held in here:
            if cell.fillings:
                var = next(v for v, f in cell.fillings if all(a <= b for a, b in zip(held, f, strict=True)))
                model.values[var.index] += 1
            elif cell.used:
                model.values[cell.used[0][0].index] = 1
    for number, domains in model.totals.items():
        sums = model.tree.levels[number].sums(placed)
        for domain, var in domains.items():
            model.values[var.index] = int(sums[domain])
            for used, _ in model.used.get(number, {}).get(domain, []):
                model.values[used.index] = int(sums[domain] > 0)
    for i, var in enumerate(model.shape_totals):
        model.values[var.index] = sum(held[i] for held in pods.values())
    if model.numbered is not None:
        model.numbered.settle(model.values)


def node_pods(model: CountModel) -> dict[int, list[int]]:
    """Node -> pods per shape position; classes are dealt out filling by filling in natural order."""
    out: dict[int, list[int]] = {}
    shapes = len(model.room.shapes)
    for cell in model.cells:
        left = [model.values[cell.pods[i].index] if i in cell.pods else 0 for i in range(shapes)]
        plans = [f for var, f in cell.fillings for _ in range(model.values[var.index])] or [tuple(left)]
        taken = []
        for plan in plans:
            pods = [min(have, most) for have, most in zip(left, plan, strict=True)]
            left = [have - n for have, n in zip(left, pods, strict=True)]
            taken.append(pods)
        taken.sort(key=sum, reverse=True)
        out.update({node: pods for node, pods in zip(cell.nodes, taken, strict=False) if any(pods)})
    return out
