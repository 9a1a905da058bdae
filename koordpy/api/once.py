"""What is read of an object's metadata, read once per change: remembered for as long as the metadata lives."""

from collections.abc import Callable, Hashable
from typing import TypeVar
from weakref import ref

from koordpy.api.objects import ObjectMeta

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def once(read: Callable[[K, ObjectMeta], T]) -> Callable[[K, ObjectMeta], T]:
    """`read(how, metadata)`, remembered by what it is given; a metadata that changed is another object."""
    known: dict[tuple[K, int], tuple[ref[ObjectMeta], T]] = {}

    def remembered(how: K, meta: ObjectMeta) -> T:
        key = how, id(meta)
        found = known.get(key)
        if found is not None and found[0]() is meta:
            return found[1]
        value = read(how, meta)
        # it is called before the id is given to another object
        known[key] = ref(meta, lambda _: known.pop(key, None)), value
        return value

    return remembered
