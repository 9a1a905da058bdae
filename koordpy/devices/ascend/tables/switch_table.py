# SPDX-License-Identifier: Apache-2.0
"""Reads the table of leaf (ToR) switches: the leaf and slice position of each server.

A server is a node. Each leaf switch has the same number of slice positions, and a server occupies one of them. Jobs
with label `tor-affinity` are placed by this table (docs/rules/ascend.md 4); it is read only for such jobs. The table is
the ConfigMap `kube-system/basic-tor-node-cm`. Each version of it is parsed once, in O(servers). `resolve` finds the
servers among the nodes of a snapshot.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

from koordpy.api import keys
from koordpy.api.objects import ConfigMap
from koordpy.cache.snapshot import NodeInfo

TITLE = f"ConfigMap {keys.SYSTEM_NAMESPACE}/{keys.SWITCH_TABLE}"
"""Name of the ConfigMap in messages."""
SINGLE_LAYER = "single_layer"
"""Value of key `tor_level` in the ConfigMap."""


class TableFaultError(ValueError):
    """The reason why a switch table is rejected."""


class Leaf(NamedTuple):
    """One leaf switch: its id, its IP address, and (slice position, address) of each server, ascending."""

    tor_id: int
    tor_ip: str
    servers: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The table as written, leaves by tor_id."""

    positions: int
    """Number of slice positions of a leaf (`tor_count`)."""
    leaves: tuple[Leaf, ...]
    """The leaf switches by tor_id."""
    single_layer: bool = False
    """True if the network has no layer above the leaves, so that a job must be under one leaf."""


@dataclass(frozen=True, slots=True)
class Switches:
    """The table on the nodes of a snapshot."""

    table: Table
    leaf_of: Mapping[int, int]
    """Node position -> index into `Table.leaves`."""
    slice_of: Mapping[int, int]
    """Node position -> slice position."""


def read_table(config_map: ConfigMap | None) -> Table:
    """Returns the table of the ConfigMap. Raises `TableFaultError` if there is none or it is malformed."""
    text = config_map.data.get(keys.SWITCH_TABLE_KEY) if config_map is not None else None
    if config_map is None or text is None:
        raise TableFaultError(f"tor-affinity needs {TITLE} with key {keys.SWITCH_TABLE_KEY}")
    fault, table = _parse(text, config_map.data.get(keys.SWITCH_LEVEL_KEY) == SINGLE_LAYER)
    if table is None:
        raise TableFaultError(f"{TITLE} is malformed: {fault}")
    return table


@lru_cache(maxsize=4)
def _parse(text: str, single_layer: bool) -> tuple[str, Table | None]:
    """Returns ("", table), or (fault, None) for a text that is not a table. Cached, because the table rarely
    changes."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as fault:
        return f"{keys.SWITCH_TABLE_KEY} is not valid JSON: {fault}", None
    try:
        return "", _table(raw, single_layer)
    except TableFaultError as fault:
        return str(fault), None


def _whole(value: Any) -> TypeGuard[int]:
    """Returns whether a JSON value is a whole number; JSON's true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _entries(value: Any, where: str) -> Sequence[Mapping[str, Any]]:
    """Returns a JSON value that is a list of objects. Raises `TableFaultError` for another value. where: path of the
    value."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise TableFaultError(f"{where} is not a list of objects")
    return value


def _table(raw: Any, single_layer: bool) -> Table:
    """Returns the table of a parsed JSON value. Raises `TableFaultError` with the path of the first fault.

    Every tor_id is unique, a slice position has at most one server, and a server is under one leaf only.
    """
    if not isinstance(raw, dict):
        raise TableFaultError("not a JSON object")
    positions = raw.get("tor_count")
    if not _whole(positions) or positions < 1:
        raise TableFaultError(f"tor_count is {json.dumps(positions)}, not a whole number of at least 1")
    leaves: dict[int, Leaf] = {}
    home: dict[str, int] = {}
    for i, entry in enumerate(_entries(raw.get("server_list"), "server_list")):
        tor_id = entry.get("tor_id")
        if not _whole(tor_id) or tor_id in leaves:
            what = "given twice" if _whole(tor_id) else "not a whole number"
            raise TableFaultError(f"server_list[{i}].tor_id {json.dumps(tor_id)} is {what}")
        servers: dict[int, str] = {}
        for j, server in enumerate(_entries(entry.get("server", []), f"server_list[{i}].server")):
            at, address = server.get("slice_id"), server.get("server_ip")
            where = f"server_list[{i}].server[{j}]"
            if not _whole(at) or not 0 <= at < positions:
                raise TableFaultError(f"{where}.slice_id is {json.dumps(at)}, not in 0..{positions - 1}")
            if not isinstance(address, str) or not address:
                raise TableFaultError(f"{where}.server_ip is not a non-empty string")
            if at in servers:
                raise TableFaultError(f"{where}.slice_id {at} is given twice under leaf {tor_id}")
            if address in home:
                raise TableFaultError(f"server {address} is under leaf {home[address]} and leaf {tor_id}")
            servers[at] = address
            home[address] = tor_id
        ip = entry.get("tor_ip", "")
        leaves[tor_id] = Leaf(tor_id, ip if isinstance(ip, str) else "", tuple(sorted(servers.items())))
    return Table(positions, tuple(leaves[tor_id] for tor_id in sorted(leaves)), single_layer)


def resolve(table: Table, nodes: Sequence[NodeInfo]) -> Switches:
    """Returns the table on nodes. A server is the node with its address, else with its name; unknown servers are left
    out.

    Raises `TableFaultError` if entries under different leaves are the same node.
    """
    by_name = {node.name: i for i, node in enumerate(nodes)}
    by_address: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for own in node.node.status.addresses:
            by_address.setdefault(own.address, i)
    leaf_of: dict[int, int] = {}
    slice_of: dict[int, int] = {}
    for number, leaf in enumerate(table.leaves):
        for at, address in leaf.servers:
            found = by_address.get(address, by_name.get(address))
            if found is None:
                continue
            if leaf_of.setdefault(found, number) != number:
                other = table.leaves[leaf_of[found]].tor_id
                name = nodes[found].name
                raise TableFaultError(
                    f"{TITLE} is malformed: server {name} is under leaf {other} and leaf {leaf.tor_id}"
                )
            slice_of.setdefault(found, at)
    return Switches(table, leaf_of, slice_of)
