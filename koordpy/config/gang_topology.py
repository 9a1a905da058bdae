# SPDX-License-Identifier: Apache-2.0
"""Reads the annotation `networkTopologyAware`: in which part of the network a gang must be, or preferably is, placed.

The annotation is JSON with two fields. gatherStrategy lists rules such as "all pods in one block". parallelModel has
the sizes of data and pipeline parallelism. A value of a wrong type or an unknown field makes the whole annotation
unreadable: if a MustGather were read only in part, a gang might be placed against its owner's intent. Source:
gang-network.md section 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from koordpy.api.field_faults import UnreadableError, kind_name, literal
from koordpy.api.json_text import read_json
from koordpy.api.reading_limits import GATHER_ENTRIES, some, too_many
from koordpy.api.spelling import hint

STRATEGIES = ("PreferGather", "MustGather")
"""Values of `strategy`."""
FIELDS = ("gatherStrategy", "parallelModel")
"""Fields of the annotation."""
RULE_FIELDS = ("layer", "strategy", "podCountMultiple", "scope")
"""Fields of an entry of gatherStrategy."""
SCOPES = ("group", "gang", "replica")
"""Values of `scope`."""
PARALLEL_FIELDS = ("parallelStrategy", "parallelism")
"""Fields of an entry of parallelModel."""
PARALLEL = ("data-parallel", "pipeline-parallel", "tensor-parallel")
"""Values of `parallelStrategy`."""


@dataclass(frozen=True, slots=True)
class GatherRule:
    """One entry of gatherStrategy: certain pods are placed in one domain of a layer."""

    layer: str
    must: bool
    """True for MustGather (a condition), False for PreferGather (a preference)."""
    multiple: int = 0
    """podCountMultiple: each domain of the layer gets a multiple of this number of pods. 0 and 1 have no effect."""
    scope: str = "group"
    """Which pods share a domain. `group`: all pods of the GangGroup. `gang`, `replica`: the pods of each gang or each
    replica (`gathered_parts.py`)."""

    @property
    def whole(self) -> bool:
        """True if all pods of the GangGroup must share one domain."""
        return self.must and self.scope == "group"


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """The network locality that a gang requests."""

    gather: tuple[GatherRule, ...] = ()
    pipeline: int = 1
    """Pipeline-parallel size: number of members with consecutive ranks in a pipeline group. 1: no pipeline groups."""
    data: int | None = None
    """Data-parallel size; None if not set. Used only for a warning."""
    has_parallel: bool = False
    """True if parallelModel has an entry."""
    doubts: tuple[str, ...] = ()
    """Warnings about settings without effect, each with its path."""

    @property
    def has_goal(self) -> bool:
        """True if the gang's placement depends on distances in the network.

        Topology keys of upstream PodGroups are not part of a wish, and not considered here.
        """
        return bool(self.gather) or self.pipeline > 1


def parse_topology_wish(text: str) -> TopologyWish:
    """Reads the annotation. Raises `UnreadableError` with the fault and its path."""
    raw = read_json(text)
    if not isinstance(raw, dict):
        raise UnreadableError(f"must be a JSON object, not {kind_name(raw)}")
    if strange := tuple(some(_strange_fields(raw))):
        raise UnreadableError("; ".join(strange))
    rules = tuple(_rule(entry, f"gatherStrategy[{i}]") for i, entry in enumerate(_list(raw, "gatherStrategy")))
    sizes: dict[str, int] = {}
    for i, entry in enumerate(_list(raw, "parallelModel")):
        where = f"parallelModel[{i}]"
        if not isinstance(entry, dict):
            raise UnreadableError(f"{where}: must be a mapping, not {kind_name(entry)}")
        name, size = entry.get("parallelStrategy"), entry.get("parallelism")
        if name not in PARALLEL:
            raise UnreadableError(f"{where}.parallelStrategy: {literal(name)} is none of {', '.join(PARALLEL)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UnreadableError(f"{where}.parallelism: {literal(size)} is no number of 1 or more")
        sizes[name] = size
    return TopologyWish(
        gather=rules,
        pipeline=sizes.get("pipeline-parallel", 1),
        data=sizes.get("data-parallel"),
        has_parallel=bool(sizes),
        doubts=tuple(some(_doubts(raw))),
    )


def _doubts(raw: dict[str, Any]) -> Iterator[str]:
    """Yields warnings about settings without effect."""
    for i, entry in enumerate(_list(raw, "gatherStrategy")):
        if entry.get("podCountMultiple") == 0:
            yield f"gatherStrategy[{i}].podCountMultiple: 0 has no effect"


def _strange_fields(raw: dict[str, Any]) -> Iterator[str]:
    """Yields a text for each unknown field, with its path and the most similar known field."""
    yield from _unknown(raw, FIELDS, "")
    for field, known in (("gatherStrategy", RULE_FIELDS), ("parallelModel", PARALLEL_FIELDS)):
        for i, entry in enumerate(_list(raw, field)):
            if isinstance(entry, dict):
                yield from _unknown(entry, known, f"{field}[{i}].")


def _unknown(raw: dict[str, Any], known: Sequence[str], where: str) -> Iterator[str]:
    """Yields the unknown fields of one mapping. where: path of the mapping with a dot at the end; empty for the
    root."""
    for key in raw:
        if key not in known:
            yield f"{where}{key}: unknown field{hint(key, known, closed=True)}"


def _list(raw: dict[str, Any], field: str) -> list[Any]:
    """Returns a field that is a list; empty if absent. Raises `UnreadableError` for another type, or too many
    entries."""
    value = raw.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableError(f"{field}: must be a list, not {kind_name(value)}")
    if fault := too_many(len(value), GATHER_ENTRIES, "entries"):
        raise UnreadableError(f"{field}: {fault}")
    return value


def _rule(entry: Any, where: str) -> GatherRule:
    """Returns one entry of gatherStrategy as a rule. where: path of the entry. Raises `UnreadableError`."""
    if not isinstance(entry, dict):
        raise UnreadableError(f"{where}: must be a mapping, not {kind_name(entry)}")
    layer, strategy, multiple = entry.get("layer"), entry.get("strategy"), entry.get("podCountMultiple")
    if not isinstance(layer, str) or not layer:
        raise UnreadableError(f"{where}.layer: must be the name of a layer, not {literal(layer)}")
    if strategy not in STRATEGIES:
        near = hint(strategy, STRATEGIES) if isinstance(strategy, str) else ""
        raise UnreadableError(f"{where}.strategy: {literal(strategy)} is neither PreferGather nor MustGather{near}")
    if multiple is not None and (not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 0):
        raise UnreadableError(f"{where}.podCountMultiple: {literal(multiple)} is no whole number")
    scope = entry.get("scope")
    if scope is not None and scope not in SCOPES:
        said = f'"{literal(scope)[1:-1]}"' if isinstance(scope, str) else literal(scope)
        raise UnreadableError(f"{where}.scope: {said} is none of {', '.join(SCOPES)}")
    rule = GatherRule(layer, strategy == "MustGather", multiple or 0, scope or "group")
    if fault := scope_fault(rule):
        raise UnreadableError(f"{where}.scope: {fault}")
    return rule


def scope_fault(rule: GatherRule) -> str:
    """Returns why the scope of a rule does not match its other fields; empty if it is valid."""
    if rule.scope == "group":
        return ""
    if not rule.must:
        return f'"{rule.scope}" needs MustGather'
    return f'"{rule.scope}" does not go with podCountMultiple' if rule.multiple else ""
