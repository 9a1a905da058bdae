# SPDX-License-Identifier: Apache-2.0
"""Reads a file of manifests, YAML or JSON, as a sequence of documents with plain values.

YAML is split into documents before it is parsed, so that the faults of one document do not hide those of the next. JSON
has a separate reader, because YAML rejects some tabs and escapes that JSON allows. Source: kube-parity.md section 7.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from koordpy.api.json_text import lone_surrogates
from koordpy.api.scalars import CANONICAL_INT, Number
from koordpy.decoding.yaml_values import MAX_LEVELS, DocumentFault, build_value


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    position: int
    """Number of the document in the file, from 1; empty documents are not counted."""
    value: Any
    """Plain value: dict, list, str, bool, int, `Number` or None (null); None if the document has a fault."""
    fault: str | None = None
    """Why the document cannot be read, with line and column; None if it was read."""


def read_documents(data: bytes, *, as_json: bool) -> Iterator[Document]:
    """Yields the documents of a file. A text that starts like JSON is first read as JSON, whatever the file's name.

    as_json: True if invalid JSON is a fault; False if such a text is then read as YAML.
    """
    # invalid bytes become surrogates, so that only the document with these bytes has a fault
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", errors="surrogateescape")
    if text.lstrip(" \t\r\n")[:1] in ("{", "["):
        try:
            yield from _json_documents(text)
            return
        except DocumentFault as fault:
            if as_json:
                yield Document(1, None, _where(fault, 1))
                return
    yield from _yaml_documents(text)


def _where(fault: DocumentFault, first_line: int) -> str:
    """Returns the text of a fault with its line and column in the file. first_line: first line of the document, from
    1."""
    if fault.line is None:
        return fault.text
    column = "" if fault.column is None else f", column {fault.column + 1}"
    return f"line {first_line + fault.line}{column}: {fault.text}"


# -- JSON -------------------------------------------------------------------------------------------------------------


def _json_documents(text: str) -> list[Document]:
    """Returns the documents of a text with one JSON value after the other. Raises `DocumentFault` for the first fault.

    Stricter than `json`: a repeated key, NaN and infinity are faults. Numbers keep their text.
    """
    found: list[Any] = []

    def number(digits: str) -> int | Number:
        """Returns an int of at most 18 characters, which fits 64 bits; otherwise a number with its text."""
        return int(digits) if len(digits) <= 18 and CANONICAL_INT.fullmatch(digits) else Number(digits)

    def constant(name: str) -> Any:
        raise DocumentFault(f"{name} is not valid JSON")

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise DocumentFault(f"the key {twice!r} is given twice")
        return out

    decoder = json.JSONDecoder(
        parse_int=number, parse_float=number, parse_constant=constant, object_pairs_hook=mapping, strict=True
    )
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        raise DocumentFault("invalid UTF-8", text.count("\n", 0, surrogate.start()))
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as fault:
            raise DocumentFault(_json_fault(text, fault), fault.lineno - 1, fault.colno - 1) from None
        except RecursionError:
            raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels") from None
        found.append(value)
    _check_levels(found)
    if lone_surrogates(text, found):
        raise DocumentFault("a lone surrogate is not a character")
    kept = [value for value in found if value is not None]
    return [Document(i, value) for i, value in enumerate(kept, start=1)]


def _json_fault(text: str, fault: json.JSONDecodeError) -> str:
    """Returns the parser's text, with a hint on YAML syntax that JSON does not have."""
    here, before = text[fault.pos : fault.pos + 2], text[: fault.pos].rstrip()
    if here in ("//", "/*") or here[:1] == "#":
        why = " (JSON has no comments)"
    elif here[:1] in ("}", "]") and before.endswith(","):
        why = " (trailing comma)"
    else:
        why = " (JSON has double quotes only)" if here[:1] == "'" else ""
    return f"invalid JSON: {fault.msg}{why}"


def _check_levels(value: list[Any]) -> None:
    """Raises `DocumentFault` if lists and mappings are nested too deeply.

    Visits one level after the other, because recursion could exceed Python's limit.
    """
    level: list[Any] = value
    depth = 0
    while level:
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(v for v in item.values() if isinstance(v, (dict, list)))
            elif isinstance(item, list):
                deeper.extend(v for v in item if isinstance(v, (dict, list)))
        level = deeper
        depth += 1
        if depth > MAX_LEVELS and level:
            raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels")


# -- YAML: documents --------------------------------------------------------------------------------------------------

_BREAK = "\n\r\x85\u2028\u2029"
"""Line breaks of YAML 1.1."""
_MARKER = re.compile(rf"(?:\A|(?<=[{_BREAK}]))(?:\ufeff?(---)|(\.\.\.))(?=[ \t{_BREAK}]|\Z)")
_LINE_END = re.compile(rf"[{_BREAK}]|\Z")
_CONTENT_LINE = re.compile(r"^[ \t\r]*(?:#.*)?$")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_WIDE = re.compile("\udcff\udcfe|\udcfe\udcff")
"""The byte-order mark of UTF-16, decoded as invalid UTF-8."""


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """Yields (first line, text) of each document. `---` or `...` at the start of a line ends a document in any case."""
    start, line = 0, 1
    for marker in [*_MARKER.finditer(text), None]:  # None: the end of the text
        if marker is None:
            end = len(text)
        elif marker[2]:
            end_of_line = _LINE_END.search(text, marker.end())
            end = end_of_line.end() if end_of_line is not None else len(text)
        else:
            end = marker.start()
            if _only_directives(text[start:end]):  # `%YAML 1.1` before `---` belongs to the document that follows
                continue
        chunk = text[start:end]
        if chunk:
            yield line, chunk.removeprefix("\ufeff")
        line += chunk.count("\n")
        start = end


def _only_directives(text: str) -> bool:
    """Returns True if a text has a directive of YAML (`%YAML 1.1`), and otherwise only comments and empty lines."""
    lines = [line for line in text.split("\n") if not _CONTENT_LINE.match(line)]
    return bool(lines) and all(line.startswith("%") for line in lines)


def _yaml_documents(text: str) -> Iterator[Document]:
    """Yields the documents of a YAML text. A document with a fault does not end the sequence."""
    position = 0
    for line, chunk in _chunks(text):
        surrogate = _SURROGATE.search(chunk)
        if surrogate is not None:
            position += 1
            byte = ord(surrogate[0]) - 0xDC00
            where = line + chunk.count("\n", 0, surrogate.start())
            wide = ", it is UTF-16" if _WIDE.match(text) else ""
            yield Document(position, None, f"line {where}: invalid UTF-8{wide} (byte 0x{byte:02x})")
            continue
        try:
            value = build_value(chunk)
        except DocumentFault as fault:
            position += 1
            yield Document(position, None, _where(fault, line))
            continue
        if value is not None:
            position += 1
            yield Document(position, value)
