# SPDX-License-Identifier: Apache-2.0
"""The resources that the embedded API server serves: group, version, kind, plural and scope.

The built-in resources are listed here; custom resources are added and removed with their definitions. Two resources may
share one `shelf` (storage), because they are versions of the same objects: events of both API groups, and versions of a
CustomResourceDefinition.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
"""An object of the API as decoded JSON."""


def is_ready(pod: Object) -> bool:
    """Returns True if a pod's condition Ready is true."""
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in found)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    type: str
    path: str = ""
    """JSONPath of the value."""
    priority: int = 0
    """0 for a column that is always shown; 1 for a column that only `-o wide` shows."""
    absent: Any = None
    """Value that is shown if the object has none."""
    cell: Callable[[Object], Any] | None = None
    """Function that computes the value; None to use `path`."""


@dataclass(frozen=True, slots=True)
class ServedResource:
    """One served resource in one version."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    singular: str = ""
    has_status: bool = False
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = field(default=(), compare=False)
    schema: Object | None = field(default=None, compare=False)
    """openAPIV3Schema of a custom resource; None for built-in resources, which are not checked."""

    custom: bool = False

    @property
    def name(self) -> str:
        """Name of the resource, such as `pods` or `podgroups.scheduling.sigs.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects: `GROUP/VERSION`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def shelf(self) -> str:
        """Name of the storage. Resources with equal shelves have the same objects, in different versions."""
        return "events" if self.name == "events.events.k8s.io" else self.name


_BUILT_IN = (
    ("", "Pod", "pods", True, ("po",), True),
    ("", "Node", "nodes", False, ("no",), True),
    ("", "Namespace", "namespaces", False, ("ns",), True),
    ("", "Service", "services", True, ("svc",), True),
    ("", "ConfigMap", "configmaps", True, ("cm",), False),
    ("", "Secret", "secrets", True, (), False),
    ("", "ServiceAccount", "serviceaccounts", True, ("sa",), False),
    ("", "PersistentVolume", "persistentvolumes", False, ("pv",), True),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims", True, ("pvc",), True),
    ("", "PodTemplate", "podtemplates", True, (), False),
    ("", "ReplicationController", "replicationcontrollers", True, ("rc",), True),
    ("", "Event", "events", True, ("ev",), False),
    ("apps", "Deployment", "deployments", True, ("deploy",), True),
    ("apps", "ReplicaSet", "replicasets", True, ("rs",), True),
    ("apps", "StatefulSet", "statefulsets", True, ("sts",), True),
    ("apps", "DaemonSet", "daemonsets", True, ("ds",), True),
    ("batch", "Job", "jobs", True, (), True),
    ("coordination.k8s.io", "Lease", "leases", True, (), False),
    ("policy", "PodDisruptionBudget", "poddisruptionbudgets", True, ("pdb",), True),
    ("scheduling.k8s.io", "PriorityClass", "priorityclasses", False, ("pc",), False),
    ("storage.k8s.io", "StorageClass", "storageclasses", False, ("sc",), False),
    ("storage.k8s.io", "CSINode", "csinodes", False, (), False),
    ("storage.k8s.io", "CSIDriver", "csidrivers", False, (), False),
    ("storage.k8s.io", "CSIStorageCapacity", "csistoragecapacities", True, (), False),
    ("storage.k8s.io", "VolumeAttachment", "volumeattachments", False, (), True),
    ("resource.k8s.io", "ResourceSlice", "resourceslices", False, (), False),
    ("resource.k8s.io", "ResourceClaim", "resourceclaims", True, (), True),
    ("resource.k8s.io", "ResourceClaimTemplate", "resourceclaimtemplates", True, (), False),
    ("resource.k8s.io", "DeviceClass", "deviceclasses", False, (), False),
    ("resource.k8s.io", "DeviceTaintRule", "devicetaintrules", False, (), True),
    ("events.k8s.io", "Event", "events", True, ("ev",), False),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", False, ("crd", "crds"), True),
)
"""(group, kind, plural, True if namespaced, short names, True if it has a status) of each resource, in version v1."""
_IN_ALL = frozenset(("pods", "services", "replicationcontrollers"))
"""Resources of the core API that `kubectl get all` shows."""


class Registry:
    """The resources that are served now, by path and by name."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], ServedResource] = {}
        self._by_name: dict[str, ServedResource] = {}
        for group, kind, plural, namespaced, short, status in _BUILT_IN:
            shown = ("all",) if plural in _IN_ALL else ()
            self.add(ServedResource(group, "v1", kind, plural, namespaced, short, has_status=status, categories=shown))

    def add(self, resource: ServedResource) -> None:
        """Adds a resource. It replaces a resource with the same group, version and plural."""
        self._by_path[resource.group, resource.version, resource.plural] = resource
        known = self._by_name.get(resource.name)
        # of several versions of a custom resource, the version that was added first (the storage version) gets the name
        if known is None or known.version == resource.version or not resource.custom:
            self._by_name[resource.name] = resource

    def remove(self, name: str) -> None:
        """Removes a resource in all versions."""
        self._by_name.pop(name, None)
        for key in [key for key, resource in self._by_path.items() if resource.name == name]:
            del self._by_path[key]

    def at(self, group: str, version: str, plural: str) -> ServedResource | None:
        """Returns the resource with a path; None if it is not served."""
        return self._by_path.get((group, version, plural))

    def named(self, name: str) -> ServedResource:
        """Returns the resource with a name such as `pods` or `podgroups.scheduling.sigs.k8s.io`. Raises KeyError."""
        return self._by_name[name]

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(self._by_path.values())

    def groups(self) -> dict[str, list[str]]:
        """Returns group -> versions, without the core group."""
        found: dict[str, list[str]] = {}
        for one in self:
            if one.group and one.version not in found.setdefault(one.group, []):
                found[one.group].append(one.version)
        return found


def resources_of_definition(definition: Object) -> list[ServedResource]:
    """Returns the served versions of a CustomResourceDefinition, the storage version first."""
    spec = definition["spec"]
    names = spec["names"]
    found = []
    for version in sorted(spec["versions"], key=lambda v: not v.get("storage", False)):
        if not version.get("served", True):
            continue
        columns = tuple(
            Column(c["name"], c["type"], c["jsonPath"], c.get("priority", 0))
            for c in version.get("additionalPrinterColumns", ())
        )
        found.append(
            ServedResource(
                group=spec["group"],
                version=version["name"],
                kind=names["kind"],
                plural=names["plural"],
                namespaced=spec.get("scope") == "Namespaced",
                short_names=tuple(names.get("shortNames", ())),
                singular=names.get("singular", ""),
                has_status="status" in (version.get("subresources") or {}),
                categories=tuple(names.get("categories", ())),
                columns=columns,
                schema=(version.get("schema") or {}).get("openAPIV3Schema"),
                custom=True,
            )
        )
    return found
