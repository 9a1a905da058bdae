# SPDX-License-Identifier: Apache-2.0
"""Allocated claims that tie pending pods to nodes although no pod uses them. Source: docs/rules/dra.md 7."""

from collections.abc import Sequence

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.dra.ledger.claim_ledger import ClaimLedger, ClaimView
from koordpy.pods.claim_refs import claim_group
from koordpy.pods.pod_info import PodInfo


def tied_claims(pods: Sequence[PodInfo], view: ClaimView, ledger: ClaimLedger, snapshot: Snapshot) -> list[str]:
    """Returns the allocated claims of a unit that are reserved for none, for unbound pods of the unit, or for a
    PodGroup of the unit without bound pods. pods: the pending pods of the unit."""
    objects = view.objects
    uids = {pod.uid for pod in pods}
    names = {f"{pod.namespace}/{one.name}" for pod in pods for one in objects.names_of(pod.pod)}
    groups = {group.metadata.uid for pod in pods if (group := claim_group(pod.pod, objects.groups)) is not None}
    if groups:
        bound = (claim_group(pod.pod, objects.groups) for pod in snapshot.pods.values() if pod.bound)
        groups -= {group.metadata.uid for group in bound if group is not None}
    return [
        key
        for key in sorted(names)
        if key not in ledger.taken
        and ledger.allocation(key) is not None
        and all(one.uid in uids | groups for one in objects.claims[key].status.reserved_for)
    ]
