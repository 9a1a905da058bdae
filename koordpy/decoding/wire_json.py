"""What an API server prints, read into wire structs: null is an absent field.

Go prints null for an empty list or mapping whose field has no `omitempty`, and for a time that is not set. To msgspec
null is a value of a wrong type, and a default of None in every struct would cost each pod. So what does not decode by
its type is walked once more as manifests are (`koordpy.decoding.strict_decoding`): seldom, and then for ten times the
price.
"""

import re
from typing import Any, Generic, TypeVar

import msgspec

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta
from koordpy.decoding.strict_decoding import decode

T = TypeVar("T")


class Undecodable(ValueError, Generic[T]):
    """Why an object cannot be read, by its fields and in the words of manifests."""

    def __init__(self, why: str, rest: T | None = None, parts: frozenset[str] = frozenset()) -> None:
        super().__init__(why)
        self.rest = rest
        """What of it can be read; None where nothing can."""
        self.parts = parts
        """The fields of the object itself, such as spec, that have faults in them."""


class WireReader(Generic[T]):
    """Reads the JSON of one kind of object."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, raw: bytes | msgspec.Raw) -> T:
        """An object. Raises Undecodable."""
        try:
            return self._decode(raw)
        except ValueError as error:  # also a text that is no UTF-8
            try:
                plain = msgspec.json.decode(raw)
            except (ValueError, RecursionError):
                raise Undecodable[T](str(error)) from error
            return _walked(plain, self._kind, error)


def read_plain(raw: Any, kind: type[T]) -> T:
    """An object of JSON that is decoded already. Raises Undecodable."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        return _walked(raw, kind, error)


def unreadable(metadata: ObjectMeta) -> str:
    """What cannot be read of the object that this one stands for; empty where it stands for itself."""
    return metadata.annotations.get(keys.UNREADABLE, "")


def _walked(raw: Any, kind: type[T], error: Exception) -> T:
    try:
        found = decode(raw, kind)
    except RecursionError:
        raise Undecodable[T](str(error)) from error
    if found.value is not None:
        return found.value
    parts = frozenset(re.split(r"[.[]", fault.path)[0] for fault in found.faults)
    raise Undecodable("; ".join(map(str, found.faults)), found.rest, parts) from error
