# SPDX-License-Identifier: Apache-2.0
"""Builds the plain value (dicts, lists, scalars) of one YAML document from the events of PyYAML's parser.

PyYAML's loader is not used, for three reasons: numbers must keep their text, a repeated key must be a fault, and a
short text must not cost much time or memory by deep nesting or by aliases (kube-parity.md section 7). Open collections
are on a stack, so there is no recursion.
"""

import json
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

from koordpy.api.scalars import YAML_TAG, Number, plain_scalar, tagged_scalar

MAX_LEVELS = 200
"""Maximum depth of nested lists and mappings; no Kubernetes object comes near it."""
MAX_ALIASED = 1_000_000
"""Maximum number of values that the aliases of one document add."""

_EventParser: Any = yaml.CLoader if yaml.__with_libyaml__ else yaml.Loader
_MERGE = object()
"""Marks the key `<<`, which merges other mappings into this one."""
_UNFINISHED = object()
"""Marks the anchor of a collection that is still open, or a text that is not in the cache of scalars."""


class DocumentFault(ValueError):
    """A fault of a document's text. line, column: position, from 0; None if unknown."""

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.text, self.line, self.column = text, line, column


class _Open:
    """A list or mapping that is being built.

    key: present key of a mapping. at_key: True if the next value is a key. merges: (source, position) of each merge;
    None if there is no key `<<`. size: number of values in the collection, including itself. height: number of levels.
    """

    __slots__ = ("anchor", "at_key", "height", "items", "key", "mapping", "mark", "merges", "size")

    def __init__(self, items: Any, mapping: bool, anchor: str | None, mark: Any) -> None:
        self.items, self.mapping, self.anchor, self.mark = items, mapping, anchor, mark
        self.key: Any = None
        self.at_key = mapping
        self.merges: list[tuple[Any, Any]] | None = None
        self.size = 1
        self.height = 1


def _key_text(value: Any, mark: Any) -> str:
    """Returns the text of a scalar that is used as a key, as Kubernetes reads it: `1: a` has the key "1"."""
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
    """Adds the entries of the mappings that `<<` names.

    The mapping's own entries have precedence over all sources, and an earlier source over a later one.
    """
    for source, mark in target.merges or ():
        sources = source if isinstance(source, list) else [source]
        for mapping in sources:
            if not isinstance(mapping, dict):
                raise DocumentFault("a merge key (<<) needs a mapping or a list of mappings", mark.line, mark.column)
            for key, value in mapping.items():
                target.items.setdefault(key, value)


def build_value(text: str) -> Any:
    """Returns the value of one document; None for an empty document. Raises `DocumentFault`."""
    try:
        return _build_events(_EventParser(text))
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        problem = " ".join(str(part) for part in (fault.context, fault.problem) if part)
        if mark is None:
            raise DocumentFault(f"invalid YAML: {problem}") from None
        if _is_tab(text, mark.line, mark.column):
            problem += " (a tab: YAML is indented with spaces)"
        raise DocumentFault(f"invalid YAML: {problem}", mark.line, mark.column) from None
    except yaml.YAMLError as fault:
        text_of = " ".join(str(fault).split())
        raise DocumentFault(f"invalid YAML: {text_of}") from None
    except ValueError as fault:
        if isinstance(fault, DocumentFault):
            raise
        raise DocumentFault(f"invalid YAML: {fault}") from None


def _is_tab(text: str, line: int, column: int) -> bool:
    """Returns True if the character at a position is a tab. line, column: from 0."""
    lines = text.split("\n", line + 1)
    return line < len(lines) and lines[line][column : column + 1] == "\t"


def _build_events(parser: Any) -> Any:
    """Returns the value of one document from the parser's events. Raises `DocumentFault`.

    Each branch of the loop ends with a finished value, which is then put into the open collection. A branch with
    `continue` does not finish a value.
    """
    get_event = parser.get_event
    stack: list[_Open] = []
    anchors: dict[str, Any] = {}  # name -> (value, its size, its height)
    cache: dict[str, Any] = {}  # text of a scalar without quotes -> its value
    aliased = 0  # number of values that aliases added
    value: Any = None
    while True:
        event = get_event()
        kind = type(event)
        if kind is ScalarEvent:
            size = height = 0
            if event.tag is not None:
                try:
                    value = tagged_scalar(event.tag, event.value)
                except ValueError as wrong:
                    mark = event.start_mark
                    raise DocumentFault(str(wrong), mark.line, mark.column) from None
            elif event.style:  # in quotes, or a block: always a string
                value = event.value
            else:
                raw = event.value
                value = cache.get(raw, _UNFINISHED)
                if value is _UNFINISHED:
                    value = cache[raw] = plain_scalar(raw)
                if raw == "<<" and stack and stack[-1].at_key:
                    value = _MERGE
            if event.anchor is not None:
                anchors[event.anchor] = value, 1, 0
            size = 1
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            mark = event.start_mark
            if len(stack) >= MAX_LEVELS:
                raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels", mark.line, mark.column)
            mapping = kind is MappingStartEvent
            if event.tag not in (None, "!", YAML_TAG + ("map" if mapping else "seq")):
                raise DocumentFault(f"unknown tag {event.tag}", mark.line, mark.column)
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
                anchors[done.anchor] = value, size, height
        elif kind is AliasEvent:
            mark = event.start_mark
            target = anchors.get(event.anchor)
            if target is None:
                raise DocumentFault(f"the alias *{event.anchor} has no anchor", mark.line, mark.column)
            if target is _UNFINISHED:
                raise DocumentFault(f"the alias *{event.anchor} refers to itself", mark.line, mark.column)
            value, size, height = target
            aliased += size
            if aliased > MAX_ALIASED:
                text = f"aliases add more than {MAX_ALIASED} values"
                raise DocumentFault(text, mark.line, mark.column)
            if len(stack) + height > MAX_LEVELS:
                raise DocumentFault(f"nested deeper than {MAX_LEVELS} levels", mark.line, mark.column)
        elif kind is StreamEndEvent:
            return value
        else:
            continue
        if stack:
            _put(stack[-1], value, size, height, event)


def _put(top: _Open, value: Any, size: int, height: int, event: Any) -> None:
    """Adds a finished value to the open collection: as an item of a list, as a key, or as the value of a key.

    size, height: of the value, as in `_Open`. event: the last event of the value, for the position of a fault.
    """
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
