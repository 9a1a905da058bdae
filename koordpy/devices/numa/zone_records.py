# SPDX-License-Identifier: Apache-2.0
"""Zone records: from which zones of its node a pod has its amounts, as annotations of the pod state it.

Source: numa.md 4 and 9.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from koordpy.api import keys
from koordpy.api.field_faults import UnreadableError
from koordpy.api.json_text import read_json
from koordpy.api.objects import Pod
from koordpy.api.quantity import canonical_amount, quantity_text, units

ByZone = Mapping[str, Mapping[int, int]]
"""Resource -> number of a zone -> amount."""
_ZONE = re.compile(r"([0-9]{1,9})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class StatedZones:
    """Zones that annotations of a pod state."""

    exported: ByZone = field(default_factory=dict)
    """By the exporter that observes the kubelet."""
    planned: ByZone = field(default_factory=dict)
    """By the scheduler that bound the pod."""
    unreadable: tuple[str, ...] = ()
    """Annotations that cannot be read."""


NOTHING_STATED = StatedZones()


def stated_zones(pod: Pod) -> StatedZones:
    """Reads the zones that annotations of a pod state."""
    annotations = pod.metadata.annotations
    found: dict[str, ByZone] = {}
    unreadable: list[str] = []
    for key, read in ((keys.KAI_PLACEMENT, _exported), (keys.RESOURCE_STATUS, _planned)):
        if key in annotations:
            try:
                found[key] = read(read_json(annotations[key]))
            except (UnreadableError, TypeError, ValueError, KeyError, AttributeError):
                unreadable.append(key)
    if not found and not unreadable:
        return NOTHING_STATED
    return StatedZones(found.get(keys.KAI_PLACEMENT, {}), found.get(keys.RESOURCE_STATUS, {}), tuple(unreadable))


def _exported(raw: Any) -> ByZone:
    """Reads `[{"zone": "node-0", "amount": {"cpu": "8"}}]`. Raises ValueError, TypeError, KeyError or AttributeError
    for another form."""
    out: dict[str, dict[int, int]] = {}
    for one in _list(raw):
        match = _ZONE.search(one["zone"])
        if match is None:
            raise ValueError(one["zone"])
        _add(out, int(match[1]), one.get("amount") or {})
    return out


def _planned(raw: Any) -> ByZone:
    """Reads `{"numaNodeResources": [{"node": 0, "resources": {"cpu": "8"}}]}`; errors as `_exported`."""
    out: dict[str, dict[int, int]] = {}
    for one in _list(raw.get("numaNodeResources") or []):
        if type(one["node"]) is not int:
            raise TypeError(one["node"])
        _add(out, one["node"], one.get("resources") or {})
    return out


def _list(raw: Any) -> list[Any]:
    if not isinstance(raw, list):
        raise TypeError(raw)
    return raw


def _add(out: dict[str, dict[int, int]], zone: int, resources: Mapping[str, Any]) -> None:
    for name, text in resources.items():
        row = out.setdefault(name, {})
        row[zone] = row.get(zone, 0) + units(name, text)


def status_text(numbers: tuple[int, ...], taken: Mapping[str, tuple[int, ...]]) -> str:
    """Returns the annotation of a Binding that records the zones of a pod (numa.md 9); empty for no amounts.

    numbers: [zones] number of each zone. taken: resource -> [zones] amount.
    """
    entries = []
    for i, number in enumerate(numbers):
        own = {name: canonical_text(name, row[i]) for name, row in sorted(taken.items()) if row[i]}
        if own:
            entries.append({"node": number, "resources": own})
    return json.dumps({"numaNodeResources": entries}, separators=(",", ":")) if entries else ""


def canonical_text(resource: str, amount: int) -> str:
    """Returns an amount as Kubernetes writes it: `8`, `64Gi`, `1k`. amount: in the units of `api.quantity.units`."""
    text = quantity_text(resource, amount)
    return canonical_amount(Fraction(amount)) if text.isdecimal() and resource != "cpu" else text
