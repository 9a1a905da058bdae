"""Protobuf request bodies of the few objects that kubectl sends in that form only.

Since 1.32 kubectl encodes what its typed clients create (`kubectl create namespace`, `drain`, `auth can-i`) as protobuf
and does not fall back to JSON. Answers are JSON, which it accepts. Field numbers: generated.proto of k8s.io/api and
k8s.io/apimachinery 1.36. Bodies of other kinds are refused (415).
"""

from collections.abc import Iterator
from typing import Any

from koordpy.sim.errors import StatusError

MAGIC = b"k8s\x00"

Message = dict[int, tuple[str, Any]]
"""field number -> (JSON name, type); a type is str, int, bool, "map", a message, or a list with one of them."""

_OWNER: Message = {
    1: ("kind", str),
    3: ("name", str),
    4: ("uid", str),
    5: ("apiVersion", str),
    6: ("controller", bool),
    7: ("blockOwnerDeletion", bool),
}
_META: Message = {
    1: ("name", str),
    2: ("generateName", str),
    3: ("namespace", str),
    5: ("uid", str),
    6: ("resourceVersion", str),
    11: ("labels", "map"),
    12: ("annotations", "map"),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", [str]),
}
_OPTIONS: Message = {
    1: ("gracePeriodSeconds", int),
    2: ("preconditions", {1: ("uid", str), 2: ("resourceVersion", str)}),
    4: ("propagationPolicy", str),
    5: ("dryRun", [str]),
}
_ATTRIBUTES: Message = {
    1: ("namespace", str),
    2: ("verb", str),
    3: ("group", str),
    4: ("version", str),
    5: ("resource", str),
    6: ("subresource", str),
    7: ("name", str),
}
_ACCESS: Message = {
    1: ("resourceAttributes", _ATTRIBUTES),
    2: ("nonResourceAttributes", {1: ("path", str), 2: ("verb", str)}),
}
_KINDS: dict[tuple[str, str], Message] = {
    ("v1", "Namespace"): {1: ("metadata", _META)},
    ("v1", "ConfigMap"): {1: ("metadata", _META), 2: ("data", "map"), 4: ("immutable", bool)},
    ("v1", "ServiceAccount"): {1: ("metadata", _META)},
    ("v1", "DeleteOptions"): _OPTIONS,
    ("policy/v1", "Eviction"): {1: ("metadata", _META), 2: ("deleteOptions", _OPTIONS)},
    ("scheduling.k8s.io/v1", "PriorityClass"): {
        1: ("metadata", _META),
        2: ("value", int),
        3: ("globalDefault", bool),
        4: ("description", str),
        5: ("preemptionPolicy", str),
    },
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): {1: ("metadata", _META), 2: ("spec", _ACCESS)},
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): {
        1: ("metadata", _META),
        2: ("spec", {1: ("namespace", str)}),
    },
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: ("metadata", _META)},
}
_UNKNOWN: Message = {1: ("typeMeta", {1: ("apiVersion", str), 2: ("kind", str)}), 2: ("raw", bytes)}
_PAIR: Message = {1: ("key", str), 2: ("value", str)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value - (1 << 64) if value >= 1 << 63 else value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("it ends early")
        yield number, data[at : at + size]
        at += size


def _value(kind: Any, raw: int | bytes) -> Any:
    if isinstance(raw, int):
        return bool(raw) if kind is bool else raw
    if kind is bytes:
        return raw
    return _message(kind, raw) if isinstance(kind, dict) else raw.decode()


def _message(message: Message, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, raw in _fields(data):
        if number not in message:
            continue
        name, kind = message[number]
        if kind == "map":
            pair = _value(_PAIR, raw)
            found.setdefault(name, {})[pair.get("key", "")] = pair.get("value", "")
        elif isinstance(kind, list):
            found.setdefault(name, []).append(_value(kind[0], raw))
        else:
            value = _value(kind, raw)
            if value != "":  # Go writes strings that are not set, too
                found[name] = value
    return found


def decode(data: bytes) -> dict[str, Any]:
    """The object of a protobuf body. Raises ApiError: 415 for a kind that is not known here, 400 for a broken body."""
    try:
        envelope = _message(_UNKNOWN, data[len(MAGIC) :]) if data.startswith(MAGIC) else {}
        meta = envelope.get("typeMeta", {})
        version, kind = meta.get("apiVersion", ""), meta.get("kind", "")
        message = _KINDS.get((version, kind)) or (_OPTIONS if kind == "DeleteOptions" else None)
        if message is None:
            raise StatusError(
                415,
                f"this embedded server reads no protobuf of {kind or 'an unknown kind'} - accepted media types include:"
                " application/json. Try: kubectl create ... --dry-run=client -o yaml | kubectl apply -f -",
            )
        return {"apiVersion": version, "kind": kind, **_message(message, envelope.get("raw", b""))}
    except (ValueError, IndexError, AttributeError) as error:
        raise StatusError(400, f"the body of the request is no protobuf: {error}") from None
