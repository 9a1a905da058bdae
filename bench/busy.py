# SPDX-License-Identifier: Apache-2.0
"""A round of a busy cluster: nearly full, many running gangs of several teams, and a queue of mixed gangs before it.

`python -m bench.busy [NODES [UNITS]]`: 1,000 nodes of 8 GPUs, 95 % full, and 200 waiting units: a third of two shapes,
three of five gathered. Processor time of one round, what it placed and evicted, and how sure it was.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator

from bench.objects import group, node, pod
from bench.timing import Row, rounds
from koordpy.api import keys
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
)
from koordpy.api.objects import ObjectMeta, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state

GPU = keys.GPU_RESOURCES[0]
PRIORITIES = (0, 100, 1000)
FULL = 0.95
_SIZES = ((1, 1), (1, 8), (4, 8), (8, 4), (8, 8), (16, 1), (16, 8), (32, 8))
"""(pods, GPUs each) of gangs; the same for those that run and those that wait."""


def cluster(nodes: int, units: int, *, quotas: int = 6, seed: int = 1) -> ClusterState:
    """The cluster with everybody in place."""
    chance = random.Random(seed)
    state = make_state()
    for one in _objects(nodes, units, quotas, chance):
        state.upsert(one)
    return state


def _objects(nodes: int, units: int, quotas: int, chance: random.Random) -> Iterator[Wire]:
    layers = [
        HierarchyEntry(layer_name="blockLayer", label_key="block", parent_topology_layer="spineLayer"),
        HierarchyEntry(layer_name="spineLayer", label_key="spine", parent_topology_layer=keys.CLUSTER_LAYER),
    ]
    yield ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=ClusterNetworkTopologySpec(hierarchy=layers))
    free = {}
    for i in range(nodes):
        yield node(f"n{i}", {GPU: 8, "cpu": "64"}, labels={"block": f"b{i // 16}", "spine": f"s{i // 128}"})
        free[i] = 8
    share = nodes * 8 // quotas
    for i in range(quotas):
        spec = ElasticQuotaSpec(min={GPU: share * (2 if i % 2 else 1) // 2}, max={GPU: nodes * 8})
        yield ElasticQuota(metadata=ObjectMeta(name=f"q{i}", namespace="default"), spec=spec)
    yield from _running(free, nodes, quotas, chance)
    for i in range(units):
        yield from _waiting(f"w{i}", quotas, chance)


def _running(free: dict[int, int], nodes: int, quotas: int, chance: random.Random) -> Iterator[Wire]:
    """Gangs and single pods until the cluster is as full as it is to be; a gang's pods lie beside one another."""
    left = int(nodes * 8 * FULL)
    number = 0
    order = list(free)
    while left > 0:
        pods, gpus = chance.choice(_SIZES)
        name, number = f"r{number}", number + 1
        owner = {keys.QUOTA_NAME: f"q{chance.randrange(quotas)}"}
        priority, age = chance.choice(PRIORITIES), chance.randrange(3000)
        start = chance.randrange(nodes)
        places: list[int] = []
        for k in range(nodes):
            at = order[(start + k) % nodes]
            while free[at] >= gpus and len(places) < pods:
                free[at] -= gpus
                places.append(at)
            if len(places) == pods:
                break
        left -= gpus * len(places)
        if not places:
            left -= 1
            continue
        if len(places) > 1:
            yield group(name, len(places))
        for k, at in enumerate(places):
            gang = name if len(places) > 1 else ""
            yield pod(f"{name}-{k}", {GPU: gpus}, at=f"n{at}", gang=gang, priority=priority, age=age, labels=owner)


def _waiting(name: str, quotas: int, chance: random.Random) -> Iterator[Wire]:
    pods, gpus = chance.choice(_SIZES[1:])
    shapes = [(pods, gpus)]
    if chance.random() < 1 / 3:
        shapes.append((max(1, pods // 2), chance.choice([g for g in (1, 2, 4, 8) if g != gpus])))
    rules = []
    if chance.random() < 0.6:
        layer, how = chance.choice(("blockLayer", "spineLayer")), chance.choice(("PreferGather", "MustGather"))
        rules = [{"layer": layer, "strategy": how}]
    notes = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": rules})} if rules else {}
    owner = {keys.QUOTA_NAME: f"q{chance.randrange(quotas)}"}
    priority, age = chance.choice(PRIORITIES), 3000 + chance.randrange(500)
    members = sum(count for count, _ in shapes)
    yield group(name, members, annotations=notes)
    for number, (count, each) in enumerate(shapes):
        for k in range(count):
            at = f"{name}-{number}-{k}"
            yield pod(at, {GPU: each}, gang=name, priority=priority, age=age, labels=owner)


def row(nodes: int, units: int) -> Row:
    """One round."""
    return measured(cluster(nodes, units), f"busy: {nodes:,} nodes, {units} waiting units")


def measured(state: ClusterState, name: str) -> Row:
    """One round of a cluster: its processor time, what it placed and evicted, and how sure it was."""
    (seconds,), plan = rounds(state, 1)
    proofs = Counter(str(one.proof) for one in plan.units)
    sure = sum(proofs[name] for name in ("optimal", "infeasible"))
    said = ", ".join(f"{count} {name}" for name, count in sorted(proofs.items()))
    note = f"{len(plan.placements)} placed, {len(plan.evictions)} evicted; sure of {sure} of {len(plan.units)} ({said})"
    return name, f"{seconds:.2f} s", note


def run() -> Iterator[Row]:
    """Rows of (what, seconds, note)."""
    yield row(200, 40)
    yield row(1000, 200)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    for found in [row(*numbers)] if numbers else run():
        print("{:<50}{:>12}  {}".format(*found), flush=True)
