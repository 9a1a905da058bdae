"""Kinds that two API groups serve: of two objects with one key that of the first group counts (vocabulary.md 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from koordpy.api.objects import Wire
from koordpy.cluster.objectbook import object_key
from koordpy.engine.apiserver.resources import Resource

T = TypeVar("T", bound=Wire)


class ServedVersions(Generic[T]):
    """Tells `put` of the object that counts under each key, and `drop` of the last one when none is left."""

    def __init__(
        self, first: Resource, second: Resource, *, put: Callable[[T], None], drop: Callable[[T], None]
    ) -> None:
        self.resources: dict[str, Resource] = {}
        """Key -> where the object that counts lives."""
        self._first, self._second = first, second
        self._put, self._drop = put, drop
        self._seconds: dict[str, T] = {}

    def sinks(self) -> tuple[tuple[Resource, "_One[T]"], tuple[Resource, "_One[T]"]]:
        """A sink for each of the two."""
        return (self._first, _One(self, self._first)), (self._second, _One(self, self._second))

    def upsert(self, resource: Resource, obj: T) -> None:
        """An object of one of the two came or changed."""
        key = object_key(obj)
        if resource == self._second:
            self._seconds[key] = obj
            if self.resources.get(key) == self._first:
                return
        self.resources[key] = resource
        self._put(obj)

    def delete(self, resource: Resource, obj: T) -> None:
        """An object of one of the two is gone: the other counts from now on, if there is one."""
        key = object_key(obj)
        if resource == self._second:
            self._seconds.pop(key, None)
        if self.resources.get(key) != resource:
            return
        other = self._seconds.get(key)
        if other is not None:
            self.resources[key] = self._second
            self._put(other)
        else:
            del self.resources[key]
            self._drop(obj)


@dataclass(frozen=True, slots=True)
class _One(Generic[T]):
    """The sink of one of the two."""

    twins: ServedVersions[T]
    resource: Resource

    def upsert(self, obj: T, old: T | None) -> None:
        self.twins.upsert(self.resource, obj)

    def delete(self, obj: T) -> None:
        self.twins.delete(self.resource, obj)
