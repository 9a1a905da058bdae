# SPDX-License-Identifier: Apache-2.0
"""Where storms take place: a few nodes with what their traits say, and what is told of it."""

import json
import random
from collections import Counter
from dataclasses import dataclass, field

from koordpy.api import keys
from tests.engine.card_scenes import map_cards
from tests.engine.live import Live, small
from tests.engine.manifests import BLOCK, BUDGETS, DEVICES, GPU, NPU, QUOTAS, TOPOLOGIES, Manifest
from tests.engine.storage import HOST, Storage
from tests.engine.test_reservations import offer

NODES = ("n1", "n2", "n3")
GPUS_A_NODE, NPUS_A_NODE = 4, 8
CLASSES = {"middle": 100, "high": 1000}
MORE_NODES = (*NODES, "n4")
"""Of schedules in which nodes fail and gangs are repaired."""
BLOCKS = dict(zip(MORE_NODES, ("b0", "b0", "b1", "b1"), strict=True))


def device(name: str, *, sick: tuple[int, ...] = ()) -> Manifest:
    """Four GPUs, linked in two pairs."""
    matrix = [["X" if i == j else ("NV4" if i // 2 == j // 2 else "SYS") for j in range(4)] for i in range(4)]
    gpus = [{"type": "gpu", "minor": i, "id": f"{name}-{i}", "health": i not in sick} for i in range(GPUS_A_NODE)]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": gpus, "topologies": {"gpu": [{"name": "links", "topology": json.dumps(matrix)}]}},
    }


def blocks() -> Manifest:
    """A topology of one layer over the nodes."""
    layers = [
        {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": keys.CLUSTER_LAYER},
        {"layerName": keys.NODE_LAYER, "parentTopologyLayer": "blockLayer"},
    ]
    return {"metadata": {"name": keys.TOPOLOGY_OBJECT}, "spec": {"hierarchy": layers}}


@dataclass
class Stage:
    """One cluster. `tally` counts what was done, `made` how often somebody acted: names are numbered by it."""

    cluster: Live
    dice: random.Random
    traits: frozenset[str]
    storage: Storage
    tally: Counter[str] = field(default_factory=Counter)
    made: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that there are, or may come back."""
        return MORE_NODES if "repairs" in self.traits else NODES

    def prepare(self) -> None:
        """The cluster as it is before anybody schedules."""
        store = self.cluster.server.store
        for name, value in CLASSES.items():
            store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
        for name in self.nodes:
            self.add_node(name)
        if "topology" in self.traits:
            store.create(TOPOLOGIES, blocks())
        if "devices" in self.traits:
            for name in self.nodes:
                store.create(DEVICES, device(name))
        if "quotas" in self.traits:
            for name, least, most in (("a", 8, 12), ("b", 4, 7)):
                spec = {"min": {GPU: str(least)}, "max": {GPU: str(most)}}
                store.create(QUOTAS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        if "budget" in self.traits:
            self.put_budget("some", 2)
        if "volumes" in self.traits:
            self.storage.classes()
            for name in self.nodes:
                for i in range(2):
                    self.storage.volume(f"v-{name}-{i}", name)
        if "claims" in self.traits:
            for name in self.nodes:
                offer(self.cluster, name, *(f"{name}-{i}" for i in range(3 if "zones" in self.traits else 2)))
        if "cards" in self.traits:
            map_cards(self.cluster)

    def add_node(self, name: str) -> None:
        """A machine comes, or comes back."""
        labels = {HOST: name, BLOCK: BLOCKS[name]}
        if "npus" in self.traits:
            labels[keys.ACCELERATOR_TYPE] = "module-910b-8"
        manifest = small(name, gpus=GPUS_A_NODE, labels=labels)
        if "npus" in self.traits:
            for amounts in (manifest["status"]["capacity"], manifest["status"]["allocatable"]):
                amounts[NPU] = str(NPUS_A_NODE)
        self.cluster.nodes(manifest)

    def put_budget(self, name: str, least: int) -> None:
        """So many of the guarded pods must stay."""
        spec = {"minAvailable": least, "selector": {"matchLabels": {"guarded": "yes"}}}
        self.cluster.server.store.create(BUDGETS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
