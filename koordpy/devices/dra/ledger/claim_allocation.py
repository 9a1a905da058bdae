# SPDX-License-Identifier: Apache-2.0
"""The allocation of a claim as the API states it: results, parameters of drivers, and the nodes that may use it.

Source: dra.md 2.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from koordpy.api.claim_objects import (
    Allocation,
    DeviceClaim,
    DeviceRequest,
    DeviceResult,
    DeviceResults,
    DeviceToleration,
    ResourceClaim,
)
from koordpy.api.keys import HOSTNAME
from koordpy.api.objects import NodeSelector, NodeSelectorTerm, Requirement
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import Grant

SIMULATED_SHARE = "00000000-0000-4000-8000-{:012d}"
"""shareID of the n-th share of a simulation."""


def allocation_of(
    claim: ResourceClaim, node: str, grant: Grant, offers: DeviceOffers, share_id: Callable[[int], str]
) -> Allocation:
    """Returns the allocation of a claim for a pod on a node (name). share_id: returns the shareID of the i-th
    result."""
    devices = claim.spec.devices
    tolerations = {name: exact.tolerations for request in devices.requests for name, exact in request.alternatives}
    results = []
    for i, one in enumerate(grant):
        offered = offers.device(one.device, node)
        results.append(
            DeviceResult(
                request=one.request,
                driver=one.device.driver,
                pool=one.device.pool,
                device=one.device.device,
                admin_access=one.admin or None,
                tolerations=list[DeviceToleration](tolerations.get(one.request, ())),
                share_id=share_id(i) if one.consumed is not None else "",
                consumed_capacity=dict(one.consumed or ()),
                binding_conditions=offered.facts.binding_conditions if offered is not None else [],
                binding_failure_conditions=offered.facts.binding_failure_conditions if offered is not None else [],
            )
        )
    config = list(driver_parameters(devices, grant, offers))
    return Allocation(
        devices=DeviceResults(results=results, config=config), node_selector=node_selector(grant, node, offers)
    )


def driver_parameters(devices: DeviceClaim, grant: Grant, offers: DeviceOffers) -> Iterator[dict[str, Any]]:
    """Yields the parameters of an allocation: those of each class once, then those of the claim that apply."""
    used = list(dict.fromkeys(one.request for one in grant))
    by_class: dict[str, list[str]] = {}
    chosen: dict[str, str] = {}  # request -> its name in results
    for request in devices.requests:
        for name, exact in request.alternatives:
            if name in used or (not request.first_available and name == request.name):
                chosen[request.name] = name
                by_class.setdefault(exact.device_class_name, []).append(name)
    for class_name, names in by_class.items():
        found = offers.classes.get(class_name)
        for entry in found.spec.config if found is not None else ():
            yield _entry("FromClass", entry, [] if len(names) == len(devices.requests) else names)
    for entry in devices.config:
        named: list[str] = list(entry.get("requests") or ())
        meant = [one for one in devices.requests if _names(named, one, chosen.get(one.name, ""))]
        if not named or len(meant) == len(devices.requests):
            yield _entry("FromClaim", entry, [])
        elif meant:
            yield _entry("FromClaim", entry, named)


def _names(named: Iterable[str], request: DeviceRequest, chosen: str) -> bool:
    """Returns whether the names of an entry include a request or its chosen alternative."""
    return any(one in (request.name, chosen) for one in named)


def _entry(source: str, entry: dict[str, Any], names: list[str]) -> dict[str, Any]:
    rest = {key: value for key, value in entry.items() if key not in ("requests", "source")}
    return {"source": source, **({"requests": names} if names else {}), **rest}


def node_selector(grant: Grant, node: str, offers: DeviceOffers) -> NodeSelector | None:
    """Returns the nodes that may use an allocation; None for all. node: name of the pod's node."""
    expressions: list[Requirement] = []
    fields: list[Requirement] = []
    for one in grant:
        device = offers.device(one.device, node)
        if device is None or device.node or device.facts.binds_to_node:
            here = Requirement(key="metadata.name", operator="In", values=((device.node if device else "") or node,))
            return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=(here,))])
        for term in device.selector.node_selector_terms if device.selector is not None else ():
            expressions += [item for item in term.match_expressions if item not in expressions]
            fields += [item for item in term.match_fields if item not in fields]
    if not expressions and not fields:
        return None
    term = NodeSelectorTerm(match_expressions=tuple(expressions), match_fields=tuple(fields))
    return NodeSelector(node_selector_terms=[term])


def frees_devices(before: ResourceClaim | None, after: ResourceClaim | None) -> bool:
    """Returns True if a change of a claim may let other pods use its devices.

    Either devices were released, or one of several reservations was removed: the reservation of a pod that is gone
    protects the other users of the claim from preemption. before, after: None if the claim did not or does not exist.
    """
    if before is None or before.status.allocation is None:
        return False
    if after is None or after.status.allocation != before.status.allocation:
        return True
    users = after.status.reserved_for
    return bool(users) and any(one not in users for one in before.status.reserved_for)


def asks_for_name(term: NodeSelectorTerm) -> bool:
    """Returns whether a term asks for nodes by name."""
    return any(one.key == "metadata.name" and one.operator == "In" for one in term.match_fields) or any(
        one.key == HOSTNAME and one.operator == "In" for one in term.match_expressions
    )
