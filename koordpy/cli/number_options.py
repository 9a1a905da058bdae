# SPDX-License-Identifier: Apache-2.0
"""Argparse types for numeric options, with an error message that says which numbers are allowed."""

import argparse
import contextlib
from collections.abc import Callable
from typing import TypeVar

Figure = TypeVar("Figure", int, float)


def figure(kind: type[Figure], accepts: Callable[[Figure], bool], noun: str) -> Callable[[str], Figure]:
    """Returns an argparse type that converts and checks a number. Any other text fails with `'x' is not a NOUN`.

    kind: int or float. accepts: returns True for a valid number. noun: description of valid numbers.
    """

    def read(text: str) -> Figure:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if accepts(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a {noun}")

    return read


COUNT = figure(int, lambda number: number >= 1, "whole number of 1 or more")
