"""Status patches: what is written besides Bindings (kube-parity.md 4.5), as bodies and as calls.

The bodies are made without I/O, so that tests and `--dry-run` see what would be sent.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import fields, replace

from koordpy.api.bounded_memory import remembered
from koordpy.api.objects import Condition, ObjectMeta, Pod, Wire, condition_of
from koordpy.api.times import rfc3339
from koordpy.engine.client.api_client import ApiClient, PatchKind
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_resources import Resource

POD_SCHEDULED = "PodScheduled"
FIELD_MANAGER = "koordpy-scheduler"
"""Of server-side apply: what is ours of a status that others write, too."""
_NUMBER = re.compile(r"\d+")


def condition_for(obj: Any, type: str, status: str, reason: str, message: str) -> Condition:
    """A condition of an object as it is now."""
    generation = obj.metadata.generation
    return Condition(type=type, status=status, reason=reason, message=message, observed_generation=generation)


@remembered(64)
def wobbles(old: str, new: str) -> bool:
    """True when two different messages differ in their numbers only: `1/3 nodes` and `2/3 nodes`."""
    return old != new and _NUMBER.sub("#", old) == _NUMBER.sub("#", new)


def condition_patch(old: Condition | None, new: Condition, *, now: float, anew: bool = False) -> dict[str, Any] | None:
    """The fields of a condition to merge by type, or None when status, reason and message are there already.

    lastTransitionTime is given only when the status changes; left out, the merge keeps the old one. anew: `old` may be
    out of date, so that nothing is known to be there.
    """
    if not anew and old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return None
    turned = old is None or old.status != new.status
    return condition_body(replace(new, last_transition_time=rfc3339(now)) if turned else new)


def pod_unschedulable(pod: Pod, *, reason: str, message: str, now: float, anew: bool = False) -> dict[str, Any]:
    """What a strategic merge of a pod's status takes for PodScheduled=False; nothing when the pod says so already.

    `reason` is Unschedulable or SchedulerError; autoscalers look for exactly this condition. anew: as in
    `condition_patch`.
    """
    new = condition_for(pod, POD_SCHEDULED, "False", reason, message)
    condition = condition_patch(condition_of(pod.status.conditions, POD_SCHEDULED), new, now=now, anew=anew)
    return {"conditions": [condition]} if condition is not None else {}


def merged_conditions(old: Iterable[Condition], changed: Iterable[Condition], *, now: float) -> list[Condition]:
    """A whole list of conditions for a merge patch of a custom resource, where lists are replaced.

    Each of `changed` takes the place of its type; its lastTransitionTime is the old one unless the status changes.
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
    """Merges fields into an object's status; None removes one. False: the object is gone. Raises as the client does.

    kind: strategic merges conditions by type, where the API server knows the object's fields; apply leaves what others
    own. Both are of the object with this uid alone: one made anew under the name is not told of another's failure.
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
        # a uid that is not the object's: a real API server calls the field immutable (422), others a conflict
        if error.status in (404, 409) or (error.status == 422 and "metadata.uid" in error.message):
            return False
        raise
    return True


def status_patch(wanted: Wire, there: Wire) -> dict[str, Any]:
    """A merge patch from one status to the other; what is no longer shown is taken out by null."""
    new, old = _body(wanted), _body(there)
    patch: dict[str, Any] = {}
    for name in dict.fromkeys((*new, *old)):
        value, before = new.get(name), old.get(name)
        if value == before:
            continue
        gone = dict.fromkeys(before.keys() - value) if isinstance(value, dict) and isinstance(before, dict) else {}
        patch[name] = {**value, **gone} if isinstance(value, dict) else value
    return patch


def _body(status: Any) -> dict[str, Any]:
    """As it is written; counts of 0 are there."""
    counts = {one.encode_name: 0 for one in fields(status) if one.type is int}
    return {**counts, **to_builtins(status), "conditions": [*map(condition_body, status.conditions)] or None}


def condition_body(condition: Condition) -> dict[str, Any]:
    """A condition as it is written: reason and message are there even if they are empty."""
    return {"reason": "", "message": "", **to_builtins(condition)}
