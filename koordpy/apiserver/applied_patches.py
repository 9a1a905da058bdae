# SPDX-License-Identifier: Apache-2.0
"""Applies patches to objects, as an API server does for PATCH requests. The functions never change their arguments.

There are three types: `merge` for JSON merge patch (RFC 7386), `json_patch` for JSON patch (RFC 6902), and `strategic`
for strategic merge patch, in which items of lists are merged by a key. The keys are those of the patchMergeKey tags of
k8s.io/api, for the lists that clients of a scheduler send; `replicatedJobs` is a list of JobSet. Server-side apply is
in `server_apply.py`.
"""

from typing import Any

import jsonpatch

from koordpy.apiserver.served_resources import Object
from koordpy.apiserver.status_errors import StatusError

MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "replicatedJobs": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "schedulingGates": ("name",),
    "resourceClaims": ("name",),
    "topologySpreadConstraints": ("topologyKey",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "addresses": ("type",),
    "podIPs": ("ip",),
}
"""Field name -> possible merge keys. The first key that all items of the patch have is used; items with `$patch` need
none. A list that is neither here nor in MERGED_SETS is replaced as a whole."""

MERGED_SETS = frozenset(("finalizers",))
"""Names of list fields that are merged as sets."""
_DIRECTIVE = "$patch"
"""Key in a patch that says how the mapping or item is applied: `replace`, `delete` or (default) `merge`."""


def merge(target: Any, patch: Any) -> Any:
    """Applies a JSON merge patch (RFC 7386). Unchanged parts are shared with the target."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def json_patch(document: Object, operations: Any) -> Object:
    """Applies a JSON patch (RFC 6902). Raises StatusError 422 if an operation fails, 400 if the patch is invalid."""
    if not isinstance(operations, list):
        raise StatusError(400, "a JSON patch must be a list of operations")
    why = "the server rejected our request due to an error in our request"
    try:
        result = jsonpatch.apply_patch(document, operations)
    except (jsonpatch.InvalidJsonPatch, TypeError) as error:
        raise StatusError(400, f"invalid JSON patch operation: {error}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise StatusError(422, f"{why}: {error}", reason="Invalid") from None
    if not isinstance(result, dict):
        raise StatusError(422, f"{why}: the result is not an object", reason="Invalid")
    return result


def merge_key(name: str, items: list[Any]) -> str | None:
    """Returns the key by which a list of this field is merged; None if it is replaced as a whole."""
    for key in MERGE_KEYS.get(name, ()):
        if all(isinstance(item, dict) and (key in item or _DIRECTIVE in item) for item in items):
            return key
    return None


def _strategic_list(name: str, target: Any, patch: list[Any]) -> list[Any]:
    """Returns a list after a strategic merge. name: name of the field, which decides how its items are merged."""
    current = target if isinstance(target, list) else []
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and _DIRECTIVE in item)]
    if name in MERGED_SETS:
        return current + [item for item in patch if item not in current]
    key = merge_key(name, patch)
    if key is None:
        return patch
    result = list(current)
    for item in patch:
        same = (i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item.get(key))
        at = next(same, None)
        if item.get(_DIRECTIVE) == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic({}, item))
        else:
            result[at] = strategic(result[at], item)
    return result


def _ordered(name: str, items: Any, order: list[Any]) -> Any:
    """Returns a list in the order of a $setElementOrder directive; items that are not in the directive are last."""
    if not isinstance(items, list):
        return items
    key = merge_key(name, order) if order and isinstance(order[0], dict) else None
    wanted = [item[key] if key else item for item in order]

    def place(item: Any) -> int:
        """Returns the position of an item in the directive, or the position after it."""
        value = item.get(key) if key else item
        return wanted.index(value) if value in wanted else len(wanted)

    return sorted(items, key=place)


def strategic(target: Any, patch: Any) -> Any:
    """Applies a strategic merge patch: like `merge`, but lists with a merge key are merged item by item.

    Supports the directives $patch, $setElementOrder, $deleteFromPrimitiveList and $retainKeys.
    """
    if not isinstance(patch, dict):
        return patch
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if patch.get(_DIRECTIVE) == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    orders = {}
    for key, value in patch.items():
        if key.startswith("$"):
            directive, _, name = key.partition("/")
            if directive == "$setElementOrder" and isinstance(value, list):
                orders[name] = value
            elif directive == "$deleteFromPrimitiveList" and isinstance(result.get(name), list):
                result[name] = [item for item in result[name] if item not in value]
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _strategic_list(key, result.get(key), value)
        else:
            result[key] = strategic(result.get(key), value)
    for name, order in orders.items():
        result[name] = _ordered(name, result.get(name), order)
    return result
