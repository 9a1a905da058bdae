"""ElasticQuotas as a tree: limits in fixed units, who is whose parent, and every fault with what counts in its place.

Source: quota-fairness.md 1 and 7. A faulty quota never takes the others down: each fault has a reading that
the scheduler works on with, and a remedy for the owner. Names are unique over all namespaces; which of two counts, and
whose word counts at all, is quota_owners' to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.objects import condition_of
from koordpy.api.times import seconds
from koordpy.config.configuration import Quota as Settings
from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_owners import (
    EVERYBODY,
    QuotaFault,
)

OVER_USED = "OverUsed"
"""Condition of a quota whose use is above its runtime."""
TOP = ""
"""Parent of the quotas at the top."""


@dataclass(frozen=True, slots=True)
class QuotaNode:
    """One ElasticQuota as it counts. Amounts in milli-cores of cpu and whole units of everything else.

    max: limit per counted resource; a resource that it does not name is free. min: within max, zeros left out.
    weight: for every key of max, in thousandths of what is written (of cores, devices, bytes). total: of a top quota,
    what its own tree shares (annotation total-resource).
    """

    name: str
    key: str
    created: float
    min: Amounts
    max: Amounts
    weight: Amounts
    parent: str = TOP
    is_parent: bool = False
    lends: bool = True
    forced: bool = False
    tree_id: str = ""
    total: Amounts | None = None
    namespaces: tuple[str, ...] = ()
    over_since: float | None = None
    """Since when its condition OverUsed is True; None while it is not."""
    closed: bool = False
    """Whether its object cannot be read: what it says now may be less than what counts."""
    doubts: tuple[str, ...] = ()
    """Settings that cannot be read and decide nothing."""

    def least(self, resource: str) -> int:
        """min of a resource; a key that min lacks is 0."""
        return self.min.get(resource, 0)


@dataclass(frozen=True)
class QuotaTree:
    """All quotas that count, by name in natural order; `faults` in the order of the objects' keys."""

    quotas: Mapping[str, QuotaNode] = field(default_factory=dict)
    faults: tuple[QuotaFault, ...] = ()
    objects: Mapping[str, str] = field(default_factory=dict)
    """Key of an ElasticQuota that counts -> its name."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespace -> quota of its pods without a label."""
    settings: Settings = EVERYBODY

    @cached_property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(object, text) of what they say in vain, and of what is wrong with them."""
        doubts = ((quota.key, text) for quota in self.quotas.values() for text in quota.doubts)
        faults = ((fault.key, fault.told) for fault in self.faults)
        return tuple((f"ElasticQuota/{key}", text) for key, text in (*doubts, *faults))

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """Name of a quota (TOP for none) -> its children in natural name order."""
        out: dict[str, list[str]] = {}
        for quota in self.quotas.values():
            out.setdefault(quota.parent, []).append(quota.name)
        return {name: tuple(below) for name, below in out.items()}

    @cached_property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """Name -> names from the top down to it."""
        out: dict[str, tuple[str, ...]] = {}
        for name in self.downwards:
            parent = self.quotas[name].parent
            out[name] = (*out[parent], name) if parent else (name,)
        return out

    @cached_property
    def downwards(self) -> tuple[str, ...]:
        """Every name, parents before children."""
        out = list(self.children.get(TOP, ()))
        for name in out:
            out.extend(self.children.get(name, ()))
        return tuple(out)

    def path(self, name: str) -> tuple[str, ...]:
        """Names from the top down to a quota; empty for the built-in ones, which have no limit and no place."""
        return self.paths.get(name, ())

    def closed(self, name: str) -> str:
        """The lowest quota from this one up that cannot be read; empty for none."""
        return next((at for at in reversed(self.path(name)) if self.quotas[at].closed), "")

    def quota_of(self, namespace: str, label: str, queue: str = "") -> str:
        """Quota of a pod by its namespace, its label and the queue of its group, empty for none (quota-fairness.md 1).

        A label that nobody knows means the default quota, a queue that nobody knows means nothing: Volcano gives each
        group the queue `default`.
        """
        if label and self.may_name(namespace, label):
            known = label in self.quotas or label in keys.BUILT_IN_QUOTAS
            return label if known and label != keys.ROOT_QUOTA else keys.DEFAULT_QUOTA
        if queue in self.quotas and self.may_name(namespace, queue):
            return queue
        found = self.namespaces.get(namespace)
        if found is not None:
            return found
        return keys.SYSTEM_QUOTA if namespace == keys.SYSTEM_NAMESPACE else keys.DEFAULT_QUOTA

    def tenant_of(self, namespace: str) -> str:
        """Who has one part of planning time with the namespace where that is shared by quota: what its pods say of
        theirs is no matter."""
        found = self.namespaces.get(namespace)
        return namespace if found is None else f"ElasticQuota {found}"

    def may_name(self, namespace: str, label: str) -> bool:
        """Whether the label of a pod counts. Where quotas say who may name them, pods of their own namespace may and of
        those that they list. One that nobody knows says nothing then: else it would lead out of the namespace's own
        quota."""
        if self.settings.pod_labels == "any":
            return True
        quota = self.quotas.get(label)
        return quota is not None and namespace in (quota.key.partition("/")[0], *quota.namespaces)


def over_since(obj: ElasticQuota) -> float | None:
    """Since when the condition OverUsed of an object is True, in seconds since the epoch."""
    found = condition_of(obj.status.conditions, OVER_USED)
    return seconds(found.last_transition_time) if found is not None and found.status == "True" else None
