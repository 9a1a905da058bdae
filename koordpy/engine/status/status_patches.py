# SPDX-License-Identifier: Apache-2.0
"""Builds the bodies of status patches, and sends them (kube-parity.md 4.5).

There are three kinds of patches. A strategic merge patch changes single conditions of built-in types. A merge patch of
a custom resource must contain the whole list of conditions. Server-side apply changes only the fields that the field
manager owns. Bodies are built without I/O, so that tests can inspect them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import fields, replace

from koordpy.api.bounded_memory import cached
from koordpy.api.objects import Condition, ObjectMeta, Pod, Wire, condition_of
from koordpy.api.times import rfc3339
from koordpy.engine.client.api_client import ApiClient, PatchKind
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_resources import Resource

POD_SCHEDULED = "PodScheduled"
FIELD_MANAGER = "koordpy-scheduler"
"""Manager of server-side apply for statuses that other programs write, too."""
_NUMBER = re.compile(r"\d+")


def condition_for(obj: Any, type: str, status: str, reason: str, message: str) -> Condition:
    """Returns a condition with the object's current generation."""
    generation = obj.metadata.generation
    return Condition(type=type, status=status, reason=reason, message=message, observed_generation=generation)


@cached(64)
def differs_in_numbers(old: str, new: str) -> bool:
    """Returns True if two different messages differ in their numbers only: `1/3 nodes` and `2/3 nodes`."""
    return old != new and _NUMBER.sub("#", old) == _NUMBER.sub("#", new)


def condition_patch(old: Condition | None, new: Condition, *, now: float, force: bool = False) -> dict[str, Any] | None:
    """Returns the fields of a condition for a strategic merge; None if status, reason and message are unchanged.

    lastTransitionTime is included only if the status changes; otherwise the merge keeps the old time. force: True if
    `old` may be out of date, so that the condition is written in any case.
    """
    if not force and old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return None
    turned = old is None or old.status != new.status
    return condition_body(replace(new, last_transition_time=rfc3339(now)) if turned else new)


def pod_unschedulable(pod: Pod, *, reason: str, message: str, now: float, force: bool = False) -> dict[str, Any]:
    """Returns the body of a strategic merge that sets PodScheduled=False; empty if the pod has the condition already.

    reason: Unschedulable or SchedulerError; autoscalers look for exactly this condition. force: as in
    `condition_patch`.
    """
    new = condition_for(pod, POD_SCHEDULED, "False", reason, message)
    condition = condition_patch(condition_of(pod.status.conditions, POD_SCHEDULED), new, now=now, force=force)
    return {"conditions": [condition]} if condition is not None else {}


def merged_conditions(old: Iterable[Condition], changed: Iterable[Condition], *, now: float) -> list[Condition]:
    """Returns a whole list of conditions for a merge patch of a custom resource, where lists are replaced.

    Each of `changed` replaces the condition of its type, and keeps its lastTransitionTime unless the status changes.
    """
    conditions = {condition.type: condition for condition in old}
    for condition in changed:
        before = conditions.get(condition.type)
        since = before.last_transition_time if before is not None and before.status == condition.status else None
        conditions[condition.type] = replace(condition, last_transition_time=since or rfc3339(now))
    return list(conditions.values())


async def patch_status(
    client: ApiClient,
    resource: Resource,
    meta: ObjectMeta,
    status: Mapping[str, Any],
    *,
    kind: PatchKind = "merge",
) -> bool:
    """Writes fields of an object's status; a None value removes a field. Raises as the client does.

    Returns False if the object does not exist any more, or if another writer kept changing it (409). meta: metadata of
    the object. kind: `strategic` merges conditions by type, for built-in types. `apply` does not change fields of other
    managers. Both check the uid, so that an object created again under the name does not get the status of its
    predecessor. `merge` does not check the uid.
    """
    body: dict[str, Any] = {"status": status}
    if kind == "strategic":
        body["metadata"] = {"uid": meta.uid}
    elif kind == "apply":
        named = {"name": meta.name, "uid": meta.uid}
        body |= {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": named}
    path = resource.path(meta.namespace, meta.name, "status")
    try:
        await client.patch(path, body, kind=kind, field_manager=FIELD_MANAGER)
    except ApiError as error:
        # a wrong uid: a real API server replies that the field is immutable (422), others with a conflict
        if error.status in (404, 409) or (error.status == 422 and "metadata.uid" in error.message):
            return False
        raise
    return True


def status_patch(wanted: Wire, there: Wire | None) -> dict[str, Any]:
    """Returns a merge patch that turns status `there` into status `wanted`; null removes fields that are not wanted.

    there: None if the current status is not known; then the patch has each field.
    """
    new = _body(wanted)
    if there is None:
        return {**dict.fromkeys(one.encode_name for one in fields(wanted)), **new}
    old = _body(there)
    patch: dict[str, Any] = {}
    for name in dict.fromkeys((*new, *old)):
        value, before = new.get(name), old.get(name)
        if value == before:
            continue
        gone = dict.fromkeys(before.keys() - value) if isinstance(value, dict) and isinstance(before, dict) else {}
        patch[name] = {**value, **gone} if isinstance(value, dict) else value
    return patch


def _body(status: Any) -> dict[str, Any]:
    """Returns a status as it is written; counts of 0 are included."""
    counts = {one.encode_name: 0 for one in fields(status) if one.type is int}
    return {**counts, **to_builtins(status), "conditions": [*map(condition_body, status.conditions)] or None}


def condition_body(condition: Condition) -> dict[str, Any]:
    """Returns a condition as it is written; reason and message are included even if they are empty."""
    return {"reason": "", "message": "", **to_builtins(condition)}
