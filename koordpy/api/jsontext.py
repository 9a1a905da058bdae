"""JSON that people write into annotations and ConfigMaps: read strictly, or told where it breaks.

Why not `json.loads` alone: it takes the last of two equal keys, and a MustGather that is overwritten in silence would
place a gang against its owner's wish.
"""

import json
from typing import Any

from koordpy.api.faults import literal


class JsonFault(ValueError):
    """What is wrong with the text, and where."""


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises JsonFault: `no JSON, line 1 column 5`, or a key that is given twice."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except JsonFault:
        raise
    except json.JSONDecodeError as fault:
        raise JsonFault(f"no JSON, line {fault.lineno} column {fault.colno}") from None
    except RecursionError:
        raise JsonFault("no JSON, nesting") from None
    except ValueError:  # a number of thousands of digits
        raise JsonFault("no JSON, a number too long") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise JsonFault(f"the key {literal(twice)} is given twice")
    return out
