# SPDX-License-Identifier: Apache-2.0
"""The tree of ElasticQuotas as they take effect: min, max, weight and parent of each, and the quota of each namespace.

Source: docs/rules/quota-fairness.md 1 and 7. These are plain values; `quota_reading.py` reads them from the objects. A
faulty object never affects other quotas: a defined value is used instead, and the fault is listed with a remedy for the
owner. Names are unique over all namespaces. `quota_owners.py` decides which of two objects with the same name takes
effect, and which settings its author has a right to.
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
"""Type of the condition of an ElasticQuota with usage above its runtime."""
TOP = ""
"""Parent of the quotas at the top."""


@dataclass(frozen=True, slots=True)
class QuotaNode:
    """One ElasticQuota as it takes effect. Cpu is in milli-cores, other resources in whole units."""

    name: str
    key: str
    """`namespace/name` of the object."""
    created: float
    """Creation of the object, in seconds since the epoch."""
    min: Amounts
    """Guaranteed amounts, at most max; zeros are left out."""
    max: Amounts
    """Limit for each counted resource; resources that it does not name are unlimited."""
    weight: Amounts
    """Weight for every key of max, in thousandths of the written amount (of cores, devices, bytes)."""
    parent: str = TOP
    """Name of the parent quota; `TOP` for a quota at the top."""
    is_parent: bool = False
    """True if the quota may have children. Its own pods are not scheduled then."""
    lends: bool = True
    """True if other quotas may use the part of min that the quota does not request."""
    forced: bool = False
    """True if the sum of the children's mins may exceed the parent's min."""
    tree_id: str = ""
    """Id of a separate tree with its own total; empty for the default tree."""
    total: Amounts | None = None
    """Amounts that the tree below this top quota shares (annotation total-resource); None without the annotation."""
    namespaces: tuple[str, ...] = ()
    """Namespaces with pods that belong to the quota if they have no quota label."""
    over_since: float | None = None
    """Time from which the condition OverUsed is True, in seconds since the epoch; None if it is not True."""
    closed: bool = False
    """True if the object cannot be read completely. Then no more pods start in the quota, because the readable part may
    be less strict than the author intended."""
    doubts: tuple[str, ...] = ()
    """Messages about settings that cannot be read and have no effect."""

    def least(self, resource: str) -> int:
        """Returns the min of a resource; 0 if min does not name it."""
        return self.min.get(resource, 0)


@dataclass(frozen=True)
class QuotaTree:
    """All quotas that take effect."""

    quotas: Mapping[str, QuotaNode] = field(default_factory=dict)
    """Name -> quota, in natural order of names."""
    faults: tuple[QuotaFault, ...] = ()
    """Faults of all ElasticQuotas, in the order of the objects' keys."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Key of an ElasticQuota that takes effect -> its name."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespace -> name of the quota of its pods without a label."""
    settings: Settings = EVERYBODY
    """The part `quota` of the configuration."""

    @cached_property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(object, text) for each setting without effect, and for each fault."""
        doubts = ((quota.key, text) for quota in self.quotas.values() for text in quota.doubts)
        faults = ((fault.key, fault.message) for fault in self.faults)
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
        """Name of a quota -> names from the top down to it."""
        out: dict[str, tuple[str, ...]] = {}
        for name in self.downwards:
            parent = self.quotas[name].parent
            out[name] = (*out[parent], name) if parent else (name,)
        return out

    @cached_property
    def downwards(self) -> tuple[str, ...]:
        """All names, parents before children."""
        out = list(self.children.get(TOP, ()))
        for name in out:
            out.extend(self.children.get(name, ()))
        return tuple(out)

    def path(self, name: str) -> tuple[str, ...]:
        """Returns the names from the top down to a quota; empty for the built-in quotas, which are not in the tree."""
        return self.paths.get(name, ())

    def closed(self, name: str) -> str:
        """Returns the nearest quota that cannot be read, from the given quota upwards; empty if there is none."""
        return next((at for at in reversed(self.path(name)) if self.quotas[at].closed), "")

    def quota_of(self, namespace: str, label: str, queue: str = "") -> str:
        """Returns the quota of a pod by its namespace, its label and the queue of its group
        (docs/rules/quota-fairness.md 1).

        label, queue: empty if the pod has none. A label that names no quota means the default quota. A queue that is
        not a quota is ignored, because Volcano gives each group the queue `default`.
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
        """Returns the tenant that is charged for planning time of a namespace, with `planning.shareBy: quota`.

        It is the quota of the namespace, else the namespace itself. Labels of pods are ignored.
        """
        found = self.namespaces.get(namespace)
        return namespace if found is None else f"ElasticQuota {found}"

    def may_name(self, namespace: str, label: str) -> bool:
        """Returns True if pods of a namespace may name a quota in their label.

        With `quota.podLabels: any`, every pod may. Otherwise only pods of the quota's namespace, and of the namespaces
        that the quota lists. A label that names no quota is then ignored, because otherwise it would take the pod out
        of the namespace's quota.
        """
        if self.settings.pod_labels == "any":
            return True
        quota = self.quotas.get(label)
        return quota is not None and namespace in (quota.key.partition("/")[0], *quota.namespaces)


def over_since(obj: ElasticQuota) -> float | None:
    """Returns the time from which the condition OverUsed is True, in seconds since the epoch; None if it is not
    True."""
    found = condition_of(obj.status.conditions, OVER_USED)
    return seconds(found.last_transition_time) if found is not None and found.status == "True" else None
