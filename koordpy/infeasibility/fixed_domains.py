# SPDX-License-Identifier: Apache-2.0
"""Causes for which no new node would help a gang: its domain gets no new nodes, or its number of members is wrong.

An autoscaler never adds nodes to the domains of a layer in `autoscaling.fixedLayers`, and a domain of the node layer is
only one node. Source: docs/rules/repair.md 1.3, causes 7 and 8.
"""

from collections.abc import Iterator

import numpy as np

from koordpy.api.keys import HOSTNAME
from koordpy.fairness.quota_admission import core_members
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.problems.problem_building import hard_keys, hard_level


def find_unit_cause(unit: Unit, round_state: RoundState) -> str:
    """Returns the cause for a gang, as text; empty if a new node may help."""
    return next((cause for find in (_domain_cause, _multiple_cause) if (cause := find(unit, round_state))), "")


def unknown_fixed_layers(round_state: RoundState) -> list[tuple[str, str]]:
    """Returns (path, text) for each layer in `autoscaling.fixedLayers` that the topology does not have."""
    layers = round_state.snapshot.tree.layers
    names = enumerate(round_state.config.autoscaling.fixed_layers)
    return [(f"autoscaling.fixedLayers[{i}]", f'no layer "{name}"') for i, name in names if layers.level(name) is None]


def _domain_cause(unit: Unit, round_state: RoundState) -> str:
    """Returns the cause if all members must share one domain, and this domain gets no new nodes; else empty."""
    core = len(core_members(unit))
    for layer, is_fixed, paths in _required_domains(unit, round_state):
        if len(paths) > 1:
            return f"bound members are in two domains of {layer}"
        if is_fixed and paths:
            return f"members must join {layer} {paths[0]}, which gets no further nodes"
        if is_fixed and core > 1 and layer in round_state.config.autoscaling.fixed_layers:
            return f"members must share one domain of {layer}, which gets no further nodes"
    return ""


def _required_domains(unit: Unit, round_state: RoundState) -> Iterator[tuple[str, bool, list[str]]]:
    """Yields (layer or label key, True if its domains get no new nodes, paths of the domains with bound members).

    The MustGather layer of the whole gang comes first, then the topology keys of an upstream group.
    """
    snapshot, fixed = round_state.snapshot, round_state.config.autoscaling.fixed_layers
    tree, index = snapshot.tree, snapshot.index
    nodes = sorted({index[pod.node] for pod in unit.members if not pod.pending and pod.node in index})
    if level := hard_level(unit, round_state):
        layer = tree.layer_name(level)
        held = np.zeros(len(snapshot.nodes), dtype=np.int64)
        held[nodes] = 1
        domains = np.nonzero(tree.levels[level].sums(held))[0].tolist()
        is_node = level == len(tree.levels) - 1
        yield layer, is_node or layer in fixed, [tree.path(level, domain) for domain in domains]
    for key in hard_keys(unit):
        layers = [one.name for one in tree.layers.chain if key in one.label_keys]
        is_fixed = key == HOSTNAME or any(name in fixed for name in layers)
        values = dict.fromkeys(snapshot.nodes[node].labels.get(key, "") for node in nodes)
        yield layers[0] if layers else key, is_fixed, [*values]


def _multiple_cause(unit: Unit, round_state: RoundState) -> str:
    """Returns the cause if no number of members that may start is divisible by every podCountMultiple; else empty."""
    layers = round_state.snapshot.tree.layers
    rules = [rule for gang in unit.gangs for rule in gang.wish.gather if rule.multiple > 1]
    multiples = [rule.multiple for rule in rules if layers.level(rule.layer) is not None]
    if not multiples:
        return ""
    bound, pending = len(unit.members) - len(unit.pending), len(unit.pending)
    numbers = range(bound + len(core_members(unit)), bound + pending + 1)
    if any(all(number % multiple == 0 for multiple in multiples) for number in numbers):
        return ""
    wrong = next((k for k in multiples if all(number % k for number in numbers)), max(multiples))
    return f"no number of its members is a multiple of {wrong}"
