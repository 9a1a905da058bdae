# SPDX-License-Identifier: Apache-2.0
"""Rights on quotas: which ElasticQuotas take effect, what they may set, and which pods may name them in a label.

On a shared cluster, tenants may create ElasticQuotas in their namespaces. Without configuration, every author has all
rights (docs/rules/quota-fairness.md 1). The settings of `quota` in the configuration take rights from tenants. A
setting that its author has no right to has no effect, and the author gets a message.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordpy.api import keys
from koordpy.api.bounded_memory import once
from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.json_text import lone_surrogates
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.api.reading_limits import too_long
from koordpy.api.times import seconds
from koordpy.config.configuration import Quota as Settings
from koordpy.pods.object_book import object_key

EVERYBODY = Settings()
"""The settings without configuration: every author has all rights."""
PARENT = f"metadata.labels[{keys.QUOTA_PARENT}]"
"""The field that names a quota's parent, for messages."""


@dataclass(frozen=True, slots=True)
class QuotaFault:
    """One fault of one ElasticQuota, for the condition, the event and the report."""

    key: str
    """`namespace/name` of the ElasticQuota."""
    field: str
    """Path of the field at fault, such as `spec.min[cpu]`."""
    text: str
    """What is wrong, for the message."""
    remedy: str
    """What applies instead, and what the owner can do."""
    about: str = ""
    """Subject of the fault if it concerns several objects, such as the children of one parent; empty for one object."""
    excess: int = 0
    """Amount by which a limit is exceeded; 0 if the fault concerns no limit."""
    of_rights: bool = False
    """True if the author has no right to the setting under this cluster's configuration; elsewhere it may be valid."""

    @property
    def message(self) -> str:
        """Text of the ElasticQuota's condition and event."""
        return f"{self.field}: {self.text} ({self.remedy})"

    @property
    def place(self) -> tuple[str, str]:
        """Identity of the fault as long as it exists: it does not depend on numbers in the text."""
        return self.about or self.key, self.field


def counts_in(namespace: str, settings: Settings) -> bool:
    """Returns True if ElasticQuotas of a namespace take effect."""
    return not settings.namespaces or namespace in settings.namespaces


def uncounted(objects: Iterable[ElasticQuota], settings: Settings) -> str:
    """Returns one sentence about all ElasticQuotas outside `quota.namespaces`; empty if there are none."""
    spaces = [one.metadata.namespace for one in objects if not counts_in(one.metadata.namespace, settings)]
    if not spaces:
        return ""
    names = sorted(set(spaces), key=natural_key)
    where = f"namespace{'s' if len(names) > 1 else ''} {name_first(names)}"
    verb = "are" if len(spaces) > 1 else "is"
    found = (
        f"{count_noun(len(spaces), 'ElasticQuota')} in {where} {verb} ignored: no limit and no guarantee applies there"
    )
    return f"quota.namespaces is [{', '.join(settings.namespaces)}]: {found}"


def trusted(namespace: str, settings: Settings) -> bool:
    """Returns True if ElasticQuotas of a namespace may be at the top, below any parent, and list any namespace."""
    return not settings.trusted_namespaces or namespace in settings.trusted_namespaces


def ignored_labels(namespace: str, labels: Mapping[str, str], settings: Settings) -> list[str]:
    """Returns the keys of a pod's labels that have no effect, because its namespace has no right to set them.

    The label that names a quota is not included: `QuotaTree.may_name` decides on it.
    """
    if settings.trusts_labels_of(namespace):
        return []
    rigid = {keys.QUOTA_PREEMPTIBLE: "false", keys.DISABLE_PREEMPTIBLE: "true"}
    user = [keys.QUOTA_USER] if labels.get(keys.QUOTA_USER) else []
    return user + [key for key, value in rigid.items() if labels.get(key) == value]


def json_in(text: str) -> Any:
    """Returns the value of a JSON annotation, with floats as text; None if it is invalid JSON or too long."""
    if too_long(text):
        return None
    try:
        value = json.loads(text, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return None if lone_surrogates(text, value) else value


@once
def names_in(key: str, meta: ObjectMeta) -> tuple[str, ...] | None:
    """Returns the namespaces that an annotation lists; empty without the annotation, None if it cannot be read.

    key: the annotation, which must be a JSON list of names.
    """
    if key not in meta.annotations:
        return ()
    raw = json_in(meta.annotations[key])
    proper = isinstance(raw, list) and all(isinstance(name, str) for name in raw)
    return tuple(dict.fromkeys(raw)) if proper else None


def parent_of(obj: ElasticQuota) -> str:
    """Returns the name of the parent quota; empty at the top."""
    name = obj.metadata.labels.get(keys.QUOTA_PARENT, "")
    return "" if name == keys.ROOT_QUOTA else name


def that_count(objects: Iterable[ElasticQuota], settings: Settings) -> tuple[list[ElasticQuota], list[QuotaFault]]:
    """Returns (the ElasticQuotas that take effect, the faults of the other ElasticQuotas).

    Names are unique over all namespaces. If several objects have the same name, only the one of highest rank takes
    effect. Rank: first objects of trusted namespaces, then by the order of `quota.namespaces`, then the older object.
    The result is in the order of rank. An object of an untrusted namespace takes effect only below a parent that takes
    effect and allows the namespace.
    """
    order = {name: i for i, name in reversed(list(enumerate(settings.namespaces)))}

    def rank(obj: ElasticQuota) -> Any:
        """Returns the sort key of an object; of objects with one name, the one with the smallest key takes effect."""
        meta = obj.metadata
        age = seconds(meta.creation_timestamp), natural_key(meta.namespace), natural_key(meta.name)
        return not trusted(meta.namespace, settings), order.get(meta.namespace, 0), age

    # `level`: objects that may take effect now; `waiting`: name of a parent -> objects that take effect if it does
    found: dict[str, ElasticQuota] = {}
    faults: list[QuotaFault] = []
    waiting: dict[str, list[ElasticQuota]] = {}
    level: list[ElasticQuota] = []
    objects = [obj for obj in objects if obj.metadata.name not in keys.BUILT_IN_QUOTAS]
    # objects in namespaces without effect are not sorted, because tenants may create any number of them
    faults += [_ignored_namespace(obj) for obj in objects if not counts_in(obj.metadata.namespace, settings)]
    for obj in sorted((one for one in objects if counts_in(one.metadata.namespace, settings)), key=rank):
        if trusted(obj.metadata.namespace, settings):
            level.append(obj)
        else:
            waiting.setdefault(parent_of(obj), []).append(obj)
    while level:
        fresh = []
        for obj in level:
            if found.setdefault(obj.metadata.name, obj) is obj:
                fresh.append(obj)
            else:
                faults.append(_name_conflict(obj, found[obj.metadata.name]))
        level = []
        for parent in fresh:
            for obj in waiting.pop(parent.metadata.name, ()):
                if _allows(parent, obj.metadata.namespace):
                    level.append(obj)
                else:
                    faults.append(_not_allowed_by_parent(obj, parent))
        level.sort(key=rank)
    faults += [_without_parent(obj) for name in waiting for obj in waiting[name]]
    return sorted(found.values(), key=rank), faults


def _allows(parent: ElasticQuota, namespace: str) -> bool:
    """Returns True if a quota may have children from a namespace: the quota's namespace, or one that its annotation
    lists."""
    open_to = names_in(keys.QUOTA_CHILDREN_FROM, parent.metadata) or ()
    return namespace == parent.metadata.namespace or namespace in open_to


def _name_conflict(obj: ElasticQuota, other: ElasticQuota) -> QuotaFault:
    """Returns the fault of an object that has the same name as another object of higher rank."""
    text = f"the name {obj.metadata.name} is used by ElasticQuota {object_key(other)}"
    return QuotaFault(
        object_key(obj), "metadata.name", text, "names are unique over all namespaces: give it another name"
    )


def _ignored_namespace(obj: ElasticQuota) -> QuotaFault:
    """Returns the fault of an object in a namespace in which ElasticQuotas have no effect."""
    text = f"ElasticQuotas of namespace {obj.metadata.namespace} are ignored"
    remedy = "create it in a namespace of the configuration's quota.namespaces"
    return QuotaFault(object_key(obj), "metadata.namespace", text, remedy, of_rights=True)


def _not_allowed_by_parent(obj: ElasticQuota, parent: ElasticQuota) -> QuotaFault:
    """Returns the fault of an object with a parent that does not allow its namespace."""
    text = f"parent {object_key(parent)} does not allow children from namespace {obj.metadata.namespace}"
    remedy = f"it is ignored: have the parent's owner list the namespace in the annotation {keys.QUOTA_CHILDREN_FROM}"
    return QuotaFault(object_key(obj), PARENT, text, remedy, of_rights=True)


def _without_parent(obj: ElasticQuota) -> QuotaFault:
    """Returns the fault of an object that needs a parent, but has no parent that takes effect."""
    up = parent_of(obj)
    text = f"parent {up} does not exist or is ignored" if up else "is missing"
    remedy = "it is ignored: only quotas of the configuration's quota.trustedNamespaces may be at the top"
    return QuotaFault(object_key(obj), PARENT, text, remedy, of_rights=True)
