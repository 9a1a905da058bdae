# SPDX-License-Identifier: Apache-2.0
"""The ledger of a node: finds the pod for which the kubelet asks, and records which GPUs its containers got.

The kubelet asks for devices with an Allocate request. The request does not name a pod; it only offers ids of GPUs that
the kubelet has booked. But the kubelet admits pods one after another and asks for their containers in order. It also
lists its pods with the ids booked for each container (PodResources). So the request is for the listed pod that is not
fully booked. The next container of this pod gets the GPUs that the scheduler reserved for it, not the offered ids.

Several pods may be possible, because kubelets before 1.34 also list rejected pods. If all of them request the same
numbers of GPUs, the oldest pod gets its GPUs. If a later list shows that the request was for another of these pods, the
two pods exchange their reserved GPUs. In any other unclear case the answer is an error.

Terms: offered = ids that the kubelet names in a request and then books; delivered = GPUs that the container gets; part
= a container that requests GPUs; slot = identity of a container. Rules: gpu-topology.md 10, `device-plugin`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from koordpy.api.counted_nouns import count_noun

Slot = tuple[str, str]
"""(pod uid, container name)."""
View = Mapping[tuple[str, str], Mapping[str, Sequence[str]]]
"""The kubelet's list: (namespace, pod name) -> container name -> booked ids. Has an entry for every listed pod."""


DEFAULT_GRACE_SECONDS = 30.0
"""Default grace period of a pod, in seconds."""


class NoCandidateError(Exception):
    """No pod is known for which the kubelet may ask, or the pod has no reserved GPUs."""


class StillHeldError(NoCandidateError):
    """Containers of a deleted pod may still use the GPUs of the answer. The request may succeed later."""

    def __init__(self, uid: str, message: str) -> None:
        """uid: uid of the deleted pod."""
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True, slots=True)
class Part:
    """A container that requests GPUs."""

    place: str
    """The container in the annotations: its index; for an init container `init-` and its index."""
    container: str
    """Name of the container."""
    size: int
    """Number of GPUs."""
    gpus: tuple[str, ...]
    """Ids of the GPUs that the scheduler reserved; empty if it reserved none."""
    passing: bool = False
    """True for an init container that ends before the containers start. The kubelet's list does not have such
    containers."""


@dataclass(frozen=True, slots=True)
class ReservedGpus:
    """A pod that is bound to the node and requests GPUs, with the GPUs that are reserved for its containers."""

    uid: str
    namespace: str
    pod: str
    """Name of the pod."""
    parts: tuple[Part, ...]
    """The pod's containers with GPUs, in the order in which the kubelet asks for them."""
    created: float = 0.0
    """Creation time, in seconds since the epoch."""
    settled: bool = False
    """True if the kubelet sends no more requests for the pod, because it has admitted the pod or the pod is deleted."""
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """terminationGracePeriodSeconds of the pod."""
    finished: bool = False
    """True if the pod's phase is Succeeded or Failed."""
    ended: bool = False
    """True if `finished`, and if the pod's status says that no container runs."""

    @property
    def name(self) -> tuple[str, str]:
        """(namespace, name) of the pod."""
        return self.namespace, self.pod

    @property
    def sequence(self) -> tuple[tuple[int, bool], ...]:
        """(size, passing) of each part. Pods with equal sequences can exchange their GPUs."""
        return tuple((part.size, part.passing) for part in self.parts)

    @property
    def gpus(self) -> tuple[tuple[str, ...], ...]:
        """Ids of the GPUs of each part."""
        return tuple(part.gpus for part in self.parts)

    def with_gpus(self, gpus: Sequence[tuple[str, ...]]) -> "ReservedGpus":
        """Returns the pod with other reserved GPUs, one tuple for each part."""
        return replace(self, parts=tuple(replace(p, gpus=own) for p, own in zip(self.parts, gpus, strict=True)))

    def slot(self, at: int) -> Slot:
        """Returns the identity of the container of a part. at: index of the part."""
        return self.uid, self.parts[at].container


@dataclass(frozen=True, slots=True)
class Delivery:
    """The answer to one request: GPUs that a container got."""

    offered: tuple[str, ...]
    """Ids that the kubelet offered and books, sorted."""
    gpus: tuple[str, ...]
    """Ids of the GPUs that the container sees."""
    slot: Slot
    """The container."""
    pod: str = ""
    """`namespace/name` of the pod; empty in deliveries of an older checkpoint."""
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """Seconds for which the pod's containers may run after the signal to end."""


class Ledger:
    """Reservations and deliveries of GPUs on one node."""

    def __init__(
        self, deliveries: Iterable[Delivery] = (), exchanged: Mapping[str, Sequence[tuple[str, ...]]] | None = None
    ) -> None:
        """deliveries: from the checkpoint. exchanged: as in `exchanged`."""
        self._annotated: dict[str, ReservedGpus] = {}
        """uid -> pod with the GPUs that its annotations state; only pods that have not finished."""
        self._pods: dict[str, ReservedGpus] = {}
        """uid -> the same pod, with its GPUs after exchanges; the oldest pod first."""
        self._delivered: dict[Slot, Delivery] = {one.slot: one for one in deliveries}
        """Slot -> delivery to the container."""
        self._anew, self._doubtful = False, dict[str, int]()
        """`_anew`: True after a registration with the kubelet, until the pods are read again. `_doubtful`: pod uid ->
        index of the part for which a restarted kubelet may not have received the answer."""
        self.exchanged: dict[str, tuple[tuple[str, ...], ...]] = {u: tuple(g) for u, g in (exchanged or {}).items()}
        """Pod uid -> GPUs of its parts, of pods that exchanged GPUs, if their annotations do not show that yet."""

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """All deliveries, sorted by slot, as written to the checkpoint."""
        return tuple(self._delivered[slot] for slot in sorted(self._delivered))

    def pods(
        self,
        reserved: Iterable[ReservedGpus],
        view: View,
        may_run: Callable[[Delivery, bool], bool] = lambda one, ended: False,
    ) -> None:
        """Updates the ledger with the pods of the node.

        A delivery to a deleted pod remains while the kubelet lists its ids, or while a container of the pod may run.
        reserved: pods at the API server. may_run(delivery, ended): returns True if a container of the pod may still
        run; ended: True if the API server reported that all containers have ended.
        """
        known = {one.uid: one for one in reserved}
        self._annotated = {uid: one for uid, one in known.items() if not one.finished}
        slots = {one.slot(at) for one in self._annotated.values() for at in range(len(one.parts))}
        names = {one.name for one in self._annotated.values()}
        # ids that the kubelet lists for pods that have finished, or that do not exist at the API server
        kept = {tuple(sorted(ids)) for name, own in view.items() if name not in names for ids in own.values()}

        def stays(one: Delivery) -> bool:
            if one.slot in slots or one.offered in kept:
                return True
            uid = one.slot[0]
            return uid not in self._annotated and may_run(one, uid in known and known[uid].ended)

        self._delivered = {slot: one for slot, one in self._delivered.items() if stays(one)}
        self.exchanged = {
            uid: gpus
            for uid, gpus in self.exchanged.items()
            if uid in self._annotated
            and len(gpus) == len(self._annotated[uid].parts)
            and gpus != self._annotated[uid].gpus
        }
        self._apply()
        if self._anew:
            self._doubt()

    def _apply(self) -> None:
        """Recomputes `_pods` from the annotations and the exchanges."""
        known = sorted(self._annotated.values(), key=lambda one: (one.created, one.uid))
        self._pods = {p.uid: p.with_gpus(self.exchanged[p.uid]) if p.uid in self.exchanged else p for p in known}

    def orphans(self) -> list[Delivery]:
        """Returns the deliveries to deleted or finished pods that may still have running containers."""
        return [one for one in self.deliveries if one.slot[0] not in self._annotated]

    def awaited(self) -> bool:
        """Returns True if the kubelet may still ask for GPUs of a pod of this node."""
        return any(not one.settled for one in self._annotated.values())

    def state(self) -> tuple[object, ...]:
        """Returns a state that `restore` accepts: everything that a checkpoint contains."""
        return dict(self._delivered), dict(self.exchanged)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Sets the ledger to a state that `state` returned."""
        self._delivered, self.exchanged = state
        self._apply()

    def corrections(self) -> list[ReservedGpus]:
        """Returns the pods with annotations that do not show an exchange yet, with the GPUs that they really have."""
        return [self._pods[uid] for uid in sorted(self.exchanged)]

    def served(self) -> tuple[str, ...]:
        """Returns the uids of the pods in which every container with GPUs has got them."""
        pods = self._annotated.values()
        return tuple(p.uid for p in pods if all(p.slot(at) in self._delivered for at in range(len(p.parts))))

    def registered(self) -> None:
        """Records a new registration with the kubelet.

        The kubelet may have restarted while it admitted a pod, before it received the last answer. It then asks again.
        """
        self._anew = True

    def _doubt(self) -> None:
        """Finds the pods for which the kubelet's list does not show whether the kubelet received the last answer.

        These are the pods with a last delivery to an init container that ends: the list does not have such
        containers.
        """
        self._anew, self._doubtful = False, {}
        for pod in self._pods.values():
            served = [at for at in range(len(pod.parts)) if pod.slot(at) in self._delivered]
            if served and pod.parts[served[-1]].passing:
                self._doubtful[pod.uid] = served[-1]

    # -- the pod of a request -------------------------------------------------------------------------------------

    def asking(self, view: View, size: int) -> tuple[ReservedGpus, int]:
        """Returns (the pod for which the kubelet asks now, index of its part). size: number of requested GPUs.

        Raises NoCandidateError if no pod is possible, or if several pods are possible that are not interchangeable.
        """
        found = [
            (pod, at)
            for pod in self._pods.values()
            if not pod.settled and pod.name in view and (at := self._next(pod, view[pod.name], size)) < len(pod.parts)
            if pod.parts[at].size == size
        ]
        if not found:
            raise NoCandidateError(f"no pod of this node is waiting for {count_noun(size, 'GPU')}")
        first, _ = found[0]
        # interchangeable: equal sizes of all parts, no part served yet, and GPUs reserved for each part
        alike = all(pod.sequence == first.sequence and not at and all(pod.gpus) for pod, at in found)
        if len(found) > 1 and not alike:
            names = ", ".join("/".join(pod.name) for pod, _ in found)
            raise NoCandidateError(f"ambiguous request for {count_noun(size, 'GPU')}, possible pods: {names}")
        return found[0]

    def _next(self, pod: ReservedGpus, booked: Mapping[str, Sequence[str]], size: int) -> int:
        """Returns the index of the part for which the kubelet asks next; the number of parts if none is left.

        It is the part after the last booked part. Init containers that end are never booked, so they are skipped if
        they have a delivery. A restarted kubelet may ask for a skipped part again; if the size shows that, its index is
        returned. Raises NoCandidateError if the size fits both parts.
        """
        at = max((i + 1 for i, part in enumerate(pod.parts) if part.container in booked), default=0)
        while at < len(pod.parts) and pod.parts[at].passing and pod.slot(at) in self._delivered:
            at += 1
        if at < len(pod.parts) and self._doubtful.get(pod.uid) == at - 1 and pod.parts[at - 1].size == size:
            if pod.parts[at].size == size:
                name = "/".join(pod.name)
                raise NoCandidateError(f"ambiguous request of a restarted kubelet for a container of pod {name}")
            return at - 1
        return at

    # -- answers --------------------------------------------------------------------------------------------------

    def prefer(self, view: View, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Returns the ids that the kubelet should prefer for a request of `size` GPUs.

        The order is: the required ids, the GPUs reserved for the container, other GPUs of its pod, then any available
        ids. So the kubelet books the GPUs that the pod really gets if they are available.
        """
        own: list[str] = []
        try:
            pod, at = self.asking(view, size)
            own = [*pod.parts[at].gpus, *(gpu for gpus in pod.gpus for gpu in gpus)]
        except NoCandidateError:
            pass  # Allocate reports the error
        there = set(available)
        return tuple(dict.fromkeys([*required, *(gpu for gpu in own if gpu in there), *available]))[:size]

    def deliver(self, view: View, offered: Sequence[str]) -> Delivery:
        """Gives the reserved GPUs to the container for which the kubelet asks; returns and records the delivery.

        offered: ids in the request. Raises NoCandidateError if no pod is possible, or if its GPUs are not reserved or
        in use. Raises StillHeldError if only a deleted pod may use the GPUs.
        """
        self.reconcile(view)
        pod, at = self.asking(view, len(offered))
        part, name = pod.parts[at], "/".join(pod.name)
        if not part.gpus:
            raise NoCandidateError(f"no GPUs are reserved for container {part.container} of pod {name}")
        for other in self._delivered.values():
            if other.slot[0] != pod.uid and not set(part.gpus).isdisjoint(other.gpus):
                both = ", ".join(sorted(set(part.gpus).intersection(other.gpus)))
                if other.slot[0] not in self._annotated:
                    gone = other.pod or f"of uid {other.slot[0]}"
                    text = f"containers of the deleted pod {gone} may still use {both}, reserved for pod {name}"
                    raise StillHeldError(other.slot[0], text)
                raise NoCandidateError(f"another pod of this node uses {both}, reserved for pod {name}")
        ids = tuple(sorted(offered))
        # the kubelet books an id for one pod only, so another unadmitted pod with this id never started
        waiting = {one.uid for one in self._pods.values() if not one.settled and one.uid != pod.uid}
        self._delivered = {
            slot: one
            for slot, one in self._delivered.items()
            if slot[0] not in waiting or set(ids).isdisjoint(one.offered)
        }
        self._delivered[pod.slot(at)] = delivery = _delivery(pod, at, ids, part.gpus)
        return delivery

    # -- the kubelet's list ---------------------------------------------------------------------------------------

    def reconcile(self, view: View) -> None:
        """Corrects the deliveries according to the kubelet's list.

        If the booked ids of a container differ from its delivery, there are two cases: it got the delivery that was
        recorded for another pod, or its delivery is not recorded.
        """
        for pod in list(self._pods.values()):
            booked = view.get(pod.name, {})
            for at, part in enumerate(pod.parts):
                ids, slot = tuple(sorted(booked.get(part.container, ()))), pod.slot(at)
                known = self._delivered.get(slot)
                if not ids or (known is not None and known.offered == ids):
                    continue
                self._delivered.pop(slot, None)
                meant = self._meant(pod, at, ids, view)
                if meant is not None:
                    self._exchange(pod, meant)
                elif gpus := self._pods[pod.uid].parts[at].gpus:
                    # the delivery is older than the checkpoint: the container runs, so it got its reserved GPUs
                    self._delivered[slot] = _delivery(pod, at, ids, gpus)

    def _meant(self, pod: ReservedGpus, at: int, ids: tuple[str, ...], view: View) -> ReservedGpus | None:
        """Returns the pod for which the delivery with these booked ids was recorded, although `pod` got it.

        None if there is no such pod.

        That pod has parts of equal sizes, a delivery with exactly these offered ids, and no booked ids.
        """
        if any(pod.slot(i) in self._delivered for i in range(len(pod.parts))):
            return None
        for other in self._pods.values():
            if other.uid != pod.uid and other.sequence == pod.sequence:
                delivery = self._delivered.get(other.slot(at))
                listed = view.get(other.name, {}).get(other.parts[at].container, ())
                if delivery is not None and delivery.offered == ids and not listed:
                    return other
        return None

    def _exchange(self, one: ReservedGpus, other: ReservedGpus) -> None:
        """Exchanges the reservations of two pods, and gives the deliveries of `other` to `one`."""
        a, b = self._pods[one.uid], self._pods[other.uid]
        self.exchanged |= {a.uid: b.gpus, b.uid: a.gpus}
        served = [self._delivered.pop(b.slot(at), None) for at in range(len(b.parts))]
        for at, delivery in enumerate(served):
            if delivery is not None:
                self._delivered[a.slot(at)] = _delivery(a, at, delivery.offered, delivery.gpus)
        self.exchanged = {u: gpus for u, gpus in self.exchanged.items() if gpus != self._annotated[u].gpus}
        self._apply()


def _delivery(pod: ReservedGpus, at: int, offered: tuple[str, ...], gpus: tuple[str, ...]) -> Delivery:
    """Returns the delivery of GPUs to a part of a pod. at: index of the part. offered: ids of the request, sorted."""
    return Delivery(offered, gpus, pod.slot(at), "/".join(pod.name), pod.grace_seconds)
