# SPDX-License-Identifier: Apache-2.0
"""Defines `ObjectBook`: stores the objects of a few kinds, updated per event, and builds an immutable view of them.

The view is built again only after a change. Storage, resource claims and owners of pods use this class; each has its
own type of view.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from koordpy.api.objects import Wire

V = TypeVar("V")
W = TypeVar("W", bound=Wire)

Objects = Mapping[type[Wire], Mapping[str, Any]]
"""Kind -> key of an object (`namespace/name`, or its name if it is cluster-scoped) -> object."""


def object_key(obj: Any) -> str:
    """Returns `namespace/name` of an object; the name alone if it has no namespace."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else str(meta.name)


class ObjectBook(Generic[V]):
    """The current objects of the given kinds, and the view of them."""

    def __init__(self, kinds: Iterable[type[Wire]], make_view: Callable[[Objects], V]) -> None:
        """make_view: returns an immutable view of the given objects."""
        self._objects: dict[type[Wire], dict[str, Any]] = {kind: {} for kind in kinds}
        self._make_view = make_view
        self._view: V | None = make_view({kind: {} for kind in kinds})

    @property
    def kinds(self) -> tuple[type[Wire], ...]:
        """The kinds of objects that are stored."""
        return tuple(self._objects)

    def put(self, obj: Wire) -> None:
        """Adds or updates an object. Raises `UnreadableError` if the object is invalid, and then changes nothing."""
        objects, key = self._objects[type(obj)], object_key(obj)
        if self._changes(objects.get(key), obj):
            self._view = None
        objects[key] = obj

    def drop(self, kind: type[Wire], key: str) -> None:
        """Removes an object; an unknown key is ignored."""
        if self._objects[kind].pop(key, None) is not None:
            self._view = None

    def get(self, kind: type[W], key: str) -> W | None:
        """Returns an object; None for an unknown key."""
        found: W | None = self._objects[kind].get(key)
        return found

    def view(self) -> V:
        """Returns the view of the current objects. Immutable."""
        if self._view is None:
            self._view = self._make_view({kind: objects.copy() for kind, objects in self._objects.items()})
        return self._view

    def _changes(self, known: Any, obj: Any) -> bool:
        """Returns True if the view must be built again after `obj` replaces `known` (None for a new object)."""
        return bool(known != obj)
