# SPDX-License-Identifier: Apache-2.0
"""Lists the PersistentVolumeClaims of a pod, and finds faults that refuse the pod on every node (kube-parity.md
2.8)."""

from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.decoding.wire_json import unreadable
from koordpy.framework.filter_protocol import Code, Refusal
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import VolumeObjects, claim_key, is_bound

BINDING = "VolumeBinding"


def claims_of(pod: PodInfo) -> list[str]:
    """Returns the keys (`namespace/name`) of the claims of a pod, each once, also of generic ephemeral volumes."""
    keys = (claim_key(pod.namespace, pod.name, volume) for volume in pod.ties.volumes)
    return list(dict.fromkeys(key for key in keys if key))


def claims_refusal(pod: PodInfo, objects: VolumeObjects) -> Refusal | None:
    """Returns the refusal of a pod, on every node, because of a fault of its claims; None without a fault.

    Faults are checked in the order of kube-scheduler's PreFilter: first missing claims, then other faults claim by
    claim, then unbound claims of a class that binds immediately.
    """
    for volume in pod.ties.volumes:
        source = volume.persistent_volume_claim
        if source is not None and f"{pod.namespace}/{source.claim_name}" not in objects.claims:
            return _refuse("VolumeRestrictions", f'persistentvolumeclaim "{source.claim_name}" not found')
    unbound = False
    for volume in pod.ties.volumes:
        key = claim_key(pod.namespace, pod.name, volume)
        if not key:
            continue
        name = key.partition("/")[2]
        claim = objects.claims.get(key)
        if claim is None:
            text = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            return _refuse(BINDING, text)
        if unreadable(claim.metadata):
            return _refuse(BINDING, f'persistentvolumeclaim "{name}" cannot be read')
        if volume.ephemeral is not None and not _owned_by(claim, pod):
            return _refuse(BINDING, f"PVC {key} was not created for pod {pod.key} (pod is not owner)")
        if claim.metadata.deletion_timestamp:
            return _refuse(BINDING, f'persistentvolumeclaim "{name}" is being deleted')
        if claim.status.phase == "Lost":
            text = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
            return _refuse(BINDING, text)
        unbound |= not is_bound(claim) and not objects.is_delayed(claim)
    return _refuse(BINDING, "pod has unbound immediate PersistentVolumeClaims") if unbound else None


def _refuse(plugin: str, text: str) -> Refusal:
    return Refusal(plugin, Code.UNRESOLVABLE, (text,), not_ready=True)


def _owned_by(claim: PersistentVolumeClaim, pod: PodInfo) -> bool:
    """Returns True if the pod is the claim's controller."""
    return any(
        owner.controller and (owner.uid == pod.uid if owner.uid else (owner.kind, owner.name) == ("Pod", pod.name))
        for owner in claim.metadata.owner_references
    )


def delayed_claims(pod: PodInfo, objects: VolumeObjects) -> list[str]:
    """Returns the keys of a pod's claims without a bound volume: their volumes are chosen together with the node."""
    found = [key for key in claims_of(pod) if key in objects.claims]
    return [key for key in found if not is_bound(objects.claims[key])]
