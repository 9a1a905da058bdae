"""What kube-apiserver fills in and refuses before an object is stored, as far as a scheduler's clients see it.

Pods get what defaulting and the Priority admission plugin give them; identity (uid, versions, times) is the store's
affair. Functions return new objects: what a caller hands in is never changed.
"""

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec

from koordpy.api.objects import PriorityClass
from koordpy.api.quantity import is_extended, parse_exact
from koordpy.sim import errors
from koordpy.sim.errors import StatusError
from koordpy.sim.filling import NAMESPACE_NAME_LABEL, PREEMPT, Priorities
from koordpy.sim.resources import Object, ServedResource
from koordpy.sim.schema import Fault

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAMES_OF_ANY_FORM = frozenset(("events",))
_POD_SPEC = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
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
"""Built-in resources whose metadata.generation counts changes of the spec; of custom resources it is all."""


@lru_cache(maxsize=4096)
def _quantity(raw: str | int | float) -> Fraction:
    try:
        return parse_exact(raw)
    except ValueError as error:
        raise StatusError(400, f'Pod in version "v1" cannot be handled as a Pod: {error}') from None


def _resource_faults(container: Object, path: str) -> Iterable[Fault]:
    """What is wrong with requests and limits; StatusError 400 for what is no quantity."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, raw in amounts.items():
            where = f"{path}.resources.{field}[{name}]"
            if _quantity(raw) < 0:
                yield where, "FieldValueInvalid", f'Invalid value: "{raw}": must be greater than or equal to 0'
            elif is_extended(name) and _quantity(raw).denominator != 1:
                yield where, "FieldValueInvalid", f'Invalid value: "{raw}": must be an integer'
    where = f"{path}.resources.requests"
    for name, raw in requests.items():
        limit = limits.get(name)
        if limit is None:
            if is_extended(name):
                text = "Required value: Limit must be set for non overcommitable resources"
                yield f"{path}.resources.limits", "FieldValueRequired", text
        elif is_extended(name) and _quantity(raw) != _quantity(limit):
            yield where, "FieldValueInvalid", f'Invalid value: "{raw}": must be equal to {name} limit of {limit}'
        elif _quantity(raw) > _quantity(limit):
            yield (
                where,
                "FieldValueInvalid",
                f'Invalid value: "{raw}": must be less than or equal to {name} limit of {limit}',
            )


def check_metadata(resource: ServedResource, meta: Object) -> None:
    """Raises StatusError where name, labels or annotations cannot be stored."""
    name = meta["name"]
    if not isinstance(name, str):
        raise StatusError(400, "metadata.name must be a string")
    if resource.shelf not in _NAMES_OF_ANY_FORM and (len(name) > 253 or not _SUBDOMAIN.fullmatch(name)):
        fault = ("metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {_RULE}')
        raise errors.invalid(resource, name, fault)
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


def _container(container: Any, *, host_network: bool) -> Object:
    if not isinstance(container, dict):
        raise StatusError(400, "a container must be an object")
    filled = {**_CONTAINER, **container}
    image = str(filled.get("image", ""))
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    filled.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    resources = filled.get("resources") or {}
    limits = resources.get("limits")
    if limits:
        requests = resources.get("requests") or {}
        if any(name not in requests for name in limits):
            resources = {**resources, "requests": {**limits, **requests}}
    filled["resources"] = resources
    ports = filled.get("ports")
    if ports:
        filled["ports"] = [
            {"protocol": "TCP", **({"hostPort": port.get("containerPort")} if host_network else {}), **port}
            for port in ports
        ]
    return filled


def _pod_faults(spec: Object) -> Iterable[Fault]:
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        yield "spec.containers", "FieldValueRequired", "Required value"
        return
    names: set[str] = set()
    for field in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(field) or ()):
            name = container.get("name")
            if not name:
                yield f"spec.{field}[{at}].name", "FieldValueRequired", "Required value"
            elif name in names:
                yield f"spec.{field}[{at}].name", "FieldValueDuplicate", f'Duplicate value: "{name}"'
            names.add(name)
            yield from _resource_faults(container, f"spec.{field}[{at}]")


def _priority(pods: ServedResource, name: str, spec: Object, classes: Iterable[Object]) -> Object:
    """Priority and preemption policy as the Priority admission plugin sets them."""
    known = Priorities.of(msgspec.convert(one, PriorityClass) for one in classes)
    wanted = spec.get("priorityClassName") or ""
    found = known.classes.get(wanted) if wanted else known.default
    if wanted and found is None:
        raise errors.forbidden(pods, name, f"no PriorityClass with name {wanted} was found")
    value = found.value if found is not None else 0
    given = spec.get("priority")
    if given is not None and given != value:
        raise errors.forbidden(
            pods,
            name,
            f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller "
            f"computed {value} from the given PriorityClass name",
        )
    filled: Object = {"priority": value}
    if found is not None:
        filled["priorityClassName"] = wanted or found.metadata.name
    policy = found.preemption_policy if found is not None else ""
    filled["preemptionPolicy"] = spec.get("preemptionPolicy") or policy or PREEMPT
    return filled


def new_pod(pods: ServedResource, pod: Object, *, classes: Iterable[Object], now: str, with_status: bool) -> Object:
    """A pod as it is stored when created: defaults, priority, status Pending (or the given one, `with_status`)."""
    name = pod["metadata"]["name"]
    given = pod.get("spec")
    if not isinstance(given, dict):
        raise errors.invalid(pods, name, ("spec.containers", "FieldValueRequired", "Required value"))
    faults = list(_pod_faults(given))
    if faults:
        raise errors.invalid(pods, name, *faults)
    spec = {**_POD_SPEC, **given, **_priority(pods, name, given, classes)}
    spec["schedulerName"] = given.get("schedulerName") or "default-scheduler"
    spec.setdefault("securityContext", {})
    host = bool(spec.get("hostNetwork"))
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_container(container, host_network=host) for container in spec[field]]
    status: Object = dict(pod.get("status") or {}) if with_status else {}
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", _qos(spec))
    if spec.get("schedulingGates") and not status.get("conditions"):
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


def _qos(spec: Object) -> str:
    counted = ("cpu", "memory")
    pairs = []
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        pairs.append([(requests.get(name), limits.get(name)) for name in counted])
    if not any(request or limit for pair in pairs for request, limit in pair):
        return "BestEffort"
    guaranteed = all(request == limit and limit is not None for pair in pairs for request, limit in pair)
    return "Guaranteed" if guaranteed else "Burstable"


def check_pod_update(pods: ServedResource, old: Object, new: Object) -> None:
    """Raises StatusError 422 where an update touches what is fixed in a pod: nodeName changes by a Binding only."""
    before, after = old["spec"], new.get("spec")
    if before is after or before == after:
        return
    name = new["metadata"]["name"]
    if not isinstance(after, dict):
        raise errors.invalid(pods, name, ("spec", "FieldValueRequired", "Required value"))
    faults = []
    gates = [gate.get("name") for gate in before.get("schedulingGates") or ()]
    if any(gate.get("name") not in gates for gate in after.get("schedulingGates") or ()):
        text = "Forbidden: only deletion is allowed, but found new scheduling gates"
        faults.append(("spec.schedulingGates", "FieldValueForbidden", text))
    mutable = _MUTABLE_IN_PODS | (_TIGHTENED_WHILE_GATED if gates else frozenset())
    touched = sorted(
        field
        for field in before.keys() | after.keys()
        if field not in mutable and before.get(field) != after.get(field) and not _only_images(field, before, after)
    )
    if touched:
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            f"existing tolerations); changed: {', '.join(touched)}"
        )
        faults.append(("spec", "FieldValueForbidden", text))
    if faults:
        raise errors.invalid(pods, name, *faults)


def _only_images(field: str, before: Object, after: Object) -> bool:
    """Whether two lists of containers differ in nothing but images (and the pull policy defaulted from them)."""
    if field not in ("containers", "initContainers"):
        return False

    def rest(spec: Object) -> list[Object]:
        ignored = ("image", "imagePullPolicy")
        return [{k: v for k, v in c.items() if k not in ignored} for c in spec.get(field) or ()]

    return rest(before) == rest(after)


def new_object(resource: ServedResource, obj: Object) -> Object:
    """Defaults of the other built-in resources that clients wait for."""
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
