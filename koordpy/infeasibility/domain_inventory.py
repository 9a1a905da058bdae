# SPDX-License-Identifier: Apache-2.0
"""Counts nodes, accelerators and free slots of each topology domain, for `koordpy topology` and the cluster view.

Slots are counted for copies of a single pod, placed one after the other, by the planner's filters. podCountMultiple and
other members of a gang are ignored. `free_for_gangs` counts whole gangs of pods that each fill a node. A private domain
has one node only, which lacks the label of the layer. Sources: docs/rules/gang-network.md 3 (tree, private domains) and
5 (slots).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koordpy.api import keys
from koordpy.api.objects import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements, Toleration
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.family_books import AllocatedDevices
from koordpy.pods.pod_info import PodInfo, pod_info
from koordpy.topology.topology_tree import Tree, domain_parts


@dataclass(frozen=True, slots=True)
class Domain:
    """The numbers of one domain: a domain of a layer, the cluster, or a node."""

    level: int
    """0 for the cluster, the depth of the tree for a node."""
    layer: str
    name: str
    path: str
    """Names from the top layer down, joined by `/`; empty for the cluster."""
    private: bool
    """True for the private domain of a node that lacks the layer's label."""
    nodes: int
    """Number of nodes."""
    unschedulable: int
    """Number of cordoned nodes."""
    free: int
    """Accelerators that no pod uses, in hundredths of a device; 0 on overcommitted nodes."""
    total: int
    """Allocatable accelerators, in hundredths of a device."""
    slots: int | None
    """Further pods of the requested shape that fit; None without a requested shape."""


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """The nodes without the label of one layer. Each of them is a private domain of that layer."""

    layer: str
    keys: tuple[str, ...]
    """Label keys of the layer; empty for a layer from HyperNodes."""
    nodes: tuple[str, ...]
    """Names of the nodes."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All domains of the tree with their numbers, and labels that may be wrong."""

    layers: tuple[str, ...]
    """Names of the layers from the top layer to the nodes."""
    domains: tuple[Domain, ...]
    """All domains, the cluster first: each parent before its children, siblings in natural order."""
    unlabelled: tuple[Unlabelled, ...]
    """One entry per layer with nodes without the label."""
    split: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(layer, name, paths) of each domain name that occurs below several parents.

    These are different domains, but often a node has a wrong label.
    """


GANG_PODS = (1, 8, 64)
"""Sizes of the gangs that `free_for_gangs` counts, in pods; each pod fills a node."""


@dataclass(frozen=True, slots=True)
class FreeForGangs:
    """How many more gangs fit the free capacity. Each pod of such a gang uses all accelerators of a node."""

    resource: str
    """Resource name of the accelerators; if there are several, the one with the largest total in the cluster."""
    per_pod: int
    """Accelerators of one pod: as many as the largest node has."""
    gangs: tuple[int, ...]
    """Accelerators of one gang, for each size in `GANG_PODS`."""
    slots: tuple[tuple[int, ...], ...]
    """[level][domain] number of further such pods that fit."""
    layers: tuple[tuple[str, tuple[int, ...]], ...]
    """(layer, numbers of gangs that fit, one per size) if each gang must be in one domain of the layer."""
    largest: tuple["LargestGang", ...]
    """[layers] the domain in which the largest gang fits; of equal domains, the first in the order of the tree."""


@dataclass(frozen=True, slots=True)
class LargestGang:
    """The domain of a layer in which the largest gang fits."""

    layer: str
    domain: str
    """Path of the domain; empty for the cluster."""
    pods: int
    """Number of pods of that gang; 0 if no pod fits any domain of the layer."""


def asking(requests: Mapping[str, str], scheduler: str) -> Pod:
    """Returns a pending pod with the given requests (resource -> quantity), for which slots can be counted.

    The pod tolerates taints with the name of an extended resource that it requests; the admission plugin
    ExtendedResourceToleration adds such tolerations to real pods.
    """
    tolerations = [Toleration(key=name, operator="Exists") for name in requests if "/" in name]
    container = Container(name="main", resources=ResourceRequirements(requests=dict(requests)))
    spec = PodSpec(scheduler_name=scheduler, containers=[container], tolerations=tolerations)
    return Pod(metadata=ObjectMeta(name="request.copy", namespace="default", uid="copy"), spec=spec)


def free_for_gangs(
    snapshot: Snapshot,
    config: KoordpyConfiguration,
    *,
    placed: Mapping[str, tuple[str, AllocatedDevices]] | None = None,
) -> FreeForGangs | None:
    """Counts the gangs that fit the free capacity, by the planner's filters; None if no node has accelerators.

    placed: pods that count as bound: pending pod key -> (node name, devices allocated by name); None for no such pods.
    """
    totals = {
        name: int(snapshot.allocatable[:, column].sum()) // (100 if name in keys.HUNDREDTHS else 1)
        for name in (*config.gpu.resources, *keys.NPU_RESOURCES)
        if (column := snapshot.columns.get(name)) is not None
    }
    resource = max(totals, key=totals.__getitem__, default="")
    if not totals.get(resource):
        return None
    # a pod that fills the largest node, and its slots by the planner's filters
    unit = 100 if resource in keys.HUNDREDTHS else 1
    most = int(snapshot.allocatable[:, snapshot.columns[resource]].max()) // unit
    pod = asking({resource: str(most * unit)}, config.scheduler_names[0])
    info = pod_info(pod, scheduler_names=frozenset(config.scheduler_names), readers=snapshot.readers)
    draft = Draft(snapshot)
    for key, (node, devices) in (placed or {}).items():
        draft.assign(snapshot.pods[key], snapshot.index[node], devices=devices)
    per_node = RoundState(draft, config).of(info).slots
    slots = [level.sums(per_node) for level in snapshot.tree.levels[: snapshot.tree.depth]]
    return FreeForGangs(
        resource=resource,
        per_pod=most,
        gangs=tuple(pods * most for pods in GANG_PODS),
        slots=tuple(tuple(row.tolist()) for row in slots),
        layers=tuple(
            (level.layer, tuple(int((row // pods).sum()) for pods in GANG_PODS))
            for level, row in zip(snapshot.tree.levels, slots, strict=False)
        ),
        largest=tuple(largest_gang(snapshot.tree, number, row.tolist()) for number, row in enumerate(slots)),
    )


def largest_gang(tree: Tree, level: int, slots: Sequence[int]) -> LargestGang:
    """Returns the domain of a level with the most slots. slots: [domains of the level] number of pods that fit."""
    best = max(range(len(slots)), key=slots.__getitem__, default=None)
    if best is None:
        return LargestGang(tree.levels[level].layer, "", 0)
    return LargestGang(tree.levels[level].layer, tree.path(level, best), slots[best])


def take_inventory(snapshot: Snapshot, config: KoordpyConfiguration, *, pod: PodInfo | None = None) -> Inventory:
    """Returns the inventory of the tree. pod: a pending pod without a gang for which slots are counted; None for no
    slots."""
    tree = snapshot.tree
    free, total = _accelerators(snapshot, config)
    slots: Ints | None = None
    if pod is not None:
        slots = RoundState(Draft(snapshot), config).of(pod).slots
    cordoned = np.array([node.unschedulable for node in snapshot.nodes], dtype=np.int64)
    rows = [
        (level.sums(cordoned), level.sums(free), level.sums(total), level.sums(slots) if slots is not None else None)
        for level in tree.levels
    ]
    private = _private(tree, snapshot)
    domains = []
    for number, d in _depth_first(tree):
        level = tree.levels[number]
        unschedulable, left, all_of_it, room = rows[number]
        domains.append(
            Domain(
                level=number,
                layer=level.layer,
                name=level.names[d],
                path=tree.path(number, d),
                private=(number, d) in private,
                nodes=int(level.end[d] - level.start[d]),
                unschedulable=int(unschedulable[d]),
                free=int(left[d]),
                total=int(all_of_it[d]),
                slots=int(room[d]) if room is not None else None,
            )
        )
    names = tree.layers.names if tree.has_object or tree.depth > 1 else (tree.layers.names[-1],)
    return Inventory(names, tuple(domains), tuple(_unlabelled(tree, private)), tuple(_split(tree, private)))


def _accelerators(snapshot: Snapshot, config: KoordpyConfiguration) -> tuple[Ints, Ints]:
    """Returns (free, total), each [nodes] accelerators in hundredths of a device.

    Several resource names of one device family denote the same devices. So of these, only the largest total and the
    smallest free amount count.
    """
    free = np.zeros(len(snapshot.nodes), dtype=np.int64)
    total = np.zeros(len(snapshot.nodes), dtype=np.int64)
    for family in (config.gpu.resources, keys.NPU_RESOURCES):
        have = np.zeros(len(free), dtype=np.int64)
        left = np.full(len(free), np.iinfo(np.int64).max)
        for name in family:
            column = snapshot.columns.get(name)
            if column is None:
                continue
            scale = 1 if name in keys.HUNDREDTHS else 100
            amount = snapshot.allocatable[:, column] * scale
            there = amount > 0
            have = np.maximum(have, amount)
            left[there] = np.minimum(left, amount - snapshot.used[:, column] * scale)[there]
        total += have
        free += np.where(have > 0, np.maximum(left, 0), 0)
    return free, total


def _depth_first(tree: Tree) -> Iterator[tuple[int, int]]:
    """Yields (level, domain) of all domains: each parent before its children, siblings in natural order."""
    stack = [(0, 0)]
    while stack:
        number, d = stack.pop()
        yield number, d
        if number < tree.depth:
            stack.extend((number + 1, child) for child in reversed(tree.children(number, d)))


def _private(tree: Tree, snapshot: Snapshot) -> dict[tuple[int, int], str]:
    """Returns the private domains: (level, domain) -> name of the node that is alone there."""
    out = {}
    for i, node in enumerate(snapshot.nodes):
        for number, (alone, _) in enumerate(domain_parts(tree.layers, node.name, node.labels), start=1):
            if alone:
                out[number, int(tree.domain_of[number, i])] = node.name
    return out


def _unlabelled(tree: Tree, private: dict[tuple[int, int], str]) -> Iterator[Unlabelled]:
    """Yields `Inventory.unlabelled`."""
    for number, layer in enumerate(tree.layers.chain[:-1], start=1):
        nodes = tuple(node for (level, _), node in sorted(private.items()) if level == number)
        if nodes:
            yield Unlabelled(layer.name, layer.label_keys, nodes)


def _split(tree: Tree, private: dict[tuple[int, int], str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields `Inventory.split`. Private domains are left out."""
    for number in range(2, tree.depth):
        level = tree.levels[number]
        paths: dict[str, list[str]] = {}
        for d, name in enumerate(level.names):
            if (number, d) not in private:
                paths.setdefault(name, []).append(tree.path(number, d))
        for name, places in paths.items():
            if len(places) > 1:
                yield level.layer, name, tuple(places)
