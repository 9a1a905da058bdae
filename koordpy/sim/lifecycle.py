"""The rules of an object's life that every write keeps: what an update may touch, when a deleted object may go.

Pure functions on objects as they are stored; the store calls them and keeps the result.
"""

from koordpy.api.times import rfc3339
from koordpy.sim import defaults, errors, schema
from koordpy.sim.errors import StatusError
from koordpy.sim.resources import Object, ServedResource

_KEPT_BY_SERVER = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_NOT_GIVEN = (*_KEPT_BY_SERVER, "resourceVersion", "selfLink", "name", "namespace")
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def metadata_of_create(given: Object) -> Object:
    """What a creator's metadata says beyond name and namespace; what is the server's is left out."""
    return {key: value for key, value in given.items() if key not in _NOT_GIVEN}


def metadata_of_update(resource: ServedResource, current: Object, wanted: Object) -> Object:
    """Metadata of an update: what is the server's stays, preconditions are checked."""
    old = current["metadata"]
    given = wanted.get("metadata")
    if not isinstance(given, dict):
        raise StatusError(400, "metadata must be an object")
    name = old["name"]
    if given.get("name", name) != name or (given.get("namespace") or old.get("namespace")) != old.get("namespace"):
        raise StatusError(400, f"the name and namespace of the object ({name}) cannot be changed")
    if given.get("resourceVersion") and given["resourceVersion"] != old["resourceVersion"]:
        raise errors.conflict(resource, name, _MODIFIED)
    if given.get("uid") and given["uid"] != old["uid"]:
        fault = ("metadata.uid", "FieldValueInvalid", f'Invalid value: "{given["uid"]}": field is immutable')
        raise errors.invalid(resource, name, fault)
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
            raise errors.invalid(resource, name, fault)
    return meta


def checked_custom_object(resource: ServedResource, new: Object) -> Object:
    """A custom resource pruned, defaulted and validated against its schema."""
    defaults.check_metadata(resource, new["metadata"])
    if resource.schema is None:
        return new
    pruned, _ = schema.prune(resource.schema, new)
    filled: Object = schema.fill_defaults(resource.schema, pruned)
    faults = schema.validate(resource.schema, filled)
    if faults:
        raise errors.invalid(resource, new["metadata"]["name"], *faults)
    return filled


def grace_seconds(resource: ServedResource, obj: Object, options: Object) -> int:
    """Seconds a deleted object may stay: only a pod on a node that still runs needs any."""
    if resource.shelf != "pods":
        return 0
    spec, phase = obj["spec"], obj.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30))


def marked(obj: Object, now: float, grace: int = 0) -> Object:
    """An object that is to end `grace` seconds from now (epoch seconds), as a reply to its deletion shows it."""
    meta = {**obj["metadata"], "deletionTimestamp": rfc3339(now + grace), "deletionGracePeriodSeconds": grace}
    if "generation" in meta:
        meta["generation"] += 1
    return {**obj, "metadata": meta}


def spec_part(obj: Object) -> Object:
    """Everything but metadata and status: what metadata.generation counts changes of."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def may_go(obj: Object) -> bool:
    """Whether a deleted object waits for nothing any more."""
    meta = obj["metadata"]
    return "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
