# SPDX-License-Identifier: Apache-2.0
"""Random clusters of nodes with NUMA zones that change between rounds: pods start and end, reports and Devices arrive,
nodes change."""

import json
import random
from collections.abc import Sequence

from koordpy.api import keys
from koordpy.api.custom_objects import NodeResourceTopology, TopologyAttribute, TopologyZone, ZoneResource
from koordpy.api.objects import Container, Node, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements, Wire
from koordpy.plan.round_plan import RoundPlan
from tests.planning.gpu.machines import UNIFORM, device
from tests.scenarios.cluster import World, group, node, pod_meta
from tests.scenarios.gpus import GPU

NIC = "example.com/nic"
CPUS, GPUS, NICS, GIB = 32, 8, 4, 64
"""Of a node."""
POLICIES = ("single-numa-node", "single-numa-node", "restricted", "restricted", "best-effort", "none")
LABELS = ("SingleNUMANode", "Restricted", "BestEffort")
DEMANDS = ('{"numaTopologyPolicy": "SingleNUMANode"}', '{"numaTopologyPolicy": "Restricted"}')
SHAPES = 6
"""Shapes of pods of a life: few, so that pods share results."""


class Life:
    """A cluster and what happens to it. Equal seeds give equal lives."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self._shapes = [self._containers() for _ in range(SHAPES)]
        self._made = 0
        self.nodes = [f"n{i}" for i in range(self.rng.randint(2, 8))]
        for name in self.nodes:
            self._add_node(name)
        for _ in range(self.rng.randint(0, 2 * len(self.nodes))):
            self.world.add(self._pod(at=self.rng.choice(self.nodes)))
        self.arrive()

    def _add_node(self, name: str) -> None:
        rng = self.rng
        labels = {keys.NUMA_POLICY: rng.choice(LABELS)} if rng.random() < 0.3 else {}
        self.world.add(self._node(name, labels))
        if rng.random() < 0.85:
            self.world.add(self._report(name))
        if rng.random() < 0.3:
            self.world.add(self._device(name))

    def _node(self, name: str, labels: dict[str, str]) -> Node:
        amounts = {"memory": f"{GIB}Gi", GPU: str(GPUS), NIC: str(NICS)}
        return node(f"{name}:{CPUS}", labels, **amounts)

    def _device(self, name: str) -> Wire:
        rng = self.rng
        zones = rng.choice((2, 2, 4))
        places = [{"node_id": i * zones // GPUS} for i in range(GPUS)]
        return device(UNIFORM, name=name, places=places, sick=[0] if rng.random() < 0.1 else [])

    def _report(self, name: str) -> NodeResourceTopology:
        rng = self.rng
        zones = rng.choice((1, 2, 2, 2, 4, 4))
        sizes = {"cpu": CPUS, GPU: GPUS, NIC: NICS, "memory": GIB}
        listed = [key for key in sizes if rng.random() < 0.8]
        fresh = rng.random() < 0.6

        def resource(key: str) -> ZoneResource:
            size = sizes[key] // zones
            have = size - (rng.random() < 0.1)
            left = have if fresh else rng.randint(0, have)
            unit = "Gi" if key == "memory" else ""
            return ZoneResource(
                name=key, capacity=f"{size}{unit}", allocatable=f"{have}{unit}", available=f"{left}{unit}"
            )

        attributes = [
            TopologyAttribute(name="topologyManagerPolicy", value=rng.choice(POLICIES)),
            TopologyAttribute(name="topologyManagerScope", value=rng.choice(("pod", "container"))),
            TopologyAttribute(name="cpuManagerPolicy", value="static"),
            TopologyAttribute(name="memoryManagerPolicy", value=rng.choice(("Static", "None"))),
        ]
        return NodeResourceTopology(
            metadata=ObjectMeta(name=name),
            zones=[
                TopologyZone(name=f"node-{i}", type="Node", resources=[resource(key) for key in listed])
                for i in range(zones)
            ],
            attributes=attributes,
        )

    def _containers(self) -> tuple[list[Container], list[Container], str]:
        """Returns (init containers, containers, demand) of a shape of pods."""
        rng = self.rng

        def container(name: str, *, restarts: bool = False) -> Container:
            amounts = {"cpu": str(rng.choice((1, 2, 4, 6, 8, 12))), "memory": f"{rng.choice((1, 2, 8))}Gi"}
            if rng.random() < 0.7:
                amounts[GPU] = str(rng.choice((1, 1, 2, 2, 4)))
            if rng.random() < 0.2:
                amounts[NIC] = str(rng.choice((1, 2)))
            limits = amounts if rng.random() < 0.8 else {key: one for key, one in amounts.items() if "/" in key}
            resources = ResourceRequirements(requests=amounts, limits=limits)
            return Container(name=name, image="img", resources=resources, restart_policy="Always" if restarts else None)

        inits = [container("init", restarts=rng.random() < 0.4)] if rng.random() < 0.25 else []
        apps = [container(f"c{i}") for i in range(rng.choice((1, 1, 1, 2)))]
        return inits, apps, rng.choice(DEMANDS) if rng.random() < 0.15 else ""

    def _pod(self, *, gang: str = "", at: str = "", shape: int | None = None) -> Pod:
        rng = self.rng
        self._made += 1
        inits, apps, demand = self._shapes[rng.randrange(SHAPES) if shape is None else shape]
        notes = {keys.NUMA_SPEC: demand} if demand else {}
        if at and rng.random() < 0.5:
            zone = {"node": rng.randint(0, 1), "resources": dict(apps[0].resources.requests)}
            notes[keys.RESOURCE_STATUS] = json.dumps({"numaNodeResources": [zone]})
        meta = pod_meta(f"p{self._made}", gang=gang, created=self._made % 3600, annotations=notes)
        spec = PodSpec(
            scheduler_name=keys.DEFAULT_SCHEDULER_NAME,
            node_name=at,
            init_containers=inits,
            containers=apps,
            priority=rng.choice((0, 0, 0, 100)),
        )
        return Pod(metadata=meta, spec=spec, status=PodStatus(phase="Running" if at else "Pending"))

    def arrive(self) -> None:
        """Adds pending pods and gangs."""
        rng = self.rng
        self.world.add([self._pod() for _ in range(rng.randint(0, 6))])
        if rng.random() < 0.6:
            self._made += 1
            name, size, shape = f"g{self._made}", rng.randint(2, 6), rng.randrange(SHAPES)
            mixed = rng.random() < 0.3
            members = [self._pod(gang=name, shape=None if mixed else shape) for _ in range(size)]
            self.world.add(group(name, size), members)

    def change(self, plan: RoundPlan) -> None:
        """Carries a plan out, then lets something else happen."""
        rng, state = self.rng, self.world.state
        for eviction in plan.evictions:
            state.delete(Pod, eviction.pod_key)
        for one in plan.placements:
            state.bind(one.pod_key, one.node, dict(one.annotations))
        bound = [pod.key for pod in self.world.snapshot().pods.values() if pod.bound]
        for key in rng.sample(bound, min(len(bound), rng.randint(0, 3))):
            state.delete(Pod, key)
        for name in self._some():
            state.upsert(self._report(name))
        for name in self._some():
            state.upsert(self._device(name))
        for name in self._some():
            state.upsert(self._node(name, {keys.NUMA_POLICY: rng.choice(LABELS)}))
        for name in self._some():
            state.delete(NodeResourceTopology, name)
        self.arrive()

    def _some(self) -> Sequence[str]:
        return [name for name in self.nodes if self.rng.random() < 0.1]
