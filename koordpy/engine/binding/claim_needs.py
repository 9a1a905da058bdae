# SPDX-License-Identifier: Apache-2.0
"""Lists what must be written to resource claims before a unit is bound: allocated devices, and consumers (reservedFor).

Pods of the unit that share a claim have one entry. The claim that serves a pod's extended resources does not exist when
the plan is made. The plan identifies it by a provisional key; it is created under a generated name. Source: dra.md 7,
8, 12.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.engine.binding.volume_writes import PodClaims
from koordpy.pods.claim_refs import Grant, claim_group, claim_names, consumer_of, implicit_key


@dataclass(eq=False)
class ClaimNeed:
    """One claim, with the unit's pods that use it."""

    key: str
    """`namespace/name` of the claim. For a claim for extended resources: the plan's provisional key until it is
    created."""
    is_implicit: bool = False
    """True for the claim that serves the extended resources of its only pod."""
    group: UpstreamPodGroup | None = None
    """PodGroup that the claim is reserved for as a whole; None if it is reserved for each pod."""
    pods: list[PodClaims] = field(default_factory=list)

    @property
    def granting(self) -> PodClaims | None:
        """The pod that is planned with the devices of this claim. None if this unit allocates nothing to it: it was
        allocated when planned, or another unit allocates it."""
        return next((pod for pod in self.pods if self.plan_key in pod.devices), None)

    @property
    def plan_key(self) -> str:
        """Key of the claim in a plan: provisional for a claim for extended resources, else `namespace/name`."""
        return implicit_key(self.pods[0].info) if self.is_implicit else self.key

    @property
    def grant(self) -> Grant | None:
        """Devices to allocate; None if this unit allocates none."""
        pod = self.granting
        return pod.devices[self.plan_key] if pod is not None else None

    @property
    def consumers(self) -> list[ClaimConsumer]:
        """The PodGroup or the pods to add to the claim's `reservedFor`, each once."""
        if self.group is not None:
            return [consumer_of(self.pods[0].info.pod, self.group)]
        return [consumer_of(pod.info.pod) for pod in self.pods]


def claim_needs(pods: Iterable[PodClaims], groups: Mapping[str, UpstreamPodGroup]) -> list[ClaimNeed]:
    """Returns one entry per claim: first the claims that the pods name, then the claims for extended resources.

    groups: upstream PodGroups by `namespace/name`.
    """
    named: dict[str, ClaimNeed] = {}
    implicit: list[ClaimNeed] = []
    for pod in pods:
        group = claim_group(pod.info.pod, groups)
        for one in claim_names(pod.info.pod, group):
            if one.name is None:
                continue
            key = f"{pod.info.namespace}/{one.name}"
            need = named.setdefault(key, ClaimNeed(key, group=group if one.grouped else None))
            if not need.pods or need.pods[-1] is not pod:
                need.pods.append(pod)
        key = implicit_key(pod.info)
        if key in pod.devices:
            implicit.append(ClaimNeed(key, is_implicit=True, pods=[pod]))
    return [*named.values(), *implicit]


def has_resource_claims(pods: Sequence[PodClaims]) -> bool:
    """Returns True if resource claims are written for any of the pods."""
    return any(pod.info.pod.spec.resource_claims or pod.devices for pod in pods)
