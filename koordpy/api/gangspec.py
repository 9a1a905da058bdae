"""The annotation `networkTopologyAware`: gather strategy and parallel model of a gang.

Source: gang-network.md section 4. Anything of a wrong type makes the whole annotation unreadable: a MustGather that is
half understood could place a gang against its owner's wish.
"""

import json
from dataclasses import dataclass
from typing import Any

STRATEGIES = ("PreferGather", "MustGather")
PARALLEL = ("data-parallel", "pipeline-parallel", "tensor-parallel")


class UnreadableError(ValueError):
    """An annotation that cannot be read; the text says what and where."""


@dataclass(frozen=True, slots=True)
class GatherRule:
    """One entry of gatherStrategy. `multiple` below 2 means nothing."""

    layer: str
    must: bool
    multiple: int = 0


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """What a gang asks of the network."""

    gather: tuple[GatherRule, ...] = ()
    pipeline: int = 1
    data: int | None = None
    has_parallel: bool = False

    @property
    def has_goal(self) -> bool:
        """Whether a gather goal exists (without upstream's topology keys)."""
        return bool(self.gather) or self.pipeline > 1


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), "null")


def parse_topology_wish(text: str) -> TopologyWish:
    """Reads the annotation. Raises UnreadableError naming what is wrong and where."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as fault:  # ValueError alone: a number of thousands of digits
        where = "nesting" if isinstance(fault, RecursionError) else "a number too long"
        if isinstance(fault, json.JSONDecodeError):
            where = f"line {fault.lineno} column {fault.colno}"
        raise UnreadableError(f"no JSON, {where}") from None
    if not isinstance(raw, dict):
        raise UnreadableError(f"{_kind(raw)} instead of a JSON object")
    rules = tuple(_rule(entry, f"gatherStrategy[{i}]") for i, entry in enumerate(_list(raw, "gatherStrategy")))
    sizes: dict[str, int] = {}
    for i, entry in enumerate(_list(raw, "parallelModel")):
        where = f"parallelModel[{i}]"
        if not isinstance(entry, dict):
            raise UnreadableError(f"{where}: {_kind(entry)} instead of a mapping")
        name, size = entry.get("parallelStrategy"), entry.get("parallelism")
        if name not in PARALLEL:
            raise UnreadableError(f"{where}.parallelStrategy: {name!r} is none of {', '.join(PARALLEL)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UnreadableError(f"{where}.parallelism: {size!r} is no number of 1 or more")
        sizes[name] = size
    return TopologyWish(
        gather=rules,
        pipeline=sizes.get("pipeline-parallel", 1),
        data=sizes.get("data-parallel"),
        has_parallel=bool(sizes),
    )


def _list(raw: dict[str, Any], field: str) -> list[Any]:
    value = raw.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableError(f"{field}: {_kind(value)} instead of a list")
    return value


def _rule(entry: Any, where: str) -> GatherRule:
    if not isinstance(entry, dict):
        raise UnreadableError(f"{where}: {_kind(entry)} instead of a mapping")
    layer, strategy, multiple = entry.get("layer"), entry.get("strategy"), entry.get("podCountMultiple")
    if not isinstance(layer, str) or not layer:
        raise UnreadableError(f"{where}.layer: {layer!r} is no layer name")
    if strategy not in STRATEGIES:
        raise UnreadableError(f"{where}.strategy: {strategy!r} is neither PreferGather nor MustGather")
    if multiple is not None and (not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 0):
        raise UnreadableError(f"{where}.podCountMultiple: {multiple!r} is no whole number")
    return GatherRule(layer=layer, must=strategy == "MustGather", multiple=multiple or 0)
