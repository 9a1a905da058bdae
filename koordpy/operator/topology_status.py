# SPDX-License-Identifier: Apache-2.0
"""Writes the status of ClusterNetworkTopology objects: validity, nodes without labels, and the tree.

If an object has faults, it gets a condition; the last valid tree stays in use, and detailStatus is not changed. Only
the object named `default` is used; other objects get a condition that says so. Faults are also logged and sent as an
Event, once per leader. Gaps in the labels set the condition Degraded. Each kind of gap in a layer causes one Event. A
further Event for it follows only after all gaps were absent for `REPAIRED_SECONDS`, so that changing labels do not
cause many Events. The column VALID shows `status.valid`. Rules: gang-network.md 3.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordpy.api.custom_objects import ClusterNetworkTopology
from koordpy.api.keys import TOPOLOGY_OBJECT
from koordpy.api.objects import Condition, condition_of
from koordpy.cache.topology_gaps import NO_GAPS, TopologyGaps
from koordpy.decoding.wire_json import Undecodable, read_plain
from koordpy.engine.client.api_resources import CLUSTER_NETWORK_TOPOLOGIES, Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.status.event_recorder import of_object
from koordpy.engine.status.reconciler import TRUSTED_SECONDS, StatusWriter
from koordpy.engine.status.scheduler_events import INVALID, TOPOLOGY_DEGRADED, TOPOLOGY_REPAIRED
from koordpy.engine.status.status_patches import condition_body, merged_conditions, patch_status
from koordpy.topology.topology_layers import TopologyFault
from koordpy.topology.topology_tree import Tree

logger = logging.getLogger(__name__)

VALID = "Valid"
UNLABELLED = "UnlabelledNodes"
DEGRADED = "Degraded"
VALID_FIELD = "valid"
NO_GAP = "all checked nodes have the labels of all layers"
REPAIRED_SECONDS = 300.0
"""Seconds without gaps after which the topology counts as repaired."""
NOT_USED = f"only the object named {TOPOLOGY_OBJECT} is used"


def topology_status(
    topology: ClusterNetworkTopology, faults: list[TopologyFault], tree: Tree, gaps: TopologyGaps, *, now: float
) -> dict[str, Any]:
    """Returns the status fields that must be changed. Conditions of other writers are not changed."""
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
        valid = Condition(type=VALID, status="True", reason="HierarchyRead", message=text)
        conditions = [valid, _unlabelled(tree), _degraded(gaps)]
    status[VALID_FIELD] = "Degraded" if gaps and conditions[0].status == "True" else conditions[0].status
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
    text = "; ".join(parts) + " (each such node is a separate domain there)"
    return Condition(type=UNLABELLED, status="True", reason="LabelsMissing", message=text)


def _degraded(gaps: TopologyGaps) -> Condition:
    if not gaps:
        return Condition(type=DEGRADED, status="False", reason="AllLabelled", message=NO_GAP)
    return Condition(type=DEGRADED, status="True", reason=gaps.reason, message=str(gaps))


def _without_any(tree: Tree) -> list[str]:
    """Returns the layers with a label that no node has, probably because the key is misspelt."""
    return [name for name, count in tree.unlabelled if count == len(tree.node_names)]


def topology_warning(topology: ClusterNetworkTopology, faults: list[TopologyFault], tree: Tree) -> str:
    """Returns the warning about an object; empty if it is valid and used."""
    if topology.metadata.name != TOPOLOGY_OBJECT:
        return NOT_USED
    if faults:
        return f"{'; '.join(map(str, faults))}; the hierarchy in use is still {' > '.join(tree.layers.names)}"
    return ""


class TopologyStatusWriter(StatusWriter[ClusterNetworkTopology, dict[str, Any]]):
    """Writes the status of all ClusterNetworkTopologies, by name. Runs on the scheduler's event loop."""

    def __init__(self, context: Context, leading: asyncio.Event) -> None:
        """leading: set while this process is the leader."""
        super().__init__(context)
        self._leading = leading
        self._others: dict[str, ClusterNetworkTopology] = {}
        self._said: dict[str, str] = {}
        self._gaps: TopologyGaps | None = None
        """Gaps that were found last; None before the first search."""
        self._gaps_told: frozenset[tuple[str, str]] = frozenset()
        """Kinds of gaps that were reported."""
        self._whole_since: float | None = None
        """Time since which there are no gaps, on the context's clock; None while there are gaps."""
        self._pruned: set[str] = set()
        """uids of objects for which the API server drops `status.valid`, because their CRD is older."""
        context.feeds.listeners.topology.append(self.changed)
        self.changed()

    def changed(self) -> None:
        """Marks all objects, because the topology or the nodes have changed."""
        for name in (TOPOLOGY_OBJECT, *self._others):
            self.mark(name)

    def seen(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """Records an object from kopf's handler. `default` is read from the cache; other objects are stored here."""
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
        """Reports faults and gaps, and writes every status that has changed."""
        if self._leading.is_set():
            self._look_at_gaps()
            for name in self._marked:
                self._warn(name)
            await super().flush()

    def _look_at_gaps(self) -> None:
        """Updates the gaps, which can also change without a change of labels, and reports new kinds of gaps."""
        nodes, now = self._context.state.nodes, self._context.clock()
        gaps = nodes.gaps if nodes.topology is not None and not nodes.topology_faults else NO_GAPS
        if self._gaps is None:
            self._gaps_told = self._told_before(gaps)
        if gaps is not self._gaps:
            if gaps != self._gaps:
                self.mark(TOPOLOGY_OBJECT)
            self._gaps = gaps
        if gaps.kinds:
            self._whole_since = None
        elif self._whole_since is None:
            self._whole_since = now
        found = self._find(TOPOLOGY_OBJECT)
        if found is None or nodes.topology_faults:
            return
        about = of_object(found[1], found[0].metadata)
        if gaps.kinds - self._gaps_told:
            self._gaps_told |= gaps.kinds
            logger.warning("ClusterNetworkTopology %s is degraded: %s", TOPOLOGY_OBJECT, gaps)
            self._context.announcer.tell(TOPOLOGY_DEGRADED, about, str(gaps))
        elif self._gaps_told and self._whole_since is not None and now - self._whole_since >= REPAIRED_SECONDS:
            self._gaps_told = frozenset()
            self._context.announcer.tell(TOPOLOGY_REPAIRED, about, NO_GAP)

    def _told_before(self, gaps: TopologyGaps) -> frozenset[tuple[str, str]]:
        """Returns the kinds of gaps that the previous leader reported, according to the condition.

        If the condition differs from the present gaps, the reported kinds are unknown, and a placeholder is returned.
        """
        found = self._find(TOPOLOGY_OBJECT)
        listed = found[0].status.get("conditions") if found is not None else None
        old = condition_of(msgspec.convert(listed or [], list[Condition], strict=False), DEGRADED)
        if old is None or old.status != "True":
            return frozenset()
        return gaps.kinds if old.message == str(gaps) else frozenset({("", "")})

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
        nodes, now, uid = self._context.state.nodes, self._context.now(), obj.metadata.uid
        gaps = nodes.gaps if key == TOPOLOGY_OBJECT else NO_GAPS
        wanted = topology_status(obj, self._faults(key), nodes.tree, gaps, now=now)
        written, age = self._writes.last(key, uid)
        if written is not None and VALID_FIELD in written and VALID_FIELD not in there and age >= TRUSTED_SECONDS:
            self._pruned.add(uid)
        if uid in self._pruned:
            wanted.pop(VALID_FIELD, None)
        return {**there, **wanted}

    async def _send(
        self, obj: ClusterNetworkTopology, resource: Resource, wanted: dict[str, Any], there: dict[str, Any] | None
    ) -> bool:
        old = there or {}
        changed = {name: value for name, value in wanted.items() if there is None or value != old.get(name)}
        return await patch_status(self._context.client, resource, obj.metadata, changed)
