"""Status of ClusterNetworkTopology objects: is it valid, which nodes lack labels, how the tree looks.

Sources: gang-network.md section 3. A faulty object gets its condition; the last good tree goes on being used, and
detailStatus stays as it was. Only the object named `default` is used; others are told so. What is wrong is also a
warning in the log and an event, once for each process that leads.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordpy.api.custom import ClusterNetworkTopology
from koordpy.api.keys import TOPOLOGY_OBJECT
from koordpy.api.objects import Condition
from koordpy.api.wirejson import Undecodable, read_plain
from koordpy.cluster.topology import TopologyFault
from koordpy.cluster.tree import Tree
from koordpy.engine.apiserver.resources import CLUSTER_NETWORK_TOPOLOGIES, Resource
from koordpy.engine.context import Context
from koordpy.engine.status.announce import INVALID
from koordpy.engine.status.patches import condition_body, merged_conditions, patch_status
from koordpy.engine.status.reconciler import StatusWriter
from koordpy.engine.status.recorder import of_object

logger = logging.getLogger(__name__)

VALID = "Valid"
UNLABELLED = "UnlabelledNodes"
NOT_USED = f"only the object named {TOPOLOGY_OBJECT} is used"


def topology_status(
    topology: ClusterNetworkTopology, faults: list[TopologyFault], tree: Tree, *, now: float
) -> dict[str, Any]:
    """Fields of the status that should be written, the conditions of others kept; none for what must not change."""
    status: dict[str, Any] = {}
    generation = topology.metadata.generation
    if topology.metadata.name != TOPOLOGY_OBJECT:
        conditions = [Condition(type=VALID, status="Unknown", reason="NotUsed", message=NOT_USED)]
    elif faults:
        text = "; ".join(map(str, faults))
        conditions = [Condition(type=VALID, status="False", reason="BadHierarchy", message=text)]
    else:
        status["detailStatus"] = tree.detail_status
        text = " > ".join(tree.layers.names)
        conditions = [Condition(type=VALID, status="True", reason="HierarchyRead", message=text), _unlabelled(tree)]
    old = msgspec.convert(topology.status.get("conditions") or [], list[Condition], strict=False)
    made = [msgspec.structs.replace(condition, observed_generation=generation) for condition in conditions]
    status["conditions"] = [*map(condition_body, merged_conditions(old, made, now=now))]
    return {name: value for name, value in status.items() if value != topology.status.get(name)}


def _unlabelled(tree: Tree) -> Condition:
    if not tree.unlabelled:
        return Condition(type=UNLABELLED, status="False", reason="AllLabelled", message="every node has every label")
    keys = {layer.name: " or ".join(layer.label_keys) for layer in tree.layers.chain}
    bare = _without_any(tree)
    parts = [
        f"{name}: no node has {keys[name]}" if name in bare else f"{name}: {count} without {keys[name]}"
        for name, count in tree.unlabelled
    ]
    text = "; ".join(parts) + " (each such node is a domain of its own there)"
    return Condition(type=UNLABELLED, status="True", reason="LabelsMissing", message=text)


def _without_any(tree: Tree) -> list[str]:
    """Layers whose label no node has: a slip in the key, most likely."""
    return [name for name, count in tree.unlabelled if count == len(tree.node_names)]


def topology_warning(topology: ClusterNetworkTopology, faults: list[TopologyFault], tree: Tree) -> str:
    """What its owner should know beyond the status; empty where all is well."""
    if topology.metadata.name != TOPOLOGY_OBJECT:
        return NOT_USED
    if faults:
        return f"{'; '.join(map(str, faults))}; meanwhile what counts is {' > '.join(tree.layers.names)}"
    keys = {layer.name: " or ".join(layer.label_keys) for layer in tree.layers.chain}
    return "; ".join(f"layer {name}: no node has the label {keys[name]}" for name in _without_any(tree))


class TopologyStatusWriter(StatusWriter[ClusterNetworkTopology, dict[str, Any]]):
    """Of all ClusterNetworkTopologies, by their names. Lives on the scheduler's event loop."""

    def __init__(self, context: Context, leading: asyncio.Event) -> None:
        """leading: is set while this process leads."""
        super().__init__(context)
        self._leading = leading
        self._others: dict[str, ClusterNetworkTopology] = {}
        self._said: dict[str, str] = {}
        context.feeds.listeners.topology.append(self.changed)
        self.changed()

    def changed(self) -> None:
        """The object or the nodes changed."""
        for name in (TOPOLOGY_OBJECT, *self._others):
            self.mark(name)

    def seen(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """An object came by (the operator's handler): `default` is read from the cache, others are kept here."""
        name = str((body.get("metadata") or {}).get("name", ""))
        if name != TOPOLOGY_OBJECT:
            self._others.pop(name, None)
            if not deleted:
                try:
                    self._others[name] = read_plain(dict(body), ClusterNetworkTopology)
                except Undecodable as error:
                    logger.warning("ClusterNetworkTopology %s cannot be read: %s", name, error)
        self.mark(name)

    async def flush(self) -> None:
        """Says what is wrong, and writes every status that is not as it should be."""
        if self._leading.is_set():
            for name in self._marked:
                self._warn(name)
            await super().flush()

    def _warn(self, name: str) -> None:
        found = self._find(name)
        text = topology_warning(found[0], self._faults(name), self._context.state.nodes.tree) if found else ""
        if found and text and self._said.get(name) != text:
            logger.warning("ClusterNetworkTopology %s: %s", name, text)
            self._context.announcer.tell(INVALID, of_object(found[1], found[0].metadata), text)
        self._said[name] = text

    def _faults(self, name: str) -> list[TopologyFault]:
        return self._context.state.nodes.topology_faults if name == TOPOLOGY_OBJECT else []

    def _find(self, key: str) -> tuple[ClusterNetworkTopology, Resource] | None:
        found = self._context.state.nodes.topology if key == TOPOLOGY_OBJECT else self._others.get(key)
        return (found, CLUSTER_NETWORK_TOPOLOGIES) if found is not None else None

    def _read(self, obj: ClusterNetworkTopology) -> dict[str, Any]:
        return obj.status

    def _with(self, obj: ClusterNetworkTopology, said: dict[str, Any]) -> ClusterNetworkTopology:
        return msgspec.structs.replace(obj, status=said)

    def _render(self, key: str, obj: ClusterNetworkTopology, there: dict[str, Any]) -> dict[str, Any]:
        tree, now = self._context.state.nodes.tree, self._context.now()
        return {**there, **topology_status(obj, self._faults(key), tree, now=now)}

    async def _send(
        self, obj: ClusterNetworkTopology, resource: Resource, wanted: dict[str, Any], there: dict[str, Any]
    ) -> bool:
        changed = {name: value for name, value in wanted.items() if value != there.get(name)}
        return await patch_status(self._context.client, resource, obj.metadata, changed)
