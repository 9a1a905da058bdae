# SPDX-License-Identifier: Apache-2.0
"""Simulates the controllers of claims in kube-controller-manager.

For a pod without a node, they create ResourceClaims from ResourceClaimTemplates, and PersistentVolumeClaims of generic
ephemeral volumes. When a pod is deleted, they release its claims. Sources: workloads.md 10.2 and kube-parity.md 2.8.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from koordpy.api.claim_objects import (
    ClaimConsumer,
    ClaimTemplateSpec,
    ComputeDomain,
    DeviceClaim,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from koordpy.api.field_faults import Fault
from koordpy.api.keys import GROUP_UPSTREAM
from koordpy.api.objects import ObjectMeta, Pod, PodResourceClaim, PodResourceClaimStatus, PodSpec
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.api.uids import made_up_uid
from koordpy.cache.cluster_state import ClusterState
from koordpy.decoding.strict_decoding import decode
from koordpy.pods.claim_refs import claim_group, claim_names, consumer_of
from koordpy.pods.volume_book import claim_key
from koordpy.simulation.claim_report import EXTENDED
from koordpy.workloads.workload_manifest import controlling

CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
"""DeviceClass of the channel that members of a ComputeDomain share over NVLink."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a ResourceClaim that was created from a template: name of the entry in the pod's resourceClaims."""


class ClaimControllers:
    """Creates and releases claims of pods. All methods change the state."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def serve_all(self) -> None:
        """Creates the claims of all existing PodGroups and pods."""
        for group in list(self._state.gangs.upstream.values()):
            if group.spec.resource_claims:
                self.serve_group(group)
        for info in list(self._state.pods()):
            served = self.served(info.pod)
            if served is not info.pod:
                self._state.upsert(served)

    def served(self, pod: Pod) -> Pod:
        """Creates the missing claims of a pod; returns the pod with the names of its ResourceClaims in its status.

        No claim is created for a pod that has a node or is being deleted, nor for an entry with an unknown template.
        Returns the same object if its status is unchanged.
        """
        if pod.spec.node_name or pod.metadata.deletion_timestamp:
            return pod
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None:
                self._make_volume_claim(pod, volume.name, volume.ephemeral)
        known = pod.status.resource_claim_statuses
        made = [*self._make_resource_claims(pod, {one.name for one in known})] if pod.spec.resource_claims else []
        return replace(pod, status=replace(pod.status, resource_claim_statuses=[*known, *made])) if made else pod

    def _make_volume_claim(self, pod: Pod, volume: str, source: Mapping[str, Any]) -> None:
        """Creates the claim of a generic ephemeral volume, named `POD-VOLUME`, unless it exists."""
        name = f"{pod.metadata.name}-{volume}"
        if self._state.get(PersistentVolumeClaim, f"{pod.metadata.namespace}/{name}") is not None:
            return
        claim = decode(source.get("volumeClaimTemplate"), PersistentVolumeClaim).rest
        if claim is not None:
            self._state.upsert(replace(claim, metadata=_owned(pod, name, "PersistentVolumeClaim", claim.metadata)))

    def _make_resource_claims(self, pod: Pod, known: set[str]) -> Iterator[PodResourceClaimStatus]:
        """Creates the claims of entries with a template; yields the status of each. known: entries that have a status.

        An entry that the pod's PodGroup has, too, is left out, because its claim belongs to the group.
        """
        group = claim_group(pod, self._state.gangs.upstream)
        shared = group.spec.resource_claims if group is not None else ()
        for entry in pod.spec.resource_claims:
            if entry.name not in known and entry not in shared:
                made = self._make_claim(entry, pod, "Pod")
                if made is not None:
                    yield made

    def _make_claim(
        self, entry: PodResourceClaim, owner: Pod | UpstreamPodGroup, kind: str
    ) -> PodResourceClaimStatus | None:
        """Creates the claim of an entry with a template, and returns its status; None if the template does not exist.

        If the input has a claim that was created for the owner, it is used. The name of a new claim ends with `-sim`,
        where a live controller adds random letters; if the name exists, a number follows.
        """
        namespace, name = owner.metadata.namespace, entry.resource_claim_template_name
        template = self._state.get(ResourceClaimTemplate, f"{namespace}/{name}") if name is not None else None
        if template is None:
            return None
        found = self._given.get((owner.metadata.uid, entry.name))
        if found is None:
            found = stem = f"{owner.metadata.name}-{entry.name}-sim"
            number = 1
            while self._state.get(ResourceClaim, f"{namespace}/{found}") is not None:
                number += 1
                found = f"{stem}{number}"
            meta = _owned(owner, found, "ResourceClaim", kind=kind)
            meta.annotations[POD_CLAIM_NAME] = entry.name
            self._state.upsert(ResourceClaim(metadata=meta, spec=template.spec.spec))
        return PodResourceClaimStatus(name=entry.name, resource_claim_name=found)

    def serve_group(self, group: UpstreamPodGroup) -> None:
        """Creates the missing claims of a PodGroup, and states their names in its status."""
        known = {one.name for one in group.status.resource_claim_statuses}
        entries = [entry for entry in group.spec.resource_claims if entry.name not in known]
        made = [one for entry in entries if (one := self._make_claim(entry, group, "PodGroup")) is not None]
        if made:
            statuses = [*group.status.resource_claim_statuses, *made]
            self._state.upsert(replace(group, status=replace(group.status, resource_claim_statuses=statuses)))

    @cached_property
    def _given(self) -> Mapping[tuple[str, str], str]:
        """(uid of an owner, entry) -> name of the existing ResourceClaim that was created for it.

        Computed once, because later claims are created here.
        """
        metas = (claim.metadata for claim in self._state.objects_of(ResourceClaim).values())
        owned = ((meta, meta.controller, meta.annotations.get(POD_CLAIM_NAME)) for meta in metas)
        return {(owner.uid, entry): meta.name for meta, owner, entry in owned if owner is not None and entry}

    def settle(self, pods: Iterable[Pod]) -> None:
        """Releases the claims of finished pods, and deletes claims that an earlier attempt has left.

        Consumers of claims that are stated by name get the generated uids of pods.

        pods: all pods of the input.
        """
        listed = list(pods)
        self._drop_leftovers(listed)
        made = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in listed if _has_made_up_uid(one)}
        for claim in list(self._state.objects_of(ResourceClaim).values()) if made else ():
            consumers = [self._named(one, claim.metadata.namespace, made) for one in claim.status.reserved_for]
            if consumers != claim.status.reserved_for:
                self._state.upsert(replace(claim, status=replace(claim.status, reserved_for=consumers)))
        for pod in listed:
            if pod.status.phase in ("Succeeded", "Failed") and _has_claims(pod):
                self.release(pod)

    def _drop_leftovers(self, pods: Iterable[Pod]) -> None:
        """Deletes the claims for extended resources of unbound pods, as the scheduler does before it plans them."""
        made = [
            claim for claim in self._state.objects_of(ResourceClaim).values() if EXTENDED in claim.metadata.annotations
        ]
        waiting = {one.metadata.uid for one in pods if made and self._is_unbound(one)}
        for claim in made:
            owner = claim.metadata.controller
            if owner is not None and owner.uid in waiting:
                self._state.delete(ResourceClaim, f"{claim.metadata.namespace}/{claim.metadata.name}")

    def _is_unbound(self, pod: Pod) -> bool:
        is_assumed = self._state.assumed_node(f"{pod.metadata.namespace}/{pod.metadata.name}") is not None
        return not pod.spec.node_name and not is_assumed

    def _named(self, consumer: ClaimConsumer, namespace: str, made: Mapping[str, Pod]) -> ClaimConsumer:
        pod = made.get(f"{namespace}/{consumer.name}") if consumer.resource == "pods" else None
        return replace(consumer, uid=pod.metadata.uid) if pod is not None else consumer

    def release(self, pod: Pod) -> None:
        """Releases the claims of a deleted pod.

        Claims that the pod controls are deleted. In other ResourceClaims, the pod is removed from reservedFor; if no
        pod uses such a claim any more, it is deallocated.
        """
        namespace = pod.metadata.namespace
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None:
                self._drop_owned(PersistentVolumeClaim, claim_key(namespace, pod.metadata.name, volume), pod)
        if not _has_claims(pod):
            return
        uid = consumer_of(pod).uid
        mine = self._state.objects_of(ResourceClaim)
        used = [key for key, claim in mine.items() if any(one.uid == uid for one in claim.status.reserved_for)]
        named = [f"{namespace}/{one.name}" for one in claim_names(pod) if one.name is not None]
        for key in dict.fromkeys([*named, *used]):
            claim = self._state.get(ResourceClaim, key)
            if claim is None or self._drop_owned(ResourceClaim, key, pod):
                continue
            others = [one for one in claim.status.reserved_for if one.uid != uid]
            if len(others) < len(claim.status.reserved_for):
                status = replace(claim.status, reserved_for=others)
                if not others:
                    status = ResourceClaimStatus()
                self._state.upsert(replace(claim, status=status))

    def _drop_owned(self, kind: type[ResourceClaim] | type[PersistentVolumeClaim], key: str, pod: Pod) -> bool:
        """Deletes a claim if the pod controls it; returns True if it was deleted."""
        claim = self._state.get(kind, key)
        owner = claim.metadata.controller if claim is not None else None
        owned = owner is not None and owner.uid == pod.metadata.uid
        if owned:
            self._state.delete(kind, key)
        return owned


def channel_template(domain: ComputeDomain) -> ResourceClaimTemplate | None:
    """Returns the template that NVIDIA's controller creates for a ComputeDomain; None if the domain names none."""
    name = domain.spec.channel.resource_claim_template.name
    if not name:
        return None
    exact = ExactRequest(device_class_name=CHANNEL_CLASS, allocation_mode="ExactCount", count=1)
    devices = DeviceClaim(requests=[DeviceRequest(name="channel", exactly=exact)])
    meta = ObjectMeta(name=name, namespace=domain.metadata.namespace)
    return ResourceClaimTemplate(metadata=meta, spec=ClaimTemplateSpec(spec=ResourceClaimSpec(devices=devices)))


def _has_made_up_uid(pod: Pod) -> bool:
    """Returns True if the uid of a pod was generated, because the input states none
    (`server_defaults.with_identity`)."""
    meta = pod.metadata
    return meta.uid == made_up_uid("Pod", meta.namespace, meta.name)


def _has_claims(pod: Pod) -> bool:
    """Returns True if a pod may use resource claims, stated by itself or created for extended resources."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return bool(pod.spec.resource_claims) or any("/" in name for one in containers for name in one.resources.limits)


def _owned(
    owner: Pod | UpstreamPodGroup,
    name: str,
    claim: str,
    template: ObjectMeta = ObjectMeta(),  # noqa: B008
    *,
    kind: str = "Pod",
) -> ObjectMeta:
    """Returns the metadata of a claim that a pod or PodGroup controls, with the creation time of the owner.

    claim: kind of the claim. template: metadata with labels and annotations for the claim. kind: kind of the owner.
    """
    meta = owner.metadata
    version = "v1" if kind == "Pod" else f"{GROUP_UPSTREAM}/v1beta1"
    return ObjectMeta(
        name=name,
        namespace=meta.namespace,
        uid=made_up_uid(claim, meta.namespace, name, meta.uid),
        creation_timestamp=meta.creation_timestamp,
        labels={**template.labels},
        annotations={**template.annotations},
        owner_references=[controlling(version, kind, meta.name, meta.uid)],
    )


def volume_claim_faults(spec: PodSpec) -> Iterator[Fault]:
    """Yields the faults of the claim templates in generic ephemeral volumes of a pod."""
    for i, volume in enumerate(spec.volumes):
        if volume.ephemeral is None:
            continue
        path = f"spec.volumes[{i}].ephemeral.volumeClaimTemplate"
        template = volume.ephemeral.get("volumeClaimTemplate")
        if template is None:
            yield Fault(path, "is missing")
            continue
        for fault in decode(template, PersistentVolumeClaim).faults:
            yield Fault(f"{path}.{fault.path}" if fault.path else path, fault.text)
