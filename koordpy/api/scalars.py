# SPDX-License-Identifier: Apache-2.0
"""Decides the type of a single value in a YAML manifest: `5` is a number, `yes` is true, `5s` is text.

A scalar is a value that is neither a list nor a mapping. `yaml_values.py` calls `plain_scalar` for each scalar without
quotes, and `tagged_scalar` for each scalar with a tag such as `!!str`. The rules are those of YAML 1.1 as Kubernetes
reads it, with one exception: times (`2001-01-01`) and numbers to the base 60 (`1:30`) stay strings.

Most numbers become a `Number`, which keeps the text: a quantity such as `cpu: 0.10` or 2^53 + 1 is read from its text,
because a float would round it (kube-parity.md 2.5). The reader of a field then decides whether a number is valid there:
a number as the value of a label is a fault.
"""

import re
from typing import Any

CANONICAL_INT = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
"""A whole number in its usual spelling. With at most 18 characters it fits 64 bits, and its text is not needed."""
_INTEGER = re.compile(r"[-+]?(?:0b[01]+|0x[0-9a-f]+|[0-9]+)", re.ASCII)
"""Any whole number, without `_` and in lower case: binary, hexadecimal, or decimal and octal."""
_HARD = re.compile(
    r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*"
    r"|[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    re.ASCII,
)
"""Texts that are a number for every reader of YAML 1.1. In order: binary, hexadecimal, octal and decimal numbers, with
`_` between digits; numbers with a point, with an exponent only if it has a sign; infinity; not a number."""
_SOFT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
"""Texts that are a number for some readers of YAML 1.1 and a string for others, such as `1e3` or `08`. Used only for
texts that `_HARD` does not match."""
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False)
_NUMERIC_STARTS = frozenset("-+.0123456789")
"""First characters of numbers. Most texts begin with another character, and are not compared with the patterns."""
YAML_TAG = "tag:yaml.org,2002:"
"""Long form of the prefix `!!` of YAML's standard tags."""


class Number:
    """A number with its text in the manifest, which may be more exact than a float.

    soft: True for a text on which readers of YAML 1.1 disagree (`1e3`, `08`): a string field takes the text, a number
    field takes the value. If False, the number is a fault in a string field.
    """

    __slots__ = ("soft", "text")

    def __init__(self, text: str, *, soft: bool = False) -> None:
        self.text = text
        self.soft = soft

    def __repr__(self) -> str:
        return self.text

    @property
    def value(self) -> int | float:
        """The number: an int if it is whole and written without a point or exponent; otherwise the nearest float.

        Infinity for a text of more than 400 characters: no field has such a number, and its conversion could take long.
        NaN for a text such as `0x_`, which is a number only in YAML 1.1.
        """
        plain = self.text.replace("_", "").lower()
        if len(plain) > 400:
            return float("inf")
        if not _INTEGER.fullmatch(plain):
            try:
                return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
            except ValueError:
                return float("nan")
        digits = plain.lstrip("+-")
        # a leading 0 means octal, unless a digit is 8 or 9; int() reads prefixes such as 0x
        if digits.isdigit():
            return int(plain, 8 if digits[0] == "0" and set(digits) <= set("01234567") else 10)
        return int(plain, 0)


def plain_scalar(text: str) -> Any:
    """Returns the value of a scalar without quotes: None, a bool, an int, a `Number` or a str."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC_STARTS:
        return text
    if len(text) <= 18 and CANONICAL_INT.fullmatch(text):
        return int(text)
    if _HARD.fullmatch(text):
        return Number(text)
    if _SOFT.fullmatch(text):
        return Number(text, soft=True)
    return text


def tagged_scalar(tag: str, text: str) -> Any:
    """Returns the value of a scalar with a tag, such as `!!str 5`. Raises ValueError for an unknown tag, or a text that
    does not match its tag.

    tag: `!`, which means a string, or a tag in long form (`YAML_TAG` and a type).
    """
    if tag in ("!", YAML_TAG + "str", YAML_TAG + "timestamp"):
        return text
    kinds = {"int": (int, Number), "float": (int, Number), "bool": (bool,), "null": (type(None),)}
    expected = kinds.get(tag.removeprefix(YAML_TAG)) if tag.startswith(YAML_TAG) else None
    if expected is None:
        raise ValueError(f"unknown tag {tag}")
    value = plain_scalar(text)
    # a bool is an int in Python, but `!!int yes` is a fault
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        raise ValueError(f"{text!r} is no {tag.removeprefix(YAML_TAG)}")
    return value
