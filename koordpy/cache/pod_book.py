# SPDX-License-Identifier: Apache-2.0
"""Counts each pod at its node, gang, quota and neighbours. `pod_transitions.py` has the states of a pod in the cache.

Pods of all schedulers are counted at their nodes. Assumed pods are counted even before their Bindings are confirmed
(kube-parity.md 2.2, 4.2). When a pod changes, its old state is subtracted from every book, and its new state is added.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from koordpy.api.objects import Pod
from koordpy.api.quantity import is_extended
from koordpy.cache.expected_pods import ExpectedPods
from koordpy.cache.gang_book import GangBook
from koordpy.cache.neighbour_counts import Neighbours
from koordpy.cache.node_usage import Usage
from koordpy.cache.pod_transitions import STEPS, PodChange, change_of
from koordpy.cache.reservations import ClosedTo, Reservation, ReservationStage, nomination
from koordpy.cache.workload_book import WorkloadBook
from koordpy.config.configuration import Gangs, Quota
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices, DeviceFamilies
from koordpy.pods.gang_refs import GangRef, gang_ref
from koordpy.pods.pod_info import PodInfo, in_group, pod_info, shape_of
from koordpy.pods.pod_owners import OwnerBook
from koordpy.pods.pod_ties import looks_at_pods, selected_keys
from koordpy.pods.volume_book import ClaimVolume
from koordpy.quota.quota_book import QuotaBook, ShareQueue
from koordpy.workloads.volcano_gangs import VolcanoGroup, group_of_pod

MOST_LABEL_KEYS = 1 << 10
"""Limit of indexed label keys: above it, keys that no pod's selector names any more are removed."""


class PodBook:
    """All pods by `namespace/name`, and the books in which they are counted."""

    def __init__(
        self, families: DeviceFamilies, *, scheduler_names: frozenset[str], owned: bool, quota: Quota, gangs: Gangs
    ) -> None:
        """owned: True if default spread constraints apply to pods of controllers and services (`shape_of`). families:
        books of the device families. quota, gangs: sections of the configuration."""
        self.readers = families.readers
        self.families = families.books
        """Device family -> its book."""
        self._tracked_resources = frozenset[str]().union(*(book.told_resources for book in self.families.values()))
        """Resources with devices that a device book counts for assumed pods. For all other resources the annotations of
        the Binding state the devices."""
        self.scheduler_names = scheduler_names
        self.quotas = QuotaBook(quota)
        self._owned = owned
        self._pods: dict[str, PodInfo] = {}
        self._pending: dict[str, PodInfo] = {}
        self._reservations: dict[str, Reservation] = {}
        """Nominated pod -> its reservation. `losers` is set only if this process made the nomination by a reclaim."""
        self.expected = ExpectedPods()
        self.workloads = WorkloadBook(gangs, scheduler_names)
        self.gangs = GangBook(scheduler_names, self.workloads.records)
        self.usage = Usage()
        self.neighbours = Neighbours()
        self.owners = OwnerBook()
        self._configured: frozenset[str] = frozenset()
        """Label keys that selectors of the configuration name; always indexed."""
        self._most_keys = MOST_LABEL_KEYS
        self.moved: dict[str, GangRef | None] = {}
        """Key of a pod with a new gang or rank -> its former gang; None if it had none. The reader clears the dict."""

    def pod(self, key: str) -> PodInfo | None:
        """Returns a pod by `namespace/name`; None if unknown."""
        return self._pods.get(key)

    def pods(self) -> Iterator[PodInfo]:
        """Yields all stored pods."""
        return iter(self._pods.values())

    def put_pod(self, pod: Pod, *, seen: bool = True) -> None:
        """Stores a pod as the API server has it. A Succeeded or Failed pod is stored only if its gang or workload
        counts it. seen: True if the watch shows this state; False if the cache reads a state again that it has already.
        Raises `UnreadableError` if a quantity cannot be read; then nothing changes."""
        key, old = pod.key, self._pods.get(pod.key)
        known = old if old is not None and old.uid == pod.metadata.uid else None
        info = self._read(pod, known, seen=seen)
        counted = not info.finished or self._counts_finished(info)
        if counted or info.gang is not None:
            info = self._followed(info)
        info = self._ranked(info)
        # end the expectations that this state fulfils
        if known is None:
            self.expected.drop(key)
        elif info.finished or not self._is_assumed(info):
            self.expected.unassume(key)
        if known is not None and info.gang is not None and known.controller != info.controller:
            self.gangs.change_owner(info.gang, info)
        change = change_of(old, info)
        if old is not None and change is PodChange.CONFIRMED:
            self._replace(old, info)
            return
        steps = STEPS[change]
        if old is not None and steps.removes:
            self._remove(old)
            if steps.leaves and old.gang is not None and old.gang != info.gang:
                self.gangs.left(old.gang)
        if steps.joins and info.gang is not None:
            self.gangs.new_member(info.gang, info)
        if counted or info.gang is not None:
            self._add(info)
        else:
            self._pods.pop(key, None)
            self._reservations.pop(key, None)

    def _is_assumed(self, info: PodInfo) -> bool:
        """Returns True if a pod has its node only by an assumption, so that its Binding is not confirmed."""
        return not info.pod.spec.node_name and self.assumed_node(info.key) is not None

    def _read(self, pod: Pod, known: PodInfo | None, *, seen: bool) -> PodInfo:
        """Reads a pod with its expected changes. known: the stored state of the same pod; None if it is not stored."""
        assumed = ""
        if known is not None:
            pod = self.expected.observe(pod) if seen else self.expected.shown(pod)
            assumed = "" if pod.spec.node_name else self.assumed_node(pod.key) or ""
        info = pod_info(
            pod,
            scheduler_names=self.scheduler_names,
            assumed_node=assumed,
            looked_for=self.neighbours.looked_for,
            owned=self._owned,
            readers=self.readers,
            labels_count=self.quotas.settings.trusts_labels_of(pod.metadata.namespace),
            volcano=self.workloads.volcano,
            queue=self.workloads.queue_of(pod),
            follows=(known.gang, known.index) if known is not None else (None, None),
        )
        if known is not None and (info.ties or known.claimed.total or known.lost):
            ties = known.ties if info.ties == known.ties else info.ties  # share the earlier object: ties may be long
            info = replace(info, ties=ties, claimed=known.claimed, lost=known.lost and bool(pod.spec.node_name))
        if looks_at_pods(pod):
            self._look_for(selected_keys(pod))  # the pod's shape already includes these labels
        self.workloads.put_pod(info)
        return info

    def drop_pod(self, key: str) -> None:
        """Removes a pod; an unknown one is ignored."""
        old = self._pods.pop(key, None)
        self.expected.drop(key)
        self._reservations.pop(key, None)
        self.workloads.drop(key)
        if old is not None:
            self._remove(old)
            if old.gang is not None:
                self.gangs.end_member(old.gang, old)

    def read_volcano(self, on: bool) -> None:
        """Sets whether PodGroups of Volcano are read."""
        if self.workloads.volcano != on:
            self.workloads.read_volcano(on)
            self._put_again([info.key for info in self._pods.values() if group_of_pod(info.pod)])

    def _counts_finished(self, info: PodInfo) -> bool:
        """Returns True for a Succeeded pod of a Volcano PodGroup: it counts as a member of its derived gang."""
        return self.workloads.volcano and info.succeeded and bool(group_of_pod(info.pod))

    def put_volcano_group(self, key: str, group: VolcanoGroup | None) -> None:
        """Stores a PodGroup of Volcano by `namespace/name`; None if it was deleted."""
        self._put_again(self.workloads.put_group(key, group))

    def _put_again(self, pods: Iterable[str]) -> None:
        """Reads stored pods (keys) again, because an object or setting that they refer to has changed."""
        for key in pods:
            if key in self._pods:
                self.put_pod(self.expected.bare(self._pods[key].pod), seen=False)

    def forget_finished(self, key: str, uid: str) -> None:
        """Removes a Succeeded or Failed pod that was stored only because its workload counts it."""
        if key not in self._pods:
            self.workloads.drop(key, uid)

    def _followed(self, info: PodInfo) -> PodInfo:
        """Returns a pod with its rank index, and with its derived gang if it names no gang itself."""
        gang, index, made = self.workloads.filed(info)
        if (gang, index, made) == (info.gang, info.index, info.made_group):
            return info
        return replace(info, gang=gang, index=index, made_group=made)

    def _ranked(self, info: PodInfo) -> PodInfo:
        """Returns a pod with the priority and preemptionPolicy of its upstream PodGroup, if it has one."""
        if info.pod.spec.scheduling_group is None or info.gang is None:
            return info
        return in_group(info, *self.gangs.rank_of(info))

    def regroup(self, now: float) -> None:
        """Derives gangs from workloads again, and moves pods to them (`moved`). now: seconds since the epoch."""
        for ref in self.workloads.pass_over(self.gangs.groups):
            named = ((one, gang_ref(one.pod, volcano=self.workloads.volcano)) for one in self._pods.values())
            self._put_again([one.key for one, gang in named if ref in (one.gang, gang)])
        for key in self.workloads.regroup(self.gangs.named(), now):
            if (old := self._pods.get(key)) is None:
                continue
            filed = self._ranked(self._followed(old))
            if filed is not old:
                self.moved.setdefault(key, old.gang)
                self._regang(old, filed)
        self.gangs.derived = self.workloads.derived
        changed, self.workloads.records.changed = self.workloads.records.changed, {}
        for uid, naming in changed.items():
            pods = (self._pods.get(key) for key in self.workloads.controlled_by(uid))
            refs = (info.gang for info in pods if info is not None and info.gang is not None)
            self.gangs.recount(dict.fromkeys((*refs, *naming, *self.gangs.left_by(uid))))

    def _regang(self, old: PodInfo, filed: PodInfo) -> None:
        """Replaces a pod if only its gang, or its rank in the gang, has changed."""
        if old.gang is not None:
            self.gangs.drop_member(old.gang, old)
            if old.gang != filed.gang:
                self.gangs.left(old.gang)
        if old.bound:
            self._account_devices(old, -1)
            self._account_devices(filed, 1)
        self._file(filed)

    def look_for(self, label_keys: Iterable[str]) -> None:
        """Adds label keys of the configuration's selectors; they are never removed."""
        self._configured |= frozenset(label_keys)
        self._look_for(label_keys)

    def _look_for(self, label_keys: Iterable[str]) -> None:
        """Adds label keys that selectors name. Counts and shapes then distinguish the values of these labels."""
        if len(self.neighbours.looked_for) > self._most_keys:
            self.forget_labels()
        new = self.neighbours.look_for(label_keys)
        if not new:
            return
        looked_for, owned = self.neighbours.looked_for, self._owned
        for info in list(self._pending.values()):
            if not new.isdisjoint(info.pod.metadata.labels):
                asked = info.requests, info.score_requests
                devices = self.readers.shape(info.pod, info.asks)
                shape = shape_of(info.pod, *asked, looked_for, owned=owned, devices=devices, queue=info.owner.queue)
                bare = replace(info, shape=shape, group_priority=None)
                self._file(in_group(bare, info.group_priority, info.group_policy))

    def forget_labels(self) -> None:
        """Removes label keys that no selector names any more."""
        looking = (info.pod for info in self._pods.values() if looks_at_pods(info.pod))
        live = self._configured.union(self.owners.label_keys(), *map(selected_keys, looking))
        self.neighbours.look_only_for(live)
        self._most_keys = max(MOST_LABEL_KEYS, 2 * len(live))

    def _add(self, info: PodInfo) -> None:
        """Adds a pod to the indexes, and its amounts to the books."""
        self._file(info)
        if info.bound:
            self._account(info, 1)
        elif info.pending:
            self.quotas.wait(info, 1)

    def _file(self, info: PodInfo) -> None:
        """Stores a pod in the indexes, without counting its amounts; a known pod keeps its position in every order."""
        self._pods[info.key] = info
        if info.gang is not None:
            self.gangs.put_member(info.gang, info)
        if info.pending:
            self._pending[info.key] = info
        if info.pod.status.nominated_node_name and (node := info.nominated_node):
            known = self._reservations.get(info.key)
            self._reservations[info.key] = nomination(info.key, node, known.losers if known is not None else ())
        elif self._reservations:
            self._reservations.pop(info.key, None)

    def _remove(self, info: PodInfo) -> None:
        """Removes the amounts of a pod from the books. The caller removes or replaces its entry in `_pods`."""
        self._pending.pop(info.key, None)
        if info.gang is not None:
            self.gangs.drop_member(info.gang, info)
        if info.bound:
            self._account(info, -1)
        elif info.pending:
            self.quotas.wait(info, -1)

    def _replace(self, old: PodInfo, info: PodInfo) -> None:
        """Replaces a pod that has the same amounts on the same node; only its devices may differ (annotations)."""
        if old.gang is not None:
            self.gangs.drop_member(old.gang, old)
        self._account_devices(old, -1)
        self._file(info)
        self._account_devices(info, 1)

    def _account(self, info: PodInfo, sign: int) -> None:
        self.usage.account(info, sign)
        self.neighbours.account(info, sign)
        self._account_devices(info, sign)
        self.quotas.account(info, sign)

    def _account_devices(self, info: PodInfo, sign: int) -> None:
        """Adds the devices of a bound pod to the device books (sign 1), or removes them (-1). The devices of an assumed
        pod are those of its assumption; of any other pod those that its annotations state. Annotations of a pod that
        requests no device are ignored, except for GPU groups."""
        if not info.extended and info.group is None:
            return
        if sign < 0:
            for book in self.families.values():
                book.release(info)
            return
        found = self.expected.assumption(info.key)
        devices = found.devices if found is not None else NO_DEVICES
        for family, book in self.families.items():
            book.hold(info, devices.get(family))

    def assume(
        self,
        key: str,
        node: str,
        claims: Mapping[str, str] | None = None,
        devices: AllocatedDevices = NO_DEVICES,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Counts a pending pod at a node until the watch confirms it, or `forget` removes the assumption.

        claims: volume claim -> its volume; empty for a volume to be provisioned on the node. devices: device family ->
        devices. annotations: annotations of the Binding, which later plans read if they state the devices.

        Raises KeyError for an unknown pod, and ValueError for a pod that has a node already.
        """
        info = self._pods[key]
        if info.node:
            raise ValueError(f"{key} has node {info.node} already")
        taken = {claim: ClaimVolume(volume, node) for claim, volume in (claims or {}).items()}
        said = annotations if annotations and self._read_by_annotations(info) else {}
        assumed = Reservation(
            key,
            ReservationStage.ASSUMED,
            ClosedTo.ALL,
            node=node,
            volumes=taken,
            devices=devices,
            annotations=said,
        )
        self.placed(self.expected.assume(info.pod, assumed), node)

    def placed(self, pod: Pod, node: str) -> None:
        """Replaces a pending pod by its state with a node and annotations; its other fields are not read again."""
        old = self._pods[pod.key]
        info = replace(old, pod=pod, node=node, pending=False, shape=b"")
        self.workloads.put_pod(info)
        self._remove(old)
        self._add(info)

    def _read_by_annotations(self, info: PodInfo) -> bool:
        """Returns True if a pod's annotations state its devices, because no book counts them when it is assumed."""
        return any(is_extended(name) and name not in self._tracked_resources for name in info.requests)

    def foresee_nomination(self, key: str, node: str, losers: Iterable[ShareQueue] = ()) -> None:
        """Records that a pending pod is being nominated to a node, and reserves its capacity there. node: empty if the
        nomination is being cleared. losers: quotas and users from which the capacity is reclaimed."""
        if key in self._pods:
            self._reservations[key] = nomination(key, node, losers)
            self.expected.nominate(self._pods[key].pod, node)
            self._put_again([key])

    def foresee_end(self, key: str, timestamp: str) -> None:
        """Records that a bound pod is being evicted. timestamp: its expected end (RFC 3339)."""
        if key in self._pods:
            self.expected.end(self._pods[key].pod, timestamp)
            self._put_again([key])

    def unforesee(self, key: str, uid: str) -> None:
        """Removes the expected nomination and deletion of a pod, because the request failed. uid: uid of the pod."""
        info = self._pods.get(key)
        if info is not None and info.uid == uid:
            pod = self.expected.bare(info.pod)
            self.expected.unforesee(key)
            self.put_pod(pod, seen=False)

    def leaving(self, node: str) -> list[PodInfo]:
        """Returns the pods on a node that are being deleted."""
        return [one for key in self.usage.pods_on(node) if (one := self._pods[key]).pod.metadata.deletion_timestamp]

    def nominated(self) -> list[PodInfo]:
        """Returns the nominated pods."""
        return [self._pods[key] for key in self._reservations]

    def reservations(self) -> dict[str, Reservation]:
        """Returns a copy of nominated pod -> its reservation."""
        return self._reservations.copy()

    def forget(self, key: str) -> None:
        """Removes the assumption of a pod that was not bound. Nothing changes if the pod is deleted or confirmed."""
        if self.assumed_node(key) is None:
            return
        pod = self.expected.bare(self._pods[key].pod)
        self.expected.unassume(key)
        self.put_pod(pod, seen=False)

    def assumed_node(self, key: str) -> str | None:
        """Returns the node of an assumed pod; None for a pod that is not assumed."""
        found = self.expected.assumption(key)
        return found.node if found is not None else None

    def assumed_pods(self) -> list[PodInfo]:
        """Returns the assumed pods."""
        return [self._pods[key] for key, _ in self.expected.assumed()]
