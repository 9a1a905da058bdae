# SPDX-License-Identifier: Apache-2.0
"""Loads koordpy's CustomResourceDefinitions, and serves custom resources as long as their definition is stored."""

from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import Change
from koordpy.apiserver.served_resources import Object, resources_of_definition
from koordpy.decoding.shipped_files import definitions_by_file

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def shipped_definitions() -> tuple[Object, ...]:
    """Returns koordpy's CustomResourceDefinitions, by file name. The objects are shared and must not be changed."""
    return tuple(definitions_by_file().values())


class Definitions:
    """Serves each custom resource while its CustomResourceDefinition is stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listeners.append(self._changed)

    def _changed(self, shelf: str, change: Change) -> None:
        """Adds, replaces or removes the resources of a definition. Called after every change in the store."""
        if shelf != DEFINITIONS:
            return
        definition = change.entry.obj
        name = definition["metadata"]["name"]
        if change.kind == "DELETED":
            self._withdraw(name)
            return
        if change.before is not None and change.before.obj["spec"] == definition["spec"]:
            return
        self._store.registry.remove(name)
        for resource in resources_of_definition(definition):
            self._store.registry.add(resource)
        if change.kind == "ADDED":
            self._accept(definition)

    def _withdraw(self, name: str) -> None:
        """Stops serving a resource: deletes its objects, and ends its watches. name: name of the definition."""
        if any(resource.name == name for resource in self._store.registry):
            for namespace, item in list(self._store.shelf(name).entries):
                self._store.remove(name, item, namespace)
            self._store.shelf(name).end_watches()
        self._store.registry.remove(name)

    def _accept(self, definition: Object) -> None:
        """Writes the status of a new definition; clients wait for its condition Established."""
        now = self._store.now()
        names = definition["spec"]["names"]
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "message": text, "lastTransitionTime": now}
            for kind, reason, text in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            )
        ]
        stored = [version["name"] for version in definition["spec"]["versions"] if version.get("storage")]
        filled = {"singular": names["kind"].lower(), "listKind": f"{names['kind']}List", **names}
        status = {"conditions": conditions, "acceptedNames": filled, "storedVersions": stored}
        self._store.set_status(DEFINITIONS, definition, status)
