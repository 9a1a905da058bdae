"""Objects of a few kinds as they come and go, and a view of them that is made once for each state.

The storage side, the resource claims and the owners of pods differ in what they answer, not in how their objects are
kept.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from koordpy.api.objects import Wire

V = TypeVar("V")
W = TypeVar("W", bound=Wire)

Objects = Mapping[type[Wire], Mapping[str, Any]]
"""Kind -> `namespace/name`, or a cluster-scoped name -> object."""


def object_key(obj: Any) -> str:
    """`namespace/name` of an object, the name alone where it has no namespace."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else str(meta.name)


class ObjectBook(Generic[V]):
    """The objects as they are now."""

    def __init__(self, kinds: Iterable[type[Wire]], make_view: Callable[[Objects], V]) -> None:
        self._objects: dict[type[Wire], dict[str, Any]] = {kind: {} for kind in kinds}
        self._make_view = make_view
        self._view: V | None = make_view({kind: {} for kind in kinds})

    @property
    def kinds(self) -> tuple[type[Wire], ...]:
        return tuple(self._objects)

    def put(self, obj: Wire) -> None:
        """Takes an object. Raises UnreadableError where something in it cannot be read; nothing changes then."""
        objects, key = self._objects[type(obj)], object_key(obj)
        if self._changes(objects.get(key), obj):
            self._view = None
        objects[key] = obj

    def drop(self, kind: type[Wire], key: str) -> None:
        """Forgets an object; an unknown one is no fault."""
        if self._objects[kind].pop(key, None) is not None:
            self._view = None

    def get(self, kind: type[W], key: str) -> W | None:
        found: W | None = self._objects[kind].get(key)
        return found

    def view(self) -> V:
        """The objects of this moment; nothing in it changes."""
        if self._view is None:
            self._view = self._make_view({kind: objects.copy() for kind, objects in self._objects.items()})
        return self._view

    def _changes(self, known: Any, obj: Any) -> bool:
        """Whether the view is another one with the object in place of the known one (None: there was none)."""
        return bool(known != obj)
