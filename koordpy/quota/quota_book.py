# SPDX-License-Identifier: Apache-2.0
"""The quota and user of every pod, and the usage and demand of each quota, user and queue (quota-fairness.md 1).

`QuotaBook` follows watch events. Pods are grouped by the few labels that decide their quota and user (`Owner`). So
50,000 pods are only some hundred sums, and a new or deleted quota moves sums instead of pods. `Quotas` are the sums of
a snapshot. `QuotaUse` adds the changes of a draft to them: every placement, eviction and undo.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.key_hints import Holder
from koordpy.config.configuration import Quota as Settings
from koordpy.decoding.annotation_settings import odd_settings
from koordpy.decoding.wire_json import unreadable
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.pods.tally import Tally
from koordpy.quota.quota_owners import ignored_labels
from koordpy.quota.quota_reading import ReadQuotas, read_quotas
from koordpy.quota.quota_tree import QuotaTree, over_since

COUNT = "pods"
"""Key for the number of pods in sums of requests."""
CARDS = "cards"
"""Key for accelerators, in hundredths of a device, in sums of requests. Each device is counted once, even if a pod
requests it by several resource names."""

_NOTHING: Mapping[str, int] = {}
_DEVICES = frozenset(keys.ACCELERATORS)
K = TypeVar("K")


def device_hundredths(requests: Mapping[str, int]) -> int:
    """Returns the accelerators of a request, in hundredths of a device: the sum over all resource names."""
    return sum(
        requests[name] * (1 if name in keys.HUNDREDTHS else 100) for name in keys.ACCELERATORS if name in requests
    )


def card_hundredths(amounts: Mapping[str, int]) -> int:
    """Returns the accelerators of one node or pod, in hundredths of a device.

    Several GPU resource names denote the same devices, so the largest of their amounts counts; likewise for NPUs.
    """
    gpus = npus = 0
    for name, amount in amounts.items():
        if name in _DEVICES and amount:
            amount *= 1 if name in keys.HUNDREDTHS else 100
            if name in keys.GPU_RESOURCES:
                gpus = max(gpus, amount)
            else:
                npus = max(npus, amount)
    return gpus + npus


class ShareQueue(NamedTuple):
    """A tenant: an ElasticQuota (`quota` is set) or a user (`user` is set).

    In modes exact and kai, these are the queues.
    """

    quota: str
    user: str = ""


Sums = Mapping[str, Mapping[str, int]]
"""Name -> resource -> amount."""


@dataclass(frozen=True)
class Quotas:
    """Quotas and users of one snapshot, with usage and demand.

    Cpu is in milli-cores, other resources in whole units.
    """

    tree: QuotaTree = field(default_factory=QuotaTree)
    total: Amounts = field(default_factory=dict)
    """Allocatable of all nodes that are not being deleted."""
    usage: Mapping[Owner, Mapping[str, int]] = field(default_factory=dict)
    """Usage: owner -> sum of the requests of assigned pods, with their number under COUNT."""
    demand: Mapping[Owner, Mapping[str, int]] = field(default_factory=dict)
    """Owner -> sum of the requests of pending pods, with their number under COUNT. Only pods of koordpy's schedulers
    without scheduling gates."""
    cards: int = 0
    """Accelerators of all nodes that are not being deleted, in hundredths of a device; each device is counted once."""

    # -- quota and user of a pod --------------------------------------------------------------------------------------

    def quota_of(self, pod: PodInfo) -> str:
        """Returns the name of a pod's quota; the default or system quota if no other applies."""
        return self._quota(pod.owner)

    def user_of(self, pod: PodInfo) -> str:
        """Returns the user of a pod: by its label, else its quota (unless that is built in), else its namespace."""
        return self._users[pod.owner]

    def queue_of(self, pod: PodInfo) -> ShareQueue:
        """Returns the queue of a pod in the modes exact and kai."""
        return self._queues[pod.owner]

    def has_other_tenants(self, pod: PodInfo) -> bool:
        """Returns True if pods of other users or queues than that of `pod` are assigned to nodes. O(owners)."""
        user, queue = self._users[pod.owner], self._queues[pod.owner]
        return any(self._users[owner] != user or self._queues[owner] != queue for owner in self.usage)

    def unknown(self, pod: PodInfo) -> str:
        """Returns the quota that the pod's label names, if no such quota exists; else empty."""
        label = pod.pod.metadata.labels.get(keys.QUOTA_NAME, "")
        return label if label and label not in self.tree.quotas and label not in keys.BUILT_IN_QUOTAS[:2] else ""

    def ignored(self, pod: PodInfo) -> list[str]:
        """Returns a message for each of a pod's labels that has no effect, because the namespace may not set it."""
        namespace, labels = pod.namespace, pod.pod.metadata.labels
        unheard = ignored_labels(namespace, labels, self.tree.settings)
        said = [f"label {key} is ignored on pods of namespace {namespace}" for key in unheard]
        name = labels.get(keys.QUOTA_NAME, "")
        if name and not self.unknown(pod) and not self.tree.may_name(namespace, name):
            text = f"label {keys.QUOTA_NAME}: pods of namespace {namespace} may not use quota {name}"
            said.append(f"{text}: the pod counts in quota {self.quota_of(pod)}")
        return said

    def _quota(self, owner: Owner) -> str:
        """Returns the name of the quota of an owner's pods."""
        return self.tree.quota_of(owner.namespace, owner.quota, owner.queue)

    @cached_property
    def _users(self) -> "_OwnerCache[str]":
        """Owner -> user of its pods."""

        def user(owner: Owner) -> str:
            quota = self._quota(owner)
            return owner.user or (owner.namespace if quota in keys.BUILT_IN_QUOTAS else quota)

        return _OwnerCache(user)

    @cached_property
    def _queues(self) -> "_OwnerCache[ShareQueue]":
        """Owner -> queue of its pods in the modes exact and kai."""

        def queue(owner: Owner) -> ShareQueue:
            quota = self._quota(owner)
            return ShareQueue("", self._users[owner]) if quota in keys.BUILT_IN_QUOTAS else ShareQueue(quota)

        return _OwnerCache(queue)

    # -- sums ---------------------------------------------------------------------------------------------------------

    @cached_property
    def own_used(self) -> Sums:
        """Quota (also built-in) -> requests of the assigned pods that are directly in it."""
        return _summed((self._quota(owner), usage) for owner, usage in self.usage.items())

    @cached_property
    def own_waiting(self) -> Sums:
        """Quota (also built-in) -> requests of the pending pods that are directly in it."""
        return _summed((self._quota(owner), asked) for owner, asked in self.demand.items())

    @cached_property
    def used(self) -> Sums:
        """Quota -> requests of the assigned pods in it and below it."""
        return self._upwards(self.own_used)

    @cached_property
    def rigid_used(self) -> Sums:
        """Quota -> the part of `used` by non-preemptible pods."""
        return self._upwards(_summed((self._quota(one), usage) for one, usage in self.usage.items() if one.rigid))

    @cached_property
    def users(self) -> Sums:
        """User -> requests of its assigned pods."""
        return _summed((self._users[owner], usage) for owner, usage in self.usage.items())

    @cached_property
    def users_waiting(self) -> Sums:
        """User -> requests of its pending pods."""
        return _summed((self._users[owner], asked) for owner, asked in self.demand.items())

    @cached_property
    def users_sharing(self) -> Sums:
        """User -> requests of its assigned pods, without pods of the system quota."""
        return _summed((self._users[owner], usage) for owner, usage in self._sharing())

    @cached_property
    def shared(self) -> Amounts:
        """Total that users or queues share: all nodes less usage of the system quota (quota-fairness.md 3)."""
        system = self.own_used.get(keys.SYSTEM_QUOTA, _NOTHING)
        return {name: max(0, amount - system.get(name, 0)) for name, amount in self.total.items() if name != COUNT}

    @cached_property
    def shared_cards(self) -> int:
        """Accelerators that users share, in hundredths: all nodes less usage of the system quota."""
        return max(0, self.cards - self.own_used.get(keys.SYSTEM_QUOTA, _NOTHING).get(CARDS, 0))

    @cached_property
    def queues(self) -> Mapping[ShareQueue, Mapping[str, int]]:
        """Queue -> requests of its assigned pods, without pods of the system quota, which reduce the total instead."""
        return _summed((self._queues[owner], usage) for owner, usage in self._sharing())

    @cached_property
    def queues_waiting(self) -> Mapping[ShareQueue, Mapping[str, int]]:
        """Queue -> requests of its pending pods."""
        return _summed((self._queues[owner], asked) for owner, asked in self.demand.items())

    def _sharing(self) -> Iterator[tuple[Owner, Mapping[str, int]]]:
        """Yields the entries of `usage`, except those of pods of the system quota."""
        return ((owner, usage) for owner, usage in self.usage.items() if self._quota(owner) != keys.SYSTEM_QUOTA)

    def _upwards(self, own: Sums) -> Sums:
        """Returns sums over each quota and all quotas below it. Built-in quotas are not in the tree, so they are
        unchanged."""
        out: dict[str, Amounts] = {name: dict(amounts) for name, amounts in own.items()}
        for name in reversed(self.tree.downwards):
            parent = self.tree.quotas[name].parent
            if parent and name in out:
                add_amounts(out.setdefault(parent, {}), out[name])
        return out


class _OwnerCache(dict[Owner, K]):
    """A cache of one value per owner."""

    def __init__(self, find: Callable[[Owner], K]) -> None:
        self._find = find

    def __missing__(self, owner: Owner) -> K:
        """Cache: owner -> all sums below in which its pods count. These sums are changes relative to the snapshot."""
        found = self[owner] = self._find(owner)
        return found


class QuotaUse:
    """Usage of quotas, users and queues: that of a snapshot, with the changes of a draft added.

    `change` with the opposite sign undoes a change.
    """

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._sums: dict[Owner, list[Amounts]] = {}
        """Owner -> all of the following sums in which its pods count; a cache. The sums are changes to the snapshot."""
        self._used: dict[str, Amounts] = {}
        self._rigid: dict[str, Amounts] = {}
        self._users: dict[str, Amounts] = {}
        self._queues: dict[ShareQueue, Amounts] = {}
        self.losses = 0
        """Number of pods removed so far. If it has grown, usage may have fallen, and the queues must be sorted
        again."""

    def change(self, pod: PodInfo, sign: int) -> None:
        """Counts a pod that was placed (sign 1) or removed (sign -1)."""
        owner = pod.owner
        self.losses += sign < 0
        sums = self._sums.get(owner)
        if sums is None:
            sums = self._sums[owner] = self._find_sums(pod)
        for name, amount in pod.charged.items():
            amount *= sign
            for total in sums:
                total[name] = total.get(name, 0) + amount
        if cards := sign * card_hundredths(pod.charged):
            for total in sums:
                total[CARDS] = total.get(CARDS, 0) + cards

    def _find_sums(self, pod: PodInfo) -> list[Amounts]:
        """Returns the sums in which a pod counts: its quota and those above it, its user, and its queue."""
        quota = self.quotas.quota_of(pod)
        path = self.quotas.tree.path(quota) or (quota,)
        sums = [self._used.setdefault(name, {}) for name in path]
        if pod.owner.rigid:
            sums += [self._rigid.setdefault(name, {}) for name in path]
        sums.append(self._users.setdefault(self.quotas.user_of(pod), {}))
        sums.append(self._queues.setdefault(self.quotas.queue_of(pod), {}))
        return sums

    def used(self, quota: str, resource: str) -> int:
        """Returns the usage of a resource by pods in a quota and below it."""
        return _sum_of(self.quotas.used.get(quota), self._used.get(quota), resource)

    def rigid_used(self, quota: str, resource: str) -> int:
        """Returns the part of `used` by non-preemptible pods."""
        return _sum_of(self.quotas.rigid_used.get(quota), self._rigid.get(quota), resource)

    def user(self, user: str, resource: str) -> int:
        """Returns the usage of a resource by a user's pods."""
        return _sum_of(self.quotas.users.get(user), self._users.get(user), resource)

    def queue(self, queue: ShareQueue, resource: str) -> int:
        """Returns the usage of a resource by pods of a queue; for a quota, including the quotas below it."""
        if queue.quota:
            return self.used(queue.quota, resource)
        return _sum_of(self.quotas.queues.get(queue), self._queues.get(queue), resource)


class QuotaBook:
    """ElasticQuotas and sums by owner, updated per event. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.objects: dict[str, ElasticQuota] = {}
        """ElasticQuotas by `namespace/name`."""
        self._read: ReadQuotas = {}
        """Results of reading the objects, so that only changed objects are read again."""
        self._tree: QuotaTree | None = read_quotas((), settings, self._read)
        self._held: Tally[Owner, str] = Tally()
        """Requests of assigned pods by owner."""
        self._waiting: Tally[Owner, str] = Tally()
        """Requests of pending pods by owner."""
        self.version = 0
        """Grows with every change of a pod or ElasticQuota, including an object's status."""
        self.tree_version = 0
        """Grows with every change after which the tree must be read again."""

    def put(self, quota: ElasticQuota) -> None:
        """Adds or replaces an ElasticQuota. If only its status has changed, the tree is not read again."""
        key = object_key(quota)
        self.version += 1
        old = self.objects.get(key)
        self.objects[key] = quota
        if old is None or (old.spec, _marks(old)) != (quota.spec, _marks(quota)):
            self._tree = None
            self.tree_version += 1

    def drop(self, key: str) -> None:
        """Removes an ElasticQuota, if it is known. key: `namespace/name`."""
        if self.objects.pop(key, None) is not None:
            self._read.pop(key, None)
            self.version += 1
            self.tree_version += 1
            self._tree = None

    @property
    def tree(self) -> QuotaTree:
        """The quotas that take effect. The tree is read again only after a change of an ElasticQuota."""
        if self._tree is None:
            self._tree = read_quotas(self.objects.values(), self.settings, self._read)
        return self._tree

    def account(self, pod: PodInfo, sign: int) -> None:
        """Adds (sign 1) or removes (sign -1) an assigned pod.

        A member on a lost node does not count (repair.md 4.1).
        """
        if not pod.lost:
            self._count(self._held, pod, pod.charged, sign)

    def wait(self, pod: PodInfo, sign: int) -> None:
        """Adds (sign 1) or removes (sign -1) a pending pod of koordpy's schedulers."""
        self._count(self._waiting, pod, pod.demanded, sign)

    def view(self, total: Amounts, cards: int) -> Quotas:
        """Returns the quotas and sums at this moment.

        total: allocatable of all nodes that are not being deleted. cards: their accelerators, in hundredths.
        """
        return Quotas(self.tree, total, self._held.frozen(), self._waiting.frozen(), cards)

    def _count(self, tally: Tally[Owner, str], pod: PodInfo, amounts: Amounts, sign: int) -> None:
        """Adds (sign 1) or removes (sign -1) a pod in a tally by owner."""
        self.version += 1
        tally.add_all(pod.owner, in_sums(amounts), sign)


def in_sums(amounts: Amounts) -> Amounts:
    """Returns the amounts of one pod in the form of `Quotas.usage`, with 1 under COUNT and accelerators under CARDS."""
    return {COUNT: 1, CARDS: card_hundredths(amounts), **amounts}


def _marks(quota: ElasticQuota) -> object:
    """Returns the parts of an ElasticQuota's metadata and status that affect the tree."""
    meta = quota.metadata
    said = {**meta.annotations, **meta.labels}
    own = {key: text for key, text in said.items() if key.startswith(keys.QUOTA_PREFIX)}
    doubts = odd_settings(Holder.QUOTA, meta)
    return meta.creation_timestamp, own, doubts, unreadable(meta), over_since(quota)


def _sum_of(usage: Mapping[str, int] | None, changed: Mapping[str, int] | None, resource: str) -> int:
    """Returns the amount in the snapshot plus the change on the draft; None counts as 0."""
    return (usage.get(resource, 0) if usage else 0) + (changed.get(resource, 0) if changed else 0)


def _summed(parts: Iterable[tuple[K, Mapping[str, int]]]) -> dict[K, Amounts]:
    """Returns key -> sum of the amounts of all parts with this key."""
    out: dict[K, Amounts] = {}
    for name, amounts in parts:
        usage = out.get(name)
        if usage is None:
            out[name] = dict(amounts)
        else:
            add_amounts(usage, amounts)
    return out
