# SPDX-License-Identifier: Apache-2.0
"""Filters the web UI's document for the tenant of one namespace.

The tenant sees its units in full, and the usage of other tenants on each node. The filter copies each allowed field by
name, so a new field of the document is left out until it is added here. Pods of other tenants become one row for each
node, with their devices and without names. A node without bound or planned pods of the tenant has a number instead of
its name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from koordpy.view.redaction import MASK, Redactor

Document = dict[str, Any]
NODE, GANG, RANK, DEVICES, CELLS, STATE, PRIORITY, USER, QUOTA, SINCE, WORKLOAD = range(11)
"""Columns of a row of `pods` (docs/view.md)."""
OTHERS = "(others)"


class _Nodes:
    """Maps names of nodes to the names that a tenant sees."""

    def __init__(self, names: list[str], seen: set[str]) -> None:
        self.names = {name: name if name in seen else f"(node {i})" for i, name in enumerate(names, 1)}

    def of(self, name: str) -> str:
        """Returns the name that the tenant sees; empty for the empty name, and for a node that no longer exists."""
        return self.names.get(name, "")

    def each(self, names: Iterable[str]) -> list[str]:
        return [self.names[name] for name in names if name in self.names]


def page_for(document: Mapping[str, Any], masked: Redactor) -> Document:
    """Returns a whole document, filtered for the redactor's namespace."""
    tree = document["tree"]
    own = {key: row for key, row in document["pods"].items() if masked.is_own(key)}
    units = [one for one in document["queue"]["units"] if any(map(masked.is_own, (*one["gangs"], *one["pods"])))]
    seen = {row[NODE] for row in own.values()}
    seen |= {node for one in units for pod, node in one["room"].items() if masked.is_own(pod)}
    nodes = _Nodes(tree["nodes"], seen)
    domains = [
        {"names": [nodes.names.get(name, name) for name in level["names"]], "starts": level["starts"]}
        for level in tree["domains"]
    ]
    queue = document["queue"]
    return {
        "version": document["version"],
        "taken": document["taken"],
        "source": f"namespace {masked.namespace}; names of other tenants are hidden",
        "warnings": [],
        "tree": {"layers": tree["layers"], "domains": domains, "nodes": list(nodes.names.values())},
        "nodes": {nodes.names[name]: row for name, row in document["nodes"].items() if name in nodes.names},
        "pods": _pods(document["pods"], own, nodes, masked),
        "links": document["links"],
        "queue": {
            "waiting": queue["waiting"],
            "held": queue["held"],
            "mode": queue["mode"],
            "units": [_unit(one, nodes, masked) for one in units],
        },
        "quotas": [_quota(one, masked) for one in document["quotas"] if one["name"] in masked.own],
        "shares": [row for row in document["shares"] if row[0] in masked.own],
        "slots": document.get("slots"),
        "decisions": [_decision(one, nodes, masked) for one in document["decisions"] if _concerns(one, masked)],
    }


def _pods(pods: Mapping[str, list[Any]], own: Mapping[str, list[Any]], nodes: _Nodes, masked: Redactor) -> Document:
    out: Document = {}
    for key, row in own.items():
        out[key] = [
            nodes.of(row[NODE]),
            row[GANG] if not row[GANG] or masked.is_own(row[GANG]) else MASK,
            *row[RANK:USER],
            row[USER] if row[USER] in masked.own else "",
            row[QUOTA] if row[QUOTA] in masked.own else "",
            *row[SINCE:],
        ]
    for key, row in pods.items():
        if key in own or not row[NODE] or not row[DEVICES]:
            continue
        node = nodes.of(row[NODE])
        is_known = row[CELLS] is not None
        shown = f"{OTHERS}/{node}" if is_known else f"{OTHERS}/{node}, devices not known"
        sum_of = out.setdefault(shown, [node, "", None, 0, [] if is_known else None, "o", 0, "", ""])
        sum_of[DEVICES] += row[DEVICES]
        if is_known:
            sum_of[CELLS] = sorted({*sum_of[CELLS], *row[CELLS]})
    return out


def _unit(one: Mapping[str, Any], nodes: _Nodes, masked: Redactor) -> Document:
    return {
        "unit": _unit_name(one["unit"], masked),
        "gangs": [key for key in one["gangs"] if masked.is_own(key)],
        "pods": [key for key in one["pods"] if masked.is_own(key)],
        "pending": one["pending"],
        "members": one["members"],
        "user": one["user"] if one["user"] in masked.own else "",
        "quota": one["quota"] if one["quota"] in masked.own else "",
        "priority": one["priority"],
        "asks": one["asks"],
        "since": one["since"],
        "state": one["state"],
        "message": masked.text(one["message"]),
        "start": one["start"],
        "room": {pod: nodes.of(node) for pod, node in one["room"].items() if masked.is_own(pod)},
        "victims": _victims(one["victims"], nodes, masked),
    }


def _unit_name(unit: str, masked: Redactor) -> str:
    """Returns the id of a unit with only the tenant's gangs; the mask if none of its gangs is the tenant's."""
    prefix, colon, names = unit.rpartition(":") if unit.startswith(("gang:", "gpus:")) else ("", "", unit)
    own = [name for name in names.split(",") if masked.is_own(name)]
    return f"{prefix}{colon}{','.join(own)}" if own else MASK


def _victims(victims: Iterable[list[str]], nodes: _Nodes, masked: Redactor) -> list[list[str]]:
    return [[pod if masked.is_own(pod) else MASK, nodes.of(node), rule] for pod, node, rule in victims]


def _quota(one: Mapping[str, Any], masked: Redactor) -> Document:
    parent = one["parent"] if one["parent"] in masked.own else ""
    return {"name": one["name"], "parent": parent, "amounts": one["amounts"]}


def _concerns(one: Mapping[str, Any], masked: Redactor) -> bool:
    """Returns True if a decision is about a unit of the tenant, or has a victim of the tenant."""
    return _unit_name(one["unit"], masked) != MASK or any(masked.is_own(victim[0]) for victim in one["victims"])


def _decision(one: Mapping[str, Any], nodes: _Nodes, masked: Redactor) -> Document:
    unit = _unit_name(one["unit"], masked)
    is_own = unit != MASK
    victims = _victims(one["victims"], nodes, masked)
    return {
        "round": one["round"],
        "at": one["at"],
        "unit": unit,
        "what": one["what"],
        "line": masked.text(one["line"]) if is_own else f"{unit}: {one['what']}",
        "why": masked.text(one["why"]),
        "placed": one["placed"],
        "pods": one["pods"],
        "layer": one["layer"],
        "nodes": nodes.each(one["nodes"]) if is_own else [],
        "for": masked.text(one["for"]),
        "victims": victims if is_own else [victim for victim in victims if victim[0] != MASK],
    }
