"""Attributes that are worked out when they are first asked for."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazily(Generic[T]):
    """`functools.cached_property` without the lock that it has before Python 3.12, which costs more than most answers:
    threads that ask at the same time may each work it out."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read, self._name, self.__doc__ = read, read.__name__, read.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "lazily[T]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object, owner: type) -> "T | lazily[T]":
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._read(instance)
        return value
