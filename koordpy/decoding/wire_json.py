# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON of the API server into wire objects: first fast with msgspec, and if that fails, again as a manifest.

Go writes null for an empty list or mapping without `omitempty`, and for an unset time; null then means an absent field.
msgspec rejects null in a field of type list, and a default of None in every struct would cost memory for each pod. So
an object that msgspec rejects is decoded again by `strict_decoding.py`, which accepts null and finds all faults. This
is rare, and costs ten times as much.
"""

import re
from typing import Any, Generic, TypeVar

import msgspec

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta
from koordpy.decoding.strict_decoding import decode

T = TypeVar("T")


class Undecodable(ValueError, Generic[T]):
    """An object cannot be read. The text has the fault of each field, as in messages on manifests."""

    def __init__(self, why: str, rest: T | None = None, parts: frozenset[str] = frozenset()) -> None:
        super().__init__(why)
        self.rest = rest
        """The readable part of the object; None if no part is readable."""
        self.parts = parts
        """Names of the top-level fields that contain faults, such as spec."""


class WireReader(Generic[T]):
    """Reads the JSON of one kind of object."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, raw: bytes | msgspec.Raw) -> T:
        """Returns an object. Raises `Undecodable`."""
        try:
            return self._decode(raw)
        except ValueError as error:  # also raised for a text that is not UTF-8
            try:
                plain = msgspec.json.decode(raw)
            except (ValueError, RecursionError):
                raise Undecodable[T](str(error)) from error
            return _walked(plain, self._kind, error)


def read_plain(raw: Any, kind: type[T]) -> T:
    """Returns an object from JSON that is already decoded. Raises `Undecodable`."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        return _walked(raw, kind, error)


def unreadable(metadata: ObjectMeta) -> str:
    """Returns the faults of an object that could not be read; empty for an object that was read.

    The cache stores a substitute for an unreadable object. An annotation of the substitute has the faults.
    """
    return metadata.annotations.get(keys.UNREADABLE, "")


def _walked(raw: Any, kind: type[T], error: Exception) -> T:
    """Decodes an object that msgspec rejected as a manifest. Raises `Undecodable`. error: the fault that msgspec
    found."""
    try:
        found = decode(raw, kind)
    except RecursionError:
        raise Undecodable[T](str(error)) from error
    if found.value is not None:
        return found.value
    parts = frozenset(re.split(r"[.[]", fault.path)[0] for fault in found.faults)
    raise Undecodable("; ".join(map(str, found.faults)), found.rest, parts) from error
