# SPDX-License-Identifier: Apache-2.0
"""Reads ElasticQuota objects as a `QuotaTree`: the limits and settings of each quota, its parent, and its faults.

An invalid setting never stops the scheduler. It is recorded as a fault, and a defined value is used in its place
(docs/rules/quota-fairness.md 7). Objects that have not changed are not read again.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import ceil

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.field_faults import key_path
from koordpy.api.key_hints import Holder
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Quantities
from koordpy.api.quantity import RawQuantity, parse_exact, quantity_text, units
from koordpy.api.reading_limits import CYCLE_NAMES, QUOTA_RESOURCES, too_long, too_many
from koordpy.api.times import seconds
from koordpy.config.configuration import Quota as Settings
from koordpy.decoding.annotation_settings import odd_settings
from koordpy.decoding.wire_json import unreadable
from koordpy.pods.object_book import object_key
from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_owners import (
    EVERYBODY,
    PARENT,
    QuotaFault,
    json_in,
    names_in,
    parent_of,
    that_count,
    trusted,
)
from koordpy.quota.quota_tree import TOP, QuotaNode, QuotaTree, over_since

ReadQuotas = dict[str, tuple[ElasticQuota, QuotaNode, tuple[QuotaFault, ...]]]
"""Key of an ElasticQuota -> (the object, its node of the tree, its faults), from the last time it was read."""


def read_quotas(
    objects: Iterable[ElasticQuota], settings: Settings = EVERYBODY, known: ReadQuotas | None = None
) -> QuotaTree:
    """Returns the tree of all ElasticQuotas. The order of the objects makes no difference.

    known: results of earlier calls with the same settings, which are used again and updated; None for no results.
    """
    return _QuotaReading(objects, settings, {} if known is None else known).tree()


class _QuotaReading:
    """One pass over the objects in the order of their rank (`that_count`), which decides which of two conflicting
    objects takes effect."""

    def __init__(self, objects: Iterable[ElasticQuota], settings: Settings, known: ReadQuotas) -> None:
        self.settings = settings
        self.quotas: dict[str, QuotaNode] = {}
        self._cycles: dict[str, tuple[list[str], int]] = {}
        """Name of a quota -> (names of the cycle of parents that it is in, from child to parent; its position in that
        list).

        The list is empty for a quota that is in no cycle.
        """
        counted, self.faults = that_count(objects, settings)
        for obj in counted:
            key = object_key(obj)
            before = known.get(key)
            if before is None or before[0] is not obj:
                told = len(self.faults)
                quota = self._read(key, obj)
                before = known[key] = obj, quota, tuple(self.faults[told:])
            else:
                self.faults += before[2]
            self.quotas[before[1].name] = before[1]
        self._check_parents()
        self._check_children()

    def tree(self) -> QuotaTree:
        """Returns the result."""
        names, namespaces = sorted(self.quotas, key=natural_key), self._namespaces()
        quotas = {name: self.quotas[name] for name in names}
        return QuotaTree(
            quotas=quotas,
            faults=tuple(sorted(self.faults, key=lambda fault: natural_key(fault.key))),
            objects={quota.key: name for name, quota in quotas.items()},
            namespaces=namespaces,
            settings=self.settings,
        )

    def _fault(self, key: str, where: str, text: str, remedy: str, *, about: str = "", excess: int = 0) -> None:
        """Records a fault. where: the field at fault."""
        self.faults.append(QuotaFault(key, where, text, remedy, about, excess))

    # -- one object ---------------------------------------------------------------------------------------------------

    def _read(self, key: str, obj: ElasticQuota) -> QuotaNode:
        """Reads one object, and records its faults."""
        meta = obj.metadata
        labels = meta.labels
        most = self._amounts(key, "spec.max", obj.spec.max)
        least = self._minimum(key, self._amounts(key, "spec.min", obj.spec.min), most)
        weight = self._annotated(key, meta.annotations, keys.QUOTA_WEIGHT, _thousandths) or {}
        return QuotaNode(
            name=meta.name,
            key=key,
            created=seconds(meta.creation_timestamp),
            min=least,
            max=most,
            weight={
                name: weight.get(name, amount if name == "cpu" else amount * 1000) for name, amount in most.items()
            },
            parent=parent_of(obj),
            is_parent=labels.get(keys.QUOTA_IS_PARENT) == "true",
            lends=labels.get(keys.QUOTA_LENDS) != "false",
            forced=labels.get(keys.QUOTA_FORCE) == "true",
            tree_id=labels.get(keys.QUOTA_TREE_ID, ""),
            total=self._annotated(key, meta.annotations, keys.QUOTA_TOTAL, units),
            namespaces=self._listed(obj),
            over_since=over_since(obj),
            closed=bool(unreadable(meta)) or max(len(obj.spec.min), len(obj.spec.max)) > QUOTA_RESOURCES,
            doubts=tuple(odd_settings(Holder.QUOTA, meta)),
        )

    def _amounts(self, key: str, where: str, raw: Quantities) -> Amounts:
        """Returns a resource list as amounts; faulty entries are recorded and left out. where: the field of the
        list."""
        out: Amounts = {}
        if said := too_many(len(raw), QUOTA_RESOURCES, "resources"):
            self._fault(key, where, said, "no more pods start in it: name fewer")
        for name, text in islice(raw.items(), QUOTA_RESOURCES):
            if name == "pods":
                said = "the number of pods is not counted, only what they request"
                self._fault(key, key_path(where, name), said, "it is ignored: leave it out")
                continue
            try:
                out[name] = units(name, text)
            except ValueError as fault:
                self._fault(key, key_path(where, name), str(fault), "it is ignored: write 8, 500m or 64Gi")
        return out

    def _minimum(self, key: str, least: Amounts, most: Amounts) -> Amounts:
        """Returns the min of a quota, at most its max, without zeros. Records faults.

        least, most: min and max as written. A resource that max does not name has no min.
        """
        out: Amounts = {}
        for name, amount in least.items():
            if name not in most:
                self._fault(key, key_path("spec.min", name), f"min names {name}, max does not", "add it to max")
                continue
            if amount > most[name]:
                text = f"min {name} {quantity_text(name, amount)} > max {quantity_text(name, most[name])}"
                remedy = "max is used as min: lower min or raise max"
                self._fault(key, key_path("spec.min", name), text, remedy, excess=amount - most[name])
            if amount:
                out[name] = min(amount, most[name])
        return out

    def _annotated(
        self, key: str, notes: Mapping[str, str], name: str, read: Callable[[str, RawQuantity], int]
    ) -> Amounts | None:
        """Returns a resource list in an annotation; None if the annotation is absent or is not a mapping.

        name: the annotation. read: function from (resource, text) to an amount; it raises ValueError for an invalid
        text.
        """
        if name not in notes:
            return None
        where, remedy = f"metadata.annotations[{name}]", 'it is ignored: write JSON such as {"cpu": 8}'
        raw = json_in(notes[name])
        if not isinstance(raw, dict):
            said = too_long(notes[name]) or f"{notes[name]!r} is not a JSON mapping of resources"
            self._fault(key, where, said, remedy)
            return None
        if said := too_many(len(raw), QUOTA_RESOURCES, "resources"):
            self._fault(key, where, said, "it is ignored: name fewer")
            return None
        out: Amounts = {}
        for resource, text in raw.items():
            try:
                if isinstance(text, bool) or not isinstance(text, (str, int, float)):
                    raise ValueError(f"{json.dumps(text)} is no quantity (as in 2, 500m, 16Gi)")
                out[resource] = read(resource, text)
            except ValueError as fault:
                self._fault(key, key_path(where, resource), str(fault), remedy)
        return out

    def _listed(self, obj: ElasticQuota) -> tuple[str, ...]:
        """Returns the namespaces with pods that belong to a quota without a label: those that it lists and has a right
        to."""
        meta = obj.metadata
        key, notes = object_key(obj), meta.annotations
        for name in (keys.QUOTA_NAMESPACES, keys.QUOTA_CHILDREN_FROM):
            if names_in(name, meta) is None:
                text = too_long(notes[name]) or f"{notes[name]!r} is not a JSON list of namespaces"
                self._fault(key, f"metadata.annotations[{name}]", text, 'it is ignored: write JSON such as ["team-a"]')
        listed = names_in(keys.QUOTA_NAMESPACES, meta) or ()
        own = listed
        if not trusted(meta.namespace, self.settings):
            own = tuple(name for name in listed if name == meta.namespace)
        if others := [name for name in listed if name not in own]:
            text = f"a quota of namespace {meta.namespace} may not list namespace {', '.join(others)}"
            remedy = (
                "it is ignored: only quotas of the configuration's quota.trustedNamespaces may list other namespaces"
            )
            where = f"metadata.annotations[{keys.QUOTA_NAMESPACES}]"
            self.faults.append(QuotaFault(key, where, text, remedy, of_rights=True))
        return own

    # -- between objects ----------------------------------------------------------------------------------------------

    def _check_parents(self) -> None:
        """Moves quotas without a valid parent to the top, and sets their min to 0, so that they guarantee nothing."""
        loose = []
        where, remedy = PARENT, "it is placed at the top with min 0: "
        for quota in self.quotas.values():
            if not quota.parent:
                continue
            parent = self.quotas.get(quota.parent)
            if parent is None:
                self._fault(
                    quota.key,
                    where,
                    f"parent {quota.parent} not found",
                    remedy + "create that quota, or correct the label",
                )
                loose.append(quota)
            elif quota.name in (circle := self._cycle(quota.name)):
                text = f"parents form a cycle: {' -> '.join([*circle, quota.name])}"
                self._fault(quota.key, where, text, remedy + "change the parent of one of them")
                loose.append(quota)
            elif not parent.is_parent:
                text = f'parent {quota.parent} lacks the label {keys.QUOTA_IS_PARENT}: "true"'
                self._fault(quota.key, where, text, remedy + "set this label on the parent, or name another parent")
                loose.append(quota)
        for quota in loose:
            self.quotas[quota.name] = replace(quota, parent=TOP, min={})

    def _cycle(self, name: str) -> list[str]:
        """Returns the names of the cycle of parents that a quota is in, starting with the quota; empty if it is in no
        cycle.

        Of a long cycle only the first `CYCLE_NAMES` names are returned, then `...`.
        """
        if name not in self._cycles:
            self._find_cycle(name)
        circle, begin = self._cycles[name]
        rest = max(0, begin + CYCLE_NAMES - len(circle))
        names = [*circle[begin : begin + CYCLE_NAMES], *circle[: min(begin, rest)]]
        return names if len(circle) <= CYCLE_NAMES else [*names, "..."]

    def _find_cycle(self, name: str) -> None:
        """Records the cycle of a quota and of all quotas above it, so that each quota is visited once."""
        way: dict[str, int] = {}
        at = name
        while at in self.quotas and at not in way and at not in self._cycles:
            way[at] = len(way)
            at = self.quotas[at].parent
        names, begin = list(way), way.get(at, len(way))
        circle = names[begin:]
        self._cycles |= {one: ([], 0) for one in names[:begin]} | {one: (circle, i) for i, one in enumerate(circle)}

    def _check_children(self) -> None:
        """Checks settings in which children and their parent must agree."""
        families: dict[str, list[QuotaNode]] = {}
        for quota in self.quotas.values():
            if quota.parent:
                families.setdefault(quota.parent, []).append(quota)
        for name, children in families.items():
            parent = self.quotas[name]
            for child in children:
                self._check_keys(child, parent)
            if not parent.forced and not any(child.forced for child in children):
                self._check_sum(parent, children)

    def _check_keys(self, child: QuotaNode, parent: QuotaNode) -> None:
        """Records a fault if a child counts other resources than its parent, or has another tree-id."""
        if child.max.keys() != parent.max.keys():
            own, above = ", ".join(sorted(child.max)) or "none", ", ".join(sorted(parent.max)) or "none"
            text = f"keys of max ({own}) differ from those of parent {parent.name} ({above})"
            self._fault(child.key, "spec.max", text, "name the same resources in both")
        if child.tree_id and child.tree_id != parent.tree_id:
            text = f"tree-id {child.tree_id} is not that of parent {parent.name} ({parent.tree_id or 'none'})"
            where = f"metadata.labels[{keys.QUOTA_TREE_ID}]"
            self._fault(child.key, where, text, "it counts in its parent's tree: give both the same tree-id")

    def _check_sum(self, parent: QuotaNode, children: list[QuotaNode]) -> None:
        """Records a fault for each resource in which the mins of the children together exceed the parent's min.

        It is recorded for one child: the first child, in the order of the objects, with which the sum exceeds the min.
        """
        for resource in sorted({name for child in children for name in child.min}):
            total, over = 0, None
            for child in children:
                total += child.least(resource)
                if over is None and total > parent.least(resource):
                    over = child
            if over is not None:
                above = quantity_text(resource, parent.least(resource))
                text = f"sum of min {quantity_text(resource, total)} > parent {parent.name} min {above}, {resource}"
                remedy = "mins are scaled within the runtime: lower them or raise the parent's"
                excess, about = total - parent.least(resource), f"children of {parent.name}"
                self._fault(over.key, key_path("spec.min", resource), text, remedy, about=about, excess=excess)

    def _namespaces(self) -> dict[str, str]:
        """Returns namespace -> quota of the namespace's pods without a label.

        It is the quota in the namespace with the same name as the namespace, else the first quota that lists the
        namespace.
        """
        listed: dict[str, QuotaNode] = {}
        for quota in self.quotas.values():
            for namespace in quota.namespaces:
                first = listed.setdefault(namespace, quota)
                if first is not quota and self.settings.pod_labels == "any":
                    text = f"namespace {namespace} is listed by ElasticQuota {first.key} already"
                    where = f"metadata.annotations[{keys.QUOTA_NAMESPACES}]"
                    self._fault(quota.key, where, text, "the older one keeps it: list it once")
        out = {namespace: quota.name for namespace, quota in listed.items()}
        for own in [quota for quota in self.quotas.values() if quota.key == f"{quota.name}/{quota.name}"]:
            other = listed.get(own.name, own)
            if other.name != own.name:
                said = f"annotation {keys.QUOTA_NAMESPACES}: namespace {own.name} belongs to ElasticQuota {own.key}"
                self.quotas[other.name] = replace(other, doubts=(*other.doubts, said))
            out[own.name] = own.name
        return out


def _thousandths(resource: str, raw: RawQuantity) -> int:
    """Returns a weight in thousandths of the resource's unit, rounded up, because a weight may be a fraction.

    Raises ValueError if it is unreadable or negative.
    """
    value = parse_exact(raw)
    if value < 0:
        raise ValueError(f"{str(raw)!r} is negative")
    return ceil(value * 1000)
