"""List and watch of one resource, kept up for ever (kube-parity.md 4.1). [signatures; body follows]"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from koordpy.api.objects import ObjectMeta
from koordpy.engine.client import ApiClient
from koordpy.engine.resources import Resource


class HasMeta(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMeta)
S_contra = TypeVar("S_contra", bound=HasMeta, contravariant=True)


class Sink(Protocol[S_contra]):
    """Who hears of changes, in one consistent order. Called from the event loop; must not block.

    After a (re)list the differences come as the same calls: an object that vanished is deleted, one that was deleted and
    created anew under its name is deleted and then upserted.
    """

    def upsert(self, obj: S_contra, old: S_contra | None) -> None:
        """`obj` is new, or takes the place of `old`: the very object that came last (same uid)."""

    def delete(self, obj: S_contra) -> None:
        """`obj`, the very object that came last, is gone."""


@dataclass(slots=True)
class ReflectorCounters:
    events: int = 0
    bookmarks: int = 0
    lists: int = 0
    watches: int = 0
    expired: int = 0
    stalls: int = 0
    failures: int = 0
    decode_errors: int = 0
    sink_errors: int = 0


class Reflector(Generic[T]):
    """Keeps `objects` (by uid) and the sink equal to what the API server holds; `run()` never ends but by cancelling."""

    resource: Resource
    objects: dict[str, T]
    synced: asyncio.Event
    """Set after the first complete list, and where the server does not serve the resource (404): empty then."""
    served: bool
    counters: ReflectorCounters

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        kind: type[T],
        sink: Sink[T],
        *,
        transform: Callable[[T], T | None] | None = None,
        on_applied: Callable[[str, int, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`transform` runs before the sink; None drops the object (a known one is deleted from the sink).
        `on_applied(resource name, events, seconds from arrival to applied)` after each batch, for koordpy_watch_lag_seconds.
        """
        raise NotImplementedError

    @property
    def last_event_age(self) -> float:
        """Seconds since the server was last heard (event, bookmark or list)."""
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError
