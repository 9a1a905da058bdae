"""Who gets which GPUs when the kubelet asks, without saying for whom.

Source: gpu-topology.md section 10, `device-plugin`. Allocate carries no pod: candidates are the node's assigned pods
with a container of that size that has not been served, by creation and uid. What a candidate has reserved is
delivered, not what was offered. A wrong guess is a swap: reserved sets are disjoint, so the union stays the same; the
kubelet's own list tells later who got what, and the two pods exchange their reservations. Nothing is delivered by
guess: without a candidate the answer is an error.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

Slot = tuple[str, str]
"""(pod uid, container name)."""


class NoCandidateError(Exception):
    """No pod of this node waits for so many GPUs."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """One container with GPUs of a pod that is assigned to the node. gpus: ids, as the scheduler chose them."""

    uid: str
    namespace: str
    pod: str
    container: str
    gpus: tuple[str, ...]
    created: float = 0.0

    @property
    def slot(self) -> Slot:
        return self.uid, self.container


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was handed out: the ids that the kubelet offered and books, and the GPUs that the container sees."""

    offered: tuple[str, ...]
    gpus: tuple[str, ...]
    slot: Slot
    """Whom it was meant for."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A container that was given other GPUs than it has reserved: its annotations are to say what it was given."""

    one: Reserved
    """With what it had reserved."""
    gpus: tuple[str, ...]
    """What it really has."""


class Ledger:
    """What is reserved and what was delivered on one node."""

    def __init__(self, deliveries: Iterable[Delivery] = ()) -> None:
        self._reserved: dict[Slot, Reserved] = {}
        self._delivered: dict[tuple[str, ...], Delivery] = {d.offered: d for d in deliveries}
        self._served: set[Slot] = {d.slot for d in self._delivered.values()}
        self._unbooked: set[tuple[str, ...]] = set()

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """In the order of the offered ids: what a checkpoint keeps."""
        return tuple(self._delivered[key] for key in sorted(self._delivered))

    def pods(self, reserved: Iterable[Reserved]) -> None:
        """The node's assigned pods as they are now; deliveries to pods that are gone are forgotten."""
        self._reserved = {one.slot: one for one in reserved}
        self._served &= self._reserved.keys()
        for key, delivery in list(self._delivered.items()):
            if delivery.slot not in self._reserved:
                del self._delivered[key]

    def waiting(self, size: int) -> list[Reserved]:
        """Containers of that size that have not been served, the oldest pod first."""
        found = [one for one in self._reserved.values() if len(one.gpus) == size and one.slot not in self._served]
        return sorted(found, key=lambda one: (one.created, one.uid, one.container))

    def prefer(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Ids that the kubelet should offer: those of the first candidate whose GPUs are all to be had."""
        there = set(available)
        for one in self.waiting(size):
            if set(one.gpus) <= there and set(required) <= set(one.gpus):
                return one.gpus
        rest = [gpu for gpu in available if gpu not in set(required)]
        return (*required, *rest[: max(0, size - len(required))])

    def deliver(self, offered: Sequence[str]) -> Delivery:
        """Serves one container. The same ids offered again (a container that starts anew) get the same GPUs.

        Raises NoCandidateError.
        """
        ids = tuple(sorted(offered))
        known = self._delivered.get(ids)
        if known is not None:
            return known
        candidates = self.waiting(len(ids))
        if not candidates:
            raise NoCandidateError(f"no pod of this node waits for {len(ids)} GPUs (offered: {', '.join(ids)})")
        one = next((one for one in candidates if set(one.gpus) == set(ids)), candidates[0])
        for key in list(self._delivered):
            if set(key) & set(ids):  # the kubelet gives an id out once: the container that had it has ended
                del self._delivered[key]
        delivery = Delivery(ids, one.gpus, one.slot)
        self._delivered[ids] = delivery
        self._served.add(one.slot)
        return delivery

    def reconcile(self, held: Mapping[Slot, Sequence[str]]) -> list[Correction]:
        """Compares with the kubelet's list, (pod, container) -> ids it books, and puts right who has what.

        A container that got what was meant for another has those GPUs: the two exchange their reservations, here and,
        by the corrections that are returned, in their annotations.
        """
        before = dict(self._reserved)
        for slot in sorted(held):
            ids = tuple(sorted(held[slot]))
            mine = self._reserved.get(slot)
            if mine is None or not ids:
                continue
            self._served.add(slot)
            delivery = self._delivered.get(ids)
            if delivery is None:
                # from before the checkpoint: it runs, so it was given what it had reserved
                self._delivered[ids] = Delivery(ids, mine.gpus, slot)
                continue
            if delivery.slot != slot:
                if delivery.slot not in held:
                    self._served.discard(delivery.slot)
                self._delivered[ids] = Delivery(ids, delivery.gpus, slot)
            if set(mine.gpus) != set(delivery.gpus):
                self._exchange(mine, delivery.gpus)
        self._forget_unbooked({tuple(sorted(ids)) for ids in held.values()})
        return [
            Correction(before[slot], one.gpus)
            for slot, one in sorted(self._reserved.items())
            if set(one.gpus) != set(before[slot].gpus)
        ]

    def _forget_unbooked(self, booked: Collection[tuple[str, ...]]) -> None:
        """A delivery that two lists in a row do not show has ended, or never began (a list may be older than a
        delivery): whom it was meant for may ask again."""
        missing = {ids for ids in self._delivered if ids not in booked}
        for ids in sorted(missing & self._unbooked):
            self._served.discard(self._delivered.pop(ids).slot)
        self._unbooked = missing

    def _exchange(self, mine: Reserved, gpus: tuple[str, ...]) -> None:
        """`mine` has these GPUs; whoever has them reserved takes what `mine` had."""
        for other in list(self._reserved.values()):
            if set(other.gpus) == set(gpus):
                self._reserved[other.slot] = replace(other, gpus=mine.gpus)
        self._reserved[mine.slot] = replace(mine, gpus=gpus)
