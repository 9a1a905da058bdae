"""YAML and JSON text as plain values: documents one by one, every fault with its line, never more work than text.

Why not a stock loader: a quantity must be read by its text (`cpu: 0.10`, 2^53 + 1), a key given twice is a fault, one
broken document must not hide the faults of the next, and neither deep nesting nor aliases may cost more than the text
is worth. Source: kube-parity.md section 7. Values are built from the parser's events, without recursion.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

MAX_LEVELS = 200
MAX_ALIASED = 1_000_000
"""Values that the aliases of one document may add."""

_EventParser: Any = yaml.CLoader if yaml.__with_libyaml__ else yaml.Loader


class Number:
    """A number whose text may say more than a float or an int of it.

    `soft` numbers are those that YAML 1.1 readers disagree on (`1e3`, `08`): text where text is asked for.
    """

    __slots__ = ("soft", "text")

    def __init__(self, text: str, *, soft: bool = False) -> None:
        self.text = text
        self.soft = soft

    def __repr__(self) -> str:
        return self.text

    @property
    def value(self) -> int | float:
        """The number: an int where it is whole and written without a point or exponent; else the nearest float."""
        plain = self.text.replace("_", "").lower()
        if len(plain) > 400:
            return float("inf")
        if not _INTEGER.fullmatch(plain):
            try:
                return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
            except ValueError:  # `0x_` is a number to YAML 1.1, and none to anyone else
                return float("nan")
        digits = plain.lstrip("+-")
        if digits.isdigit():
            return int(plain, 8 if digits[0] == "0" and set(digits) <= set("01234567") else 10)
        return int(plain, 0)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file. `position` counts the documents that are not empty, from 1."""

    position: int
    value: Any
    plain: bool
    """No Number stands in the value."""
    fault: str | None = None


class DocumentFault(ValueError):
    """What is wrong with a document's text, and on which of its lines (from 0)."""

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.text, self.line, self.column = text, line, column


def read_documents(data: bytes, *, as_json: bool) -> Iterator[Document]:
    """The documents of a file's bytes. Text that starts like JSON is read as JSON first, whatever the file's name.

    `as_json`: what is no JSON then is a fault, not YAML.
    """
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
                yield Document(1, None, True, _where(fault, 1))
                return
    yield from _yaml_documents(text)


def _where(fault: DocumentFault, first_line: int) -> str:
    if fault.line is None:
        return fault.text
    column = "" if fault.column is None else f", column {fault.column + 1}"
    return f"line {first_line + fault.line}{column}: {fault.text}"


# -- JSON -------------------------------------------------------------------------------------------------------------


def _json_documents(text: str) -> list[Document]:
    found: list[Any] = []
    odd = False

    def number(digits: str) -> int | Number:
        nonlocal odd
        if len(digits) <= 18 and _CANONICAL.fullmatch(digits):
            return int(digits)
        odd = True
        return Number(digits)

    def constant(name: str) -> Any:
        raise DocumentFault(f"{name} is no JSON")

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
        raise DocumentFault("no UTF-8", text.count("\n", 0, surrogate.start()))
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as fault:
            raise DocumentFault(f"no JSON: {fault.msg}", fault.lineno - 1, fault.colno - 1) from None
        except RecursionError:
            raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels") from None
        found.append(value)
    _check_levels(found)
    if _ESCAPED_SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False, default=repr).encode()
        except UnicodeEncodeError:
            raise DocumentFault("a lone surrogate is no text") from None
    kept = [value for value in found if value is not None]
    return [Document(i, value, not odd) for i, value in enumerate(kept, start=1)]


def _check_levels(value: list[Any]) -> None:
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
_MARKER = re.compile(rf"(?:\A|(?<=[{_BREAK}]))(?:\ufeff?(---)|(\.\.\.))(?=[ \t{_BREAK}]|\Z)")
_LINE_END = re.compile(rf"[{_BREAK}]|\Z")
_CONTENT_LINE = re.compile(r"^[ \t\r]*(?:#.*)?$")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """(line the chunk starts on, text of one document). `---` and `...` at a line's start always end a document."""
    start, line = 0, 1
    for marker in [*_MARKER.finditer(text), None]:
        if marker is None:
            end = len(text)
        elif marker[2]:
            end_of_line = _LINE_END.search(text, marker.end())
            end = end_of_line.end() if end_of_line is not None else len(text)
        else:
            end = marker.start()
            if _only_directives(text[start:end]):
                continue
        chunk = text[start:end]
        if chunk:
            yield line, chunk.removeprefix("\ufeff")
        line += chunk.count("\n")
        start = end


def _only_directives(text: str) -> bool:
    lines = [line for line in text.split("\n") if not _CONTENT_LINE.match(line)]
    return bool(lines) and all(line.startswith("%") for line in lines)


def _yaml_documents(text: str) -> Iterator[Document]:
    position = 0
    for line, chunk in _chunks(text):
        surrogate = _SURROGATE.search(chunk)
        if surrogate is not None:
            position += 1
            byte = ord(surrogate[0]) - 0xDC00
            where = line + chunk.count("\n", 0, surrogate.start())
            yield Document(position, None, True, f"line {where}: no UTF-8 (byte 0x{byte:02x})")
            continue
        try:
            value, plain = _build(chunk)
        except DocumentFault as fault:
            position += 1
            yield Document(position, None, True, _where(fault, line))
            continue
        if value is not None:
            position += 1
            yield Document(position, value, plain)


# -- YAML: values -----------------------------------------------------------------------------------------------------

_CANONICAL = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
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
_TAG = "tag:yaml.org,2002:"
_MERGE = object()
_UNFINISHED = object()


def _plain_scalar(text: str) -> Any:
    """Value of an unquoted scalar: YAML 1.1 as Kubernetes reads it; times and sexagesimals stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC_STARTS:
        return text
    if len(text) <= 18 and _CANONICAL.fullmatch(text):
        return int(text)
    if _HARD.fullmatch(text):
        return Number(text)
    if _SOFT.fullmatch(text):
        return Number(text, soft=True)
    return text


def _tagged_scalar(event: Any) -> Any:
    tag, text = event.tag, event.value
    if tag in ("!", _TAG + "str", _TAG + "timestamp"):
        return text
    value = _plain_scalar(text)
    kinds = {"int": (int, Number), "float": (int, Number), "bool": (bool,), "null": (type(None),)}
    expected = kinds.get(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None
    mark = event.start_mark
    if expected is None:
        raise DocumentFault(f"the tag {tag} is not known here", mark.line, mark.column)
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        raise DocumentFault(f"{text!r} is no {tag.removeprefix(_TAG)}", mark.line, mark.column)
    return value


class _Open:
    """A collection that is being built."""

    __slots__ = ("anchor", "at_key", "height", "items", "key", "mapping", "mark", "merges", "size")

    def __init__(self, items: Any, mapping: bool, anchor: str | None, mark: Any) -> None:
        self.items, self.mapping, self.anchor, self.mark = items, mapping, anchor, mark
        self.key: Any = None
        self.at_key = mapping
        self.merges: list[tuple[Any, Any]] | None = None
        self.size = 1
        self.height = 1


@dataclass(slots=True)
class _Anchored:
    value: Any
    size: int
    height: int


def _key_text(value: Any, mark: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Number):
        return value.text
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    raise DocumentFault("a mapping key must be text", mark.line, mark.column)


def _merge(target: _Open) -> None:
    """Puts the entries of `<<` in; the mapping's own entries win, then the earlier source."""
    for source, mark in target.merges or ():
        sources = source if isinstance(source, list) else [source]
        for mapping in sources:
            if not isinstance(mapping, dict):
                raise DocumentFault("a merge key (<<) needs a mapping or a list of mappings", mark.line, mark.column)
            for key, value in mapping.items():
                target.items.setdefault(key, value)


def _build(text: str) -> tuple[Any, bool]:
    """(value, whether it holds no Number) of one document. Raises DocumentFault."""
    try:
        return _build_events(_EventParser(text))
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        problem = " ".join(str(part) for part in (fault.context, fault.problem) if part)
        if mark is None:
            raise DocumentFault(f"no YAML: {problem}") from None
        raise DocumentFault(f"no YAML: {problem}", mark.line, mark.column) from None
    except yaml.YAMLError as fault:
        text_of = " ".join(str(fault).split())
        raise DocumentFault(f"no YAML: {text_of}") from None
    except ValueError as fault:
        if isinstance(fault, DocumentFault):
            raise
        raise DocumentFault(f"no YAML: {fault}") from None


def _build_events(parser: Any) -> tuple[Any, bool]:
    get_event = parser.get_event
    stack: list[_Open] = []
    anchors: dict[str, Any] = {}
    cache: dict[str, Any] = {}
    plain, aliased = True, 0
    value: Any = None
    while True:
        event = get_event()
        kind = type(event)
        if kind is ScalarEvent:
            size = height = 0
            if event.tag is not None:
                value = _tagged_scalar(event)
            elif event.style:
                value = event.value
            else:
                raw = event.value
                value = cache.get(raw, _UNFINISHED)
                if value is _UNFINISHED:
                    value = cache[raw] = _plain_scalar(raw)
                if raw == "<<" and stack and stack[-1].at_key:
                    value = _MERGE
            if type(value) is Number:
                plain = False
            if event.anchor is not None:
                anchors[event.anchor] = _Anchored(value, 1, 0)
            size = 1
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            mark = event.start_mark
            if len(stack) >= MAX_LEVELS:
                raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels", mark.line, mark.column)
            mapping = kind is MappingStartEvent
            if event.tag not in (None, "!", _TAG + ("map" if mapping else "seq")):
                raise DocumentFault(f"the tag {event.tag} is not known here", mark.line, mark.column)
            stack.append(_Open({} if mapping else [], mapping, event.anchor, mark))
            if event.anchor is not None:
                anchors[event.anchor] = _UNFINISHED
            continue
        elif kind is MappingEndEvent or kind is SequenceEndEvent:
            done = stack.pop()
            if done.merges is not None:
                _merge(done)
            value, size, height = done.items, done.size, done.height
            if done.anchor is not None:
                anchors[done.anchor] = _Anchored(value, size, height)
        elif kind is AliasEvent:
            mark = event.start_mark
            target = anchors.get(event.anchor)
            if target is None:
                raise DocumentFault(f"the alias *{event.anchor} has no anchor", mark.line, mark.column)
            if target is _UNFINISHED:
                raise DocumentFault(f"the alias *{event.anchor} holds itself", mark.line, mark.column)
            aliased += target.size
            if aliased > MAX_ALIASED:
                text = f"aliases add more than {MAX_ALIASED} values"
                raise DocumentFault(text, mark.line, mark.column)
            if len(stack) + target.height > MAX_LEVELS:
                raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels", mark.line, mark.column)
            value, size, height = target.value, target.size, target.height
        elif kind is StreamEndEvent:
            return value, plain
        else:
            continue
        if stack:
            _put(stack[-1], value, size, height, event)


def _put(top: _Open, value: Any, size: int, height: int, event: Any) -> None:
    """Takes a finished value into the open collection: an item, a key, or a key's value."""
    if not top.mapping:
        top.items.append(value)
    elif top.at_key:
        top.at_key = False
        if value is _MERGE:
            if top.merges is not None:
                mark = event.start_mark
                raise DocumentFault("the key '<<' is given twice", mark.line, mark.column)
            top.merges = []
            top.key = _MERGE
            return
        key = value if type(value) is str else _key_text(value, event.start_mark)
        if key in top.items:
            mark = event.start_mark
            raise DocumentFault(f"the key {key!r} is given twice", mark.line, mark.column)
        top.key = key
        top.items[key] = None
        return
    else:
        top.at_key = True
        if top.key is _MERGE:
            assert top.merges is not None
            top.merges.append((value, event.start_mark))
        else:
            top.items[top.key] = value
    top.size += size
    if height >= top.height:
        top.height = height + 1
