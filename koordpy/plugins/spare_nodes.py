# SPDX-License-Identifier: Apache-2.0
"""Chooses the spare nodes, which only members of broken gangs may use (repair.md 6), and tells which pods may use them.

All nodes with the label `scheduling.koordinator.sh/spare: "true"` are spares. If a layer has the setting `spareNodes`,
each of its domains has this number of free spares: if it has fewer free labelled nodes, its last free nodes in natural
order of names are added. Spares are chosen on the snapshot, so placements of the round do not change them.
"""

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Taint
from koordpy.cache.snapshot import NodeInfo, Snapshot
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo, stays

_CLOSING = ("NoSchedule", "NoExecute")
"""Effects of taints with which a node is not free."""


class _Spares(frozenset[int]):
    """Positions of the spare nodes of a snapshot."""


def spares_of(snapshot: Snapshot) -> frozenset[int]:
    """Returns the positions of the spare nodes; computed once for each snapshot. O(nodes)."""
    if not snapshot.keeps_spares:
        return frozenset()
    known = snapshot.memo.get(_Spares)
    if not isinstance(known, _Spares):
        known = snapshot.memo[_Spares] = _Spares(_chosen(snapshot))
    return known


def spare_names(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the names of the spare nodes in natural order."""
    return tuple(sorted((snapshot.nodes[i].name for i in spares_of(snapshot)), key=natural_key))


def is_closed_to(pod: PodInfo, inputs: FilterInputs) -> bool:
    """Returns True if a pod may not use spare nodes. Members of broken gangs, DaemonSet and mirror pods, and pods with
    a system priority may use them."""
    return not (pod.priority >= keys.SYSTEM_PRIORITY_FLOOR or stays(pod) or inputs.repairs(pod))


def _chosen(snapshot: Snapshot) -> set[int]:
    """Returns the positions of the spare nodes."""
    labelled = {i for i, node in enumerate(snapshot.nodes) if node.labels.get(keys.SPARE) == "true"}
    out = set(labelled)
    layer = next((one for one in snapshot.tree.layers.chain if one.spares), None)
    if layer is None:
        return out
    domains: dict[int, list[int]] = {}
    level = snapshot.tree.domain_of[snapshot.tree.layers.level(layer.name) or 0].tolist()
    for i, node in enumerate(snapshot.nodes):
        if any(node.labels.get(key) for key in layer.label_keys) and _is_free(i, node, snapshot):
            domains.setdefault(level[i], []).append(i)
    for nodes in domains.values():
        wanted = layer.spares - len(labelled.intersection(nodes))
        able = [i for i in nodes if snapshot.nodes[i].labels.get(keys.SPARE) not in ("true", "false")]
        able.sort(key=lambda i: int(snapshot.name_rank[i]), reverse=True)
        out.update(able[: max(0, wanted)])
    return out


def _is_free(i: int, node: NodeInfo, snapshot: Snapshot) -> bool:
    """Returns True if a node is usable, and only DaemonSet and mirror pods run on it."""
    if node.unschedulable or any(_closes(taint) for taint in node.taints):
        return False
    if node.name in snapshot.lost_nodes or node.name in snapshot.closed_nodes.nodes:
        return False
    return bool(snapshot.used[i, 0] == snapshot.unevictable_used[i, 0])


def _closes(taint: Taint) -> bool:
    return taint.effect in _CLOSING
