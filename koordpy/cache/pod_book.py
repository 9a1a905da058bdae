"""Accounts pods to nodes, gangs, quotas and neighbours; `pod_changes` has the states of a pod and the table of changes.

Pods are accounted to nodes whoever scheduled them, and our own assumed pods before their Bindings are confirmed
(kube-parity.md 2.2, 4.2). Cheap per event: one pod's figures are taken off every book and put on again.
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
from koordpy.pods.family_books import NOTHING_GIVEN, DeviceFamilies, Given
from koordpy.pods.gang_refs import GangRef, gang_ref
from koordpy.pods.pod_info import PodInfo, in_group, pod_info, shape_of
from koordpy.pods.pod_owners import OwnerBook
from koordpy.pods.pod_ties import looks_at_pods, selected_keys
from koordpy.pods.volume_book import Promise
from koordpy.quota.quota_book import QuotaBook, ShareQueue
from koordpy.workloads.volcano_gangs import VolcanoGroup, group_of_pod

MOST_LABEL_KEYS = 1 << 10
"""Label keys looked for, above which those are forgotten that no pod names any more."""


class PodBook:
    """Pods by `namespace/name`, and the books that they are accounted in."""

    def __init__(
        self, families: DeviceFamilies, *, scheduler_names: frozenset[str], owned: bool, quota: Quota, gangs: Gangs
    ) -> None:
        """owned: whether pods without constraints of spread are spread by their controllers (`shape_of`)."""
        self.readers = families.readers
        self.families = families.books
        """Family of devices -> its book."""
        self._told = frozenset[str]().union(*(book.told_resources for book in self.families.values()))
        """Resources of which books are told what assumed pods have."""
        self.scheduler_names = scheduler_names
        self.quotas = QuotaBook(quota)
        self._owned = owned
        self._pods: dict[str, PodInfo] = {}
        self._pending: dict[str, PodInfo] = {}
        self._reservations: dict[str, Reservation] = {}
        """Nominated pod -> what is kept for it, and from whom it was reclaimed as far as this process knows."""
        self.expected = ExpectedPods()
        self.workloads = WorkloadBook(gangs, scheduler_names)
        self.gangs = GangBook(scheduler_names, self.workloads.records)
        self.usage = Usage()
        self.neighbours = Neighbours()
        self.owners = OwnerBook()
        self._configured: frozenset[str] = frozenset()
        """Label keys that are looked for whatever pods say."""
        self._most_keys = MOST_LABEL_KEYS
        self.moved: dict[str, GangRef | None] = {}
        """Pods whose gang or rank became another one -> the gang that they were in; whoever heeds it empties it."""

    def pod(self, key: str) -> PodInfo | None:
        return self._pods.get(key)

    def pods(self) -> Iterator[PodInfo]:
        return iter(self._pods.values())

    def put_pod(self, pod: Pod, *, seen: bool = True) -> None:
        """Takes a pod as the API server has it. seen: now; else as it was shown last.

        Raises UnreadableError where a quantity cannot be read; nothing changes then.
        """
        key, old = pod.key, self._pods.get(pod.key)
        known = old if old is not None and old.uid == pod.metadata.uid else None
        info = self._read(pod, known, seen=seen)
        counted = not info.finished or self._counts_finished(info)
        if counted or info.gang is not None:
            info = self._followed(info)
        info = self._ranked(info)
        if known is None:
            self.expected.drop(key)
        elif info.finished or not self._is_assumed(info):
            self.expected.unassume(key)
        if known is not None and info.gang is not None and known.controller != info.controller:
            self.gangs.owned_anew(info.gang, info)
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
        """True if a pod counts as on its node by an assumption alone."""
        return not info.pod.spec.node_name and self.assumed_node(info.key) is not None

    def _read(self, pod: Pod, known: PodInfo | None, *, seen: bool) -> PodInfo:
        """Reads a pod with what is expected of it. known: the same pod as it was before."""
        assumed = ""
        if known is not None:
            pod = self.expected.seen(pod) if seen else self.expected.shown(pod)
            assumed = "" if pod.spec.node_name else self.assumed_node(pod.key) or ""
        info = pod_info(
            pod,
            scheduler_names=self.scheduler_names,
            assumed_node=assumed,
            looked_for=self.neighbours.looked_for,
            owned=self._owned,
            readers=self.readers,
            labels_count=self.quotas.settings.labels_count(pod.metadata.namespace),
            volcano=self.workloads.volcano,
            queue=self.workloads.queue_of(pod),
            follows=(known.gang, known.index) if known is not None else (None, None),
        )
        if known is not None and info.ties and info.ties == known.ties:
            info = replace(info, ties=known.ties)  # it may be long, and other objects hold it
        if looks_at_pods(pod):
            self._look_for(selected_keys(pod))  # its shape has them already
        self.workloads.put_pod(info)
        return info

    def drop_pod(self, key: str) -> None:
        """Forgets a pod; an unknown one is no fault."""
        old = self._pods.pop(key, None)
        self.expected.drop(key)
        self._reservations.pop(key, None)
        self.workloads.drop(key)
        if old is not None:
            self._remove(old)
            if old.gang is not None:
                self.gangs.end_member(old.gang, old)

    def read_volcano(self, on: bool) -> None:
        """Takes whether PodGroups of Volcano are read."""
        if self.workloads.volcano != on:
            self.workloads.read_volcano(on)
            self._put_again([info.key for info in self._pods.values() if group_of_pod(info.pod)])

    def _counts_finished(self, info: PodInfo) -> bool:
        """Whether a pod that has succeeded counts for a gang that follows: one of a PodGroup of Volcano."""
        return self.workloads.volcano and info.succeeded and bool(group_of_pod(info.pod))

    def put_volcano_group(self, key: str, group: VolcanoGroup | None) -> None:
        """Takes a PodGroup of Volcano by `namespace/name`, None for one that is gone."""
        self._put_again(self.workloads.put_group(key, group))

    def _put_again(self, pods: Iterable[str]) -> None:
        """Reads pods anew, for what they say means something else by now."""
        for key in pods:
            if key in self._pods:
                self.put_pod(self.expected.bare(self._pods[key].pod), seen=False)

    def forget_finished(self, key: str, uid: str) -> None:
        """Forgets a pod that only counted for its workload."""
        if key not in self._pods:
            self.workloads.drop(key, uid)

    def _followed(self, info: PodInfo) -> PodInfo:
        """A pod with the gang that followed for it so far, where it names none, and its rank in its gang."""
        gang, index, made = self.workloads.filed(info)
        if (gang, index, made) == (info.gang, info.index, info.made_group):
            return info
        return replace(info, gang=gang, index=index, made_group=made)

    def _ranked(self, info: PodInfo) -> PodInfo:
        """A pod with what its upstream PodGroup says of all its pods."""
        if info.pod.spec.scheduling_group is None or info.gang is None:
            return info
        return in_group(info, *self.gangs.rank_of(info))

    def regroup(self, now: float) -> None:
        """Finds the gangs that follow from workloads and pods now (seconds since the epoch)."""
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
            self.gangs.count_anew(dict.fromkeys((*refs, *naming, *self.gangs.left_by(uid))))

    def _regang(self, old: PodInfo, filed: PodInfo) -> None:
        """Takes a pod of which nothing but its gang, or its rank in it, is another."""
        if old.gang is not None:
            self.gangs.drop_member(old.gang, old)
            if old.gang != filed.gang:
                self.gangs.left(old.gang)
        if old.bound:
            self._account_devices(old, -1)
            self._account_devices(filed, 1)
        self._file(filed)

    def look_for(self, label_keys: Iterable[str]) -> None:
        """Takes in label keys that the configuration's selectors look at pods by, for good."""
        self._configured |= frozenset(label_keys)
        self._look_for(label_keys)

    def _look_for(self, label_keys: Iterable[str]) -> None:
        """Pods that differ in one of these labels are told apart from now on. Pods' own selectors are read as they
        come, and forgotten some time after they went."""
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
        """Tells pods apart no longer by labels that nobody looks for any more."""
        looking = (info.pod for info in self._pods.values() if looks_at_pods(info.pod))
        live = self._configured.union(self.owners.label_keys(), *map(selected_keys, looking))
        self.neighbours.look_only_for(live)
        self._most_keys = max(MOST_LABEL_KEYS, 2 * len(live))

    def _add(self, info: PodInfo) -> None:
        self._file(info)
        if info.bound:
            self._account(info, 1)
        elif info.pending:
            self.quotas.wait(info, 1)

    def _file(self, info: PodInfo) -> None:
        """Puts a pod into the indexes; one that is known keeps its place in every order."""
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
        self._pending.pop(info.key, None)
        if info.gang is not None:
            self.gangs.drop_member(info.gang, info)
        if info.bound:
            self._account(info, -1)
        elif info.pending:
            self.quotas.wait(info, -1)

    def _replace(self, old: PodInfo, info: PodInfo) -> None:
        """Takes a pod that holds what it held: only its devices may be told by what is written on it now."""
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
        """A pod that asks for no device holds none, whatever is written on it; those of GPU groups count all the
        same."""
        if not info.extended and info.group is None:
            return
        if sign < 0:
            for book in self.families.values():
                book.release(info)
            return
        found = self.expected.assumption(info.key)
        given = found.given if found is not None else NOTHING_GIVEN
        for family, book in self.families.items():
            book.hold(info, given.get(family))

    def assume(
        self,
        key: str,
        node: str,
        claims: Mapping[str, str] | None = None,
        given: Given = NOTHING_GIVEN,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Counts a pending pod as bound to a node until the watch confirms it or `forget` takes it back.

        claims: claim -> volume that it takes, empty for one that is to be provisioned on the node; given: devices of
        each family that it is given; annotations: what its Binding says, which later plans read of pods whose devices
        are told by their annotations.

        Raises KeyError for an unknown pod and ValueError for one that has a node already.
        """
        info = self._pods[key]
        if info.node:
            raise ValueError(f"{key} has node {info.node} already")
        taken = {claim: Promise(volume, node) for claim, volume in (claims or {}).items()}
        said = annotations if annotations and self._read_by_annotations(info) else {}
        assumed = Reservation(
            key,
            ReservationStage.ASSUMED,
            ClosedTo.ALL,
            node=node,
            volumes=taken,
            given=given,
            annotations=said,
        )
        self.placed(self.expected.assume(info.pod, assumed), node)

    def placed(self, pod: Pod, node: str) -> None:
        """Takes a pending pod that has a node by now, and annotations that tell of it: it is read no other way."""
        old = self._pods[pod.key]
        info = replace(old, pod=pod, node=node, pending=False, shape=b"")
        self.workloads.put_pod(info)
        self._remove(old)
        self._add(info)

    def _read_by_annotations(self, info: PodInfo) -> bool:
        """True if annotations tell what devices a pod has, because no book is told."""
        return any(is_extended(name) and name not in self._told for name in info.requests)

    def foresee_nomination(self, key: str, node: str, losers: Iterable[ShareQueue] = ()) -> None:
        """A pending pod is being nominated to a node (to none: empty): its room is kept from now on.

        losers: quotas and users that it is reclaimed from.
        """
        if key in self._pods:
            self._reservations[key] = nomination(key, node, losers)
            self.expected.nominate(self._pods[key].pod, node)
            self._put_again([key])

    def foresee_end(self, key: str, timestamp: str) -> None:
        """A bound pod is being evicted and will be gone about then (RFC 3339)."""
        if key in self._pods:
            self.expected.end(self._pods[key].pod, timestamp)
            self._put_again([key])

    def unforesee(self, key: str, uid: str) -> None:
        """What was foreseen of a pod did not happen."""
        info = self._pods.get(key)
        if info is not None and info.uid == uid:
            pod = self.expected.bare(info.pod)
            self.expected.unforesee(key)
            self.put_pod(pod, seen=False)

    def leaving(self, node: str) -> list[PodInfo]:
        """Pods on a node that are being deleted."""
        pods = [self._pods[key] for key in self.usage.pods_on(node)]
        return [info for info in pods if info.pod.metadata.deletion_timestamp]

    def nominated(self) -> list[PodInfo]:
        """Pods that room is kept for."""
        return [self._pods[key] for key in self._reservations]

    def reservations(self) -> dict[str, Reservation]:
        return self._reservations.copy()

    def forget(self, key: str) -> None:
        """Takes an assumption back; a pod that is gone or confirmed is left as it is."""
        if self.assumed_node(key) is None:
            return
        pod = self.expected.bare(self._pods[key].pod)
        self.expected.unassume(key)
        self.put_pod(pod, seen=False)

    def assumed_node(self, key: str) -> str | None:
        """Node an unconfirmed pod is assumed on."""
        found = self.expected.assumption(key)
        return found.node if found is not None else None

    def assumed_pods(self) -> list[PodInfo]:
        return [self._pods[key] for key, _ in self.expected.assumed()]
