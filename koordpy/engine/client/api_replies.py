# SPDX-License-Identifier: Apache-2.0
"""Types of the API server's replies (pages of lists, errors, objects), and the comparison of resource versions."""

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from koordpy.api.objects import Wire
from koordpy.decoding.wire_json import WireReader

T = TypeVar("T")


class ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Metadata of a page. continue_: token of the next page; empty for the last page."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One page of a list. `Page[msgspec.Raw]` leaves the items undecoded."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class Status(msgspec.Struct, frozen=True, gc=False):
    """The reply that describes an error, or that ends a watch. code: HTTP status."""

    code: int = 500
    reason: str = ""
    message: str = ""
    details: dict[str, Any] | None = None


@functools.cache
def reader_of(kind: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Returns a decoder for replies of a type. The decoder raises ValueError for JSON that does not fit the type."""
    is_wire = isinstance(kind, type) and issubclass(kind, Wire)
    return WireReader(kind).read if is_wire else msgspec.json.Decoder(kind).decode


def shown(body: bytes) -> str:
    """Returns the beginning of a non-JSON reply, for messages."""
    return body[:200].decode("utf-8", "replace").strip()


def is_older(version: str, than: str) -> bool:
    """Returns True if a resource version is older than another. False if one is not a number: the order is unknown."""
    numbers = all(text.isascii() and text.isdigit() for text in (version, than))
    return numbers and int(version) < int(than)


def reached(version: str, wanted: str) -> bool:
    """Returns True if a resource version is at least `wanted`. Resource versions are increasing numbers (KEP-5504).

    Versions that are not numbers are only compared for equality. An empty `wanted` is always reached.
    """
    if not wanted:
        return True
    if version.isascii() and version.isdigit() and wanted.isascii() and wanted.isdigit():
        return int(version) >= int(wanted)
    return version == wanted
