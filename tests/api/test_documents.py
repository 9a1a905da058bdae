# SPDX-License-Identifier: Apache-2.0
"""Text of manifests becomes plain values; what is broken is named, and costs no more than its text."""

from typing import Any

import pytest

from koordpy.api.scalars import Number
from koordpy.decoding.manifest_documents import read_documents
from koordpy.decoding.yaml_values import MAX_ALIASED


def read(text: str | bytes, *, as_json: bool = False) -> list[tuple[int, Any, str | None]]:
    data = text.encode() if isinstance(text, str) else text
    return [(d.position, shown(d.value), d.fault) for d in read_documents(data, as_json=as_json)]


def shown(value: Any) -> Any:
    """Numbers that are read by their text stand as `#text`."""
    if isinstance(value, Number):
        return f"#{value.text}"
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain words", "plain words"),
        ("7", 7),
        ("-7", -7),
        ("9007199254740993", 9007199254740993),
        ("1234567890123456789012", "#1234567890123456789012"),
        ("0.10", "#0.10"),
        ("1e3", "#1e3"),
        ("010", "#010"),
        ("08", "#08"),
        ("0x10", "#0x10"),
        ("1_000", "#1_000"),
        ("+5", "#+5"),
        (".inf", "#.inf"),
        ("yes", True),
        ("Off", False),
        ("y", "y"),
        ("~", None),
        ("12:30:00", "12:30:00"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01", "2026-01-01"),
        ('"7"', "7"),
        ("!!str 7", "7"),
        ("!!int 7", 7),
        ("!!float 7", 7),
        ("'true'", "true"),
        ("1.2.3", "1.2.3"),
        ("-", [None]),
    ],
)
def test_a_scalar_is_read_as_kubernetes_reads_it(text: str, value: Any) -> None:
    assert read(f"a: {text}\n" if text != "-" else "a:\n-\n") == [(1, {"a": value}, None)]


@pytest.mark.parametrize(
    ("text", "number"),
    [("010", 8), ("08", 8), ("0x1F", 31), ("0b11", 3), ("1_000", 1000), ("-010", -8), ("1e3", 1000.0), (".5", 0.5)],
)
def test_a_number_knows_its_value(text: str, number: float) -> None:
    assert Number(text).value == number


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("# nothing\n---\n---\n\n", []),
        ("---\nnull\n---\na: 1\n", [{"a": 1}]),
        ("a: 1\n---\nb: 2\n...\n---\nc: 3\n", [{"a": 1}, {"b": 2}, {"c": 3}]),
        ("%YAML 1.1\n# c\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("\ufeffa: 1\r\n---\r\nb: 2\r\n", [{"a": 1}, {"b": 2}]),
        ("a: |\n  --- no marker\n--- {b: 2}\n", [{"a": "--- no marker\n"}, {"b": 2}]),
        ("x: &x [1, 2]\ny: *x\n", [{"x": [1, 2], "y": [1, 2]}]),
        ("x: &x {k: 1, z: 2}\ny:\n  <<: *x\n  k: 5\n", [{"x": {"k": 1, "z": 2}, "y": {"k": 5, "z": 2}}]),
        ("<<: [{k: 1}, {k: 2, z: 3}]\n", [{"k": 1, "z": 3}]),
        ('"<<": 1\n', [{"<<": 1}]),
        ("1: a\ntrue: b\n", [{"1": "a", "true": "b"}]),
        ('{"a": 1.50, "b": 12345678901234567890}', [{"a": "#1.50", "b": "#12345678901234567890"}]),
        ('{"a": 1}\n{"a": 2}', [{"a": 1}, {"a": 2}]),
        ('{"a": 1}\n---\n{"a": 2}', [{"a": 1}, {"a": 2}]),
        ('{\n\t"a":\t1}', [{"a": 1}]),
    ],
)
def test_documents_are_counted_from_one_and_empty_ones_are_not(text: str, values: list[Any]) -> None:
    assert read(text) == [(i, value, None) for i, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\na: 2\n", "line 2, column 1: the key 'a' is given twice"),
        ("<<: {a: 1}\n<<: {b: 1}\n", "line 2, column 1: the key '<<' is given twice"),
        ("a:\n\tb: 1\n", "line 2, column 1: invalid YAML"),
        ("a: [1, 2\n", "invalid YAML"),
        ("a: 'x\n", "invalid YAML"),
        ("a: *nobody\n", "line 1, column 4: the alias *nobody has no anchor"),
        ("a: &a [1, *a]\n", "the alias *a refers to itself"),
        ("a: &a {b: &b [*a]}\n", "the alias *a refers to itself"),
        ("<<: 5\n", "a merge key (<<) needs a mapping"),
        ("? [a]\n: 1\n", "a mapping key must be text"),
        ("a: !mine b\n", "unknown tag !mine"),
        ("a: !!int b\n", "'b' is no int"),
        ("a: \x07\n", "invalid YAML"),
        (b"a: 1\nb: \xff\n", "line 2: invalid UTF-8 (byte 0xff)"),
        ("a: 1".encode("utf-16"), "invalid UTF-8"),
        ("[" * 100_000, "nested deeper than 200 levels"),
        ("- " * 300 + "a\n", "nested deeper than 200 levels"),
        ("x: &x " + "[" * 150 + "]" * 150 + "\ny: " + "[" * 100 + "*x" + "]" * 100, "nested deeper than 200 levels"),
    ],
)
def test_a_broken_document_is_named_and_the_next_one_is_read(text: str | bytes, fault: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    (first, value, found), *rest = read(data + b"\n---\nafter: 1\n")
    assert (first, value) == (1, None)
    assert found is not None and fault in found
    assert rest == [(2, {"after": 1}, None)]


def test_the_line_of_a_fault_counts_from_the_top_of_the_file() -> None:
    assert read("a: 1\n---\n\nb: 1\nb: 2\n")[1] == (2, None, "line 5, column 1: the key 'b' is given twice")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"a": NaN}', "NaN is not valid JSON"),
        ('{"kind": "Node", ', "line 1, column 18: invalid JSON"),
        ("[" * 100_000, "nested deeper than 200 levels"),
        ("[" * 250 + "]" * 250, "nested deeper than 200 levels"),
        ('{"a": "\\ud800"}', "a lone surrogate is not a character"),
    ],
)
def test_a_json_file_that_is_none_is_one_fault(text: str, fault: str) -> None:
    ((position, value, found),) = read(text, as_json=True)
    assert (position, value) == (1, None)
    assert found is not None and fault in found


@pytest.mark.parametrize("style", ["list", "merge"])
def test_an_alias_bomb_is_found_before_it_goes_off(style: str) -> None:
    first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" if style == "list" else "a0: &a0 {x: [1, 2, 3]}\n"
    more = [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n"
        if style == "list"
        else f"a{i}: &a{i} {{{', '.join(f'k{j}: {{<<: *a{i - 1}}}' for j in range(10))}}}\n"
        for i in range(1, 60)
    ]
    ((_, value, fault),) = read(first + "".join(more))
    assert value is None and fault is not None and f"aliases add more than {MAX_ALIASED} values" in fault


def test_aliases_may_add_what_is_less() -> None:
    ((_, value, fault),) = read("a: &a [1, 2, 3]\nb: [" + ", ".join(["*a"] * 1000) + "]\n")
    assert fault is None and len(value["b"]) == 1000
