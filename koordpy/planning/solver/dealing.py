"""From pods per node to ranks on nodes without a gather goal: names order what is equal, and are no part of any proof.

Source: gang-network.md section 4, "No gather goal".
"""

from collections.abc import Sequence

from koordpy.planning.placement.problem import Ints

Alike = tuple[Sequence[int], Sequence[Sequence[int]]]
"""(nodes that differ in names alone, pods per shape position of each that is used)."""


def deal(kinds: Sequence[Alike], shapes: Sequence[int], name_rank: Ints) -> list[int]:
    """The node of each pod, by its shape position in rank order: greedily the naturally first that takes one.

    name_rank: [nodes] place in the natural order of names. Of nodes alike the naturally first are used.
    """
    left = [
        (sorted(nodes, key=lambda node: -int(name_rank[node])), [list(plan) for plan in plans])
        for nodes, plans in kinds
    ]
    opened: dict[int, list[int]] = {}
    out: list[int] = []
    for i in shapes:
        here = [node for node, plan in opened.items() if plan[i]]
        there = [(nodes, plans) for nodes, plans in left if any(plan[i] for plan in plans)]
        node = min([*here, *(nodes[-1] for nodes, _ in there)], key=lambda one: int(name_rank[one]))
        if node not in opened:
            nodes, plans = next(one for one in there if one[0][-1] == node)
            nodes.pop()
            opened[node] = plans.pop(max(range(len(plans)), key=lambda at: (plans[at][i], plans[at])))
        opened[node][i] -= 1
        out.append(node)
    return out
