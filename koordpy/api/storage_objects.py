# SPDX-License-Identifier: Apache-2.0
"""Wire objects (typed records) of storage: volume claims, volumes, storage classes, and limits of CSI drivers.

Source: Kubernetes API 1.36. As in `objects.py`, only fields that a decision may depend on are declared.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

import msgspec

from koordpy.api.objects import (
    AwsDisk,
    GceDisk,
    KubernetesObject,
    LabelSelector,
    NodeSelector,
    Quantities,
    Quantity,
    Wire,
)

# annotations of claims and storage classes
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


class VolumeResources(Wire, frozen=True):
    requests: Quantities = {}


class PersistentVolumeClaimSpec(Wire, frozen=True):
    access_modes: list[str] = []
    storage_class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = ""
    volume_attributes_class_name: str = ""
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()


class PersistentVolumeClaimStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(KubernetesObject, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class ClaimReference(Wire, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = None


class CSIVolumeSource(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class AzureDisk(Wire, frozen=True):
    disk_uri: str = msgspec.field(name="diskURI", default="")


class CinderDisk(Wire, frozen=True):
    volume_id: str = msgspec.field(name="volumeID", default="")


class PersistentVolumeSpec(Wire, frozen=True):
    """Spec of a volume. Of the in-tree volume types, only types that are migrated to CSI are declared."""

    capacity: Quantities = {}
    access_modes: list[str] = []
    storage_class_name: str = ""
    volume_mode: str = ""
    volume_attributes_class_name: str = ""
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    gce_persistent_disk: GceDisk | None = None
    aws_elastic_block_store: AwsDisk | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderDisk | None = None


class PersistentVolumeStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolume(KubernetesObject, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologyLabelRequirement(Wire, frozen=True):
    key: str = ""
    values: list[str] = []


class TopologyTerm(Wire, frozen=True):
    match_label_expressions: list[TopologyLabelRequirement] = []


class StorageClass(KubernetesObject, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[TopologyTerm] = []


class CSINodeAllocatable(Wire, frozen=True):
    count: int | None = None


class CSINodeDriver(Wire, frozen=True):
    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(Wire, frozen=True):
    drivers: list[CSINodeDriver] = []


class CSINode(KubernetesObject, frozen=True):
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Wire, frozen=True):
    storage_capacity: bool = False


class CSIDriver(KubernetesObject, frozen=True):
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(KubernetesObject, frozen=True):
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


class VolumeAttachmentSource(Wire, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(KubernetesObject, frozen=True):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


STORAGE_KINDS: tuple[type[Wire], ...] = (
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    CSINode,
    CSIDriver,
    CSIStorageCapacity,
    VolumeAttachment,
)


def claim_size(claim: PersistentVolumeClaim) -> Quantity | None:
    """Returns the requested size of a claim; None if the claim requests none."""
    return claim.spec.resources.requests.get("storage")


def bind_static(
    claim: PersistentVolumeClaim, volume: PersistentVolume
) -> tuple[PersistentVolumeClaim, PersistentVolume]:
    """Returns (claim, volume) after they are bound to each other.

    Both have the changes that the scheduler and the volume controller make.
    """
    replace = msgspec.structs.replace
    meta = claim.metadata
    reference = ClaimReference(namespace=meta.namespace, name=meta.name, uid=meta.uid)
    bound = replace(
        claim,
        metadata=replace(meta, annotations={**meta.annotations, BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}),
        spec=replace(claim.spec, volume_name=volume.metadata.name),
        status=replace(claim.status, phase="Bound"),
    )
    taken = replace(
        volume, spec=replace(volume.spec, claim_ref=reference), status=replace(volume.status, phase="Bound")
    )
    return bound, taken


def select_node(claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
    """Returns a claim with the annotation that makes the provisioner create the claim's volume for a node."""
    replace = msgspec.structs.replace
    meta = claim.metadata
    return replace(claim, metadata=replace(meta, annotations={**meta.annotations, SELECTED_NODE: node}))
