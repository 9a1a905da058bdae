"""Protobuf request bodies of the few objects that kubectl sends in that form only.

Since 1.32 kubectl encodes what its typed clients create (`kubectl create namespace`, `drain`, `auth can-i`) as protobuf
and does not fall back to JSON. Answers are JSON, which it accepts. Field numbers: generated.proto of k8s.io/api and
k8s.io/apimachinery 1.36. Bodies of other kinds are refused (415).
"""

from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from koordpy.api.protomessages import Field, message_classes
from koordpy.sim.errors import StatusError

MAGIC = b"k8s\x00"

_TABLES: dict[str, tuple[Field, ...]] = {
    "TypeMeta": (("apiVersion", 1, "string"), ("kind", 2, "string")),
    "Unknown": (("typeMeta", 1, "TypeMeta"), ("raw", 2, "bytes")),
    "OwnerReference": (
        ("kind", 1, "string"),
        ("name", 3, "string"),
        ("uid", 4, "string"),
        ("apiVersion", 5, "string"),
        ("controller", 6, "bool"),
        ("blockOwnerDeletion", 7, "bool"),
    ),
    "ObjectMeta": (
        ("name", 1, "string"),
        ("generateName", 2, "string"),
        ("namespace", 3, "string"),
        ("uid", 5, "string"),
        ("resourceVersion", 6, "string"),
        ("labels", 11, "map"),
        ("annotations", 12, "map"),
        ("ownerReferences", 13, "*OwnerReference"),
        ("finalizers", 14, "*string"),
    ),
    "Preconditions": (("uid", 1, "string"), ("resourceVersion", 2, "string")),
    "DeleteOptions": (
        ("gracePeriodSeconds", 1, "int32"),
        ("preconditions", 2, "Preconditions"),
        ("propagationPolicy", 4, "string"),
        ("dryRun", 5, "*string"),
    ),
    "ResourceAttributes": (
        ("namespace", 1, "string"),
        ("verb", 2, "string"),
        ("group", 3, "string"),
        ("version", 4, "string"),
        ("resource", 5, "string"),
        ("subresource", 6, "string"),
        ("name", 7, "string"),
    ),
    "NonResourceAttributes": (("path", 1, "string"), ("verb", 2, "string")),
    "Access": (
        ("resourceAttributes", 1, "ResourceAttributes"),
        ("nonResourceAttributes", 2, "NonResourceAttributes"),
    ),
    "Rules": (("namespace", 1, "string"),),
    "Namespace": (("metadata", 1, "ObjectMeta"),),
    "ConfigMap": (("metadata", 1, "ObjectMeta"), ("data", 2, "map"), ("immutable", 4, "bool")),
    "ServiceAccount": (("metadata", 1, "ObjectMeta"),),
    "Eviction": (("metadata", 1, "ObjectMeta"), ("deleteOptions", 2, "DeleteOptions")),
    "PriorityClass": (
        ("metadata", 1, "ObjectMeta"),
        ("value", 2, "int32"),
        ("globalDefault", 3, "bool"),
        ("description", 4, "string"),
        ("preemptionPolicy", 5, "string"),
    ),
    "SelfSubjectAccessReview": (("metadata", 1, "ObjectMeta"), ("spec", 2, "Access")),
    "SelfSubjectRulesReview": (("metadata", 1, "ObjectMeta"), ("spec", 2, "Rules")),
    "SelfSubjectReview": (("metadata", 1, "ObjectMeta"),),
}
_MESSAGES = message_classes("kubernetes", _TABLES)
_VERSIONS = {
    **dict.fromkeys(("Namespace", "ConfigMap", "ServiceAccount"), "v1"),
    "Eviction": "policy/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "SelfSubjectAccessReview": "authorization.k8s.io/v1",
    "SelfSubjectRulesReview": "authorization.k8s.io/v1",
    "SelfSubjectReview": "authentication.k8s.io/v1",
}
"""Kind -> its API version; DeleteOptions come in that of any group."""


def _read(kind: str, data: bytes) -> Any:
    message = _MESSAGES[kind]()
    message.ParseFromString(data)
    return message


def _said(value: Any) -> Any:
    """What is set of a message: Go writes texts that are not set, too."""
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item != ""}
    return value


def decode(data: bytes) -> dict[str, Any]:
    """The object of a protobuf body. Raises StatusError: 415 for a kind not known here, 400 for a broken body."""
    try:
        envelope = _read("Unknown", data.removeprefix(MAGIC) if data.startswith(MAGIC) else b"")
        version, kind = envelope.typeMeta.apiVersion, envelope.typeMeta.kind
        if kind != "DeleteOptions" and (not version or _VERSIONS.get(kind) != version):
            raise StatusError(
                415,
                f"this embedded server reads no protobuf of {kind or 'an unknown kind'} - accepted media types include:"
                " application/json. Try: kubectl create ... --dry-run=client -o yaml | kubectl apply -f -",
            )
        found = MessageToDict(_read(kind, envelope.raw), preserving_proto_field_name=True)
    except DecodeError as error:
        raise StatusError(400, f"the body of the request is no protobuf: {error}") from None
    return {"apiVersion": version, "kind": kind, **_said(found)}
