"""Numbers in options: a type for argparse that says what it takes."""

import argparse
import contextlib
from collections.abc import Callable
from typing import TypeVar

Figure = TypeVar("Figure", int, float)


def figure(kind: type[Figure], accepts: Callable[[Figure], bool], noun: str) -> Callable[[str], Figure]:
    """Reads an option's number; `'x' is no NOUN` is what is said of any other text."""

    def read(text: str) -> Figure:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if accepts(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is no {noun}")

    return read


COUNT = figure(int, lambda number: number >= 1, "whole number of 1 or more")
