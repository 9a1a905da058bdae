# SPDX-License-Identifier: Apache-2.0
"""Costs of nodes for a plain pod with claims to allocate (dra.md 6 (c) to (e)).

Allocatable devices that the pod gets beside devices of its claims, such as GPUs of a device plugin, count like devices
of a driver. On a node that serves an extended resource by its device plugin, they are all that the pod gets.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.dra.filters.claim_filter import DynamicResources
from koordpy.devices.dra.filters.claim_zones import zone_costs_of
from koordpy.devices.dra.filters.device_choice import alternatives_score
from koordpy.devices.dra.ledger.claim_book import claim_ledger
from koordpy.devices.links.allocatable_devices import AllocatableDevices, DevicesOfNode
from koordpy.devices.links.device_masks import bits_of
from koordpy.devices.links.link_board import NO_LIMIT
from koordpy.plugins.filter_inputs import FilterInputs

_NOTHING = 0, NO_LIMIT, NO_LIMIT, 0, 0
"""(score of alternatives, slowest links, devices left, mask of devices given) on a node that gives no devices."""


def plain_costs(
    rule: DynamicResources, nodes: Ints, inputs: FilterInputs, beside: Sequence[AllocatableDevices]
) -> Sequence[Ints]:
    """Returns costs of nodes (positions), the most important first: alternatives, slowest links of one driver and of
    different drivers, zones, and suitable devices that are left."""
    found = _of_claims(rule, nodes, inputs)
    scores, near, far, left = (np.array([one[i] for one in found], dtype=np.int64) for i in range(4))
    for devices in beside:
        given = devices.of_pod(rule.pod, nodes)
        near, left = np.minimum(near, given.slowest), left + given.left
        for i, (node, (*_, own)) in enumerate(zip(nodes.tolist(), found, strict=True)):
            if own:
                far[i] = min(far[i], slowest_beside(rule, node, own, devices.on_node(node, [rule.pod])))
    limits = zone_costs_of(inputs)
    zones = [limits.pod_costs(rule.pod)[nodes]] if limits is not None else []
    return -scores, -near, -far, *zones, left


def slowest_beside(rule: DynamicResources, node: int, claimed: int, given: DevicesOfNode | None) -> int:
    """Returns kB/s of the slowest link between devices of claims (mask) and allocatable devices; `NO_LIMIT` for no
    pair."""
    if given is None or not given.number:
        return NO_LIMIT
    links = rule.links(node)
    chosen: Sequence[int | None] = given.chosen if given.chosen is not None else [None]
    return min((links.compared_to(i, at) for i in bits_of(claimed) for at in chosen), default=NO_LIMIT)


def _of_claims(rule: DynamicResources, nodes: Ints, inputs: FilterInputs) -> list[tuple[int, int, int, int, int]]:
    """Returns for each node what the claims of the pod get, as `_NOTHING`.

    Stored with the draft; only nodes that reach a changed pool are computed again.
    """
    ledger = claim_ledger(inputs.draft.ledgers)
    key = "costs", tuple(wants.content for wants in rule.wants()), rule.closed(), rule.pair_key()
    rows, seen = ledger.memo.get(key, ({}, 0))
    for node in rule.changed_nodes(ledger.changed[seen:]):
        rows.pop(node, None)
    ledger.memo[key] = rows, len(ledger.changed)
    for node in nodes.tolist():
        if node not in rows:
            found = rule.choose(node) if rule.wants_at(node).claims else None
            if found is None:
                rows[node] = _NOTHING
            else:
                score = alternatives_score(found.alternatives)
                rows[node] = score, *found.slowest, found.left, found.devices
    return [rows[node] for node in nodes.tolist()]
