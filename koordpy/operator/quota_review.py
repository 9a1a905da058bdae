# SPDX-License-Identifier: Apache-2.0
"""Decides which changes of ElasticQuotas the admission webhook rejects: changes that add faults to the quota tree.

The functions are pure: they read the change, the quotas and the number of their pods. The rules of the tree are in
`quota/quota_tree.py`, which `simulate` and the condition Valid use, too. A change is rejected only for faults that it
adds, so that an invalid tree can be repaired. Rules: quota-fairness.md 7.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.field_faults import literal
from koordpy.api.natural_order import natural_key
from koordpy.config.configuration import Quota as Settings
from koordpy.decoding.wire_json import Undecodable, WireReader
from koordpy.operator.gpu_injection import ReviewError
from koordpy.quota.quota_owners import EVERYBODY, QuotaFault, counts_in
from koordpy.quota.quota_reading import read_quotas
from koordpy.quota.quota_tree import QuotaTree

OPERATIONS = ("CREATE", "UPDATE", "DELETE")
_UNBORN = "9999-12-31T23:59:59Z"
"""Creation time that a quota has before it is stored; it makes the quota the youngest."""
_MOST_NAMED = 5
"""Maximum number of children that a message names."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A change of one ElasticQuota that is under review."""

    key: str
    """`namespace/name`."""
    before: ElasticQuota | None
    """The stored object; None if it is created."""
    after: ElasticQuota | None
    """The new object; None if it is deleted."""


class _Request(msgspec.Struct, rename="camel", frozen=True):
    uid: str = ""
    operation: Any = None
    namespace: str | None = None
    object: msgspec.Raw = msgspec.Raw(b"")
    old_object: msgspec.Raw = msgspec.Raw(b"")


class _QuotaReview(msgspec.Struct):
    request: _Request = _Request()


_review, _reader = msgspec.json.Decoder(_QuotaReview).decode, WireReader(ElasticQuota)


def read_change(review: bytes) -> tuple[str, QuotaChange]:
    """Reads an AdmissionReview into (uid of the request, change). Raises ReviewError."""
    try:
        request = _review(review).request
    except (ValueError, RecursionError) as fault:
        raise ReviewError(f"{fault}") from None
    if not request.uid:
        raise ReviewError("no request with uid")
    if request.operation not in OPERATIONS:
        raise ReviewError(
            f"request.operation: must be one of {', '.join(OPERATIONS)}, got {literal(request.operation)}"
        )
    before = _quota(request.old_object, "oldObject") if request.operation != "CREATE" else None
    after = _quota(request.object, "object") if request.operation != "DELETE" else None
    one = after or before
    assert one is not None
    namespace = request.namespace or one.metadata.namespace
    if after is not None and before is None:
        after = replace(after, metadata=replace(after.metadata, creation_timestamp=_UNBORN))
    return request.uid, QuotaChange(f"{namespace}/{one.metadata.name}", before, after)


def _quota(raw: msgspec.Raw, field: str) -> ElasticQuota:
    if bytes(raw) in (b"", b"null"):
        raise ReviewError(f"request.{field}: is missing")
    try:
        return _reader.read(raw)
    except Undecodable as fault:
        raise ReviewError(f"request.{field}: {fault}") from None


def objection(
    change: QuotaChange,
    quotas: Mapping[str, ElasticQuota],
    pods: Callable[[str], int],
    settings: Settings = EVERYBODY,
) -> str:
    """Returns the reason why a change is rejected, or the empty string if it is allowed.

    quotas: every stored ElasticQuota by `namespace/name`. pods: returns the number of pods in a quota, by its name.
    """
    before, after = change.before, change.after
    if after is None:
        return _deletion(change, quotas, pods, settings)
    if after.metadata.deletion_timestamp or (before is not None and _same(before, after)):
        return ""  # the quota is being deleted, or no field changes that koordpy reads
    name, old, new = after.metadata.name, before.metadata.labels if before else {}, after.metadata.labels
    if before is not None and old.get(keys.QUOTA_TREE_ID, "") != new.get(keys.QUOTA_TREE_ID, ""):
        return f"{_label(keys.QUOTA_TREE_ID)}: cannot be changed; delete and recreate the quota"
    was, is_ = old.get(keys.QUOTA_IS_PARENT) == "true", new.get(keys.QUOTA_IS_PARENT) == "true"
    if was and not is_ and (children := _children(name, quotas)):
        return f"{_label(keys.QUOTA_IS_PARENT)}: quota {name} has children: {children}"
    if before is not None and is_ and not was and (number := pods(name)):
        return f"{_label(keys.QUOTA_IS_PARENT)}: quota {name} has pods ({number}), which a parent cannot have"
    tree = read_quotas(quotas.values(), settings)
    worse = _worse(tree, read_quotas({**quotas, change.key: after}.values(), settings), change.key)
    return "; ".join(_told(fault, change.key) for fault in worse)


def _deletion(
    change: QuotaChange, quotas: Mapping[str, ElasticQuota], pods: Callable[[str], int], settings: Settings
) -> str:
    namespace, _, name = change.key.partition("/")
    if name in keys.BUILT_IN_QUOTAS:
        return "a built-in quota cannot be deleted" if counts_in(namespace, settings) else ""
    if change.key not in read_quotas(quotas.values(), settings).objects:
        return ""  # the quota is ignored, so nothing changes
    if any(key != change.key and key.partition("/")[2] == name for key in quotas):
        return ""  # another quota with this name remains for children and pods
    if children := _children(name, quotas):
        return f"quota {name} has children: {children}"
    number = pods(name)
    return f"quota {name} has pods ({number})" if number else ""


def _same(before: ElasticQuota, after: ElasticQuota) -> bool:
    old, new = before.metadata, after.metadata
    return (before.spec, old.labels, old.annotations) == (after.spec, new.labels, new.annotations)


def _children(name: str, quotas: Mapping[str, ElasticQuota]) -> str:
    labelled = (one.metadata for one in quotas.values() if one.metadata.labels.get(keys.QUOTA_PARENT) == name)
    found = sorted((meta.name for meta in labelled if meta.name != name), key=natural_key)
    more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return ", ".join([*found[:_MOST_NAMED], *more])


def _worse(before: QuotaTree, after: QuotaTree, key: str) -> list[QuotaFault]:
    """Returns the faults that the change adds: new faults, faults that exceed a bound by more than before, and faults
    of the quota `key` with another text."""
    known = {fault.place: fault for fault in before.faults}
    out = []
    for fault in after.faults:
        old = known.get(fault.place)
        changed = old is not None and fault.key == key and not fault.excess and fault.text != old.text
        if old is None or changed or fault.excess > old.excess:
            out.append(fault)
    return out


def _told(fault: QuotaFault, key: str) -> str:
    title = "" if fault.key == key else f"ElasticQuota {fault.key}: "
    return f"{title}{fault.field}: {fault.text}"


def _label(name: str) -> str:
    return f"metadata.labels[{name}]"
