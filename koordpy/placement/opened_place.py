# SPDX-License-Identifier: Apache-2.0
"""Replaces required affinity of a gang to itself by problems without interactions, which faster methods can solve.

Example: all workers require each other on the topology key zone, and none runs yet. Then all of them must be in one
zone, but any zone is allowed. In general, if pods match each other's terms and no running pod matches, all of them must
be in the domains of one node. The set of nodes in these domains is a *place* (docs/rules/kube-parity.md 2.7).

There are two replacements. If the domains of the topology key are those of a layer of the tree, the rule becomes a hard
layer (`Problem.hard`). Otherwise there is one problem per place, limited to the nodes of the place. Counting solves
such a problem fast. Pods of several shapes need the solver for each place, so this is done only if few places differ.
O(places x nodes).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.member_interactions import LinkedAffinity, RequiredAffinity
from koordpy.placement.problem import Ints, Problem
from koordpy.plan.limits import OPENED_MODELS, OPENED_PLACES


def opened_places(problem: Problem) -> list[Problem] | None:
    """Returns problems without required affinity; the best of their solutions is the solution of the given problem.

    None if the given problem has no such affinity or cannot be replaced; then a CP-SAT model must choose the place. An
    empty list if no place has capacity. The problems keep the slots of the given problem for goals 5 and 6.
    """
    owners = opening_shapes(problem) if len(problem.interactions) == 1 else []
    if not owners:
        return None
    level = _layer(owners, problem)
    if level is not None:
        labelled = owners[0].groups[0] >= 0
        return [_masked(problem, dict.fromkeys(problem.pending_counts, labelled), hard=max(problem.hard, level))]
    several = len(problem.pending_counts) > 1
    if several and (
        problem.gather or len(owners) < len(problem.pending_counts) or len({frozenset(one.keys) for one in owners}) > 1
    ):
        return None
    groups = owners[0].groups
    places = _places(owners, problem)
    if len(places) > OPENED_PLACES:
        return None
    inside = [np.logical_and.reduce([of == of[node] for of in groups]) for node in places]
    if not problem.gather:
        inside = _unlike(problem, inside)
    if several and len(inside) > OPENED_MODELS:
        return None
    return [_masked(problem, {near.shape: mask for near in owners}) for mask in inside]


def opening_shapes(problem: Problem) -> list[RequiredAffinity]:
    """Returns the required affinity of each pending shape, if all these pods must share one new place; else empty.

    They must share one if no running pod matches a term, each shape with terms matches itself, no new pod without terms
    matches, and every two shapes with terms are linked directly.
    """
    linked = [one for one in problem.interactions if isinstance(one, LinkedAffinity)]
    if len(linked) != 1:
        return []
    (one,) = linked
    owners = [near for near in one.owners if near.shape in problem.pending_counts]
    simple = len({near.shape for near in owners}) == len(owners) and all(
        near.matches_itself
        and not near.has_existing
        and not one.unlinked(near)
        and all(other is near or other.shape in near.meant or near.shape in other.meant for other in owners)
        for near in owners
    )
    return owners if simple else []


def _layer(owners: Sequence[RequiredAffinity], problem: Problem) -> int | None:
    """Returns the tree level on which the domains are the same sets of nodes as the domains of the topology key.

    None if there is no such level, if there are several keys, without a gather goal, with bound members, or if a
    pending shape has no required affinity. Nodes without the label are not compared.
    """
    keys = {key: groups for near in owners for key, groups in near.keys.items()}
    if len(keys) > 1 or len(owners) < len(problem.pending_counts) or problem.bound or not problem.gather:
        return None
    (groups,) = keys.values()
    labelled = groups >= 0
    domains = len(np.unique(groups[labelled]))
    for level in range(1, problem.tree.depth + 1):
        of: Ints = problem.tree.domain_of[level][labelled]
        if domains == len(np.unique(of)) == len(np.unique(np.stack([groups[labelled], of]), axis=1).T):
            return level
    return None


def _places(owners: Sequence[RequiredAffinity], problem: Problem) -> list[int]:
    """Returns one node (the first) of each place that has capacity for any pod.

    A place is all nodes that are in the same domain of each topology key. All owners must have the same keys.
    """
    groups = np.stack(owners[0].groups, axis=1)
    room = np.logical_or.reduce([problem.slots_of[near.shape] > 0 for near in owners])
    able = np.nonzero((groups >= 0).all(axis=1) & room)[0]
    places: list[int] = np.sort(able[np.unique(groups[able], axis=0, return_index=True)[1]]).tolist()
    return places


def _unlike(problem: Problem, places: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Drops places that differ from another place in names only, and have the naturally later names.

    places: [nodes] True inside. Valid only without a gather goal, because then the goals of a place do not depend on
    nodes outside it.
    """
    columns = [*problem.free.T, *problem.slots_of, *problem.copies_of, *(shape.score for shape in problem.shapes)]
    columns += [problem.already_used] if problem.already_used is not None else []
    columns += [problem.device_costs.kinds] if problem.device_costs is not None else []
    rows = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    # sorted content of the nodes of a place -> (names of its nodes in that order, mask of its nodes) for each place
    alike: dict[bytes, list[tuple[Ints, NDArray[np.bool_]]]] = {}
    for inside in places:
        nodes = np.nonzero(inside)[0]
        nodes = nodes[np.lexsort((problem.name_rank[nodes], rows[nodes]))]
        known, names = alike.setdefault(rows[nodes].tobytes(), []), problem.name_rank[nodes]
        if any(bool((least <= names).all()) for least, _ in known):
            continue
        known[:] = [one for one in known if not bool((names <= one[0]).all())]
        known.append((names, inside))
    return [inside for known in alike.values() for _, inside in known]


def _masked(problem: Problem, masks: Mapping[int, NDArray[np.bool_]], *, hard: int | None = None) -> Problem:
    """Returns the problem without interactions, and with the given shapes limited to the given nodes.

    masks: shape -> [nodes] True where it is allowed; the other shapes keep their nodes. hard: the new hard level; None
    to keep the level of the problem.
    """
    shapes = tuple(
        replace(shape, allowed=shape.allowed * masks[i]) if i in masks else shape
        for i, shape in enumerate(problem.shapes)
    )
    level = problem.hard if hard is None else hard
    return replace(problem, shapes=shapes, interactions=(), copies=problem.copies_of, hard=level)
