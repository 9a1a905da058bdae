# SPDX-License-Identifier: Apache-2.0
"""Handles watch events of pods: updates the cache and the queue, wakes pending units, and records foreign Bindings.

Pods of all namespaces are watched without a selector, because pods of other schedulers use capacity, too. Our pods are
recognized by schedulerName (kube-parity.md 4.1).
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from koordpy.api.field_faults import UnreadableError
from koordpy.api.objects import Pod
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.object_changes import ClaimUsers
from koordpy.engine.client.api_replies import is_older
from koordpy.engine.queue_entry import queued_pod
from koordpy.engine.wakeups import Wake, changes_itself, of_pod
from koordpy.engine.watching.pod_intake import PodIntake, counts_when_finished, rejected
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)

REJECTIONS = frozenset(
    {"OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts"}
)
"""Reasons with which a kubelet rejects a pod because another scheduler used its capacity (kube-parity.md 4.10).
`RejectionWatch` handles the other rejections: devices or CPUs that a kubelet cannot assign (numa.md 8.1)."""

REJECTED_KEPT = 1024
"""Maximum number of rejected pods that are stored for /debug/snapshot."""


class PodChanges:
    """Handles pods from the reflector. `take_in` reduces each pod before it is stored (the informer's transform)."""

    def __init__(self, hub: Hub, claiming: ClaimUsers) -> None:
        """claiming: index of the claims that pending pods name; updated here."""
        self.foreign: list[PodInfo] = []
        """Pods that use capacity which no plan of this process has assigned: bound by another scheduler, bound to
        another node than assumed, or with changed requests. The scheduling loop clears the list before it takes a
        snapshot."""
        self.foreign_marks: dict[str, int] = {}
        """Node -> number of pods on this node that were added to `foreign` since the process started."""
        self.gated: set[str] = set()
        """Keys of our pods that have scheduling gates."""
        self._hub, self._state, self._queue = hub, hub.state, hub.queue
        self._claiming = claiming
        self._intake = PodIntake()
        self._ahead: dict[str, tuple[str, str]] = {}
        """Key of a pod that was read by GET -> (uid, resourceVersion). Older states from the watch are ignored."""
        self._rejected: OrderedDict[str, Pod] = OrderedDict()
        """uid -> pod that a kubelet rejected (`pod_intake.rejected`), the latest last, for `known`."""
        self._ended: set[str] = set()
        """uids of pods that are known to be deleted before the watch shows it."""

    # -- updates of the state -----------------------------------------------------------------------------------------

    def take_in(self, pod: Pod) -> Pod | None:
        """Returns the pod reduced to the fields that koordpy uses; None if the cache does not need it (`PodIntake`)."""
        if pod.status.phase == "Failed":
            if self._state.record_failed_pod(pod):
                self._remember(pod)
                for listener in self._hub.listeners.rejected:
                    listener(pod)
            elif pod.status.reason in REJECTIONS:
                self._count_rejection(pod)
        return self._intake(pod)

    def _remember(self, pod: Pod) -> None:
        """Stores a pod that a kubelet rejected. On a real cluster the oldest are dropped if there are too many."""
        self._rejected[pod.metadata.uid] = rejected(pod)
        self._rejected.move_to_end(pod.metadata.uid)
        if self._state.live and len(self._rejected) > REJECTED_KEPT:
            self._rejected.popitem(last=False)

    def _count_rejection(self, pod: Pod) -> None:
        """Reports a pod of ours that its kubelet has rejected; reports each pod once."""
        known = self._state.pod(pod.key)
        ours = pod.spec.scheduler_name in self._state.scheduler_names
        if ours and known is not None and known.uid == pod.metadata.uid and not known.finished:
            logger.warning("pod %s was rejected by its kubelet: %s", pod.key, pod.status.reason)
            for listener in self._hub.listeners.conflict:
                listener(pod.status.reason)

    def read(self, pod: Pod) -> None:
        """Records a pod from a GET. Older versions that the watch still delivers are then ignored."""
        if pod.metadata.uid in self._ended:
            return
        self._ahead[pod.key] = pod.metadata.uid, pod.metadata.resource_version
        kept = self.take_in(pod)
        if kept is not None:
            self._apply(kept)

    def upsert(self, pod: Pod, old: Pod | None) -> None:
        """Implements `Sink.upsert`: records a state from the watch, unless a newer one was read by GET."""
        if pod.metadata.uid in self._ended:
            return
        if self._ahead and (ahead := self._ahead.get(pod.key)) is not None:
            if ahead[0] == pod.metadata.uid and is_older(pod.metadata.resource_version, ahead[1]):
                return
            del self._ahead[pod.key]
        self._apply(pod)

    def _apply(self, pod: Pod) -> None:
        """Stores a pod in the cache, and handles the consequences. Raises UnreadableError if the pod is invalid."""
        key = pod.key
        before = self._state.pod(key)
        assumed = self._state.assumed_node(key) is not None
        try:
            self._state.upsert(pod)
        except UnreadableError:
            self._intake.refused(pod)
            raise
        self._changed(key, before, self._state.pod(key), assumed=assumed)

    def delete(self, pod: Pod) -> None:
        """Implements `Sink.delete`: removes a pod."""
        self._intake.gone(pod)
        self._ended.discard(pod.metadata.uid)
        self._ahead.pop(pod.key, None)
        if not self._drop(pod.key, pod.metadata.uid):
            self._state.forget_finished(pod.key, pod.metadata.uid)

    def ended(self, key: str, uid: str) -> None:
        """Removes a pod that is known to be deleted. Further watch events of it are ignored."""
        if self._drop(key, uid):
            self._ended.add(uid)

    def _drop(self, key: str, uid: str) -> bool:
        """Removes a pod. Returns False if it is not known, or if another pod has its name."""
        before = self._state.pod(key)
        if before is None or before.uid != uid:
            return False
        self._state.delete(Pod, key)
        self._changed(key, before, None, assumed=False)
        return True

    def known(self) -> Iterator[Pod]:
        """Yields every pod in the cache, and pods that kubelets rejected while these rejections are remembered.

        A rejected pod of no gang and no workload is not in the cache, so it is yielded even if it is deleted, unless
        another pod has its name.
        """
        book = self._state.rejections
        uids = book.memory.uids() if book is not None else frozenset[str]()
        told = {pod.key: pod for uid, pod in self._rejected.items() if uid in uids}
        for info in self._state.pods():
            own = told.pop(info.key, None)
            yield own if own is not None and own.metadata.uid == info.uid else info.pod
        yield from (pod for pod in told.values() if not counts_when_finished(pod))

    # -- consequences -------------------------------------------------------------------------------------------------

    def _changed(self, key: str, before: PodInfo | None, after: PodInfo | None, *, assumed: bool) -> None:
        """Handles the consequences of a pod's change for the queue, for pending units, and for listeners.

        before, after: the pod in the cache before and after the change; None if it was or is not in the cache. assumed:
        True if `before` was only assumed on its node.
        """
        # 1. the queue and the indexes of pending pods
        if after is not None and after.pending:
            # an assumed pod is not pending, so a pending pod waits for a node
            if before is None or before.uid != after.uid or not before.pending or changes_itself(before.pod, after.pod):
                new = before is None or before.uid != after.uid
                self.enqueue(after, event="PodAdd" if new else "PodUpdate")
        elif key in self._queue.unit_of:
            self._queue.discard(key)
        claims = after is not None and after.pending and (after.ties or after.pod.spec.resource_claims)
        if claims or key in self._claiming.named:
            self._claiming.changed(key, after if claims else None)
        spec = after.pod.spec if after is not None else None
        if spec is not None and spec.scheduling_gates and spec.scheduler_name in self._state.scheduler_names:
            self.gated.add(key)
        else:
            self.gated.discard(key)
        # 2. wake-ups of pending units
        wake = of_pod(before, after)
        if wake:
            event = "UnscheduledPodDelete" if wake == Wake.DEMAND_FELL else "AssignedPodUpdate"
            self._queue.broadcast(wake, "AssignedPodDelete" if wake & Wake.CAPACITY_FREED else event)
        # 3. load that no plan of this process has assigned
        if after is not None and after.bound:
            grown = before is not None and before.bound and before.requests != after.requests
            elsewhere = assumed and before is not None and before.node != after.node
            if grown or elsewhere or (wake & Wake.POD_BOUND and not assumed):
                self._note_foreign_load(after)
        # 4. listeners
        if assumed and after is not None and after.pod.spec.node_name:
            for on_confirmed in self._hub.listeners.confirmed:
                on_confirmed(after)
        if before is not None and after is not None and self._is_newly_bound(before, after):
            for on_bound in self._hub.listeners.bound:
                on_bound(after, assumed and before.node == after.node)
        if after is None or after.finished:
            for gone in self._hub.listeners.pod_gone:
                gone(key)
        # 5. gangs; a pod that changes its gang affects both
        for ref in dict.fromkeys(info.gang for info in (before, after) if info is not None and info.gang is not None):
            self._gang_changed(ref, before, after)

    def _is_newly_bound(self, before: PodInfo, after: PodInfo) -> bool:
        """Returns True if the API server shows one of our pods on a node for the first time."""
        if before.uid != after.uid or not after.pod.spec.node_name or before.pod.spec.node_name:
            return False
        return after.pod.spec.scheduler_name in self._state.scheduler_names

    def _gang_changed(self, ref: GangRef, before: PodInfo | None, after: PodInfo | None) -> None:
        """Handles a change of a pod for one gang: the gang that it was in before the change, or is in after it."""
        names = self._hub.names
        came_or_went = before is None or after is None or before.gang != after.gang
        if ref.source is GangSource.NAMED:
            for info in (before, after):
                if info is not None and info.gang == ref:
                    names.saw(ref, info.pod.metadata)
        elif came_or_went:
            names.moved(ref)
        # a pending pod of another scheduler is not a member, but a gate must see that the gang has two schedulers
        if came_or_went or _counts(before) != _counts(after):
            self._queue.touch(names.of_gang(ref), "PodGroupMember")
        for listener in self._hub.listeners.gang:
            listener(ref)

    def _note_foreign_load(self, info: PodInfo) -> None:
        """Records a pod that uses capacity of a node which no plan of this process has assigned to it."""
        self.foreign.append(info)
        self.foreign_marks[info.node] = self.foreign_marks.get(info.node, 0) + 1

    def regrouped(self, moved: Mapping[str, GangRef | None], altered: Iterable[GangRef]) -> None:
        """Handles changed gangs after the gangs of workloads were derived again.

        moved: key of a pod with another gang or rank -> its former gang. altered: gangs that changed in other ways.
        """
        concerned = dict.fromkeys(altered)
        for key, before in moved.items():
            info = self._state.pod(key)
            if info is None:
                continue
            if info.pending:
                self.enqueue(info, event="GroupChange")
            concerned |= dict.fromkeys(ref for ref in (before, info.gang) if ref is not None)
        for ref in concerned:
            self._queue.touch(self._hub.names.of_gang(ref), "WorkloadUpdate")
            for listener in self._hub.listeners.gang:
                listener(ref)

    def enqueue(self, info: PodInfo, *, event: str) -> None:
        """Adds a pending pod to its unit in the queue. event: name of the event in metrics."""
        pod = queued_pod(info, self._queue.clock())
        self._queue.add(self._hub.names.of_pod(info), pod, event=event)


def _counts(info: PodInfo | None) -> tuple[bool, bool, bool]:
    """Returns three booleans: the pod counts as a member of its gang; it is a member that is being deleted, which
    counts for no minimum; the pod has Succeeded, which lowers the number of members that the gang needs. All are False
    for None."""
    if info is None:
        return False, False, False
    leaving = info.bound and info.pod.metadata.deletion_timestamp is not None
    return info.bound or info.pending or info.finished, leaving, info.succeeded
