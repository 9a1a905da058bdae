"""Fields of workloads that look misspelt, and words in them that an API server refuses.

Source: workloads.md 10.6.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordpy.api.faults import Fault, key_path
from koordpy.api.spelling import hint
from koordpy.workloads.source import FieldListener

_PREFIX_LETTERS = 8
"""Letters of a name that may stand for a longer one that begins with it."""


class AskedFields(FieldListener):
    """What the readers of a manifest have asked for, so that names beside these can be told of."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[Mapping[str, Any], set[str]]] = {}
        """Path of a mapping -> (it, the names of its fields that are known)."""
        self._refused: list[Fault] = []

    def know(self, path: str, raw: Mapping[str, Any], *names: str) -> None:
        self._names.setdefault(path, (raw, set()))[1].update(names)

    def refuse(self, fault: Fault) -> None:
        if fault not in self._refused:
            self._refused.append(fault)

    def doubts(self) -> Iterator[Fault]:
        """Fields that look like misspelt known ones, but for those of the status, and values that are refused."""
        for path, (raw, names) in self._names.items():
            for key in raw if path.partition(".")[0] != "status" else ():
                if isinstance(key, str) and key not in names:
                    near = hint(key, names) or _begun(key, names)
                    if near:
                        yield Fault(key_path(path, key), f"unknown field, not read{near}")
        yield from self._refused


def _begun(key: str, names: set[str]) -> str:
    folded = key.casefold()
    found = next((one for one in sorted(names) if one.casefold().startswith(folded)), "")
    return f", did you mean {found}?" if found and len(key) >= _PREFIX_LETTERS else ""
