"""The pages of reference are complete: every option, every field of the configuration with its default."""

import argparse
import importlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from koordpy.api.config import DEFAULT_WEIGHTS, GPU_RESOURCES, KoordpyConfiguration
from koordpy.cli.main import COMMANDS
from tests.docs.worked import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
FIELDS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
SHARED = ("simulate", "explain", "topology")
WORDED = {
    "apiVersion": "as above",
    "kind": "as above",
    "scores.nodeResourcesFit.resources": "cpu 1, memory 1, GPUs 5",
}
"""Defaults that the page tells in words."""


def options(command: str) -> set[str]:
    parser = argparse.ArgumentParser(prog=command, add_help=False)
    importlib.import_module(COMMANDS[command][0]).add_arguments(parser)
    return {name for action in parser._actions for name in action.option_strings}


def section(*, of: str) -> str:
    """The part of the page whose heading names a command."""
    parts = re.split(r"^## ", PAGE, flags=re.M)[1:]
    (found,) = (part for part in parts if of in re.split(r", | ", part.partition("\n")[0]))
    return found


def told(command: str) -> set[str]:
    """Options in the first column of a command's table."""
    found = set()
    for line in section(of=command).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        if command in SHARED and cells[1] != "all" and command not in cells[1].split(", "):
            continue
        if command == "fairshare" and not cells[0].startswith("`fairshare"):
            continue
        found |= set(_OPTION.findall(cells[0]))
    return found


@pytest.mark.parametrize("command", [*SHARED, "fairshare", "run", "agent", "demo"])
def test_every_option_is_told_and_every_one_told_is_there(command: str) -> None:
    assert told(command) == options(command)


def test_every_command_is_told() -> None:
    assert [command for command in COMMANDS if command not in PAGE] == []


def fields(info: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of every field that is no section."""
    for field in info.fields:
        path = f"{at}{field.encode_name}"
        kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
        if isinstance(kind, inspect.StructType):
            yield from fields(kind, f"{path}.")
        else:
            duration = isinstance(field.type, inspect.Metadata) and (field.type.extra or {}).get("format") == "duration"
            default = {} if field.default is msgspec.NODEFAULT else field.default
            yield path, WORDED.get(path) or shown(default, duration=duration)


def shown(value: Any, *, duration: bool) -> str:
    """A default as the page writes it."""
    if duration:
        seconds = round(value)
        for unit, size in (("h", 3600), ("m", 60)):
            if seconds and seconds % size == 0:
                return f"`{seconds // size}{unit}`"
        return f"`{seconds}s`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    if value in ("", None):
        return "-"
    if isinstance(value, dict):
        return "`{}`"
    return f"`{round(value) if isinstance(value, float) and value == round(value) and value > 2 else value}`"


def test_every_field_is_told_with_its_default() -> None:
    rows = {}
    for line in FIELDS.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows |= dict.fromkeys(re.findall(r"`([\w.]+)`", cells[0]), cells[1])
    assert rows == dict(fields(inspect.type_info(KoordpyConfiguration)))


def test_the_weights_and_the_gpus_are_those_that_count() -> None:
    assert ", ".join(f"{name} {weight}" for name, weight in DEFAULT_WEIGHTS.items()) in FIELDS
    weighed = {one.name: one.weight for one in KoordpyConfiguration().scores.node_resources_fit.resources}
    assert weighed == {"cpu": 1, "memory": 1, **dict.fromkeys(GPU_RESOURCES, 5)}
