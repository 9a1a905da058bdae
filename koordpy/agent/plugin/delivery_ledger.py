"""Who gets which GPUs when the kubelet asks, without saying for whom.

Source: gpu-topology.md 10, `device-plugin`. Allocate carries no pod. But the kubelet admits one pod after
another, asks for its containers in order, and lists at any time which pods it has and what it booked for them
(PodResources): the pod that it lists and has not booked whole is the one that asks. What that pod's next container has
reserved is delivered, not what was offered. Where several pods may be meant and all ask for the same numbers, as with
kubelets before 1.34, which list pods that they refused, the oldest is served, and the list tells later whether two have
to exchange all that they reserved. Nothing else is delivered by guess: the answer is an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Slot = tuple[str, str]
"""(pod uid, container name)."""
View = Mapping[tuple[str, str], Mapping[str, Sequence[str]]]
"""(namespace, pod) -> container -> ids, of every pod that the kubelet lists."""


DEFAULT_GRACE_SECONDS = 30.0
"""Grace period of a pod that states none."""


class NoCandidateError(Exception):
    """It cannot be told for whom the kubelet asks, or that one has no GPUs to be given."""


class StillHeldError(NoCandidateError):
    """Containers of a pod that is gone may still use the GPUs. uid: of that pod."""

    def __init__(self, uid: str, message: str) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True, slots=True)
class Part:
    """A container with GPUs. place: as annotations name it; gpus: ids as the scheduler chose them, none where it did
    not; passing: an init container that runs once, which the kubelet's list leaves out."""

    place: str
    container: str
    size: int
    gpus: tuple[str, ...]
    passing: bool = False


@dataclass(frozen=True, slots=True)
class ReservedGpus:
    """A pod with GPUs that is assigned to the node. parts: in the order in which the kubelet asks for them; settled:
    whether the kubelet has admitted it, or it was deleted, so that nothing more is asked for it; finished: whether its
    phase is Succeeded or Failed; ended: whether, besides, no container of it runs, by its status."""

    uid: str
    namespace: str
    pod: str
    parts: tuple[Part, ...]
    created: float = 0.0
    settled: bool = False
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    finished: bool = False
    ended: bool = False

    @property
    def name(self) -> tuple[str, str]:
        return self.namespace, self.pod

    @property
    def sequence(self) -> tuple[tuple[int, bool], ...]:
        """What pods that can exchange their GPUs have in common."""
        return tuple((part.size, part.passing) for part in self.parts)

    @property
    def gpus(self) -> tuple[tuple[str, ...], ...]:
        return tuple(part.gpus for part in self.parts)

    def with_gpus(self, gpus: Sequence[tuple[str, ...]]) -> "ReservedGpus":
        return replace(self, parts=tuple(replace(p, gpus=own) for p, own in zip(self.parts, gpus, strict=True)))

    def slot(self, at: int) -> Slot:
        return self.uid, self.parts[at].container


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was handed out: the ids that the kubelet offered and books, and the GPUs that the container sees."""

    offered: tuple[str, ...]
    gpus: tuple[str, ...]
    slot: Slot
    """Whom it was meant for."""
    pod: str = ""
    """`namespace/name`; empty where an older checkpoint does not say."""
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """Of the pod: how long its containers may run on after they were told to end."""


class Ledger:
    """What is reserved and what was delivered on one node. exchanged: pod uid -> GPUs of its parts, of pods whose
    annotations do not say yet what they have."""

    def __init__(
        self, deliveries: Iterable[Delivery] = (), exchanged: Mapping[str, Sequence[tuple[str, ...]]] | None = None
    ) -> None:
        self._annotated: dict[str, ReservedGpus] = {}
        self._pods: dict[str, ReservedGpus] = {}
        self._delivered: dict[Slot, Delivery] = {one.slot: one for one in deliveries}
        self._anew, self._doubtful = False, dict[str, int]()
        self.exchanged: dict[str, tuple[tuple[str, ...], ...]] = {u: tuple(g) for u, g in (exchanged or {}).items()}

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """In the order of their slots: what a checkpoint keeps."""
        return tuple(self._delivered[slot] for slot in sorted(self._delivered))

    def pods(
        self,
        reserved: Iterable[ReservedGpus],
        view: View,
        may_run: Callable[[Delivery, bool], bool] = lambda one, ended: False,
    ) -> None:
        """The node's pods as they are now.

        What was delivered to pods that are gone is forgotten once the kubelet has forgotten them, too, and no container
        of theirs can run: one that was deleted by force has its grace period. may_run(delivery, ended): whether one
        may; ended: whether the API server said that all had ended.
        """
        known = {one.uid: one for one in reserved}
        self._annotated = {uid: one for uid, one in known.items() if not one.finished}
        slots = {one.slot(at) for one in self._annotated.values() for at in range(len(one.parts))}
        names = {one.name for one in self._annotated.values()}
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
        known = sorted(self._annotated.values(), key=lambda one: (one.created, one.uid))
        self._pods = {p.uid: p.with_gpus(self.exchanged[p.uid]) if p.uid in self.exchanged else p for p in known}

    def orphans(self) -> list[Delivery]:
        """What pods have that the API server no longer has, or that have finished, and of which containers may run."""
        return [one for one in self.deliveries if one.slot[0] not in self._annotated]

    def awaited(self) -> bool:
        """Whether the kubelet may still ask for a pod of this node."""
        return any(not one.settled for one in self._annotated.values())

    def state(self) -> tuple[object, ...]:
        """What `restore` takes: all that a checkpoint keeps."""
        return dict(self._delivered), dict(self.exchanged)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forgets what was done since `state` was asked."""
        self._delivered, self.exchanged = state
        self._apply()

    def corrections(self) -> list[ReservedGpus]:
        """Pods whose annotations are to say something else, with what they really have."""
        return [self._pods[uid] for uid in sorted(self.exchanged)]

    def served(self) -> tuple[str, ...]:
        """Uids of the pods of which each container with GPUs was answered."""
        pods = self._annotated.values()
        return tuple(p.uid for p in pods if all(p.slot(at) in self._delivered for at in range(len(p.parts))))

    def registered(self) -> None:
        """With a kubelet that may have ended amid a pod and know nothing of the last answer."""
        self._anew = True

    def _doubt(self) -> None:
        """Pods of which the kubelet's list does not tell whether it knows of the last answer."""
        self._anew, self._doubtful = False, {}
        for pod in self._pods.values():
            served = [at for at in range(len(pod.parts)) if pod.slot(at) in self._delivered]
            if served and pod.parts[served[-1]].passing:
                self._doubtful[pod.uid] = served[-1]

    # -- who asks -------------------------------------------------------------------------------------------------

    def asking(self, view: View, size: int) -> tuple[ReservedGpus, int]:
        """The pod that the kubelet asks for now, and which of its parts. Raises NoCandidateError."""
        found = [
            (pod, at)
            for pod in self._pods.values()
            if not pod.settled and pod.name in view and (at := self._next(pod, view[pod.name], size)) < len(pod.parts)
            if pod.parts[at].size == size
        ]
        if not found:
            raise NoCandidateError(f"no pod of this node waits for {size} GPUs")
        first, _ = found[0]
        alike = all(pod.sequence == first.sequence and not at and all(pod.gpus) for pod, at in found)
        if len(found) > 1 and not alike:
            names = ", ".join("/".join(pod.name) for pod, _ in found)
            raise NoCandidateError(f"it cannot be told which of these pods asks for {size} GPUs: {names}")
        return found[0]

    def _next(self, pod: ReservedGpus, booked: Mapping[str, Sequence[str]], size: int) -> int:
        """Which part of a pod the kubelet asks for next, by what it lists; of parts that it does not list, by what was
        served. A listed one that was served and is not booked was never begun: the kubelet ended before."""
        at = max((i + 1 for i, part in enumerate(pod.parts) if part.container in booked), default=0)
        while at < len(pod.parts) and pod.parts[at].passing and pod.slot(at) in self._delivered:
            at += 1
        if at < len(pod.parts) and self._doubtful.get(pod.uid) == at - 1 and pod.parts[at - 1].size == size:
            if pod.parts[at].size == size:
                name = "/".join(pod.name)
                raise NoCandidateError(f"it cannot be told for which container of pod {name} a new kubelet asks")
            return at - 1
        return at

    # -- answers --------------------------------------------------------------------------------------------------

    def prefer(self, view: View, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Ids that the kubelet should book: what the container that asks has reserved, else others of its pod, so that
        the kubelet's list names each pod's own GPUs wherever they are to be had."""
        own: list[str] = []
        try:
            pod, at = self.asking(view, size)
            own = [*pod.parts[at].gpus, *(gpu for gpus in pod.gpus for gpu in gpus)]
        except NoCandidateError:
            pass  # Allocate says so
        there = set(available)
        return tuple(dict.fromkeys([*required, *(gpu for gpu in own if gpu in there), *available]))[:size]

    def deliver(self, view: View, offered: Sequence[str]) -> Delivery:
        """Serves the container that the kubelet asks for. Raises NoCandidateError."""
        self.reconcile(view)
        pod, at = self.asking(view, len(offered))
        part, name = pod.parts[at], "/".join(pod.name)
        if not part.gpus:
            raise NoCandidateError(f"no GPUs are chosen for container {part.container} of pod {name}")
        for other in self._delivered.values():
            if other.slot[0] != pod.uid and not set(part.gpus).isdisjoint(other.gpus):
                both = ", ".join(sorted(set(part.gpus).intersection(other.gpus)))
                if other.slot[0] not in self._annotated:
                    gone = other.pod or f"of uid {other.slot[0]}"
                    text = f"containers of pod {gone}, which is gone, may still use {both}, chosen for pod {name}"
                    raise StillHeldError(other.slot[0], text)
                raise NoCandidateError(f"another pod of this node has {both}, chosen for pod {name}")
        ids = tuple(sorted(offered))
        # the kubelet books an id for one pod: another that was to have it and is not admitted never began
        waiting = {one.uid for one in self._pods.values() if not one.settled and one.uid != pod.uid}
        self._delivered = {
            slot: one
            for slot, one in self._delivered.items()
            if slot[0] not in waiting or set(ids).isdisjoint(one.offered)
        }
        self._delivered[pod.slot(at)] = delivery = _delivery(pod, at, ids, part.gpus)
        return delivery

    # -- what the kubelet lists -----------------------------------------------------------------------------------

    def reconcile(self, view: View) -> None:
        """Puts right who was served, by the kubelet's list."""
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
                    # from before the checkpoint: it runs, so it was given what it had reserved
                    self._delivered[slot] = _delivery(pod, at, ids, gpus)

    def _meant(self, pod: ReservedGpus, at: int, ids: tuple[str, ...], view: View) -> ReservedGpus | None:
        """The pod for which ids were delivered that the kubelet books for another one."""
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
        """Each has what the other had reserved and was served."""
        a, b = self._pods[one.uid], self._pods[other.uid]
        self.exchanged |= {a.uid: b.gpus, b.uid: a.gpus}
        served = [self._delivered.pop(b.slot(at), None) for at in range(len(b.parts))]
        for at, delivery in enumerate(served):
            if delivery is not None:
                self._delivered[a.slot(at)] = _delivery(a, at, delivery.offered, delivery.gpus)
        self.exchanged = {u: gpus for u, gpus in self.exchanged.items() if gpus != self._annotated[u].gpus}
        self._apply()


def _delivery(pod: ReservedGpus, at: int, offered: tuple[str, ...], gpus: tuple[str, ...]) -> Delivery:
    return Delivery(offered, gpus, pod.slot(at), "/".join(pod.name), pod.grace_seconds)
