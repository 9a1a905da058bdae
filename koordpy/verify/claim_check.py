# SPDX-License-Identifier: Apache-2.0
"""Checks the volume claims of a plan's pods: each volume can be used on the node, and is free.

The check runs when the pods are on the draft, claim by claim over the objects. It shares no code with the filters that
chose the volumes. `device_check.py` checks the devices of resource claims. Sources: kube-parity.md 2.8; preemption.md 4
(volumes and devices of nominated pods).
"""

from collections.abc import Iterable

from koordpy.api.label_selectors import term_matches
from koordpy.api.storage_objects import SELECTED_NODE, PersistentVolume, PersistentVolumeClaim, claim_size
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import reserved_volumes
from koordpy.cache.snapshot import NodeInfo
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import NO_PROVISIONER, VolumeObjects, is_bound, size_bytes, volume_bytes
from koordpy.verify.device_check import DeviceCheck


def faults_of_claims(pods: Iterable[PodInfo], draft: Draft) -> list[str]:
    """Returns the faults of the volume and resource claims of pods that the draft has placed."""
    faults, devices = [], DeviceCheck(draft)
    for pod in pods:
        node = draft.snapshot.nodes[draft.placed[pod.key]]
        texts = (*_volumes(pod, node, draft), *devices.faults(pod, node))
        faults += [f"{pod.key} on {node.name}: {text}" for text in texts]
    return faults


# --- volumes ----------------------------------------------------------------------------------------------------------


def _volumes(pod: PodInfo, node: NodeInfo, draft: Draft) -> list[str]:
    """Returns the faults of a pod's volumes on its node."""
    objects, faults = draft.snapshot.storage, []
    for mounted in pod.pod.spec.volumes:
        if mounted.persistent_volume_claim is not None:
            name = mounted.persistent_volume_claim.claim_name
        elif mounted.ephemeral is not None:
            name = f"{pod.name}-{mounted.name}"
        else:
            continue
        key = f"{pod.namespace}/{name}"
        claim = objects.claims.get(key)
        if claim is None:
            faults.append(f"claim {key} does not exist")
        elif is_bound(claim):
            faults += _reach_faults(claim.spec.volume_name, node, objects)
        else:
            faults += _unbound_faults(pod, key, claim, node, draft, objects)
    return faults


def _reach_faults(name: str, node: NodeInfo, objects: VolumeObjects) -> list[str]:
    """Returns the fault of a volume that does not exist, or that cannot be used on the node because of its node
    affinity; else empty."""
    volume = objects.volumes.get(name)
    if volume is None:
        return [f"volume {name} does not exist"]
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return []
    terms = affinity.required.node_selector_terms
    return [] if any(term_matches(t, "", node.labels) for t in terms) else [f"volume {name} cannot be used there"]


def _unbound_faults(
    pod: PodInfo, key: str, claim: PersistentVolumeClaim, node: NodeInfo, draft: Draft, objects: VolumeObjects
) -> list[str]:
    """Returns the faults of an unbound claim, for which the plan chooses an existing or a new volume.

    A new volume must be provisioned for the pod's node. An existing volume must suit the claim, and must not be used by
    another claim, or be reserved for one.
    """
    promise = draft.claim_volumes.get(key)
    name = promise.volume if promise is not None else ""
    if not name:
        made_for = promise.node if promise is not None else claim.metadata.annotations.get(SELECTED_NODE, "")
        found = objects.classes.get(objects.class_of(claim))
        if made_for not in ("", node.name):
            return [f"the volume of claim {key} is provisioned for {made_for}"]
        makes = found is not None and found.provisioner not in ("", NO_PROVISIONER)
        return [] if makes else [f"claim {key} gets no volume, and none is provisioned"]
    volume = objects.volumes.get(name)
    faults = _reach_faults(name, node, objects)
    if volume is not None:
        faults += [f"volume {name} {text} claim {key}" for text in _mismatches(volume, claim, objects)]
    other = draft.volume_claims.get(name, key)
    kept = reserved_volumes(draft.reserved_claims(pod)).get(name, key)
    return faults + [f"volume {name} is used by claim {one}, not {key}" for one in {other: 0, kept: 0} if one != key]


def _mismatches(volume: PersistentVolume, claim: PersistentVolumeClaim, objects: VolumeObjects) -> list[str]:
    """Returns the reasons why a volume does not suit a claim, as parts of a sentence."""
    spec, theirs, meta = volume.spec, volume.spec.claim_ref, claim.metadata
    own = theirs is not None and (theirs.namespace, theirs.name) == (meta.namespace, meta.name)
    faults = ["is reserved for another claim than"] if theirs is not None and not own else []
    if not own:
        faults += ["has another storage class than"] if spec.storage_class_name != objects.class_of(claim) else []
        missing = [mode for mode in claim.spec.access_modes if mode not in spec.access_modes]
        faults += ["lacks an access mode of"] if missing else []
    return faults + (["is too small for"] if volume_bytes(volume) < size_bytes(claim_size(claim)) else [])
