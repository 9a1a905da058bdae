"""The tree of ElasticQuotas: limits in fixed units, parents, and every fault with the value that applies instead.

Source: quota-fairness.md 1 and 7. A faulty quota never affects other quotas: each fault has a defined reading that the
scheduler continues with, and a remedy for the owner. Names are unique over all namespaces; `quota_owners` decides which
of two objects counts, and which settings their author may make.
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
"""Condition of a quota with usage above its runtime."""
TOP = ""
"""Parent of the quotas at the top."""


@dataclass(frozen=True, slots=True)
class QuotaNode:
    """One ElasticQuota as it takes effect. Amounts in milli-cores of cpu and whole units of everything else."""

    name: str
    key: str
    created: float
    min: Amounts
    """Guaranteed amounts, limited to max; zeros are left out."""
    max: Amounts
    """Limit per counted resource; a resource that it does not name is unlimited."""
    weight: Amounts
    """Weight for every key of max, in thousandths of the written amount (of cores, devices, bytes)."""
    parent: str = TOP
    is_parent: bool = False
    lends: bool = True
    """True if other quotas may use its unrequested min."""
    forced: bool = False
    """True if its min need not fit into its parent's."""
    tree_id: str = ""
    total: Amounts | None = None
    """Amounts that the tree of a top quota shares (annotation total-resource); None without the annotation."""
    namespaces: tuple[str, ...] = ()
    over_since: float | None = None
    """Time since when its condition OverUsed is True, in seconds since the epoch; None while it is not."""
    closed: bool = False
    """True if its object cannot be read: its readable part may be less strict than its author meant."""
    doubts: tuple[str, ...] = ()
    """Messages on settings that cannot be read and have no effect."""

    def least(self, resource: str) -> int:
        """Returns min of a resource; a key that min lacks is 0."""
        return self.min.get(resource, 0)


@dataclass(frozen=True)
class QuotaTree:
    """All quotas that take effect, by name in natural order; `faults` in the order of the objects' keys."""

    quotas: Mapping[str, QuotaNode] = field(default_factory=dict)
    faults: tuple[QuotaFault, ...] = ()
    objects: Mapping[str, str] = field(default_factory=dict)
    """Key of an ElasticQuota that takes effect -> its name."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespace -> quota of its pods without a label."""
    settings: Settings = EVERYBODY

    @cached_property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(object, text) for each setting without effect, and for each fault."""
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
        """Returns the lowest quota from this one up that cannot be read; empty for none."""
        return next((at for at in reversed(self.path(name)) if self.quotas[at].closed), "")

    def quota_of(self, namespace: str, label: str, queue: str = "") -> str:
        """Returns the quota of a pod by its namespace, its label and the queue of its group (quota-fairness.md 1).

        label, queue: empty for none. An unknown label means the default quota. An unknown queue is ignored, because
        Volcano gives each group the queue `default`.
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
        """Returns the tenant that a namespace shares planning time with, if that is shared by quota.

        Labels of pods are ignored.
        """
        found = self.namespaces.get(namespace)
        return namespace if found is None else f"ElasticQuota {found}"

    def may_name(self, namespace: str, label: str) -> bool:
        """Returns True if pods of a namespace may name a quota in their label.

        Unless `quota.podLabels` is any, a quota is open to pods of its own namespace and of those that it lists. An
        unknown quota is then ignored, because otherwise the label would take the pod out of the namespace's quota.
        """
        if self.settings.pod_labels == "any":
            return True
        quota = self.quotas.get(label)
        return quota is not None and namespace in (quota.key.partition("/")[0], *quota.namespaces)


def over_since(obj: ElasticQuota) -> float | None:
    """Returns the time since when the condition OverUsed is True, in seconds since the epoch; None while it is not."""
    found = condition_of(obj.status.conditions, OVER_USED)
    return seconds(found.last_transition_time) if found is not None and found.status == "True" else None
