# SPDX-License-Identifier: Apache-2.0
"""Allocatable GPUs beside devices of claims in the choice of nodes, against an enumeration (dra.md 6 (d), (e))."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import (
    DeviceAttribute,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    ExactRequest,
    ResourceSlice,
)
from koordpy.api.custom_objects import Device, DeviceEntry, DeviceMatrices, DeviceMatrix, DeviceSpec, DeviceTopology
from koordpy.api.objects import ObjectMeta
from tests.planning.node_rules import node, planned
from tests.planning.test_filter_dra import DRIVER, offers, resource_claim, selectors, user
from tests.scenarios.cluster import bound, group, messages

GPU, NIC = "nvidia.com/gpu", "nic.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"
PIX, UNLIMITED = 12, 10**6
CLASSES = [
    DeviceClass(
        metadata=ObjectMeta(name="gpu"),
        spec=DeviceClassSpec(selectors=selectors(f'device.driver == "{DRIVER}"'), extended_resource_name=GPU),
    ),
    DeviceClass(
        metadata=ObjectMeta(name="nic"), spec=DeviceClassSpec(selectors=selectors(f'device.driver == "{NIC}"'))
    ),
]


@dataclass(frozen=True)
class Machine:
    """A node. gpus: number. plugin: True if a device plugin offers them. link: GB/s of each pair as the node's Device
    states it; None without a Device. near: True if the GPUs have one PCIe root. nics: number of network cards.
    nic_near: True if they have this PCIe root, too. room: number of pods."""

    name: str
    gpus: int
    plugin: bool
    link: int | None = None
    near: bool = False
    nics: int = 0
    nic_near: bool = False
    room: int = 8

    def objects(self) -> list[Any]:
        amounts: dict[str, Any] = {GPU: str(self.gpus)} if self.plugin else {}
        out: list[Any] = [node(f"{self.name}:{self.room}", **amounts)]
        if self.gpus and not self.plugin:
            out.append(self._slice(DRIVER, self.gpus, near=self.near))
        if self.nics:
            out.append(self._slice(NIC, self.nics, near=self.nic_near))
        if self.plugin and self.link is not None:
            matrix = [[0 if i == j else self.link for j in range(self.gpus)] for i in range(self.gpus)]
            root = self.name if self.near else ""
            entries = [
                DeviceEntry(type="gpu", id=f"{self.name}-{i}", minor=i, topology=DeviceTopology(pcie_id=root))
                for i in range(self.gpus)
            ]
            topology = DeviceMatrices(gpu=[DeviceMatrix(name="bandwidth", topology=json.dumps(matrix))])
            spec = DeviceSpec(topologies=topology, devices=entries)
            out.append(Device(metadata=ObjectMeta(name=self.name), spec=spec))
        return out

    def _slice(self, driver: str, number: int, *, near: bool) -> ResourceSlice:
        made = offers(f"{self.name}", *(f"d{i}" for i in range(number)))
        facts = {ROOT: DeviceAttribute(text=self.name)} if near else {}
        devices = [replace(one, attributes=facts) for one in made.spec.devices]
        return replace(
            made,
            metadata=ObjectMeta(name=f"{self.name}-{driver}"),
            spec=replace(made.spec, driver=driver, devices=devices),
        )

    def cost(self, gpus: int, nics: int) -> tuple[int, int, int] | None:
        """(slowest pair of one driver, of different drivers, devices left) with these devices; None for too few."""
        if gpus > self.gpus or nics > self.nics:
            return None
        pair = (self.link or 0) if self.plugin else PIX * self.near
        slow = min(pair if gpus > 1 else UNLIMITED, PIX * self.nic_near if nics > 1 else UNLIMITED)
        is_placed = self.near and (not self.plugin or self.link is not None)
        across = PIX if is_placed and self.nic_near else 0
        left = (self.gpus - gpus if gpus else 0) + (self.nics - nics if nics else 0)
        return slow, across if gpus and nics else UNLIMITED, left


def cluster_of(machines: Sequence[Machine]) -> list[Any]:
    return [*CLASSES, *(obj for one in machines for obj in one.objects())]


def nic_claim(name: str, number: int) -> Any:
    return resource_claim(name, DeviceRequest(name="r", exactly=ExactRequest(device_class_name="nic", count=number)))


CASES: dict[str, tuple[list[Machine], int, int, str]] = {
    # nodes, GPUs, network cards, the node chosen
    "one GPU, more are left at the device plugin": (
        [Machine("n1", 8, plugin=True), Machine("n2", 4, plugin=False)], 1, 0, "n2",
    ),
    "one GPU, fewer are left at the device plugin": (
        [Machine("n1", 4, plugin=False), Machine("n2", 2, plugin=True)], 1, 0, "n2",
    ),
    "two GPUs, links are known from attributes only": (
        [Machine("n1", 2, plugin=True), Machine("n2", 8, plugin=False, near=True)], 2, 0, "n2",
    ),
    "two GPUs, the Device states faster links": (
        [Machine("n1", 2, plugin=False, near=True), Machine("n2", 8, plugin=True, link=50)], 2, 0, "n2",
    ),
    "GPUs and network cards are left": (
        [Machine("n1", 8, plugin=True, nics=1), Machine("n2", 2, plugin=True, nics=4)], 1, 1, "n2",
    ),
    "the slower driver decides": (
        [Machine("n1", 2, plugin=True, link=5, nics=2, nic_near=True), Machine("n2", 8, plugin=True, link=10, nics=8,
         nic_near=True)], 2, 2, "n2",
    ),
    "a GPU near its network card": (
        [Machine("n1", 2, plugin=True, link=50, nics=1), Machine("n2", 8, plugin=True, link=50, near=True, nics=8,
         nic_near=True)], 1, 1, "n2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("machines", "gpus", "nics", "chosen"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("gang", ["", "g"])
def test_nodes_are_compared_by_gpus_of_device_plugins_too(
    machines: list[Machine], gpus: int, nics: int, chosen: str, gang: str
) -> None:
    claims = ["c"] if nics else []
    pod = user("p", *claims, requests={GPU: str(gpus)}, gang=gang)
    plan = planned([*cluster_of(machines), *(nic_claim(one, nics) for one in claims), group("g", 1), pod])
    assert bound(plan) == {"p": chosen}, messages(plan)


@pytest.mark.parametrize("seed", range(150))
def test_nodes_of_pods_and_gangs_are_the_best_of_an_enumeration(seed: int) -> None:
    dice = random.Random(seed)
    members, gpus, nics = dice.choice([1, 1, 2, 3]), dice.choice([1, 1, 2]), dice.choice([0, 1, 1, 2])
    machines = [
        Machine(
            f"n{i}",
            dice.choice([0, 2, 3, 4, 6]),
            plugin=dice.random() < 0.6,
            link=dice.choice([None, 5, 12, 50]),
            near=dice.random() < 0.5,
            nics=dice.choice([0, 2, 3, 5]) if nics else 0,
            nic_near=dice.random() < 0.5,
            room=dice.choice([1, 2, 3]),
        )
        for i in range(1, 4)
    ]

    def key(places: Sequence[Machine]) -> Any:
        used = dict.fromkeys(places)
        costs = [one.cost(gpus * places.count(one), nics * places.count(one)) for one in used]
        if None in costs or any(places.count(one) > one.room for one in used):
            return None
        near, far, left = zip(*costs, strict=True)
        return len(used), [-x for x in sorted(near)], [-x for x in sorted(far)], sum(left)

    possible = [places for places in itertools.product(machines, repeat=members) if key(places) is not None]
    pods = []
    for i in range(members):
        claims = [f"c{i}"] if nics else []
        pods += [nic_claim(one, nics) for one in claims]
        pods.append(user(f"p-{i}", *claims, requests={GPU: str(gpus)}, cpu="1", gang="g" if members > 1 else ""))
    plan = planned([*cluster_of(machines), *([group("g", members)] if members > 1 else []), *pods])
    placed = bound(plan)
    assert bool(placed) == bool(possible), messages(plan)
    if placed:
        by_name = {one.name: one for one in machines}
        own = key([by_name[placed[f"p-{i}"]] for i in range(members)])
        assert own == min(map(key, possible)), (placed, min((key(one), [m.name for m in one]) for one in possible))
