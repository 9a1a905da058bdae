# SPDX-License-Identifier: Apache-2.0
"""Decodes the lines of a watch and the items of a list.

The fast way decodes a whole line into a typed event, which takes 30 us. It fails for bookmarks, errors, objects with
nulls, and objects with a field of a wrong type. Such lines are decoded in two steps: first the type of the event, then
all fields of the object that can be read.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from koordpy.decoding.wire_json import WireReader
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_replies import Status, reader_of

T = TypeVar("T")


class Event(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One event with its decoded object. type: ADDED, MODIFIED or DELETED."""

    type: str
    object: T


class RawEvent(msgspec.Struct, frozen=True, gc=False):
    """One event with its object as JSON. type: also BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class Names(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Fields that identify an object even if the rest of it cannot be decoded."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct, frozen=True, gc=False):
    """An object of which only the identifying fields are decoded."""

    metadata: Names = Names()


_raw_events = msgspec.json.Decoder(RawEvent)
_named = msgspec.json.Decoder(_Named)
OBJECT_EVENTS = (b'{"type":"MODIFIED"', b'{"type":"ADDED"', b'{"type":"DELETED"')
"""Beginnings of the lines that the fast way can decode."""


class Malformed(Exception):
    """A line of the watch that is not an event."""


def typed(kind: type[T]) -> tuple[Callable[[bytes | msgspec.Raw], T], Callable[[bytes], Event[T]]]:
    """Returns two decoders for a kind of object.

    The first decodes an object, and raises Undecodable. The second decodes an event line that starts with one of
    OBJECT_EVENTS. It raises ValueError, also for objects with nulls.
    """
    events: msgspec.json.Decoder[Event[T]] = msgspec.json.Decoder(Event[kind])  # type: ignore[valid-type]
    return WireReader(kind).read, events.decode


def raw_event(line: bytes) -> RawEvent:
    """Decodes any event line, but leaves its object as JSON. Raises Malformed."""
    try:
        return _raw_events.decode(line)
    except msgspec.DecodeError as fault:
        raise Malformed(f"malformed event: {fault}: {line[:80]!r}") from fault


def names_in(raw: msgspec.Raw) -> Names:
    """Returns the identifying fields of an object; empty if they cannot be read."""
    try:
        return _named.decode(raw).metadata
    except ValueError:
        return Names()


def refusal(raw: msgspec.Raw) -> ApiError:
    """Returns the error in an event of type ERROR, which ends a watch. raw: its Status object."""
    try:
        status = reader_of(Status)(raw)
    except ValueError:
        status = Status(message="unreadable error event")
    return ApiError(status.code, status.reason, status.message)
