# SPDX-License-Identifier: Apache-2.0
"""Stores the storage objects for snapshots: claims, volumes, storage classes, and limits of CSI drivers.

Filters need the same data for every pod: the storage class of a claim, its CSI volume, the volumes that a claim may
use, the volumes attached to each node. `VolumeObjects` computes these data once for each state of the objects. Source:
kube-parity.md 2.8.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from koordpy.api.bounded_memory import cached
from koordpy.api.label_selectors import selector_matches
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Volume, Wire
from koordpy.api.quantity import RawQuantity, units
from koordpy.api.storage_objects import (
    BIND_COMPLETED,
    CLASS_ANNOTATION,
    DEFAULT_CLASS_ANNOTATIONS,
    STORAGE_KINDS,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    StorageClass,
    VolumeAttachment,
    claim_size,
)
from koordpy.decoding.wire_json import unreadable
from koordpy.pods.object_book import ObjectBook, Objects

NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""Provisioner of a StorageClass with volumes that only an administrator creates."""
DELAYED = "WaitForFirstConsumer"
"""volumeBindingMode of a StorageClass with claims that are bound only when their first pod is placed."""


class CsiVolume(NamedTuple):
    """Identity of a volume for the attach limits of nodes. A volume that several pods of a node use counts once."""

    driver: str
    handle: str
    """Identity of the volume for the driver. For a claim that has no volume yet: `claim` and the key of the claim."""


class Disk(NamedTuple):
    """An inline disk in a pod's spec that pods of a node may not share: its kind and identity."""

    kind: str
    """Kind of the volume source: gce, aws, iscsi or rbd."""
    identity: str


class ClaimVolume(NamedTuple):
    """The volume that a plan has chosen for an unbound claim: an existing volume, or a new one on the pod's node."""

    volume: str
    """Name of the existing volume; empty if a volume is to be provisioned."""
    node: str
    """Name of the node of the pod."""


class OfferedVolumes:
    """Volumes that an unbound claim may use if they are large enough, smallest first. Claims with equal requirements
    share one object."""

    def __init__(self, volumes: Iterable[PersistentVolume] = (), *, reserved: bool = False) -> None:
        """reserved: True if the volumes are reserved for one claim."""
        self.volumes, self.reserved = tuple(volumes), reserved
        self.names = tuple(volume.metadata.name for volume in self.volumes)
        self._sizes = [volume_bytes(volume) for volume in self.volumes]

    def first_of(self, size: int) -> int:
        """Returns the position of the first volume with at least `size` bytes; the number of volumes if none is large
        enough."""
        return bisect_left(self._sizes, size)


class VolumeObjects:
    """The storage objects at one moment. Immutable."""

    def __init__(self, objects: Objects) -> None:
        self.claims: Mapping[str, PersistentVolumeClaim] = objects[PersistentVolumeClaim]
        """Claims by `namespace/name`."""
        self.volumes: Mapping[str, PersistentVolume] = objects[PersistentVolume]
        self.classes: Mapping[str, StorageClass] = objects[StorageClass]
        self.csi_nodes: Mapping[str, CSINode] = objects[CSINode]
        """CSINode objects by node name."""
        self.csi_drivers: Mapping[str, CSIDriver] = objects[CSIDriver]
        self.capacities: Mapping[str, CSIStorageCapacity] = objects[CSIStorageCapacity]
        self.attachments: Mapping[str, VolumeAttachment] = objects[VolumeAttachment]
        self._shelves: dict[Hashable, OfferedVolumes] = {}
        """Cached results of `shelf`: by the claim's key if a volume is reserved for it, else by its requirements."""

    @cached_property
    def default_class(self) -> str:
        """Name of the default StorageClass, the newest if there are several; empty without one."""
        marked = [
            item
            for item in self.classes.values()
            if any(item.metadata.annotations.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)
        ]
        order = sorted(marked, key=lambda c: (c.metadata.creation_timestamp or "", c.metadata.name))
        return order[-1].metadata.name if order else ""

    def class_of(self, claim: PersistentVolumeClaim) -> str:
        """Returns the storage class of a claim. If the claim states no class and no volume, it is the default class."""
        given = claim.metadata.annotations.get(CLASS_ANNOTATION)
        if given is not None:
            return given
        name = claim.spec.storage_class_name
        return self.default_class if name is None and not claim.spec.volume_name else name or ""

    def is_delayed(self, claim: PersistentVolumeClaim) -> bool:
        """Returns True if a claim is bound only when its first pod is placed (`WaitForFirstConsumer`)."""
        found = self.classes.get(self.class_of(claim))
        return found is not None and found.volume_binding_mode == DELAYED and not claim.spec.volume_name

    def shelf(self, key: str) -> OfferedVolumes:
        """Returns the volumes that an unbound claim (`namespace/name`) may use.

        If a suitable volume is reserved for the claim (its claimRef names the claim), the claim may use only this
        volume.
        """
        claim = self.claims[key]
        if key in self._reserved:
            found = self._shelves.get(key)
            if found is None:
                size = size_bytes(claim_size(claim))
                own = (v for v in self._reserved[key] if self._suits(v, claim) and volume_bytes(v) >= size)
                found = self._shelves[key] = OfferedVolumes(islice(own, 1), reserved=True)
            if found.volumes:
                return found
        spec = claim.spec
        selector = msgspec.json.encode(spec.selector) if spec.selector is not None else b""
        name = self.class_of(claim)
        kind = name, spec.volume_mode, spec.volume_attributes_class_name, selector, *spec.access_modes
        if kind not in self._shelves:
            free = (v for v in self.by_class.get(name, ()) if v.spec.claim_ref is None and self._suits(v, claim))
            self._shelves[kind] = OfferedVolumes(v for v in free if _is_offered(v, spec))
        return self._shelves[kind]

    @cached_property
    def _reserved(self) -> Mapping[str, Sequence[PersistentVolume]]:
        """Claim -> volumes that are reserved for it, smallest first."""
        out: dict[str, list[PersistentVolume]] = {}
        for volume in chain.from_iterable(self.by_class.values()):
            if (claim := volume.spec.claim_ref) is not None:
                out.setdefault(f"{claim.namespace}/{claim.name}", []).append(volume)
        return out

    def _suits(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        """Returns True if a volume has the class and modes of a claim, and is not reserved for a claim with another
        uid."""
        theirs, spec, reference = volume.spec, claim.spec, volume.spec.claim_ref
        return (
            volume_class(volume) == self.class_of(claim)
            and not volume.metadata.deletion_timestamp
            and (theirs.volume_mode or "Filesystem") == (spec.volume_mode or "Filesystem")
            and theirs.volume_attributes_class_name == spec.volume_attributes_class_name
            and (reference is None or reference.uid in ("", claim.metadata.uid))
        )

    @cached_property
    def by_class(self) -> Mapping[str, tuple[PersistentVolume, ...]]:
        """Volumes of each class, smallest first, then by name."""
        out: dict[str, list[PersistentVolume]] = {}
        for volume in self.volumes.values():
            out.setdefault(volume_class(volume), []).append(volume)
        return {
            name: tuple(sorted(found, key=lambda v: (volume_bytes(v), natural_key(v.metadata.name))))
            for name, found in out.items()
        }

    @cached_property
    def contested(self) -> frozenset[str]:
        """Classes with volumes that several claims may use: volumes that are neither bound nor reserved."""
        return frozenset(volume_class(volume) for volume in self.volumes.values() if volume.spec.claim_ref is None)

    @cached_property
    def limits(self) -> Mapping[str, Mapping[str, int]]:
        """Driver -> node name -> maximum number of attached volumes. A node without a limit has no entry; a node with
        an invalid CSINode has 0."""
        out: dict[str, dict[str, int]] = {}
        for name, node in self.csi_nodes.items():
            for driver in node.spec.drivers:
                if driver.allocatable is not None and driver.allocatable.count is not None:
                    out.setdefault(driver.name, {})[name] = driver.allocatable.count
        if closed := [name for name, node in self.csi_nodes.items() if unreadable(node.metadata)]:
            drivers = {volume.spec.csi.driver for volume in self.volumes.values() if volume.spec.csi is not None}
            for driver_name in sorted({*out, *drivers, *(found.provisioner for found in self.classes.values())}):
                out.setdefault(driver_name, {}).update(dict.fromkeys(closed, 0))
        return out

    def csi_volume(self, key: str, volume_name: str = "") -> CsiVolume | None:
        """Returns the CSI volume of a claim; None if attach limits do not count it.

        A claim that has no volume yet counts as a volume of its class's driver. volume_name: volume that was chosen for
        the claim; empty if none was.
        """
        claim = self.claims.get(key)
        if claim is None:
            return None
        name = volume_name or claim.spec.volume_name
        if name:
            volume = self.volumes.get(name)
            return volume_identity(volume) if volume is not None else None
        found = self.classes.get(self.class_of(claim))
        if found is None or not found.provisioner or found.provisioner == NO_PROVISIONER:
            return None
        return CsiVolume(found.provisioner, f"claim {key}")

    @cached_property
    def attached(self) -> Mapping[str, frozenset[CsiVolume]]:
        """Node name -> volumes that VolumeAttachments name."""
        out: dict[str, set[CsiVolume]] = {}
        for attachment in self.attachments.values():
            name = attachment.spec.source.persistent_volume_name
            volume = self.volumes.get(name) if name else None
            found = volume_identity(volume) if volume is not None else None
            if found is not None:
                out.setdefault(attachment.spec.node_name, set()).add(found)
        return {name: frozenset(found) for name, found in out.items()}


class VolumeBook(ObjectBook[VolumeObjects]):
    """The storage objects, updated per event."""

    def __init__(self) -> None:
        super().__init__(STORAGE_KINDS, VolumeObjects)

    def put(self, obj: Wire) -> None:
        """Adds or updates an object. Raises `UnreadableError` if a size in it is invalid, and then changes nothing."""
        _check_sizes(obj)
        super().put(obj)


def _is_offered(volume: PersistentVolume, spec: PersistentVolumeClaimSpec) -> bool:
    """Returns whether a volume is available, and has the labels and access modes that a claim requires."""
    if volume.status.phase not in ("", "Available"):
        return False
    if spec.selector is not None and not selector_matches(spec.selector, volume.metadata.labels):
        return False
    return set(spec.access_modes) <= set(volume.spec.access_modes)


@cached(1 << 14)
def size_bytes(quantity: RawQuantity | None) -> int:
    """Returns a size in bytes, rounded up; 0 for None. Raises `UnreadableError` if it is invalid."""
    return 0 if quantity is None else units("storage", quantity)


def volume_bytes(volume: PersistentVolume) -> int:
    """Returns the size of a volume in bytes."""
    return size_bytes(volume.spec.capacity.get("storage"))


def volume_class(volume: PersistentVolume) -> str:
    """Returns the storage class of a volume; empty if it has none."""
    return volume.metadata.annotations.get(CLASS_ANNOTATION, volume.spec.storage_class_name)


_MIGRATED = (
    ("gce_persistent_disk", "pd.csi.storage.gke.io", "pd_name"),
    ("aws_elastic_block_store", "ebs.csi.aws.com", "volume_id"),
    ("azure_disk", "disk.csi.azure.com", "disk_uri"),
    ("cinder", "cinder.csi.openstack.org", "volume_id"),
)
"""In-tree volume sources: (name of the source's field, CSI driver that replaced it, field with the volume's
identity)."""


def volume_identity(volume: PersistentVolume) -> CsiVolume | None:
    """Returns driver and handle of a volume; None if no CSI driver attaches it.

    The driver of an in-tree volume is the CSI driver that replaced its source.
    """
    spec = volume.spec
    if spec.csi is not None:
        return CsiVolume(spec.csi.driver, spec.csi.volume_handle)
    for name, driver, identity in _MIGRATED:
        source = getattr(spec, name)
        if source is not None:
            return CsiVolume(driver, getattr(source, identity))
    return None


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Returns True if the claim is bound to a volume, and the volume controller has confirmed it."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def claim_key(namespace: str, pod_name: str, volume: Volume) -> str:
    """Returns `namespace/name` of the claim of a pod's volume; empty if the volume has no claim."""
    if volume.persistent_volume_claim is not None:
        return f"{namespace}/{volume.persistent_volume_claim.claim_name}"
    if volume.ephemeral is not None:
        return f"{namespace}/{pod_name}-{volume.name}"
    return ""


def disks_of(volume: Volume) -> tuple[tuple[Disk, bool], ...]:
    """Returns (disk, True if read only) for an inline volume; empty for other volumes. An RBD image has one entry per
    monitor."""
    if (gce := volume.gce_persistent_disk) is not None:
        return ((Disk("gce", gce.pd_name), gce.read_only),)
    if (aws := volume.aws_elastic_block_store) is not None:
        # Two pods never share an EBS volume, not even read-only.
        return ((Disk("aws", aws.volume_id), False),)
    if (iscsi := volume.iscsi) is not None:
        return ((Disk("iscsi", iscsi.iqn), iscsi.read_only),)
    if (rbd := volume.rbd) is not None:
        return tuple(
            (Disk("rbd", f"{monitor} {rbd.pool or 'rbd'} {rbd.image}"), rbd.read_only) for monitor in rbd.monitors
        )
    return ()


def _check_sizes(obj: Wire) -> None:
    """Raises `UnreadableError` if a size in a storage object is invalid."""
    if isinstance(obj, PersistentVolume):
        volume_bytes(obj)
    elif isinstance(obj, PersistentVolumeClaim):
        size_bytes(obj.spec.resources.requests.get("storage"))
    elif isinstance(obj, CSIStorageCapacity):
        size_bytes(obj.capacity)
        size_bytes(obj.maximum_volume_size)
