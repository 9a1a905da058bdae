# SPDX-License-Identifier: Apache-2.0
"""Selectors in CEL: errors, refusals and hostile texts (dra.md 3). Verdicts: test_cel_verdicts.py."""

import subprocess
import sys

import pytest

from koordpy.api.claim_objects import DeviceAttribute, DeviceCapacity
from koordpy.devices.dra.cel import (
    HINT,
    DeviceFacts,
    SelectorError,
    SelectorRuntimeError,
    UnsupportedSelector,
    compile_selector,
)

DRIVER = "gpu.example.com"
ATTRIBUTE = f'device.attributes["{DRIVER}"]'
CAPACITY = f'device.capacity["{DRIVER}"]'
FACTS = DeviceFacts(
    DRIVER,
    {
        "model": DeviceAttribute(text="a"),
        "index": DeviceAttribute(number=3),
        "ok": DeviceAttribute(truth=True),
        "firmware": DeviceAttribute(version="1.2.3-rc.1"),
        "other.example.com/model": DeviceAttribute(text="b"),
        "nul": DeviceAttribute(text="a\0b"),
        "surrogate": DeviceAttribute(text="\ud800x"),
    },
    {"memory": DeviceCapacity(value="80Gi"), "share": DeviceCapacity(value="500m")},
    True,
)


def matches(text: str) -> bool:
    return compile_selector(text).matches(FACTS)


def fault(text: str) -> str:
    """The error of an expression, with its kind in front."""
    try:
        compile_selector(text)
    except (SelectorError, UnsupportedSelector) as what:
        return f"{type(what).__name__}: {what}"
    with pytest.raises(SelectorRuntimeError) as what_happened:
        matches(text)
    return str(what_happened.value)


MATCHES = {
    f'device.driver == "{DRIVER}"': True,
    "device.allowMultipleAllocations": True,
    f'{ATTRIBUTE}.model in ["b", "a"]': True,
    f'{ATTRIBUTE}["model"] == "a"': True,
    f'{ATTRIBUTE}.index == "3"': False,
    f"{ATTRIBUTE}.index < 3.5 && {ATTRIBUTE}.index > 2u": True,
    f"{ATTRIBUTE}.missing == 1 || {ATTRIBUTE}.ok": True,
    f"[1, 2].exists(x, x == {ATTRIBUTE}.missing || x == 2)": True,
    f"has({ATTRIBUTE}.missing) || 'missing' in {ATTRIBUTE}": False,
    'device.attributes["other.example.com"].model == "b"': True,
    'has(device.attributes["x"].model) || "x" in device.attributes': False,
    'device.attributes["x"] == {} && device.attributes.size() == 2': True,
    f'{ATTRIBUTE}.?missing.orValue("none") == "none"': True,
    f'{ATTRIBUTE}.firmware == semver("1.2.3-rc.1+build.7")': True,
    f'{ATTRIBUTE}.firmware.isLessThan(semver("1.2.3"))': True,
    f'{ATTRIBUTE}.firmware in [semver("1.0.0"), semver("v1.2.3-rc.1", true)]': True,
    f'{ATTRIBUTE}.firmware == "1.2.3-rc.1"': False,
    f'{CAPACITY}.memory == quantity("81920Mi")': True,
    f'{CAPACITY}.memory.compareTo(quantity("80G")) == 1': True,
    f'{CAPACITY}.memory.compareTo(quantity("80G")) > 0': True,
    f"{CAPACITY}.share.isLessThan({CAPACITY}.memory)": True,
    f'{CAPACITY}.share in [quantity("0.5")]': True,
    'quantity("-1e400").asApproximateFloat() < -1.0': True,
    f'quantity("{"9" * 3800}e400").isGreaterThan(quantity("1"))': True,
    f"{CAPACITY}.share.isInteger() || !{CAPACITY}.memory.isInteger()": False,
    'quantity("1").sub(-9223372036854775808).isLessThan(quantity("0"))': True,
    'quantity("1k").sub(-9223372036854775808).isLessThan(quantity("0"))': True,
    'quantity("1000m").sub(-9223372036854775808).isLessThan(quantity("0"))': False,
    'quantity("1Pi").sub(-9223372036854775808).isLessThan(quantity("0"))': False,
    'quantity("-1").sub(-9223372036854775808).isLessThan(quantity("0"))': False,
    f'{CAPACITY}.memory.add(quantity("1Gi")).sub(quantity("81Gi")) == quantity("0")': True,
    f'{ATTRIBUTE}.nul == "a\\u0000b" && {ATTRIBUTE}.nul.size() == 3': True,
    f"{ATTRIBUTE}.surrogate.size() == 2": True,
    f"cel.bind(g, {ATTRIBUTE}, g.ok && g.index > 0)": True,
    # values that the binding cannot pass to Python
    "optional.of(1).includes(1)": False,
    f'{ATTRIBUTE}.model.substring(0, 1) == "a" && "abc".substring(1, 3) == "bc"': True,
    f'{ATTRIBUTE}.model.indexOf("a") == 0 && "".split("") == []': True,
    'bool("F") || int(" 1".trim()) != 1': False,
    "has(device.capacity) && has(device.attributes.x)": True,
    f'quantity("1") in [{CAPACITY}.share, {CAPACITY}.share.add({CAPACITY}.share)]': True,
    '[{"a": optional.none()}].indexOf(1) == -1': True,
    "[null].lastIndexOf(null) == 0": True,
    " && ".join(["true"] * 1000): True,
    "!" * 5000 + "false": False,
}


@pytest.mark.parametrize(("text", "wanted"), MATCHES.items())
def test_verdicts(text: str, wanted: bool) -> None:
    assert matches(text) is wanted


ERRORS = {
    f"{ATTRIBUTE}.missing == 1": f"no such key: missing{HINT}",
    f'{ATTRIBUTE}["a b"] == 1': f"no such key: a b{HINT}",
    'device.attributes["x"].model == "a"': f"no such key: model{HINT}",
    f"{ATTRIBUTE}.index": "CEL result of type int could not be converted to bool",
    f"{ATTRIBUTE}.index / 0 == 1": "division by zero",
    f"[1, 2][{ATTRIBUTE}.index] == 1": "index out of bounds: 3",
    f'{ATTRIBUTE}.firmware.isLessThan(quantity("1"))': "no such overload",
    'semver("1") == semver("1.0.0")': "No Major.Minor.Patch elements found",
    'quantity("x") == quantity("1")': "quantities must match the regular expression "
    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    '"".split("").filter(x, x != "").min() == ""': "min called on empty list",
    "device": "SelectorError: must evaluate to bool or the unknown type, not kubernetes.DRADevice",
    "device.driver": "SelectorError: must evaluate to bool or the unknown type, not string",
    "[1].map(x, x)": "SelectorError: must evaluate to bool or the unknown type, not list(int)",
    "[1, 2.0].size() == 2": "SelectorError: compilation failed: ERROR: <input>:1:5: "
    "expected type 'int' but found 'double'\n | [1, 2.0].size() == 2\n | ....^",
    'true || "a".matches("(")': "SelectorError: compilation failed: ERROR: <input>:1:21: invalid matches argument\n"
    ' | true || "a".matches("(")\n | ....................^',
    'false && int(string("x")) == 1': "SelectorError: program instantiation failed: "
    "type conversion error from 'string' to 'int'",
    f"{CAPACITY}.memory": "SelectorError: must evaluate to bool or the unknown type, not kubernetes.Quantity",
    f"[1].indexOf({ATTRIBUTE}.missing) == -1": f"no such key: missing{HINT}",
    "dyn(1)": "SelectorError: must evaluate to bool or the unknown type, not int",
    "x == 1": "SelectorError: compilation failed: ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n"
    " | x == 1\n | ^",
    "true || " * 1400 + "true": "SelectorError: must not be longer than 10240 bytes",
    '"\ud800" == ""': "SelectorError: must be valid UTF-8",
}


@pytest.mark.parametrize(("text", "wanted"), ERRORS.items())
def test_errors(text: str, wanted: str) -> None:
    assert fault(text) == wanted
    assert fault(text) == wanted  # the second time from the cache


@pytest.mark.parametrize(
    "text", ["", "device.foo == 1", 'device["driver"] == ""', "1 +", "(true", '1 == "a"', "true\0"]
)
def test_texts_that_do_not_compile(text: str) -> None:
    assert fault(text).startswith("SelectorError: compilation failed: ERROR: <input>:1:")


REFUSED = {
    f'{ATTRIBUTE}.model.find("[0-9]+") == "1"': "function find()",
    '"a1b2".findAll("[0-9]") == ["1"]': "function findAll()",
    '"%s".format([device.driver]) == ""': "function format()",
    'strings.quote("a") == ""': "function strings.quote()",
    'url("https://a.example.com").getHost() == "a"': "function url()",
    'isURL("a") || isIP("a")': "function isURL()",
    'isIP("a") || isURL("a")': "function isIP()",
    'ip.isCanonical("::1")': "function ip.isCanonical()",
    'cidr("10.0.0.0/8").containsIP(ip("10.0.0.1"))': "function cidr()",
    'timestamp("2026-01-01T00:00:00Z").getHours() == 0': "function timestamp()",
    'duration("1s") == duration("1s")': "function duration()",
    'bytes("a") == bytes("a")': "function bytes()",
    'b"a" == b"a"': "bytes literals",
    "lists.range(3) == [0, 1, 2]": "function lists.range()",
    "[2, 1].sortBy(x, x) == [1, 2]": "macro sortBy()",
    "[1, 2].all(i, x, x > i)": "macro all()",
    "[1, 2].exists(i, x, x > i)": "macro exists()",
    "[1, 2].transformList(i, x, x + i) == [1, 3]": "macro transformList()",
    '{"a": 1}.transformMap(k, v, v) == {"a": 1}': "macro transformMap()",
    f"[?{ATTRIBUTE}.?index] == [3]": "literals with optional elements, [?x]",
    f'{{?"a": {ATTRIBUTE}.?index}} == {{"a": 3}}': "literals with optional entries, {?k: v}",
    "optional.unwrap([optional.of(1)]) == [1]": "function optional.unwrap()",
    '{"a\\u0000": 1} == {}': "map keys with a NUL character",
    "[1].all(x, [1].all(y, [1].all(z, true)))": "comprehensions nested deeper than 2",
    "google.protobuf.Int64Value{value: 1} == 1": "messages of type google.protobuf.Int64Value",
    'quantity("1").`in` == ""': "names in backticks",
    "+".join("1" * 60) + " == 60": "expressions nested deeper than 32",
    "(" * 5000 + "true" + ")" * 5000: "expressions nested deeper than 32",
    "[" * 5000: "expressions nested deeper than 32",
}


@pytest.mark.parametrize(("text", "wanted"), REFUSED.items())
def test_refused_by_name(text: str, wanted: str) -> None:
    assert fault(text) == f"UnsupportedSelector: CEL {wanted}"


def test_loops_beside_each_other_and_bindings_are_not_nested() -> None:
    assert matches("[1].map(x, x).filter(y, y > 0).exists(z, z > 0)")
    assert matches("cel.bind(a, 1, cel.bind(b, 2, [a].all(x, [b].all(y, x < y))))")


@pytest.mark.parametrize(
    ("attribute", "wanted"),
    [
        (DeviceAttribute(), "attribute x: unsupported attribute value"),
        (DeviceAttribute(version="1"), "attribute x: parse semantic version: No Major.Minor.Patch elements found"),
    ],
)
def test_a_device_with_an_unreadable_attribute_is_an_error(attribute: DeviceAttribute, wanted: str) -> None:
    facts = DeviceFacts(DRIVER, {"x": attribute}, {})
    with pytest.raises(SelectorRuntimeError) as what:
        compile_selector("true").matches(facts)
    assert str(what.value) == wanted


def test_the_library_is_imported_by_the_first_selector_only() -> None:
    script = (
        "import sys, koordpy.devices.dra.cel as cel\n"
        "assert not {'cel_expr_python', 'google.protobuf'} & set(sys.modules)\n"
        "assert cel.compile_selector('true').text == 'true' and 'cel_expr_python' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
