# SPDX-License-Identifier: Apache-2.0
"""Nodes that fail and return in a storm, gangs with every policy of repair, and controllers that create pods again.

It has dice of its own, so that schedules without failures stay as they are.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.times import rfc3339
from koordpy.apiserver.resource_shelf import Change
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from tests.engine.manifests import GROUPS, OURS, Manifest, gang_of
from tests.engine.stage import Stage

BROKEN, UNREACHABLE = "Broken", "node.kubernetes.io/unreachable"
"""The condition and the taint that mark a node as lost."""
NO_SEATS = KoordpyConfiguration(repair=Repair(seat_hold=0.0))
"""The configuration of storms without the trait `repairs`."""
SETTINGS = {
    keys.GANG_REPAIR: (None, "replace", "regather", "regather", "wait", "later"),
    keys.GANG_STALE_GRACE: (None, None, "0s", "2s", "-1"),
    keys.GANG_SEAT_HOLD: (None, None, "0s", "2s", "soon"),
}
"""Annotation of a PodGroup -> its values; None: without."""


@dataclass
class Failures:
    """Each method without an argument is something that happens."""

    stage: Stage
    wall: Callable[[], float]
    by_others: Callable[[], AbstractContextManager[None]]
    """What is written within is written by somebody else than a scheduler."""
    config: KoordpyConfiguration = NO_SEATS
    """The configuration of the schedulers, and of the judges."""
    _sizes: dict[str, int] = field(default_factory=dict)
    """uid of a PodGroup whose controller creates pods again -> number of its pods."""
    _made: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(f"failures {self.stage.dice.getstate()[1][:8]}")
        if "repairs" in self.stage.traits:
            repair = Repair(
                policy=self._dice.choice(("replace", "regather", "wait")),
                seat_hold=self._dice.choice((0.0, 4.0, 4.0, 4.0)),
                lost_after=self._dice.choice((0.0, 1.0)),
                lost_conditions=(BROKEN,),
                sick_devices=self._dice.choice(("tell", "evict")),
            )
            self.config = replace(NO_SEATS, repair=repair)
            self.stage.cluster.server.store.listeners.append(self._written)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def breaks(self) -> None:
        """A node is reported broken, or unreachable; then its pods may be deleted after a time."""
        there = {obj["metadata"]["name"] for obj in self.stage.cluster.server.store.list("nodes")}
        if not there:
            return
        name = self._dice.choice(sorted(there))
        since = None if self._dice.random() < 0.2 else rfc3339(self.wall())
        if self._dice.random() < 0.5:
            said = {"type": BROKEN, "status": "True", "lastTransitionTime": since}
            self._report(name, said)
        else:
            self._update(name, taints=[{"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": since}])
            if self._dice.random() < 0.5:
                self._later(self._dice.choice((1.0, 3.0)), lambda: self._clear(name))

    def mends(self) -> None:
        """A node returns with its pods."""
        if broken := [obj["metadata"]["name"] for obj in self.stage.cluster.server.store.list("nodes") if marks(obj)]:
            name = self._dice.choice(broken)
            self._update(name, taints=[])
            self._report(name)

    def _update(self, name: str, *, status: bool = False, **changes: object) -> None:
        part = "status" if status else "spec"
        self.stage.cluster.server.store.update(
            "nodes", name, lambda obj: {**obj, part: {**obj.get(part, {}), **changes}}, status=status
        )

    def _report(self, name: str, *broken: Manifest) -> None:
        said = self.stage.cluster.server.store.get("nodes", name)["status"].get("conditions", [])
        self._update(name, status=True, conditions=[*(one for one in said if one["type"] != BROKEN), *broken])

    def _clear(self, node: str) -> None:
        """The pods of an unreachable node are deleted by force."""
        unreachable = [obj for obj in self.stage.cluster.server.store.list("nodes") if obj["spec"].get("taints")]
        if node in {obj["metadata"]["name"] for obj in unreachable}:
            for name, at in self.stage.cluster.places().items():
                if at == node:
                    self.stage.cluster.delete(name)

    # -- gangs --------------------------------------------------------------------------------------------------------

    def set_up(self, group: Manifest, size: int) -> None:
        """A user says how a gang is to be repaired. size: number of its pods, which a controller may create again."""
        if "repairs" not in self.stage.traits:
            return
        notes = group["metadata"].setdefault("annotations", {})
        notes |= {key: value for key, values in SETTINGS.items() if (value := self._dice.choice(values)) is not None}
        if self._dice.random() < 0.75:
            self._sizes[group["metadata"]["name"]] = size

    def _written(self, shelf: str, change: Change) -> None:
        """A controller hears that a pod is gone."""
        obj = change.entry.obj
        group = gang_of(obj) if shelf == "pods" else ""
        if change.kind == "DELETED" and group in self._sizes and obj["spec"]["schedulerName"] == OURS:
            self._later(self._dice.choice((0.02, 0.3, 1.5)), lambda: self._create_again(group, obj))

    def _create_again(self, group: str, old: Manifest) -> None:
        there = self.stage.cluster.pods()
        members = [one for one in there.values() if gang_of(one) == group]
        groups = {one["metadata"]["name"] for one in self.stage.cluster.server.store.list(GROUPS)}
        if len(members) >= self._sizes[group] or group not in groups:
            return
        self._made += 1
        name = old["metadata"]["name"]
        if name in there or self._dice.random() < 0.2:
            name = f"{group}-{'xyz'[self._made % 3]}{self._made}"
        meta = {"name": name, "namespace": "default", "labels": old["metadata"]["labels"]}
        spec = {k: v for k, v in old["spec"].items() if k not in ("nodeName", "priority")}
        self.stage.tally["member created again"] += 1
        self.stage.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def do() -> None:
            with self.by_others():
                act()

        asyncio.get_running_loop().call_later(seconds, do)


def marks(node: Manifest) -> list[tuple[str, str]]:
    """(kind of a mark that makes a node lost, RFC 3339 time since when; empty: long ago)."""
    taints = [one for one in node["spec"].get("taints", []) if one["key"] == UNREACHABLE]
    conditions = [one for one in node.get("status", {}).get("conditions", []) if one["type"] == BROKEN]
    return [
        *(("taint", one.get("timeAdded") or "") for one in taints),
        *(("condition", one.get("lastTransitionTime") or "") for one in conditions if one["status"] == "True"),
    ]
