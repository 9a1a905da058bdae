# SPDX-License-Identifier: Apache-2.0
"""A round of a crowded cluster, harder than `bench.busy`: scattered gangs, whole racks, budgets, quotas on both sides.

`python -m bench.crowded [NODES [UNITS [SEED...]]]`: nodes of 8 GPUs in racks of 8 and blocks of 64, 90 to 97 % full; of
the waiting gangs a third has two or three shapes, three of five gather at a rack or a block, some hold whole racks.
`python -m bench.crowded motley [NODES [UNITS [SEED...]]]`: the same of odd sizes, each gang of two or three shapes,
five users in each quota.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.busy import GPU, PRIORITIES, measured
from bench.objects import group, node, pod, state_of
from koordpy.api import keys
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
)
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    Quantities,
    Wire,
)
from koordpy.cache.cluster_state import ClusterState

RACK, BLOCK = 8, 64
_RUNNING = ((1, 1), (1, 2), (1, 8), (2, 4), (4, 2), (4, 8), (6, 3), (8, 8), (16, 8), (RACK, 8))
_WAITING = ((2, 8), (3, 4), (4, 8), (8, 2), (8, 8), (12, 4), (16, 1), (16, 8), (RACK, 8), (2 * RACK, 8), (32, 8))
"""(pods, GPUs each) of a gang's first shape."""


@dataclass(frozen=True)
class Mix:
    """What sorts of gangs there are. mixed: part of those that wait with several shapes; users: of each quota."""

    running: Sequence[tuple[int, int]] = _RUNNING
    waiting: Sequence[tuple[int, int]] = _WAITING
    mixed: float = 1 / 3
    users: int = 0


CROWDED = Mix()
MOTLEY = Mix(
    running=((1, 1), (1, 3), (2, 8), (3, 5), (5, 2), (5, 8), (7, 4), (10, 6), (20, 8)),
    waiting=((2, 6), (3, 8), (5, 5), (6, 8), (7, 3), (10, 2), (12, 8), (20, 1), (24, 8)),
    mixed=1,
    users=5,
)


def cluster(nodes: int, units: int, *, quotas: int = 6, seed: int = 1, mix: Mix = CROWDED) -> ClusterState:
    """The cluster with everybody in place."""
    return state_of(_objects(nodes, units, quotas, random.Random(seed), mix))


def _objects(nodes: int, units: int, quotas: int, chance: random.Random, mix: Mix) -> Iterator[Wire]:
    layers = [
        HierarchyEntry(layer_name="rackLayer", label_key="rack", parent_topology_layer="blockLayer"),
        HierarchyEntry(layer_name="blockLayer", label_key="block", parent_topology_layer=keys.CLUSTER_LAYER),
    ]
    yield ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=ClusterNetworkTopologySpec(hierarchy=layers))
    for i in range(nodes):
        labels = {"rack": f"r{i // RACK}", "block": f"b{i // BLOCK}"}
        yield node(f"n{i}", {GPU: 8, "cpu": "96", "memory": "1Ti"}, labels=labels)
    whole = nodes * 8
    parts = [chance.uniform(0.3, 1.0) for _ in range(quotas)]
    for i, part in enumerate(parts):
        spec = ElasticQuotaSpec(
            min={GPU: int(whole * part / sum(parts))}, max={GPU: int(whole * chance.choice((0.4, 1)))}
        )
        meta = ObjectMeta(name=f"q{i}", namespace="default")
        yield ElasticQuota(metadata=meta, spec=spec)
        selector = LabelSelector(match_labels={keys.QUOTA_NAME: f"q{i}", "serves": "yes"})
        yield PodDisruptionBudget(
            metadata=meta,
            spec=PodDisruptionBudgetSpec(selector=selector),
            status=PodDisruptionBudgetStatus(disruptions_allowed=chance.randrange(9)),
        )
    yield from _running(nodes, quotas, chance, mix)
    for i in range(units):
        yield from _waiting(f"w{i}", quotas, chance, mix)


def _owner(quota: int, chance: random.Random, mix: Mix) -> dict[str, str]:
    labels = {keys.QUOTA_NAME: f"q{quota}"}
    return {**labels, keys.QUOTA_USER: f"q{quota}-u{chance.randrange(mix.users)}"} if mix.users else labels


def _asks(gpus: int) -> Quantities:
    return {GPU: gpus, "cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi"}


def _running(nodes: int, quotas: int, chance: random.Random, mix: Mix) -> Iterator[Wire]:
    """Units until the cluster is as full as it is to be: a third lies beside one another, a third anywhere."""
    free = [8] * nodes
    left = int(nodes * 8 * chance.uniform(0.90, 0.97))
    number = 0
    while left > 0:
        pods, gpus = chance.choice(mix.running)
        name, number = f"u{number}", number + 1
        order = list(range(nodes))
        if chance.random() < 1 / 3:
            chance.shuffle(order)
        else:
            start = chance.randrange(nodes // RACK) * RACK
            order = order[start:] + order[:start]
        places: list[int] = []
        for at in order:
            while free[at] >= gpus and len(places) < pods:
                free[at] -= gpus
                places.append(at)
        left -= gpus * len(places) or 1
        labels = _owner(min(chance.randrange(quotas), chance.randrange(quotas)), chance, mix)
        if chance.random() < 0.2:
            labels["serves"] = "yes"
        gang = name if len(places) > 1 else ""
        if gang:
            yield group(name, chance.choice((len(places), max(2, len(places) * 3 // 4))))
        priority, age = chance.choice(PRIORITIES), chance.randrange(3000)
        for k, at in enumerate(places):
            yield pod(f"{name}-{k}", _asks(gpus), at=f"n{at}", gang=gang, priority=priority, age=age, labels=labels)


def _waiting(name: str, quotas: int, chance: random.Random, mix: Mix) -> Iterator[Wire]:
    pods, gpus = chance.choice(mix.waiting)
    shapes = [(pods, gpus)]
    if chance.random() < mix.mixed:
        others = chance.sample([g for g in (1, 2, 3, 4, 8) if g != gpus], chance.choice((1, 2)))
        shapes += [(max(1, pods // chance.choice((1, 2, 4))), other) for other in others]
    rules = []
    if chance.random() < 0.6:
        layer, how = chance.choice(("rackLayer", "blockLayer")), chance.choice(("PreferGather", "MustGather"))
        rules = [{"layer": layer, "strategy": how}]
    notes = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": rules})} if rules else {}
    labels = _owner(chance.randrange(quotas), chance, mix)
    priority, age = chance.choice(PRIORITIES), 3000 + chance.randrange(500)
    yield group(name, sum(count for count, _ in shapes), annotations=notes)
    for number, (count, each) in enumerate(shapes):
        for k in range(count):
            yield pod(f"{name}-{number}-{k}", _asks(each), gang=name, priority=priority, age=age, labels=labels)


def main(*words: str) -> None:
    """A row for each seed."""
    name, *numbers = words if words[:1] == ("motley",) else ("crowded", *words)
    nodes, units, *seeds = (*map(int, numbers), *(1000, 200)[len(numbers) :])
    for seed in seeds or (1, 2, 3, 4):
        state = cluster(nodes, units, seed=seed, mix=MOTLEY if name == "motley" else CROWDED)
        row = measured(state, f"{name}: {nodes:,} nodes, {units} waiting units, seed {seed}")
        print("{:<60}{:>12}  {}".format(*row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
