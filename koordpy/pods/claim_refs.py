# SPDX-License-Identifier: Apache-2.0
"""Reads the names of a pod's resource claims (DRA), and defines the records of the devices that a plan allocates to
them.

A pod lists claims in `spec.resourceClaims`: by name, by a template (then its status has the name of the created claim),
or through its PodGroup. A plan gives each claim a `Grant`, the devices to allocate. This module is outside
`koordpy/devices`, because packages below use it too. It must not choose devices.
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
IMPLICIT = "/extended-resources"
"""End of the provisional key in a plan of the claim that serves a pod's extended resources. No other claim has such a
key, because names contain no slash."""
IMPLICIT_STEM = "-extended-resources-"
"""The name of a created claim for extended resources: the pod's name, this, and further characters."""


class DeviceId(NamedTuple):
    """Identity of a device: names of the driver, the pool and the device."""

    driver: str
    pool: str
    device: str


class Granted(NamedTuple):
    """One device of a claim's allocation."""

    request: str
    """Name of the claim's request, or `request/alternative` if the request lists alternatives (`firstAvailable`)."""
    device: DeviceId
    admin: bool = False
    """True for admin access: the device stays free for other claims."""
    consumed: tuple[tuple[str, str], ...] | None = None
    """Capacities of the device that this allocation uses, each as (name, quantity); None for the whole device."""


Grant = tuple[Granted, ...]
"""Allocation of a resource claim: its devices in the order of requests."""


class ClaimName(NamedTuple):
    """A resource claim of a pod."""

    entry: str
    """Name of the entry in `spec.resourceClaims`."""
    name: str | None
    """Name of the claim; None until a controller has created it."""
    owner: str
    """Owner that the claim must have: `pod` or `group` for a claim from a template; empty for a claim by name."""
    grouped: bool = False
    """True for a claim of the PodGroup, which all its pods share."""


def claim_names(pod: Pod, group: UpstreamPodGroup | None = None) -> list[ClaimName]:
    """Returns the resource claims of a pod. group: its upstream PodGroup; None if it has none, or if that is unknown.

    A template is left out if the pod's status says that no claim is needed for it.
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
    """Returns the provisional key, in a plan, of the claim for a pod's extended resources."""
    return f"{pod.key}{IMPLICIT}"


def claim_title(key: str) -> str:
    """Returns `namespace/name` of a claim by its key, for messages; of a claim that is not created yet without the
    further characters of its name."""
    is_implicit = key.endswith(IMPLICIT)
    return f"{key.removesuffix(IMPLICIT)}{IMPLICIT_STEM}".removesuffix("-") if is_implicit else key


def consumer_of(pod: Pod, group: UpstreamPodGroup | None = None) -> ClaimConsumer:
    """Returns the entry for a claim's reservedFor: the pod, or with `group` the PodGroup that shares the claim."""
    if group is None:
        return ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
    meta = group.metadata
    return ClaimConsumer(api_group=GROUP_UPSTREAM, resource="podgroups", name=meta.name, uid=meta.uid)
