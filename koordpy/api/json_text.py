# SPDX-License-Identifier: Apache-2.0
"""Reads JSON that users write into annotations and ConfigMaps. The reader is strict: a repeated key is a fault.

`json.loads` alone takes the last of two equal keys. So a second entry could silently replace a MustGather, and a gang
would be placed against its owner's intent.
"""

import json
import re
from typing import Any

from koordpy.api.field_faults import UnreadableError, literal
from koordpy.api.reading_limits import too_long

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def lone_surrogates(text: str, value: Any) -> bool:
    """Returns True if a value read from JSON contains a lone surrogate, which cannot be encoded as UTF-8."""
    if not _ESCAPED_SURROGATE.search(text):
        return False
    try:
        json.dumps(value, ensure_ascii=False, default=repr).encode()
    except UnicodeEncodeError:
        return True
    return False


def read_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises `UnreadableError` for invalid JSON (`invalid JSON, line 1 column 5`), a repeated key, or a text that is too
    long.
    """
    if length := too_long(text):
        raise UnreadableError(length)
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except UnreadableError:
        raise
    except json.JSONDecodeError as fault:
        raise UnreadableError(f"invalid JSON, line {fault.lineno} column {fault.colno}") from None
    except RecursionError:
        raise UnreadableError("invalid JSON, nested too deeply") from None
    except ValueError:  # a number of thousands of digits
        raise UnreadableError("invalid JSON, a number is too long") from None
    if lone_surrogates(text, value):
        raise UnreadableError("invalid JSON, a lone surrogate is not a character")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict. Raises `UnreadableError` if a key is repeated."""
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        for twice, _ in pairs:
            if twice in seen:
                break
            seen.add(twice)
        raise UnreadableError(f"the key {literal(twice)} is given twice")
    return out
