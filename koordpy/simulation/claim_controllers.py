# SPDX-License-Identifier: Apache-2.0
"""The controllers of claims in kube-controller-manager, for simulations.

For a pod without a node, they create ResourceClaims from ResourceClaimTemplates, and PersistentVolumeClaims of generic
ephemeral volumes. When a pod is deleted, they release its claims.

Sources: workloads.md 10.2 and kube-parity.md 2.8.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from koordpy.api.claim_objects import ResourceClaim, ResourceClaimTemplate
from koordpy.api.field_faults import Fault
from koordpy.api.objects import ObjectMeta, Pod, PodResourceClaimStatus, PodSpec
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.api.uids import made_up_uid
from koordpy.cache.cluster_state import ClusterState
from koordpy.decoding.strict_decoding import decode
from koordpy.devices.dra.ledger.claim_book import claim_book, claim_names, consumer_of
from koordpy.pods.volume_book import claim_key
from koordpy.workloads.workload_manifest import controlling

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a ResourceClaim that was created from a template: the entry of the pod that uses it."""


class ClaimControllers:
    """Creates and releases claims of pods. All methods change the state."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def serve_all(self) -> None:
        """Creates the claims of all existing pods."""
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
        """Creates the claims of entries with a template; yields the status of each. known: entries with a status.

        A claim of the input that was created for the pod is used again. A new name ends with `-sim`, where a live
        controller adds random letters; a number follows if the name exists.
        """
        namespace = pod.metadata.namespace
        for entry in pod.spec.resource_claims:
            name = entry.resource_claim_template_name
            template = self._state.get(ResourceClaimTemplate, f"{namespace}/{name}") if name is not None else None
            if template is None or entry.name in known:
                continue
            found = self._given.get((pod.metadata.uid, entry.name))
            if found is None:
                found = stem = f"{pod.metadata.name}-{entry.name}-sim"
                number = 1
                while self._state.get(ResourceClaim, f"{namespace}/{found}") is not None:
                    number += 1
                    found = f"{stem}{number}"
                meta = _owned(pod, found, "ResourceClaim")
                meta.annotations[POD_CLAIM_NAME] = entry.name
                self._state.upsert(ResourceClaim(metadata=meta, spec=template.spec.spec))
            yield PodResourceClaimStatus(name=entry.name, resource_claim_name=found)

    @cached_property
    def _given(self) -> Mapping[tuple[str, str], str]:
        """(uid of a pod, entry) -> name of the existing ResourceClaim that was created for it; read once, because later
        claims are created here."""
        metas = (claim.metadata for claim in claim_book(self._state.families).objects.view().claims.values())
        owned = ((meta, meta.controller, meta.annotations.get(POD_CLAIM_NAME)) for meta in metas)
        return {(owner.uid, entry): meta.name for meta, owner, entry in owned if owner is not None and entry}

    def release(self, pod: Pod) -> None:
        """Releases the claims of a deleted pod. Claims that the pod controls are deleted. In other ResourceClaims, the
        pod is removed from reservedFor; a claim that no pod uses any more is deallocated."""
        namespace = pod.metadata.namespace
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None:
                self._drop_owned(PersistentVolumeClaim, claim_key(namespace, pod.metadata.name, volume), pod)
        consumer = consumer_of(pod).uid
        for _, name, _ in claim_names(pod):
            key = f"{namespace}/{name}"
            claim = self._state.get(ResourceClaim, key)
            if claim is None or self._drop_owned(ResourceClaim, key, pod):
                continue
            others = [one for one in claim.status.reserved_for if one.uid != consumer]
            if len(others) < len(claim.status.reserved_for):
                allocation = claim.status.allocation if others else None
                status = replace(claim.status, reserved_for=others, allocation=allocation)
                self._state.upsert(replace(claim, status=status))

    def _drop_owned(self, kind: type[ResourceClaim] | type[PersistentVolumeClaim], key: str, pod: Pod) -> bool:
        """Deletes a claim if the pod controls it; returns whether it did."""
        claim = self._state.get(kind, key)
        owner = claim.metadata.controller if claim is not None else None
        owned = owner is not None and owner.uid == pod.metadata.uid
        if owned:
            self._state.delete(kind, key)
        return owned


def _owned(pod: Pod, name: str, kind: str, template: ObjectMeta = ObjectMeta()) -> ObjectMeta:  # noqa: B008
    """Returns the metadata of a claim that a pod controls, with the creation time of the pod. template: labels and
    annotations of the claim."""
    meta = pod.metadata
    return ObjectMeta(
        name=name,
        namespace=meta.namespace,
        uid=made_up_uid(kind, meta.namespace, name, meta.uid),
        creation_timestamp=meta.creation_timestamp,
        labels={**template.labels},
        annotations={**template.annotations},
        owner_references=[controlling("v1", "Pod", meta.name, meta.uid)],
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
