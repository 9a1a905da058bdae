# SPDX-License-Identifier: Apache-2.0
"""Stores the objects of one resource as last seen, and calls a sink once for each change of an object.

A list is compared with the stored objects, and the sink gets the differences as if they were watch events. If the sink
fails on one object, the error is logged, and the sink still gets all other objects.
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
    def metadata(self) -> ObjectMeta:
        """Its metadata."""
        ...


T = TypeVar("T", bound=HasMeta)
S_contra = TypeVar("S_contra", bound=HasMeta, contravariant=True)


class Sink(Protocol[S_contra]):
    """Receives the changes of one resource in order. Called on the event loop; must not block.

    After a list the differences arrive as the same calls. An object that was deleted and created again under its name
    is deleted, then upserted. All other deletions of a list come last, so that capacity never looks free before the
    pods that use it are stored.
    """

    def upsert(self, obj: S_contra, old: S_contra | None) -> None:
        """Called for a new or changed object. old: the object that was passed last with this uid; None if the object is
        new."""

    def delete(self, obj: S_contra) -> None:
        """Called for a deleted object; `obj` is the object passed last."""


class Mirror(Generic[T]):
    """Stores the objects of one resource by uid, as they were passed to the sink, even if the sink failed on them."""

    def __init__(
        self,
        name: str,
        sink: Sink[T],
        transform: Callable[[T], T | None] | None,
        on_refused: Callable[[T, str], None],
    ) -> None:
        """name: of the resource, for messages. transform: function that `reduce` applies; its result None means that
        the object is not stored. on_refused: called with an object that the sink cannot read, and the reason."""
        self.objects: dict[str, T] = {}
        """uid -> object as it was passed to the sink last."""
        self._name, self._sink, self._transform, self._on_refused = name, sink, transform, on_refused

    def reduce(self, obj: T) -> T | None:
        """Returns the object after `transform`; None if `transform` drops it."""
        if self._transform is None:
            return obj
        try:
            return self._transform(obj)
        except Exception:
            logger.exception(
                "%s: %s could not be reduced, so all its fields are stored", self._name, label_of(obj.metadata)
            )
            return obj

    def put(self, uid: str, obj: T, known: T | None) -> None:
        """Stores an object and passes it to the sink. known: the object that it replaces; None for a new one."""
        self.objects[uid] = obj
        try:
            self._sink.upsert(obj, known)
        except UnreadableError as fault:
            logger.debug("%s: %s was refused", self._name, label_of(obj.metadata), exc_info=True)
            self._on_refused(obj, str(fault))
        except Exception:
            logger.exception("%s: the change of %s could not be handled", self._name, label_of(obj.metadata))

    def drop(self, uid: str) -> None:
        """Removes an object, and deletes it from the sink. An unknown uid is ignored."""
        known = self.objects.pop(uid, None)
        if known is None:
            return
        try:
            self._sink.delete(known)
        except Exception:
            logger.exception("%s: the deletion of %s could not be handled", self._name, label_of(known.metadata))

    def become(self, fresh: dict[str, T]) -> Iterator[None]:
        """Applies a whole list, one change per step, so that the caller can give way to other tasks between steps.

        fresh: uid -> object, after `transform`; an unchanged object is the stored object itself.
        """
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
    """Returns the uid; `namespace/name` if there is none."""
    return metadata.uid or f"{metadata.namespace}/{metadata.name}"


def label_of(metadata: ObjectMeta | Names) -> str:
    """Returns `namespace/name`, or the parts of it that exist."""
    name = metadata.name or "an object without a name"
    return f"{metadata.namespace}/{name}" if metadata.namespace else name
