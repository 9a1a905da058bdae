# SPDX-License-Identifier: Apache-2.0
"""VolumeRestrictions and NodeVolumeLimits filters: limits on the use of volumes by several pods (kube-parity.md 2.8).

VolumeRestrictions prevents that two pods use one inline disk or one ReadWriteOncePod claim. NodeVolumeLimits keeps the
number of attached volumes of a node within the limit of each CSI driver.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, chain, refused_where
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Rule
from koordpy.plugins.volume_claims import claims_of
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import CsiVolume, Disk, VolumeObjects, disks_of

NO_DISK = Refusal("VolumeRestrictions", Code.UNSCHEDULABLE, ("node(s) had no available disk",))
ONE_POD = Refusal(
    "VolumeRestrictions",
    Code.UNSCHEDULABLE,
    ("node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",),
)
TOO_MANY = Refusal("NodeVolumeLimits", Code.UNSCHEDULABLE, ("node(s) exceed max volume count",))


def pod_disks(pod: PodInfo) -> list[tuple[Disk, bool]]:
    """Returns the inline disks of a pod as (disk, True if read only)."""
    return [disk for volume in pod.ties.volumes for disk in disks_of(volume)]


def exclusive_claims(pod: PodInfo, draft: Draft) -> set[str]:
    """Returns the keys of the pod's ReadWriteOncePod claims."""
    claims = draft.snapshot.storage.claims
    return {key for key in claims_of(pod) if key in claims and "ReadWriteOncePod" in claims[key].spec.access_modes}


def users_of(claim: str, draft: Draft) -> int:
    """Returns the number of bound pods in the snapshot that use a claim. Changes of the draft are not included."""
    return sum(draft.snapshot.claim_users.get(claim, {}).values())


class VolumeRestrictions(Rule):
    """Refuses nodes with a pod that uses an inline disk of this pod, unless both pods only read the disk.

    Refuses all nodes if a pod anywhere uses a ReadWriteOncePod claim of this pod.
    """

    plugin = NO_DISK.plugin
    is_in_problem = True

    def __init__(self, pod: PodInfo, draft: Draft) -> None:
        snapshot = draft.snapshot
        self._disks = pod_disks(pod)
        self._holders: Ints = np.zeros(len(snapshot.nodes), dtype=np.int64)
        """[nodes] number of uses, by pods on the node, that conflict with an inline disk of this pod."""
        for disk, read_only in self._disks:
            for (name, other_read_only), count in snapshot.disks.get(disk, {}).items():
                if name in snapshot.index and not (read_only and other_read_only):
                    self._holders[snapshot.index[name]] += count
        self._alone = exclusive_claims(pod, draft)
        """Keys of the pod's ReadWriteOncePod claims."""
        self._users = sum(users_of(key, draft) for key in self._alone)
        """Number of uses of these claims by pods on any node."""

    @property
    def silent(self) -> bool:
        """True if the pod has no inline disk and no ReadWriteOncePod claim, so that the filter passes every node."""
        return not self._disks and not self._alone

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: counts uses of the same disks and claims."""
        if not pod.ties.volumes:
            return False
        users = len(self._alone.intersection(claims_of(pod)))
        self._users += sign * users
        conflicts = sum(
            disk == other and not (read_only and other_read_only)
            for disk, read_only in self._disks
            for other, other_read_only in pod_disks(pod)
        )
        self._holders[node] += sign * conflicts
        return bool(users or conflicts)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        everywhere = np.full(len(self._holders), self._users > 0)
        return chain([refused_where(self._holders > 0, NO_DISK), refused_where(everywhere, ONE_POD)])

    def copies(self) -> Ints | None:
        """Implements `Rule.copies`: one pod of this shape per node, or any number if the pods only read their disks."""
        shared = not self._alone and all(read_only for _, read_only in self._disks)
        return None if shared else np.ones(len(self._holders), dtype=np.int64)


class NodeVolumeLimits(Rule):
    """Refuses nodes on which the pod's volumes would exceed the limit of a CSI driver.

    A volume counts once per node, if a pod on the node uses it or a VolumeAttachment attaches it to the node.
    """

    plugin = TOO_MANY.plugin
    is_in_problem = True

    def __init__(
        self, pod: PodInfo, draft: Draft, objects: VolumeObjects, held: Mapping[str, Counter[CsiVolume]]
    ) -> None:
        """held: node name -> uses of each CSI volume by bound pods."""
        self._draft = draft
        self._objects = objects
        snapshot = draft.snapshot
        volumes = {objects.csi_volume(key) for key in claims_of(pod)}
        self._new = sorted(v for v in volumes if v is not None and v.driver in objects.limits)
        """The pod's volumes of drivers that have a limit on at least one node."""
        self._limits: dict[str, Ints] = {}
        """Driver -> [nodes] maximum number of volumes; `ANY_NUMBER` without a limit."""
        for driver in {volume.driver for volume in self._new}:
            limits = self._limits[driver] = np.full(len(snapshot.nodes), ANY_NUMBER, dtype=np.int64)
            for name, count in objects.limits[driver].items():
                if name in snapshot.index:
                    limits[snapshot.index[name]] = count
        self._held: dict[int, Counter[CsiVolume]] = {}
        """Node position -> volume -> number of uses by pods on the node, for drivers with a limit."""
        for name, uses in held.items():
            if name in snapshot.index:
                self._held[snapshot.index[name]] = Counter({v: n for v, n in uses.items() if v.driver in self._limits})
        self._attached = {
            snapshot.index[name]: volumes for name, volumes in objects.attached.items() if name in snapshot.index
        }

    @property
    def silent(self) -> bool:
        """True if no limit applies to a volume of the pod, so that the filter passes every node."""
        return not self._new

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: counts the pod's uses of volumes, also of volumes that this round has chosen."""
        changed = False
        for key in claims_of(pod):
            promise = self._draft.claim_volumes.get(key)
            volume = self._objects.csi_volume(key, promise.volume if promise is not None else "")
            if volume is not None and volume.driver in self._limits:
                uses = self._held.setdefault(node, Counter())
                uses[volume] += sign
                changed = True
        return changed

    def _on(self, node: int) -> set[CsiVolume]:
        """Returns the volumes on a node that count for the limits: used by pods, or attached."""
        uses = self._held.get(node)
        found = {volume for volume, count in uses.items() if count > 0} if uses is not None else set()
        return found | {volume for volume in self._attached.get(node, ()) if volume.driver in self._limits}

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        new = Counter(volume.driver for volume in self._new)
        count = len(self._draft.snapshot.nodes)
        closed = np.zeros(count, dtype=bool)
        for driver, limits in self._limits.items():
            closed |= limits < new[driver]
        for node in {*self._held, *self._attached}:
            there = self._on(node)
            more = Counter(volume.driver for volume in self._new if volume not in there)
            have = Counter(volume.driver for volume in there)
            closed[node] = any(have[d] + number > int(self._limits[d][node]) for d, number in more.items())
        return refused_where(closed, TOO_MANY)
