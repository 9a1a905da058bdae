# SPDX-License-Identifier: Apache-2.0
"""NUMA zones in storms: nodes with reports and with devices of known zones, pods that demand alignment, and what must
hold of their Bindings. Nothing here asks the planner."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from koordpy.api import keys
from koordpy.api.custom_objects import NodeResourceTopology
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.served_resources import ServedResource
from tests.engine.card_scenes import SLICES, carded, carded_gang
from tests.engine.live import gang, pod
from tests.engine.manifests import CLAIMS_OF_DEVICES, Manifest, annotations_of, asked, live_on_node
from tests.engine.stage import Stage
from tests.engine.test_reservations import claim, claiming

REPORTS = "noderesourcetopologies.topology.node.k8s.io"
SERVED = ServedResource(keys.GROUP_NODE_TOPOLOGY, "v1alpha2", "NodeResourceTopology", "noderesourcetopologies", False)
KINDS: dict[str, Any] = {REPORTS: NodeResourceTopology}
"""What a server serves besides, in schedules with zones."""
NUMA_NODE = "resource.kubernetes.io/numaNode"
ZONE_CPUS = (2, 2)
POLICIES = ("single-numa-node", "single-numa-node", "restricted", "best-effort")
STRICT = POLICIES[:3]
DEMAND = {keys.NUMA_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}'}


def serves_reports(store: Store) -> bool:
    return any(one == SERVED for one in store.registry)


def recorded(obj: Manifest) -> dict[int, int]:
    """Zone -> CPUs of a pod, as its Binding says."""
    text = annotations_of(obj).get(keys.RESOURCE_STATUS)
    entries = json.loads(text)["numaNodeResources"] if text else []
    return {one["node"]: int(one["resources"]["cpu"]) for one in entries if "cpu" in one["resources"]}


def whole_cpus(obj: Manifest) -> int:
    """What the CPU Manager gives to a pod."""
    return asked(obj, "cpu")


def on_node(store: Store, node: str) -> list[Manifest]:
    return [obj for obj in store.list("pods") if live_on_node(obj) and obj["spec"]["nodeName"] == node]


def used(store: Store, node: str) -> list[int]:
    """CPUs in use of each zone: where the Bindings say, else in the first zone that has them."""
    out = [0, 0]
    there = on_node(store, node)
    for obj in there:
        for zone, amount in recorded(obj).items():
            out[zone] += amount
    for obj in there:
        amount = 0 if recorded(obj) else whole_cpus(obj)
        zone = next((i for i, most in enumerate(ZONE_CPUS) if out[i] + amount <= most), 0)
        out[zone] += amount
    return out


@dataclass
class ZoneActs:
    """Each method without an argument is something that somebody does. submit, create_gang: as in `Users`."""

    stage: Stage
    submit: Callable[[Manifest], None]
    create_gang: Callable[[Manifest, list[Manifest]], None]

    def prepare(self) -> None:
        """Reports of all nodes, and devices with zones."""
        store = self.stage.cluster.server.store
        store.registry.add(SERVED)
        for name in self.stage.nodes:
            policy = self.stage.dice.choice(POLICIES)
            attributes = {"topologyManagerPolicy": policy, "topologyManagerScope": "pod", "cpuManagerPolicy": "static"}
            listed = [{"name": key, "value": value} for key, value in attributes.items()]
            store.create(REPORTS, {"metadata": {"name": name}, "attributes": listed, "zones": self._zones(name)})
            store.update(SLICES, f"of-{name}", lambda obj: {**obj, "spec": self._placed(obj["spec"])})

    def _placed(self, spec: Manifest) -> Manifest:
        dice = self.stage.dice
        zones = [dice.choice((i % 2, i % 2, i % 2, 0, None)) for i in range(len(spec["devices"]))]
        told = [{"attributes": {NUMA_NODE: {"int": zone}}} if zone is not None else {} for zone in zones]
        return {**spec, "devices": [{**one, **extra} for one, extra in zip(spec["devices"], told, strict=True)]}

    def _zones(self, node: str) -> list[Manifest]:
        taken = used(self.stage.cluster.server.store, node)
        return [
            {
                "name": f"node-{i}",
                "type": "Node",
                "resources": [
                    {"name": "cpu", "capacity": str(n), "allocatable": str(n), "available": str(max(0, n - taken[i]))}
                ],
            }
            for i, n in enumerate(ZONE_CPUS)
        ]

    def zone_report(self, name: str = "") -> None:
        """A node reports what its pods use now."""
        node = name or self.stage.dice.choice(self.stage.nodes)
        zones = self._zones(node)
        self.stage.cluster.server.store.update(REPORTS, node, lambda obj: {**obj, "zones": zones})

    def over(self) -> None:
        """Every node reports a last time."""
        for name in self.stage.nodes:
            self.zone_report(name)

    def _dressed(self, manifest: Manifest) -> Manifest:
        """The pod with whole CPUs, and mostly with a demand."""
        cpu = self.stage.dice.choice(("0", "1", "1", "2"))
        for amounts in manifest["spec"]["containers"][0]["resources"].values():
            amounts |= {"cpu": cpu, "memory": "1Mi"}
        if self.stage.dice.random() < 0.8:
            manifest["metadata"].setdefault("annotations", {}).update(DEMAND)
        return manifest

    def zoned(self) -> None:
        dice, made = self.stage.dice, self.stage.made
        claim(self.stage.cluster, f"z{made}", dice.choice([1, 1, 2]))
        self.submit(self._dressed(claiming(f"p{made}", f"z{made}")))
        if dice.random() < 0.4:
            self.submit(self._dressed(claiming(f"p{made}-too", f"z{made}")))

    def zoned_card(self) -> None:
        self.submit(self._dressed(carded(f"p{self.stage.made}", self.stage.dice.choice([1, 1, 2]))))

    def zoned_cpu(self) -> None:
        self.submit(self._dressed(pod(f"p{self.stage.made}", gpus=0)))

    def zoned_gang(self) -> None:
        """Members with cards, with claims, or with neither."""
        dice, name = self.stage.dice, f"g{self.stage.made}"
        size = dice.choice([2, 3])
        group, *pods = carded_gang(name, size) if dice.random() < 0.4 else gang(name, size, gpus=0)
        for i, one in enumerate(pods):
            if dice.random() < 0.5:
                claim(self.stage.cluster, f"z{self.stage.made}-{i}")
                one["spec"]["resourceClaims"] = [{"name": "z", "resourceClaimName": f"z{self.stage.made}-{i}"}]
        self.create_gang(group, [self._dressed(one) for one in pods])


@dataclass
class ZoneWatch:
    """What must hold of zones at each of our Bindings."""

    server: ApiServer
    faults: list[str]

    def check_bound(self, obj: Manifest, node: str) -> None:
        store, name = self.server.store, obj["metadata"]["name"]
        zones, whole = recorded(obj), whole_cpus(obj)
        (policy,) = {
            one["value"] for one in store.get(REPORTS, node)["attributes"] if one["name"] == "topologyManagerPolicy"
        }
        if sum(zones.values()) != whole:
            self.faults.append(f"{name} is bound to {node} with {whole} CPUs, its zones are {zones}")
        demands = annotations_of(obj).get(keys.NUMA_SPEC) == DEMAND[keys.NUMA_SPEC]
        if (demands or policy == "single-numa-node") and len(zones) > 1:
            self.faults.append(f"{name} is bound to {node}, and spans zones {zones}")
        if policy in STRICT or demands:
            self._check_sums(obj, node, zones)
        if demands:
            self._check_devices(obj, node, set(zones))

    def _check_sums(self, obj: Manifest, node: str, zones: dict[int, int]) -> None:
        """Our pods have no more of a zone than it has."""
        there = [one for one in on_node(self.server.store, node) if recorded(one)]
        for zone in zones:
            held = {one["metadata"]["name"]: recorded(one).get(zone, 0) for one in there}
            if sum(held.values()) > ZONE_CPUS[zone]:
                self.faults.append(f"{obj['metadata']['name']} is bound to {node}: zone {zone} is overbooked: {held}")

    def _check_devices(self, obj: Manifest, node: str, zones: set[int]) -> None:
        """Devices of a pod with a demand are in its zones; without zones they are together."""
        (listed,) = [
            one["spec"]["devices"] for one in self.server.store.list(SLICES) if one["spec"]["nodeName"] == node
        ]
        places = {
            one["name"]: one["attributes"][NUMA_NODE]["int"] for one in listed if NUMA_NODE in one.get("attributes", {})
        }
        found = {device: places[device] for device in self._given(obj) if device in places}
        wrong = {device for device, zone in found.items() if zone not in zones} if zones else set()
        if wrong or (not zones and len(set(found.values())) > 1):
            self.faults.append(f"{obj['metadata']['name']} is bound to {node} in zones {zones} with devices {found}")

    def _given(self, obj: Manifest) -> Iterator[str]:
        names = {one["resourceClaimName"] for one in obj["spec"].get("resourceClaims", [])}
        names |= {obj.get("status", {}).get("extendedResourceClaimStatus", {}).get("resourceClaimName", "")}
        for one in self.server.store.list(CLAIMS_OF_DEVICES):
            if one["metadata"]["name"] in names:
                for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                    yield result["device"]
