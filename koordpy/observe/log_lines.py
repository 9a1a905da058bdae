# SPDX-License-Identifier: Apache-2.0
"""Formats log lines as text, or as JSON with one object a line.

Long values are cut and control characters escaped, because tenants choose names and annotations. The number of lines
about one object is limited per minute.
"""

import logging
import re
import sys
import time
from copy import copy
from typing import Any, Literal, TextIO

import orjson
from aiohttp.http_exceptions import HttpProcessingError

from koordpy.observe.message_rates import Lately

LogFormat = Literal["text", "json"]
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


MOST_CHARACTERS = 1024
"""Maximum length of one value in a line, in characters."""
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
"""Characters that could end a line or control a terminal."""
MOST_LINES = 100
"""Maximum number of lines of an exception; the first and the last lines are kept."""


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _cut(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = str(value)
    return f"{text[:MOST_CHARACTERS]}... ({len(text)} characters)" if len(text) > MOST_CHARACTERS else value


def _message(record: logging.LogRecord) -> str:
    """Returns the message, with long values cut."""
    cut = copy(record)
    if isinstance(record.args, tuple):
        cut.args = tuple(map(_cut, record.args))
    return cut.getMessage()


def _cut_lines(text: str) -> list[str]:
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        lines[MOST_LINES // 2 : -MOST_LINES // 2] = ["..."]
    return [str(_cut(line)) for line in lines]


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object with ts (RFC 3339, UTC), level, logger, msg, and the keys of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "ts": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
        }
        line.update((key, _cut(value)) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            line["exception"] = "\n".join(_cut_lines(self.formatException(record.exc_info)))
        text = orjson.dumps(line, default=str).decode()
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextFormatter(logging.Formatter):
    """Formats a line as `2026-01-01T00:00:00.000Z INFO koordpy.engine.scheduling_loop message`, in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        shown = copy(record)
        shown.msg, shown.args, shown.exc_text = _escaped(_message(record)), (), None
        return super().format(shown)

    def formatException(self, ei: Any) -> str:
        """Indents all lines but the first, so that no line of an exception looks like a log line."""
        return "\n ".join(map(_escaped, _cut_lines(super().formatException(ei))))


class _OfObjects(logging.Filter):
    """Limits lines with an `object` in `extra` to 10 a minute, and to 300 for all objects of its `namespace`."""

    def __init__(self) -> None:
        super().__init__()
        self._lately = Lately()

    def filter(self, record: logging.LogRecord) -> bool:
        about = getattr(record, "object", None)
        namespace = getattr(record, "namespace", None)
        return about is None or self._lately.lets((record.name, about), record.created, namespace)


def _is_ours(record: logging.LogRecord) -> bool:
    """Returns False for lines about invalid HTTP requests, because any client could fill the log with them."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def configure(*, level: str = "info", format: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Sends all log lines to one stream (stderr). Raises ValueError for an unknown level."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}: must be debug, info, warning or error")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.addFilter(_OfObjects())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("koordpy").setLevel(number)
    for chatty in ("aiohttp.access", "asyncio", "kubernetes_asyncio"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))
    server = logging.getLogger("aiohttp.server")
    if _is_ours not in server.filters:
        server.addFilter(_is_ours)
    # koordpy itself logs why kopf ended and that it restarts
    logging.getLogger("kopf").setLevel(number if number <= logging.DEBUG else logging.CRITICAL)
