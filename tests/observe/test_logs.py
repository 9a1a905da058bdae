"""Log lines."""

import io
import json
import logging

import pytest

from koordpy.observe import logs


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
    logs.configure(level="info", format="json", stream=stream)
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
    logs.configure(level=level, stream=stream)
    logging.getLogger("koordpy.test").debug("a")
    logging.getLogger("koordpy.test").info("b")
    assert len(stream.getvalue().splitlines()) == lines


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        logs.configure(level="loud")
