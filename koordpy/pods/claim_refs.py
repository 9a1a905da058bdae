# SPDX-License-Identifier: Apache-2.0
"""Resource claims as pods name them, and devices as claims name them: names that packages outside the devices share.

A pod names claims in `spec.resourceClaims`: directly, by a template through its status, or through its PodGroup. A plan
gives each claim a `Grant`. Nothing here decides which device serves a claim.
"""

from collections.abc import Mapping
from typing import NamedTuple

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.api.keys import GROUP_UPSTREAM
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.pods.gang_refs import upstream_key
from koordpy.pods.pod_info import PodInfo

CLAIMS = "claims"
"""Name of the device family of resource claims."""
MAX_CONSUMERS = 256
"""Maximum number of entries of a claim's `status.reservedFor` in the API."""
IMPLICIT = "-extended-resources"
"""Suffix of the key of the claim that serves a pod's extended resources by devices; the object's name continues it."""


class DeviceId(NamedTuple):
    """Identity of a device: names of the driver, the pool and the device."""

    driver: str
    pool: str
    device: str


class Granted(NamedTuple):
    """One device of a claim's allocation."""

    request: str
    """Name of the request, or `request/alternative`."""
    device: DeviceId
    admin: bool = False
    """True for admin access, which takes nothing."""
    consumed: tuple[tuple[str, str], ...] | None = None
    """(capacity, quantity) that a share takes of the device; None for the whole device."""


Grant = tuple[Granted, ...]
"""Allocation of a resource claim: its devices in the order of requests."""


class ClaimName(NamedTuple):
    """A resource claim of a pod."""

    entry: str
    """Name of the entry in the pod."""
    name: str | None
    """Name of the claim; None until a controller has created it."""
    owner: str
    """What must own the claim: `pod` or `group` for a claim made from a template, empty for a claim by name."""
    grouped: bool = False
    """True for the claim of the pod's PodGroup, which all its pods share."""


def claim_names(pod: Pod, group: UpstreamPodGroup | None = None) -> list[ClaimName]:
    """Returns the resource claims of a pod. group: its upstream PodGroup; None for none or an unknown one.

    A template that needs no claim, by the pod's status, is left out.
    """
    if not pod.spec.resource_claims:
        return []
    made = {status.name: status for status in pod.status.resource_claim_statuses}
    shared = {entry.name: entry for entry in group.spec.resource_claims} if group is not None else {}
    of_group = {one.name: one for one in group.status.resource_claim_statuses} if group is not None else {}
    out: list[ClaimName] = []
    for claim in pod.spec.resource_claims:
        grouped = shared.get(claim.name) == claim
        statuses = of_group if grouped else made
        if claim.resource_claim_name is not None:
            out.append(ClaimName(claim.name, claim.resource_claim_name, "", grouped))
        elif claim.name not in statuses:
            out.append(ClaimName(claim.name, None, "group" if grouped else "pod", grouped))
        elif statuses[claim.name].resource_claim_name is not None:
            name = statuses[claim.name].resource_claim_name
            out.append(ClaimName(claim.name, name, "group" if grouped else "pod", grouped))
    return out


def claim_group(pod: Pod, groups: Mapping[str, UpstreamPodGroup]) -> UpstreamPodGroup | None:
    """Returns the upstream PodGroup of a pod if it has resource claims; None otherwise. groups: by
    `namespace/name`."""
    group = groups.get(key) if (key := upstream_key(pod)) else None
    return group if group is not None and group.spec.resource_claims else None


def resource_claims(pod: PodInfo, group: UpstreamPodGroup | None = None) -> list[str]:
    """Returns `namespace/name` of the resource claims of a pod, existing or not, without duplicates."""
    names = (one.name for one in claim_names(pod.pod, group) if one.name is not None)
    return list(dict.fromkeys(f"{pod.namespace}/{name}" for name in names))


def implicit_key(pod: PodInfo) -> str:
    """Returns the key that the claim for a pod's extended resources has in a plan."""
    return f"{pod.key}{IMPLICIT}"


def consumer_of(pod: Pod, group: UpstreamPodGroup | None = None) -> ClaimConsumer:
    """Returns a pod, or the PodGroup that shares a claim, as an entry of the claim's reservedFor."""
    if group is None:
        return ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
    meta = group.metadata
    return ClaimConsumer(api_group=GROUP_UPSTREAM, resource="podgroups", name=meta.name, uid=meta.uid)
