# SPDX-License-Identifier: Apache-2.0
"""Placement in regions with too many nodes for one model: finds a first placement, and chooses which nodes to model.

Building and presolving a CP-SAT model of thousands of nodes takes seconds. So only a part of the region is modelled,
around a first placement that needs no model of the whole region.

That placement also gives a proven bound for goal 4 (fewest domains). A measure of capacity is the number of pods, the
number of pods of one shape, or a resource. The pods need a known amount of each measure. For a single measure, counting
finds exactly the fewest domains that have this amount (docs/rules/gang-network.md 7), and no placement can open fewer.
The tightest measure needs the most domains. If all pods fit the nodes found for the tightest measure, they are best in
goal 4. Otherwise nodes are filled greedily, without a bound. Of equal domains, no more are modelled than the placement
opens.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.placement.counting import NodeCounts, count
from koordpy.placement.problem import DeviceCosts, Ints, Member, Problem, Shape, with_column
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.greedy_placement import Greedy
from koordpy.placement.solver.region_cells import CellOptions
from koordpy.placement.solver.regions import Region, Regions
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.limits import MEASURE_UNITS, MEASURES


@dataclass(frozen=True, slots=True)
class Start:
    """A placement in a large region, found without a model of the whole region."""

    pods: Mapping[int, Sequence[int]]
    """Node -> [shape positions] number of pods."""
    value: tuple[int, ...] = ()
    """Proven lower bound of the first components of the device cost vector; empty if not known."""
    least: tuple[int, ...] = ()
    """[levels, the top layer first] the least number of domains that any placement opens; empty if not known."""


@dataclass(frozen=True, slots=True)
class Least:
    """The fewest domains that have the needed amount of one measure of capacity, such as one resource."""

    domains: tuple[int, ...]
    """[levels, the top layer first] the number of domains with members."""
    nodes: Mapping[int, int]
    """Node -> amount of the measure that is used there."""
    value: tuple[int, ...] = ()
    """If the measure is a number of devices: (nodes on which two or more are used, devices left free on used nodes).

    Empty if not computed.
    """


def is_large(capacity: FillingCapacity, region: Region) -> bool:
    """Returns True if a region has too many nodes with capacity to be modelled as a whole.

    False with multiples, with interactions, or with device costs that may forbid pods, whatever the size of the region:
    then a part of the region is not enough.
    """
    problem, place = capacity.problem, capacity.tree.levels[region[0]]
    if (
        problem.multiples
        or problem.interactions
        or (problem.device_costs is not None and not problem.device_costs.always)
    ):
        return False
    nodes = slice(int(place.start[region[1]]), int(place.end[region[1]]))
    return int((capacity.most[nodes] > 0).sum()) > problem.sizes.model_nodes


def start_in(regions: Regions, region: Region, budget: TimeBudget) -> Start | None:
    """Returns a placement in a large region; None if none is found without a model of the whole region."""
    by_measure = None if regions.types or regions.bound else _measured(regions, region, budget)
    if by_measure is not None:
        return by_measure
    pods = Greedy(regions.capacity).fill(region)
    return None if pods is None else Start(pods)


def part_of(
    capacity: FillingCapacity, region: Region, pods: Mapping[int, object], order: Sequence[int]
) -> tuple[list[int], bool]:
    """Returns (the nodes of a region to model, True if no optimum is lost by that when goal 4 is compared first).

    pods: the first placement, by node. order: all domains directly below the region in the order of goal 6. Whole
    domains are chosen: first all domains that the placement uses, then other domains in `order` until
    `Sizes.model_nodes` is reached. Of equal domains, no more are chosen than the placement uses in total.
    """
    tree, level = capacity.tree, region[0] + 1
    own = {int(d) for d in tree.domain_of[level, list(pods)]}
    alike: Counter[int] = Counter()
    out = list[int]()
    left, exact = capacity.problem.sizes.model_nodes, True
    place = tree.levels[level]
    for domain in sorted(order, key=lambda d: d not in own):
        inside = slice(int(place.start[domain]), int(place.end[domain]))
        sign = int(capacity.signatures[level][domain])
        number = int((capacity.most[inside] > 0).sum())
        if not number or (alike[sign] >= len(own) and domain not in own):
            continue
        alike[sign] += 1
        if domain not in own and number > left:
            exact = False
            continue
        left -= number
        out += range(inside.start, inside.stop)
    return out, exact


def _measured(regions: Regions, region: Region, budget: TimeBudget) -> Start | None:
    """Returns a placement that opens only the fewest domains for the tightest measure; None if none is found.

    To find the tightest measure, only the `MEASURES` measures with the highest simple bounds are counted exactly.
    """
    table, capacity = regions.problem.device_costs, regions.capacity
    devices = table.devices if table is not None else None
    asks = None if devices is None else np.array([devices.asks[shape] for shape in capacity.shapes], dtype=np.int64)
    given = capacity.caps.T[(asks == capacity.request.T).all(axis=1)] if asks is not None else capacity.caps.T[:0]
    """[columns, nodes] capacity of each resource that counts the devices of the device costs."""
    # [measures][levels] simple bounds, by which the tightest measures are chosen
    below = range(region[0] + 1, regions.tree.depth + 1)
    fewest = np.stack([regions.fewest_by_measure(n, region) for n in below], axis=1).tolist()
    tight = sorted(range(len(fewest)), key=fewest.__getitem__, reverse=True)
    best: tuple[Least, Ints] | None = None
    for have, amounts in (regions.measures[at] for at in tight[:MEASURES]):
        need = int(capacity.counts @ amounts)
        left = any(np.array_equal(have, devices_there) for devices_there in given)
        least = least_domains(regions.problem, region, have, need, left=left)
        if least is None:
            return None
        if best is None or (least.domains, least.value) > (best[0].domains, best[0].value):
            best = least, amounts
    if best is None:
        return None
    # try to place all pods on the nodes that the tightest measure needs
    least, amounts = best
    pods = _onto(regions, region, least, amounts, budget)
    domains = tuple(len(set(row.tolist())) for row in regions.tree.domain_of[1:, list(pods)])
    return Start(pods, least.value, domains) if pods and domains == least.domains else None


def _onto(regions: Regions, region: Region, least: Least, amounts: Ints, budget: TimeBudget) -> dict[int, list[int]]:
    """Returns node -> [shape positions] number of pods, with all pods on the nodes of `least`; empty if not found.

    On each node, the pods use at most the amount of the measure that `least` has there. amounts: [shape positions]
    amount of the measure that one pod uses.
    """
    capacity, problem = regions.capacity, regions.problem
    given = np.zeros(len(capacity.most), dtype=np.int64)
    given[list(least.nodes)] = list(least.nodes.values())
    asks = dict(zip(capacity.shapes, amounts.tolist(), strict=True))
    bounded = replace(with_column(problem, given, asks), device_costs=None)
    there = FillingCapacity(bounded, dict(zip(capacity.shapes, capacity.wanted, strict=True)))
    model = CountModel(there, region, budget=budget, options=CellOptions(keep=list(least.nodes), split=True))
    model.find("measure")
    return model.pods() if model.values else {}


def least_domains(problem: Problem, region: Region, capacity: Ints, need: int, *, left: bool = False) -> Least | None:
    """Returns the fewest domains inside a region that have an amount `need` of a measure; None if the region has less.

    The amount is counted like equal pods, in units of `scale`, so that there are at most `MEASURE_UNITS` units.
    Capacity is rounded up to units, so the result is a lower bound. Only for units without bound members, because with
    bound members a lower c is preferred to fewer domains.

    capacity: [nodes] capacity by the measure. left: True to prefer, among equal results, first the fewest nodes on
    which two or more are used, then the least amount left on used nodes.
    """
    tree, scale = problem.tree, -(-need // MEASURE_UNITS)
    units = -(-need // scale)
    place = tree.levels[region[0]]
    allowed = np.zeros(len(capacity), dtype=np.int64)
    allowed[int(place.start[region[1]]) : int(place.end[region[1]])] = 1
    caps = -(-capacity // scale)
    shape = Shape(((0, 1),), allowed, np.zeros(len(capacity), dtype=np.int64))
    one = Problem(
        tree=tree,
        free=caps[:, None],
        shapes=(shape,),
        members=(Member(0, 0),) * units,
        needs=(units,),
        attract=np.zeros_like(problem.attract),
        name_rank=problem.name_rank,
        device_costs=_what_is_left(caps) if left and scale == 1 else None,
    )
    found = count(one)
    if not isinstance(found, NodeCounts):
        return None
    nodes = dict(sorted(found.counts.items()))
    domains = tuple(len(set(row.tolist())) for row in tree.domain_of[1:, list(nodes)])
    given = nodes.values()
    exact = left and scale == 1
    worth = (sum(n > 1 for n in given), sum(int(capacity[node]) for node in nodes) - need) if exact else ()
    return Least(domains, {node: n * scale for node, n in nodes.items()}, worth)


def _what_is_left(caps: Ints) -> DeviceCosts:
    """Returns device costs with the vector (1 if two or more are used on the node, amount left if any is used)."""
    sizes, kinds = np.unique(caps, return_inverse=True)

    def cost(kind: int, counts: tuple[int, ...]) -> tuple[int, ...]:
        return (int(counts[0] > 1), int(sizes[kind]) - counts[0]) if counts[0] else (0, 0)

    return DeviceCosts(kinds.reshape(-1).astype(np.int64), cost, 2, always=True)
