# SPDX-License-Identifier: Apache-2.0
"""Log lines."""

import io
import json
import logging

import pytest

from koordpy.observe import log_lines


@pytest.fixture
def restored() -> object:
    root, ours = logging.getLogger(), logging.getLogger("koordpy")
    kept = root.handlers[:], root.level, ours.level
    yield None
    root.handlers[:], root.level, ours.level = kept[0], kept[1], kept[2]
    root.manager._clear_cache()
    return None


def test_json_lines_carry_what_extra_names_and_the_exception(restored: object) -> None:
    stream = io.StringIO()
    log_lines.configure(level="info", format="json", stream=stream)
    try:
        raise ValueError("on purpose")
    except ValueError:
        logging.getLogger("koordpy.test").exception("it %s", "failed", extra={"pod": "default/p"})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["msg"], line["pod"]) == ("error", "it failed", "default/p")
    assert "on purpose" in line["exception"]
    assert line["ts"].endswith("Z")


@pytest.mark.parametrize(("level", "lines"), [("debug", 2), ("info", 1), ("error", 0)])
def test_the_level_counts_for_our_own_lines(restored: object, level: str, lines: int) -> None:
    stream = io.StringIO()
    log_lines.configure(level=level, stream=stream)
    logging.getLogger("koordpy.test").debug("a")
    logging.getLogger("koordpy.test").info("b")
    assert len(stream.getvalue().splitlines()) == lines


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        log_lines.configure(level="loud")


FORGED = "x\n2026-01-01T00:00:00.000Z ERROR koordpy.engine forged \x1b[31m\u2028"


def test_what_tenants_write_neither_ends_a_line_nor_steers_a_terminal(restored: object) -> None:
    stream = io.StringIO()
    log_lines.configure(stream=stream)
    logging.getLogger("koordpy.test").warning("layer %r of %s", FORGED, FORGED)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert line.count("forged") == 2
    assert r"x\n2026" in line


@pytest.mark.parametrize("format", ["text", "json"])
def test_nor_does_what_an_exception_says(restored: object, format: log_lines.LogFormat) -> None:
    stream = io.StringIO()
    log_lines.configure(format=format, stream=stream)
    try:
        raise ValueError(f"{FORGED}\x9b31m\x7f{'v' * 5000}" + "\n" * 5000)
    except ValueError:
        logging.getLogger("koordpy.test").exception("it failed \x9b31m")
    first, *more = stream.getvalue().splitlines()
    assert first.isprintable() and len(stream.getvalue()) < 5000
    if format == "json":
        assert not more and FORGED.split("\n")[1] in json.loads(first)["exception"]
    else:
        assert more[0].startswith("Traceback") and all(line.isprintable() for line in more)
        assert all(line.startswith(" ") for line in more[1:])


def test_an_object_has_ten_lines_a_minute_and_a_namespace_300(restored: object) -> None:
    stream = io.StringIO()
    log_lines.configure(format="json", stream=stream)
    for number in range(400):
        extra = {"object": f"evil/p{number}", "namespace": "evil"}
        logging.getLogger("koordpy.test").error("fault %d", number, extra=extra)
    for number in range(30):
        logging.getLogger("koordpy.test").error("fault %d", number, extra={"object": "honest/p"})
        logging.getLogger("koordpy.test").error("of nobody")
    said = [json.loads(line).get("object", "") for line in stream.getvalue().splitlines()]
    assert len([one for one in said if one.startswith("evil")]) == 300
    assert (said.count("honest/p"), said.count("")) == (10, 30)


@pytest.mark.parametrize("format", ["text", "json"])
def test_long_values_are_cut_and_numbers_are_not(restored: object, format: log_lines.LogFormat) -> None:
    stream = io.StringIO()
    log_lines.configure(format=format, stream=stream)
    logging.getLogger("koordpy.test").warning("%s: %s, %.1f s", "n" * 200_000, ValueError("v" * 5000), 1.25)
    (line,) = stream.getvalue().splitlines()
    assert len(line) < 2500
    assert "(200000 characters)" in line
    assert "(5000 characters), 1.2 s" in line


@pytest.mark.parametrize("format", ["text", "json"])
def test_other_handlers_see_the_record_as_it_was_made(restored: object, format: log_lines.LogFormat) -> None:
    seen: list[logging.LogRecord] = []
    other = logging.Handler()
    other.emit = seen.append  # type: ignore[method-assign]
    log_lines.configure(format=format, stream=io.StringIO())
    logging.getLogger().addHandler(other)
    value = "v" * 5000
    logging.getLogger("koordpy.test").warning("%s: %s", value, FORGED)
    assert [(record.msg, record.args) for record in seen] == [("%s: %s", (value, FORGED))]


def test_an_exception_keeps_its_lines(restored: object) -> None:
    stream = io.StringIO()
    log_lines.configure(stream=stream)
    try:
        raise ValueError("on purpose")
    except ValueError:
        logging.getLogger("koordpy.test").exception("it failed")
    assert stream.getvalue().splitlines()[1] == "Traceback (most recent call last):"
