"""The objects of one resource as they were last seen, and whoever hears of each change of them.

A list and a watch come to the same: the sink is told what is new, what changed and what is gone, each once. A sink that
fails on one object is logged, and hears of all others.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from koordpy.api.field_faults import UnreadableError
from koordpy.api.objects import ObjectMeta
from koordpy.engine.watching.watch_lines import Names

logger = logging.getLogger(__name__)


class HasMeta(Protocol):
    """An object of the API server."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMeta)
S_contra = TypeVar("S_contra", bound=HasMeta, contravariant=True)


class Sink(Protocol[S_contra]):
    """Who hears of changes, in one consistent order. Called from the event loop; must not block.

    After a (re)list the differences come as the same calls: what vanished is deleted; what was deleted and created anew
    under its name is deleted, then upserted. Deletes of a relist come last otherwise, so that room is never seen free
    before those who took it are seen.
    """

    def upsert(self, obj: S_contra, old: S_contra | None) -> None:
        """`obj` is new, or takes the place of `old`: the very object that came last (same uid)."""

    def delete(self, obj: S_contra) -> None:
        """`obj`, the very object that came last, is gone."""


class Mirror(Generic[T]):
    """`objects` by uid, equal to what the sink was told."""

    def __init__(
        self,
        name: str,
        sink: Sink[T],
        transform: Callable[[T], T | None] | None,
        on_refused: Callable[[T, str], None],
    ) -> None:
        """`name` of the resource, for messages. `transform` runs before the sink; None drops the object (one that the
        sink has is deleted from it). `on_refused` hears of an object that the sink cannot read, and why."""
        self.objects: dict[str, T] = {}
        self._name, self._sink, self._transform, self._on_refused = name, sink, transform, on_refused

    def kept(self, obj: T) -> T | None:
        """What is kept of an object; None of one that is dropped."""
        if self._transform is None:
            return obj
        try:
            return self._transform(obj)
        except Exception:
            logger.exception("%s: %s could not be taken in as a whole", self._name, label_of(obj.metadata))
            return obj

    def put(self, uid: str, obj: T, known: T | None) -> None:
        """An object is new, or takes the place of the one that is known."""
        self.objects[uid] = obj
        try:
            self._sink.upsert(obj, known)
        except UnreadableError as fault:
            logger.debug("%s: %s was refused", self._name, label_of(obj.metadata), exc_info=True)
            self._on_refused(obj, str(fault))
        except Exception:
            logger.exception("%s: %s was not taken in", self._name, label_of(obj.metadata))

    def drop(self, uid: str) -> None:
        known = self.objects.pop(uid, None)
        if known is None:
            return
        try:
            self._sink.delete(known)
        except Exception:
            logger.exception("%s: the end of %s was not taken in", self._name, label_of(known.metadata))

    def become(self, fresh: dict[str, T]) -> Iterator[None]:
        """Makes the changes from what is known to a whole list, one a step."""
        vanished = {
            (old.metadata.namespace, old.metadata.name): uid for uid, old in self.objects.items() if uid not in fresh
        }
        for uid, obj in fresh.items():
            known = self.objects.get(uid)
            if known is obj:
                continue
            if known is None and (namesake := vanished.pop((obj.metadata.namespace, obj.metadata.name), None)):
                self.drop(namesake)
            self.put(uid, obj, known)
            yield
        for uid in vanished.values():
            self.drop(uid)
            yield


def uid_of(metadata: ObjectMeta | Names) -> str:
    """Its uid, or its name where it has none."""
    return metadata.uid or f"{metadata.namespace}/{metadata.name}"


def label_of(metadata: ObjectMeta | Names) -> str:
    """`namespace/name`, or what there is of it."""
    name = metadata.name or "an object without a name"
    return f"{metadata.namespace}/{name}" if metadata.namespace else name
