"""Strict decoding of plain values into wire structs, with every fault named, not only the first.

The fast way is msgspec's own conversion. Only where that refuses, or does not look close enough, the value is walked
field by field (`koordpy.api.fieldwalk`). Source: kube-parity.md section 7.
"""

from typing import Any, TypeVar, cast

import msgspec

from koordpy.api.faults import Fault, FieldWalk
from koordpy.api.fieldwalk import reader_of

T = TypeVar("T")


def decode(raw: Any, kind: type[T], *, fast: bool = False) -> tuple[T | None, list[Fault]]:
    """(object, no faults) or (None, every fault). Unknown fields are ignored, null stands for an absent field.

    `fast`: the caller knows that no Number stands in raw and that its quantities and times can be read
    (`koordpy.api.doubts`), so that the fast way may be tried.
    """
    if fast:
        try:
            return msgspec.convert(raw, kind), []
        except msgspec.ValidationError:
            pass
    return _walk(raw, kind, unknown=False)


def decode_closed(raw: Any, kind: type[T]) -> tuple[T | None, list[Fault]]:
    """As `decode`, but an unknown field is a fault: for what only koordpy reads (configuration)."""
    return _walk(raw, kind, unknown=True)


def decode_rest(raw: Any, kind: type[T]) -> T | None:
    """What of a faulty value can be read, its faulty parts left out; None where nothing can."""
    try:
        return msgspec.convert(reader_of(cast(Any, kind))(raw, "", FieldWalk(False)), kind)
    except msgspec.ValidationError:
        return None


def _walk(raw: Any, kind: type[T], *, unknown: bool) -> tuple[T | None, list[Fault]]:
    walk = FieldWalk(unknown)
    cleaned = reader_of(cast(Any, kind))(raw, "", walk)
    if walk.faults:
        return None, walk.faults
    try:
        return msgspec.convert(cleaned, kind), []
    except msgspec.ValidationError as fault:
        return None, [Fault("", str(fault))]
