# SPDX-License-Identifier: Apache-2.0
"""Devices chosen by sets against all solutions of the search, compared one by one (dra.md 6)."""

import random
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import (
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from koordpy.api.objects import ObjectMeta
from koordpy.devices.dra.filters import device_choice
from koordpy.devices.dra.filters.claim_requests import UnallocatedClaim, claim_spec
from koordpy.devices.dra.filters.device_choice import BestChoice, PodShare, best_choice
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.link_order import LinkOrder
from koordpy.devices.dra.filters.min_bandwidth import Bandwidth, PodBandwidth
from koordpy.devices.dra.filters.node_links import NUMA_NODE, PCIE_ROOT, NodeLinks
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import DeviceId, Granted
from koordpy.pods.family_books import KnownLinks
from tests.planning.test_device_search import DRIVER, at_n1, request

OTHER = "nic.example.com"
PARTS: Sequence[Sequence[Sequence[int]]] = (
    ([1],),
    ([2],),
    ([4],),
    ([2, 1],),
    ([1], [1]),
    ([2], [2]),
    ([1], [2]),
    ([3], [2]),
    ([1, 1], [1, 1]),
    ([2, 1], [2]),
    ([1], [1], [1]),
    ([2], [1], [2]),
    ([2], [2], [2]),
    ([1], [1], [1], [1]),
)
"""Counts of the requests of each claim."""


def _slices(dice: random.Random, size: int, drivers: int) -> tuple[DeviceOffers, list[str]]:
    """Returns offers of one node, and the drivers of the devices in order."""
    roots = dice.choice([[None], ["a", "b"], ["a", "b", None]])
    numas = dice.choice([[None], [0, 1], [0, 1, None]])
    of = sorted(dice.choice([DRIVER, OTHER][:drivers]) for _ in range(size))
    made: dict[str, ResourceSlice] = {}
    for driver in (DRIVER, OTHER):
        devices = []
        for i, own in enumerate(of):
            if own == driver:
                attributes = {"uuid": DeviceAttribute(text=f"GPU-{i}")}
                attributes["model"] = DeviceAttribute(text=dice.choice(["x", "x", "y"]))
                root, numa = dice.choice(roots), dice.choice(numas)
                if root is not None:
                    attributes[PCIE_ROOT] = DeviceAttribute(text=root)
                if numa is not None:
                    attributes[NUMA_NODE] = DeviceAttribute(number=numa)
                devices.append(SliceDevice(name=f"d{i}", attributes=attributes))
                if dice.random() < 0.1:
                    devices[-1] = replace(devices[-1], binding_conditions=["ready"])
        pool = ResourcePool(name="n1", generation=1, resource_slice_count=1)
        spec = ResourceSliceSpec(driver=driver, pool=pool, node_name="n1", devices=devices)
        if devices:
            made[driver] = ResourceSlice(metadata=ObjectMeta(name=driver), spec=spec)
    return DeviceOffers(made, {"gpu": DeviceClass(metadata=ObjectMeta(name="gpu"))}, {}), of


def _known(dice: random.Random, drivers: Sequence[str]) -> KnownLinks | None:
    """Returns the links of the first driver's devices; None for none, and some devices may be unknown."""
    if dice.random() < 0.3:
        return None
    size = len(drivers)
    values = dice.choice([[10, 50], [10, 25, 50], [50]])
    matrix = [[0] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        matrix[i][j] = matrix[j][i] = dice.choice(values) * 10**6
    some = dice.random() < 0.2
    ids = {f"GPU-{i}": i for i, one in enumerate(drivers) if one == DRIVER and not (some and dice.random() < 0.3)}
    return KnownLinks(ids, {}, matrix, matrix, matrix, [dice.choice([0, 1, None])] * size, [""] * size)


class Scene:
    """A node, claims and pods, drawn from a seed."""

    def __init__(self, seed: int, *, drivers: int) -> None:
        dice = random.Random(seed)
        size = dice.randrange(4, 9)
        self.offers, of = _slices(dice, size, drivers)
        self.at = at_n1(self.offers)
        self.links = NodeLinks(self.at.devices, _known(dice, of), {})
        self.usage = DeviceUsage(self.offers)
        self.held = 0
        fixed = 0
        for i, device in enumerate(self.at.devices):
            if dice.random() < 0.15:
                self.usage.change(Granted("r", DeviceId(*device.id)), 1)
                self.held |= (dice.random() < 0.5) << i
                fixed |= (dice.random() < 0.3) << i
        parts = dice.choice(PARTS)
        models = dice.choice([[""], ["", "x"], ["", "x", "y"]])
        claims = [
            DeviceClaim(requests=[self._request(dice, f"r{i}", count, models, drivers) for i, count in enumerate(part)])
            for part in parts
        ]
        if dice.random() < 0.4:
            claims = [claims[0]] * len(claims)
        self.claims = [UnallocatedClaim(f"default/c{i}", claim_spec(one, self.offers)) for i, one in enumerate(claims)]
        groups = [(i,) for i in range(len(claims))]
        if len(groups) > 2 and dice.random() < 0.3:
            groups = [(0, 1), *groups[2:]]
        self.pods = [PodShare(one, fixed if i == 0 else 0) for i, one in enumerate(groups)]
        if dice.random() < 0.2:
            self.pods.append(PodShare(self.pods[-1].claims, self.pods[-1].fixed))
        if dice.random() < 0.2:
            self.pods.append(PodShare((), fixed))
        self.least = 20 * 10**6 if dice.random() < 0.25 else 0
        self.gpus = dice.random() < 0.5

    @staticmethod
    def _request(dice: random.Random, name: str, count: int, models: Sequence[str], drivers: int) -> Any:
        made = request(name, count, dice.choice(models))
        if drivers == 1:
            return made
        driver = dice.choice([DRIVER, OTHER])
        chosen = request(name, 1, "x").exactly
        assert chosen is not None and made.exactly is not None
        [selector] = chosen.selectors
        assert selector.cel is not None
        own = replace(selector, cel=replace(selector.cel, expression=f'device.driver == "{driver}"'))
        return replace(made, exactly=replace(made.exactly, selectors=[own]))

    def best(self, *, sets: bool) -> BestChoice:
        pairs = None
        if self.least:
            fixed = [tuple(i for i in range(len(self.at.devices)) if pod.fixed >> i & 1) for pod in self.pods]
            pairs = Bandwidth(
                self.links,
                [
                    PodBandwidth(frozenset(pod.claims), own, self.least, self.gpus)
                    for pod, own in zip(self.pods, fixed, strict=True)
                ],
            )
        matching = DeviceMatching(self.offers)
        kinds = partial(range, len(self.at.devices))
        search = DeviceSearch(self.at, self.claims, self.usage, matching, limit=10**9, twins=kinds, pairs=pairs)
        order = LinkOrder(self.links)
        return best_choice(search, BestChoice(self.usage, order, self.pods, self.held), sets=sets)


def _facts(found: BestChoice) -> tuple[Any, ...]:
    grants = None
    if found.grants is not None:
        grants = [[(one.request, one.device) for one in grant] for grant in found.grants]
    return grants, found.alternatives, found.slowest, found.left


@pytest.mark.parametrize("drivers", [1, 2])
@pytest.mark.parametrize("seed", range(120))
def test_sets_give_the_best_of_all_solutions(seed: int, drivers: int) -> None:
    scene = Scene(seed, drivers=drivers)
    assert _facts(scene.best(sets=True)) == _facts(scene.best(sets=False))


def test_most_scenes_are_chosen_by_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = device_choice.best_sets
    monkeypatch.setattr(device_choice, "best_sets", lambda problem: asked.append(problem) or real(problem))
    for seed in range(40):
        Scene(seed, drivers=1 + seed % 2).best(sets=True)
    assert len(asked) > 30
