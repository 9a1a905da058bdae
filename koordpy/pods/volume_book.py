"""Claims, volumes and what CSI drivers say: the storage side of a snapshot.

Filters ask the same questions of it for every pod (the class of a claim, the CSI volume behind it, which volumes of a
class are free, what is attached where), so the answers are made once for each state of the objects.
Source: kube-parity.md 2.8.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from koordpy.api.bounded_memory import remembered
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
DELAYED = "WaitForFirstConsumer"


class CsiVolume(NamedTuple):
    """A volume as limits count it; the same one in several pods of a node is one."""

    driver: str
    handle: str


class Disk(NamedTuple):
    """An inline disk that pods of a node may not share, by its kind and identity."""

    kind: str
    identity: str


class Promise(NamedTuple):
    """What a claim takes with a pod that is placed and not confirmed: a volume, or one to be made for the node."""

    volume: str
    node: str


class OfferedVolumes:
    """Volumes that some claims may take but for their size, smallest first. reserved: for one claim alone."""

    def __init__(self, volumes: Iterable[PersistentVolume] = (), *, reserved: bool = False) -> None:
        self.volumes, self.reserved = tuple(volumes), reserved
        self.names = tuple(volume.metadata.name for volume in self.volumes)
        self._sizes = [volume_bytes(volume) for volume in self.volumes]

    def first_of(self, size: int) -> int:
        """Position of the first volume that is large enough."""
        return bisect_left(self._sizes, size)


class VolumeObjects:
    """The storage objects of one moment; nothing in it changes."""

    def __init__(self, objects: Objects) -> None:
        self.claims: Mapping[str, PersistentVolumeClaim] = objects[PersistentVolumeClaim]
        """By `namespace/name`."""
        self.volumes: Mapping[str, PersistentVolume] = objects[PersistentVolume]
        self.classes: Mapping[str, StorageClass] = objects[StorageClass]
        self.csi_nodes: Mapping[str, CSINode] = objects[CSINode]
        self.csi_drivers: Mapping[str, CSIDriver] = objects[CSIDriver]
        self.capacities: Mapping[str, CSIStorageCapacity] = objects[CSIStorageCapacity]
        self.attachments: Mapping[str, VolumeAttachment] = objects[VolumeAttachment]
        self._shelves: dict[Hashable, OfferedVolumes] = {}

    @cached_property
    def default_class(self) -> str:
        """Name of the default StorageClass, the newest of several; empty for none."""
        marked = [
            item
            for item in self.classes.values()
            if any(item.metadata.annotations.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)
        ]
        order = sorted(marked, key=lambda c: (c.metadata.creation_timestamp or "", c.metadata.name))
        return order[-1].metadata.name if order else ""

    def class_of(self, claim: PersistentVolumeClaim) -> str:
        """Class of a claim; the default where it names none at all."""
        given = claim.metadata.annotations.get(CLASS_ANNOTATION)
        if given is not None:
            return given
        name = claim.spec.storage_class_name
        return self.default_class if name is None and not claim.spec.volume_name else name or ""

    def is_delayed(self, claim: PersistentVolumeClaim) -> bool:
        """Whether an unbound claim waits for its first pod to be placed."""
        found = self.classes.get(self.class_of(claim))
        return found is not None and found.volume_binding_mode == DELAYED and not claim.spec.volume_name

    def shelf(self, key: str) -> OfferedVolumes:
        """The volumes of a claim without one; that which is reserved for it comes before all."""
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
        """Claim -> volumes that are for it alone, smallest first."""
        out: dict[str, list[PersistentVolume]] = {}
        for volume in chain.from_iterable(self.by_class.values()):
            if (claim := volume.spec.claim_ref) is not None:
                out.setdefault(f"{claim.namespace}/{claim.name}", []).append(volume)
        return out

    def _suits(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        """Whether a volume is of a claim's class and mode, and of no other claim."""
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
        """Classes with volumes that several claims may take; one that is held or reserved has its claim."""
        return frozenset(volume_class(volume) for volume in self.volumes.values() if volume.spec.claim_ref is None)

    @cached_property
    def limits(self) -> Mapping[str, Mapping[str, int]]:
        """Driver -> node name -> volumes it can attach; absent = no limit."""
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
        """The CSI volume behind a claim (or the one that it is about to take); None where limits do not count it.

        A claim without a volume counts as one of its class's driver.
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
    """The storage objects as they come and go."""

    def __init__(self) -> None:
        super().__init__(STORAGE_KINDS, VolumeObjects)

    def put(self, obj: Wire) -> None:
        """Takes an object. Raises UnreadableError where a size in it cannot be read; nothing changes then."""
        _check_sizes(obj)
        super().put(obj)


def _is_offered(volume: PersistentVolume, spec: PersistentVolumeClaimSpec) -> bool:
    """Whether a volume is free, has the labels that a claim looks for, and may be used in its ways."""
    if volume.status.phase not in ("", "Available"):
        return False
    if spec.selector is not None and not selector_matches(spec.selector, volume.metadata.labels):
        return False
    return set(spec.access_modes) <= set(volume.spec.access_modes)


@remembered(1 << 14)
def size_bytes(quantity: RawQuantity | None) -> int:
    """Bytes of a size, rounded up; 0 for none. Raises UnreadableError."""
    return 0 if quantity is None else units("storage", quantity)


def volume_bytes(volume: PersistentVolume) -> int:
    return size_bytes(volume.spec.capacity.get("storage"))


def volume_class(volume: PersistentVolume) -> str:
    return volume.metadata.annotations.get(CLASS_ANNOTATION, volume.spec.storage_class_name)


_MIGRATED = (
    ("gce_persistent_disk", "pd.csi.storage.gke.io", "pd_name"),
    ("aws_elastic_block_store", "ebs.csi.aws.com", "volume_id"),
    ("azure_disk", "disk.csi.azure.com", "disk_uri"),
    ("cinder", "cinder.csi.openstack.org", "volume_id"),
)


def volume_identity(volume: PersistentVolume) -> CsiVolume | None:
    """Driver and handle of a volume, in-tree kinds by the driver that took them over; None where none attaches it."""
    spec = volume.spec
    if spec.csi is not None:
        return CsiVolume(spec.csi.driver, spec.csi.volume_handle)
    for name, driver, identity in _MIGRATED:
        source = getattr(spec, name)
        if source is not None:
            return CsiVolume(driver, getattr(source, identity))
    return None


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether claim and volume are bound for good."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def claim_key(namespace: str, pod_name: str, volume: Volume) -> str:
    """`namespace/name` of the claim of a pod's volume; empty where it has none."""
    if volume.persistent_volume_claim is not None:
        return f"{namespace}/{volume.persistent_volume_claim.claim_name}"
    if volume.ephemeral is not None:
        return f"{namespace}/{pod_name}-{volume.name}"
    return ""


def disks_of(volume: Volume) -> tuple[tuple[Disk, bool], ...]:
    """(disk, read only) of an inline volume; an RBD image is known by each of its monitors."""
    if (gce := volume.gce_persistent_disk) is not None:
        return ((Disk("gce", gce.pd_name), gce.read_only),)
    if (aws := volume.aws_elastic_block_store) is not None:
        # Two pods never share one, read only or not.
        return ((Disk("aws", aws.volume_id), False),)
    if (iscsi := volume.iscsi) is not None:
        return ((Disk("iscsi", iscsi.iqn), iscsi.read_only),)
    if (rbd := volume.rbd) is not None:
        return tuple(
            (Disk("rbd", f"{monitor} {rbd.pool or 'rbd'} {rbd.image}"), rbd.read_only) for monitor in rbd.monitors
        )
    return ()


def _check_sizes(obj: Wire) -> None:
    if isinstance(obj, PersistentVolume):
        volume_bytes(obj)
    elif isinstance(obj, PersistentVolumeClaim):
        size_bytes(obj.spec.resources.requests.get("storage"))
    elif isinstance(obj, CSIStorageCapacity):
        size_bytes(obj.capacity)
        size_bytes(obj.maximum_volume_size)
