"""What the API server replies: pages of lists, errors, objects of any kind, and resource versions as an order."""

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from koordpy.api.objects import Wire
from koordpy.decoding.wire_json import WireReader

T = TypeVar("T")


class ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One page of a list. `Page[msgspec.Raw]` leaves the items undecoded."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class Status(msgspec.Struct, frozen=True, gc=False):
    """What comes in place of an object with an error, or ends a watch."""

    code: int = 500
    reason: str = ""
    message: str = ""
    details: dict[str, Any] | None = None


@functools.cache
def reader_of(kind: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Reads replies of a kind; raises ValueError where one is no such object."""
    is_wire = isinstance(kind, type) and issubclass(kind, Wire)
    return WireReader(kind).read if is_wire else msgspec.json.Decoder(kind).decode


def shown(body: bytes) -> str:
    """The beginning of an answer that is no JSON."""
    return body[:200].decode("utf-8", "replace").strip()


def is_older(version: str, than: str) -> bool:
    """Whether a resource version is known to come before another."""
    numbers = all(text.isascii() and text.isdigit() for text in (version, than))
    return numbers and int(version) < int(than)


def reached(version: str, wanted: str) -> bool:
    """Whether a resource version is at least another; they count up (KEP-5504), and equal ones are equal anyhow.

    Nothing is wanted by an empty one.
    """
    if not wanted:
        return True
    if version.isascii() and version.isdigit() and wanted.isascii() and wanted.isdigit():
        return int(version) >= int(wanted)
    return version == wanted
