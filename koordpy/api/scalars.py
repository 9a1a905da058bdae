"""Values of unquoted scalars in manifests; the text of a number is kept if it is more exact than its value.

A quantity is read from its text (`cpu: 0.10`, 2^53 + 1; kube-parity.md 2.5), and a label value that looks like a number
is a fault. The rules are those of YAML 1.1 as Kubernetes reads it; times and sexagesimal numbers stay strings.
"""

import re
from typing import Any

CANONICAL_INT = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_INTEGER = re.compile(r"[-+]?(?:0b[01]+|0x[0-9a-f]+|[0-9]+)", re.ASCII)
_HARD = re.compile(
    r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*"
    r"|[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    re.ASCII,
)
_SOFT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False)
_NUMERIC_STARTS = frozenset("-+.0123456789")
YAML_TAG = "tag:yaml.org,2002:"


class Number:
    """A number with its text, which may be more exact than a float or an int. `soft` numbers are those on which YAML
    1.1 readers disagree (`1e3`, `08`): they are strings if a string is expected."""

    __slots__ = ("soft", "text")

    def __init__(self, text: str, *, soft: bool = False) -> None:
        self.text = text
        self.soft = soft

    def __repr__(self) -> str:
        return self.text

    @property
    def value(self) -> int | float:
        """The number: an int if it is whole and written without a point or exponent; otherwise the nearest float."""
        plain = self.text.replace("_", "").lower()
        if len(plain) > 400:
            return float("inf")
        if not _INTEGER.fullmatch(plain):
            try:
                return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
            except ValueError:  # `0x_` is a number only in YAML 1.1
                return float("nan")
        digits = plain.lstrip("+-")
        if digits.isdigit():
            return int(plain, 8 if digits[0] == "0" and set(digits) <= set("01234567") else 10)
        return int(plain, 0)


def plain_scalar(text: str) -> Any:
    """Returns the value of an unquoted scalar."""
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
    """Returns the value of a scalar with a tag. Raises ValueError for an unknown tag, or a text that does not match its
    tag."""
    if tag in ("!", YAML_TAG + "str", YAML_TAG + "timestamp"):
        return text
    kinds = {"int": (int, Number), "float": (int, Number), "bool": (bool,), "null": (type(None),)}
    expected = kinds.get(tag.removeprefix(YAML_TAG)) if tag.startswith(YAML_TAG) else None
    if expected is None:
        raise ValueError(f"unknown tag {tag}")
    value = plain_scalar(text)
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        raise ValueError(f"{text!r} is no {tag.removeprefix(YAML_TAG)}")
    return value
