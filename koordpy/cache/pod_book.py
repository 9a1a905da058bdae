"""The life of a pod: pending, assumed, bound, ending, gone; and who is told of each step.

Pods are accounted to nodes whoever scheduled them, and our own assumed pods before their Bindings are confirmed
(kube-parity.md 2.2, 4.2). Cheap per event: one pod's figures are taken off every book and put on again.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from koordpy.api.config import Gangs, Gpu, Quota
from koordpy.api.objects import Pod
from koordpy.api.quantity import is_extended
from koordpy.cluster.devices import Grant
from koordpy.cluster.expected import Assumption, ExpectedPods
from koordpy.cluster.gangbook import GangBook
from koordpy.cluster.gpu_book import GpuBook
from koordpy.cluster.neighbours import Neighbours
from koordpy.cluster.npus import NpuBook
from koordpy.cluster.owners import OwnerBook
from koordpy.cluster.pods import GangRef, GangSource, PodInfo, gang_ref, in_group, pod_info, shape_of
from koordpy.cluster.quotas import QuotaBook, ShareQueue
from koordpy.cluster.reservations import Reservation
from koordpy.cluster.ties import looks_at_pods, selected_keys
from koordpy.cluster.usage import Usage
from koordpy.cluster.volumes import Promise
from koordpy.cluster.workloadbook import WorkloadBook
from koordpy.workloads.volcano import VolcanoGroup, group_of_pod

MOST_LABEL_KEYS = 1 << 10
"""Label keys looked for, above which those are forgotten that no pod names any more."""


class PodBook:
    """Pods by `namespace/name`, and the books that they are accounted in."""

    def __init__(self, *, scheduler_names: frozenset[str], owned: bool, gpu: Gpu, quota: Quota, gangs: Gangs) -> None:
        """owned: whether pods without constraints of spread are spread by their controllers (`shape_of`)."""
        self.scheduler_names = scheduler_names
        self.quotas = QuotaBook(quota)
        self._owned = owned
        self._pods: dict[str, PodInfo] = {}
        self._pending: dict[str, PodInfo] = {}
        self._reservations: dict[str, Reservation] = {}
        """Nominated pod -> what is kept for it, and from whom it was reclaimed as far as this process knows."""
        self.expected = ExpectedPods()
        self.gangs = GangBook(scheduler_names)
        self.usage = Usage()
        self.neighbours = Neighbours()
        self.owners = OwnerBook()
        self._configured: frozenset[str] = frozenset()
        """Label keys that are looked for whatever pods say."""
        self._most_keys = MOST_LABEL_KEYS
        self.gpus = GpuBook(gpu)
        self.npus = NpuBook()
        self.workloads = WorkloadBook(gangs, scheduler_names)
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
        key = pod.key
        old = self._pods.get(key)
        same = old is not None and old.uid == pod.metadata.uid
        assumed = ""
        if same:
            pod = self.expected.seen(pod) if seen else self.expected.shown(pod)
            assumed = "" if pod.spec.node_name else self.assumed_node(key) or ""
        info = pod_info(
            pod,
            scheduler_names=self.scheduler_names,
            assumed_node=assumed,
            looked_for=self.neighbours.looked_for,
            owned=self._owned,
            gpu_resources=self.gpus.config.resources,
            labels_count=self.quotas.settings.labels_count(pod.metadata.namespace),
            volcano=self.workloads.volcano,
            queue=self.workloads.queue_of(pod),
            follows=(old.gang, old.index) if same and old is not None else (None, None),
        )
        if same and old is not None and info.ties and info.ties == old.ties:
            info = replace(info, ties=old.ties)  # it may be long, and others hold it
        if looks_at_pods(pod):
            self._look_for(selected_keys(pod))  # its shape has them already
        self.workloads.put_pod(info)
        if not (info.finished and info.gang is None) or self._counts_finished(info):
            info = self._followed(info)
        if info.gang is not None and info.gang.source is GangSource.UPSTREAM:
            info = in_group(info, self.gangs.group_priority(info.gang))
        if not same:
            self.expected.drop(key)
        elif not assumed or info.finished:
            self.expected.unassume(key)
        if same and old is not None and info.gang is not None and old.controller != info.controller:
            self.gangs.owned_anew(info.gang, info)
        if old is not None and _holds_the_same(old, info):
            self._replace(old, info)
            return
        if old is not None:
            self._remove(old)
            if old.gang is not None and old.gang != info.gang:
                self.gangs.left(old.gang)
        if info.gang is not None and (not same or old is None or old.gang != info.gang):
            self.gangs.new_member(info.gang, info)
        if info.finished and info.gang is None and not self._counts_finished(info):
            self._pods.pop(key, None)
            self._reservations.pop(key, None)
        else:
            self._add(info)

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
        gang, index = self.workloads.filed(info)
        return info if (gang, index) == (info.gang, info.index) else replace(info, gang=gang, index=index)

    def regroup(self, now: float) -> None:
        """Finds the gangs that follow from workloads and pods now (seconds since the epoch)."""
        for ref in self.workloads.pass_over(self.gangs.groups):
            named = ((one, gang_ref(one.pod, volcano=self.workloads.volcano)) for one in self._pods.values())
            self._put_again([one.key for one, gang in named if ref in (one.gang, gang)])
        for key in self.workloads.regroup(self.gangs.named(), now):
            if (old := self._pods.get(key)) is None:
                continue
            filed = self._followed(old)
            if filed is not old:
                self.moved.setdefault(key, old.gang)
                self._regang(old, filed)
        self.gangs.derived = self.workloads.derived

    def _regang(self, old: PodInfo, filed: PodInfo) -> None:
        """Takes a pod of which nothing but its gang, or its rank in it, is another."""
        if old.gang is not None:
            self.gangs.drop_member(old.gang, old)
            if old.gang != filed.gang:
                self.gangs.left(old.gang)
        if old.bound:
            self.npus.account(old, -1)
            self.npus.account(filed, 1)
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
                shape = shape_of(info.pod, *asked, looked_for, owned=owned, gpus=info.gpus, queue=info.owner.queue)
                self._file(in_group(replace(info, shape=shape, group_priority=None), info.group_priority))

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
            self._reservations[info.key] = Reservation(node, known.closed_to if known is not None else frozenset())
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
        self.npus.account(info, sign)
        if sign > 0:
            found = self.expected.assumption(info.key)
            self.gpus.hold(info, found.chips if found is not None else ())
        else:
            self.gpus.release(info)

    def assume(
        self,
        key: str,
        node: str,
        claims: Mapping[str, str] | None = None,
        devices: Mapping[str, Grant] | None = None,
        chips: tuple[int, ...] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Counts a pending pod as bound to a node until the watch confirms it or `forget` takes it back.

        claims: claim -> volume that it takes, empty for one that is to be provisioned on the node; devices: resource
        claim -> what it is allocated; chips: GPUs (minors) or NPUs of the node that it is given; annotations: what its
        Binding says, which later plans read of pods whose devices are told by their annotations.

        Raises KeyError for an unknown pod and ValueError for one that has a node already.
        """
        info = self._pods[key]
        if info.node:
            raise ValueError(f"{key} has node {info.node} already")
        taken = {claim: Promise(volume, node) for claim, volume in (claims or {}).items()}
        said = annotations if annotations and self._read_by_annotations(info) else {}
        self.placed(self.expected.assume(info.pod, Assumption(node, taken, devices or {}, chips, said)), node)

    def placed(self, pod: Pod, node: str) -> None:
        """Takes a pending pod that has a node by now, and annotations that tell of it: it is read no other way."""
        old = self._pods[pod.key]
        info = replace(old, pod=pod, node=node, pending=False, shape=b"")
        self.workloads.put_pod(info)
        self._remove(old)
        self._add(info)

    def _read_by_annotations(self, info: PodInfo) -> bool:
        """Whether annotations tell what devices a pod has: of GPUs the GpuBook is told, of all other kinds nobody."""
        return any(is_extended(name) and name not in self.gpus.config.resources for name in info.requests)

    def foresee_nomination(self, key: str, node: str, closed_to: frozenset[ShareQueue] = frozenset()) -> None:
        """A pending pod is being nominated to a node (to none: empty): its room is kept from now on.

        closed_to: quotas and users that it is reclaimed from.
        """
        if key in self._pods:
            self._reservations[key] = Reservation(node, closed_to)
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


def _holds_the_same(old: PodInfo, info: PodInfo) -> bool:
    """Whether nothing changed of a pod on a node that counts for others but its devices: as when the watch confirms
    where it was assumed."""
    if not (old.bound and info.bound) or old.uid != info.uid or old.node != info.node:
        return False
    before, after = old.pod.metadata, info.pod.metadata
    return (
        (old.requests, old.score_requests, old.owner, old.gang)
        == (info.requests, info.score_requests, info.owner, info.gang)
        and old.ties == info.ties
        and before.labels == after.labels
        and old.selector == info.selector
        and (before.deletion_timestamp is None) == (after.deletion_timestamp is None)
    )
