# SPDX-License-Identifier: Apache-2.0
"""The nodes on which members of a gang may be together if they name one claim without an allocation.

Members on several nodes need devices that all these nodes can use. So any two of the nodes reach devices that suffice
for the claim. The domains are the connected components of this relation: a plan never leaves a domain. A domain decides
alone if its nodes reach the same suitable devices. Otherwise each plan must be checked (`SharedDevices`). Nodes are
compared by the sets of suitable devices that they share with other nodes, in O(sets^2) searches.

A claim for all devices means the devices of the node of the first pod. Its domains are nodes that reach the same
devices, so plans on nodes with different devices are left out.
"""

from collections.abc import Collection
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.dra.filters.claim_requests import UnallocatedClaim, alternatives_of
from koordpy.devices.dra.filters.cross_node_search import ClaimReach, CrossNodeSearch
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.pod_claims import DraftClaims
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.plan.limits import SETS_COMPARED

DeviceSet = frozenset[OfferedDevice]


class SharedDomains(NamedTuple):
    """Where the members that name a claim may be together."""

    groups: Ints
    """[nodes] number of the node's domain."""
    is_single: bool
    """True if every node that reaches a suitable device is in one domain, so that domains exclude no plan."""
    are_exact: bool
    """True if the claim can be met on all nodes of a domain together if it can be met on one of them."""


def shared_domains(
    rule: DraftClaims, claim: UnallocatedClaim, devices: Collection[OfferedDevice], usage: DeviceUsage
) -> SharedDomains:
    """Returns the domains of a claim.

    rule: a pod that names the claim. devices: all devices that suit a request of it. usage: devices that may never be
    free; only whether two nodes can be in a domain depends on it.
    """
    nodes = rule.node_number
    wide = {one for one in devices if not (one.node or one.facts.binds_to_node)}
    tied = {one for one in devices if one not in wide}
    near = [rule.offers.at(rule.node(at)).devices for at in range(nodes)]
    sets = [frozenset(one for one in some if one in wide) if wide else frozenset() for some in near]
    local = [not tied.isdisjoint(some) for some in near]
    is_whole = any(one.all for one in alternatives_of([claim.spec]))
    numbers = {own: number for number, own in enumerate(dict.fromkeys(own for own in sets if own))}
    parent = list(range(len(numbers)))
    joint = set[int]()

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    known: dict[DeviceSet, bool] = {}
    limit = len(numbers) > SETS_COMPARED
    for a, b in combinations_with_replacement(numbers, 2):
        both = a if a is b else a & b
        if not both or (is_whole and a is not b):
            continue
        if both not in known:
            known[both] = limit or _is_met(rule, claim, both, usage)
        if known[both]:
            joint.update((numbers[a], numbers[b]))
            parent[root(numbers[a])] = root(numbers[b])
    groups = np.arange(nodes, dtype=np.int64) + len(numbers)
    members: dict[int, set[tuple[int, bool]]] = {}
    for at, own in enumerate(sets):
        if own and numbers[own] in joint and not (is_whole and local[at]):
            groups[at] = root(numbers[own])
            members.setdefault(root(numbers[own]), set()).add((numbers[own], local[at]))
    reached = {int(groups[at]) for at in range(nodes) if sets[at] or local[at]}
    are_exact = all(len(kinds) == 1 and not any(tie for _, tie in kinds) for kinds in members.values())
    return SharedDomains(np.unique(groups, return_inverse=True)[1].reshape(-1), len(reached) < 2, are_exact)


def _is_met(rule: DraftClaims, claim: UnallocatedClaim, devices: DeviceSet, usage: DeviceUsage) -> bool:
    """Returns whether devices suffice for a claim; True if the search is cut short."""
    listed = sorted(devices, key=lambda one: one.id)
    every = (1 << len(listed)) - 1
    matching = DeviceMatching(rule.offers)
    search = CrossNodeSearch(
        listed, {claim: ClaimReach(every, every)}, usage, matching, limit=rule.search_limit, closed=frozenset()
    )
    return search.is_possible(undecided=True)
