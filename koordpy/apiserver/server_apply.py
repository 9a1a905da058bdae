# SPDX-License-Identifier: Apache-2.0
"""Server-side apply, simplified: metadata.managedFields records which client (field manager) has applied which fields.

- A field that a manager applied before and leaves out now is removed, unless another manager owns it too.
- A field that another manager applied with another value is a conflict (409). With `force`, its owner changes.
- Fields that other requests (PUT, PATCH) write have no owner, unlike in Kubernetes.

The fields that a manager owns are a field set (FieldsV1): a tree of tokens. `applied` computes the field set of the new
configuration, checks it against other managers, removes fields that are no longer applied, and merges the rest.
"""

from typing import Any

import orjson

from koordpy.apiserver import status_errors
from koordpy.apiserver.applied_patches import MERGED_SETS, merge_key
from koordpy.apiserver.served_resources import Object, ServedResource

Fields = dict[str, Any]
"""A field set in FieldsV1 format, with keys `f:name`, `k:{"type":"Ready"}` and `v:"x"`; leaves are empty."""

_SERVER = frozenset(("apiVersion", "kind"))
"""Fields that no manager owns."""


def _below(schema: Object | None, name: str) -> Object | None:
    """Returns the schema of a field; None if it is unknown, as for all built-in resources."""
    if schema is None:
        return None
    child = (schema.get("properties") or {}).get(name) or schema.get("additionalProperties")
    return child if isinstance(child, dict) else None


def _items(schema: Object | None) -> Object | None:
    """Returns the schema of the items of a list; None if it is unknown."""
    return schema.get("items") if schema is not None else None


def _keys(schema: Object | None, name: str, items: list[Any]) -> tuple[str, ...]:
    """Returns the keys by which the items of a list are merged; empty if the list is replaced as a whole.

    name, items: name of the field and its items, which decide if there is no schema.
    """
    if schema is None:
        key = merge_key(name, items)
        return (key,) if key else ()
    return tuple(schema["x-kubernetes-list-map-keys"]) if schema.get("x-kubernetes-list-type") == "map" else ()


def _item_key(item: Object, keys: tuple[str, ...]) -> str:
    """Returns the token of an item of a list with keys."""
    return "k:" + orjson.dumps({key: item.get(key) for key in keys}, option=orjson.OPT_SORT_KEYS).decode()


def field_set(value: Any, schema: Object | None, name: str = "") -> Fields:
    """Returns the field set of an applied value."""
    found: Fields = {}
    if isinstance(value, dict):
        for key, item in value.items():
            found[f"f:{key}"] = field_set(item, _below(schema, key), key)
    elif isinstance(value, list):
        keys = _keys(schema, name, value)
        if keys:
            for item in value:
                found[_item_key(item, keys)] = {".": {}, **field_set(item, _items(schema))}
        elif name in MERGED_SETS:
            found = {"v:" + orjson.dumps(item).decode(): {} for item in value}
    return found


def _merged(target: Any, value: Any, schema: Object | None, name: str) -> Any:
    """Returns the target with an applied value merged into it."""
    if isinstance(value, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, item in value.items():
            result[key] = _merged(result.get(key), item, _below(schema, key), key)
        return result
    if isinstance(value, list) and isinstance(target, list):
        keys = _keys(schema, name, value)
        if keys:
            items = _items(schema)
            found = {_item_key(item, keys): item for item in target}
            for item in value:
                key = _item_key(item, keys)
                found[key] = _merged(found.get(key), item, items, "")
            return list(found.values())
        if name in MERGED_SETS:
            return target + [item for item in value if item not in target]
    return value


def _without(target: Any, dropped: Fields, schema: Object | None, name: str) -> Any:
    """Returns the target without the fields of a field set.

    If only a part of a mapping or list is removed, the rest remains, unless the rest is empty.
    """
    if isinstance(target, dict):
        result = dict(target)
        for token, below in dropped.items():
            key = token[2:]
            if not token.startswith("f:") or key not in result:
                continue
            if below:
                result[key] = _without(result[key], below, _below(schema, key), key)
                if result[key] in ({}, []):
                    del result[key]
            else:
                del result[key]
        return result
    if isinstance(target, list):
        keys = _keys(schema, name, target)
        kept = []
        for item in target:
            token = _item_key(item, keys) if keys else "v:" + orjson.dumps(item).decode()
            below = dropped.get(token)
            if below is None:
                kept.append(item)
            elif below and "." not in below:
                kept.append(_without(item, below, _items(schema), ""))
        return kept
    return target


def _minus(fields: Fields, other: Fields) -> Fields:
    """Returns the fields that are in the first field set and not in the other."""
    found: Fields = {}
    for token, below in fields.items():
        if token not in other:
            found[token] = below
        elif below:
            rest = _minus(below, other[token])
            if rest:
                found[token] = rest
    return found


def _conflicts(fields: Fields, other: Fields, current: Any, wanted: Any, path: str) -> list[str]:
    """Returns the paths that are in both field sets and at which the wanted value differs from the current value."""
    found: list[str] = []
    for token, below in fields.items():
        if token not in other or token == "." or token.startswith("v:"):
            continue
        now, then = _at(current, token), _at(wanted, token)
        if token.startswith("k:"):
            shown = ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in orjson.loads(token[2:]).items())
            where = f"{path}[{shown}]"
        else:
            where = f"{path}.{token[2:]}"
        if below:
            found += _conflicts(below, other[token], now, then, where)
        elif now != then and not (then == {} and isinstance(now, dict)):
            found.append(where)
    return found


def _at(value: Any, token: str) -> Any:
    """Returns the field or list item that a token of a field set names; None if it does not exist."""
    if token.startswith("f:"):
        return value.get(token[2:]) if isinstance(value, dict) else None
    keys = orjson.loads(token[2:])
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and all(item.get(key) == wanted for key, wanted in keys.items()):
            return item
    return None


def applied(
    resource: ServedResource,
    current: Object | None,
    config: Object,
    *,
    manager: str,
    now: str,
    force: bool,
    subresource: str,
) -> Object:
    """Returns the object after a manager applied a configuration. current: None if the object does not exist.

    Raises StatusError 409 for fields that another manager applied with another value, unless `force` is True.
    """
    schema = resource.schema
    # body: the fields to merge; owned: the fields that the manager owns afterwards, without the identity of the object
    body = {key: value for key, value in config.items() if key not in _SERVER}
    meta = {
        k: v for k, v in (body.get("metadata") or {}).items() if k not in ("managedFields", "resourceVersion", "uid")
    }
    body["metadata"] = meta
    owned = {**body, "metadata": {k: v for k, v in meta.items() if k not in ("name", "namespace")}}
    if not owned["metadata"]:
        del owned["metadata"]
    fields = field_set(owned, schema)
    base: Object = current or {"apiVersion": resource.api_version, "kind": resource.kind}
    entries = list((base.get("metadata") or {}).get("managedFields") or ())
    mine = [e for e in entries if _is(e, manager, subresource)]
    others = [e for e in entries if not _is(e, manager, subresource)]
    # conflicts: without `force` an error; with `force` the other manager no longer owns the field
    for other in others:
        theirs = other.get("fieldsV1") or {}
        clash = _conflicts(fields, theirs, base, body, "")
        if clash and not force:
            text = f'Apply failed with {len(clash)} conflict: conflict with "{other["manager"]}": {", ".join(clash)}'
            raise status_errors.StatusError(
                409, text, details={"causes": [{"reason": "FieldManagerConflict", "message": text}]}
            )
        if clash:
            others = [{**e, "fieldsV1": _minus(theirs, fields)} if e is other else e for e in others]
    # remove fields that this manager no longer applies, and that no other manager owns
    for entry in mine:
        gone = _minus(entry.get("fieldsV1") or {}, fields)
        for other in others:
            gone = _minus(gone, other.get("fieldsV1") or {})
        base = _without(base, gone, schema, "")
    result: Object = _merged(base, body, schema, "")
    record = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": resource.api_version,
        "time": mine[0]["time"] if mine and mine[0].get("fieldsV1") == fields else now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        **({"subresource": subresource} if subresource else {}),
    }
    result["metadata"] = {**result["metadata"], "managedFields": [*others, record]}
    return result


def _is(entry: Object, manager: str, subresource: str) -> bool:
    """Returns True if an entry of managedFields belongs to this manager and subresource."""
    return entry.get("manager") == manager and entry.get("subresource", "") == subresource
