# SPDX-License-Identifier: Apache-2.0
"""Reports the ResourceClaims at the end of a simulation: consumers, devices, and the round of the allocation."""

from typing import Any

import msgspec

from koordpy.api.claim_objects import ClaimConsumer, ResourceClaim
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import canonical_text
from koordpy.cache.cluster_state import ClusterState
from koordpy.simulation.result_fields import object_order

EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that was created for extended resources."""


class ClaimRounds:
    """Records in which round each claim was allocated."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._input = set(state.objects_of(ResourceClaim))
        self._known: dict[str, tuple[object, int]] = {}
        self.read(0)

    def read(self, number: int) -> None:
        """Records allocations that are new since the last call. number: number of the round; 0 for the input."""
        now: dict[str, tuple[object, int]] = {}
        for key, claim in self._state.objects_of(ResourceClaim).items():
            allocation = claim.status.allocation
            if allocation is not None:
                known = self._known.get(key)
                now[key] = known if known is not None and known[0] is allocation else (allocation, number)
        self._known = now

    def document(self) -> tuple[dict[str, Any], ...]:
        """Returns an entry for each claim, by namespace and natural name."""
        claims = self._state.objects_of(ResourceClaim)
        return tuple(self._entry(key, claims[key]) for key in sorted(claims, key=object_order))

    def _entry(self, key: str, claim: ResourceClaim) -> dict[str, Any]:
        meta, allocation = claim.metadata, claim.status.allocation
        found: dict[str, Any] = msgspec.to_builtins(allocation) if allocation is not None else {}
        devices = found.get("devices", {})
        results = devices.get("results", [])
        for one in results:
            if "consumedCapacity" in one:
                one["consumedCapacity"] = {k: canonical_text(v) for k, v in one["consumedCapacity"].items()}
        return {
            "namespace": meta.namespace,
            "name": meta.name,
            "origin": _origin(claim),
            "round": self._known[key][1] if key in self._known else None,
            "reservedFor": sorted(map(_consumer, claim.status.reserved_for), key=natural_key),
            "results": results,
            "nodeSelector": found.get("nodeSelector"),
            "config": devices.get("config", []),
        }


def _origin(claim: ResourceClaim) -> str:
    """Returns how a claim was created: for extended resources, from a template in the run, or in the input."""
    meta = claim.metadata
    if EXTENDED in meta.annotations:
        return "extended"
    return "template" if meta.controller is not None and "-sim" in meta.name else "input"


def _consumer(one: ClaimConsumer) -> str:
    return one.name if one.resource == "pods" else f"podgroup/{one.name}"
