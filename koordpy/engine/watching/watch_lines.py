"""What a watch and a list say, line by line and item by item: typed where that can be, else as much as can be read.

One typed decode of the whole line costs 30 us; whatever it cannot read is looked at in parts: bookmarks, errors, nulls,
and objects of which at least the name is known.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from koordpy.decoding.wire_json import WireReader
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_replies import Status, reader_of

T = TypeVar("T")


class Event(msgspec.Struct, Generic[T], frozen=True, gc=False):
    type: str
    object: T


class RawEvent(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


class Names(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What must be known of an object even if the rest of it does not decode."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct, frozen=True, gc=False):
    metadata: Names = Names()


_raw_events = msgspec.json.Decoder(RawEvent)
_named = msgspec.json.Decoder(_Named)
OBJECT_EVENTS = (b'{"type":"MODIFIED"', b'{"type":"ADDED"', b'{"type":"DELETED"')


class Malformed(Exception):
    """A line of the watch that is no event."""


def typed(kind: type[T]) -> tuple[Callable[[bytes | msgspec.Raw], T], Callable[[bytes], Event[T]]]:
    """Of a kind: of an object by itself, which raises Undecodable; of a line that starts as OBJECT_EVENTS do, which
    raises ValueError, also of an object with nulls."""
    events: msgspec.json.Decoder[Event[T]] = msgspec.json.Decoder(Event[kind])  # type: ignore[valid-type]
    return WireReader(kind).read, events.decode


def raw_event(line: bytes) -> RawEvent:
    """Any line, with its object undecoded. Raises Malformed."""
    try:
        return _raw_events.decode(line)
    except msgspec.DecodeError as fault:
        raise Malformed(f"malformed event: {fault}: {line[:80]!r}") from fault


def names_in(raw: msgspec.Raw) -> Names:
    """The names of an object, as far as they can be read."""
    try:
        return _named.decode(raw).metadata
    except ValueError:
        return Names()


def refusal(raw: msgspec.Raw) -> ApiError:
    """The error that a watch ended with."""
    try:
        status = reader_of(Status)(raw)
    except ValueError:
        status = Status(message="unreadable error event")
    return ApiError(status.code, status.reason, status.message)
