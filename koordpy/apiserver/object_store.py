# SPDX-License-Identifier: Apache-2.0
"""The objects of the embedded cluster, with an API server's rules for versions, conflicts, finalizers and deletion.

The HTTP handlers use it. Tests and the demo may use it directly, with resource names such as `pods` or
`podgroups.scheduling.sigs.k8s.io`. All code runs in the thread of one event loop and never waits, so every operation is
atomic. Listeners are called after each change; the controllers and the kubelet are listeners.
"""

import random
import time
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from koordpy.api.times import rfc3339
from koordpy.apiserver import status_errors, write_rules
from koordpy.apiserver.resource_shelf import Change, ChangeListener, Key, Shelf, ShelfEntry, stored
from koordpy.apiserver.served_resources import Object, Registry, ServedResource
from koordpy.apiserver.status_errors import StatusError

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names, as in kube-apiserver: without vowels, so that no words result."""
_PAGED_LISTS = 32
"""Maximum number of states that are stored so that the later pages of a list show the same state."""

Pages = list[tuple[Key, ShelfEntry]]
"""All entries of a resource at one version, sorted by key."""


class Store:
    """All objects of the cluster, by resource."""

    def __init__(self, *, clock: Callable[[], float] = time.time, seed: int | None = None) -> None:
        """clock: returns seconds since the epoch. seed: makes uids equal in every run; two stores of one client must
        have different seeds. None: random uids. Names from generateName are equal in every run anyway."""
        self.registry = Registry()  # the resources that are served
        self.version = 1  # of the last change, over all resources
        self.listeners: list[ChangeListener] = []
        self._clock = clock
        self._shelves = defaultdict[str, Shelf](Shelf)
        self._pages: OrderedDict[tuple[str, int], Pages] = OrderedDict()
        self._random = random.Random(0)  # names from generateName are equal in every run
        self._uids = random.Random(seed) if seed is not None else None

    # Reading

    def resource(self, resource: str | ServedResource) -> ServedResource:
        """Returns the resource with a name. Raises KeyError."""
        return resource if isinstance(resource, ServedResource) else self.registry.named(resource)

    def shelf(self, resource: str | ServedResource) -> Shelf:
        """Returns the storage of a resource's objects."""
        return self._shelves[self.resource(resource).shelf]

    def now(self) -> str:
        """Returns the current time in RFC 3339, in whole seconds."""
        return rfc3339(self._clock())

    def seconds(self) -> float:
        """Returns the current time in seconds since the epoch."""
        return self._clock()

    def entry(self, resource: str | ServedResource, name: str, namespace: str = "") -> ShelfEntry:
        """Returns an object with its version. Raises StatusError 404."""
        resource = self.resource(resource)
        found = self.shelf(resource).entries.get(self._key(resource, name, namespace))
        if found is None:
            raise status_errors.not_found(resource, name)
        return found

    def get(self, resource: str | ServedResource, name: str, namespace: str = "") -> Object:
        """Returns an object, which must not be changed in place. Raises StatusError 404."""
        return self.entry(resource, name, namespace).obj

    def list(self, resource: str | ServedResource, namespace: str | None = None) -> "list[Object]":
        """Returns objects, sorted by namespace and name. namespace: None for all namespaces."""
        ordered = self.shelf(self.resource(resource)).ordered()
        return [entry.obj for (space, _), entry in ordered if namespace is None or space == namespace]

    def pages(self, resource: ServedResource, version: int | None) -> tuple[int, Pages]:
        """Returns (version, every entry in order at this version). version: None for the current version.

        Raises StatusError 410 if the state at this version is no longer stored.
        """
        if version is None:
            return self.version, self.shelf(resource).ordered()
        kept = self._pages.get((resource.shelf, version))
        if kept is None:
            raise StatusError(
                410,
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter.",
            )
        return version, kept

    def keep_pages(self, resource: ServedResource, version: int, pages: Pages) -> None:
        """Stores a state for later pages; drops the oldest state if there are more than `_PAGED_LISTS`."""
        self._pages[resource.shelf, version] = pages
        self._pages.move_to_end((resource.shelf, version))
        while len(self._pages) > _PAGED_LISTS:
            self._pages.popitem(last=False)

    # Writing

    def create(self, resource: str | ServedResource, obj: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Stores a new object, and returns it. A status is left out if the resource has a status subresource, except of
        nodes.

        Raises StatusError: 400 if metadata is not an object, 403 if its namespace is being deleted, 404 if its
        namespace does not exist, 409 if it exists, 422 if it is invalid.
        """
        resource = self.resource(resource)
        given = obj.get("metadata") or {}
        if not isinstance(given, dict):
            raise StatusError(400, "metadata must be an object")
        if resource.namespaced:
            namespace = namespace or given.get("namespace") or "default"
            self._check_namespace(resource, namespace)
        else:
            namespace = ""
        name = given.get("name") or self._generated(resource, given.get("generateName") or "", namespace)
        now = self.now()
        meta: Object = {"name": name}
        if resource.namespaced:
            meta["namespace"] = namespace
        meta |= {"uid": self._new_uid(), "resourceVersion": "", "creationTimestamp": now}  # `replace` sets the version
        if resource.custom or resource.shelf in write_rules.WITH_GENERATION:
            meta["generation"] = 1
        meta |= write_rules.metadata_of_create(given)
        write_rules.check_metadata(resource, meta)
        new: Object = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        new |= {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
        if resource.has_status and resource.shelf != "nodes":  # a kubelet creates its node with a status
            new.pop("status", None)
        new = self._admitted(resource, new, now)
        if (namespace, name) in self.shelf(resource).entries:
            raise status_errors.already_exists(resource, name)
        return self.replace(resource, (namespace, name), new).obj

    def _new_uid(self) -> str:
        made = uuid.uuid4() if self._uids is None else uuid.UUID(int=self._uids.getrandbits(128), version=4)
        return str(made)

    def update(
        self,
        resource: str | ServedResource,
        name: str,
        change: Callable[[Object], Object],
        *,
        namespace: str = "",
        status: bool = False,
    ) -> ShelfEntry:
        """Replaces an object with `change(object)`, which must not change its argument in place.

        status: True to write only the status (and metadata of built-in objects), False to write everything except a
        status subresource. A metadata.resourceVersion in the result is a precondition. An update without a change
        writes nothing. Raises StatusError 404, 409, 422.
        """
        resource = self.resource(resource)
        before = self.entry(resource, name, namespace)
        wanted = change(before.obj)
        old, meta = before.obj, write_rules.metadata_of_update(resource, before.obj, wanted)
        if status:
            kept = {key: value for key, value in old.items() if key not in ("metadata", "status")}
            if resource.custom:  # a status update of a built-in object also writes labels and annotations
                managed = meta.get("managedFields")
                meta = {**old["metadata"], **({"managedFields": managed} if managed else {})}
            new = {**kept, "metadata": meta}
            if wanted.get("status") is not None:
                new["status"] = wanted["status"]
        else:
            new = {**wanted, "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": meta}
            if resource.has_status:
                new.pop("status", None)
                if "status" in old:
                    new["status"] = old["status"]
        if resource.custom:
            new = write_rules.checked_custom_object(resource, new)
        elif not status:
            if resource.shelf == "pods":
                write_rules.check_pod_update(resource, old, new)
            write_rules.check_metadata(resource, meta)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return before
        counted = resource.custom or resource.shelf in write_rules.WITH_GENERATION
        if counted and not status and write_rules.spec_part(new) != write_rules.spec_part(old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        entry = self.replace(resource, self._key(resource, name, namespace), new)
        if write_rules.may_go(entry.obj):
            self.remove(resource, name, namespace)
        return entry

    def set_status(self, resource: str, obj: Object, status: Object) -> None:
        """Replaces the status of an object, even if the object has changed since."""
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        self.update(resource, name, lambda old: {**old, "status": status}, namespace=namespace, status=True)

    def replace(self, resource: ServedResource, key: Key, new: Object) -> ShelfEntry:
        """Stores a new state of an object without checks. `new` and its metadata must not be shared mappings."""
        new = stored(resource, new)
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        entry = ShelfEntry(new, self.version)
        self._tell(resource, self.shelf(resource).put(key, entry))
        return entry

    def delete(
        self, resource: str | ServedResource, name: str, *, namespace: str = "", options: Object | None = None
    ) -> tuple[Object, bool]:
        """Deletes an object. Returns (last state, True if it is removed). False: it is only marked as deleted, until
        its finalizers are removed, or the kubelet has ended the pod.

        options: DeleteOptions with gracePeriodSeconds, preconditions and propagationPolicy; of the latter only Orphan
        has an effect. Raises StatusError 404, 409.
        """
        resource = self.resource(resource)
        entry = self.entry(resource, name, namespace)
        options = options or {}
        meta = entry.obj["metadata"]
        status_errors.check_preconditions(resource, entry.obj, options.get("preconditions") or {})
        if options.get("propagationPolicy") == "Orphan":
            self._orphan(meta["uid"])
        if resource.shelf == "namespaces":
            self._empty_namespace(name)
        grace = write_rules.grace_seconds(resource, entry.obj, options)
        if grace == 0 and not meta.get("finalizers"):
            last = self.remove(resource, name, namespace)
            return (write_rules.marked(last, self._clock()) if resource.shelf == "pods" else last), True
        # a second deletion can only shorten the grace period
        pending = meta.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" in meta and (pending is None or pending <= grace):
            return entry.obj, False
        key = self._key(resource, name, namespace)
        return self.replace(resource, key, write_rules.marked(entry.obj, self._clock(), grace)).obj, False

    def remove(self, resource: str | ServedResource, name: str, namespace: str = "") -> Object:
        """Removes an object at once, even if it has finalizers, and returns its last state."""
        resource = self.resource(resource)
        last = self.entry(resource, name, namespace).obj
        self.version += 1
        gone = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
        change = self.shelf(resource).remove(self._key(resource, name, namespace), ShelfEntry(gone, self.version))
        self._tell(resource, change)
        return last

    def end_watches(self, resource: str | None = None, *, abort: bool = False) -> int:
        """Ends the open watches of one resource, or of all (None), and returns their number."""
        shelves = list(self._shelves.values()) if resource is None else [self.shelf(resource)]
        return sum(shelf.end_watches(abort=abort) for shelf in shelves)

    # Helpers

    def _key(self, resource: ServedResource, name: str, namespace: str) -> Key:
        return ((namespace or "default") if resource.namespaced else "", name)

    def _tell(self, resource: ServedResource, change: Change) -> None:
        for listener in self.listeners:
            listener(resource.shelf, change)

    def _check_namespace(self, resource: ServedResource, namespace: str) -> None:
        """Raises StatusError 404 if the namespace does not exist, 403 if it is being deleted."""
        found = self.shelf("namespaces").entries.get(("", namespace))
        if found is None:
            raise status_errors.not_found(self.resource("namespaces"), namespace)
        if "deletionTimestamp" in found.obj["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise status_errors.forbidden(resource, "", why)

    def _generated(self, resource: ServedResource, prefix: str, namespace: str) -> str:
        """Returns an unused name: the prefix (generateName) and 5 random letters, at most 63 characters."""
        if not prefix:
            fault = ("metadata.name", "FieldValueRequired", "Required value: name or generateName is required")
            raise status_errors.invalid(resource, "", fault)
        taken = self.shelf(resource).entries
        while True:
            name = prefix[:58] + "".join(self._random.choices(_ALPHABET, k=5))
            if (namespace, name) not in taken:
                return name

    def _admitted(self, resource: ServedResource, new: Object, now: str) -> Object:
        """Returns a new object with defaults. Raises StatusError if it is invalid."""
        if resource.custom:
            return write_rules.checked_custom_object(resource, new)
        if resource.shelf == "pods":
            return write_rules.new_pod(resource, new, classes=self.list("priorityclasses.scheduling.k8s.io"), now=now)
        return write_rules.new_object(resource, new)

    def _orphan(self, uid: str) -> None:
        """Removes an owner from the ownerReferences of all objects, so that they are not deleted with it."""

        def alone(old: Object) -> Object:
            owners = [one for one in old["metadata"]["ownerReferences"] if one["uid"] != uid]
            return {**old, "metadata": {**old["metadata"], "ownerReferences": owners}}

        for resource in self.registry:
            for (namespace, name), entry in list(self.shelf(resource).entries.items()):
                if any(one["uid"] == uid for one in entry.obj["metadata"].get("ownerReferences") or ()):
                    self.update(resource, name, alone, namespace=namespace)

    def _empty_namespace(self, namespace: str) -> None:
        """Removes all objects of a namespace at once, without grace periods and finalizers."""
        for name in {resource.name for resource in self.registry if resource.namespaced}:
            for space, item in list(self.shelf(name).entries):
                if space == namespace:
                    self.remove(name, item, namespace)
