# SPDX-License-Identifier: Apache-2.0
"""Rules of kube-apiserver for create, update and delete: defaults, validation, immutable fields and grace periods.

Only rules that clients of a scheduler can observe are implemented. Pods get the defaults of
`simulation/server_defaults.py`, like pods of manifests. The store sets uid, versions and times. Functions return new
objects and never change their arguments.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from koordpy.api.objects import Pod, PriorityClass
from koordpy.api.times import rfc3339
from koordpy.apiserver import crd_schema, status_errors
from koordpy.apiserver.served_resources import Object, ServedResource
from koordpy.apiserver.status_errors import StatusError
from koordpy.decoding.wire_json import Undecodable, read_plain
from koordpy.simulation.server_defaults import NAMESPACE_NAME_LABEL, PREEMPT, Priorities, filled_pod

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
# the rule of names in kube-apiserver's words
_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN}')"
)
# defaults of the spec of a pod, then fields that an update may change, always and only with scheduling gates
_POD_SPEC = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler"}
_MUTABLE_IN_PODS = frozenset(
    ("activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds")
)
_TIGHTENED_WHILE_GATED = frozenset(("nodeSelector", "affinity"))

WITH_GENERATION = frozenset(
    (
        "pods", "deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch",
        "poddisruptionbudgets.policy", "replicationcontrollers",
    )
)  # fmt: skip
"""Built-in resources with a metadata.generation, which counts changes of the spec. Every custom resource has it."""
# metadata that an update cannot change, and metadata that a created object cannot set
_KEPT_BY_SERVER = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_NOT_GIVEN = (*_KEPT_BY_SERVER, "resourceVersion", "selfLink", "name", "namespace")
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def check_metadata(resource: ServedResource, meta: Object) -> None:
    """Raises StatusError if the name, labels or annotations are invalid."""
    name = meta["name"]
    if not isinstance(name, str):
        raise StatusError(400, "metadata.name must be a string")
    if resource.shelf != "events" and (len(name) > 253 or not re.fullmatch(_SUBDOMAIN, name)):
        fault = ("metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {_RULE}')
        raise status_errors.invalid(resource, name, fault)
    for field in ("labels", "annotations"):
        values = meta.get(field)
        if values is None:
            continue
        if not isinstance(values, dict):
            raise StatusError(
                400, f"{resource.kind} in version {resource.version!r} cannot be handled: metadata.{field}"
            )
        for key, value in values.items():
            if not isinstance(value, str):
                raise StatusError(
                    400,
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                    f"json: cannot unmarshal {type(value).__name__} into Go struct field ObjectMeta.metadata.{field} "
                    f"of type string ({key})",
                )


def rewritten(raw: Object, before: msgspec.Struct, after: msgspec.Struct) -> Object:
    """Returns a raw object (decoded JSON) with the differences between two typed states of the object applied.

    Fields that the type does not declare are unchanged. before, after: of the same type.
    """
    out = dict(raw)
    for field in msgspec.structs.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            out[field.encode_name] = _value(raw.get(field.encode_name), old, new)
    return out


def _value(raw: Any, old: Any, new: Any) -> Any:
    """Returns the raw form of a changed value. raw: the raw form before. old, new: the typed values."""
    if isinstance(old, msgspec.Struct) and isinstance(raw, dict):
        return rewritten(raw, old, new) if isinstance(new, msgspec.Struct) else msgspec.to_builtins(new)
    if isinstance(old, list) and isinstance(raw, list) and len(raw) == len(old) == len(new):
        return [_value(item, one, other) for item, one, other in zip(raw, old, new, strict=True)]
    return msgspec.to_builtins(new)


def new_pod(pods: ServedResource, pod: Object, *, classes: Iterable[Object], now: str) -> Object:
    """Returns a new pod as it is stored: with defaults, priority and status Pending. Raises StatusError."""
    name, given = pod["metadata"]["name"], pod.get("spec")
    if not isinstance(given, dict) or not given.get("containers"):
        raise status_errors.invalid(pods, name, ("spec.containers", "FieldValueRequired", "Required value"))
    known = Priorities.from_classes(msgspec.convert(one, PriorityClass) for one in classes)
    wanted = given.get("priorityClassName") or ""
    found = known.classes.get(wanted) if wanted else known.default
    if wanted and found is None:
        raise status_errors.forbidden(pods, name, f"no PriorityClass with name {wanted} was found")
    value = found.value if found is not None else 0
    if given.get("priority") not in (None, value):
        raise status_errors.forbidden(
            pods,
            name,
            f"the integer value of priority ({given['priority']}) must not be provided in pod spec; priority admission "
            f"controller computed {value} from the given PriorityClass name",
        )
    try:
        read = read_plain(pod, Pod)
    except Undecodable as error:
        raise StatusError(400, f'Pod in version "v1" cannot be handled as a Pod: {error}') from None
    filled = filled_pod(read, known)
    assert filled is not None, "its class is known"
    spec = {**_POD_SPEC, **rewritten(given, read.spec, filled.spec)}
    if found is not None:
        spec["priorityClassName"] = wanted or found.metadata.name
    status: Object = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": None,
                "lastTransitionTime": now,
            }
        ]
    return {**pod, "spec": spec, "status": status}


def check_pod_update(pods: ServedResource, old: Object, new: Object) -> None:
    """Raises StatusError 422 if an update changes an immutable field of a pod. Only a Binding may set nodeName."""
    before, after = old["spec"], new.get("spec")
    if before is after or before == after:
        return
    name = new["metadata"]["name"]
    if not isinstance(after, dict):
        raise status_errors.invalid(pods, name, ("spec", "FieldValueRequired", "Required value"))
    faults = []
    gates = [gate.get("name") for gate in before.get("schedulingGates") or ()]
    if any(gate.get("name") not in gates for gate in after.get("schedulingGates") or ()):
        text = "Forbidden: only deletion is allowed, but found new scheduling gates"
        faults.append(("spec.schedulingGates", "FieldValueForbidden", text))
    mutable = _MUTABLE_IN_PODS | (_TIGHTENED_WHILE_GATED if gates else frozenset())
    fields = before.keys() | after.keys()
    touched = sorted(field for field in fields - mutable if before.get(field) != after.get(field))
    if touched:
        text = (
            "Forbidden: pod updates may not change fields other than `spec.activeDeadlineSeconds`,`spec.tolerations` "
            f"(only additions to existing tolerations); changed: {', '.join(touched)}"
        )
        faults.append(("spec", "FieldValueForbidden", text))
    if faults:
        raise status_errors.invalid(pods, name, *faults)


def new_object(resource: ServedResource, obj: Object) -> Object:
    """Returns a new built-in object, not a pod, with the defaults that clients depend on."""
    shelf = resource.shelf
    if shelf == "namespaces":
        meta = obj["metadata"]
        labels = {**(meta.get("labels") or {}), NAMESPACE_NAME_LABEL: meta["name"]}
        return {
            **obj,
            "metadata": {**meta, "labels": labels},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
    if shelf == "nodes":
        return {**obj, "spec": obj.get("spec") or {}, "status": obj.get("status") or {}}
    if shelf == "priorityclasses.scheduling.k8s.io":
        return {"preemptionPolicy": PREEMPT, **obj}
    if shelf in ("persistentvolumeclaims", "persistentvolumes"):
        return {**obj, "status": obj.get("status") or {"phase": "Pending"}}
    return obj


# -- metadata and deletion --------------------------------------------------------------------------------------------


def metadata_of_create(given: Object) -> Object:
    """Returns the metadata that a client may set when it creates an object. The store sets name and namespace."""
    return {key: value for key, value in given.items() if key not in _NOT_GIVEN}


def metadata_of_update(resource: ServedResource, current: Object, wanted: Object) -> Object:
    """Returns the metadata of an object after an update; fields that the server sets do not change. Raises
    StatusError."""
    old = current["metadata"]
    given = wanted.get("metadata")
    if not isinstance(given, dict):
        raise StatusError(400, "metadata must be an object")
    name = old["name"]
    if given.get("name", name) != name or (given.get("namespace") or old.get("namespace")) != old.get("namespace"):
        raise StatusError(400, f"the name and namespace of the object ({name}) cannot be changed")
    if given.get("resourceVersion") and given["resourceVersion"] != old["resourceVersion"]:
        raise status_errors.conflict(resource, name, _MODIFIED)
    if given.get("uid") and given["uid"] != old["uid"]:
        fault = ("metadata.uid", "FieldValueInvalid", f'Invalid value: "{given["uid"]}": field is immutable')
        raise status_errors.invalid(resource, name, fault)
    meta = {key: value for key, value in given.items() if key not in _KEPT_BY_SERVER and key != "selfLink"}
    meta |= {key: old[key] for key in _KEPT_BY_SERVER if key in old}
    meta["name"] = name
    if "namespace" in old:
        meta["namespace"] = old["namespace"]
    if "deletionTimestamp" in old:
        extra = [f for f in meta.get("finalizers") or () if f not in (old.get("finalizers") or ())]
        if extra:
            text = f"Forbidden: no new finalizers can be added if the object is being deleted, found {extra}"
            fault = ("metadata.finalizers", "FieldValueForbidden", text)
            raise status_errors.invalid(resource, name, fault)
    return meta


def checked_custom_object(resource: ServedResource, new: Object) -> Object:
    """Returns a custom resource without unknown fields and with the defaults of its schema. Raises StatusError."""
    check_metadata(resource, new["metadata"])
    if resource.schema is None:
        return new
    pruned, _ = crd_schema.prune(resource.schema, new)
    filled: Object = crd_schema.fill_defaults(resource.schema, pruned)
    faults = list(crd_schema.faults_of(resource.schema, filled))
    if faults:
        raise status_errors.invalid(resource, new["metadata"]["name"], *faults)
    return filled


def grace_seconds(resource: ServedResource, obj: Object, options: Object) -> int:
    """Returns the grace period of a deletion in seconds; 0 unless the object is a bound pod that has not ended."""
    if resource.shelf != "pods":
        return 0
    spec, phase = obj["spec"], obj.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30))


def marked(obj: Object, now: float, grace: int = 0) -> Object:
    """Returns an object marked as deleted, with a deletionTimestamp. now: seconds since the epoch. grace: seconds."""
    meta = {**obj["metadata"], "deletionTimestamp": rfc3339(now + grace), "deletionGracePeriodSeconds": grace}
    if "generation" in meta:
        meta["generation"] += 1
    return {**obj, "metadata": meta}


def spec_part(obj: Object) -> Object:
    """Returns an object without metadata and status: metadata.generation counts the changes of this part."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def may_go(obj: Object) -> bool:
    """Returns True if a deleted object has neither finalizers nor a grace period left."""
    meta = obj["metadata"]
    return "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
