"""The workloads that are known, and which of them a pod belongs to.

Sources: workloads.md 1 and 4 (members).
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import Struct

from koordpy.api.objects import OwnerReference, Pod
from koordpy.api.reading_limits import OWNERS
from koordpy.workloads.deployment_rollouts import ROLLED, rollout_of
from koordpy.workloads.kinds.jobsets import JOBSET, jobset_by_jobs, read_jobset
from koordpy.workloads.kinds.kind_registry import GANG_KINDS
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import NOWHERE, PodSeat, Workload

NO_WORKLOAD = Workload(head=Head("", "", "", "", ""), is_kind=False)


class Lineage(Struct, frozen=True):
    """What stands above a pod, and where it belongs in that."""

    chain: tuple[Workload, ...] = ()
    """From the object that controls it, or counts it, up to the topmost that is known."""
    missing: OwnerReference | None = None
    """Who is named above these, and not known itself."""
    workload: Workload = NO_WORKLOAD
    """The one whose roles count."""
    seat: PodSeat = NOWHERE
    own: Workload | None = None
    """The ReplicaSet of the pod, where the workload stands for all of one Deployment."""

    @property
    def maker(self) -> Workload:
        """The workload whose controller makes the pod."""
        return self.workload if self.own is None else self.own

    @property
    def top(self) -> Head:
        """The topmost object: kinds that are no gangs' are passed over, and one that is only named counts."""
        heads = [one.head for one in reversed(self.chain)]
        named = self.missing
        if named is not None and named.kind in GANG_KINDS:
            return Head(named.api_version, named.kind, heads[0].namespace, named.name, named.uid)
        return next((one for one in heads if one.kind in GANG_KINDS), heads[-1])


UNKNOWN = Lineage()
K = TypeVar("K")


def unfile(index: dict[K, dict[str, Any]], key: K, member: str) -> None:
    """Takes a member out from under a key, which goes with the last one."""
    members = index.get(key, {})
    members.pop(member, None)
    if not members:
        index.pop(key, None)


class Known:
    """Workloads by uid, and by the pods that they name."""

    def __init__(self, pod_at: Callable[[str], Pod | None]) -> None:
        """pod_at: a pod by `namespace/name`, for on a chain may stand pods (a leader's StatefulSet)."""
        self._pod_at = pod_at
        self.watched: frozenset[str] = frozenset()
        """Kinds whose objects come by themselves: those that have not come are not there."""
        self._by_uid: dict[str, Workload] = {}
        self._under: dict[str, dict[str, None]] = {}
        """uid of an owner -> uids of workloads that it controls."""
        self._rollouts: dict[str, Workload] = {}
        """uid of an owner -> its ReplicaSets as one workload."""
        self._stale: set[str] = set()
        """uids of JobSets that are to be read anew, for their Jobs are others."""
        self._named: dict[str, dict[str, Workload]] = {}
        """Pod -> by uid, the workloads that name it."""

    def put(self, workload: Workload) -> Workload | None:
        """Takes a workload as it is now; what it was."""
        head = workload.head
        old = self.drop(head.uid)
        self._enter(workload)
        if head.owner is not None and head.owner.uid:
            self._under.setdefault(head.owner.uid, {})[head.uid] = None
            self._stale.add(head.owner.uid)
            self._rollouts.pop(head.owner.uid, None)
        if head.uid in self._under:
            self._stale.add(head.uid)
        for key in workload.members:
            self._named.setdefault(key, {})[head.uid] = workload
        return old

    def _enter(self, workload: Workload) -> None:
        self._by_uid[workload.head.uid] = workload

    def drop(self, uid: str) -> Workload | None:
        """Forgets a workload; what it was."""
        old = self._by_uid.pop(uid, None)
        if old is None:
            return None
        if old.head.owner is not None and old.head.owner.uid in self._under:
            self._stale.add(old.head.owner.uid)
            self._rollouts.pop(old.head.owner.uid, None)
            unfile(self._under, old.head.owner.uid, uid)
        self._stale.add(uid)
        for key in old.members:
            unfile(self._named, key, uid)
        return old

    def watch(self, kinds: frozenset[str]) -> None:
        """Takes which kinds come by themselves now."""
        self.watched = kinds
        self._stale.update(self._under)

    def get(self, uid: str) -> Workload | None:
        """A workload by its uid. A JobSet is read with its Jobs that are there, and by them alone where no JobSets
        come."""
        if uid in self._stale:
            self._stale.discard(uid)
            self._read_jobset(uid)
        return self._by_uid.get(uid)

    def _read_jobset(self, uid: str) -> None:
        known = self._by_uid.get(uid)
        if known is not None and known.head.kind != JOBSET:
            return
        below = (one for one in map(self._by_uid.get, self._under.get(uid, ())) if one is not None)
        jobs = {(one.head.namespace, one.head.name): one for one in below if one.source is not None}
        if known is not None and known.source is not None:
            self._enter(read_jobset(known.source, known.head, jobs))
        elif jobs and JOBSET not in self.watched and (told := jobset_by_jobs(jobs)) is not None:
            self._enter(told)
        else:
            self._by_uid.pop(uid, None)

    def below(self, uid: str) -> tuple[str, ...]:
        """uids of the workloads that an object controls itself."""
        return tuple(self._under.get(uid, ()))

    def all(self) -> Iterator[Workload]:
        return filter(None, map(self.get, list(self._by_uid)))

    def finished(self) -> Iterator[str]:
        """`namespace/name` of workloads that are over."""
        return (one.head.key for one in self._by_uid.values() if one.note == "finished")

    def find(self, owner: OwnerReference, namespace: str) -> Workload | None:
        """The object that an ownerReference names."""
        return self.get(owner.uid)

    def _holder(self, owner: OwnerReference, namespace: str) -> Pod | None:
        """The pod that controls something: a leader owns its workers' StatefulSet."""
        pod = self._pod_at(f"{namespace}/{owner.name}") if owner.kind == "Pod" else None
        return pod if pod is not None and pod.metadata.uid == owner.uid else None

    def _held_by(self, owner: OwnerReference, namespace: str) -> OwnerReference | None:
        """Who controls a pod that controls something."""
        pod = self._holder(owner, namespace)
        above = pod.metadata.controller if pod is not None else None
        return above if above is not None and above.kind == "StatefulSet" and above != owner else None

    def _claims(self, pod: Pod) -> Workload | None:
        """Who counts a pod whatever controls it."""
        named = self._named.get(pod.key)
        return named[min(named)] if named is not None else None

    def lineage(self, pod: Pod) -> Lineage:
        """What stands above a pod."""
        owner, first = pod.metadata.controller, self._claims(pod)
        chain, missing = self._climb(first.head.owner if first is not None else owner, pod.metadata.namespace, first)
        workload = next((one for one in reversed(chain) if one.roles), NO_WORKLOAD)
        seat = workload.seat(pod) if workload.seat is not None else None
        if seat is None:
            return Lineage(chain, missing)
        if (rollout := self.rollout(workload)) is None:
            return Lineage(chain, missing, workload, seat)
        at = next(i for i, one in enumerate(chain) if one is workload) + 1
        return Lineage((*chain[:at], rollout, *chain[at:]), missing, rollout, seat, workload)

    def rollout(self, workload: Workload) -> Workload | None:
        """All ReplicaSets of the object that controls this one, as one workload; None for any other workload."""
        owner = workload.head.owner
        if workload.head.kind not in ROLLED or owner is None or not owner.uid:
            return None
        found = self._rollouts.get(owner.uid)
        if found is None:
            below = filter(None, map(self._by_uid.get, self.below(owner.uid)))
            sets = [one for one in below if one.head.kind == workload.head.kind]
            if not sets:
                return None
            found = self._rollouts[owner.uid] = rollout_of(sets, owner.uid)
        return found

    def _climb(
        self, owner: OwnerReference | None, namespace: str, *below: Workload | None
    ) -> tuple[tuple[Workload, ...], OwnerReference | None]:
        """(what is known from `below` up, and who is named above that)."""
        chain = [*filter(None, below)]
        for _ in range(OWNERS):
            if owner is None:
                break
            found = self.find(owner, namespace)
            above = found.head.owner if found is not None else self._held_by(owner, namespace)
            if any(one is found for one in chain) or (found is None and above is None):
                break
            chain += [found] if found is not None else []
            owner = above
        return tuple(chain), owner
