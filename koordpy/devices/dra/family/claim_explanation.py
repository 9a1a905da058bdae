# SPDX-License-Identifier: Apache-2.0
"""What `koordpy explain` says about the claims of a pod.

These are the devices that a node would give, selectors that match no device, and devices that would have to be free.
Source: docs/rules/dra.md 13.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec.structs import replace as changed

from koordpy.api.natural_order import natural_key
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.dra.filters.claim_filter import DynamicResources
from koordpy.devices.dra.filters.claim_refusal import CANNOT_TEXT, INVALID_TEXT
from koordpy.devices.dra.filters.claim_requests import AttemptFault, UndecidedNode, alternatives_of
from koordpy.devices.dra.filters.device_choice import alternatives_score
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.evictable_devices import usage_with
from koordpy.devices.dra.ledger.claim_book import claim_view
from koordpy.devices.dra.ledger.device_objects import DeviceObjects
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.family_round import NodeFacts
from koordpy.pods.claim_refs import CLAIMS, IMPLICIT, DeviceId, claim_title

Edit = Callable[[Snapshot], Snapshot]


def claim_facts(rule: DynamicResources) -> NodeFacts | None:
    """Returns the devices that each node would give to a pod, and selectors without a device; None for a pod without
    claims to allocate."""
    if not any(wants.claims for wants in rule.wants()):
        return None
    unmatched = tuple(unmatched_selectors(rule))

    def of(node: int) -> Mapping[str, Any]:
        return {"devices": given_devices(rule, node), "reasons": unmatched}

    return NodeFacts("", of)


def shown_scores(rule: DynamicResources) -> Callable[[int], float]:
    """Returns the score of each node (position) by the alternatives that it would give: 100 for the largest sum."""
    found = {node: rule.choose(node) for node in np.nonzero(rule.verdict().fits)[0].tolist()}
    sums = {node: alternatives_score(one.alternatives) for node, one in found.items() if one is not None}
    most = max(sums.values(), default=0)
    return lambda node: 100 * sums.get(node, 0) // most if most else 0


def given_devices(rule: DynamicResources, node: int) -> list[dict[str, str]]:
    """Returns the devices that a node (position) would give to a pod, in the order of claims and results."""
    claims = rule.wants_at(node).claims
    found = rule.choose(node) if claims else None
    if found is None or found.grants is None:
        return []
    return [
        {
            "claim": f"{claim_title(claim.key)}-sim" if claim.key.endswith(IMPLICIT) else claim.key,
            "request": one.request,
            "driver": one.device.driver,
            "pool": one.device.pool,
            "device": one.device.device,
        }
        for claim, grant in zip(claims, found.grants, strict=True)
        for one in grant
    ]


def unmatched_selectors(rule: DynamicResources) -> Iterator[str]:
    """Yields a sentence about each request with a selector that no device of the cluster passes.

    Each selector is tried on the devices that pass the request's earlier selectors.
    """
    matching = DeviceMatching(rule.offers)
    devices = list(rule.offers.by_id.values())  # also the devices of incomplete pools
    claims = dict.fromkeys(claim for wants in rule.wants() for claim in wants.claims)
    for claim in claims:
        for one in alternatives_of([claim.spec]):
            for i, selector in enumerate(one.selectors):
                some = replace(one, selectors=one.selectors[: i + 1])
                answers = [matching.selects(some, device) for device in devices]
                if any(isinstance(answer, str) for answer in answers):
                    break
                if not any(answers):
                    where = selector.origin or f"claim {claim.key}, request {one.name}"
                    yield f"{where}: selector #{selector.number} matches no device"
                    break


def missing_devices(rule: DynamicResources) -> Iterator[tuple[int, str, Edit]]:
    """Yields (position, text, change of a snapshot) for nodes on which a pod lacks devices that are in use; fewest
    devices first.

    Left out are nodes on which the missing devices belong to several device classes.
    """
    verdict, found = rule.verdict(), list[tuple[int, object, int, str, frozenset[DeviceId]]]()
    for node, which in enumerate(verdict.which.tolist()):
        if which and verdict.refusals[which - 1].reasons[0] in (CANNOT_TEXT, INVALID_TEXT):
            name = rule.node(node).name
            needed = _least_taken(rule, node)
            if needed is not None:
                devices, classes = needed
                if len(classes) == 1:
                    [class_name] = classes
                    text = f"free {len(devices)} devices of class {class_name} on {name}"
                    found.append((len(devices), natural_key(name), node, text, devices))
    for _, _, node, text, devices in sorted(found, key=lambda one: one[:2]):
        yield node, text, _freeing(devices, rule.keys)


def _least_taken(rule: DynamicResources, node: int) -> tuple[frozenset[DeviceId], frozenset[str]] | None:
    """Returns (the fewest devices in use that a pod needs on a node, their classes).

    If the search is cut short, these are the fewest that it has found. None if it finds no allocation even though all
    devices in use count as free. Devices of the pod's own allocated claims count neither as free nor as missing.
    """
    best = list[tuple[frozenset[DeviceId], frozenset[str]]]()
    claims, own = rule.wants_at(node).claims, rule.allocated_keys()
    others = usage_with(rule.usage, rule.objects, own, -1) if own else rule.usage
    taken = [others.is_used(device.id) for device in rule.offers.at(rule.node(node)).devices]

    def compare(search: DeviceSearch) -> bool:
        results = [one for claim in search.chosen() for one in claim if taken[one[1]] and not one[0].admin]
        devices = frozenset(search.devices[at].id for _, at in results)
        if devices and (not best or len(devices) < len(best[0][0])):
            best[:] = [(devices, frozenset(one.class_name for one, _ in results))]
        return False

    usage = usage_with(DeviceUsage(rule.offers), rule.objects, own)
    search = rule.searching(node, claims, usage=usage, twins=taken)
    with suppress(UndecidedNode, AttemptFault):
        search.each(compare)
    return best[0] if best else None


def _freeing(devices: Collection[DeviceId], but: Collection[str]) -> Edit:
    """Returns a change of a snapshot that removes the given devices from the allocations of all claims except `but`."""

    def edit(snapshot: Snapshot) -> Snapshot:
        view = claim_view(snapshot.families)
        claims = dict(view.objects.claims)
        for key, claim in claims.items():
            allocation = claim.status.allocation
            if allocation is None or key in but:
                continue
            results = [r for r in allocation.devices.results if DeviceId(r.driver, r.pool, r.device) not in devices]
            if len(results) < len(allocation.devices.results):
                left = changed(allocation, devices=changed(allocation.devices, results=results))
                claims[key] = changed(claim, status=changed(claim.status, allocation=left))
        objects = DeviceObjects(claims, view.objects.offers, view.objects.groups)
        families = {**snapshot.families, CLAIMS: replace(view, objects=objects)}
        return replace(snapshot, families=families, memo={})

    return edit
